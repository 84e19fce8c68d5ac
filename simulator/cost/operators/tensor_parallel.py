"""Collectives of linears that are cut over tensor-parallel ranks, by columns and by rows."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from simulator.cost.operators.casts import BLOCK_SCALED, QUANTISED_BYTES
from simulator.cost.operators.operations import (
    Collective,
    ModuleOperators,
    Ranks,
    Saved,
    element_bytes,
)
from simulator.cost.operators.roles import SavedRole
from simulator.software.kernels import Kernels
from simulator.workload.recipe import Recipe

_SCALED_WHOLE = ("fp8_current", "nvfp4")
"""Types with a scale for the whole tensor out of its present maximum."""


def _gathered_share(recipe: Recipe, kernels: Kernels, *, gradients: bool = False) -> float:
    """Bytes that linears of the blocks gather over tp, of those of 16-bit activations.

    Transformer Engine casts first and gathers what its products take: inputs forward and again for
    the weight gradient, gradients of outputs (pytorch/module/linear.py, `gather_along_first_dim`
    behind `cast_to_fp8` in release 1, of quantised tensors in release 2). So does torchao
    (float8/float8_tensor_parallel.py). What is scattered and reduced stays in 16 bit.

    Inputs go as rows forward and as columns backward, `gradients` as both at once: columns with
    scales of their own cannot be made of gathered rows (layernorm_linear.py of release 2: "we can't
    convert row-scaled MXFP8 to column-scaled").
    """
    if not recipe.is_quantised or not kernels.gathers_quantised:
        return 1.0
    planes = 2.0 if gradients and recipe.precision in BLOCK_SCALED else 1.0
    return planes * QUANTISED_BYTES[recipe.precision] / 2.0


def _share_scales(ranks: Ranks, recipe: Recipe, kernels: Kernels) -> list[Collective]:
    """Ranks agree on the scale of what they gather cast: one maximum forward, one backward.

    Transformer Engine (`_customize_quantizers_float8_current_scaling`, `..._nvfp4`): with sequence
    parallelism the maximum of a column-parallel linear's input, and of the gradient of a
    row-parallel one's output, is reduced over tp before the cast, four bytes that nothing hides.
    So are those of torchao's DTensors, and of tensors that are not gathered, which are left out.
    """
    if recipe.precision not in _SCALED_WHOLE or not kernels.gathers_quantised:
        return []
    where = np.where(ranks.sequence_parallel, 4.0, 0.0)
    return [
        Collective(operation="all_reduce", group="tp", size_bytes=where, backward=backward)
        for backward in (False, True)
    ]


def kept_input(
    name: str,
    hidden: int,
    ranks: Ranks,
    recipe: Recipe,
    kernels: Kernels,
    *,
    linears: tuple[str, ...],
    readers: int = 1,
) -> Saved:
    """What column-parallel `linears` read, kept: a rank's own tokens, or all that it gathered.

    Of an fp32 stream each of its `readers`, where they are apart, keeps a cast of its own; so does
    every adapter in fp32.
    Megatron keeps what sequence parallelism scatters and gathers it again; DTensor keeps the
    gathered tensor. A norm made it, so that recomputing norms makes it again.
    """
    whole = kernels.dtensor.keeps_gathered_inputs
    keeps = ranks.tokens(recipe) if whole else ranks.own_tokens(recipe)
    if recipe.lora_rank:
        adapted = len(set(linears).intersection(recipe.lora_targets))
        readers = adapted if kernels.torch.wide_adapters else 1
    elif not kernels.wide_stream:
        readers = 1
    copies = max(1, readers) if kernels.separate_linears else 1
    size_bytes = copies * keeps * hidden * element_bytes(recipe)
    return Saved(name, size_bytes, SavedRole.LINEAR_INPUT, "norm", linears)


def gather_input(
    wide: Any,
    ranks: Ranks,
    linear: str,
    kernels: Kernels,
    *,
    module: str = "",
    projections: int = 1,
    share: float = 1.0,
    buffered: bool = False,
) -> ModuleOperators:
    """A column-parallel linear: sequence parallelism gathers its input, else gradients are reduced.

    `projections` of the framework's own linears may be in it, each with a reduction of its own.
    `share` of the bytes is gathered (see `_gathered_share`). `buffered` linears are those whose
    collectives frameworks can run together with products (see ``cost/blocks/tensor_overlap.py``).

    Korthikanti et al. 2022, section 4.2.2: with sequence parallelism the backward pass gathers the
    input again beside dgrad and scatters the input gradient beside wgrad.
    """
    ops = ModuleOperators()
    sharded = np.where(ranks.sequence_parallel, wide, 0.0)
    whole = np.where(ranks.sequence_parallel, 0.0, wide)
    if share != 1.0:
        ops.gathered.add(linear)
    gather = partial(
        Collective,
        operation="all_gather",
        group="tp",
        size_bytes=share * sharded,
        buffered=buffered,
    )
    reduce = partial(Collective, group="tp", backward=True, window=f"{linear}:wgrad")
    ops.collectives.append(
        gather(backward=False, window=f"{linear}:forward", pipelined=True, module=module)
    )
    if not kernels.dtensor.keeps_gathered_inputs:
        ops.collectives.append(gather(backward=True, window=f"{linear}:dgrad"))
    ops.collectives.append(
        reduce(operation="reduce_scatter", size_bytes=sharded, buffered=buffered)
    )
    for _ in range(projections if kernels.dtensor.reduces_each_projection else 1):
        ops.collectives.append(reduce(operation="all_reduce", size_bytes=whole))
    return ops


def reduce_output(
    wide: Any,
    ranks: Ranks,
    linear: str,
    *,
    module: str = "",
    share: float = 1.0,
    buffered: bool = False,
) -> ModuleOperators:
    """A row-parallel linear: partial outputs are reduced (scattered with sequence parallelism).

    `share` of the bytes is gathered in the backward pass; `buffered` as in `gather_input`.
    """
    ops = ModuleOperators()
    sharded = np.where(ranks.sequence_parallel, wide, 0.0)
    whole = np.where(ranks.sequence_parallel, 0.0, wide)
    if share != 1.0:
        ops.gathered_back.add(linear)
    forward, back = (f"{linear}:forward", f"{linear}:dgrad") if linear else ("", "")
    call = partial(Collective, group="tp", pipelined=True, buffered=buffered)
    ops.collectives += [
        call(
            operation="reduce_scatter",
            size_bytes=sharded,
            backward=False,
            window=forward,
            module=module,
        ),
        call(operation="all_gather", size_bytes=share * sharded, backward=True, window=back),
        Collective(
            operation="all_reduce", group="tp", size_bytes=whole, backward=False, module=module
        ),
    ]
    return ops


def gather_cast_input(
    wide: Any,
    ranks: Ranks,
    linear: str,
    recipe: Recipe,
    kernels: Kernels,
    *,
    module: str = "",
    projections: int = 1,
) -> ModuleOperators:
    """`gather_input` of a linear of the blocks, whose input may be cast before it is gathered."""
    return gather_input(
        wide,
        ranks,
        linear,
        kernels,
        module=module,
        projections=projections,
        share=_gathered_share(recipe, kernels),
        buffered=True,
    )


def reduce_cast_output(
    wide: Any,
    ranks: Ranks,
    linear: str,
    recipe: Recipe,
    kernels: Kernels,
    *,
    module: str = "",
) -> ModuleOperators:
    """`reduce_output` of the same, and the scales of what its module gathers cast."""
    share = _gathered_share(recipe, kernels, gradients=True)
    ops = reduce_output(wide, ranks, linear, module=module, share=share, buffered=True)
    ops.collectives += _share_scales(ranks, recipe, kernels)
    return ops
