"""Memory of linear layers whose products take fewer than 16 bit: kept inputs, copies of weights."""

from __future__ import annotations

from typing import Any

from simulator.cost.operators.operations import Operators
from simulator.software.profile import Kernels
from simulator.workload.recipe import Recipe

__all__ = ["BLOCK_SCALED", "QUANTISED_BYTES", "quantise_saved"]

QUANTISED_BYTES = {
    "fp8": 1.0, "fp8_current": 1.0, "fp8_blockwise": 1.03125, "mxfp8": 1.03125, "nvfp4": 0.5625,
}  # fmt: skip
"""Bytes of one element with its scales: one scale of a tensor, of 4 B for 128 elements, of 1 B for
32 (MXFP8_BLOCK_SCALING_SIZE) or for 16 (NVFP4_BLOCK_SCALING_SIZE, TransformerEngine
pytorch/constants.py); padding of the scales is left out."""

BLOCK_SCALED = ("fp8_blockwise", "mxfp8", "nvfp4")
"""Types with a scale for each block of a row or column, so that both are cast apart."""

_INPUTS = ("attention input", "mlp input", "cross attention input", "permuted tokens")
"""Inputs of linears that nothing else keeps: norms keep their own inputs, not their outputs."""

_SHARED = ("attention output", "cross attention output")
"""Inputs of linears that attention's backward pass needs in 16 bit as well."""


def quantise_saved(ops: Operators, recipe: Recipe, kernels: Kernels) -> None:
    """Change what linears keep to the type of their products, where the software does so.

    An input that another operator keeps in 16 bit too is there twice. Of latent attention's
    compressed tensors the norms keep one half, the up-projections the other.
    """
    if not recipe.is_quantised or not kernels.saves_quantised_inputs:
        return
    share = QUANTISED_BYTES[recipe.precision] / 2.0
    names = {tensor for tensor, _, _ in ops.saved}
    kept: list[tuple[str, str, Any]] = []
    for tensor, module, size in ops.saved:
        before = tensor.removesuffix("activation output") + "1 output"
        activated = tensor != before and before.replace(" 1", "1") in names
        if tensor in _INPUTS or activated or tensor.endswith(", normed"):
            size = share * size
        kept.append((tensor, module, size))
        if tensor in _SHARED:
            kept.append((f"{tensor}, quantised", module, share * size))
        if tensor == "moe input" and any(g.name == "shared fc1" for g in ops.gemms):
            kept.append(("shared experts' input", module, share * size))
    ops.saved = kept
