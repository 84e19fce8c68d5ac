"""Quantisation-aware training: weights and inputs of linears are rounded and scaled back in torch.

pytorch/ao@36027d82, torchao/quantization/qat: fake_quantizer.py (`IntxFakeQuantizer`,
`Int4WeightFakeQuantizer`), linear.py (`FakeQuantizedLinear`), quant_primitives.py
(`_choose_qparams_affine`, `_do_fake_quantize_affine`). Products stay in 16 bit. Every operator is a
kernel of its own, in fp32 from the first product with the scales on; gradients pass straight
through the rounding, and backward through all the rest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from simulator.cost.operators.adapters import adapted_linears
from simulator.cost.operators.matrices import Matrix, weight_matrices
from simulator.cost.operators.operations import Operators, Ranks, Saved, Stream
from simulator.cost.operators.roles import StreamRole
from simulator.records import dataclass
from simulator.software.kernels import Kernels
from simulator.workload.recipe import Recipe, Workload

_ROUNDED_BYTES = 2.0
"""Of an element that comes out, which the product keeps for its backward pass."""

_PASSING_BYTES = 12.0
"""Most that an element takes at a time beside what is kept of it, measured with torch's allocator
(2.13): of detached scales at the end of the forward pass, of others in the backward pass."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rounding:
    """What rounding one tensor of 16 bit costs: bytes of an element, kernels of the tensor."""

    forward_bytes: float
    backward_bytes: float
    forward_kernels: int
    """Kernels that pass over the tensor."""
    backward_kernels: int
    scale_kernels: int
    """Kernels on scales and zero points alone, forward."""
    scale_kernels_back: int
    kept_bytes: float
    """Of an element, in fp32, for the backward pass."""


_WEIGHTS = {
    # minimum, maximum, x / scale, round, + zero, clamp, 16 bit, - zero, * scale, 16 bit; clamp
    # keeps its input
    "detached_scales": _Rounding(
        forward_bytes=2 + 2 + 6 + 8 + 8 + 8 + 6 + 4 + 6 + 6,
        backward_bytes=6 + 8 + 6 + 6 + (5 + 5 + 3 + 9) + 8 + 6,
        forward_kernels=10,
        backward_kernels=10,
        scale_kernels=14,
        scale_kernels_back=1,
        kept_bytes=4.0,
    ),
    # fp32, maximum, minimum, - minimum, / scale, round, clamp, - 8, * scale, + zero, 16 bit; the
    # fp32 copy, the quotient's and the clamp's input and the product's are kept; backward the sums
    # over groups for scale and zero, and what of them goes to each group's minimum and maximum
    "differentiable_scales": _Rounding(
        forward_bytes=6 + 4 + 4 + 8 * 7 + 6,
        backward_bytes=(6 + 4 + 12 + 8 + 4)
        + (5 + 5 + 3 + 9)
        + (8 + 8 + 8 + 12 + 8 + 4 + 8 + 4)
        + 2 * (5 + 1 + 5 + 12)
        + 6,
        forward_kernels=11,
        backward_kernels=26,
        scale_kernels=5,
        scale_kernels_back=13,
        kept_bytes=16.0,
    ),
}
"""By whether autograd follows scales: `IntxFakeQuantizer` finds them beside the graph,
`Int4WeightFakeQuantizer` within."""

_INPUTS = replace(_WEIGHTS["detached_scales"], scale_kernels=16)
"""Inputs have one scale and zero point a token, of minimum and maximum: two small kernels more."""


def fake_quantise(
    parts: list[Operators], workload: Workload, ranks: Ranks, kernels: Kernels
) -> list[Operators]:
    """Block kinds, embedding and head with linears whose weights and inputs are rounded.

    Under adapters those of the adapted linears, whose weights are frozen (torchtune's
    `QATLoRALinear`). A head that its loss is fused with is not called as a linear, so that it is
    left as it is (Liger-Kernel reads its weight).
    """
    arch, recipe = workload.architecture, workload.recipe
    matrices = weight_matrices(
        arch, tp=ranks.tp, pp=1.0, ep=ranks.ep, etp=ranks.etp, kernels=kernels
    )
    every = replace(recipe, lora_targets=("q", "k", "v", "o", "gate", "up", "down"))
    trained = not recipe.lora_rank
    named = every if trained else recipe
    heads = recipe.fake_quantised_head and trained and not kernels.linear_loss
    rounded = []
    for part, ops in enumerate(parts):
        linears = adapted_linears([w for w in matrices if w.part == part], named, kernels)
        if part == len(arch.blocks) + 1 and heads:
            linears = [w for w in matrices if w.part == part]
        rounded.append(_with_rounded(ops, linears, ranks, recipe))
    return rounded


def _with_rounded(ops: Operators, linears: list[Matrix], ranks: Ranks, recipe: Recipe) -> Operators:
    """One part with `linears` that round; a head in pieces rounds its weight for each of them."""
    if not linears:
        return ops
    trained = not recipe.lora_rank
    names = {w.name for w in linears}
    saved = list(ops.saved)
    if trained and recipe.fake_quantised_inputs:
        saved = [x for x in saved if names.isdisjoint(x.linears)]
    streams, largest = list(ops.streams), ops.transient_bytes
    pieces = 1 if ops.is_block else recipe.loss_chunks
    for w in linears:
        module = "mlp" if w.name in ("gate", "up", "down") else ""
        rounding = _WEIGHTS[recipe.fake_quantised_weights]
        wide = [("weight", rounding, w.rows * w.columns, pieces)]
        if recipe.fake_quantised_inputs:
            wide.append(("input", _INPUTS, ranks.tokens(recipe) * w.columns / pieces, pieces))
        for what, rounding, elements, times in wide:
            name, of_weight = f"fake quantisation of {w.name}'s {what}", what == "weight"
            streams += _passes(name, rounding, times * elements, times, of_weight, module)
            # a frozen weight has no gradient: of its rounding nothing is kept but the result,
            # which the gradient of the input reads; a rounded input the weight's alone
            kept = rounding.kept_bytes * (trained or not of_weight)
            kept += _ROUNDED_BYTES * (trained or of_weight)
            saved.append(Saved(name, times * elements * kept, module=module))
            largest = np.maximum(largest, _PASSING_BYTES * elements)
    return replace(ops, streams=streams, saved=saved, transient_bytes=largest)


def _passes(
    name: str, rounding: _Rounding, elements: Any, times: int, of_weight: bool, module: str
) -> list[Stream]:
    """Kernels over the tensor, and those on its scales."""
    moved = rounding.forward_bytes * elements, rounding.backward_bytes * elements
    return [
        Stream(
            name=label,
            role=StreamRole.FAKE_QUANTISATION,
            kind="elementwise",
            forward_bytes=forward,
            backward_bytes=backward,
            calls=times * calls,
            backward_calls=times * calls_back,
            module=module,
            for_weights=of_weight,
        )
        for label, forward, backward, calls, calls_back in (
            (name, *moved, rounding.forward_kernels, rounding.backward_kernels),
            (
                f"scales for {name}",
                0.0 * moved[0],
                0.0 * moved[1],
                rounding.scale_kernels,
                rounding.scale_kernels_back,
            ),
        )
    ]
