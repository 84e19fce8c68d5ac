"""Bytes on the fullest rank: states, activations in flight, loss, temporaries, buffers.

The peak is the maximum over the distinct ranks of the pipeline and over moments: the loss (all
activations of the rank, the logits and the head's gradients), the backward pass of a block (all
activations less the head's, plus temporaries and what recomputation rebuilds) and, where gradients
are freed after every step, those of ``cost/memory/moments.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats, by_key, of_column
from simulator.cost.blocks.block_costs import BlockCosts
from simulator.cost.memory.buffers import StageBuffers, communicators, stage_buffers, workspace
from simulator.cost.memory.moments import EMBEDDING, END, LOSS, RankMemoryNow, fullest
from simulator.cost.passes import total
from simulator.cost.states.state_costs import STATE_KINDS
from simulator.cost.tables import Priced, Selection
from simulator.layout.layouts import RECOMPUTE, Layouts
from simulator.layout.stages import StageTable
from simulator.records import dataclass
from simulator.schedules.registry import SPLITS_BACKWARD, by_code
from simulator.software.profile import Software
from simulator.workload.recipe import Recipe

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
        return of_column(self.total_bytes, self.peak_column)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sizes:
    """What passes hold on each rank beside its states; shape (layouts, columns)."""

    kept: list[Floats]
    """Of each part but the head, what its blocks keep on the device or in host memory."""
    activations: Floats
    """Of all micro-batches in flight, what of it is on the device."""
    temporaries: Floats
    """Of a block's backward pass."""
    passing: Floats
    """What a block's forward pass makes and does not keep."""
    loss: Floats
    """Of loss and head, at the loss."""
    waiting: Floats
    """What of that waits while a block goes back."""
    between: StageBuffers
    flights: Floats
    """Micro-batches in flight."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _AtPeak:
    """The fullest moment of each rank, and what is there then; shape (layouts, columns)."""

    moment: NDArray[Any]
    states: list[Floats]
    """Weights, gradients, optimizer states and gathered parameters."""
    activations: Floats
    temporaries: Floats
    idle: Floats | float
    """In free blocks that nothing else fits into."""


def peak_memory(rows: Selection, priced: Priced) -> Memory:
    """Add up memory for every layout and distinct rank of some rows of a priced table."""
    sizes, moment = _by_kind(rows, priced)
    kinds = np.zeros((len(sizes), *sizes[0].shape[::-1])).swapaxes(1, 2)
    there = _present(rows, priced)
    for kind, size in zip(kinds, sizes, strict=True):
        np.copyto(kind, size, where=there)
    total_bytes = total(kinds)
    return Memory(
        kinds_bytes=kinds,
        total_bytes=total_bytes,
        moment=moment,
        peak_column=np.argmax(total_bytes, axis=1),
    )


def peak_bytes(rows: Selection, priced: Priced) -> Floats:
    """Memory of the fullest rank alone, (layouts,): ``Memory.peak_bytes`` of the same rows."""
    sizes, _ = _by_kind(rows, priced)
    return np.asarray(np.where(_present(rows, priced), total(sizes), 0.0).max(axis=1))


def lasting_bytes(priced: Priced) -> Floats:
    """What the fullest rank holds at any moment of a step at the least, per state key, (keys,).

    Weights and optimizer states, and gradients where the software keeps them from step to step.
    Layouts that keep states in host memory or on drives hold less.
    """
    return np.asarray(rank_lasting_bytes(priced).max(axis=1))


def rank_lasting_bytes(priced: Priced) -> Floats:
    """The same of every distinct rank, shape (keys, columns)."""
    software, held = priced.software, priced.states.state_bytes
    weights, gradients, optimizer, _ = held
    if software.states.frees_gradients or priced.workload.recipe.optimizer_in_backward:
        return np.asarray(weights + optimizer)
    return np.asarray(weights + gradients + optimizer)


def _by_kind(rows: Selection, priced: Priced) -> tuple[list[Floats], NDArray[Any]]:
    """Bytes by kind at the fullest moment of every rank, padding columns included, and the moment.

    Kinds as in MEMORY_KINDS, each of shape (layouts, columns).
    """
    layouts, software, recipe = rows.layouts, priced.software, priced.workload.recipe
    sizes = _sizes(rows, priced)
    states = on_device(
        list(by_key(priced.states.state_bytes, rows.state_key, 1)), layouts, recipe, software
    )
    if software.states.frees_gradients or recipe.optimizer_in_backward:
        peak = _of_moments(rows, priced, states, sizes)
    else:
        peak = _of_block_and_loss(states, sizes)
    at_loss = peak.moment == LOSS
    allocated = [
        *peak.states,
        peak.activations,
        np.where(at_loss, sizes.loss, np.where(peak.moment == END, 0.0, sizes.waiting)),
        np.where(at_loss, 0.0, peak.temporaries),
        workspace(rows, priced),
    ]
    linked = communicators(priced.cluster, software, layouts)
    return [*allocated, *_outside(rows, priced, total(allocated), peak.idle, linked)], peak.moment


def _present(rows: Selection, priced: Priced) -> NDArray[np.bool_]:
    """Columns that are no padding: their ranks hold something; asked of plans, not of layouts."""
    return by_key(priced.table.parts.sum(axis=2) > 0, rows.plan)


def _outside(
    rows: Selection, priced: Priced, pool: Floats, idle: Floats | float, linked: Floats
) -> tuple[Floats, Floats, Floats]:
    """Communicators (`linked`), fragmentation of what is allocated, context of the process."""
    shape, allocator = pool.shape, priced.software.allocator
    idle = idle + by_key(priced.states.step_pieces, rows.state_key)
    return (
        np.broadcast_to(linked[:, None], shape),
        idle + pool * float(allocator.fragmentation_fraction),
        np.full(shape, float(allocator.context_bytes)),
    )


# --- what passes hold ---------------------------------------------------------------------------


def _sizes(rows: Selection, priced: Priced) -> _Sizes:
    """Activations, temporaries, loss and buffers of pipelines of every rank."""
    blocks, layouts, software = priced.blocks, rows.layouts, priced.software
    mode = saved_mode(layouts)
    kept = [
        kept_bytes(
            blocks,
            mode,
            rows.block_key,
            part,
            flying=rows.in_flight[:, :, part],
            count=rows.parts[:, :, part],
            again=rows.covered[:, :, part],
        )
        for part in range(rows.parts.shape[2] - 1)
    ]
    temporaries, passing = _temporaries(rows, blocks, mode)
    if software.overlap.expert:
        temporaries = temporaries + _begun(rows, blocks, mode)
    loss, waiting = _loss_and_waiting(rows, blocks)
    if priced.states.cast_copies.any():
        copies = waiting_casts(rows, priced)
        kept = [held + copies[:, :, part] for part, held in enumerate(kept)]
        loss = loss + copies[:, :, -1]
    flights = by_key(_flights(priced.table), rows.plan)
    return _Sizes(
        kept=kept,
        activations=_activations(rows, kept),
        temporaries=temporaries,
        passing=passing,
        loss=loss,
        waiting=waiting,
        between=stage_buffers(rows, priced, flights),
        flights=flights,
    )


def waiting_casts(rows: Selection, priced: Priced) -> Floats:
    """Casts of weights that wait for the backward pass, shape (layouts, columns, parts).

    Recomputation makes those of blocks anew, one block's at a time.
    """
    copies = by_key(priced.states.cast_copies, rows.state_key)[:, None]
    again = (rows.layouts.recompute == RECOMPUTE.index("selective"))[:, None, None]
    ends = np.arange(copies.shape[2]) >= copies.shape[2] - 2
    return np.asarray((rows.parts - rows.covered) * copies * (ends | ~again))


def saved_mode(layouts: Layouts) -> NDArray[Any]:
    """Row of ``BlockCosts.saved_bytes`` for blocks that full recomputation does not cover."""
    return np.where(layouts.recompute == _FULL, 0, layouts.recompute)


def _flights(table: StageTable) -> Floats:
    """Micro-batches in flight of the part with the most, one at the least, by plan and column."""
    flights: Floats = np.ones(table.parts.shape[:2])
    for part in range(table.parts.shape[2] - 1):
        count, flying = table.parts[:, :, part], table.in_flight[:, :, part]
        flights = np.maximum(flights, flying / np.maximum(count, 1.0))
    return flights


def _activations(rows: Selection, kept: list[Floats]) -> Floats:
    """What of the kept tensors is on the device: all but those that wait in host memory."""
    activations = np.zeros_like(rows.parts[:, :, 0])
    offloads = bool(rows.offloaded.any())
    for part, held in enumerate(kept):
        if offloads:
            count, away = rows.parts[:, :, part], rows.offloaded[:, :, part]
            stays = np.maximum(count - away, 0.0) + np.minimum(away, IN_TRANSIT)
            held = held * np.where(away > 0, stays / np.maximum(count, 1.0), 1.0)
        activations = activations + held
    return activations


def _temporaries(rows: Selection, blocks: BlockCosts, mode: NDArray[Any]) -> tuple[Floats, Floats]:
    """The most that any block's backward pass makes with what it rebuilds, and of the latter."""
    temporaries = passing = np.zeros_like(rows.parts[:, :, 0])
    covers = bool(rows.covered.any())
    for part in range(rows.parts.shape[2] - 1):
        count, again = rows.parts[:, :, part], rows.covered[:, :, part]
        rebuilt = blocks.rebuilt_bytes[mode, rows.block_key, part][:, None]
        if covers:
            rebuilt_full = blocks.rebuilt_bytes[_FULL, rows.block_key, part][:, None]
            rebuilt = np.where(again > 0, rebuilt_full, rebuilt)
        passing = np.maximum(passing, np.where(count > 0, rebuilt, 0.0))
        working = blocks.transient_bytes[rows.block_key, part][:, None] + rebuilt
        temporaries = np.maximum(temporaries, np.where(count > 0, working, 0.0))
    return temporaries, passing


def _begun(rows: Selection, blocks: BlockCosts, mode: NDArray[Any]) -> Floats:
    """What the forward pass of another micro-batch keeps already while a block's backward runs.

    Megatron-Core's combined 1F1B (model_chunk_schedule_plan.py) takes two micro-batches through a
    chunk layer by layer, one forward and one back, and frees what a layer kept when its backward
    pass ends: beside one whole set of activations there is one more block's. Schedules that run all
    forward passes first pair none; DualPipe's pairs are in its table of actions.
    """
    layouts, parts = rows.layouts, rows.parts
    largest = np.zeros_like(parts[:, :, 0])
    for part in range(parts.shape[2] - 2):
        count, flying = parts[:, :, part], np.minimum(parts[:, :, part], 1.0)
        again = np.where(rows.covered[:, :, part] >= count, flying, 0.0)
        held = kept_bytes(
            blocks, mode, rows.block_key, part, flying=flying, count=flying, again=again
        )
        largest = np.maximum(largest, held)
    sends = blocks.exchange_s[0][rows.block_key].sum(axis=1) > 0
    pairs = (layouts.ep > 1) & sends & (layouts.micro_batches > 1)
    pairs &= ~_PAIRED_OTHERWISE[layouts.schedule]
    return largest * pairs[:, None]


def _loss_and_waiting(rows: Selection, blocks: BlockCosts) -> tuple[Floats, Floats]:
    """What loss and head hold at the loss, and what of it waits while a block goes back.

    Logits wait where a schedule takes all micro-batches forward first, and where the head's weight
    pass comes later than the rest of its backward pass. Shapes (layouts, columns).
    """
    flying, heads = rows.in_flight[:, :, -1], rows.parts[:, :, -1]
    saved = blocks.saved_bytes[0, rows.block_key, -1][:, None]
    waits = saved - blocks.passing_bytes[rows.block_key, -1][:, None]
    working = saved + blocks.transient_bytes[rows.block_key, -1][:, None]
    done = np.where(SPLITS_BACKWARD[rows.layouts.schedule], 0.0, 1.0)[:, None]
    return (flying - heads) * waits + heads * working, (flying - done * heads) * waits


# --- the fullest moment -------------------------------------------------------------------------


def _of_block_and_loss(states: list[Floats], sizes: _Sizes) -> _AtPeak:
    """The fuller of a block's backward pass and the loss, with all gradients there throughout."""
    return _AtPeak(
        moment=(sizes.loss > sizes.temporaries + sizes.waiting).astype(np.int8),
        states=states,
        activations=sizes.activations + sizes.between.received + sizes.between.outputs,
        temporaries=sizes.temporaries,
        idle=0.0,
    )


def _of_moments(rows: Selection, priced: Priced, states: list[Floats], sizes: _Sizes) -> _AtPeak:
    """The fullest of the MOMENTS of a step whose gradients are freed when it ends."""
    prices, key = priced.states, rows.state_key
    weights, gradients, optimizer, gathered = states
    held, unreduced = _held(rows, priced, sizes), by_key(prices.unreduced_bytes, key)
    later = np.where(held.deferred, unreduced, 0.0)
    gathered = gathered + later
    peak = fullest(
        rows.layouts,
        priced.workload.recipe,
        held,
        whole=gradients,
        early=by_key(prices.early_gradients, key, 1),
        gathered=by_key(prices.gathered_bytes, key, 1) + later,
        unreduced=unreduced,
    )
    idle: Floats | float = 0.0
    if priced.software.fsdp2.pools_by_stream:
        idle = np.maximum(gradients + gathered - peak.gradients - peak.gathered, 0.0)
    # no other tensor leaves a free block that the embedding's whole gradient would fit in
    # unless the rank has logits
    alone = (peak.moment != EMBEDDING) & (rows.parts[:, :, -1] == 0)
    idle = idle + np.where(alone, by_key(prices.embedding_gradient, key), 0.0)
    # what a block's forward pass made and did not keep lies in blocks too small for the logits
    idle = idle + np.where(peak.moment == LOSS, sizes.passing, 0.0)
    return _AtPeak(
        moment=peak.moment,
        states=[weights, peak.gradients, optimizer, peak.gathered],
        activations=peak.activations,
        temporaries=peak.temporaries,
        idle=idle,
    )


def _held(rows: Selection, priced: Priced, sizes: _Sizes) -> RankMemoryNow:
    """What a rank holds beside its states at any of the MOMENTS."""
    one_block = np.zeros_like(rows.parts[:, :, 0])
    for part, kept in enumerate(sizes.kept):
        one_block = np.maximum(one_block, kept / np.maximum(rows.in_flight[:, :, part], 1.0))
    blocks = rows.parts[:, :, :-2].sum(axis=2)
    m = rows.layouts.micro_batches[:, None]
    return RankMemoryNow(
        activations=sizes.activations + sizes.between.outputs,
        one_block=one_block,
        buffers=sizes.between.received,
        inputs=sizes.between.inputs,
        temporaries=sizes.temporaries,
        loss=sizes.loss,
        waiting=sizes.waiting,
        table=by_key(priced.states.embedding_gradient, rows.state_key),
        flights=sizes.flights,
        blocks=blocks,
        deferred=priced.states.deferred[rows.state_key] & (m > 1),
        returned=_returned(rows, priced) * (m > 1),
        all_forward=(m > 1) & (rows.in_flight[:, :, :-2].sum(axis=2) >= m * blocks),
    )


def _returned(rows: Selection, priced: Priced) -> Floats:
    """Gradients that one graph's backward pass returns together, shape (layouts, columns)."""
    fsdp2, prices = priced.software.fsdp2, priced.states
    if not fsdp2.hands_gradients_over_at_once:
        return np.zeros(rows.parts.shape[:2])
    gradients = prices.state_bytes[STATE_KINDS.index("gradients")]
    return by_key(np.where(prices.keys.unwrapped, gradients, 0.0), rows.state_key)


# --- shares of it -------------------------------------------------------------------------------


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
        if software.deepspeed_zero.offloads_gradients:
            gradients = gradients * stays
    if layouts.parameter_offload.any():
        weights = np.where(layouts.parameter_offload[:, None] > 0, 0.0, weights)
    return [weights, gradients, optimizer, gathered]


def kept_bytes(
    blocks: BlockCosts,
    mode: NDArray[Any],
    block_key: NDArray[Any],
    part: int,
    *,
    flying: Floats,
    count: Floats,
    again: Floats,
) -> Floats:
    """Bytes that the blocks of one part keep, shape (layouts, columns).

    `flying` is their number times micro-batches in flight; `again` of the `count` blocks are
    recomputed in full and keep their input only.
    """
    kept = blocks.saved_bytes[mode, block_key, part][:, None]
    if not again.any():
        return np.asarray(flying * kept)
    checkpoint = blocks.saved_bytes[_FULL, block_key, part][:, None]
    flying_again = flying * again / np.maximum(count, 1.0)
    return np.asarray((flying - flying_again) * kept + flying_again * checkpoint)
