"""Tasks that a step has beside its passes and sends: what they are, and where they stand."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats, Ints
from simulator.events.step.pass_costs import CAUSE
from simulator.events.step.streams import SPAN_KINDS
from simulator.records import dataclass


class AuxiliaryColumns(NamedTuple):
    """The columns of :class:`AuxiliaryTasks`, as compiled code takes them."""

    order: Ints
    """Rows in the order of issue."""
    rank: Ints
    stream: Ints
    seconds: Floats
    after: Ints
    waits: NDArray[np.bool_]
    before: Ints
    edges: Ints


@dataclass(frozen=True, kw_only=True)
class AuxiliaryTasks:
    """Tasks that a step has beside its passes and sends, one row each.

    Reductions of gradients, gathers of parameters, copies, the optimizer: any stream, any order.
    """

    rank: NDArray[Any]
    stream: NDArray[Any]
    """Index into STREAMS."""
    duration_s: NDArray[Any]
    after: NDArray[Any]
    """Action of the rank behind which it stands in its stream; -1: before the rank's first one.
    Several behind one action keep the order of this table."""
    waits: NDArray[Any]
    """Whether it waits for that action's end; else it only stands behind what was issued before."""
    before: NDArray[Any]
    """Action, of any rank, that waits for its end; -1: none."""
    edges: NDArray[Any]
    """Pairs (earlier, later) of further dependencies, shape (pairs, 2): numbers below the number of
    actions are actions, further ones the rows of this table."""

    def __len__(self) -> int:
        return len(self.rank)

    @classmethod
    def none(cls) -> AuxiliaryTasks:
        """No such task."""
        empty = np.empty(0, np.int64)
        return cls(
            rank=empty,
            stream=empty,
            duration_s=np.empty(0),
            after=empty,
            waits=np.empty(0, np.bool_),
            before=empty,
            edges=np.empty((0, 2), np.int64),
        )

    def columns(self) -> AuxiliaryColumns:
        """The order of issue, and every column as compiled code takes it."""
        order = np.lexsort((np.arange(len(self)), self.after, self.rank))
        later = np.argsort(self.edges[:, 1], kind="stable")
        whole = (self.rank, self.stream, self.after, self.before, self.edges[later])
        rank, stream, after, before, edges = (np.ascontiguousarray(x, np.int64) for x in whole)
        seconds, waits = self.duration_s.astype(np.float64), self.waits.astype(np.bool_)
        return AuxiliaryColumns(order, rank, stream, seconds, after, waits, before, edges)


class Table:
    """Extra tasks, row by row."""

    def __init__(self, actions: int) -> None:
        self.actions = actions
        self.rows: list[tuple[int, int, float, int, bool, int]] = []
        self.edges: list[tuple[int, int]] = []
        self.notes: list[tuple[int, int, int]] = []

    def add(
        self,
        rank: int,
        stream: int,
        seconds: float,
        after: int,
        *,
        waits: bool = True,
        before: int = -1,
        cause: str = "dp",
        kind: str = "reduce",
        chunk: int = -1,
    ) -> int:
        """Add one task; return its number among actions and extra tasks."""
        self.rows.append((rank, stream, seconds, after, waits, before))
        self.notes.append((CAUSE[cause], SPAN_KINDS.index(kind), chunk))
        return self.actions + len(self.rows) - 1

    def finished(self) -> tuple[AuxiliaryTasks, Ints]:
        """The table as arrays, and cause, kind of span and chunk of each row."""
        rank, stream, seconds, after, waits, before = zip(*self.rows, strict=True)
        return AuxiliaryTasks(
            rank=np.array(rank, np.int64),
            stream=np.array(stream, np.int64),
            duration_s=np.array(seconds, np.float64),
            after=np.array(after, np.int64),
            waits=np.array(waits, np.bool_),
            before=np.array(before, np.int64),
            edges=np.array(self.edges, np.int64).reshape(-1, 2),
        ), np.array(self.notes, np.int64)
