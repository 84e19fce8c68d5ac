"""Bytes on the fullest rank: states, activations in flight, loss, temporaries, buffers.

The peak is the maximum over the distinct ranks of the pipeline and over moments: the loss (all
activations of the rank, the logits and the head's gradients), the backward pass of a block (all
activations less the head's, plus temporaries and what recomputation rebuilds) and, where gradients
are freed after every step, those of ``cost/memory/moments.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.cost.blocks.block_costs import BlockCosts
from simulator.cost.memory.buffers import (
    communicators,
    input_bytes,
    kept_outputs,
    receive_buffers,
    workspace,
)
from simulator.cost.memory.moments import EMBEDDING, END, LOSS, Held, fullest
from simulator.cost.states.state_costs import STATE_KINDS, StateCosts
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import RECOMPUTE, Layouts
from simulator.schedules.registry import SPLITS_BACKWARD, by_code
from simulator.software.profile import Software
from simulator.workload.recipe import Recipe

__all__ = [
    "IN_TRANSIT",
    "MEMORY_KINDS",
    "Memory",
    "host_share",
    "kept_bytes",
    "memory",
    "memory_spread",
    "on_device",
]


MEMORY_KINDS = (
    *STATE_KINDS, "activations", "loss", "temporaries", "workspace", "communicators",
    "fragmentation", "context",
)  # fmt: skip
"""Kinds of memory, in the order in which they are added."""

IN_TRANSIT = 2
"""Offloaded blocks on the device at a time: one on its way, one in use (double buffer)."""

_FULL = RECOMPUTE.index("full")

_PAIRED_OTHERWISE = by_code(lambda schedule: schedule.breadth_first or schedule.joins_passes)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory of a table of layouts; columns are the distinct ranks of the pipeline."""

    kinds_bytes: Floats
    """Shape (kinds, layouts, columns), kinds as in MEMORY_KINDS."""
    total_bytes: Floats
    """Sum over kinds, shape (layouts, columns); zero in padding columns."""
    moment: NDArray[Any]
    """Index into MOMENTS at which the column peaks, shape (layouts, columns)."""
    peak_column: NDArray[Any]
    """The fullest column of each layout, shape (layouts,)."""

    @property
    def peak_bytes(self) -> Floats:
        """Memory of the fullest rank, shape (layouts,)."""
        return self.total_bytes[np.arange(len(self.peak_column)), self.peak_column]


def memory(
    cluster: Cluster,
    software: Software,
    layouts: Layouts,
    recipe: Recipe,
    *,
    blocks: BlockCosts,
    block_key: NDArray[Any],
    states: StateCosts,
    state_key: NDArray[Any],
    parts: Floats,
    in_flight: Floats,
    covered: Floats,
    offloaded: Floats,
) -> Memory:
    """Add up memory for every layout and distinct rank.

    Parameters
    ----------
    blocks, block_key : BlockCosts, ndarray
        Priced parts and, for each layout, its key.
    states, state_key : StateCosts, ndarray
        Priced states and, for each layout, its key.
    parts, in_flight, covered, offloaded : ndarray
        What each rank holds, the same times micro-batches in flight, and the blocks that full
        recomputation covers and that wait in host memory; shape (layouts, columns, parts).
    recipe : Recipe
        Whether the optimizer steps inside the backward pass.
    """
    mode = np.where(layouts.recompute == _FULL, 0, layouts.recompute)
    present = parts[:, :, :-2].sum(axis=2) + parts[:, :, -1] + parts[:, :, -2] > 0
    shape = present.shape
    activations: Floats = np.zeros(shape)
    temporaries: Floats = np.zeros(shape)
    one_block: Floats = np.zeros(shape)
    flights: Floats = np.ones(shape)
    passing: Floats = np.zeros(shape)
    last = parts.shape[2] - 1
    lazy = software.states.frees_gradients or recipe.optimizer_in_backward
    offloads = bool(offloaded.any())
    for part in range(last):
        count, flying, again = parts[:, :, part], in_flight[:, :, part], covered[:, :, part]
        held = kept_bytes(blocks, mode, block_key, part, flying, count, again)
        away = offloaded[:, :, part]
        flights = np.maximum(flights, flying / np.maximum(count, 1.0))
        if lazy:
            one_block = np.maximum(one_block, held / np.maximum(flying, 1.0))
        if offloads:
            stays = np.maximum(count - away, 0.0) + np.minimum(away, IN_TRANSIT)
            held = held * np.where(away > 0, stays / np.maximum(count, 1.0), 1.0)
        activations = activations + held
        rebuilt = blocks.rebuilt_bytes[mode, block_key, part][:, None]
        rebuilt_full = blocks.rebuilt_bytes[_FULL, block_key, part][:, None]
        rebuilt = np.where(again > 0, rebuilt_full, rebuilt)
        passing = np.maximum(passing, np.where(count > 0, rebuilt, 0.0))
        working = blocks.transient_bytes[block_key, part][:, None] + rebuilt
        temporaries = np.maximum(temporaries, np.where(count > 0, working, 0.0))
    if software.overlap.expert:
        temporaries = temporaries + _begun(blocks, layouts, block_key, mode, parts, covered)
    loss, waiting = _loss_and_waiting(layouts, blocks, block_key, parts, in_flight)
    state = on_device(list(states.state_bytes[:, state_key, :]), layouts, recipe, software)
    moment = (loss > temporaries + waiting).astype(np.int8)
    idle: Floats | float = 0.0
    pipeline = (software, layouts, blocks.boundary_bytes[block_key], parts, flights)
    buffers, outputs = receive_buffers(*pipeline), kept_outputs(*pipeline)
    if lazy:
        table = states.embedding_gradient[state_key]
        count = parts[:, :, :-2].sum(axis=2)
        m = layouts.micro_batches[:, None]
        peak = fullest(
            layouts,
            recipe,
            state[1],
            states.early_gradients[:, state_key, :],
            states.gathered_bytes[:, state_key, :],
            states.unreduced_bytes[state_key],
            Held(
                activations=activations + outputs,
                one_block=one_block,
                buffers=buffers,
                inputs=input_bytes(*pipeline[:4]),
                temporaries=temporaries,
                loss=loss,
                waiting=waiting,
                table=table,
                flights=flights,
                blocks=count,
                all_forward=(m > 1) & (in_flight[:, :, :-2].sum(axis=2) >= m * count),
            ),
        )
        moment, activations, temporaries = peak.moment, peak.activations, peak.temporaries
        if software.allocator.pools_by_stream:
            idle = np.maximum(state[1] + state[3] - peak.gradients - peak.gathered, 0.0)
        state[1], state[3] = peak.gradients, peak.gathered
        # no other tensor leaves a free block that the embedding's whole gradient would fit in
        # unless the rank has logits
        alone = (moment != EMBEDDING) & (parts[:, :, -1] == 0)
        idle = idle + np.where(alone, table, 0.0)
        # what a block's forward pass made and did not keep lies in blocks too small for the logits
        idle = idle + np.where(moment == LOSS, passing, 0.0)
    else:
        activations = activations + buffers + outputs
    at_loss = moment == LOSS
    allocated = [
        *state,
        activations,
        np.where(at_loss, loss, np.where(moment == END, 0.0, waiting)),
        np.where(at_loss, 0.0, temporaries),
        workspace(software, layouts, blocks, block_key, states, state_key, parts),
    ]
    pool = allocated[0]
    for kind in allocated[1:]:
        pool = pool + kind
    linked = np.broadcast_to(communicators(cluster, software, layouts)[:, None], shape)
    idle = idle + states.step_pieces[state_key]
    context = np.full(shape, float(software.allocator.context_bytes))
    fragmentation = idle + pool * float(software.allocator.fragmentation_fraction)
    kinds = np.stack([*allocated, linked, fragmentation, context])
    kinds = np.where(present, kinds, 0.0)
    total = kinds[0]
    for kind in kinds[1:]:
        total = total + kind
    return Memory(
        kinds_bytes=kinds,
        total_bytes=total,
        moment=moment,
        peak_column=np.argmax(total, axis=1),
    )


def _begun(
    blocks: BlockCosts,
    layouts: Layouts,
    block_key: NDArray[Any],
    mode: NDArray[Any],
    parts: Floats,
    covered: Floats,
) -> Floats:
    """What the forward pass of another micro-batch keeps already while a block's backward runs.

    Megatron-Core's combined 1F1B (model_chunk_schedule_plan.py) takes two micro-batches through a
    chunk layer by layer, one forward and one back, and frees what a layer kept when its backward
    pass ends: beside one whole set of activations there is one more block's. Schedules that run all
    forward passes first pair none; DualPipe's pairs are in its table of actions.
    """
    last = parts.shape[2] - 2
    one: Floats = np.zeros(parts.shape[:2])
    for part in range(last):
        count, flying = parts[:, :, part], np.minimum(parts[:, :, part], 1.0)
        again = np.where(covered[:, :, part] >= count, flying, 0.0)
        held = kept_bytes(blocks, mode, block_key, part, flying, flying, again)
        one = np.maximum(one, held)
    sends = blocks.exchange_s[0][block_key].sum(axis=1) > 0
    pairs = (layouts.ep > 1) & sends & (layouts.micro_batches > 1)
    pairs &= ~_PAIRED_OTHERWISE[layouts.schedule]
    return one * pairs[:, None]


def _loss_and_waiting(
    layouts: Layouts, blocks: BlockCosts, block_key: NDArray[Any], parts: Floats, in_flight: Floats
) -> tuple[Floats, Floats]:
    """What loss and head hold at the loss, and what of it waits while a block goes back.

    Logits wait where a schedule takes all micro-batches forward first, and where the head's weight
    pass comes later than the rest of its backward pass. Shapes (layouts, columns).
    """
    head, own = in_flight[:, :, -1], parts[:, :, -1]
    saved = blocks.saved_bytes[0, block_key, -1][:, None]
    waits = saved - blocks.passing_bytes[block_key, -1][:, None]
    working = saved + blocks.transient_bytes[block_key, -1][:, None]
    done = np.where(SPLITS_BACKWARD[layouts.schedule], 0.0, 1.0)[:, None]
    return (head - own) * waits + own * working, (head - done * own) * waits


def memory_spread(layouts: Layouts, software: Software) -> Floats:
    """Standard deviation of the logarithm of memory, shape (layouts,); NaN where none is given."""
    own, split = software.allocator.reserved_spread, software.allocator.split_reserved_spread
    usual = np.nan if own is None else float(own)
    is_split = (layouts.tp > 1) | (layouts.pp > 1)
    return np.where(is_split, usual if split is None else float(split), usual)


def host_share(layouts: Layouts, recipe: Recipe) -> Floats:
    """Share of the optimizer states that is in host memory, shape (layouts,)."""
    return np.where(layouts.optimizer_offload > 0, float(recipe.optimizer_offload_fraction), 0.0)


def on_device(
    state: list[Floats], layouts: Layouts, recipe: Recipe, software: Software
) -> list[Floats]:
    """Weights, gradients, optimizer states and gathered parameters less what the host keeps."""
    weights, gradients, optimizer, gathered = state
    if layouts.optimizer_offload.any():
        stays = (1.0 - host_share(layouts, recipe))[:, None]
        optimizer = optimizer * stays
        if software.states.offloads_gradients:
            gradients = gradients * stays
    if layouts.parameter_offload.any():
        weights = np.where(layouts.parameter_offload[:, None] > 0, 0.0, weights)
    return [weights, gradients, optimizer, gathered]


def kept_bytes(
    blocks: BlockCosts,
    mode: NDArray[Any],
    block_key: NDArray[Any],
    part: int,
    flying: Floats,
    count: Floats,
    again: Floats,
) -> Floats:
    """Bytes that the blocks of one part keep, shape (layouts, columns).

    `flying` is their number times micro-batches in flight; `again` of the `count` blocks are
    recomputed in full and keep their input only.
    """
    kept = blocks.saved_bytes[mode, block_key, part][:, None]
    checkpoint = blocks.saved_bytes[_FULL, block_key, part][:, None]
    flying_again = flying * again / np.maximum(count, 1.0)
    return np.asarray((flying - flying_again) * kept + flying_again * checkpoint)
