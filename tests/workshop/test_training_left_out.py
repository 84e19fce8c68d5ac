"""Runs left out of the training fit: one step of Newton's is exact where the loss is quadratic."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from workshop.fits.training.fit import _SOFT_L1, left_out


def linear_fit(slopes: Any, intercepts: Any, beside: float = 0.0) -> Any:
    """Fit of errors ``intercepts + slopes x``, so small that the soft loss is a square.

    Every parameter is `beside` widths from its best value, as rounding leaves it.
    """
    curvature = slopes.T @ slopes / _SOFT_L1**2 + np.eye(slopes.shape[1])
    at = -np.linalg.solve(curvature, slopes.T @ intercepts / _SOFT_L1**2) + beside
    wide = np.full(slopes.shape[1], 1e9)
    return SimpleNamespace(
        runs=[SimpleNamespace(row=name) for name in "aaabbbcc"],
        offsets=at,
        slopes=slopes,
        after=intercepts + slopes @ at,
        bounds=(-wide, wide),
    )


@pytest.mark.parametrize("beside", [0.0, 1e-4])
def test_equals_refitting_without_the_group(beside: float) -> None:
    draw = np.random.default_rng(1)
    slopes = draw.normal(size=(8, 3)) * 0.1
    intercepts = draw.normal(size=8) * 1e-5
    found = left_out(linear_fit(slopes, intercepts, beside), group=lambda row: str(row))
    for name, rows in (("a", range(3)), ("b", range(3, 6)), ("c", range(6, 8))):
        out = np.isin(np.arange(8), list(rows))
        kept, curve = slopes[~out], slopes[~out].T @ slopes[~out] / _SOFT_L1**2 + np.eye(3)
        at = -np.linalg.solve(curve, kept.T @ intercepts[~out] / _SOFT_L1**2)
        want = intercepts[out] + slopes[out] @ at
        assert found[out] == pytest.approx(want, rel=1e-4), name


def test_a_parameter_that_only_the_group_holds_falls_back_to_its_prior() -> None:
    slopes = np.zeros((8, 2))
    slopes[:3, 0] = 0.1  # the first parameter is known from runs a alone
    slopes[3:, 1] = 0.1
    intercepts = np.r_[np.full(3, 1e-5), np.full(5, -1e-5)]
    fit = linear_fit(slopes, intercepts)
    assert np.all(np.abs(fit.after[:3]) < 1e-6)
    assert left_out(fit, group=lambda row: str(row))[:3] == pytest.approx(1e-5, rel=1e-3)
