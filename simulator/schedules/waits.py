"""What every pass of a schedule waits for, in an order in which it can be worked off.

A table of actions (``schedules/action_tables.py``) as a graph: each pass follows the one
before it on its rank and the one whose result it takes. Passes that run overlapped are one node.
Nodes carry a level: one more than the highest level that they wait for, so that all nodes of a
level can be looked at together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Int32s
from simulator.records import dataclass
from simulator.schedules.action_tables import actions
from simulator.schedules.dependencies import alone, awaited
from simulator.schedules.registry import SCHEDULES
from simulator.schedules.schedule import KINDS

Plan = tuple[str, int, int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Waits:
    """A cell per level and rank, for a pass or an overlapped pair; most of them are filled.

    All shapes are (1, levels, ranks), or (2, levels, ranks) of schedules that overlap passes. What
    is in a cell also waits for those of the same rank on lower levels.
    """

    operation: Int32s
    """What runs: index into (alone, KINDS, ranks, chunks), flat; -1: nothing, no second pass."""
    awaited: Int32s
    """The cell (level x ranks + rank) whose result is taken, or -1."""
    hops: NDArray[np.int8]
    """Sends that end before that is here: 0 from the same rank; 2 where two overlapped passes have
    one to send each and this is the second."""
    operations: int
    """How many there are."""


@dataclass(frozen=True, slots=True)
class _Nodes:
    """The same rows, ranks one after the other, before they have a level."""

    rank: Int32s
    awaited: Int32s
    hops: NDArray[np.int8]
    operation: Int32s
    operations: int


_KNOWN: dict[Plan, Waits] = {}
_KEPT = 1024


def waits(plans: Sequence[Plan]) -> list[Waits]:
    """Give the graphs of schedules: name, ranks, micro-batches, chunks per rank of each.

    Examples
    --------
    >>> (graph,) = waits([("1f1b", 2, 2, 1)])
    >>> (graph.operation[0] >= 0).astype(int).tolist()
    [[1, 0], [1, 1], [0, 1], [1, 1], [0, 1], [1, 0]]
    """
    missing = [plan for plan in dict.fromkeys(plans) if plan not in _KNOWN]
    if len(_KNOWN) + len(missing) > _KEPT:
        _KNOWN.clear()
        missing = list(dict.fromkeys(plans))
    if missing:
        drawn = [_nodes(*plan) for plan in missing]
        for plan, nodes, level in zip(missing, drawn, _levels(drawn), strict=True):
            _KNOWN[plan] = _by_level(nodes, level)
    return [_KNOWN[plan] for plan in plans]


def _nodes(schedule: str, pp: int, micro_batches: int, vpp: int) -> _Nodes:
    """One row per pass or overlapped pair, ranks one after the other."""
    table, held = actions(schedule, pp, micro_batches, vpp), SCHEDULES[schedule].chunks(vpp)
    taken = awaited(table, pp * vpp)
    what = ((alone(table, pp) * len(KINDS) + table.kind) * pp + table.rank) * held + table.chunk
    far = (taken >= 0) & (table.rank[taken] != table.rank)
    operations = 2 * len(KINDS) * pp * held
    if not table.with_next.any():
        sources, hops = np.where(taken >= 0, taken, np.int32(len(taken))), far.astype(np.int8)
        rows = sources[None], hops[None], what.astype(np.int32)[None]
        return _Nodes(table.rank.astype(np.int32), *rows, operations)
    second = np.r_[False, table.with_next[:-1]]
    node = np.cumsum(~second) - 1
    head, tail = np.flatnonzero(~second), np.flatnonzero(second)
    nothing = len(head)
    sources, operation = (np.full((2, nothing), fill, dtype=np.int32) for fill in (nothing, -1))
    hops = np.zeros((2, nothing), dtype=np.int8)
    sends = np.zeros(len(table), dtype=np.int8)
    sends[taken[far]] = 1
    sends[tail] += sends[tail - 1]
    for row, some in enumerate((head, tail)):
        at, found = node[some], taken[some]
        sources[row, at] = np.where(found >= 0, node[found], nothing)
        hops[row, at] = np.where(far[some], sends[found], 0)
        operation[row, at] = what[some]
    return _Nodes(table.rank[head].astype(np.int32), sources, hops, operation, operations)


def _by_level(nodes: _Nodes, level: NDArray[Any]) -> Waits:
    """Put the rows where their level and rank meet."""
    ranks, kinds = int(nodes.rank.max()) + 1, len(nodes.operation)
    shape, cell = (kinds, int(level.max()) + 1, ranks), level * ranks + nodes.rank
    place = np.append(cell, -1)

    def laid(values: NDArray[Any], dtype: type, nothing: int) -> NDArray[Any]:
        cells: NDArray[Any] = np.full((kinds, shape[1] * ranks), nothing, dtype=dtype)
        cells[:, cell] = values
        return cells.reshape(shape)

    return Waits(
        operation=laid(nodes.operation, np.int32, -1),
        awaited=laid(place[nodes.awaited], np.int32, -1),
        hops=laid(nodes.hops, np.int8, 0),
        operations=nodes.operations,
    )


def _levels(drawn: list[_Nodes]) -> list[NDArray[Any]]:
    """Level of every node: all ranks of all graphs go on as far as they can, a node at a time."""
    starts = np.cumsum([0, *(len(nodes.rank) for nodes in drawn)])
    nothing = int(starts[-1])

    def moved(row: int) -> NDArray[Any]:
        cells = np.full(nothing + 1, nothing)
        for nodes, start, end in zip(drawn, starts[:-1], starts[1:], strict=True):
            if row < len(nodes.awaited):
                awaited = nodes.awaited[row]
                cells[start:end] = np.where(awaited == end - start, nothing, awaited + start)
        return cells

    awaited = [moved(row) for row in range(max(len(nodes.awaited) for nodes in drawn))]
    last = np.concatenate([np.diff(nodes.rank, append=-1) != 0 for nodes in drawn])
    ends = np.flatnonzero(last) + 1
    now = np.r_[0, ends[:-1]]
    done = np.zeros(nothing + 1, dtype=np.bool_)
    done[-1] = True
    level, depth = np.zeros(nothing, dtype=np.int64), 0
    while len(now):
        ready = done.take(awaited[0].take(now))
        for further in awaited[1:]:
            ready &= done.take(further.take(now))
        able = now[ready]
        assert len(able), "every rank waits for another"
        level[able], done[able] = depth, True
        now += ready
        going = now < ends
        if not going.all():
            now, ends = now[going], ends[going]
        depth += 1
    return np.split(level, starts[1:-1])
