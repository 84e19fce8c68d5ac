"""Operators of linear attention by the gated delta rule: projections, convolution, chunks, norm.

Kernels are fla's (``chunk_gated_delta_rule``, ``l2norm``) and causal-conv1d's, as Megatron-Core
calls them (ssm/gated_delta_net.py). Nobody timed them here: products over chunks are priced as
batched products, the rest by the bytes that it moves.
"""

from __future__ import annotations

from simulator.cost.operators.operations import (
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
from simulator.workload.delta_rule import GatedDelta
from simulator.workload.recipe import Recipe

_KERNELS = 24.0
"""Kernels of a forward pass between the projections: convolution and copies around it 5, norms of
queries and keys with their copies 4, repeated keys 2, decays and rates 5, the chunked rule 6 (sums,
keys by keys, inverse, its products, states, outputs: fla/ops/gated_delta_rule/chunk.py), gate 2."""


def gated_delta(
    ops: Operators, mixer: GatedDelta, hidden: int, ranks: Ranks, recipe: Recipe, kernels: Kernels
) -> None:
    """List projections, rule and norm, heads cut over tp, with the collectives."""
    size, tokens = element_bytes(recipe), ranks.tokens(recipe)
    values = mixer.values / ranks.tp
    projected = 2 * (mixer.keys + mixer.values + mixer.value_heads) / ranks.tp
    keep_input(ops, "mixer input", hidden, ranks, recipe, kernels, linears=("mixer_in",))
    ops.gemms.append(Gemm(name="mixer in", m=tokens, n=projected, k=hidden))
    _rule(ops, mixer, ranks, recipe)
    _kept(ops, mixer, ranks, recipe)
    norm(ops, "gated norm", tokens * values, mixer.value_head_dim, size, kernels, kind="rms")
    ops.keep(
        "mixer output",
        tokens * values * size,
        SavedRole.ACTIVATION_OUTPUT,
        linears=("mixer_out",),
    )
    ops.gemms.append(Gemm(name="mixer out", m=tokens, n=hidden, k=values))
    wide = tokens * hidden * size
    gather_cast_input(ops, wide, ranks, "mixer in", recipe, kernels)
    reduce_cast_output(ops, wide, ranks, "mixer out", recipe, kernels)
    ops.mixer_kernels = 2.0 + _KERNELS


def _rule(ops: Operators, mixer: GatedDelta, ranks: Ranks, recipe: Recipe) -> None:
    """Convolution, norms of queries and keys, the chunked rule, the gate; back, all once more.

    Bytes: channels are copied, convolved and split; keys normed and repeated; gate copied and
    multiplied; states of chunks written and read. Products count what they read and write.
    """
    size, tokens = element_bytes(recipe), ranks.tokens(recipe) / ranks.tp
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
            calls=_KERNELS,
        )
    )


def _kept(ops: Operators, mixer: GatedDelta, ranks: Ranks, recipe: Recipe) -> None:
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
