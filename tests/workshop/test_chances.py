"""Chances beside what happened: pairs by hand, and the calibration groups."""

from __future__ import annotations

import numpy as np
import pytest

from simulator import catalogue
from simulator.scoring.validation import validate
from workshop.cases.chances import chances, pairs_of, reliability

RUNS = catalogue.folder("validation") / "runs"


def test_pairs_that_cannot_be_told_apart_are_no_forecast() -> None:
    beats = np.array([[0.5, 0.4, 0.1], [0.6, 0.5, 0.2], [0.9, 0.8, 0.5]])
    predicted, measured = np.array([1.0, 1.1, 1.5]), np.array([2.0, 1.9, 2.005])
    # the second was faster than the first; third and first are within one percent; the third
    # was slower than the second
    assert pairs_of(beats, predicted, measured) == [(0.4, True), (0.2, False)]


def test_bins_hold_what_was_said_and_what_happened() -> None:
    found = reliability([(0.01, False), (0.45, True), (0.5, False), (0.05, False), (0.05, True)])
    assert [(one["low"], one["pairs"]) for one in found] == [(0.0, 1), (0.02, 2), (0.4, 2)]
    assert found[1]["said"] == pytest.approx(0.05) and found[1]["happened"] == 0.5
    assert sum(one["pairs"] for one in found) == 5


@pytest.mark.evidence
def test_chances_of_the_calibration_groups_hold() -> None:
    """Where one in ten is said at most, one in ten happens at most; nowhere is a half exceeded."""
    (found,) = chances(validate(RUNS / "calibrate.csv").rows).values()
    assert sum(one["pairs"] for one in found) > 300
    sure = [one for one in found if one["high"] <= 0.1]
    wrong = sum(one["pairs"] * one["happened"] for one in sure)
    assert wrong / sum(one["pairs"] for one in sure) < 0.1
    for one in found:
        slack = 2.0 * np.sqrt(0.25 / one["pairs"])  # two standard deviations of a share
        assert one["happened"] < one["said"] + slack
