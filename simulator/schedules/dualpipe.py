"""DualPipe and DualPipeV (DeepSeek 2024): forward passes beside backward ones of another batch.

DualPipe on pp ranks is DualPipeV on half as many, run by both halves at once: rank r and its
mirror do the same, each with half of the micro-batches of both directions.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulator.schedules.schedule import Order, Schedule, both_ways, there_and_back
from simulator.schedules.token_patterns import Tokens, of_ranks


def _one_way(pp: int, m: int, v: int) -> Order:
    return of_ranks([_dualpipe_v(rank, pp, m) for rank in range(pp)], m)


def _two_ways(pp: int, m: int, v: int) -> Order:
    ranks, share = pp // 2, m // 2
    half = [_dualpipe_v(rank, ranks, share) for rank in range(ranks)]
    order = of_ranks([half[min(rank, pp - 1 - rank)] for rank in range(pp)], share)
    chunk = np.where(order.rank < ranks, order.chunk, 1 - order.chunk)
    return replace(order, chunk=chunk, micro_batch=order.micro_batch + chunk * share)


def _dualpipe_v(rank: int, ranks: int, m: int) -> Tokens:
    """The eight steps of DualPipe's README and code; the last one or two backward passes split."""
    behind = ranks - 1 - rank
    main = m - 2 * ranks + rank + 1
    together = "F0+ B1 F1+ B0"
    # the middle rank does not overlap its first pair, which shortens the bubble
    first = "F0 B1 F1+ B0" if rank == ranks - 1 else together
    pairs = rank + 1
    whole, odd = pairs // 2, rank % 2
    turn = [] if odd else [(1, "B1 I0")]
    return [
        (2 * behind, "F0"),
        (pairs, "F0 F1"),
        (behind, "I1 W F1"),
        (1, first),
        (main - 1, together),
        (behind, "B1 F1+ B0"),
        (whole, "B1 B0"),
        *turn,
        (pairs - whole - len(turn), "I1 I0"),
        (behind, "W I0"),
        (pairs, "W"),
    ]


SCHEDULES = (
    Schedule(
        word="dualpipe",
        order=_two_ways,
        piece=both_ways,
        rounds_needed=2,
        even=True,
        copies=2,
        splits_backward=True,
        joins_passes=True,
    ),
    Schedule(
        word="dualpipe_v",
        order=_one_way,
        piece=there_and_back,
        fewest_chunks=2,
        most_chunks=2,
        rounds_needed=2,
        splits_backward=True,
        joins_passes=True,
    ),
)
