"""Memory over time: what the passes of a played step keep, on top of what is always there.

A chunk keeps a micro-batch's activations from the start of its forward pass until the backward
pass that makes its weight gradients has ended; temporaries of the backward pass, or the loss where
that is the fullest moment, come and go with their pass. Everything else (states, workspaces,
communicators, what the allocator has reserved) stays. Bytes are those of the closed form
(``cost/memory/peak.py``); only when they are held follows from the events.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.cost.memory.moments import LOSS
from simulator.cost.memory.peak import IN_TRANSIT, Memory, kept_bytes, peak_memory, saved_mode
from simulator.cost.memory.rank_tensors import stages_of
from simulator.events.step.play import Played, Replica
from simulator.events.step.timeline import MEMORY_KINDS, MemoryCurve
from simulator.schedules.schedule import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD

_ACTIVATIONS, _LOSS, _TEMPORARIES = (
    MEMORY_KINDS.index(x) for x in ("activations", "loss", "temporaries")
)


def memory_over_time(played: Played) -> MemoryCurve:
    """Follow the memory of every simulated rank through a step."""
    curves = [
        x for i, replica in enumerate(played.replicas) for x in _on_servers(played, replica, i)
    ]
    rank, when, held = (np.concatenate(column) for column in zip(*curves, strict=True))
    return MemoryCurve(rank=rank.astype(np.int32), time_s=when, kinds_bytes=held)


def _on_servers(played: Played, replica: Replica, i: int) -> Iterator[tuple[Any, Floats, Floats]]:
    """Curves of the ranks of a replica, each as on the servers that it lies on."""
    tightest = tightest_sources(replica)
    for source in {id(x): x for x in tightest}.values():
        rank, when, held = _replica(played, source, i * played.pp)
        on_source = np.array([x is source for x in tightest])[rank - i * played.pp]
        yield rank[on_source], when[on_source], held[on_source]


def tightest_sources(replica: Replica) -> list[Replica]:
    """Of each rank: the replica that its memory is priced in, of the smallest of its devices."""
    if not replica.sources:
        return [replica] * len(replica.step_end.buckets)
    return [min(sources, key=usable_bytes) for sources in replica.sources]


def usable_bytes(replica: Replica) -> float:
    """Memory of a device that a replica is priced on."""
    return float(replica.priced.cluster.accelerator.memory.usable_bytes)


def closed_bytes(replica: Replica) -> Floats:
    """Memory of every rank at its fullest, as the closed form has it; kinds together."""
    closed = peak_memory(replica.rows, replica.priced)
    return np.asarray(closed.total_bytes[0, np.argsort(replica.rows.rank[0], kind="stable")])


def _replica(played: Played, replica: Replica, first_rank: int) -> tuple[Any, Floats, Floats]:
    """Ranks, moments and kinds of one replica."""
    closed = peak_memory(replica.rows, replica.priced)
    order = np.argsort(replica.rows.rank[0], kind="stable")
    kept = _kept_by_chunk(replica)
    most = (kept * _most_flying(replica)).sum(axis=1)
    always = closed.kinds_bytes[:, 0, order].T.copy()
    always[:, _ACTIVATIONS] -= most
    comes = always[:, [_LOSS, _TEMPORARIES]]
    always[:, [_LOSS, _TEMPORARIES]] = 0.0
    rank, when, change = _changes(played, first_rank, kept, comes, _at_loss(closed, order))
    begin = np.arange(played.pp)
    rank, when = np.concatenate([begin, rank]), np.concatenate([np.zeros(played.pp), when])
    change = np.concatenate([np.zeros((played.pp, 3)), change])
    ends = change.sum(axis=1) < 0.0
    ends[: played.pp] = True
    rows = np.lexsort((np.arange(len(rank)), ~ends, when, rank))
    rank, when, change = rank[rows], when[rows], change[rows]
    running = np.cumsum(change, axis=0)
    starts = np.searchsorted(rank, begin)
    before = np.where(starts[:, None] > 0, running[np.maximum(starts - 1, 0)], 0.0)
    running = running - before[rank]
    held = always[rank]
    for i, kind in enumerate((_ACTIVATIONS, _LOSS, _TEMPORARIES)):
        held[:, kind] = np.maximum(held[:, kind] + running[:, i], 0.0)
    return rank + first_rank, when, held


def _at_loss(closed: Memory, order: NDArray[Any]) -> NDArray[np.bool_]:
    """Ranks that are fullest at the loss."""
    return np.asarray(closed.moment[0, order] == LOSS)


def _changes(
    played: Played, first_rank: int, kept: Floats, comes: Floats, at_loss: NDArray[np.bool_]
) -> tuple[Any, Floats, Floats]:
    """Moments at which activations, loss or temporaries change: rank, time, shape (rows, 3)."""
    listed, step, times = played.program, played.step, played.times
    of_replica = (listed.rank >= first_rank) & (listed.rank < first_rank + played.pp)
    rank, kind, chunk = (
        listed.rank[of_replica] - first_rank,
        listed.kind[of_replica],
        listed.chunk[of_replica],
    )
    tasks = step.task_of_action[of_replica]
    start, end = times.start_s[tasks], times.end_s[tasks]
    pair = np.flatnonzero(listed.with_next[of_replica])
    start[pair + 1] = start[pair]
    ahead = kind == FORWARD
    frees = ~ahead & (kind != BACKWARD_INPUT)
    back = ~ahead & (kind != BACKWARD_WEIGHT)
    head = ahead & (listed.piece[of_replica] == listed.pieces - 1)
    works = np.where(at_loss[rank], head, back)
    none, size = np.zeros(len(rank)), kept[rank, chunk]
    working = comes[rank] * works[:, None]
    starts = np.column_stack([np.where(ahead, size, none), working])
    ends = np.column_stack([np.where(frees, -size, none), -working])
    change = np.concatenate([starts, ends])
    rows = np.flatnonzero(change.any(axis=1))
    return np.tile(rank, 2)[rows], np.concatenate([start, end])[rows], change[rows]


def _kept_by_chunk(replica: Replica) -> Floats:
    """Bytes that one micro-batch keeps in each chunk, shape (ranks, chunks)."""
    held, layouts = replica.held, replica.rows.layouts
    parts, covered, away = held.rows
    mode = saved_mode(layouts)
    total: Floats = np.zeros(parts.shape[:2])
    for part in range(parts.shape[2] - 1):
        count, again, gone = parts[:, :, part], covered[:, :, part], away[:, :, part]
        kept = kept_bytes(
            replica.priced.blocks,
            mode,
            replica.rows.block_key,
            part,
            flying=count,
            count=count,
            again=again,
        )
        stays = np.maximum(count - gone, 0.0) + np.minimum(gone, IN_TRANSIT)
        total = total + kept * np.where(gone > 0, stays / np.maximum(count, 1.0), 1.0)
    return total.reshape(held.parts.shape[:2])


def _most_flying(replica: Replica) -> Floats:
    """Micro-batches in flight at the closed form's fullest moment, shape (ranks, chunks)."""
    held = stages_of(replica.rows.layouts, replica.priced.workload)
    return held.in_flight.reshape(replica.held.parts.shape[:2]).astype(float)
