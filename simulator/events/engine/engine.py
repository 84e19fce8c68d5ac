"""When every task of a graph runs: by the longest path to it, or played where tasks share.

Each stream stands at its first task that has not run; when what that task waits for has ended, it
runs and the stream goes on. A stream that must wait is noted at the one task that it waits for and
goes on when that task has ended, so that every task and every edge is looked at once.

`longest_path` does just that. `play` does it in the order of time, with an event queue, and
slows tasks down that take from the same resource. Where nothing is shared both give the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats, Int32s
from simulator.compiled import short, within
from simulator.errors import InputError
from simulator.events.engine.contention import (
    COUNTERS,
    ENTRY,
    RESOURCE,
    STREAM,
    TASK,
    Solving,
    run_events,
)
from simulator.events.engine.demands import Demands
from simulator.events.engine.demands import check as check_demands
from simulator.events.engine.fair_shares import Crossings, scratch
from simulator.events.engine.graph import DeadlockError, Names, TaskGraph, check, numbered
from simulator.records import dataclass


class _Sweep(NamedTuple):
    """What a sweep fills: when and after what each task runs, and where each stream stands."""

    start: Floats
    end: Floats
    cause: Int32s
    head: Int32s
    """The task at which each stream stands; -1 at its end."""
    edge: Int32s
    """The edge at which it waits."""
    clock: Floats
    """When it can go on."""
    why: Int32s
    """The task that said so; -1 none."""
    other: Int32s
    """The next stream that waits for the same task; -1 none."""
    ready: Int32s
    """Streams to look at."""
    waiting: Int32s
    """The first stream that waits for each task; -1 none."""
    following: Int32s
    """The task after each one in its stream; -1 none."""


@dataclass(frozen=True, kw_only=True)
class Times:
    """When each task ran."""

    start_s: Floats
    end_s: Floats
    cause: Int32s
    """The task whose end decided the start: of its stream or a predecessor; -1 none."""

    @property
    def makespan_s(self) -> float:
        """Seconds until the last task has ended."""
        return float(self.end_s.max()) if len(self.end_s) else 0.0


def longest_path(graph: TaskGraph, names: Names = numbered) -> Times:
    """Start every task as early as its stream and its predecessors allow.

    Parameters
    ----------
    graph : TaskGraph
    names : callable
        Names a task in an error message.

    Returns
    -------
    Times
        Of equally late predecessors the cause is the one in the stream, else the first listed.

    Raises
    ------
    InputError
        The arrays are no task graph.
    DeadlockError
        Some tasks wait for one another.

    Examples
    --------
    >>> from simulator.events.engine.graph import task_graph
    >>> times = longest_path(task_graph([1.0, 2.0, 4.0], [0, 0, 1], [(0, 2)]))
    >>> times.start_s.tolist(), times.makespan_s
    ([0.0, 1.0, 1.0], 5.0)
    """
    check(graph, names)
    n, streams = len(graph), int(graph.stream.max(initial=-1)) + 1
    sweep = _Sweep(
        start=np.empty(n),
        end=np.full(n, -1.0),
        cause=np.empty(n, np.int32),
        head=np.full(streams, -1, np.int32),
        edge=np.zeros(streams, np.int32),
        clock=np.zeros(streams),
        why=np.full(streams, -1, np.int32),
        other=np.full(streams, -1, np.int32),
        ready=np.arange(streams - 1, -1, -1, dtype=np.int32),
        waiting=np.full(n, -1, np.int32),
        following=np.empty(n, np.int32),
    )
    if _sweep(graph.columns(), sweep) < n:
        raise deadlock(graph, sweep.head, sweep.edge, names)
    return Times(start_s=sweep.start, end_s=sweep.end, cause=sweep.cause)


def play(graph: TaskGraph, demands: Demands, names: Names = numbered) -> Times:
    """Run every task in the order of time, at the rate that what it shares leaves to it.

    Parameters
    ----------
    graph : TaskGraph
        Its durations are not looked at: `demands.work` says how much there is to do.
    demands : Demands
    names : callable
        Names a task in an error message.

    Raises
    ------
    InputError
        The arrays are no task graph, or tasks hold for ever what others need.
    DeadlockError
        Some tasks wait for one another.

    Examples
    --------
    A product of 1 s on all compute units, beside a collective of 0.5 s that holds a quarter.

    >>> from simulator.events.engine.demands import demands
    >>> from simulator.events.engine.graph import task_graph
    >>> taken = demands([1.0, 0.5], [1.0], [(0, 0, 1.0), (1, 0, 0.25)], held=[False, True])
    >>> play(task_graph([1.0, 0.5], [0, 1]), taken).end_s.tolist()
    [1.125, 0.5]
    """
    check(graph, names)
    n = len(graph)
    if len(demands) != n:
        raise InputError(f"{n} tasks need as many demands, got {len(demands)}")
    check_demands(demands)
    task, stream = _records(graph, demands)
    resource, entry, solving = _sharing(demands)
    count = np.zeros(COUNTERS, np.int64)
    _, _, _, predecessor, lag = graph.columns()
    run_events(task, stream, resource, entry, predecessor, lag, solving, count)
    start, end = (np.ascontiguousarray(task[name][:n]) for name in ("start", "end"))
    if (end < 0.0).any():
        running = np.flatnonzero((start >= 0.0) & (end < 0.0))
        if len(running):
            raise InputError(_starved(demands, running, names))
        raise deadlock(graph, stream["head"], stream["edge"], names)
    return Times(start_s=start, end_s=end, cause=np.ascontiguousarray(task["cause"][:n]))


def _records(graph: TaskGraph, demands: Demands) -> tuple[NDArray[Any], NDArray[Any]]:
    """Tasks and streams before anything has run."""
    n, streams = len(graph), int(graph.stream.max(initial=-1)) + 1
    task, stream = np.zeros(n + 1, TASK), np.zeros(streams, STREAM)
    head, edge = np.full(streams, -1, np.int32), np.zeros(streams, np.int32)
    following = np.empty(n, np.int32)
    _link(graph.stream, graph.first, head, edge, following)
    stream["head"], stream["edge"], stream["why"], stream["other"] = head, edge, -1, -1
    task["first"], task["entry"] = graph.first, demands.first
    for name in ("start", "end", "waiting", "place", "cause"):
        task[name] = -1
    for name, column in (
        ("work", demands.work),
        ("limit", demands.limit),
        ("stream", graph.stream),
        ("following", following),
    ):
        task[name][:n] = column
    return task, stream


def _sharing(demands: Demands) -> tuple[NDArray[Any], NDArray[Any], Solving]:
    """Resources and entries before anything has run, and what rates are solved with."""
    n, resources = len(demands), len(demands.capacity)
    resource, entry = np.zeros(resources, RESOURCE), np.zeros(len(demands.resource) + 1, ENTRY)
    resource["capacity"], resource["top"] = demands.capacity, -1
    entry["task"][:-1] = np.repeat(np.arange(n), np.diff(demands.first))
    for name in ("amount", "resource", "held"):
        entry[name][:-1] = getattr(demands, name)
    grows = np.flatnonzero(~demands.held)
    owner = entry["task"][grows]
    counted = np.bincount(owner, minlength=n)
    solving = Solving(
        members=np.empty(n, np.int64),
        reached=np.empty(resources, np.int64),
        rate=np.empty(n),
        active=np.empty(n, np.int64),
        growing=Crossings(
            capacity=np.empty(resources),
            first=np.concatenate([[0], np.cumsum(counted)]).astype(np.int64),
            link=demands.resource[grows],
            share=demands.amount[grows] / demands.weight[owner],
            flows=np.ones(n),
            limit=demands.limit * demands.weight,
        ),
        scratch=scratch(resources, n, len(grows)),
        weight=demands.weight,
    )
    return resource, entry, solving


def _starved(demands: Demands, running: NDArray[Any], names: Names) -> str:
    """Word that every running task waits for what another one holds."""
    worded = []
    for task in running.tolist():
        own = range(demands.first[task], demands.first[task + 1])
        wanted = {int(demands.resource[k]) for k in own if not demands.held[k]}
        for other in running.tolist():
            held = range(demands.first[other], demands.first[other + 1])
            got = {int(demands.resource[k]) for k in held if demands.held[k]} & wanted
            if other != task and got:
                worded.append(
                    f"{names(task)} gets nothing of resource {min(got)}, which {names(other)} holds"
                )
    return "no running task goes on: " + "; ".join(worded)


def critical_path(times: Times) -> Int32s:
    """Tasks that decide when the last one ends, from first to last, following the causes.

    Examples
    --------
    >>> from simulator.events.engine.graph import task_graph
    >>> graph = task_graph([1.0, 2.0, 4.0], [0, 0, 1], [(0, 2)])
    >>> critical_path(longest_path(graph)).tolist()
    [0, 2]
    """
    if not len(times.end_s):
        return np.empty(0, np.int32)
    path = [int(np.argmax(times.end_s))]
    while (before := int(times.cause[path[-1]])) >= 0:
        path.append(before)
    return np.array(path[::-1], np.int32)


def deadlock(graph: TaskGraph, head: Int32s, edge: Int32s, names: Names) -> DeadlockError:
    """Word the circle in which waiting streams stand.

    Parameters
    ----------
    graph : TaskGraph
    head : ndarray
        The task at which each stream stands; -1 where it has none left.
    edge : ndarray
        The edge for which that task waits.
    """
    stream = int(np.flatnonzero(head >= 0)[0])
    seen: list[int] = []
    while stream not in seen:
        seen.append(stream)
        stream = int(graph.stream[graph.predecessor[edge[stream]]])
    circle = seen[seen.index(stream) :]
    tasks = [(int(head[s]), int(graph.predecessor[edge[s]])) for s in circle]
    worded = [f"{names(task)} waits for {names(awaited)}" for task, awaited in tasks]
    for at, (_, awaited) in enumerate(tasks):
        stands = tasks[(at + 1) % len(tasks)][0]
        if awaited != stands:
            worded[at] += f", which comes after {names(stands)}"
    return DeadlockError("deadlock: " + "; ".join(worded), tuple(task for task, _ in tasks))


@short
def _sweep(graph, sweep):  # type: ignore[no-untyped-def]
    """Run every stream as far as it goes; return how many tasks have run."""
    duration, stream, first, predecessor, lag = graph
    start, end, cause, head, edge, clock, why, other, ready, waiting, following = sweep
    lagged = len(lag) > 0
    _link(stream, first, head, edge, following)
    count, done = len(head), 0
    while count > 0:
        count -= 1
        s = ready[count]
        i, k, begin, reason = head[s], edge[s], clock[s], why[s]
        while i >= 0:
            last = first[i + 1]
            while k < last:
                p = predecessor[k]
                until = end[p]
                if until < 0.0:
                    other[s] = waiting[p]
                    waiting[p] = s
                    break
                if lagged:
                    until += lag[k]
                if until > begin:
                    begin, reason = until, p
                k += 1
            if k < last:
                break
            start[i], cause[i] = begin, reason
            begin += duration[i]
            end[i], reason = begin, i
            done += 1
            w = waiting[i]
            while w >= 0:
                ready[count] = w
                count += 1
                w = other[w]
            i = following[i]
            if i >= 0:
                k = first[i]
        head[s], edge[s], clock[s], why[s] = i, k, begin, reason
    return done


@within
def _link(stream, first, head, edge, following):  # type: ignore[no-untyped-def]
    """Find the first task of each stream, its first edge, and the next task after each one.

    `head` is -1 and `edge` 0 before.
    """
    for i in range(len(stream) - 1, -1, -1):
        following[i] = head[stream[i]]
        head[stream[i]] = i
    for s in range(len(head)):
        if head[s] >= 0:
            edge[s] = first[head[s]]
