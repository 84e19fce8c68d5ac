"""What the formula of a product leaves over on timed shapes, smoothed, as weights of those shapes.

A Gaussian process over log2 of M, N and K (``cost/residual.py`` says in which units) for all
series of one generation and type together: kernels of one generation share most of what the
formula misses, libraries some, and each series has its own. The mean at the shapes of one series is
then written as weights of that series' shapes alone, so that a device ships what it needs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.calibration import Floats
from simulator.calibration.gemm_series import Series
from simulator.cost.residual import features, matern

__all__ = ["residual_groups", "residual_weights"]

_SHARED, _LIBRARY, _OWN = 0.06, 0.04, 0.05
"""Standard deviation of log(time / formula) that a generation, a library, a series adds."""

_NOISE = 0.05
"""Standard deviation of one timing about what is smooth: the same shape on two alike devices."""

_MOST = 0.4
"""Largest log ratio that is believed: a call timed at half the rate is another event."""

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
        features(*(one.rows[name][rows] for name in ("m", "n", "k")))
        for one, rows in zip(series, used, strict=True)
    ]
    place = np.concatenate(at)
    owner = np.repeat(np.arange(len(at)), [len(points) for points in at])
    names = sorted({one.library for one in series})
    library = np.array([names.index(one.library) for one in series])[owner]
    left = np.concatenate([log[rows] for log, rows in zip(logs, used, strict=True)])

    close = matern(place, place)
    share = np.full(close.shape, _SHARED**2)
    share += _LIBRARY**2 * (library[:, None] == library[None, :])
    share += _OWN**2 * (owner[:, None] == owner[None, :])
    joint = close * share
    learnt = joint + _NOISE**2 * np.eye(len(left))
    pulls = cho_solve(cho_factor(learnt, overwrite_a=True), np.clip(left, -_MOST, _MOST))

    weights = []
    for number in range(len(at)):
        own = owner == number
        mean, near = joint[own] @ pulls, close[np.ix_(own, own)]
        near[np.diag_indices_from(near)] += _SMOOTHING
        weights.append(np.asarray(cho_solve(cho_factor(near), mean)))
    return weights
