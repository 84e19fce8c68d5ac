"""Memory over time: what the passes of a played step keep, on top of what is always there.

A chunk keeps a micro-batch's activations from the start of its forward pass until the backward
pass that makes its weight gradients has ended; temporaries of the backward pass, or the loss where
that is the fullest moment, come and go with their pass. Everything else (states, workspaces,
communicators, what the allocator has reserved) stays. Bytes are those of the closed form
(``cost/memory/peak.py``); only when they are held follows from the events.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.arrays import Floats
from simulator.cost.memory.moments import LOSS
from simulator.cost.memory.peak import IN_TRANSIT, kept_bytes, peak_memory, saved_mode
from simulator.cost.memory.rank_tensors import stages_of
from simulator.events.step.play import Played, Replica
from simulator.events.step.timeline import MEMORY_KINDS, MemoryCurve
from simulator.schedules.schedule import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD

_ACTIVATIONS, _LOSS, _TEMPORARIES = (
    MEMORY_KINDS.index(x) for x in ("activations", "loss", "temporaries")
)


def memory_over_time(played: Played) -> Iterator[MemoryCurve]:
    """Follow the memory of every simulated rank through a step, one rank after the other."""
    for i, replica in enumerate(played.replicas):
        tightest = tightest_sources(replica)
        for source in {id(x): x for x in tightest}.values():
            for stage, (when, held) in enumerate(_curves(played, source, i * played.pp)):
                if tightest[stage] is source:
                    rank = np.full(len(when), i * played.pp + stage, np.int32)
                    yield MemoryCurve(rank=rank, time_s=when, kinds_bytes=held)


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


def _curves(played: Played, replica: Replica, first_rank: int) -> Iterator[tuple[Floats, Floats]]:
    """Moments and kinds of each rank of one replica."""
    closed = peak_memory(replica.rows, replica.priced)
    order = np.argsort(replica.rows.rank[0], kind="stable")
    kept = _kept_by_chunk(replica)
    most = (kept * _most_flying(replica)).sum(axis=1)
    always = closed.kinds_bytes[:, 0, order].T.copy()
    always[:, _ACTIVATIONS] -= most
    comes = always[:, [_LOSS, _TEMPORARIES]]
    always[:, [_LOSS, _TEMPORARIES]] = 0.0
    at_loss = closed.moment[0, order] == LOSS
    before = np.zeros((1, 3))  # sums go on from rank to rank: how they are rounded is of the step
    for stage in range(played.pp):
        rank = first_rank + stage
        when, change = _changes(played, rank, kept[stage], comes[stage], bool(at_loss[stage]))
        ends = change.sum(axis=1) < 0.0
        ends[0] = True
        rows = np.lexsort((~ends, when))
        running = np.cumsum(np.concatenate([before, change[rows]]), axis=0)
        held = np.tile(always[stage], (len(rows), 1))
        for i, kind in enumerate((_ACTIVATIONS, _LOSS, _TEMPORARIES)):
            change_so_far = running[1:, i] - before[0, i]
            held[:, kind] = np.maximum(held[:, kind] + change_so_far, 0.0)
        before = running[-1:]
        yield when[rows], held


def _changes(
    played: Played, rank: int, kept: Floats, comes: Floats, at_loss: bool
) -> tuple[Floats, Floats]:
    """Moments at which activations, loss or temporaries of a rank change, the first with nothing.

    Moments and, shape (rows, 3), changes; `kept` by chunk, `comes` loss and temporaries.
    """
    listed, step, times = played.program, played.step, played.times
    actions = slice(*np.searchsorted(listed.rank, [rank, rank + 1]))
    kind, tasks = listed.kind[actions], step.task_of_action[actions]
    start, end = times.start_s[tasks], times.end_s[tasks]
    pair = np.flatnonzero(listed.with_next[actions])
    start[pair + 1] = start[pair]
    ahead = kind == FORWARD
    frees = ~ahead & (kind != BACKWARD_INPUT)
    back = ~ahead & (kind != BACKWARD_WEIGHT)
    head = ahead & (listed.piece[actions] == listed.pieces - 1)
    size = kept[listed.chunk[actions]]
    working = comes * (head if at_loss else back)[:, None]
    starts = np.column_stack([np.where(ahead, size, 0.0), working])
    ends = np.column_stack([np.where(frees, -size, 0.0), -working])
    change = np.concatenate([starts, ends])
    rows = np.flatnonzero(change.any(axis=1))
    when = np.concatenate([[0.0], np.concatenate([start, end])[rows]])
    return when, np.concatenate([np.zeros((1, 3)), change[rows]])


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
