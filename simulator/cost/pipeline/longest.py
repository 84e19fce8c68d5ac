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
    """Several graphs beside each other, the deepest first: a cell per level and rank of each.

    Before the first level there are two more: of the first cell, which ends at 0, and of those
    that end before anything does, so that what ends at 0 is still waited for.
    """

    level_counts: Ints
    """Levels of each graph."""
    ends: Ints
    """Last rank of each graph, plus one: that of the last one is the number of all ranks."""
    costs: Ints
    """Whose costs each has."""
    place: Ints
    """Where each was asked for."""
    operation: Ints
    """What runs in each cell, shape (1 or 2, cells): row of the costs of all graphs."""
    awaited: Ints
    """Cells whose results are taken, of the same shape."""
    hops: NDArray[np.int8]
    """Sends that end before those are here."""


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
        Seconds of every operation, shape (graphs, operations, sets of costs).
    hop_s : ndarray
        From the end of a pass until another rank has its result, shape (graphs, sets of costs).
    timed : sequence of tuple
        More graphs, of which only the span is asked for, and whose costs each has.
    """
    every = [*enumerate(graphs), *timed]
    place = sorted(range(len(every)), key=lambda i: -every[i][1].operation.shape[1])
    operations, sets = seconds.shape[1:]
    joined = _joined([every[i] for i in place], place, operations)
    table = np.pad(seconds, ((0, 0), (0, 1), (0, 0))).reshape(-1, sets)
    hops_s = np.stack([0 * hop_s, hop_s, 2 * hop_s], axis=1)
    most_hops = int(joined.hops.max()) if hop_s.any() else 0
    ends = np.empty((1 + most_hops, joined.operation.shape[1], sets), dtype=table.dtype)
    paths = LongestPaths(
        counts=np.zeros((len(graphs), sets, operations + 1), dtype=np.int32),
        sends=np.zeros((len(graphs), sets), dtype=np.int64),
        span_s=np.empty((len(every), sets), dtype=table.dtype),
    )
    _played(joined, table, hops_s, ends, paths)
    return paths._replace(counts=paths.counts[..., :-1])


def _joined(graphs: list[tuple[int, Waits]], place: list[int], operations: int) -> _Graphs:
    """Put graphs, each with the number of its costs, beside each other."""
    paired = max(len(graph.operation) for _, graph in graphs)
    ends = np.cumsum([graph.operation.shape[2] for _, graph in graphs]).tolist()
    levels, ranks = graphs[0][1].operation.shape[1], ends[-1]
    operation = np.full((paired, levels + 2, ranks), operations)
    awaited = np.full((paired, levels + 2, ranks), ranks)
    hops = np.zeros((paired, levels + 2, ranks), dtype=np.int8)
    for (costs, graph), end in zip(graphs, ends, strict=True):
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
        level_counts=np.array([graph.operation.shape[1] for _, graph in graphs]),
        ends=np.array(ends),
        costs=np.array([costs for costs, _ in graphs]),
        place=np.array(place),
        operation=operation.reshape(paired, -1),
        awaited=awaited.reshape(paired, -1),
        hops=hops.reshape(paired, -1),
    )


def _in_arrays(
    joined: _Graphs, table: Floats, hops_s: Floats, ends: Floats, paths: LongestPaths
) -> None:
    """Do what `_played` does, level by level of all graphs and sets at once."""
    later = _ends(joined, table, hops_s[joined.costs, 1], ends)
    levels = ends[0].reshape(-1, int(joined.ends[-1]), table.shape[1])
    paths.span_s[joined.place], start = _last(joined, levels)
    walked = np.argsort(joined.place)[: len(paths.counts)]
    paths.counts[:], paths.sends[:] = _walk(joined, later, start[walked], paths.counts.shape)


@compiled_or(_in_arrays)
def _played(joined, table, hops_s, ends, paths):  # type: ignore[no-untyped-def]
    """Play every graph, and go back on its longest path.

    Parameters
    ----------
    table : ndarray
        Seconds of the operations of all graphs, and of one that takes none after those of each.
    hops_s : ndarray
        What no, one and two sends take, shape (graphs that are walked, 3, sets).
    ends : ndarray
        Takes when each cell ends, and after one or two sends where those take time.
    paths : LongestPaths
        Takes the results; counts and sends are 0 before, and it counts one operation more: nothing.
    """
    counts, sends, span_s = paths
    ranks, sets, first = joined.ends[-1], table.shape[1], 0
    ends[0, :ranks], ends[0, ranks : 2 * ranks] = 0.0, -1.0
    for graph in range(len(joined.ends)):
        last, place = joined.ends[graph], joined.place[graph]
        sent_s = hops_s[joined.costs[graph]]
        bottom = (joined.level_counts[graph] + 1) * ranks
        for level in range(2 * ranks, bottom + ranks, ranks):
            _level(joined, range(level + first, level + last), table, sent_s, ends[0])
        for i in range(sets):
            span = ends[0, bottom + first, i]
            for cell in range(bottom + first, bottom + last):
                span = max(span, ends[0, cell, i])
            span_s[place, i] = span
            if place < len(counts):
                cell = _first_that_ends(span, ends[0, :, i], bottom + first, last - first, ranks)
                skipped, passed = place * counts.shape[2], counts[place, i]
                sends[place, i] = _back(joined, cell, sent_s[:, i], ends[0, :, i], passed, skipped)
        first = last


@within
def _level(joined, cells, table, hops_s, ends):  # type: ignore[no-untyped-def]
    """Play cells of a level at all sets of costs."""
    ranks, paired, sets = joined.ends[-1], len(joined.operation) == 2, ends.shape[1]
    for cell in cells:
        before = cell - ranks
        awaited, far = joined.awaited[0, cell], joined.hops[0, cell]
        operation = joined.operation[0, cell]
        if not paired:
            for i in range(sets):
                begin = max(ends[before, i], ends[awaited, i] + hops_s[far, i])
                ends[cell, i] = begin + table[operation, i]
            continue
        other, other_far = joined.awaited[1, cell], joined.hops[1, cell]
        beside = joined.operation[1, cell]
        for i in range(sets):
            begin = max(ends[before, i], ends[awaited, i] + hops_s[far, i])
            begin = max(begin, ends[other, i] + hops_s[other_far, i])
            ends[cell, i] = begin + (table[operation, i] + table[beside, i])


@within
def _first_that_ends(span, ends, cell, width, ranks):  # type: ignore[no-untyped-def]
    """Of the lowest level on which one ends with all, the first; `cell` is the last level's first.

    Passes that cost nothing end with the one before.
    """
    lowest = cell
    while True:
        lane = 0
        while lane < width and ends[cell + lane] != span:
            lane += 1
        if lane == width:
            return lowest
        lowest, cell = cell + lane, cell - ranks


@within
def _back(joined, cell, sent_s, ends, counts, skipped):  # type: ignore[no-untyped-def]
    """Count what a path to a cell runs through; how many sends are on it.

    `skipped` are operations of other graphs, in the table of all.
    """
    ranks, sends = joined.ends[-1], 0
    while cell >= 2 * ranks:
        before, far = cell - ranks, 0
        begin = ends[before]
        for kind in range(len(joined.operation)):
            counts[joined.operation[kind, cell] - skipped] += 1
            awaited, hops = joined.awaited[kind, cell], joined.hops[kind, cell]
            arrival = ends[awaited] + sent_s[hops]
            if arrival > begin:
                begin, before, far = arrival, awaited, hops
        cell, sends = before, sends + far
    return sends


def _ends(joined: _Graphs, table: Floats, hop_s: Floats, sent: Floats) -> NDArray[np.bool_]:
    """Take when each cell ends, and for which of the awaited each waits.

    A cell in which nothing runs ends with the one before.
    """
    ranks, sets = int(joined.ends[-1]), table.shape[1]
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
    return later


def _walk(
    joined: _Graphs, later: NDArray[np.bool_], start: NDArray[np.int64], shape: tuple[int, ...]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Go back from the last end of every graph and set to what each cell waited for."""
    graphs, sets, operations = shape
    ranks = int(joined.ends[-1])
    column = np.tile(np.arange(sets), graphs)
    cells = np.zeros((int(joined.level_counts[0]) + 2, graphs * sets), dtype=np.int64)
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
    starts, lane = np.r_[0, joined.ends[:-1]], np.arange(joined.ends[-1])
    depth = joined.level_counts + 1
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
        cells[graph] = level[graph] * joined.ends[-1] + first + rank
    return span_s, cells
