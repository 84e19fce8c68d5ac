"""Compiled unfolding of a program: tasks and edges in rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats, Int32s
from simulator.events.engine.compiled import short, within
from simulator.events.step.streams import COMPUTE, PIPELINE, STREAMS
from simulator.schedules.schedule import FORWARD, KINDS

SEND, EXTRA = len(KINDS), len(KINDS) + 1
"""Kinds of tasks beside those of KINDS: a send between pieces, a task that the caller added."""

_STREAMS = len(STREAMS)


class ActionTimes(NamedTuple):
    """What the actions of a program wait for, and how long they and their sends take."""

    awaited: NDArray[Any]
    """The action whose result each one takes; below 0: none."""
    seconds: Floats
    hop_s: Floats
    """Of a send across each boundary, forward and backward, shape (2, pieces - 1)."""


class Tasks(NamedTuple):
    """The tasks of a step, their predecessors in compressed rows, and which task is what."""

    duration: Floats
    stream: Int32s
    first: Int32s
    predecessor: Int32s
    numbers: Int32s
    """Rank, micro-batch, chunk and row of each task, shape (4, tasks)."""
    of_rank: NDArray[np.int8]
    """The stream of its rank that each task is on, an index into STREAMS."""
    kind: NDArray[np.int8]
    action: Int32s
    """The task of each action."""
    send: Int32s
    """The task that sends the result of each action; -1 none."""
    extra: Int32s
    """The task of each extra row."""


@short
def unfold(program, actions, extra, ranks):  # type: ignore[no-untyped-def]
    """Fill the columns and compressed rows of a step's tasks.

    Predecessors of a task stand in this order: its action or the awaited task, the extras that it
    waits for by number, further edges.
    """
    rank, kind, micro_batch, chunk, piece, with_next = program
    awaited, seconds, hop_s = actions
    action_at, send_at, extra_at, tasks = _number(rank, _sends(rank, awaited), extra, ranks)
    at = (action_at, send_at, extra_at, _starters(with_next, action_at))
    first = _row_starts(awaited, at, extra, tasks)
    predecessor = _rows(first, rank, awaited, at, extra)
    duration, columns, stream = (
        np.empty(tasks),
        np.empty((4, tasks), np.int32),
        np.empty_like(first[:-1]),
    )
    of_rank, what = np.empty(tasks, np.int8), np.empty(tasks, np.int8)
    for a in range(len(rank)):
        i = action_at[a]
        duration[i], of_rank[i], what[i] = seconds[a], COMPUTE, kind[a]
        _describe(columns, i, rank[a], micro_batch[a], chunk[a], a)
        if send_at[a] >= 0:
            j = send_at[a]
            duration[j] = hop_s[0, piece[a]] if kind[a] == FORWARD else hop_s[1, piece[a] - 1]
            of_rank[j], what[j] = PIPELINE, SEND
            _describe(columns, j, rank[a], micro_batch[a], chunk[a], a)
    for e in range(len(extra_at)):
        i = extra_at[e]
        duration[i], of_rank[i], what[i] = extra.seconds[e], extra.stream[e], EXTRA
        _describe(columns, i, extra.rank[e], -1, -1, e)
    for i in range(tasks):
        stream[i] = columns[0, i] * _STREAMS + of_rank[i]
    return Tasks(
        duration,
        stream,
        first,
        predecessor,
        columns,
        of_rank,
        what,
        action_at,
        send_at,
        extra_at,
    )


@within
def _describe(columns, task, rank, micro_batch, chunk, row):  # type: ignore[no-untyped-def]
    """Write one column of whole numbers."""
    columns[0, task], columns[1, task] = rank, micro_batch
    columns[2, task], columns[3, task] = chunk, row


@within
def _sends(rank, awaited):  # type: ignore[no-untyped-def]
    """Which actions have a result that another rank waits for."""
    sends = np.zeros(len(rank), np.bool_)
    for a in range(len(rank)):
        b = awaited[a]
        if b >= 0 and rank[b] != rank[a]:
            sends[b] = True
    return sends


@within
def _number(rank, sends, extra, ranks):  # type: ignore[no-untyped-def]
    """Number the tasks: of each rank its extras, actions and sends in the order of issue."""
    order, extra_rank, after = extra.order, extra.rank, extra.after
    n, extras = len(rank), len(order)
    action_at = np.empty(n, np.int32)
    send_at = np.full(n, -1, np.int32)
    extra_at = np.empty(extras, np.int32)
    at, e, a = 0, 0, 0
    for r in range(ranks):
        while e < extras and extra_rank[order[e]] == r and after[order[e]] < 0:
            extra_at[order[e]] = at
            at += 1
            e += 1
        while a < n and rank[a] == r:
            action_at[a] = at
            at += 1
            if sends[a]:
                send_at[a] = at
                at += 1
            while e < extras and after[order[e]] == a:
                extra_at[order[e]] = at
                at += 1
                e += 1
            a += 1
    return action_at, send_at, extra_at, at


@within
def _starters(with_next, action_at):  # type: ignore[no-untyped-def]
    """The task that must wait so that an action waits: of an overlapped pair the first one."""
    starter = action_at.copy()
    for a in range(1, len(starter)):
        if with_next[a - 1]:
            starter[a] = action_at[a - 1]
    return starter


@within
def _row_starts(awaited, at, extra, tasks):  # type: ignore[no-untyped-def]
    """Count the predecessors of every task and add them up."""
    _, send_at, extra_at, starter = at
    _, _, _, _, after, waits, before, edges = extra
    n = len(awaited)
    first = np.zeros(tasks + 1, np.int32)
    for a in range(n):
        if awaited[a] >= 0:
            first[starter[a] + 1] += 1
        if send_at[a] >= 0:
            first[send_at[a] + 1] += 1
    for e in range(len(extra_at)):
        if waits[e] and after[e] >= 0:
            first[extra_at[e] + 1] += 1
        if before[e] >= 0:
            first[starter[before[e]] + 1] += 1
    for k in range(len(edges)):
        later = edges[k, 1]
        first[(starter[later] if later < n else extra_at[later - n]) + 1] += 1
    for i in range(tasks):
        first[i + 1] += first[i]
    return first


@within
def _rows(first, rank, awaited, at, extra):  # type: ignore[no-untyped-def]
    """Fill the predecessors of every task."""
    action_at, send_at, extra_at, starter = at
    _, _, _, _, after, waits, before, edges = extra
    n, free = len(rank), first.copy()
    predecessor = np.empty(first[-1], np.int32)
    for a in range(n):
        b = awaited[a]
        if b >= 0:
            _put(predecessor, free, starter[a], send_at[b] if rank[b] != rank[a] else action_at[b])
        if send_at[a] >= 0:
            _put(predecessor, free, send_at[a], action_at[a])
    for e in range(len(extra_at)):
        if waits[e] and after[e] >= 0:
            _put(predecessor, free, extra_at[e], action_at[after[e]])
        if before[e] >= 0:
            _put(predecessor, free, starter[before[e]], extra_at[e])
    for k in range(len(edges)):
        earlier, later = edges[k]
        _put(
            predecessor,
            free,
            starter[later] if later < n else extra_at[later - n],
            action_at[earlier] if earlier < n else extra_at[earlier - n],
        )
    return predecessor


@within
def _put(predecessor, free, task, before):  # type: ignore[no-untyped-def]
    """Add a predecessor to a task's row."""
    predecessor[free[task]] = before
    free[task] += 1
