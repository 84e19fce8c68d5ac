"""What stands whole at single moments: gathered parameters, gradients, largest tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.cost.operators.matrices import Matrix
from simulator.cost.operators.operations import element_bytes
from simulator.cost.states.state_bytes import PartStates, largest_block, on_rank
from simulator.cost.states.state_keys import ZERO2, ZERO3, StateKeys
from simulator.layout.layouts import Layouts
from simulator.software.kernels import Kernels
from simulator.software.profile import Software
from simulator.workload.architecture import Architecture
from simulator.workload.recipe import Workload

_JOINED = {"q": "qkv", "k": "qkv", "v": "qkv", "gate": "gate and up", "up": "gate and up"}
"""Matrices that are one tensor where their linears are one."""


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
    FSDP2 adds them up in the type of the reduction (``_fsdp_param.py``).
    """
    parts, states, layouts = keys.parts, keys.per_part, keys.layouts
    if not states.shards_only:
        return np.zeros(parts.shape[:2])
    each_round = keys.software.fsdp2.reduces_each_round & (layouts.rounds > 1)
    chunks = np.where(layouts.micro_batches <= layouts.pp, layouts.vpp, 1)[:, None]
    chunks = np.where(each_round[:, None], np.maximum(layouts.vpp / 2.0, 1.0)[:, None], chunks)
    summed = states.reduce if keys.software.fsdp2.adds_unreduced else states.gradients
    gradients = on_rank(parts, summed[0] + summed[1])
    return np.where(keys.once[:, None], gradients / chunks, np.where(keys.deferred, gradients, 0.0))


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


def early_gradients(
    parts: Floats, states: PartStates, arch: Architecture, kept: Floats, unwrapped: Any
) -> Floats:
    """Whole gradients of the head (with the table it is tied to) and of the largest block.

    Where only shards stay, whole ones are in the type of the gathered weights, but for a replica
    that is `unwrapped`. Then, of the block's
    and of those of head and embedding, the share that is `kept` once they are reduced.
    """
    gathered, stays = (x[0] + x[1] for x in (states.gather, states.gradients))
    gradient = np.where(unwrapped, stays, gathered) if states.shards_only else stays
    head = parts[:, :, -1] * gradient[:, None, -1]
    if arch.tied_embeddings and arch.output_rows:
        head = head + parts[:, :, -1] * parts[:, :, -2] * gradient[:, None, -2]
    root = parts[:, :, -2] * stays[:, None, -2] + parts[:, :, -1] * stays[:, None, -1]
    table = parts[:, :, -2] * stays[:, None, -2]
    if arch.tied_embeddings and arch.output_rows:
        table = table * (1.0 - np.minimum(parts[:, :, -1], 1.0))
    gradients = (
        head,
        largest_block(parts, gradient),
        largest_block(parts, stays) * kept,
        root * kept,
        table,
    )
    return np.stack(np.broadcast_arrays(*gradients))


def embedding_gradient(
    parts: Floats, workload: Workload, software: Software, layouts: Layouts
) -> Floats:
    """Bytes of the whole table's gradient in the compute type; zero where a rank makes its share.

    torch/distributed/tensor/_ops/_embedding_ops.py: embedding_dense_backward knows no sharding of
    the vocabulary, so that its result is whole and only then cut.
    """
    arch = workload.architecture
    if not software.kernels.dtensor.whole_embedding_gradient or arch.traced is not None:
        return np.zeros(parts.shape[:2])
    table = element_bytes(workload.recipe) * arch.vocabulary * arch.hidden
    return np.asarray(parts[:, :, -2] * np.where(layouts.tp > 1, table, 0.0)[:, None])


def step_pieces(keys: StateKeys, share: Floats) -> Floats:
    """Bytes that reduction and optimizer step allocate in single pieces, shape (keys, columns).

    `share` are the parameters of which a rank keeps the optimizer states.
    """
    states, arch = keys.software.states, keys.workload.architecture
    size_bytes = float(states.step) * share + float(states.step_buffer_bytes)
    largest_copy = float(states.largest_copy)
    if not largest_copy or arch.traced is not None:
        return size_bytes
    largest = largest_tensor(keys.parts, keys.matrices, keys.software.kernels)
    return np.asarray(size_bytes + largest_copy * largest)


def largest_tensor(parts: Floats, matrices: list[Matrix], kernels: Kernels) -> Floats:
    """Parameters of the largest tensor among a rank's weights, shape (keys, columns).

    Where the software joins linears, queries, keys and values are one, and so are gate and up;
    where one kernel multiplies a rank's experts, all of them are.
    """
    sizes: dict[tuple[int, str, bool], Floats] = {}
    for w in matrices:
        name = w.name if kernels.separate_linears else _JOINED.get(w.name, w.name)
        whole = w.routed and kernels.expert_products == "one_kernel"
        size = w.parameters if whole else np.asarray(w.rows * w.columns, dtype=float)
        key = (w.part, name, w.routed)
        sizes[key] = sizes.get(key, np.zeros(())) + size
    largest: Floats = np.zeros(parts.shape[:2])
    for (part, _, _), size in sizes.items():
        largest = np.maximum(largest, np.where(parts[:, :, part] > 0, size[..., None], 0.0))
    return largest
