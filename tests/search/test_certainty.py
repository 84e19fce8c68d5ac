"""Chances of a limit against SciPy's distribution."""

import numpy as np
from scipy import stats

from simulator.search.certainty import Certainty, heavy_tailed

ONES = np.ones(2)
STEP_S = np.array([10.0, 10.0])
SURE = Certainty(
    p10_s=np.array([9.0, 8.0]), p90_s=np.array([11.0, 14.0]), fastest=ONES, beats_best=ONES
)


def test_heavy_tails_are_those_of_student_with_four_degrees_of_freedom():
    scores = np.array([-1e9, -50.0, -3.0, -1.0, -0.2, 0.0, 0.5, 1.5, 4.0, 1e9])
    np.testing.assert_allclose(heavy_tailed(scores), stats.t.cdf(scores, 4), atol=1e-12)
    assert np.isnan(heavy_tailed(np.array([np.nan]))).all()


def test_a_chance_is_ten_of_a_hundred_at_p10_and_ninety_at_p90():
    """Below the step time its own P10 counts, above it P90, whatever the unit of the values."""
    for limit, chance in ((SURE.p10_s, 0.1), (STEP_S, 0.5), (SURE.p90_s, 0.9)):
        reached = SURE.chance_within(3.0 * STEP_S, STEP_S, 3.0 * limit)
        np.testing.assert_allclose(reached, chance, atol=2e-4)
