"""A batch split over several kinds of servers so that the last of them is done soonest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.arrays import Floats


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """How long a kind of servers takes with one layout: linear in its micro-batches."""

    begin_s: float
    micro_batch_s: float
    """Of a micro-batch, of every replica."""
    turn: int
    """Micro-batches come in multiples of it: interleaved chunks take turns of all ranks."""
    unit: int
    """Sequences of a micro-batch of all replicas."""


def sequences_in(pace: Pace, seconds: float) -> float:
    """Sequences that are done in so many seconds, parts of a micro-batch counted."""
    return max((seconds - pace.begin_s) / pace.micro_batch_s, 0.0) * pace.unit


def soonest(kinds: Sequence[Sequence[Pace]], batch: int) -> float:
    """Seconds in which all kinds together do a batch, each with its fastest layout."""
    low, high = 0.0, 1e-3
    while _done(kinds, high) < batch:
        low, high = high, 2.0 * high
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if _done(kinds, middle) >= batch else (middle, high)
    return high


def _done(kinds: Sequence[Sequence[Pace]], seconds: float) -> float:
    return sum(max(sequences_in(pace, seconds) for pace in paces) for paces in kinds)


def split_batch(paces: Sequence[Pace], batch: int) -> tuple[float, tuple[int, ...]] | None:
    """Split exactly `batch` sequences, one layout per kind: dynamic programming over the kinds.

    Returns the seconds of the slowest kind and the micro-batches of a replica of each; None where
    no whole numbers of them add up to the batch.

    Examples
    --------
    >>> fast = Pace(begin_s=0.0, micro_batch_s=1.0, turn=1, unit=1)
    >>> slow = Pace(begin_s=0.0, micro_batch_s=3.0, turn=1, unit=1)
    >>> split_batch([fast, slow], 8)
    (6.0, (6, 2))
    """
    best: Floats = np.full(batch + 1, np.inf)
    best[0] = 0.0
    chosen = []
    for pace in paces:
        step = pace.unit * pace.turn
        after, count = np.full(batch + 1, np.inf), np.zeros(batch + 1, dtype=np.int64)
        for turns in range(1, batch // step + 1):
            share, micro_batches = turns * step, turns * pace.turn
            kind_s = pace.begin_s + pace.micro_batch_s * micro_batches
            seconds = np.maximum(best[: batch + 1 - share], kind_s)
            better = seconds < after[share:]
            after[share:][better] = seconds[better]
            count[share:][better] = micro_batches
        best = after
        chosen.append(count)
    if not np.isfinite(best[batch]):
        return None
    left, counts = batch, []
    for pace, count in zip(reversed(paces), reversed(chosen), strict=True):
        counts.append(int(count[left]))
        left -= counts[-1] * pace.unit
    return float(best[batch]), tuple(reversed(counts))
