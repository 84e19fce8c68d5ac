"""Bytes of model states for one instance of every part: recipe x software x what is trained.

Pure accounting: ``cost/states/state_costs.py`` multiplies by what a rank holds and divides by the
sharding.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.cost.operators.adapters import NF4_BYTES, adapters, trains_projector
from simulator.cost.operators.casts import BLOCK_SCALED, QUANTISED_BYTES
from simulator.cost.operators.matrices import (
    NO_LINEARS,
    Matrix,
    expert_parameters,
    rank_parameters,
    weight_matrices,
)
from simulator.cost.operators.operations import element_bytes
from simulator.cost.states.optimizers import LAYER_WISE_TRAFFIC, moment_bytes
from simulator.files import Figure
from simulator.layout.layouts import Layouts
from simulator.record_cache import for_same_records
from simulator.records import dataclass
from simulator.software.kernels import Kernels
from simulator.software.profile import Software
from simulator.software.states import StateBytes
from simulator.workload.architecture import Architecture
from simulator.workload.recipe import Recipe, Workload

_BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class PartStates:
    """States of one instance of every part; shape (2, keys, parts): dense, then routed experts."""

    parameters: Floats
    """Parameters of the model, trained or not, without adapters."""
    trained: Floats
    """Trained parameters, adapters included."""
    weights: Floats
    """Bytes of the weights that stay in the compute type, frozen ones and quantised copies
    included."""
    gradients: Floats
    optimizer: Floats
    """fp32 weights and moments."""
    reduce: Floats
    """Bytes of gradients on the wire."""
    update: Floats
    """Bytes of updated weights on the wire."""
    gather: Floats
    """Bytes of all weights on the wire, and where they are whole (zero3)."""
    traffic: Floats
    """Bytes that one optimizer step moves."""
    matrices: list[Matrix]
    """The trained matrices."""
    shards_only: bool
    """Only shards of the fp32 weights stay between steps (FSDP2)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sizes:
    """Bytes per trained parameter."""

    weight: float
    frozen: float
    """Of a weight that is not trained; where only fp32 shards stay, one of those."""
    gradient: float
    master: float
    moment: float
    reduce: float
    gather: float
    traffic: float
    """One AdamW step, with two moments of `moment`."""


def part_states(
    workload: Workload, software: Software, layouts: Layouts, *, either_layout: bool = False
) -> PartStates:
    """Count the states of every part on one rank, unsharded, for each row of `layouts`.

    `either_layout` is the device's ``fp8_either_layout``.
    """
    arch, recipe, kernels = workload.architecture, workload.recipe, software.kernels
    size = _sizes(recipe, software.states)
    parameters = np.stack(
        [
            rank_parameters(arch, tp=layouts.tp, pp=layouts.pp, kernels=kernels),
            expert_parameters(arch, ep=layouts.ep, etp=layouts.etp),
        ]
    )
    copies = _quantised_copies(recipe, software.states, either_layout=either_layout)
    lists = (copies > 0 or recipe.fp8_weights) and arch.traced is None
    matrices = _matrices(arch, recipe, layouts, kernels, lists=lists)
    frozen, trained, ours = np.zeros_like(parameters), parameters, matrices
    if recipe.freezes:
        frozen, trained, ours = _split(parameters, matrices, arch, recipe, kernels)
    kept, whole = size.frozen * frozen, size.gather * frozen
    if recipe.quantised_base:
        passed = {part for part, kind in enumerate(arch.blocks) if kind.passes_gradients}
        held = [w for w in matrices if recipe.lora_rank or w.part in passed]
        less = _quantised(held, frozen.shape, arch)
        kept, whole = (
            x - less * (per - NF4_BYTES) for x, per in ((kept, size.frozen), (whole, size.gather))
        )
    if copies:
        per = copies * QUANTISED_BYTES[recipe.precision]
        kept = kept + per * _quantised(matrices, parameters.shape, arch)
    only_fp8 = _only_fp8(size, recipe, copies, matrices, parameters, arch)
    less_updated = only_fp8[1]
    if recipe.freezes:  # of what is trained; adapters stay in 16 bit
        less_updated = _only_fp8(size, recipe, copies, ours, parameters, arch)[1]
        less_updated = less_updated * (recipe.lora_rank == 0)
    moments = moment_bytes(recipe, size.moment, trained, ours, len(arch.blocks))
    more = LAYER_WISE_TRAFFIC.get(recipe.optimizer, 0.0)
    return PartStates(
        parameters=parameters,
        trained=trained,
        weights=size.weight * trained + kept - only_fp8[0],
        gradients=size.gradient * trained,
        optimizer=size.master * trained + moments,
        reduce=size.reduce * trained,
        update=size.gather * trained - less_updated,
        gather=size.gather * trained + whole - only_fp8[1],
        traffic=(size.traffic + more - 4 * size.moment) * trained + 2 * moments,
        matrices=ours,
        shards_only=size.weight == 0.0,
    )


def _only_fp8(
    size: _Sizes,
    recipe: Recipe,
    copies: float,
    matrices: list[Matrix],
    parameters: Floats,
    arch: Architecture,
) -> tuple[Floats | float, Floats | float]:
    """Bytes that weights kept in 8 bit alone save, in memory and on the wire.

    The 16-bit copy goes; where no 8-bit copy stays anyway (`copies`), one takes its place. MXFP8
    has one type for rows and another for columns, so ranks gather 16 bit, in the gradients' buffer
    (Megatron-Core, --reuse-grad-buf-for-mxfp8-param-ag).
    """
    if not recipe.fp8_weights:
        return 0.0, 0.0
    linears = _quantised(matrices, parameters.shape, arch)
    stays = QUANTISED_BYTES[recipe.precision] * (size.weight > 0 and not copies)
    wire = size.gather if recipe.precision == "mxfp8" else QUANTISED_BYTES[recipe.precision]
    return (size.weight - stays) * linears, (size.gather - wire) * linears


def _quantised_copies(recipe: Recipe, states: StateBytes, *, either_layout: bool) -> float:
    """Copies of the blocks' weights in fewer than 16 bit, beside those in 16.

    Rows and columns each have one, but for fp8 with one scale where products take either layout
    (TransformerEngine pytorch/csrc/quantizer.cpp: no transpose).
    """
    if not recipe.is_quantised:
        return 0.0
    once = either_layout and recipe.precision not in BLOCK_SCALED
    return min(float(states.quantised_weight_copies), 1.0 if once else np.inf)


def least_state_bytes(
    workload: Workload, software: Software, *, either_layout: bool = False
) -> float:
    """Bytes of all weights, gradients and optimizer states of the whole model, each kept once."""
    states, held = _whole_model(workload, software, either_layout=either_layout)
    return float(((states.weights + states.gradients + states.optimizer) * held).sum())


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedBytes:
    """What a checkpoint of the whole model may hold, each tensor once; bytes."""

    states: float
    """Weights, fp32 weights and moments: what training goes on from."""
    weights: float
    """Weights as the software keeps them: fp32 where only those of the optimizer stay."""
    export: float
    """Weights in the type of the products for whoever loads the model: adapters merged into it."""
    adapters: float
    """Those of the adapters alone in the same type; 0 without any."""


@for_same_records(8)
def saved_bytes(workload: Workload, software: Software) -> SavedBytes:
    """Bytes of a checkpoint by what it holds; gradients are in none of them.

    Copies in fewer bits than 16 are made of the weights and written by nobody: Transformer Engine
    keeps them beside its parameters (``_fp8_workspaces``), and Megatron-Core writes fp8 parameters
    as 16 bit.

    Notes
    -----
    BLOOM's took 2.3 TB for 176 billion parameters (BigScience chronicles, tr11), 13 bytes each;
    its weights alone 329 GiB.
    """
    if workload.recipe.fp8_weights:
        workload = replace(workload, recipe=replace(workload.recipe, fp8_weights=False))
    states = replace(software.states, quantised_weight_copies=Figure(0.0))
    parts, held = _whole_model(workload, replace(software, states=states), either_layout=False)
    recipe = workload.recipe
    alone = _sizes(recipe, states).master * parts.trained * parts.shards_only
    width = 4.0 if recipe.precision in ("fp32", "tf32") else 2.0
    adapters = width * float((parts.trained * held).sum()) if recipe.lora_rank else 0.0
    return SavedBytes(
        states=float(((parts.weights + parts.optimizer) * held).sum()),
        weights=float(((parts.weights + alone) * held).sum()),
        export=width * float((parts.parameters * held).sum()),
        adapters=adapters,
    )


def _whole_model(
    workload: Workload, software: Software, *, either_layout: bool
) -> tuple[PartStates, Floats]:
    """States of every part on one device that holds all of them, and how many there are of each."""
    workload = workload.by_training()
    arch = workload.architecture
    states = part_states(workload, software, Layouts.of(), either_layout=either_layout)
    kinds = [arch.layer_kinds.count(kind) for kind in range(len(arch.blocks))]
    return states, np.array([*kinds, 1.0, 1.0])


def _matrices(
    arch: Architecture, recipe: Recipe, layouts: Layouts, kernels: Kernels, *, lists: bool
) -> list[Matrix]:
    """List the matrices where anything looks at them; most recipes see parameters alone."""
    if recipe.optimizer not in ("adafactor", "muon") and not recipe.freezes and not lists:
        return []
    return weight_matrices(
        arch, tp=layouts.tp, pp=layouts.pp, ep=layouts.ep, etp=layouts.etp, kernels=kernels
    )


def _split(
    parameters: Floats,
    matrices: list[Matrix],
    arch: Architecture,
    recipe: Recipe,
    kernels: Kernels,
) -> tuple[Floats, Floats, list[Matrix]]:
    """Frozen parameters, trained ones, and the trained matrices."""
    trained = parameters.copy()
    if recipe.lora_rank:
        trained[:] = 0.0
        ours = adapters(matrices, arch, recipe, kernels)
        ours += [w for w in matrices if w.name == "task"]
        for w in ours:
            trained[int(w.routed), :, w.part] += w.parameters
        heads = trained * (np.arange(trained.shape[2]) > len(arch.blocks))
        return parameters - heads, trained, ours
    last = len(arch.blocks)
    still = {part for part, kind in enumerate(arch.blocks) if not kind.trained}
    if not recipe.trains_embedding:
        still.add(last)
    if "text" in recipe.frozen_parts and arch.tasks is None:
        still.add(last + 1)
    ours = []
    for w in matrices:
        tied = w.part > last and not recipe.trains_head(tied=arch.tied_embeddings)
        if tied:
            trained[0, :, w.part] -= w.parameters
        if w.part not in still and not tied:
            ours.append(w)
    for part in still:
        trained[:, :, part] = 0.0
    trained[0, :, last] += arch.projector * (
        float(not recipe.trains_embedding and trains_projector(arch, recipe))
        - float("projector" in recipe.frozen_parts and recipe.trains_embedding)
    )
    return parameters - trained, trained, ours


def _quantised(matrices: list[Matrix], shape: tuple[int, ...], arch: Architecture) -> Floats:
    """Parameters of the blocks' matrices, which are quantised; routers and convolutions are not."""
    zeros = np.zeros(shape)
    for w in matrices:
        if w.part < len(arch.blocks) and w.name not in NO_LINEARS:
            zeros[int(w.routed), :, w.part] += w.parameters
    return zeros


def kept_bytes(recipe: Recipe, states: StateBytes) -> float:
    """Bytes per parameter of the weights that products are given where nothing gathers them."""
    size = _sizes(recipe, states)
    return size.weight or size.master


def kernels_of(software: Software, recipe: Recipe) -> Kernels:
    """Its kernels, with a stream of fp32 where products take fp32 weights under torch.autocast.

    Adapters leave the weights in the type in which the base is kept.
    """
    states = software.states
    kept = states.frozen if recipe.lora_rank and states.frozen else kept_bytes(recipe, states)
    if not states.autocasts or float(kept) <= element_bytes(recipe):
        return software.kernels
    return replace(software.kernels, wide_stream=True)


def gradient_bytes(recipe: Recipe, states: StateBytes) -> float:
    """Bytes per parameter of what gradients add up in."""
    return _sizes(recipe, states).gradient


def _sizes(recipe: Recipe, states: StateBytes) -> _Sizes:
    """Bytes per parameter: mixed precision as the software does it, or all fp32, or as stated."""
    if recipe.precision in ("fp32", "tf32"):
        usual = _Sizes(
            weight=4.0,
            frozen=4.0,
            gradient=4.0,
            master=0.0,
            moment=4.0,
            reduce=4.0,
            gather=4.0,
            traffic=float(states.optimizer_traffic_fp32),
        )
    else:
        half = states.gradient_fp16 if recipe.precision == "fp16" else None
        usual = _Sizes(
            weight=float(states.weight),
            frozen=0.0 if states.frozen is None else float(states.frozen),
            gradient=float(states.gradient if half is None else half),
            master=float(states.master),
            moment=float(states.moment),
            reduce=float(states.reduce if half is None else half),
            gather=float(states.gather),
            traffic=float(states.optimizer_traffic),
        )
    master = usual.master
    if recipe.master_weights is not None:
        alone = 2.0 if usual.weight == 0.0 else 0.0
        master = 4.0 if recipe.master_weights else alone
    gradient = _stated(recipe.gradient_dtype, usual.gradient)
    moment = _stated(recipe.moment_dtype, usual.moment)
    # the step reads the gradient once, reads and writes moments and weights
    saved = usual.gradient - gradient + 2 * (usual.master - master) + 4 * (usual.moment - moment)
    return _Sizes(
        weight=usual.weight,
        frozen=usual.frozen or usual.weight or master,
        gradient=gradient,
        master=master,
        moment=moment,
        reduce=_stated(recipe.reduce_dtype, usual.reduce),
        gather=usual.gather,
        traffic=usual.traffic - saved,
    )


def _stated(dtype: str | None, usual: float) -> float:
    return usual if dtype is None else _BYTES[dtype]


def largest_block(parts: Floats, per_part: Floats) -> Any:
    """The most of any block that a rank holds, shape (keys, columns)."""
    blocks = np.where(parts[:, :, :-2] > 0, per_part[:, None, :-2], 0.0)
    return np.max(blocks, axis=2) if blocks.shape[2] else 0.0


def on_rank(parts: Floats, parameters: Floats) -> Floats:
    """Parameters of every distinct rank: sum over parts in a fixed order, shape (keys, columns)."""
    total: Floats = np.zeros(parts.shape[:2])
    for part in range(parts.shape[2]):
        total = total + parts[:, :, part] * parameters[:, None, part]
    return total
