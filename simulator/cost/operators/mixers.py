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
    ModuleOperators,
    Ranks,
    Stream,
    element_bytes,
    norm,
)
from simulator.cost.operators.roles import SavedRole
from simulator.cost.operators.tensor_parallel import (
    gather_cast_input,
    kept_input,
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
    mixer: Mixer,
    hidden: int,
    ranks: Ranks,
    recipe: Recipe,
    kernels: Kernels,
    *,
    alone: bool = True,
) -> ModuleOperators:
    """List the operators of a mixer, its heads cut over tp, with the collectives.

    Where it is not `alone`, attention beside it reads, keeps and gathers the same input.
    """
    ops = ModuleOperators()
    size, tokens = element_bytes(recipe), ranks.tokens(recipe)
    listed = mixer.weights(hidden)
    weights = {weight.name: weight for weight in listed}
    projected = rows_on_rank(weights["mixer_in"], ranks.tp)
    inner = weights["mixer_out"].columns / ranks.tp
    if alone:
        ops.saved.append(
            kept_input("mixer input", hidden, ranks, recipe, kernels, linears=("mixer_in",))
        )
    ops.gemms.append(Gemm(name="mixer in", m=tokens, n=projected, k=hidden))
    for weight in listed:
        if weight.name == "mixer_side":
            ops.gemms.append(side(weight, tokens, ranks.tp))
    kind: Callable[..., ModuleOperators] = MIXERS.get(type(mixer), _scanned)
    ops.add(kind(mixer, ranks, recipe, kernels))
    ops.keep(
        "mixer output",
        tokens * inner * size,
        SavedRole.ACTIVATION_OUTPUT,
        linears=("mixer_out",),
    )
    ops.gemms.append(Gemm(name="mixer out", m=tokens, n=hidden, k=inner))
    wide = tokens * hidden * size
    if alone:
        ops.add(gather_cast_input(wide, ranks, "mixer in", recipe, kernels))
    ops.add(reduce_cast_output(wide, ranks, "mixer out", recipe, kernels))
    ops.mixer_kernels += 2.0
    return ops


def side(weight: Weight, tokens: Any, ranks: Any = 1.0) -> Gemm:
    """List the product with a small linear that is kept in 16 bit whatever the precision."""
    return Gemm(
        name=weight.name.replace("_", " "),
        m=tokens,
        n=rows_on_rank(weight, ranks),
        k=columns_on_rank(weight, ranks),
        batch=float(weight.count),
        kind="head",
    )


def small_linear(weight: Weight, hidden: int, ranks: Ranks, recipe: Recipe) -> ModuleOperators:
    """List a linear that every rank has whole, on its own tokens.

    Inputs that are not as wide as the model are tensors of their own and wait for the backward
    pass.
    """
    ops = ModuleOperators()
    own_tokens = ranks.own_tokens(recipe)
    ops.gemms.append(side(weight, own_tokens))
    if weight.columns != hidden:
        ops.keep("input of small linears", own_tokens * weight.columns * element_bytes(recipe))
    return ops


def _scanned(mixer: Any, ranks: Ranks, recipe: Recipe, kernels: Kernels) -> ModuleOperators:
    """What lies between the projections of a mixer that says itself what it keeps and moves.

    Backward reads what was kept and what came back and writes gradients: twice the forward bytes,
    and those once more that the kernel computes again.
    """
    ops = ModuleOperators()
    size, tokens, length = element_bytes(recipe), ranks.tokens(recipe), recipe.sequence_length
    ops.gemms += _chunk_products(mixer, ranks, recipe)
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
    ops.mixer_kernels = float(mixer.kernels)
    return ops


def _chunk_products(mixer: Mixer, ranks: Ranks, recipe: Recipe) -> list[Gemm]:
    """List a mixer's products over chunks of the sequence."""
    return [
        Gemm(
            name=product.name,
            m=product.m,
            n=product.n,
            k=product.k,
            batch=ranks.micro_batch * product.count / ranks.tp,
            kind="attention",
            causal=product.causal,
        )
        for product in mixer.products(recipe.sequence_length)
    ]


def _mamba2(mixer: Mamba2, ranks: Ranks, recipe: Recipe, kernels: Kernels) -> ModuleOperators:
    """Convolution, scan and gated norm; groups are cut over tp as heads are."""
    ops = ModuleOperators(mixer_kernels=_MAMBA2_KERNELS)
    size, tokens = element_bytes(recipe), ranks.tokens(recipe)
    inner, convolved = mixer.inner / ranks.tp, mixer.convolved / ranks.tp
    projected = inner + convolved + mixer.heads / ranks.tp
    ops.keep("projected input", tokens * projected * size)
    ops.add(_scan(mixer, ranks, recipe))
    ops.keep("scan output", tokens * inner * size)
    width = mixer.inner // mixer.groups
    if mixer.gated_norm:
        ops.add(norm("gated norm", tokens * inner, width, size, kernels, kind="rms"))
    return ops


def _scan(mixer: Mamba2, ranks: Ranks, recipe: Recipe) -> ModuleOperators:
    """Convolution and chunked scan; the backward pass repeats the forward one.

    Bytes: the convolution reads and writes its channels; states of chunks, in fp32, are written by
    each chunk, read and written as they are passed on, and read; gate and output at the end. What
    products over chunks read and write counts with them.
    """
    ops = ModuleOperators()
    size, tokens = element_bytes(recipe), ranks.tokens(recipe)
    ops.gemms += _chunk_products(mixer, ranks, recipe)
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
    return ops


def _gated_delta(
    mixer: GatedDelta, ranks: Ranks, recipe: Recipe, kernels: Kernels
) -> ModuleOperators:
    """Convolution, the rule over chunks, and a norm of every head behind the gate."""
    ops = ModuleOperators(mixer_kernels=_DELTA_KERNELS)
    size, values = element_bytes(recipe), ranks.tokens(recipe) * mixer.values / ranks.tp
    ops.add(_rule(mixer, ranks, recipe))
    ops.add(_kept_by_the_rule(mixer, ranks, recipe))
    ops.add(norm("gated norm", values, mixer.value_head_dim, size, kernels, kind="rms"))
    return ops


def _rule(mixer: GatedDelta, ranks: Ranks, recipe: Recipe) -> ModuleOperators:
    """Convolution, norms of queries and keys, the chunked rule, the gate; back, all once more.

    Bytes: channels are copied, convolved and split; keys normed and repeated; gate copied and
    multiplied; states of chunks written and read. Products count what they read and write.
    """
    ops = ModuleOperators()
    size, tokens = element_bytes(recipe), ranks.tokens(recipe) / ranks.tp
    ops.gemms += _chunk_products(mixer, ranks, recipe)
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
    return ops


def _kept_by_the_rule(mixer: GatedDelta, ranks: Ranks, recipe: Recipe) -> ModuleOperators:
    """What waits for the backward pass between the projections, norm and its input apart.

    The rule keeps the inverse of every chunk and computes corrected keys, values and states again.
    """
    ops = ModuleOperators()
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
    return ops


def _lightning(
    mixer: LightningAttention, ranks: Ranks, recipe: Recipe, kernels: Kernels
) -> ModuleOperators:
    """SiLU, chunks, the norm over the heads of all ranks, and the gate.

    Bytes forward, in elements of the inner width: SiLU 6, queries, keys and values by head 6,
    outputs copied back 2, sigmoid 2, gate 3; backward 9, 6, 2, 3 and 5. States of chunks are
    written and read, backward with their gradients. The kernel keeps queries, keys and values, and
    computes states again. Ranks agree on the norm's mean of squares, a number for each token.
    """
    ops = ModuleOperators(mixer_kernels=_LIGHTNING_KERNELS)
    size, tokens = element_bytes(recipe), ranks.tokens(recipe)
    inner = tokens * mixer.inner / ranks.tp
    ops.keep("queries, keys and values before SiLU", 3 * inner * size)
    ops.keep("queries, keys and values by head", 3 * inner * size)
    ops.gemms += _chunk_products(mixer, ranks, recipe)
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
    ops.add(norm("norm of heads", inner, mixer.inner, size, kernels, kind="rms"))
    ops.collectives += [
        Collective(operation="all_reduce", group="tp", size_bytes=4.0 * tokens, backward=backward)
        for backward in (False, True)
    ]
    ops.keep("gate", inner * size)
    ops.keep("normed output", inner * size)
    return ops


MIXERS: Mapping[type, Callable[..., ModuleOperators]] = {
    GatedDelta: _gated_delta,
    LightningAttention: _lightning,
    Mamba2: _mamba2,
}
"""What lists the operators of each mixer between its projections, and counts its kernels."""
