"""Operators of mixers that stand in place of attention: projections, and what lies between them.

Kernels are those that Megatron-Core calls. Of Mamba-2 (ssm/mamba_mixer.py) mamba_ssm's: convolution
and scan are one function to autograd, which keeps what the projection gave and the output before
the gate, and computes all else again. Of the gated delta rule (ssm/gated_delta_net.py) fla's
(``chunk_gated_delta_rule``, ``l2norm``) and causal-conv1d's. Lightning attention's are
OpenNLPLab's (lightning_attn2.py) between torch's own. Nobody timed them here: products over chunks
are priced as batched products, the rest by the bytes that it moves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from simulator.cost.operators.matrices import columns_on_rank, rows_on_rank
from simulator.cost.operators.operations import (
    Collective,
    Gemm,
    Operators,
    Ranks,
    Stream,
    element_bytes,
    norm,
)
from simulator.cost.operators.roles import SavedRole
from simulator.cost.operators.tensor_parallel import (
    gather_cast_input,
    keep_input,
    reduce_cast_output,
)
from simulator.software.kernels import Kernels
from simulator.workload.mixers import GatedDelta, LightningAttention, Mamba2, Mixer
from simulator.workload.recipe import Recipe
from simulator.workload.weights import Weight

_MAMBA2_KERNELS = 7.0
"""Kernels of the scan's forward pass: convolution; sums of decays, state of each chunk, states
passed on, scores, outputs (mamba_ssm/ops/triton/ssd_combined.py, release 2.2); gated norm."""

_DELTA_KERNELS = 24.0
"""Kernels of a forward pass between the projections: convolution and copies around it 5, norms of
queries and keys with their copies 4, repeated keys 2, decays and rates 5, the chunked rule 6 (sums,
keys by keys, inverse, its products, states, outputs: fla/ops/gated_delta_rule/chunk.py), gate 2."""

_LIGHTNING_KERNELS = 9.0
"""Kernels of lightning attention between its projections: SiLU, copies by head 3, the chunks,
outputs copied back, norm, sigmoid, gate."""


def mix(
    ops: Operators,
    mixer: Mixer,
    hidden: int,
    ranks: Ranks,
    recipe: Recipe,
    kernels: Kernels,
    *,
    alone: bool = True,
) -> None:
    """List the operators of a mixer, its heads cut over tp, with the collectives.

    Where it is not `alone`, attention beside it reads, keeps and gathers the same input.
    """
    size, tokens = element_bytes(recipe), ranks.tokens(recipe)
    listed = mixer.weights(hidden)
    weights = {weight.name: weight for weight in listed}
    projected = rows_on_rank(weights["mixer_in"], ranks.tp)
    inner = weights["mixer_out"].columns / ranks.tp
    if alone:
        keep_input(ops, "mixer input", hidden, ranks, recipe, kernels, linears=("mixer_in",))
    ops.gemms.append(Gemm(name="mixer in", m=tokens, n=projected, k=hidden))
    for weight in listed:
        if weight.name == "mixer_side":
            side(ops, weight, tokens, ranks.tp)
    kind: Callable[..., float] = MIXERS.get(type(mixer), _scanned)
    between = kind(ops, mixer, ranks, recipe, kernels)
    ops.keep(
        "mixer output",
        tokens * inner * size,
        SavedRole.ACTIVATION_OUTPUT,
        linears=("mixer_out",),
    )
    ops.gemms.append(Gemm(name="mixer out", m=tokens, n=hidden, k=inner))
    wide = tokens * hidden * size
    if alone:
        gather_cast_input(ops, wide, ranks, "mixer in", recipe, kernels)
    reduce_cast_output(ops, wide, ranks, "mixer out", recipe, kernels)
    ops.mixer_kernels = 2.0 + between


def side(ops: Operators, weight: Weight, tokens: Any, ranks: Any = 1.0) -> None:
    """List the product with a small linear that is kept in 16 bit whatever the precision."""
    ops.gemms.append(
        Gemm(
            name=weight.name.replace("_", " "),
            m=tokens,
            n=rows_on_rank(weight, ranks),
            k=columns_on_rank(weight, ranks),
            batch=float(weight.count),
            kind="head",
        )
    )


def small_linear(ops: Operators, weight: Weight, hidden: int, ranks: Ranks, recipe: Recipe) -> None:
    """List a linear that every rank has whole, on its own tokens.

    Inputs that are not as wide as the model are tensors of their own and wait for the backward
    pass.
    """
    own_tokens = ranks.own_tokens(recipe)
    side(ops, weight, own_tokens)
    if weight.columns != hidden:
        ops.keep("input of small linears", own_tokens * weight.columns * element_bytes(recipe))


def _scanned(ops: Operators, mixer: Any, ranks: Ranks, recipe: Recipe, kernels: Kernels) -> float:
    """What lies between the projections of a mixer that says itself what it keeps and moves.

    Backward reads what was kept and what came back and writes gradients: twice the forward bytes,
    and those once more that the kernel computes again.
    """
    size, tokens, length = element_bytes(recipe), ranks.tokens(recipe), recipe.sequence_length
    _chunk_products(ops, mixer, ranks, recipe)
    ops.keep("mixer state", tokens * mixer.kept(length) * size / ranks.tp)
    moved = size * tokens * mixer.moved(length) / ranks.tp
    ops.streams.append(
        Stream(
            name=mixer.word,
            kind="elementwise",
            forward_bytes=moved,
            backward_bytes=3.0 * moved,
            calls=mixer.kernels,
        )
    )
    return float(mixer.kernels)


def _chunk_products(ops: Operators, mixer: Mixer, ranks: Ranks, recipe: Recipe) -> None:
    """List a mixer's products over chunks of the sequence."""
    for product in mixer.products(recipe.sequence_length):
        ops.gemms.append(
            Gemm(
                name=product.name,
                m=product.m,
                n=product.n,
                k=product.k,
                batch=ranks.micro_batch * product.count / ranks.tp,
                kind="attention",
                causal=product.causal,
            )
        )


def _mamba2(ops: Operators, mixer: Mamba2, ranks: Ranks, recipe: Recipe, kernels: Kernels) -> float:
    """Convolution, scan and gated norm; groups are cut over tp as heads are."""
    size, tokens = element_bytes(recipe), ranks.tokens(recipe)
    inner, convolved = mixer.inner / ranks.tp, mixer.convolved / ranks.tp
    projected = inner + convolved + mixer.heads / ranks.tp
    ops.keep("projected input", tokens * projected * size)
    _scan(ops, mixer, ranks, recipe)
    ops.keep("scan output", tokens * inner * size)
    width = mixer.inner // mixer.groups
    if mixer.gated_norm:
        norm(ops, "gated norm", tokens * inner, width, size, kernels, kind="rms")
    return _MAMBA2_KERNELS


def _scan(ops: Operators, mixer: Mamba2, ranks: Ranks, recipe: Recipe) -> None:
    """Convolution and chunked scan; the backward pass repeats the forward one.

    Bytes: the convolution reads and writes its channels; states of chunks, in fp32, are written by
    each chunk, read and written as they are passed on, and read; gate and output at the end. What
    products over chunks read and write counts with them.
    """
    size, tokens = element_bytes(recipe), ranks.tokens(recipe)
    _chunk_products(ops, mixer, ranks, recipe)
    channels = 2 * size * tokens * mixer.convolved / ranks.tp
    chunk = min(mixer.chunk, recipe.sequence_length)
    states = 4 * 4.0 * tokens / chunk * mixer.inner * mixer.state_size / ranks.tp
    gated = 3 * size * tokens * mixer.inner / ranks.tp
    moved = channels + states + gated
    ops.streams.append(
        Stream(
            name="convolution and scan",
            kind="elementwise",
            forward_bytes=moved,
            backward_bytes=3.0 * moved,
            calls=_MAMBA2_KERNELS - 2.0,
        )
    )


def _gated_delta(
    ops: Operators, mixer: GatedDelta, ranks: Ranks, recipe: Recipe, kernels: Kernels
) -> float:
    """Convolution, the rule over chunks, and a norm of every head behind the gate."""
    size, values = element_bytes(recipe), ranks.tokens(recipe) * mixer.values / ranks.tp
    _rule(ops, mixer, ranks, recipe)
    _kept_by_the_rule(ops, mixer, ranks, recipe)
    norm(ops, "gated norm", values, mixer.value_head_dim, size, kernels, kind="rms")
    return _DELTA_KERNELS


def _rule(ops: Operators, mixer: GatedDelta, ranks: Ranks, recipe: Recipe) -> None:
    """Convolution, norms of queries and keys, the chunked rule, the gate; back, all once more.

    Bytes: channels are copied, convolved and split; keys normed and repeated; gate copied and
    multiplied; states of chunks written and read. Products count what they read and write.
    """
    size, tokens = element_bytes(recipe), ranks.tokens(recipe) / ranks.tp
    _chunk_products(ops, mixer, ranks, recipe)
    repeated = mixer.value_heads * mixer.key_head_dim
    channels = 6 * (2 * mixer.keys + mixer.values)
    keys = 2 * (3 * mixer.keys + repeated)
    gate, decays = 5 * mixer.values, 15 * mixer.value_heads
    states = 2 * mixer.key_head_dim * mixer.values / min(mixer.chunk, recipe.sequence_length)
    moved = size * tokens * (channels + keys + gate + decays + states)
    ops.streams.append(
        Stream(
            name="convolution and delta rule",
            kind="elementwise",
            forward_bytes=moved,
            backward_bytes=3.0 * moved,
            calls=_DELTA_KERNELS,
        )
    )


def _kept_by_the_rule(ops: Operators, mixer: GatedDelta, ranks: Ranks, recipe: Recipe) -> None:
    """What waits for the backward pass between the projections, norm and its input apart.

    The rule keeps the inverse of every chunk and computes corrected keys, values and states again.
    """
    size, tokens, heads = element_bytes(recipe), ranks.tokens(recipe) / ranks.tp, mixer.value_heads
    ops.keep("convolution input", tokens * (2 * mixer.keys + mixer.values) * size)
    normed = size * mixer.key_head_dim + 4.0  # a statistic in fp32 beside each head's result
    ops.keep("normed queries and keys", tokens * 2 * mixer.key_heads * normed)
    if mixer.value_heads > mixer.key_heads:
        repeated = tokens * 2 * heads * mixer.key_head_dim * size
        ops.keep("repeated queries and keys", repeated)
    ops.keep("values", tokens * mixer.values * size)
    # in fp32: the decay's argument, its softplus, sums over chunks
    ops.keep("decays and rates", tokens * heads * (3 * 4.0 + size))
    ops.keep("inverses of chunks", tokens * heads * mixer.chunk * size)
    ops.keep("gate", tokens * mixer.values * size)
    ops.keep("ungated output", tokens * mixer.values * size)


def _lightning(
    ops: Operators, mixer: LightningAttention, ranks: Ranks, recipe: Recipe, kernels: Kernels
) -> float:
    """SiLU, chunks, the norm over the heads of all ranks, and the gate.

    Bytes forward, in elements of the inner width: SiLU 6, queries, keys and values by head 6,
    outputs copied back 2, sigmoid 2, gate 3; backward 9, 6, 2, 3 and 5. States of chunks are
    written and read, backward with their gradients. The kernel keeps queries, keys and values, and
    computes states again. Ranks agree on the norm's mean of squares, a number for each token.
    """
    size, tokens = element_bytes(recipe), ranks.tokens(recipe)
    inner = tokens * mixer.inner / ranks.tp
    ops.keep("queries, keys and values before SiLU", 3 * inner * size)
    ops.keep("queries, keys and values by head", 3 * inner * size)
    _chunk_products(ops, mixer, ranks, recipe)
    states = 2 * mixer.head_dim * inner / min(mixer.chunk, recipe.sequence_length)
    ops.streams.append(
        Stream(
            name="SiLU, copies and gate",
            kind="elementwise",
            forward_bytes=size * (19.0 * inner + states),
            backward_bytes=size * (25.0 * inner + 2.0 * states),
            calls=_LIGHTNING_KERNELS - 2.0,
        )
    )
    norm(ops, "norm of heads", inner, mixer.inner, size, kernels, kind="rms")
    ops.collectives += [
        Collective(operation="all_reduce", group="tp", size_bytes=4.0 * tokens, backward=backward)
        for backward in (False, True)
    ]
    ops.keep("gate", inner * size)
    ops.keep("normed output", inner * size)
    return _LIGHTNING_KERNELS


MIXERS: Mapping[type, Callable[..., float]] = {
    GatedDelta: _gated_delta,
    LightningAttention: _lightning,
    Mamba2: _mamba2,
}
"""What lists the operators of each mixer between its projections, and counts its kernels."""
