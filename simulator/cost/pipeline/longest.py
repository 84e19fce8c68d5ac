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

from simulator.records import dataclass
from simulator.schedules.waits import Waits

Floats = NDArray[Any]
"""Of single or double precision, as the costs are."""


@dataclass(frozen=True, slots=True)
class _Graphs:
    """Several graphs beside each other, the deepest first: a cell per level and rank of each.

    Before the first level there are two more: of the first cell, which ends at 0, and of those
    that end before anything does, so that what ends at 0 is still waited for.
    """

    level_counts: list[int]
    """Levels of each graph."""
    ends: list[int]
    """Last rank of each graph, plus one."""
    operation: NDArray[np.int64]
    """What runs in each cell, shape (1 or 2, cells): row of the costs of all graphs."""
    awaited: NDArray[np.int64]
    """Cells whose results are taken, of the same shape."""
    hops: NDArray[np.int8]
    """Sends that end before those are here."""

    @property
    def ranks(self) -> int:
        """Of all graphs."""
        return self.ends[-1]


def longest_paths(
    graphs: Sequence[Waits],
    seconds: Floats,
    hop_s: Floats,
    timed: Sequence[tuple[int, Waits]] = (),
) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
    """Count what lies on the longest path of every graph at every set of costs.

    Parameters
    ----------
    graphs : sequence of Waits
    seconds : ndarray
        Seconds of every operation, shape (graphs, operations, sets of costs).
    hop_s : ndarray
        From the end of a pass until another rank has its result, shape (graphs, sets of costs).
    timed : sequence of tuple
        More graphs, of which only the third result is asked for, and whose costs each has.

    Returns
    -------
    ndarray
        How often every operation is on the path, shape (graphs, sets, operations).
    ndarray
        Sends on the path, shape (graphs, sets).
    ndarray
        How long it lasts, of those and of the further graphs.
    """
    every = [*enumerate(graphs), *timed]
    order = sorted(range(len(every)), key=lambda i: -every[i][1].operation.shape[1])
    place = np.argsort(order)
    costs_of = [every[i][0] for i in order]
    joined = _joined([every[i][1] for i in order], costs_of, seconds.shape[1])
    table = np.pad(seconds, ((0, 0), (0, 1), (0, 0))).reshape(-1, seconds.shape[2])
    end, later = _ends(joined, table, hop_s[costs_of])
    span_s, start = _last(joined, end)
    walked = place[: len(graphs)]
    return *_walk(joined, later, start[walked], seconds.shape), span_s[place]


def _joined(graphs: list[Waits], costs_of: list[int], operations: int) -> _Graphs:
    """Put graphs beside each other."""
    paired = max(len(graph.operation) for graph in graphs)
    ends = np.cumsum([graph.operation.shape[2] for graph in graphs]).tolist()
    levels, ranks = graphs[0].operation.shape[1], ends[-1]
    operation = np.full((paired, levels + 2, ranks), operations)
    awaited = np.full((paired, levels + 2, ranks), ranks)
    hops = np.zeros((paired, levels + 2, ranks), dtype=np.int8)
    for graph, costs, end in zip(graphs, costs_of, ends, strict=True):
        kinds, deep, wide = graph.operation.shape
        here = slice(kinds), slice(2, 2 + deep), slice(end - wide, end)
        runs = graph.operation >= 0
        operation[here] = np.where(runs, graph.operation, operations)
        operation[..., end - wide : end] += costs * (operations + 1)
        awaited[here] = graph.awaited + (graph.awaited // wide) * (ranks - wide)
        awaited[here] += 2 * ranks + end - wide
        awaited[0, 2, end - wide : end][runs[0, 0]] = 0
        hops[here] = graph.hops
    return _Graphs(
        level_counts=[graph.operation.shape[1] for graph in graphs],
        ends=ends,
        operation=operation.reshape(paired, -1),
        awaited=awaited.reshape(paired, -1),
        hops=hops.reshape(paired, -1),
    )


def _ends(joined: _Graphs, table: Floats, hop_s: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """When each cell ends, shape (levels + 2, ranks, sets), and for which of the awaited it waits.

    A cell in which nothing runs ends with the one before.
    """
    ranks, sets = joined.ranks, table.shape[1]
    most_hops = int(joined.hops.max()) if hop_s.any() else 0
    cells = joined.operation.shape[1]
    # results as they are on their own rank, and after one or two sends
    sent = np.empty((1 + most_hops, cells, sets), dtype=table.dtype)
    np.take(table, joined.operation[0], axis=0, out=sent[0], mode="clip")
    for operation in joined.operation[1:]:
        sent[0] += table.take(operation, axis=0)
    sent[0, :ranks], sent[:, ranks : 2 * ranks] = 0.0, -1.0
    source = joined.awaited + joined.hops * np.int64(cells) if most_hops else joined.awaited
    later = np.zeros((len(source), cells, sets), dtype=np.bool_)
    flat, shape = sent.reshape(-1, sets), (-1, ranks, sets)
    planes, marks = [x.reshape(shape) for x in sent], [x.reshape(shape) for x in later]
    source = source.reshape(len(source), -1, ranks)
    wide = np.repeat(hop_s, np.diff(joined.ends, prepend=0), axis=0)
    buffers = np.empty((len(source), ranks, sets), dtype=table.dtype)
    first, going = 2, len(joined.ends)
    before = planes[0][1]
    while going:
        last, width = 2 + joined.level_counts[going - 1], joined.ends[going - 1]
        begins, before = [x[:width] for x in buffers], before[:width]
        away = [(k + 1) * wide[:width] for k in range(most_hops)]
        levels = zip(
            planes[0][first:last, :width],
            zip(*(x[first:last, :width] for x in source), strict=True),
            zip(*(x[first:last, :width] for x in marks), strict=True),
            zip(*(x[first:last, :width] for x in planes[1:]), strict=True)
            if most_hops
            else [()] * (last - first),
            strict=True,
        )
        for end, waits, waited, sends in levels:
            for cell, mark, begin in zip(waits, waited, begins, strict=True):
                flat.take(cell, 0, begin, "clip")
                np.greater(begin, before, mark)
                np.maximum(begin, before, out=begin)
                before = begin
            np.add(before, end, end)
            for send, hop in zip(sends, away, strict=True):
                np.add(end, hop, send)
            before = end
        first = last
        while going and 2 + joined.level_counts[going - 1] == last:
            going -= 1
    return planes[0], later


def _walk(
    joined: _Graphs, later: NDArray[np.bool_], start: NDArray[np.int64], shape: tuple[int, ...]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Go back from the last end of every graph and set to what each cell waited for."""
    graphs, operations, sets = shape
    ranks = joined.ranks
    column = np.tile(np.arange(sets), graphs)
    cells = np.zeros((joined.level_counts[0] + 2, graphs * sets), dtype=np.int64)
    marks = np.zeros((len(cells), len(later), graphs * sets), dtype=np.bool_)
    cells[0] = start.ravel()
    spot, other = np.empty_like(column), np.empty_like(column)
    stride, down = np.full_like(column, sets), np.full_like(column, ranks)
    tables = list(zip((x.reshape(-1) for x in later), joined.awaited, strict=True))
    # cells below 0 are read as the first one, in which nothing runs
    for step, (here, back, waited) in enumerate(zip(cells, cells[1:], marks, strict=False)):
        np.multiply(here, stride, spot)
        np.add(spot, column, spot)
        np.subtract(here, down, back)
        for (waits, awaited), mark in zip(tables, waited, strict=True):
            waits.take(spot, None, mark, "clip")
            awaited.take(here, None, other, "clip")
            np.copyto(back, other, where=mark)
        if step % 32 == 0 and back.max() < 2 * ranks:
            cells, marks = cells[: step + 1], marks[: step + 1]
            break
    length, paths = graphs * sets * (operations + 1), np.arange(graphs * sets)
    # rows of costs of a graph become rows of the path
    moved = (paths - paths // sets) * (operations + 1)
    hops = np.zeros(cells.shape, dtype=np.int8)
    for sends, mark in zip(joined.hops, np.moveaxis(marks, 1, 0), strict=True):
        np.copyto(hops, sends.take(cells, mode="clip"), where=mark)
    what = [operation.take(cells, mode="clip") + moved for operation in joined.operation]
    count = np.bincount(np.concatenate(what, axis=None), minlength=length)
    return count.reshape(graphs, sets, -1)[..., :-1], hops.sum(axis=0).reshape(graphs, sets)


def _last(joined: _Graphs, end: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """How long every graph lasts, and the first of its cells that ends then: (graphs, sets)."""
    starts, lane = [0, *joined.ends[:-1]], np.arange(joined.ranks)
    depth = np.array(joined.level_counts) + 1
    tail = np.repeat(depth, np.diff(joined.ends, prepend=0))
    span_s = np.maximum.reduceat(end[tail, lane], starts, axis=0)
    level, lasts = np.repeat(depth[:, None], end.shape[2], axis=1), np.ones(1, dtype=np.bool_)
    while lasts.any():  # passes that cost nothing end with the one before
        tail = np.maximum(tail - 1, 1)
        lasts = np.maximum.reduceat(end[tail, lane], starts, axis=0) == span_s
        level -= lasts
    cells, column = np.empty_like(level), np.arange(end.shape[2])[:, None]
    for graph, (first, last) in enumerate(zip(starts, joined.ends, strict=True)):
        ends = end[level[graph][:, None], np.arange(first, last), column]
        rank = (ends == span_s[graph][:, None]).argmax(axis=1)
        cells[graph] = level[graph] * joined.ranks + first + rank
    return span_s, cells
