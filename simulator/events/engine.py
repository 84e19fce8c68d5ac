"""When every task of a graph runs: the longest path to it, where streams keep their order.

Each stream stands at its first task that has not run; when what that task waits for has ended, it
runs and the stream goes on. A stream that must wait is noted at the one task that it waits for and
goes on when that task has ended, so that every task and every edge is looked at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simulator.events.graph import DeadlockError, Names, TaskGraph, check, lags, numbered

__all__ = ["Times", "critical_path", "longest_path"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class Times:
    """When each task ran."""

    start_s: Floats
    end_s: Floats
    cause: Ints
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
    >>> from simulator.events.graph import task_graph
    >>> times = longest_path(task_graph([1.0, 2.0, 4.0], [0, 0, 1], [(0, 2)]))
    >>> times.start_s.tolist(), times.makespan_s
    ([0.0, 1.0, 1.0], 5.0)
    """
    check(graph, names)
    n = len(graph)
    start, end = np.empty(n), np.empty(n)
    cause, streams = np.empty(n, np.int32), int(graph.stream.max(initial=-1)) + 1
    head = np.empty(streams, np.int32)
    edge = np.empty(streams, np.int32)
    done = _sweep(
        graph.duration_s, graph.stream, graph.first, graph.predecessor, lags(graph),
        start, end, cause, head, edge,
    )  # fmt: skip
    if done < n:
        raise deadlock(graph, head, edge, names)
    return Times(start_s=start, end_s=end, cause=cause)


def critical_path(times: Times) -> Ints:
    """Tasks that decide when the last one ends, from first to last, following the causes.

    Examples
    --------
    >>> from simulator.events.graph import task_graph
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


def deadlock(graph: TaskGraph, head: Ints, edge: Ints, names: Names) -> DeadlockError:
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


@njit(cache=True)
def _sweep(  # type: ignore[no-untyped-def]
    duration, stream, first, predecessor, lag, start, end, cause, head, edge
):
    """Run every stream as far as it goes; return how many tasks have run.

    head[s] is the task at which stream s stands, -1 at its end; edge[s] the edge it waits at.
    """
    n, streams, lagged = len(duration), len(head), len(lag) > 0
    following = np.empty(n, np.int32)
    head[:] = -1
    for i in range(n - 1, -1, -1):
        s = stream[i]
        following[i] = head[s]
        head[s] = i
        end[i] = -1.0
    # streams that wait for a task: the first of them, and after each the next one
    waiting = np.full(n, -1, np.int32)
    other = np.full(streams, -1, np.int32)
    clock = np.zeros(streams)
    why = np.full(streams, -1, np.int32)
    ready = np.arange(streams - 1, -1, -1).astype(np.int32)
    for s in range(streams):
        edge[s] = first[head[s]] if head[s] >= 0 else 0
    count, done = streams, 0
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
