"""Collectives that keep data-parallel replicas equal: of whole ranks, and part by part.

Each function prices one field of ``StateCosts``: the sum over dense and expert parameters.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.cost.collectives.calls import (
    all_gather_s,
    all_reduce_s,
    broadcasts_s,
    reduce_scatter_s,
)
from simulator.cost.states.gathered import released
from simulator.cost.states.state_bytes import on_rank
from simulator.cost.states.state_keys import ZERO1, ZERO2, ZERO3, SharedStates, StateKeys
from simulator.cost.states.state_traffic import copies_s_per_byte
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import Layouts
from simulator.layout.placement import Group, Placement
from simulator.software.profile import Software
from simulator.workload.recipe import Recipe

_MAXIMA_BYTES = 4.0 * 3.0 * 4.0
"""fp32; input, weight and result of a block's four linears."""


# --- of a whole rank, after its passes or beside them --------------------------------------------


def rank_reduce_s(keys: StateKeys) -> Floats:
    """Gradient reduction of every rank, shape (keys, columns); zero where it is done by part."""
    least = ZERO3 if keys.software.deepspeed_zero.reduces_everywhere else ZERO1
    seconds: Floats = np.zeros(keys.parts.shape[:2])
    for kind in keys.kinds:
        size_bytes = np.where(keys.by_block, 0.0, on_rank(keys.parts, kind.reduce))
        buckets = _buckets(keys, kind)
        seconds = seconds + _reduce_s(kind, size_bytes / buckets, keys.level >= least) * buckets
    return seconds


def rank_gather_s(keys: StateKeys) -> Floats:
    """Gather of updated parameters of every rank (zero1, zero2), shape (keys, columns)."""
    seconds: Floats = np.zeros(keys.parts.shape[:2])
    for kind in keys.kinds:
        returned = np.where(keys.once[:, None], kind.gather, kind.update)
        gathers = (keys.level >= ZERO1) & ~keys.by_block
        size_bytes = np.where(gathers, on_rank(keys.parts, returned), 0.0)
        if keys.software.states.broadcasts_parameters:
            gather_s = broadcasts_s(kind.links, size_bytes, kind.ranks)
            seconds = seconds + np.where(size_bytes > 0, gather_s, 0.0)
        else:
            buckets = _buckets(keys, kind)
            gather_s = all_gather_s(kind.links, size_bytes / buckets, kind.ranks)
            seconds = seconds + gather_s * buckets
    return seconds


def reduce_buckets(keys: StateKeys) -> Floats:
    """Buckets of that reduction, shape (keys, columns): the more of dense and expert ones."""
    most: Floats = np.ones(keys.parts.shape[:2])
    for kind in keys.kinds:
        most = np.maximum(most, _buckets(keys, kind))
    return most


def _buckets(keys: StateKeys, kind: SharedStates) -> Floats:
    """Collectives that a reduction is cut into: buckets that start while the pass still runs."""
    states = keys.software.states
    if states.reduces_by_block:
        return np.maximum(keys.parts[:, :, :-1].sum(axis=2), 1.0)
    ranks = keys.placement.dp.size[:, None].astype(float)
    bucket = np.maximum(float(states.bucket_bytes), float(states.bucket_bytes_per_rank) * ranks)
    return np.maximum(np.ceil(on_rank(keys.parts, kind.reduce) / bucket), 1.0)


def tables_s(keys: StateKeys) -> Floats:
    """All-reduce between the stages that hold the word table, after all other reductions, (keys,).

    A tied head has a copy, and so have layers that predict ahead (Megatron-Core,
    distributed/finalize_model_grads.py, _allreduce_word_embedding_grads).
    """
    arch, layouts = keys.workload.architecture, keys.layouts
    shared = arch.tied_embeddings or any(kind.predicts_ahead for kind in arch.blocks)
    table = keys.kinds[0].reduce[:, len(arch.blocks)] * (shared & (layouts.pp > 1))
    pair = Group(size=np.full(len(layouts), 2), local=np.minimum(keys.placement.pp.local, 2))
    return all_reduce_s(keys.cluster.links_of("pp"), table, pair)


# --- of one part: shapes (keys, parts) ------------------------------------------------------------


def part_gather_s(keys: StateKeys) -> Floats:
    """Gather of one part's parameters where parts are gathered one by one."""
    seconds: Floats = np.zeros_like(keys.kinds[0].gather)
    for kind in keys.kinds:
        size_bytes = np.where(keys.by_block, kind.gather, 0.0)
        seconds = seconds + all_gather_s(kind.links, size_bytes, kind.ranks)
    return seconds


def part_regather_s(keys: StateKeys) -> Floats:
    """zero3: gather of them for the backward pass, from the ranks that share them by then."""
    seconds: Floats = np.zeros_like(keys.kinds[0].gather)
    for kind in keys.kinds:
        size_bytes = np.where(_resharded(keys), kind.gather, 0.0)
        seconds = seconds + all_gather_s(kind.links, size_bytes, kind.nearer_ranks)
    if _root_stays_whole(keys):
        seconds[:, -2:] = 0.0
    elif float(keys.software.deepspeed_zero.live_parameters):
        share = released(keys.parts, keys.per_part, keys.software).max(axis=1)
        seconds = seconds * share[:, None]
    return seconds


def part_reduce_s(keys: StateKeys) -> Floats:
    """Reduction of one part's gradients, where parts are gathered so."""
    seconds: Floats = np.zeros_like(keys.kinds[0].reduce)
    for kind in keys.kinds:
        size_bytes = np.where(keys.by_block, kind.reduce, 0.0)
        seconds = seconds + _reduce_s(kind, size_bytes, keys.level >= ZERO1)
    return seconds


def part_copies_s(keys: StateKeys) -> Floats:
    """Copies in and out of flat buffers around gather, second gather and reduction of a part.

    Shape (3, keys, parts).
    """
    copied = np.zeros((3, *keys.kinds[0].gather.shape))
    apart = keys.by_block | keys.once[:, None]
    for kind in keys.kinds:
        copied[0] += np.where(apart & (kind.ranks.size > 1), kind.gather, 0.0)
        copied[1] += np.where(_resharded(keys) & (kind.nearer_ranks.size > 1), kind.gather, 0.0)
        copied[2] += np.where(keys.placement.dp.size[:, None] > 1, kind.reduce, 0.0)
    if _root_stays_whole(keys):
        copied[1][:, -2:] = 0.0
    gathered, again, reduced, shared = copies_s_per_byte(keys.cluster, keys.software)
    reduced = reduced + np.where(keys.level >= ZERO2, shared, 0.0)
    return np.stack([copied[0] * gathered, copied[1] * again, copied[2] * reduced])


def _resharded(keys: StateKeys) -> Any:
    """Where parameters are sharded again after the forward pass, (keys, 1)."""
    return keys.by_block & (keys.level == ZERO3)


def _root_stays_whole(keys: StateKeys) -> bool:
    """Whether the root group, embedding and head, stays whole for the backward pass."""
    return keys.per_part.shards_only or not keys.software.states.weight


def _reduce_s(kind: SharedStates, size_bytes: Floats, scatters: Any) -> Floats:
    """Reduce gradients: all-reduce (ddp), or scatter over those who share, then their copies.

    What a layout does not do has no bytes, and calls of no bytes are not priced.
    """
    ranks, copies = kind.ranks, kind.copies
    everyone = Group(size=ranks.size * copies.size, local=ranks.local * copies.local)
    whole_bytes = np.where(scatters, 0.0, size_bytes)
    shared_bytes = np.where(scatters, size_bytes, 0.0)
    whole_s = all_reduce_s(kind.links, whole_bytes, everyone)
    scatter_s = reduce_scatter_s(kind.links, shared_bytes, ranks)
    copies_s = all_reduce_s(kind.copy_links, shared_bytes / ranks.size, copies)
    return whole_s + (scatter_s + copies_s)


def maxima_s(
    cluster: Cluster, software: Software, recipe: Recipe, placement: Placement, blocks: Any
) -> Floats:
    """Seconds of one reduction of the maxima of a chunk; zero where there is none.

    Parameters
    ----------
    cluster, software, recipe
    placement : Placement
        Of the layouts.
    blocks : array_like
        Blocks of the largest chunk, one for each layout.
    """
    tp, dp = placement.tp, placement.dp
    if recipe.precision != "fp8" or not software.kernels.transformer_engine.reduces_maxima:
        return np.zeros(len(tp.size))
    group = Group(size=tp.size * dp.size, local=tp.local * dp.local)
    return all_reduce_s(cluster, _MAXIMA_BYTES * np.maximum(blocks, 1.0), group)


def norm_s(cluster: Cluster, recipe: Recipe, layouts: Layouts) -> Floats:
    """Seconds of reducing the gradient norm over all ranks, in fp16 whether all is finite, too.

    Where every rank has all gradients, there is nothing to reduce.
    """
    world = layouts.world.astype(np.int64)
    group = Group(size=world, local=np.gcd(world, cluster.domain))
    calls = 2.0 if recipe.precision == "fp16" else 1.0
    split = (layouts.sharding > 0) | (layouts.tp * layouts.pp > 1)
    return calls * all_reduce_s(cluster, np.where(split, 4.0, 0.0), group)
