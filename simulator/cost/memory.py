"""Bytes on the fullest rank: states, activations in flight, loss, temporaries, buffers.

The peak is the maximum over the distinct ranks of the pipeline and over moments: the loss (all
activations of the rank, the logits and the head's gradients), the backward pass of a block (all
activations less the head's, plus temporaries and what recomputation rebuilds) and, where gradients
are freed after every step, the end of the backward pass (one block's activations, all gradients)
and the second block in between: the first one's activations are gone, its gradients are there, and
under FSDP2 so is the buffer out of which they are reduced. Further blocks change memory by the same
amount each, so that one end or the other is the fullest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.cost.blocks import BlockCosts
from simulator.cost.states import STATE_KINDS, StateCosts
from simulator.hardware.cluster import Cluster
from simulator.layout.layout import RECOMPUTE, SCHEDULES, SHARDINGS, Layouts
from simulator.software import Software
from simulator.workload.recipe import Recipe

__all__ = [
    *("MEMORY_KINDS", "MOMENTS", "Memory", "host_share", "kept_bytes", "memory"),
    *("offloaded_parts", "recomputed_parts", "workspace"),
]

Floats = NDArray[np.float64]

MEMORY_KINDS = (
    *STATE_KINDS, "activations", "loss", "temporaries", "workspace", "communicators",
    "fragmentation", "context",
)  # fmt: skip
"""Kinds of memory, in the order in which they are added."""

MOMENTS = (
    "backward of a block", "loss and head", "end of the backward pass",
    "backward of the second block", "gather of the second block", "backward of the embedding",
)  # fmt: skip

_IN_TRANSIT = 2.0
"""Offloaded blocks on the device at a time: one on its way, one in use (double buffer)."""

_FULL = RECOMPUTE.index("full")

_LOSS, _END, _GATHER, _EMBEDDING = 1, 2, 4, 5

_ZERO2 = SHARDINGS.index("zero2")

_PAIRED_OTHERWISE = tuple(
    SCHEDULES.index(word) for word in ("gpipe", "looped_bfs", "dualpipe", "dualpipe_v")
)


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


def recomputed_parts(layouts: Layouts, parts: Floats) -> Floats:
    """Blocks that full recomputation covers, by rank and part; the first ones of a rank first.

    `recompute_layers` of 0 means every block. Shape as `parts`: (layouts, columns, parts).
    """
    full = layouts.recompute == _FULL
    limit = np.where(layouts.recompute_layers == 0, np.inf, layouts.recompute_layers)
    return _first_blocks(np.where(full, limit, 0.0), parts)


def offloaded_parts(layouts: Layouts, parts: Floats) -> Floats:
    """Blocks whose activations wait in host memory, by rank and part, as `recomputed_parts`."""
    return _first_blocks(layouts.offload_layers.astype(float), parts)


def _first_blocks(count: Floats, parts: Floats) -> Floats:
    """At most `count` blocks of each rank, by part; shape as `parts`."""
    found = np.zeros_like(parts)
    if not count.any():
        return found
    left = np.broadcast_to(count[:, None], parts.shape[:2])
    for kind in range(parts.shape[2] - 2):
        found[:, :, kind] = np.minimum(parts[:, :, kind], left)
        left = left - found[:, :, kind]
    return found


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
            stays = np.maximum(count - away, 0.0) + np.minimum(away, _IN_TRANSIT)
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
    loss = in_flight[:, :, last] * blocks.saved_bytes[0, block_key, last][:, None]
    loss = loss + parts[:, :, last] * blocks.transient_bytes[block_key, last][:, None]
    state = _on_device(list(states.state_bytes[:, state_key, :]), layouts, recipe, software)
    moment = (loss > temporaries).astype(np.int8)
    idle: Floats | float = 0.0
    buffers = _pipeline_buffers(software, layouts, blocks.boundary_bytes[block_key], parts, flights)
    activations = activations + buffers
    if lazy:
        # gradients are there from the second backward pass on, when one micro-batch is gone
        chunks = flights * np.maximum(layouts.vpp, 1)[:, None]
        m = layouts.micro_batches[:, None]
        gone = np.where((m > 1) & (flights >= m), (activations - buffers) / chunks, 0.0)
        activations = activations - gone
        sharded = layouts.sharding[:, None] >= _ZERO2
        left = 1.0 + (sharded & (parts[:, :, :-2].sum(axis=2) > 2))
        growing = _growing(recipe, layouts, state[1], states.early_gradients[:, state_key, :],
                           one_block + temporaries, left)  # fmt: skip
        fewer = np.maximum(activations - one_block, 0.0)
        others = buffers + (activations - buffers) * np.maximum(1.0 - 1.0 / flights, 0.0)
        table = states.embedding_gradient[state_key]
        more = (activations + temporaries, activations + loss, left * one_block + temporaries,
                fewer + temporaries, fewer, others + table)  # fmt: skip
        gathered = states.gathered_bytes[:, state_key, :]
        moment = np.argmax(growing + gathered + np.stack(more), axis=0).astype(np.int8)
        at = moment[None].astype(np.intp)
        pools = state[1] + state[3]
        state[1] = np.take_along_axis(growing, at, axis=0)[0]
        state[3] = np.take_along_axis(gathered, at, axis=0)[0]
        if software.allocator.pools_by_stream:
            idle = np.maximum(pools - state[1] - state[3], 0.0)
        # no other tensor leaves a free block that the embedding's whole gradient would fit in
        # unless the rank has logits
        alone = (moment != _EMBEDDING) & (parts[:, :, -1] == 0)
        idle = idle + np.where(alone, table, 0.0)
        # what a block's forward pass made and did not keep lies in blocks too small for the logits
        idle = idle + np.where(moment == _LOSS, passing, 0.0)
        held_then = (activations, activations, left * one_block, fewer, fewer, others)
        activations = np.choose(moment, held_then)
        temporaries = np.where(moment == _GATHER, 0.0, temporaries)
        temporaries = np.where(moment == _EMBEDDING, table, temporaries)
    at_loss = moment == _LOSS
    allocated = [
        *state,
        activations,
        np.where(at_loss, loss, 0.0),
        np.where(at_loss, 0.0, temporaries),
        workspace(software, layouts, blocks, block_key, states, state_key, parts),
    ]
    pool = allocated[0]
    for kind in allocated[1:]:
        pool = pool + kind
    communicators = np.broadcast_to(_communicators(cluster, software, layouts)[:, None], shape)
    idle = idle + states.step_pieces[state_key]
    context = np.full(shape, float(software.allocator.context_bytes))
    fragmentation = idle + pool * float(software.allocator.fragmentation_fraction)
    kinds = np.stack([*allocated, communicators, fragmentation, context])
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
    blocks: BlockCosts, layouts: Layouts, block_key: NDArray[Any], mode: NDArray[Any],
    parts: Floats, covered: Floats,
) -> Floats:  # fmt: skip
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
    pairs &= ~np.isin(layouts.schedule, _PAIRED_OTHERWISE)
    return one * pairs[:, None]


def host_share(layouts: Layouts, recipe: Recipe) -> Floats:
    """Share of the optimizer states that is in host memory, shape (layouts,)."""
    return np.where(layouts.optimizer_offload > 0, float(recipe.optimizer_offload_fraction), 0.0)


def _on_device(
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


def _growing(
    recipe: Recipe, layouts: Layouts, whole: Floats, early: Floats, beside: Floats, left: Floats
) -> Floats:
    """Gradients of a rank at each of the MOMENTS, shape (6, layouts, columns).

    With several micro-batches they are all there from the second on. With one, the loss sees none,
    the first backward pass of a block those of the head, the second those of the first block as
    well, the last those of all but the `left` blocks and the embedding, which are whole where they
    are not sharded; the step that follows has all of them and nothing `beside`. An optimizer that
    steps inside the backward pass leaves no more than one block's.
    """
    head, block, kept, root, table = early
    none = np.zeros_like(whole)
    if recipe.optimizer_in_backward:
        return np.stack([np.maximum(head, block), none, block, block, none, none])
    once = layouts.micro_batches[:, None] == 1
    sharded = layouts.sharding[:, None] >= _ZERO2
    blocks = np.where(sharded, whole - root, whole)
    last = np.maximum(blocks - left * kept, 0.0) + head
    end = np.where(sharded, last, whole - np.minimum(block + table, beside))
    found = (head, none, end, head + kept, head + kept, blocks)
    return np.stack([np.where(once, some, whole) for some in found])


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


def workspace(
    software: Software,
    layouts: Layouts,
    blocks: BlockCosts,
    block_key: NDArray[Any],
    states: StateCosts,
    state_key: NDArray[Any],
    parts: Floats,
) -> Floats:
    """Library workspaces, and what a framework holds on to: dummy gradients, an input's gradient.

    Dummy gradients serve gradient-accumulation fusion. The gradient of a stage's input outlives
    the next backward pass on all stages but the first, which has the embedding and no such input.
    """
    allocator = software.allocator
    found = 2.0 * float(allocator.dummy_gradient_copies) * states.linear_shapes[state_key]
    found = found + float(allocator.workspace_bytes)
    if float(allocator.grouped_workspace_bytes):
        grouped = float(allocator.grouped_workspace_bytes)
        found = found + states.has_experts[state_key] * grouped
    found = found + (parts[:, :, -1] > 0) * float(allocator.head_workspace_bytes)
    if allocator.keeps_input_gradient:
        holds = (layouts.pp > 1) & (layouts.micro_batches > 1)
        gradient = np.where(holds, blocks.boundary_bytes[block_key], 0.0)[:, None]
        found = found + (parts[:, :, -2] == 0) * gradient
    return np.asarray(found)


def _pipeline_buffers(
    software: Software, layouts: Layouts, boundary: Floats, parts: Floats, flights: Floats
) -> Floats:
    """Bytes that torch.distributed.pipelining keeps beside what autograd does.

    A stage has a buffer to receive into for every micro-batch of the step, in both directions, and
    holds its output until the backward pass. The input of a micro-batch in flight is counted with
    the blocks already. torch/distributed/pipelining/stage.py: _create_act_recv_info,
    _create_grad_recv_info, fwd_cache.
    """
    if not software.allocator.pipeline_buffers:
        return np.zeros(flights.shape)
    m, chunks = layouts.micro_batches[:, None], np.maximum(layouts.vpp, 1)[:, None]
    first, last = parts[:, :, -2] > 0, parts[:, :, -1] > 0
    inputs = (chunks - first) * np.maximum(m - flights, 0.0)
    outputs = (chunks - last) * (m + flights)
    return np.where(layouts.pp[:, None] > 1, boundary[:, None] * (inputs + outputs), 0.0)


def _communicators(cluster: Cluster, software: Software, layouts: Layouts) -> Floats:
    """Buffers of the communicators that a rank takes part in: one per degree above 1, and more."""
    replicas = layouts.dp * layouts.cp
    degrees = (layouts.tp, layouts.cp, layouts.pp, replicas, layouts.ep, layouts.etp)
    allocator = software.allocator
    count = np.where(layouts.world > 1, float(allocator.communicators), 0.0)
    count = count + np.where(layouts.pp > 1, float(allocator.pipeline_communicators), 0.0)
    for degree in degrees:
        count = count + (degree > 1)
    return count * float(cluster.library.communicator_bytes)
