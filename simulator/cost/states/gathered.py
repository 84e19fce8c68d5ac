"""Parameters that zero3 gathers: how much of them is whole at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.cost.states.state_bytes import PartStates, largest_block, on_rank
from simulator.cost.states.state_keys import ZERO2, ZERO3, StateKeys
from simulator.layout.layouts import Layouts
from simulator.software.profile import Software


def _waiting_shards(blocks: Floats, largest: Any, layouts: Layouts) -> list[Floats]:
    """Bytes of shards that wait for a backward pass in a smaller group, of whole `blocks`.

    At the loss, and once one block and two are gathered again, which frees their shards. Embedding
    and head, the root group, are not resharded. Shapes (keys, columns).
    """
    group = layouts.reshard_after_forward[:, None]
    per_rank = np.where(group > 0, 1.0 / np.maximum(group, 1), 0.0)
    return [np.maximum(blocks * per_rank - n * largest * per_rank, 0.0) for n in range(3)]


def gathered_bytes(keys: StateKeys) -> tuple[Floats, Floats, Floats]:
    """zero3 keeps whole what it computes with: the root group, and three copies of one block.

    The current layer, the next one being gathered and the flat buffer it arrives in; the reduced
    gradient of a layer is as large again in the type on the wire. zero2 holds two buckets; where
    only shards stay between steps (FSDP without reshard), whole weights and unreduced gradients.

    Returns
    -------
    reserved, in_use, unreduced : ndarray
        What the pool holds, and of it what is in use at each of the MOMENTS of
        ``cost/memory/moments.py``. FSDP2: the flat buffers in which weights arrive, two of a block
        and the root's, are a pool of their own; the root's is free by the loss. A block's backward
        pass has its weights and the flat buffer of the block that is gathered next, and reshards
        them at its end. From the second block on, the one before is being reduced. At the embedding
        every block is resharded and the root's gradients are not reduced yet. Of these, whole
        gradients that wait for later micro-batches.
    """
    parts, states, software = keys.parts, keys.per_part, keys.software
    gather, reduce, gradient = (
        x[0] + x[1] for x in (states.gather, states.reduce, states.gradients)
    )
    root = parts[:, :, -2] * gather[:, None, -2] + parts[:, :, -1] * gather[:, None, -1]
    layer, reduced = largest_block(parts, gather), largest_block(parts, reduce)
    shards = _waiting_shards(on_rank(parts[:, :, :-2], gather[:, :-2]), layer, keys.layouts)
    window = 2.0 * root + 3.0 * layer + reduced + shards[0]
    if float(software.deepspeed_zero.live_parameters):
        window = _live_bytes(parts, states, software) + 2.0 * layer + shards[0]
        window = window + float(software.states.bucket_bytes)
    level, once, waiting = keys.level, keys.once[:, None], _unreduced_bytes(keys)
    if states.shards_only:
        held = on_rank(parts, gather)
        whole = held + np.where(once, waiting, largest_block(parts, gradient))
        flat = root + 2.0 * layer
    else:
        flat = 0.0
        held = whole = np.full(window.shape, 2.0 * software.states.bucket_bytes)
    shards_only = np.where(once, whole + flat, window)
    reserved = np.where(level == ZERO3, shards_only, np.where(level == ZERO2, whole + flat, 0.0))
    if not states.shards_only:
        return reserved, np.broadcast_to(reserved, (6, *reserved.shape)), waiting
    blocks = parts[:, :, :-2].sum(axis=2)
    has_second, table = blocks > 1, 2.0 * root + reduced
    end = root + (1.0 + (blocks > 2)) * layer + has_second * reduced
    second = has_second * (end + shards[2])
    arriving = has_second * (root + 2.0 * layer + reduced + shards[1])
    rest = has_second * (held - layer + reduced)
    first = root + (1.0 + has_second) * layer + shards[1]
    open_window = (
        first,
        root + shards[0],
        end + _last_shard(blocks, shards),
        second,
        arriving,
        table,
    )
    kept_whole = (held, held, end, rest, rest, table)
    in_use = [
        np.where(level == ZERO3, some, np.where(level == ZERO2, every, 0.0))
        for some, every in zip(open_window, kept_whole, strict=True)
    ]
    return reserved, np.where(once, whole, np.stack(in_use)), waiting


def _unreduced_bytes(keys: StateKeys) -> Floats:
    """Whole gradients that wait on the device for later micro-batches, (keys, columns).

    Chunks of a looped schedule go back one after the other where no micro-batch is left over. Where
    each round is reduced and others follow, one chunk's fill up beside the flat copy of another's.
    """
    parts, states, layouts = keys.parts, keys.per_part, keys.layouts
    if not states.shards_only:
        return np.zeros(parts.shape[:2])
    each_round = keys.software.fsdp2.reduces_each_round & (layouts.rounds > 1)
    chunks = np.where(layouts.micro_batches <= layouts.pp, layouts.vpp, 1)[:, None]
    chunks = np.where(each_round[:, None], np.maximum(layouts.vpp / 2.0, 1.0)[:, None], chunks)
    gradients = on_rank(parts, states.gradients[0] + states.gradients[1])
    return np.where(keys.once[:, None], gradients / chunks, 0.0)


def _last_shard(blocks: Floats, shards: list[Floats]) -> Floats:
    """The first block's waiting shard, in the backward pass of the second from the bottom."""
    return np.where(blocks > 2, shards[0] - shards[1], 0.0)


def _live_bytes(parts: Floats, states: PartStates, software: Software) -> Floats:
    """Whole weights that wait on the device for their backward pass, (keys, columns)."""
    held = on_rank(parts, states.gather[0] + states.gather[1])
    return np.asarray(held * (1.0 - released(parts, states, software)))


def released(parts: Floats, states: PartStates, software: Software) -> Floats:
    """Share of a rank's parameters that are gathered again for the backward pass, (keys, columns).

    The others are near enough to their backward pass to stay (DeepSpeed, max_reuse_distance).
    """
    held = on_rank(parts, states.parameters[0] + states.parameters[1])
    live = np.minimum(float(software.deepspeed_zero.live_parameters), held)
    return np.asarray(1.0 - live / np.maximum(held, 1.0))
