"""1F1B and interleaved 1F1B (Narayanan et al. 2021): forward and backward passes alternate."""

from __future__ import annotations

import numpy as np

from simulator.arrays import Ints
from simulator.schedules.schedule import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    MANY,
    Order,
    Schedule,
)


def alternating(
    pp: int, m: int, v: int, *, hops: int = 1, delay: int = 0, splits_backward: bool = False
) -> Order:
    """1F1B and what is made from it: forward and backward passes in turn after a warm-up.

    A schedule is how many forward passes come first, `hops` per rank behind, and after how many
    backward passes the weight passes start, `delay` per rank. Interleaving takes micro-batches in
    rounds of pp (or of the next number that divides them).
    """
    n, rounds = m * v, max(m // pp, 1)
    behind = pp - 1 - np.arange(pp)
    size = m // rounds
    warm = np.minimum((v - 1) * size + hops * behind, n)[:, None]
    waits = delay * np.arange(pp)[:, None]

    step = np.broadcast_to(np.arange(n), (pp, n))
    if splits_backward:
        # the order is that of these moments: forward k >= warm at 3 (k - warm), its backward next
        ahead = np.where(step < warm, step - n, 3 * (step - warm))
        moments = [ahead, 3 * step + 1, 3 * (step + waits) + 2]
        order = np.argsort(np.concatenate(moments, axis=1), axis=1, kind="stable")
    else:
        order = np.empty((pp, 2 * n), dtype=np.int64)
        ahead = np.where(step < warm, step, 2 * step - warm)
        back = np.where(step < n - warm, warm + 1 + 2 * step, n + step)
        for passes, places in enumerate((ahead, back)):
            np.put_along_axis(order, places, step + passes * n, axis=1)
    kinds = [FORWARD, *((BACKWARD_INPUT, BACKWARD_WEIGHT) if splits_backward else (BACKWARD,))]
    step = order % n
    kind = np.array(kinds)[order // n]
    loop = step // size % v
    chunk = np.where(kind == FORWARD, loop, v - 1 - loop)
    micro_batch = step // (size * v) * size + step % size
    return Order(
        rank=np.repeat(np.arange(pp), order.shape[1]),
        kind=kind.ravel(),
        micro_batch=micro_batch.ravel(),
        chunk=chunk.ravel(),
        with_next=np.zeros(order.size, dtype=bool),
    )


def _interleaved(pp: int, m: int, v: int) -> Order:
    return alternating(pp, m, v, hops=2)


def _one_chunk_held(rank: Ints, chunk: Ints, pp: Ints, vpp: Ints, m: Ints) -> Ints:
    """``min(pp - r, m)``."""
    return np.minimum(pp - rank, m)


def _chunks_held(rank: Ints, chunk: Ints, pp: Ints, vpp: Ints, m: Ints) -> Ints:
    """The warm-up and the pass after it, dealt over the chunks in rounds of `size` micro-batches.

    ``2 (pp - 1 - r) + (vpp - 1) size + 1`` chunk passes; `size` is pp, or the next number that
    divides the micro-batches, or all of them where they are fewer.
    """
    size = m // np.maximum(m // pp, 1)
    passes = np.minimum(2 * (pp - 1 - rank) + (vpp - 1) * size + 1, m * vpp)
    rounds, more = passes // (size * vpp), passes % (size * vpp)
    return np.minimum(rounds * size + np.clip(more - chunk * size, 0, size), m)


SCHEDULES = (
    Schedule(word="1f1b", order=alternating, by_default=True, in_flight=_one_chunk_held),
    Schedule(
        word="interleaved",
        order=_interleaved,
        fewest_chunks=2,
        most_chunks=MANY,
        by_default=True,
        takes_rounds=True,
        in_flight=_chunks_held,
    ),
)
