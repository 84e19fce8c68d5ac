"""Task graphs in arrays: what takes how long, on which stream, after what.

A stream runs its tasks one at a time, in the order of their numbers; a task starts when the one
before it in its stream has ended and each of its predecessors has ended `lag_s` ago. Nothing else
delays it: where tasks share resources, `engine.play` says how.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from simulator.arrays import Floats, Int32s
from simulator.compiled import short
from simulator.errors import ForeshardError, InputError
from simulator.records import dataclass

Names = Callable[[int], str]

MOST_STREAMS = 2**24
"""More stream numbers than this are a mistake: each one costs memory, used or not."""


class DeadlockError(ForeshardError):
    """Tasks that wait for one another: none of them ever starts.

    Parameters
    ----------
    message : str
        Which task waits for which.
    tasks : tuple of int
        The tasks of the circle, each waiting for the next one and the last for the first.
    """

    def __init__(self, message: str, tasks: tuple[int, ...]) -> None:
        self.tasks = tasks
        super().__init__(message)


class Columns(NamedTuple):
    """The columns of a :class:`TaskGraph`, as compiled code takes them."""

    duration: Floats
    stream: Int32s
    first: Int32s
    predecessor: Int32s
    lag: Floats
    """Empty where there are none."""


@dataclass(frozen=True, kw_only=True)
class TaskGraph:
    """Tasks, their streams and what each waits for, in compressed rows."""

    duration_s: Floats
    """Seconds that each task takes when nothing slows it, shape (tasks,)."""
    stream: Int32s
    """The stream of each task; tasks of one stream run one at a time, in the order of their index.
    A task that waits for no stream has one of its own."""
    first: Int32s
    """Predecessors of task i are ``predecessor[first[i]:first[i + 1]]``, shape (tasks + 1,)."""
    predecessor: Int32s
    """Tasks that must have ended before, shape (edges,)."""
    lag_s: Floats | None = None
    """Seconds between a predecessor's end and the earliest start, one per edge; None: none."""

    def __post_init__(self) -> None:
        """Bring the arrays to the types that compiled code takes."""
        for name in ("stream", "first", "predecessor"):
            object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name), np.int32))
        for name in ("duration_s", "lag_s"):
            if (given := getattr(self, name)) is not None:
                object.__setattr__(self, name, np.ascontiguousarray(given, np.float64))

    def __len__(self) -> int:
        return len(self.duration_s)

    def columns(self) -> Columns:
        """Every column, as compiled code takes them."""
        lag = np.empty(0) if self.lag_s is None else self.lag_s
        return Columns(self.duration_s, self.stream, self.first, self.predecessor, lag)


def task_graph(
    duration_s: ArrayLike, stream: ArrayLike, edges: ArrayLike = (), lag_s: ArrayLike | None = None
) -> TaskGraph:
    """Make a graph from a list of edges.

    Parameters
    ----------
    duration_s, stream : array_like
        Seconds and stream of each task.
    edges : array_like
        Pairs (earlier task, later task); the order of one task's predecessors is kept.
    lag_s : array_like, optional
        Seconds between the end of the earlier and the start of the later, one per edge.

    Examples
    --------
    >>> task_graph([1.0, 2.0], [0, 1], [(0, 1)]).first.tolist()
    [0, 0, 1]
    """
    duration = np.array(duration_s, np.float64)
    pairs = np.array(edges, dtype=np.int64).reshape(-1, 2)
    outside = (pairs < 0) | (pairs >= len(duration))
    if outside.any():
        raise InputError(f"edge {pairs[outside.any(axis=1)][0].tolist()} names no task")
    order = np.argsort(pairs[:, 1], kind="stable")
    counts = np.bincount(pairs[:, 1], minlength=len(duration))
    graph = TaskGraph(
        duration_s=duration,
        stream=np.array(stream, np.int32),
        first=np.concatenate([[0], np.cumsum(counts)]),
        predecessor=pairs[order, 0],
        lag_s=None if lag_s is None else np.asarray(lag_s, np.float64)[order],
    )
    check(graph)
    return graph


def numbered(task: int) -> str:
    """Call a task by its number, where nobody knows a better name."""
    return f"task {task}"


def check(graph: TaskGraph, names: Names = numbered) -> None:
    """Refuse arrays that are no task graph; `engine.longest_path` finds circles.

    Raises
    ------
    InputError
        A negative or infinite time, a number out of range, arrays of different lengths.
    """
    n, edges = len(graph.duration_s), len(graph.predecessor)
    if len(graph.stream) != n or len(graph.first) != n + 1:
        raise InputError(
            f"{n} durations need {n} streams and {n + 1} row starts, "
            f"got {len(graph.stream)} and {len(graph.first)}"
        )
    if graph.lag_s is not None and len(graph.lag_s) != edges:
        raise InputError(f"{edges} edges need as many lags, got {len(graph.lag_s)}")
    code, at = _fault(graph.columns(), MOST_STREAMS)
    if code:
        raise InputError(_worded(graph, code, at, names))


def _worded(graph: TaskGraph, code: int, at: int, names: Names) -> str:
    """What is wrong with task or edge `at`."""
    if code == 1:
        return f"{names(at)}: duration must be finite and not negative, got {graph.duration_s[at]}"
    if code == 2:
        return f"{names(at)}: stream must be from 0 to {MOST_STREAMS - 1}, got {graph.stream[at]}"
    if code == 3:
        return f"row starts must rise from 0 to {len(graph.predecessor)}, not so at row {at}"
    task = int(np.searchsorted(graph.first, at, side="right")) - 1
    if code == 4:
        return f"{names(task)}: waits for task {graph.predecessor[at]} of {len(graph)}"
    got: Any = None if graph.lag_s is None else graph.lag_s[at]
    return f"{names(task)}: lag must be finite and not negative, got {got}"


@short
def _fault(graph, most):  # type: ignore[no-untyped-def]
    """Find the first thing wrong: its kind (0: nothing) and where."""
    duration, stream, first, predecessor, lag = graph
    n, edges = len(duration), len(predecessor)
    if first[0] != 0 or first[n] != edges:
        return 3, n if first[0] == 0 else 0
    for i in range(n):
        if not 0.0 <= duration[i] < np.inf:
            return 1, i
        if not 0 <= stream[i] < most:
            return 2, i
        if first[i + 1] < first[i]:
            return 3, i
    for k in range(edges):
        if not 0 <= predecessor[k] < n:
            return 4, k
    for k in range(len(lag)):
        if not 0.0 <= lag[k] < np.inf:
            return 5, k
    return 0, 0
