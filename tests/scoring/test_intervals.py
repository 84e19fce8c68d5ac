"""Intervals: coverage, width and score worked by hand (Gneiting and Raftery 2007, equation 43)."""

from __future__ import annotations

import pytest

from simulator.scoring.scores import constant_half_width, interval_statistics

# Measured 10 s each: predicted 10, 12, 8 and 10 s.
ERRORS = [0.0, 0.2, -0.2, 0.0]
INTERVALS = [(0.9, 1.1), (1.1, 1.3), (0.6, 0.95), (0.8, 1.2)]


def test_the_score_is_the_width_and_ten_times_the_miss() -> None:
    found = interval_statistics(INTERVALS, ERRORS, None)
    assert found["coverage_80"] == 0.5  # the second misses by 0.1, the third by 0.05
    assert found["interval_width"] == pytest.approx(0.275)  # 0.2, 0.2, 0.35, 0.4
    assert found["interval_score"] == pytest.approx((0.2 + 1.2 + 0.85 + 0.4) / 4)


def test_a_bound_that_is_met_is_inside() -> None:
    found = interval_statistics([(1.0, 1.5), (0.5, 1.0)], [0.2, -0.2], None)
    assert (found["coverage_80"], found["interval_score"]) == (1.0, 0.5)


def test_the_constant_width_is_the_smallest_that_holds_80_percent() -> None:
    # measured over predicted: 1, 10/12, 10/8, 1; four of four are needed for 80 %
    assert constant_half_width(ERRORS) == pytest.approx(0.25)
    # with a fifth row, four of five are enough
    assert constant_half_width([*ERRORS, 0.0]) == pytest.approx(1 / 6)
    tenths = [1 / (1 + i / 100) - 1 for i in range(1, 36)]  # measured 1 to 35 % above predicted
    assert constant_half_width(tenths) == pytest.approx(0.28)  # 28 of 35, not 29
    assert constant_half_width([]) is None


def test_the_constant_interval_is_scored_on_the_same_rows() -> None:
    found = interval_statistics(INTERVALS, ERRORS, 0.25)["constant_interval"]
    # widths are 0.5 x 1, 1.2, 0.8 and 1; nothing lies outside
    assert found["half_width"] == 0.25
    assert found["coverage_80"] == 1.0
    assert found["interval_width"] == pytest.approx(0.5)
    assert found["interval_score"] == pytest.approx((0.5 + 0.6 + 0.4 + 0.5) / 4)


def test_a_constant_interval_that_is_missed_pays() -> None:
    # predicted 8 of 10 s, interval 8 x (1 - 1/6) to 8 x (1 + 1/6) = 9.333: missed by 0.667 s
    found = interval_statistics([(0.5, 1.5)], [-0.2], 1 / 6)["constant_interval"]
    assert found["coverage_80"] == 0.0
    assert found["interval_score"] == pytest.approx(1.6 / 6 + 10 * 0.2 / 3)


def test_its_own_defining_row_is_inside() -> None:
    errors = [0.1, -0.3, 0.07, 0.23, -0.11, 0.31, -0.02]
    half_width = constant_half_width(errors)
    found = interval_statistics([(0.5, 1.5)] * 7, errors, half_width)["constant_interval"]
    assert found["coverage_80"] == pytest.approx(6 / 7)  # 80 % of seven, rounded up


def test_without_an_interval_there_is_no_number() -> None:
    found = interval_statistics([], [], 0.25)
    constant = found.pop("constant_interval")
    assert set(found.values()) == {None}
    assert constant == {
        "half_width": 0.25,
        "coverage_80": None,
        "interval_width": None,
        "interval_score": None,
    }
