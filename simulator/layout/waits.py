"""What every pass of a schedule waits for, in an order in which it can be worked off.

A table of actions (``layout/schedules.py``) as a graph: each pass follows the one before it on its
rank and the one whose result it takes. Passes that run overlapped are one node. Nodes carry a
level: one more than the highest level that they wait for, so that all nodes of a level can be
looked at together.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.layout.schedules import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    KINDS,
    Actions,
    actions,
    chunks,
    pieces,
)

__all__ = ["Waits", "waits"]

Ints = NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, slots=True)
class Waits:
    """One row per pass or overlapped pair, by level. Row number `len` stands for "nothing"."""

    level_ends: Ints
    """Where each level ends."""
    before: Ints
    """The pass before on the same rank."""
    awaited: Ints
    """The passes whose results are taken, shape (2, rows)."""
    hops: NDArray[np.int8]
    """Sends that end before those are here, shape (2, rows): 0 from the same rank; 2 where two
    overlapped passes have one to send each and this is the second."""
    operation: Ints
    """What runs, shape (2, rows): index into (alone, KINDS, ranks, chunks), flat; -1: no second
    pass."""
    operations: int
    """How many there are."""

    def __len__(self) -> int:
        return len(self.before)


@lru_cache(maxsize=1024)
def waits(schedule: str, pp: int, micro_batches: int, vpp: int) -> Waits:
    """Give the graph of a schedule; arguments as of :func:`actions`."""
    table, held = actions(schedule, pp, micro_batches, vpp), chunks(schedule, vpp)
    taken = _taken(table, pieces(schedule, pp, vpp))
    second = np.r_[False, table.with_next[:-1]]
    node = np.cumsum(~second) - 1
    head, tail = np.flatnonzero(~second), np.flatnonzero(second)
    nothing = len(head)
    before = np.where(table.position[head] > 0, np.arange(nothing) - 1, nothing)
    awaited = np.full((2, nothing), nothing)
    hops, operation = np.zeros((2, nothing), dtype=np.int8), np.full((2, nothing), -1)
    what = ((_alone(table) * len(KINDS) + table.kind) * pp + table.rank) * held + table.chunk
    sends = np.zeros(len(table), dtype=np.int8)
    far = (taken >= 0) & (table.rank[taken] != table.rank)
    sends[taken[far]] = 1
    sends[second] += sends[np.flatnonzero(second) - 1]
    for row, some in ((0, head), (1, tail)):
        at, found = node[some], taken[some]
        awaited[row, at] = np.where(found >= 0, node[found], nothing)
        hops[row, at] = np.where(far[some], sends[found], 0)
        operation[row, at] = what[some]
    level = _levels(table.rank[head], before, awaited)
    order = np.argsort(level, kind="stable")
    place = np.empty(nothing + 1, dtype=np.int32)
    place[order], place[nothing] = np.arange(nothing), nothing
    return Waits(
        level_ends=np.cumsum(np.bincount(level)).astype(np.int32),
        before=place[before[order]], awaited=place[awaited[:, order]], hops=hops[:, order],
        operation=operation[:, order].astype(np.int32), operations=2 * len(KINDS) * pp * held,
    )  # fmt: skip


def _taken(table: Actions, count: int) -> NDArray[Any]:
    """The action whose result each one takes, -1: none."""
    way = np.select([table.kind == FORWARD, table.kind == BACKWARD_WEIGHT], [0, 2], default=1)
    made = np.full((3, int(table.micro_batch.max()) + 1, count), -1)
    made[way, table.micro_batch, table.piece] = np.arange(len(table))
    last = table.piece == count - 1
    source = np.select([way == 2, (way == 1) & last], [1, 0], default=way)
    step = np.select([way == 0, (way == 1) & ~last], [-1, 1], default=0)
    found = made[source, table.micro_batch, np.maximum(table.piece + step, 0)]
    return np.where((way == 0) & (table.piece == 0), -1, found)


def _alone(table: Actions) -> NDArray[np.bool_]:
    """Passes that have none of the other way beside them: before the first one, after the last.

    Where the schedule joins passes in pairs, all that are in none.
    """
    ahead = table.kind == FORWARD
    back = (table.kind == BACKWARD) | (table.kind == BACKWARD_INPUT)
    if table.with_next.any():
        paired = table.with_next | np.r_[False, table.with_next[:-1]]
        return np.asarray((ahead | back) & ~paired)
    position, ranks = np.arange(len(table)), int(table.rank.max()) + 1
    first, last = np.full(ranks, len(table)), np.full(ranks, -1)
    np.minimum.at(first, table.rank[back], position[back])
    np.maximum.at(last, table.rank[ahead], position[ahead])
    return (ahead & (position < first[table.rank])) | (back & (position > last[table.rank]))


def _levels(rank: NDArray[Any], before: NDArray[Any], awaited: NDArray[Any]) -> NDArray[Any]:
    """Level of every node: all ranks go on as far as they can, one node at a time."""
    ends = np.flatnonzero(np.diff(rank, append=rank[-1] + 1)) + 1
    now = np.r_[0, ends[:-1]]
    done = np.zeros(len(rank) + 1, dtype=np.bool_)
    done[-1] = True
    level, depth = np.zeros(len(rank), dtype=np.int64), 0
    one, two = awaited
    while len(now):
        ready = done[one[now]] & done[two[now]]
        able = now[ready]
        assert len(able), "every rank waits for another"
        level[able], done[able] = depth, True
        now = now + ready
        going = now < ends
        if not going.all():
            now, ends = now[going], ends[going]
        depth += 1
    return level
