"""Recomputation: what each mode keeps of a part and runs again, what blocks run again anyway."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.cost.operators.operations import Gemm, Operators, Stream, recomputes
from simulator.cost.operators.roles import GemmRole, SavedRole, StreamRole
from simulator.software.kernels import Kernels

_HALF_MATMUL_KEPT = (
    *(SavedRole.QUERIES, SavedRole.VALUES, SavedRole.ATTENTION_OUTPUT, SavedRole.LOG_SUM_EXP),
    *(SavedRole.LATENT, SavedRole.LATENT_NORMED, SavedRole.ROUTER),
)
"""Saved tensors that torchtitan's policy keeps whole."""

_REDUCTIONS = ("reduce_scatter", "all_reduce")

_BEFORE = (
    *(StreamRole.CAST, StreamRole.WEIGHT_CAST, StreamRole.SCALES),
    StreamRole.DEQUANTISATION,
)
"""Kernels in front of a linear that serve its forward product alone."""


def kept_share(role: SavedRole, module: str, modules: Collection[str]) -> float:
    """Share of a saved tensor that selective recomputation of `modules` keeps."""
    if "half_matmul" in modules:
        kept = role in _HALF_MATMUL_KEPT
        return 0.5 if role is SavedRole.ACTIVATION_INPUT else float(kept)
    return 0.0 if recomputes(module, modules) else 1.0


def share_again(g: Gemm, ops: Operators, modules: Collection[str]) -> Any:
    """Share of a product that selective recomputation of `modules` runs again."""
    if "half_matmul" in modules:
        return _half_matmul_again(g.role, ops)
    return 1.0 if recomputes(g.module, modules) else 0.0


def _half_matmul_again(role: GemmRole, ops: Operators) -> Any:
    """Share of a product that torchtitan's policy runs again: it keeps every second one.

    Of queries, keys and values the keys go; the output projection goes; of gate and up one goes.
    """
    if role is GemmRole.QUERY_KEY_VALUE:
        bytes_of = {tensor.role: tensor.size_bytes for tensor in ops.saved}
        keys = bytes_of[SavedRole.KEYS]
        whole = bytes_of[SavedRole.QUERIES] + keys + bytes_of[SavedRole.VALUES]
        return keys / np.where(whole > 0.0, whole, 1.0)  # frozen blocks keep none of them
    if role.is_first_of_mlp or role is GemmRole.KEY_VALUE_UP:
        return 0.5
    return 1.0 if role is GemmRole.ATTENTION_OUTPUT else 0.0


def saved_by_mode(ops: Operators, kernels: Kernels, keys: int) -> Floats:
    """Bytes kept per micro-batch under each mode of recomputation, shape (modes, keys)."""
    modules = kernels.selective_modules
    total = selective = np.zeros(keys)
    for tensor in ops.saved:
        total = total + tensor.size_bytes
        share = kept_share(tensor.role, tensor.module, modules)
        selective = selective + share * tensor.size_bytes
    if not ops.is_block:
        return np.array([total, total, total])
    if "half_matmul" in modules:
        # beside the block's input, eager torch keeps the last product's output, which the policy
        # names and nothing reads (as large); a compiler drops it
        eager = "bias_activation" not in kernels.fused
        selective = selective + (2.0 if eager else 1.0) * ops.checkpoint_bytes
    checkpoint = np.broadcast_to(np.asarray(ops.checkpoint_bytes, dtype=float), (keys,))
    return np.array([total, selective, checkpoint])


def spared_s(
    ops: Operators,
    stream_s: Callable[[str, Any, float], Floats],
    gaps: tuple[Floats, Floats],
    modules: Collection[str] | None,
    *,
    hides: bool,
) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    """Seconds of each pass without the stashes of what `modules` (None: all) recompute.

    The second pair is what the host takes longer than the device then.

    Parameters
    ----------
    stream_s : callable
        Prices memory-bound kernels of a class, bytes and calls.
    gaps : tuple of ndarray
        What the host takes longer than the device, forward and backward.
    hides : bool
        Launches hide behind the device: where it waits for the host, less work leaves more waiting.
    """
    each = []
    for forward, gap in zip((True, False), gaps, strict=True):
        seconds = np.zeros_like(gap)
        for s in ops.streams:
            if s.stashes is not None:
                kept = 0.0 if modules is None else kept_share(s.stashes, s.module, modules)
                moved = s.forward_bytes if forward else s.backward_bytes
                seconds = seconds + (1.0 - kept) * stream_s(s.kind, moved, s.calls)
        each.append(shorter(seconds, gap, hides=hides))
    (forward_s, forward_gap), (backward_s, backward_gap) = each
    return (forward_s, backward_s), (forward_gap, backward_gap)


def shorter(seconds: Floats, gap: Floats, *, hides: bool) -> tuple[Floats, Floats]:
    """How much shorter a pass is with less work on the device, and its gap to the host then.

    Parameters
    ----------
    seconds : ndarray
        Work that is left out.
    gap : ndarray
        What the host takes longer than the device.
    hides : bool
        Launches hide behind the device: where it waits for the host, less work leaves more waiting.
    """
    left = gap + hides * seconds
    return seconds - (np.maximum(left, 0.0) - np.maximum(gap, 0.0)), left


def left_out(ops: Operators, kernels: Kernels, *, quantised: bool) -> Operators:
    """Operators of a part's forward pass that recomputation of all of it does not add.

    Parameters
    ----------
    ops : Operators
        Of the whole part.
    kernels : Kernels
        Where the software's recomputation stops.
    quantised : bool
        Whether products take fewer than 16 bit.
    """
    rest, stops = Operators(), kernels.recompute_stops_early
    last = ops.last_linear
    if last is not None and stops != "never":
        compiled = stops == "always"
        serving = _BEFORE if compiled else ()
        if compiled or not quantised:
            serving = (*serving, StreamRole.BIAS)
            rest.gemms = [g for g in ops.gemms if g.role is last]
            rest.collectives = [
                c
                for c in ops.collectives
                if not c.backward and c.module == "mlp" and c.operation in _REDUCTIONS
            ]
        rest.streams = [
            s
            for s in ops.streams
            if s.role is StreamRole.MLP_RESIDUAL or (s.product is last and s.role in serving)
        ]
    # what the backward pass repeats in any case is repeated once, not twice
    rest.streams += [
        replace(s, forward_bytes=s.backward_bytes, calls=s.calls_back)
        for s in ops.streams
        if s.rerun and ops.is_block
    ]
    return rest


def rerun_norms(streams: list[Stream]) -> list[Stream]:
    """A block's norms, and the sum that the second one reads, run again in its backward pass."""
    return [
        replace(
            s,
            name=f"{s.name} again",
            role=StreamRole.OTHER,
            module="",
            forward_bytes=0.0 * s.forward_bytes,
            calls=0.0,
            backward_bytes=s.forward_bytes,
            backward_calls=s.calls,
            rerun=True,
        )
        for s in streams
        if (s.module == "norm" and not s.for_weights) or s.role is StreamRole.ATTENTION_RESIDUAL
    ]
