"""torchtitan's policy of selective recomputation: every second matrix product is kept."""

from __future__ import annotations

from typing import Any

from simulator.cost.operations import Operators

__all__ = ["HALF_MATMUL_KEPT", "half_matmul_again"]

HALF_MATMUL_KEPT = ("queries", "values", "attention output", "log-sum-exp", "router")
"""Saved tensors that it keeps whole."""


def half_matmul_again(name: str, ops: Operators) -> Any:
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
