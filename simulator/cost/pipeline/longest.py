"""The longest path through a schedule, for many schedules and many costs at once.

The makespan of passes in a fixed order is the maximum over paths through their graph
(``schedules/waits.py``), each a sum of passes. ``longest_paths`` finds the path that is
longest at given costs and returns what lies on it, so that layouts with nearly these costs read
their own makespan off it: a path that is slightly wrong is too short by less than costs differ,
times the share of the path that another one would replace.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Int32s
from simulator.records import dataclass
from simulator.schedules.waits import Waits

Floats = NDArray[Any]
"""Of single or double precision, as the costs are."""


@dataclass(frozen=True, slots=True)
class _Graphs:
    """Several graphs as one, by level; row number `len(before)` stands for "nothing"."""

    level_ends: list[int]
    graph: Int32s
    before: Int32s
    awaited: Int32s
    hops: NDArray[np.int8]
    operation: Int32s
    paired: bool


def longest_paths(
    graphs: Sequence[Waits], seconds: Floats, hop_s: Floats
) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
    """Count what lies on the longest path of every graph at every set of costs.

    Parameters
    ----------
    graphs : sequence of Waits
    seconds : ndarray
        Seconds of every operation, shape (graphs, operations, sets of costs).
    hop_s : ndarray
        From the end of a pass until another rank has its result, shape (graphs, sets of costs).

    Returns
    -------
    ndarray
        How often every operation is on the path, shape (graphs, sets, operations).
    ndarray
        Sends on the path, shape (graphs, sets).
    ndarray
        How long it lasts, of the same shape.
    """
    all_ = _joined(graphs)
    end = _ends(all_, seconds, hop_s)
    start = _last(all_, end, len(graphs))
    span_s = end[start, np.arange(end.shape[1])]
    return *_walk(all_, end, start, hop_s, seconds.shape), span_s


def longest_s(graphs: Sequence[Waits], seconds: Floats, hop_s: Floats) -> Floats:
    """Give only how long the paths last, shape (graphs, sets); parameters as before."""
    all_ = _joined(graphs)
    end = _ends(all_, seconds, hop_s)
    return np.asarray(end[_last(all_, end, len(graphs)), np.arange(end.shape[1])])


def _joined(graphs: Sequence[Waits]) -> _Graphs:
    """Put the rows of several graphs together, level by level."""
    sizes = np.array([len(graph) for graph in graphs])
    starts, total = np.r_[0, np.cumsum(sizes)[:-1]], int(sizes.sum())
    deep = max(len(graph.level_ends) for graph in graphs)
    level = np.concatenate(
        [np.repeat(np.arange(len(x.level_ends)), np.diff(x.level_ends, prepend=0)) for x in graphs]
    )
    order = np.argsort(level, kind="stable")
    place = np.empty(total + 1, dtype=np.int32)
    place[order], place[total] = np.arange(total), total

    def rows(columns: list[Int32s]) -> Int32s:
        moved = [
            np.where(x == size, total, x + start)
            for x, size, start in zip(columns, sizes, starts, strict=True)
        ]
        return np.ascontiguousarray(place[np.concatenate(moved, axis=-1)[..., order]])

    return _Graphs(
        level_ends=np.cumsum(np.bincount(level, minlength=deep)).tolist(),
        graph=np.repeat(np.arange(len(graphs), dtype=np.int32), sizes)[order],
        before=rows([graph.before for graph in graphs]),
        awaited=rows([graph.awaited for graph in graphs]),
        hops=np.concatenate([graph.hops for graph in graphs], axis=1)[:, order],
        operation=np.concatenate([graph.operation for graph in graphs], axis=1)[:, order],
        paired=any(bool((graph.operation[1] >= 0).any()) for graph in graphs),
    )


def _ends(all_: _Graphs, seconds: Floats, hop_s: Floats) -> Floats:
    """When each pass ends, shape (rows + 1, sets); before the first one it is 0."""
    node_s = seconds[all_.graph, all_.operation[0]]
    waits = [all_.hops[0][:, None] * hop_s[all_.graph]]
    if all_.paired:
        second = seconds[all_.graph, all_.operation[1]]
        node_s = node_s + np.where((all_.operation[1] >= 0)[:, None], second, np.float32(0.0))
        waits.append(all_.hops[1][:, None] * hop_s[all_.graph])
    end, first = np.zeros((len(node_s) + 1, seconds.shape[2]), dtype=node_s.dtype), 0
    for last in all_.level_ends:
        here = slice(first, last)
        begin = end[all_.before[here]]
        for awaited, wait in zip(all_.awaited, waits, strict=False):
            begin = np.maximum(begin, end[awaited[here]] + wait[here])
        end[here] = begin + node_s[here]
        first = last
    return end


def _walk(
    all_: _Graphs, end: Floats, start: Int32s, hop_s: Floats, shape: tuple[int, ...]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Go back from the last end of every graph and set to what each pass waited for."""
    graphs, operations, sets = shape
    nothing = len(all_.before)
    end[nothing] = -1.0
    path = np.arange(graphs * sets)
    at, which, hop_s = start.ravel(), path % sets, hop_s.ravel()
    hops = np.zeros(len(path), dtype=np.int64)
    nodes, paths = [], []
    while len(at):
        nodes.append(at)
        paths.append(path)
        back = all_.before[at]
        latest, hopped = end[back, which], np.zeros(len(at), dtype=np.int64)
        for awaited, away in zip(all_.awaited[: 1 + all_.paired], all_.hops, strict=False):
            other, far = awaited[at], away[at]
            moment = end[other, which] + far * hop_s[path]
            later = moment > latest
            back, latest = np.where(later, other, back), np.where(later, moment, latest)
            hopped = np.where(later, far, hopped)
        hops[path] += hopped
        going = back < nothing
        at, path, which = back[going], path[going], which[going]
    node, owner = np.concatenate(nodes), np.concatenate(paths)
    count = np.bincount(
        owner * operations + all_.operation[0][node], minlength=graphs * sets * operations
    )
    if all_.paired:
        some = all_.operation[1][node] >= 0
        count += np.bincount(
            owner[some] * operations + all_.operation[1][node[some]], minlength=len(count)
        )
    return count.reshape(graphs, sets, operations), hops.reshape(graphs, sets)


def _last(all_: _Graphs, end: Floats, graphs: int) -> Int32s:
    """The pass of every graph that ends last, shape (graphs, sets)."""
    order = np.argsort(all_.graph, kind="stable").astype(np.int32)
    firsts = np.searchsorted(all_.graph[order], np.arange(1, graphs))
    last = np.empty((graphs, end.shape[1]), dtype=np.int32)
    for graph, rows in enumerate(np.split(order, firsts)):
        last[graph] = rows[end[rows].argmax(axis=0)]
    return last
