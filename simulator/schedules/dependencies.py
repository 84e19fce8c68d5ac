"""What an action takes the result of, and which passes have none of the other way beside them.

The forward pass of piece s takes that of piece s - 1, the backward pass of piece s that of piece
s + 1, on the last piece its own forward pass, a weight pass its input pass.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Int32s
from simulator.schedules.schedule import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD

NOTHING, UNLISTED = -1, -2
"""In place of an action that is waited for: there is none to wait for, or no rank lists it."""


class Table(Protocol):
    """A table of actions, ranks one after the other, each in its order."""

    @property
    def rank(self) -> NDArray[Any]:
        """Pipeline rank of each action."""

    @property
    def kind(self) -> NDArray[Any]:
        """Index into KINDS."""

    @property
    def micro_batch(self) -> NDArray[Any]:
        """From 0 on."""

    @property
    def piece(self) -> NDArray[Any]:
        """Piece of the model, in the order of a forward pass."""

    @property
    def with_next(self) -> NDArray[np.bool_]:
        """The action runs overlapped with the one after it."""


def awaited(table: Table, pieces: int) -> Int32s:
    """The action whose result each one takes; NOTHING, or UNLISTED.

    Examples
    --------
    >>> from simulator.schedules.action_tables import actions
    >>> awaited(actions("1f1b", 2, 1), 2).tolist()  # F0 B0 on rank 0, F0 B0 on rank 1
    [-1, 3, 0, 2]
    """
    place = table.micro_batch * pieces + table.piece
    size = int(place.max(initial=0)) + pieces + 1
    weights = table.kind == BACKWARD_WEIGHT
    forward = np.flatnonzero(table.kind == FORWARD)
    backward = np.flatnonzero((table.kind != FORWARD) & ~weights)
    forward_of, backward_of = np.full(size, UNLISTED, np.int32), np.full(size, UNLISTED, np.int32)
    forward_of[place[forward]] = forward
    backward_of[place[backward]] = backward
    taken = np.empty(len(place), np.int32)
    before, after = place[forward] - 1, place[backward] + 1
    taken[forward] = np.where(table.piece[forward] == 0, NOTHING, forward_of[before])
    last = table.piece[backward] == pieces - 1
    taken[backward] = np.where(last, forward_of[after - 1], backward_of[after])
    taken[weights] = backward_of[place[weights]]
    return taken


def alone(table: Table, ranks: int) -> NDArray[np.bool_]:
    """Passes that have none of the other way beside them: before the first one, after the last.

    Where the schedule joins passes in pairs, all that are in none.
    """
    ahead = table.kind == FORWARD
    back = (table.kind == BACKWARD) | (table.kind == BACKWARD_INPUT)
    if table.with_next.any():
        paired = table.with_next | np.r_[False, table.with_next[:-1]]
        return np.asarray((ahead | back) & ~paired)
    position = np.arange(len(table.kind))
    first, last = np.full(ranks, len(position)), np.full(ranks, -1)
    np.minimum.at(first, table.rank[back], position[back])
    np.maximum.at(last, table.rank[ahead], position[ahead])
    return (ahead & (position < first[table.rank])) | (back & (position > last[table.rank]))
