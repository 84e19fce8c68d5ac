"""Tasks that a step has beside its passes and sends: what they are, and where they stand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simulator.errors import InputError
from simulator.events.listed import Listed
from simulator.events.timeline import STREAMS

if TYPE_CHECKING:
    from simulator.events.programs import Program

__all__ = ["COMPUTE", "COPY", "DATA", "HOST", "PIPELINE", "Extras", "check_extras", "joined"]

Floats = NDArray[np.float64]

COMPUTE, PIPELINE, DATA, COPY, HOST = (
    STREAMS.index(word) for word in ("compute", "pipeline", "data", "copy", "host")
)


@dataclass(frozen=True, kw_only=True)
class Extras:
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
    def none(cls) -> Extras:
        """No such task."""
        empty = np.empty(0, np.int64)
        return cls(
            rank=empty, stream=empty, duration_s=np.empty(0), after=empty,
            waits=np.empty(0, np.bool_), before=empty, edges=np.empty((0, 2), np.int64),
        )  # fmt: skip

    def columns(self) -> tuple[NDArray[Any], ...]:
        """The order of issue, and every column as compiled code takes it."""
        order = np.lexsort((np.arange(len(self)), self.after, self.rank))
        later = np.argsort(self.edges[:, 1], kind="stable")
        whole = (self.rank, self.stream, self.after, self.before, self.edges[later])
        rank, stream, after, before, edges = (np.ascontiguousarray(x, np.int64) for x in whole)
        seconds, waits = self.duration_s.astype(np.float64), self.waits.astype(np.bool_)
        return order, rank, stream, seconds, after, waits, before, edges


def check_extras(program: Program, extra: Extras) -> None:
    """Refuse extra tasks that refer to what is not there."""
    n, k = len(program), len(extra)
    given = {
        "rank": (extra.rank, 0, program.ranks),
        "stream": (extra.stream, 0, len(STREAMS)),
        "after": (extra.after, -1, n),
        "before": (extra.before, -1, n),
        "edges": (extra.edges, 0, n + k),
    }
    for name, (column, low, high) in given.items():
        wrong = (column < low) | (column >= high)
        if wrong.any():
            row = int(np.argwhere(wrong)[0][0])
            raise InputError(
                f"extra tasks: {name}: must be from {low} to {high - 1}, "
                f"got {column[wrong].flat[0]} in row {row}"
            )
    placed = np.flatnonzero(extra.after >= 0)
    elsewhere = program.rank[extra.after[placed]] != extra.rank[placed]
    if elsewhere.any():
        row = int(placed[elsewhere][0])
        raise InputError(
            f"extra task {row} on rank {extra.rank[row]} stands behind an action of another rank "
            f"({program.name(int(extra.after[row]))}); a dependency belongs in edges"
        )


def joined(extra: Extras, program: Program, listed: Listed, seconds: Floats) -> Extras:
    """Add the words that a table lists to the caller's tasks."""
    n, own, words = len(program), len(extra), listed.words
    rank = np.array([one.rank for one in words])
    place = np.array([one.place for one in words]) - 1
    here = (place >= 0) & (program.rank[place] == rank)
    passed = np.array([one.micro_batch >= 0 for one in words])
    number = n + own + np.arange(len(words))
    produced, sent = np.flatnonzero(listed.producer >= 0), np.flatnonzero(listed.sent >= 0)
    edges = (
        extra.edges,
        np.column_stack([listed.producer[produced], number[produced]]),
        np.column_stack([n + own + listed.sent[sent], number[sent]]),
    )
    return Extras(
        rank=np.concatenate([extra.rank, rank]),
        stream=np.concatenate([extra.stream, np.where(passed, PIPELINE, DATA)]),
        duration_s=np.concatenate([extra.duration_s, seconds]),
        after=np.concatenate([extra.after, np.where(here, place, -1)]),
        waits=np.concatenate([extra.waits, np.zeros(len(words), np.bool_)]),
        before=np.concatenate([extra.before, listed.consumer]),
        edges=np.concatenate(edges).astype(np.int64),
    )
