"""The longest path through a schedule, for many schedules and many costs at once.

The makespan of passes in a fixed order is the maximum over paths through their graph
(``schedules/waits.py``), each a sum of passes. ``longest_paths`` finds the path that is
longest at given costs and returns what lies on it, so that layouts with nearly these costs read
their own makespan off it: a path that is slightly wrong is too short by less than costs differ,
times the share of the path that another one would replace.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Int32s, Ints
from simulator.compiled import compiled_or, within
from simulator.schedules.waits import Waits

Floats = NDArray[Any]
"""Of single or double precision, as the costs are."""


class _Graphs(NamedTuple):
    """Several graphs one after the other, the deepest first: a cell per level and rank of each.

    Before the first level of each there are two more: of a cell that ends at 0, and of those that
    end before anything does, so that what ends at 0 is still waited for.
    """

    levels: Ints
    """Of each graph, the first two included."""
    ranks: Ints
    costs: Ints
    """Whose costs each has."""
    place: Ints
    """Where each was asked for."""
    operation: Ints
    """What runs in each cell, shape (1 or 2, cells of all graphs): row of the costs of all."""
    awaited: Ints
    """Cells whose results are taken, of the same shape: their number in the graph."""
    hops: NDArray[np.int8]
    """Sends that end before those are here."""


_LANE = 16
"""Sets of costs at the least that machine code plays beside each other: a line of the cache."""

_NEAR = 1 << 17
"""Ends of passes that stay near the processor: so many are written before others are begun."""


class LongestPaths(NamedTuple):
    """What lies on the longest path of every graph at every set of costs."""

    counts: Int32s
    """How often every operation is on the path, shape (graphs, sets, operations)."""
    sends: Ints
    """Sends on the path, shape (graphs, sets)."""
    span_s: Floats
    """How long it lasts, of those and of further graphs."""


def longest_paths(
    graphs: Sequence[Waits],
    seconds: Floats,
    hop_s: Floats,
    timed: Sequence[tuple[int, Waits]] = (),
) -> LongestPaths:
    """Count what lies on the longest path of every graph at every set of costs.

    Parameters
    ----------
    graphs : sequence of Waits
    seconds : ndarray
        Seconds of every operation and, last, of none, which takes none: shape (graphs, operations +
        1, sets of costs).
    hop_s : ndarray
        From the end of a pass until another rank has its result, shape (graphs, sets of costs).
    timed : sequence of tuple
        More graphs, of which only the span is asked for, and whose costs each has.
    """
    every = [*enumerate(graphs), *timed]
    place = sorted(range(len(every)), key=lambda i: -every[i][1].operation.shape[1])
    rows, sets = seconds.shape[1:]
    joined = _joined([every[i] for i in place], place, rows)
    table = seconds.reshape(-1, sets)
    hops_s = np.stack([0 * hop_s, hop_s, 2 * hop_s], axis=1)
    cells = joined.levels * joined.ranks
    ends = np.empty((cells * np.maximum(_LANE, _NEAR // cells)).max(), dtype=table.dtype)
    paths = LongestPaths(
        counts=np.zeros((len(graphs), sets, rows), dtype=np.int32),
        sends=np.zeros((len(graphs), sets), dtype=np.int64),
        span_s=np.empty((len(every), sets), dtype=table.dtype),
    )
    _played(joined, table, hops_s, ends, paths)
    return paths._replace(counts=paths.counts[..., :-1])


def _joined(graphs: list[tuple[int, Waits]], place: list[int], rows: int) -> _Graphs:
    """Put graphs, each with the number of its costs, one after the other; costs have `rows`."""
    paired = max(len(graph.operation) for _, graph in graphs)
    levels = np.array([2 + graph.operation.shape[1] for _, graph in graphs])
    ranks = np.array([graph.operation.shape[2] for _, graph in graphs])
    cells = levels * ranks
    operation = np.empty((paired, cells.sum()), dtype=np.int64)
    awaited, hops = np.empty_like(operation), np.zeros(operation.shape, dtype=np.int8)
    for (costs, graph), end, size in zip(graphs, np.cumsum(cells).tolist(), cells, strict=True):
        kinds, _, wide = graph.operation.shape
        whole, here = slice(end - size, end), (slice(kinds), slice(end - size + 2 * wide, end))
        runs = graph.operation.reshape(kinds, -1)
        nothing = (costs + 1) * rows - 1
        operation[:, whole], awaited[:, whole] = nothing, wide
        operation[here] = np.where(runs >= 0, runs + costs * rows, nothing)
        awaited[here] = graph.awaited.reshape(kinds, -1) + 2 * wide
        awaited[0, here[1]][:wide][runs[0, :wide] >= 0] = 0
        hops[here] = graph.hops.reshape(kinds, -1)
    return _Graphs(
        levels=levels,
        ranks=ranks,
        costs=np.array([costs for costs, _ in graphs]),
        place=np.array(place),
        operation=operation,
        awaited=awaited,
        hops=hops,
    )


def _beside(graphs: _Graphs) -> _Graphs:
    """The same with their ranks beside each other on common levels, each as deep as the deepest."""
    levels, width = int(graphs.levels[0]), int(graphs.ranks.sum())
    if len(graphs.levels) == 1:
        return graphs
    shape = len(graphs.operation), levels, width
    operation, awaited = np.empty(shape, dtype=np.int64), np.full(shape, width)
    hops, first, lane = np.zeros(shape, dtype=np.int8), 0, 0
    operation[:] = graphs.operation[0, 0]  # nothing: no pass runs before the first level
    for deep, wide in zip(graphs.levels.tolist(), graphs.ranks.tolist(), strict=True):
        some, here = slice(first, first + deep * wide), np.s_[:, :deep, lane : lane + wide]
        cells = graphs.awaited[:, some]
        operation[here] = graphs.operation[:, some].reshape(-1, deep, wide)
        awaited[here] = (cells // wide * width + cells % wide + lane).reshape(-1, deep, wide)
        hops[here] = graphs.hops[:, some].reshape(-1, deep, wide)
        first, lane = first + deep * wide, lane + wide
    return graphs._replace(
        operation=operation.reshape(len(operation), -1),
        awaited=awaited.reshape(len(operation), -1),
        hops=hops.reshape(len(operation), -1),
    )


def _in_arrays(
    joined: _Graphs, table: Floats, hops_s: Floats, ends: Floats, paths: LongestPaths
) -> None:
    """Do what `_played` does, level by level of all graphs and sets at once."""
    beside, sets = _beside(joined), table.shape[1]
    most_hops = int(beside.hops.max()) if hops_s.any() else 0
    sent = np.empty((1 + most_hops, beside.operation.shape[1], sets), dtype=table.dtype)
    later = _ends(beside, table, hops_s[beside.costs, 1], sent)
    levels = sent[0].reshape(int(beside.levels[0]), -1, sets)
    paths.span_s[beside.place], start = _last(beside, levels)
    walked = np.argsort(beside.place)[: len(paths.counts)]
    paths.counts[:], paths.sends[:] = _walk(beside, later, start[walked], paths.counts.shape)


def _work(joined: _Graphs, table: Floats, *_: Any) -> int:
    """Numbers that arrays go through: graphs as deep as the deepest, ends, sends, costs, counts."""
    cells = int(joined.levels[0]) * int(joined.ranks.sum())
    return cells * (3 + 2 * table.shape[1]) + 2 * table.size


@compiled_or(_in_arrays, _work)
def _played(joined, table, hops_s, ends, paths):  # type: ignore[no-untyped-def]
    """Play every graph, and go back on its longest path.

    A graph is played at few sets of costs at a time, so that all its ends lie near the processor
    when the paths are gone back.

    Parameters
    ----------
    table : ndarray
        Seconds of the operations of all graphs, and of one that takes none after those of each.
    hops_s : ndarray
        What no, one and two sends take, shape (graphs that are walked, 3, sets).
    ends : ndarray
        Room for when each cell of a graph ends.
    paths : LongestPaths
        Takes the results; counts and sends are 0 before, and it counts one operation more: nothing.
    """
    counts, sends, span_s = paths
    sets, first = table.shape[1], 0
    for graph in range(len(joined.levels)):
        ranks, place = joined.ranks[graph], joined.place[graph]
        cells, nothing = joined.levels[graph] * ranks, place * counts.shape[2]
        sent_s = hops_s[joined.costs[graph]]
        lanes = max(_LANE, _NEAR // cells)
        for start in range(0, sets, lanes):
            wide = min(lanes, sets - start)
            ends[: ranks * wide], ends[ranks * wide : 2 * ranks * wide] = 0.0, -1.0
            for cell in range(2 * ranks, cells):
                _cell(joined, (first, cell, ranks, wide), table, sent_s, ends, start)
            for lane in range(wide):
                i = start + lane
                span = ends[(cells - ranks) * wide + lane]
                for cell in range(cells - ranks, cells):
                    span = max(span, ends[cell * wide + lane])
                span_s[place, i] = span
                if place < len(counts):
                    passed, when = counts[place, i], ends[lane:]
                    cell = _first_that_ends(span, when, wide, cells - ranks, ranks)
                    around = (first, cell, ranks, wide)
                    sends[place, i] = _back(joined, around, sent_s[:, i], when, passed, nothing)
        first += cells


@within
def _cell(joined, around, table, sent_s, ends, start):  # type: ignore[no-untyped-def]
    """Play a cell at some sets of costs, from `start` on.

    `around`: first cell of the graph, the cell in it, its ranks, how many sets.
    """
    first, cell, ranks, wide = around
    here, before, at = cell * wide, (cell - ranks) * wide, first + cell
    awaited, far = joined.awaited[0, at] * wide, joined.hops[0, at]
    operation = joined.operation[0, at]
    if len(joined.operation) == 1:
        for i in range(wide):
            begin = max(ends[before + i], ends[awaited + i] + sent_s[far, start + i])
            ends[here + i] = begin + table[operation, start + i]
        return
    other, other_far = joined.awaited[1, at] * wide, joined.hops[1, at]
    beside = joined.operation[1, at]
    for i in range(wide):
        begin = max(ends[before + i], ends[awaited + i] + sent_s[far, start + i])
        begin = max(begin, ends[other + i] + sent_s[other_far, start + i])
        ends[here + i] = begin + (table[operation, start + i] + table[beside, start + i])


@within
def _first_that_ends(span, ends, wide, cell, ranks):  # type: ignore[no-untyped-def]
    """Of the lowest level on which one ends with all, the first; `cell` is the last level's first.

    Passes that cost nothing end with the one before.
    """
    lowest = cell
    while True:
        lane = 0
        while lane < ranks and ends[(cell + lane) * wide] != span:
            lane += 1
        if lane == ranks:
            return lowest
        lowest, cell = cell + lane, cell - ranks


@within
def _back(joined, around, sent_s, ends, counts, skipped):  # type: ignore[no-untyped-def]
    """Count what a path to a cell runs through; how many sends are on it.

    `skipped` are operations of other graphs, in the table of all.
    """
    first, cell, ranks, wide = around
    sends = 0
    while cell >= 2 * ranks:
        before, far = cell - ranks, 0
        begin = ends[before * wide]
        for kind in range(len(joined.operation)):
            counts[joined.operation[kind, first + cell] - skipped] += 1
            awaited, hops = joined.awaited[kind, first + cell], joined.hops[kind, first + cell]
            arrival = ends[awaited * wide] + sent_s[hops]
            if arrival > begin:
                begin, before, far = arrival, awaited, hops
        cell, sends = before, sends + far
    return sends


def _ends(joined: _Graphs, table: Floats, hop_s: Floats, sent: Floats) -> NDArray[np.bool_]:
    """Take when each cell ends, and for which of the awaited each waits.

    A cell in which nothing runs ends with the one before.
    """
    ranks, sets = int(joined.ranks.sum()), table.shape[1]
    most_hops, cells = len(sent) - 1, sent.shape[1]
    np.take(table, joined.operation[0], axis=0, out=sent[0], mode="clip")
    for operation in joined.operation[1:]:
        sent[0] += table.take(operation, axis=0)
    sent[0, :ranks], sent[:, ranks : 2 * ranks] = 0.0, -1.0
    source = joined.awaited + joined.hops * np.int64(cells) if most_hops else joined.awaited
    later = np.zeros((len(source), cells, sets), dtype=np.bool_)
    flat, shape = sent.reshape(-1, sets), (-1, ranks, sets)
    planes, marks = [x.reshape(shape) for x in sent], [x.reshape(shape) for x in later]
    source = source.reshape(len(source), -1, ranks)
    wide = np.repeat(hop_s, joined.ranks, axis=0)
    buffers = np.empty((len(source), ranks, sets), dtype=table.dtype)
    first, going, ends = 2, len(joined.levels), np.cumsum(joined.ranks)
    before = planes[0][1]
    while going:
        last, width = joined.levels[going - 1], ends[going - 1]
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
        while going and joined.levels[going - 1] == last:
            going -= 1
    return later


def _walk(
    joined: _Graphs, later: NDArray[np.bool_], start: NDArray[np.int64], shape: tuple[int, ...]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Go back from the last end of every graph and set to what each cell waited for."""
    graphs, sets, operations = shape
    ranks = int(joined.ranks.sum())
    column = np.tile(np.arange(sets), graphs)
    cells = np.zeros((int(joined.levels[0]), graphs * sets), dtype=np.int64)
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
    length, paths = graphs * sets * operations, np.arange(graphs * sets)
    # rows of costs of a graph become rows of the path
    moved = (paths - paths // sets) * operations
    hops = np.zeros(cells.shape, dtype=np.int8)
    for sends, mark in zip(joined.hops, np.moveaxis(marks, 1, 0), strict=True):
        np.copyto(hops, sends.take(cells, mode="clip"), where=mark)
    what = [operation.take(cells, mode="clip") + moved for operation in joined.operation]
    count = np.bincount(np.concatenate(what, axis=None), minlength=length)
    return count.reshape(shape), hops.sum(axis=0).reshape(graphs, sets)


def _last(joined: _Graphs, end: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """How long every graph lasts, and the first of its cells that ends then: (graphs, sets)."""
    ends = np.cumsum(joined.ranks)
    starts, lane, depth = ends - joined.ranks, np.arange(ends[-1]), joined.levels - 1
    tail = np.repeat(depth, joined.ranks)
    span_s = np.maximum.reduceat(end[tail, lane], starts, axis=0)
    level, lasts = np.repeat(depth[:, None], end.shape[2], axis=1), np.ones(1, dtype=np.bool_)
    while lasts.any():  # passes that cost nothing end with the one before
        tail = np.maximum(tail - 1, 1)
        lasts = np.maximum.reduceat(end[tail, lane], starts, axis=0) == span_s
        level -= lasts
    cells, column = np.empty_like(level), np.arange(end.shape[2])[:, None]
    for graph, (first, last) in enumerate(zip(starts, ends, strict=True)):
        here = end[level[graph][:, None], np.arange(first, last), column]
        rank = (here == span_s[graph][:, None]).argmax(axis=1)
        cells[graph] = level[graph] * ends[-1] + first + rank
    return span_s, cells
