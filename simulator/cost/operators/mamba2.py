"""Operators of a Mamba-2 mixer: projections, convolution, chunked scan, gated norm.

Kernels are those of mamba_ssm, as Megatron-Core calls them (ssm/mamba_mixer.py): convolution and
scan are one function to autograd, which keeps what the projection gave and the output before the
gate, and computes all else again. Nobody timed them here: products over chunks are priced as
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
from simulator.workload.recipe import Recipe
from simulator.workload.state_space import Mamba2

_KERNELS = 7.0
"""Kernels of the scan's forward pass: convolution; sums of decays, state of each chunk, states
passed on, scores, outputs (mamba_ssm/ops/triton/ssd_combined.py, release 2.2); gated norm."""


def mamba2(
    ops: Operators, mixer: Mamba2, hidden: int, ranks: Ranks, recipe: Recipe, kernels: Kernels
) -> None:
    """List projections, scan and norm, heads and groups cut over tp, with the collectives."""
    size, tokens = element_bytes(recipe), ranks.tokens(recipe)
    inner, convolved = mixer.inner / ranks.tp, mixer.convolved / ranks.tp
    projected = inner + convolved + mixer.heads / ranks.tp
    keep_input(ops, "mixer input", hidden, ranks, recipe, kernels, linears=("mixer_in",))
    ops.gemms.append(Gemm(name="mixer in", m=tokens, n=projected, k=hidden))
    ops.keep("projected input", tokens * projected * size)
    _scan(ops, mixer, ranks, recipe)
    ops.keep("scan output", tokens * inner * size)
    width = mixer.inner // mixer.groups
    norm(ops, "gated norm", tokens * inner, width, size, kernels, kind="rms")
    ops.keep(
        "mixer output",
        tokens * inner * size,
        SavedRole.ACTIVATION_OUTPUT,
        linears=("mixer_out",),
    )
    ops.gemms.append(Gemm(name="mixer out", m=tokens, n=hidden, k=inner))
    wide = tokens * hidden * size
    gather_cast_input(ops, wide, ranks, "mixer in", recipe, kernels)
    reduce_cast_output(ops, wide, ranks, "mixer out", recipe, kernels)
    ops.mixer_kernels = 2.0 + _KERNELS


def _scan(ops: Operators, mixer: Mamba2, ranks: Ranks, recipe: Recipe) -> None:
    """Convolution and chunked scan; the backward pass repeats the forward one.

    Bytes: the convolution reads and writes its channels; states of chunks, in fp32, are written by
    each chunk, read and written as they are passed on, and read; gate and output at the end. What
    products over chunks read and write counts with them.
    """
    size, tokens = element_bytes(recipe), ranks.tokens(recipe)
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
            calls=_KERNELS - 2.0,
        )
    )
