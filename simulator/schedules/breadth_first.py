"""GPipe (Huang et al. 2019) and breadth-first (Lamy-Poirier 2023): first all the way forward."""

from __future__ import annotations

import numpy as np

from simulator.arrays import Ints
from simulator.schedules.schedule import BACKWARD, FORWARD, MANY, Order, Schedule


def _gpipe(pp: int, m: int, v: int) -> Order:
    """GPipe takes the micro-batches back in their order, as torch does."""
    return _breadth_first(pp, m, v, back=np.arange(m))


def _looped(pp: int, m: int, v: int) -> Order:
    """Breadth-first takes the micro-batches back in the reverse of their order."""
    return _breadth_first(pp, m, v, back=np.arange(m)[::-1])


def _breadth_first(pp: int, m: int, v: int, *, back: Ints) -> Order:
    """All forward passes, chunk by chunk, then all backward passes."""
    step = np.arange(m * v)
    kind = np.repeat([FORWARD, BACKWARD], m * v)
    micro_batch = np.concatenate([step % m, np.tile(back, v)])
    chunk = np.concatenate([step // m, v - 1 - step // m])
    return Order(
        rank=np.repeat(np.arange(pp), 2 * m * v),
        kind=np.tile(kind, pp),
        micro_batch=np.tile(micro_batch, pp),
        chunk=np.tile(chunk, pp),
        with_next=np.zeros(2 * m * v * pp, dtype=bool),
    )


SCHEDULES = (
    Schedule(word="gpipe", order=_gpipe, breadth_first=True),
    Schedule(
        word="looped_bfs", order=_looped, fewest_chunks=2, most_chunks=MANY, breadth_first=True
    ),
)
