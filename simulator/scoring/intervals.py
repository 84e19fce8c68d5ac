"""How good P10-P90 intervals are, beside intervals that know nothing but an average error.

An interval is worth its width only if it holds what it promises; the interval score charges both.
Everything is relative to the measured value, which is 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from simulator.arrays import Floats

ALPHA = 0.2
"""Share of measurements that may lie outside a P10-P90 interval."""

_KEYS = ("coverage_80", "interval_width", "interval_score")


def constant_half_width(errors: Sequence[float]) -> float | None:
    """Find the ``h`` for which ``predicted x (1 - h)`` to ``predicted x (1 + h)`` holds 80 %.

    Parameters
    ----------
    errors : sequence of float
        Relative errors ``predicted / measured - 1`` of the rows that it is fitted to.

    Returns
    -------
    float or None
        The smallest such number; None without a row.

    Examples
    --------
    Measured values are 1/1.25 = 0.8, 1.0, 1.0, 1.0 and 1/0.5 = 2 times the prediction; four of
    five lie within 20 %:

    >>> round(constant_half_width([0.25, 0.0, 0.0, 0.0, -0.5]), 3)
    0.2
    """
    distances = sorted(_distances(errors))
    inside = -(-4 * len(distances) // 5)  # 80 %, rounded up, in whole numbers
    return float(distances[inside - 1]) if distances else None


def interval_statistics(
    intervals: Sequence[tuple[float, float]],
    errors: Sequence[float],
    half_width: float | None,
) -> dict[str, Any]:
    """Score intervals, and beside them those of constant width.

    The interval score (Gneiting and Raftery 2007, equation 43) is the width, plus 2/alpha times
    the distance by which the measured value lies outside; smaller is better.

    Parameters
    ----------
    intervals : sequence of (float, float)
        P10 and P90 over the measured value, of the rows that have an interval.
    errors : sequence of float
        Relative errors ``predicted / measured - 1`` of the same rows.
    half_width : float or None
        Of the constant interval, see :func:`constant_half_width`.

    Returns
    -------
    dict
        ``coverage_80``: share of measured values inside; ``interval_width``: median width;
        ``interval_score``: mean score; ``constant_interval``: `half_width` and the same three.
        None without an interval.
    """
    constant: dict[str, Any] = {"half_width": half_width, **dict.fromkeys(_KEYS)}
    if not intervals:
        return {**dict.fromkeys(_KEYS), "constant_interval": constant}
    low, high = np.asarray(intervals, dtype=float).T
    outside = np.maximum(np.maximum(low - 1.0, 1.0 - high), 0.0)
    if half_width is not None:
        predicted = 1.0 + np.asarray(errors, dtype=float)
        beyond = predicted * np.maximum(_distances(errors) - half_width, 0.0)
        constant |= _scores(2.0 * half_width * predicted, beyond)
    return {**_scores(high - low, outside), "constant_interval": constant}


def _distances(errors: Sequence[float]) -> Floats:
    """How far measured values lie from their predictions, relative to the predictions."""
    return np.asarray(np.abs(1.0 / (1.0 + np.asarray(errors, dtype=float)) - 1.0))


def _scores(width: Floats, outside: Floats) -> dict[str, float]:
    values = (np.mean(outside == 0.0), np.median(width), np.mean(width + 2.0 / ALPHA * outside))
    return dict(zip(_KEYS, map(float, values), strict=True))
