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
    """One row per pass or overlapped pair, by level. Row number `len` stands for "nothing"."""

    level_ends: Int32s
    """Where each level ends."""
    before: Int32s
    """The pass before on the same rank."""
    awaited: Int32s
    """The passes whose results are taken, shape (2, rows)."""
    hops: NDArray[np.int8]
    """Sends that end before those are here, shape (2, rows): 0 from the same rank; 2 where two
    overlapped passes have one to send each and this is the second."""
    operation: Int32s
    """What runs, shape (2, rows): index into (alone, KINDS, ranks, chunks), flat; -1: no second
    pass."""
    operations: int
    """How many there are."""

    def __len__(self) -> int:
        return len(self.before)


@dataclass(frozen=True, slots=True)
class _Nodes:
    """The same rows, ranks one after the other, before they have a level."""

    rank: NDArray[Any]
    before: NDArray[Any]
    awaited: NDArray[Any]
    hops: NDArray[np.int8]
    operation: NDArray[Any]
    operations: int


_KNOWN: dict[Plan, Waits] = {}
_KEPT = 1024


def waits(plans: Sequence[Plan]) -> list[Waits]:
    """Give the graphs of schedules: name, ranks, micro-batches, chunks per rank of each.

    Examples
    --------
    >>> (graph,) = waits([("1f1b", 2, 2, 1)])
    >>> len(graph), graph.level_ends.tolist()
    (8, [1, 3, 4, 6, 7, 8])
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
    second = np.r_[False, table.with_next[:-1]]
    node = np.cumsum(~second) - 1
    head, tail = np.flatnonzero(~second), np.flatnonzero(second)
    nothing = len(head)
    before = np.where(table.position[head] > 0, np.arange(nothing) - 1, nothing)
    sources = np.full((2, nothing), nothing)
    hops, operation = np.zeros((2, nothing), dtype=np.int8), np.full((2, nothing), -1)
    what = ((alone(table, pp) * len(KINDS) + table.kind) * pp + table.rank) * held + table.chunk
    sends = np.zeros(len(table), dtype=np.int8)
    far = (taken >= 0) & (table.rank[taken] != table.rank)
    sends[taken[far]] = 1
    sends[tail] += sends[tail - 1]
    for row, some in ((0, head), (1, tail)):
        at, found = node[some], taken[some]
        sources[row, at] = np.where(found >= 0, node[found], nothing)
        hops[row, at] = np.where(far[some], sends[found], 0)
        operation[row, at] = what[some]
    return _Nodes(table.rank[head], before, sources, hops, operation, 2 * len(KINDS) * pp * held)


def _by_level(nodes: _Nodes, level: NDArray[Any]) -> Waits:
    """Put the rows in the order of their levels."""
    nothing, order = len(level), np.argsort(level, kind="stable")
    place = np.empty(nothing + 1, dtype=np.int32)
    place[order], place[nothing] = np.arange(nothing), nothing
    return Waits(
        level_ends=np.cumsum(np.bincount(level)).astype(np.int32),
        before=place[nodes.before[order]],
        awaited=place[nodes.awaited[:, order]],
        hops=nodes.hops[:, order],
        operation=nodes.operation[:, order].astype(np.int32),
        operations=nodes.operations,
    )


def _levels(drawn: list[_Nodes]) -> list[NDArray[Any]]:
    """Level of every node: all ranks of all graphs go on as far as they can, a node at a time."""
    starts = np.cumsum([0, *(len(nodes.rank) for nodes in drawn)])
    nothing = int(starts[-1])

    def moved(row: int) -> NDArray[Any]:
        return np.concatenate(
            [
                np.where(nodes.awaited[row] == len(nodes.rank), nothing, nodes.awaited[row] + start)
                for nodes, start in zip(drawn, starts[:-1], strict=True)
            ]
        )

    one, two = moved(0), moved(1)
    last = np.concatenate([np.diff(nodes.rank, append=-1) != 0 for nodes in drawn])
    ends = np.flatnonzero(last) + 1
    now = np.r_[0, ends[:-1]]
    done = np.zeros(nothing + 1, dtype=np.bool_)
    done[-1] = True
    level, depth = np.zeros(nothing, dtype=np.int64), 0
    while len(now):
        ready = done[one[now]] & done[two[now]]
        able = now[ready]
        assert len(able), "every rank waits for another"
        level[able], done[able] = depth, True
        now = now + ready
        going = now < ends
        now, ends = now[going], ends[going]
        depth += 1
    return np.split(level, starts[1:-1])
