"""What each mode of recomputation keeps of a part, and what selective recomputation runs again."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.cost.operations import Gemm, Operators, recomputes
from simulator.software import Kernels

__all__ = ["product_flop", "saved_by_mode", "share_again"]

Floats = NDArray[np.float64]

_HALF_MATMUL_KEPT = ("queries", "values", "attention output", "log-sum-exp", "router")


def saved_by_mode(ops: Operators, kernels: Kernels, keys: int) -> Floats:
    """Bytes kept per micro-batch under each mode of recomputation, shape (modes, keys)."""
    modules = kernels.selective_modules
    total = selective = np.zeros(keys)
    for tensor, module, size in ops.saved:
        total = total + size
        if "half_matmul" in modules:
            kept = tensor in _HALF_MATMUL_KEPT or tensor.startswith("compressed")
            share = 0.5 if tensor.endswith("fc1 output") else float(kept)
        else:
            share = 0.0 if recomputes(module, modules) else 1.0
        selective = selective + share * size
    if not ops.is_block:
        return np.stack([total, total, total])
    if "half_matmul" in modules:
        # beside the block's input, eager torch keeps the last product's output, which the
        # policy names and nothing reads (as large); a compiler drops it
        eager = "bias_activation" not in kernels.fused
        selective = selective + (2.0 if eager else 1.0) * ops.checkpoint_bytes
    whole = np.broadcast_to(np.asarray(ops.checkpoint_bytes, dtype=float), (keys,))
    return np.stack([total, selective, whole])


def share_again(g: Gemm, ops: Operators, modules: tuple[str, ...]) -> Any:
    """Share of a product that selective recomputation of `modules` runs again."""
    if "half_matmul" in modules:
        return _half_matmul_again(g.name, ops)
    return 1.0 if recomputes(g.module, modules) else 0.0


def _half_matmul_again(name: str, ops: Operators) -> Any:
    """Share of a product that torchtitan's policy runs again: it keeps every second one.

    Of queries, keys and values the keys go; the output projection goes; of gate and up one goes.
    """
    if name == "qkv":
        bytes_of = {tensor: size for tensor, _, size in ops.saved}
        three = bytes_of["queries"] + bytes_of["keys"] + bytes_of["values"]
        return bytes_of["keys"] / three
    if name.endswith("fc1") or name == "kv_up":
        return 0.5
    return 1.0 if name == "proj" else 0.0


def product_flop(g: Gemm) -> Any:
    """FLOPs of a forward product; scores under a causal mask count half, as in MFU."""
    share = 0.5 if g.causal else 1.0
    return share * 2.0 * g.batch * g.m * g.n * g.k
