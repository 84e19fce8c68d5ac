"""Sends between stages on different kinds of servers: as long as over the slower adapters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats, Ints
from simulator.cost.terms import HIDDEN
from simulator.events.step.pass_costs import AHEAD, BACK, CAUSE, Passes
from simulator.schedules.registry import SCHEDULES
from simulator.schedules.schedule import BACKWARD, BACKWARD_INPUT, FORWARD

_SENDS, _SLOWDOWN, _HIDDEN = CAUSE["pp"], CAUSE["slowdown"], HIDDEN.index("pp")


def partners(schedule: str, pp: int, chunks: int) -> Ints:
    """The rank with which each chunk exchanges what it is charged for, (2, ranks, chunks).

    A forward pass sends to the next piece of the model and a backward pass to the one before; where
    that is on the same rank, or there is none, it is charged what it receives.

    Examples
    --------
    >>> partners("1f1b", 3, 1)[:, :, 0].tolist()
    [[1, 2, 1], [1, 0, 1]]
    """
    rank, chunk = np.indices((pp, chunks))
    held = SCHEDULES[schedule].piece(pp, rank, chunk)
    empty = np.empty((2, pp, chunks), np.int64)
    for way, step in ((AHEAD, 1), (BACK, -1)):
        before, after = _holder(schedule, held, -step), _holder(schedule, held, step)
        where = np.where((before < 0) | (before == rank), rank, before)
        empty[way] = np.where((after < 0) | (after == rank), where, after)
    return empty


def _holder(schedule: str, held: Ints, step: int) -> Ints:
    """The rank of the piece so many further on; -1: there is none."""
    full_like = np.full_like(held, -1)
    for rank, chunk in np.ndindex(*held.shape):
        there = held == held[rank, chunk] + step
        if SCHEDULES[schedule].copies > 1:  # each way through the model has a chunk of its own
            there &= np.arange(held.shape[1]) == chunk
        if there.any():
            full_like[rank, chunk] = np.argwhere(there)[0, 0]
    return full_like


def slower_hops(passes: Passes, kinds: list[str], schedule: str, shares: list[float]) -> Passes:
    """Let what passes between unlike servers take as long as over the slower adapters.

    Parameters
    ----------
    passes : Passes
        Of one replica, every rank priced on its own servers.
    kinds : list of str
        Kind of servers of each rank.
    schedule : str
    shares : list of float
        Compute that a second of communication beside it costs, on each rank.
    """
    other = partners(schedule, *passes.shown_s.shape[:2])
    unlike = np.array(kinds)[other] != np.array(kinds)[:, None]
    if not unlike.any():
        return passes
    if passes.send_s.any():
        return _beside(passes, other, unlike, np.array(shares))
    shown = passes.shown_s.copy()
    sent = shown[:, 0, FORWARD, _SENDS]
    for kind, way in ((FORWARD, AHEAD), (BACKWARD, BACK), (BACKWARD_INPUT, BACK)):
        slower = np.where(unlike[way], sent[other[way]], 0.0)
        shown[:, :, kind, _SENDS] = np.maximum(shown[:, :, kind, _SENDS], slower)
    return replace(passes, shown_s=shown)


def _beside(passes: Passes, other: Ints, unlike: NDArray[np.bool_], shares: Floats) -> Passes:
    """The same of sends beside compute: a rank's sends have one speed, that of its slowest."""
    slowest = np.where(unlike, passes.send_s[other], 0.0).max(axis=(0, 2))
    send_s = np.maximum(passes.send_s, slowest)
    shown, hidden = passes.shown_s.copy(), passes.hidden_s.copy()
    window = shown[:, :, [FORWARD, BACKWARD]].sum(axis=(2, 3))
    covered = np.minimum(2.0 * send_s[:, None], window)[:, :, None] / 2.0
    kinds = [FORWARD, BACKWARD, BACKWARD_INPUT]
    more = np.maximum(covered - hidden[:, :, kinds, _HIDDEN], 0.0)
    hidden[:, :, kinds, _HIDDEN] += more
    shown[:, :, kinds, _SLOWDOWN] += more * shares[:, None, None]
    return replace(passes, send_s=send_s, shown_s=shown, hidden_s=hidden)
