"""Memory of linear layers whose products take fewer than 16 bit: kept inputs, copies of weights."""

from __future__ import annotations

from dataclasses import replace

from simulator.cost.operators.adapters import adapted_inputs
from simulator.cost.operators.operations import Operators, Saved
from simulator.cost.operators.roles import GemmRole, SavedRole
from simulator.software.kernels import Kernels
from simulator.workload.recipe import Recipe

QUANTISED_BYTES = {
    "fp8": 1.0, "fp8_current": 1.0, "fp8_blockwise": 1.03125, "mxfp8": 1.03125, "nvfp4": 0.5625,
}  # fmt: skip
"""Bytes of one element with its scales: one scale of a tensor, of 4 B for 128 elements, of 1 B for
32 (MXFP8_BLOCK_SCALING_SIZE) or for 16 (NVFP4_BLOCK_SCALING_SIZE, TransformerEngine
pytorch/constants.py); padding of the scales is left out."""

BLOCK_SCALED = ("fp8_blockwise", "mxfp8", "nvfp4")
"""Types with a scale for each block of a row or column, so that both are cast apart."""

_INPUTS = (SavedRole.LINEAR_INPUT, SavedRole.LATENT_NORMED, SavedRole.ACTIVATION_OUTPUT)
"""Inputs of linears that nothing else keeps: norms keep their own inputs, not their outputs."""

_SHARED = (SavedRole.ATTENTION_OUTPUT, SavedRole.CROSS_ATTENTION_OUTPUT)
"""Inputs of linears that attention's backward pass needs in 16 bit as well."""


def quantise_saved(ops: Operators, recipe: Recipe, kernels: Kernels) -> list[Saved]:
    """What linears keep, in the type of their products where the software does so.

    An input that another operator keeps in 16 bit too is there twice. Of latent attention's
    compressed tensors the norms keep one half, the up-projections the other. Under adapters the
    linears are frozen and keep none; the adapters multiply 16 bit, and keep those.
    """
    if recipe.lora_rank:
        return adapted_inputs(ops.saved, recipe)
    if not recipe.is_quantised or not kernels.transformer_engine.saves_quantised_inputs:
        return ops.saved
    once = kernels.transformer_engine.keeps_attention_output_once
    share = QUANTISED_BYTES[recipe.precision] / 2.0
    has_shared_experts = any(g.role is GemmRole.SHARED_FC1 for g in ops.gemms)
    kept: list[Saved] = []
    for tensor in ops.saved:
        small = share * tensor.size_bytes
        if tensor.role in _INPUTS:
            kept.append(replace(tensor, size_bytes=small))
            continue
        kept.append(tensor)
        if tensor.role in _SHARED and not once:
            kept.append(Saved(f"{tensor.name}, quantised", small, module=tensor.module))
        if tensor.role is SavedRole.ROUTED_INPUT and has_shared_experts:
            kept.append(Saved("shared experts' input", small, module=tensor.module))
    return kept
