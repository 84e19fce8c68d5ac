"""Compiled unfolding of a program: tasks and edges in rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats, Int32s
from simulator.compiled import short, within
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


class _Places(NamedTuple):
    """Where the tasks of actions and extra rows stand."""

    action: Int32s
    send: Int32s
    """-1 none."""
    extra: Int32s
    starter: Int32s
    """The task that must wait so that an action waits: of an overlapped pair the first one."""


def unfold(program: Any, actions: ActionTimes, extra: Any, ranks: int) -> Tasks:
    """Make the columns and compressed rows of a step's tasks.

    Predecessors of a task stand in this order: its action or the awaited task, the extras that it
    waits for by number, further edges.
    """
    n, extras = len(program.rank), len(extra.order)
    at = _Places(
        action=np.empty(n, np.int32),
        send=np.full(n, -1, np.int32),
        extra=np.empty(extras, np.int32),
        starter=np.empty(n, np.int32),
    )
    rows = np.zeros(2 * n + extras + 1, np.int32)
    tasks = _number(program, actions.awaited, extra, ranks, at, rows)
    first = rows[: tasks + 1].copy()
    made = Tasks(
        duration=np.empty(tasks),
        stream=np.empty(tasks, np.int32),
        first=first,
        predecessor=np.empty(first[-1], np.int32),
        numbers=np.empty((4, tasks), np.int32),
        of_rank=np.empty(tasks, np.int8),
        kind=np.empty(tasks, np.int8),
        action=at.action,
        send=at.send,
        extra=at.extra,
    )
    _describe(program, actions, extra, made)
    _fill(program.rank, actions.awaited, extra, at, made, rows)
    return made


@short
def _number(program, awaited, extra, ranks, at, first):  # type: ignore[no-untyped-def]
    """Number the tasks of each rank in the order of issue, and count their predecessors.

    `at.send` is -1 and `first` 0 before.
    """
    rank, with_next = program.rank, program.with_next
    for a in range(len(rank)):
        b = awaited[a]
        if b >= 0 and rank[b] != rank[a]:
            at.send[b] = 0
    tasks = _place(rank, extra, ranks, at)
    for a in range(len(rank)):
        at.starter[a] = at.action[a]
        if a > 0 and with_next[a - 1]:
            at.starter[a] = at.action[a - 1]
    _row_starts(awaited, at, extra, tasks, first)
    return tasks


@within
def _place(rank, extra, ranks, at):  # type: ignore[no-untyped-def]
    """Number the tasks: of each rank its extras, actions and sends; return how many."""
    order, extra_rank, after = extra.order, extra.rank, extra.after
    n, extras = len(rank), len(order)
    task, e, a = 0, 0, 0
    for r in range(ranks):
        while e < extras and extra_rank[order[e]] == r and after[order[e]] < 0:
            at.extra[order[e]] = task
            task += 1
            e += 1
        while a < n and rank[a] == r:
            at.action[a] = task
            task += 1
            if at.send[a] >= 0:
                at.send[a] = task
                task += 1
            while e < extras and after[order[e]] == a:
                at.extra[order[e]] = task
                task += 1
                e += 1
            a += 1
    return task


@within
def _row_starts(awaited, at, extra, tasks, first):  # type: ignore[no-untyped-def]
    """Count the predecessors of every task and add them up."""
    _, _, _, _, after, waits, before, edges = extra
    n = len(awaited)
    for a in range(n):
        if awaited[a] >= 0:
            first[at.starter[a] + 1] += 1
        if at.send[a] >= 0:
            first[at.send[a] + 1] += 1
    for e in range(len(at.extra)):
        if waits[e] and after[e] >= 0:
            first[at.extra[e] + 1] += 1
        if before[e] >= 0:
            first[at.starter[before[e]] + 1] += 1
    for k in range(len(edges)):
        later = edges[k, 1]
        first[(at.starter[later] if later < n else at.extra[later - n]) + 1] += 1
    for i in range(tasks):
        first[i + 1] += first[i]


@short
def _describe(program, actions, extra, made):  # type: ignore[no-untyped-def]
    """Write how long every task takes, on which stream, and what it is."""
    rank, kind, micro_batch, chunk, piece, _ = program
    _, seconds, hop_s = actions
    duration, stream, _, _, numbers, of_rank, what, action_at, send_at, extra_at = made
    for a in range(len(rank)):
        i = action_at[a]
        duration[i], of_rank[i], what[i] = seconds[a], COMPUTE, kind[a]
        _name(numbers, i, rank[a], micro_batch[a], chunk[a], a)
        if send_at[a] >= 0:
            j = send_at[a]
            duration[j] = hop_s[0, piece[a]] if kind[a] == FORWARD else hop_s[1, piece[a] - 1]
            of_rank[j], what[j] = PIPELINE, SEND
            _name(numbers, j, rank[a], micro_batch[a], chunk[a], a)
    for e in range(len(extra_at)):
        i = extra_at[e]
        duration[i], of_rank[i], what[i] = extra.seconds[e], extra.stream[e], EXTRA
        _name(numbers, i, extra.rank[e], -1, -1, e)
    for i in range(len(stream)):
        stream[i] = numbers[0, i] * _STREAMS + of_rank[i]


@within
def _name(numbers, task, rank, micro_batch, chunk, row):  # type: ignore[no-untyped-def]
    """Write one column of whole numbers."""
    numbers[0, task], numbers[1, task] = rank, micro_batch
    numbers[2, task], numbers[3, task] = chunk, row


@short
def _fill(rank, awaited, extra, at, made, free):  # type: ignore[no-untyped-def]
    """Fill the predecessors of every task; `free` has where each one's row starts."""
    action_at, send_at, extra_at, starter = at
    _, _, _, _, after, waits, before, edges = extra
    n, predecessor = len(rank), made.predecessor
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
        earlier, later = edges[k, 0], edges[k, 1]
        _put(
            predecessor,
            free,
            starter[later] if later < n else extra_at[later - n],
            action_at[earlier] if earlier < n else extra_at[earlier - n],
        )


@within
def _put(predecessor, free, task, before):  # type: ignore[no-untyped-def]
    """Add a predecessor to a task's row."""
    predecessor[free[task]] = before
    free[task] += 1
