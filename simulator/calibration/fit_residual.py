"""What the formula of a product leaves over on timed shapes, smoothed, as weights of those shapes.

The process of :mod:`simulator.calibration.smoothing` over all series of one generation and type
together. The mean at the shapes of one series is then written as weights of that series' shapes
alone, so that a device ships what it needs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.calibration import Floats
from simulator.calibration.gemm_series import Series
from simulator.calibration.smoothing import Points, Spread, pulls, shares
from simulator.cost.residual import features, matern
from simulator.hardware.residuals import SIZES

__all__ = ["residual_groups", "residual_weights"]

_SPREAD = Spread(shared=0.06, library=0.04, own=0.05, noise=0.05, most=0.4)
"""The same shape on two alike devices differs by `noise`; a call timed at half the rate is another
event."""

_SMOOTHING = 1e-3
"""Variance, over that of the kernel, within which weights follow the mean."""


def residual_groups(series: Sequence[Series]) -> list[list[int]]:
    """Positions of the series that share a residual: one generation, one type."""
    keys = [(one.accelerator.generation, one.dtype) for one in series]
    return [[i for i, key in enumerate(keys) if key == group] for group in sorted(set(keys))]


def residual_weights(
    series: Sequence[Series], logs: Sequence[Floats], used: Sequence[NDArray[np.bool_]]
) -> list[Floats]:
    """Weights of the used rows of each series of one group.

    Parameters
    ----------
    series, logs, used : sequence
        Series of one generation and type; log(measured / formula) of their rows; rows to learn
        from.

    Returns
    -------
    list of ndarray
        For each series, one weight for each used row.
    """
    if not series:
        return []
    from scipy.linalg import cho_factor, cho_solve  # type: ignore[import-untyped, unused-ignore]

    at = [
        features("gemm", {name: one.rows[name][rows] for name in SIZES["gemm"]})
        for one, rows in zip(series, used, strict=True)
    ]
    owner = np.repeat(np.arange(len(at)), [len(points) for points in at])
    names = sorted({one.library for one in series})
    library = np.array([names.index(one.library) for one in series])[owner]
    points = Points(place=np.concatenate(at), library=library, owner=owner)
    left = np.concatenate([log[rows] for log, rows in zip(logs, used, strict=True)])

    close = matern(points.place, points.place)
    joint = close * shares(points, points, _SPREAD)
    pull = pulls(points, left, _SPREAD)
    weights = []
    for number in range(len(at)):
        own = owner == number
        mean, near = joint[own] @ pull, close[np.ix_(own, own)]
        near[np.diag_indices_from(near)] += _SMOOTHING
        weights.append(np.asarray(cho_solve(cho_factor(near), mean)))
    return weights
