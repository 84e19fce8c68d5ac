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
from simulator.layout.placement import Group

# --- of a whole rank, after its passes or beside them --------------------------------------------


def rank_reduce_s(keys: StateKeys) -> Floats:
    """Gradient reduction of every rank, shape (keys, columns); zero where it is done by part."""
    least = ZERO3 if keys.software.deepspeed_zero.reduces_everywhere else ZERO1
    seconds: Floats = np.zeros(keys.parts.shape[:2])
    for kind in keys.kinds:
        size_bytes, buckets = on_rank(keys.parts, kind.reduce), _buckets(keys, kind)
        whole = np.where(keys.by_block, 0.0, size_bytes)
        reduce_s = _reduce_s(kind, whole / buckets, keys.level >= least) * buckets
        seconds = seconds + np.where(whole > 0, reduce_s, 0.0)
    return seconds


def rank_gather_s(keys: StateKeys) -> Floats:
    """Gather of updated parameters of every rank (zero1, zero2), shape (keys, columns)."""
    seconds: Floats = np.zeros(keys.parts.shape[:2])
    for kind in keys.kinds:
        returned = np.where(keys.once[:, None], kind.gather, kind.update)
        gathers = (keys.level >= ZERO1) & ~keys.by_block
        size_bytes = np.where(gathers, on_rank(keys.parts, returned), 0.0)
        buckets = _buckets(keys, kind)
        if keys.software.states.broadcasts_parameters:
            gather_s = broadcasts_s(kind.links, size_bytes, kind.ranks)
        else:
            gather_s = all_gather_s(kind.links, size_bytes / buckets, kind.ranks) * buckets
        seconds = seconds + np.where(size_bytes > 0, gather_s, 0.0)
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
    table = keys.kinds[0].reduce[:, len(arch.blocks)] * shared
    pair = Group(size=np.full(len(layouts), 2), local=np.minimum(keys.placement.pp.local, 2))
    seconds = all_reduce_s(keys.cluster.links_of("pp"), table, pair)
    return np.where((layouts.pp > 1) & (table > 0), seconds, 0.0)


# --- of one part: shapes (keys, parts) ------------------------------------------------------------


def part_gather_s(keys: StateKeys) -> Floats:
    """Gather of one part's parameters where parts are gathered one by one."""
    seconds: Floats = np.zeros_like(keys.kinds[0].gather)
    for kind in keys.kinds:
        size_bytes = np.where(keys.by_block, kind.gather, 0.0)
        gather_s = all_gather_s(kind.links, size_bytes, kind.ranks)
        seconds = seconds + np.where(size_bytes > 0, gather_s, 0.0)
    return seconds


def part_regather_s(keys: StateKeys) -> Floats:
    """zero3: gather of them for the backward pass, from the ranks that share them by then."""
    seconds: Floats = np.zeros_like(keys.kinds[0].gather)
    for kind in keys.kinds:
        size_bytes = np.where(_resharded(keys), kind.gather, 0.0)
        gather_s = all_gather_s(kind.links, size_bytes, kind.nearer_ranks)
        seconds = seconds + np.where(size_bytes > 0, gather_s, 0.0)
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
        reduce_s = _reduce_s(kind, size_bytes, keys.level >= ZERO1)
        seconds = seconds + np.where(size_bytes > 0, reduce_s, 0.0)
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

    Of each layout the one that it does is priced alone: most calls of the other are no others'.
    """
    ranks, copies = kind.ranks, kind.copies
    everyone = Group(size=ranks.size * copies.size, local=ranks.local * copies.local)
    whole = all_reduce_s(kind.links, np.where(scatters, 0.0, size_bytes), everyone)
    shared = np.where(scatters, size_bytes, 0.0)
    scattered = reduce_scatter_s(kind.links, shared, ranks)
    scattered = scattered + all_reduce_s(kind.copy_links, shared / ranks.size, copies)
    return np.where(scatters, scattered, whole)
