"""PipeDream (Narayanan et al. 2019) and PipeDream-2BW (Narayanan et al. 2021, ICML).

Listed as 1F1B over the micro-batches of a step; they go on from step to step without the drain.
"""

from __future__ import annotations

import numpy as np

from simulator.arrays import Ints
from simulator.schedules.one_f_one_b import alternating
from simulator.schedules.schedule import Schedule


def _stashed(rank: Ints, pp: Ints, micro_batches: Ints) -> Ints:
    """One version for every update among a rank's ``pp - r`` micro-batches in flight.

    A micro-batch takes the same weights back as forward (Narayanan et al. 2019, section 3.3).
    """
    return -(-(pp - rank - 1) // np.maximum(micro_batches, 1)) + 1


def _two(rank: Ints, pp: Ints, micro_batches: Ints) -> Ints:
    return np.full_like(rank, 2)


SCHEDULES = (
    Schedule(word="pipedream", order=alternating, flushes=False, weight_versions=_stashed),
    Schedule(
        word="pipedream_2bw",
        order=alternating,
        rounds_needed=1,
        flushes=False,
        weight_versions=_two,
    ),
)
