"""Zero bubble H1, H2 and V (Qi et al. 2023): weight passes of their own fill the idle time."""

from __future__ import annotations

import numpy as np

from simulator.arrays import Floats
from simulator.schedules.one_f_one_b import alternating
from simulator.schedules.schedule import MANY, Order, Schedule, there_and_back
from simulator.schedules.token_patterns import Tokens, of_ranks


def _h1(pp: int, m: int, v: int) -> Order:
    return alternating(pp, m, v, delay=1, splits_backward=True)


def _h2(pp: int, m: int, v: int) -> Order:
    return alternating(pp, m, v, hops=2, delay=2, splits_backward=True)


def _v(pp: int, m: int, v: int) -> Order:
    return of_ranks([_zb_v(rank, pp, max(m, 2 * pp - 1)) for rank in range(pp)], m)


def _zb_v(rank: int, ranks: int, m: int) -> Tokens:
    """ZB-V (Qi et al. 2023, section 6), as torch's ScheduleZBVZeroBubble orders it."""
    after = ranks - rank
    steady = m - (2 * ranks - rank - 1)
    return [
        (2 * after - 1, "F0"),
        (rank, "F1 F0"),
        (after, "F1 I1 W1"),
        (steady, "F0 I0 W0 F1 I1 W1"),
        (after - 1, "I0 W0 F1 I1 W1"),
        (rank, "I0 I1"),
        (after, "I0 W0"),
        (rank, "W1"),
        (rank, "W0"),
    ]


def _h2_idle_s(forward_s: Floats, input_s: Floats, weight_s: Floats) -> Floats:
    """Qi et al. 2023, table 2, for passes as they assume them (F <= W, I <= F); else as played."""
    return np.maximum(np.maximum(forward_s + input_s - 2.0 * weight_s, input_s - forward_s), 0.0)


def _v_idle_s(forward_s: Floats, input_s: Floats, weight_s: Floats) -> Floats:
    """What the table of actions gives when it is played."""
    turned = np.maximum(2.0 * forward_s - input_s - weight_s, 2.0 * (input_s - weight_s))
    return np.maximum(turned, _h2_idle_s(forward_s, input_s, weight_s)) / 2.0


SCHEDULES = (
    Schedule(word="zb_h1", order=_h1, splits_backward=True, post_validated=True),
    Schedule(
        word="zb_h2",
        order=_h2,
        splits_backward=True,
        post_validated=True,
        barrier_free_idle_s=_h2_idle_s,
    ),
    Schedule(
        word="zb_v",
        order=_v,
        piece=there_and_back,
        fewest_chunks=2,
        most_chunks=2,
        splits_backward=True,
        post_validated=True,
        barrier_free_idle_s=_v_idle_s,
    ),
    Schedule(
        word="interleaved_zb",
        order=_h1,
        fewest_chunks=2,
        most_chunks=MANY,
        splits_backward=True,
        takes_rounds=True,
        post_validated=True,
    ),
)
