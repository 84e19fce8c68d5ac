"""Damped Gauss-Newton steps on a soft loss with priors, where every evaluation is dear.

A figure of a profile moves only the runs that use it, so that one Jacobian costs as many runs as
each parameter reaches, not parameters times runs. The loss weighs an error beyond a bound less and
less; its curvature is that of the weighted squares, so that a step never leads uphill for long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from simulator.arrays import Floats

_MOST_STEPS = 12
_LEAST_GAIN = 0.1
"""Decrease of the loss below which no further step is worth its evaluations: parameters are then
within a third of a prior width of the best."""
_SHARES = (1.0, 0.5, 0.25, 0.125)
"""Shares of a step that are tried in turn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Descent:
    """Where the steps ended."""

    at: Floats
    """Parameters, in prior widths from the prior."""
    errors: Floats
    slopes: Floats
    """Change of the errors (rows) by one prior width of a parameter (columns), at `at`."""


def soft_weights(errors: Floats, soft: float) -> Floats:
    """Weights by which squares stand for the soft-L1 loss ``2 (sqrt(1 + (e / soft)^2) - 1)``."""
    return np.asarray(1.0 / np.sqrt(1.0 + (errors / soft) ** 2) / soft**2)


def curvature(slopes: Floats, weights: Floats) -> Floats:
    """Curvature of half the loss with one unit for every prior."""
    return np.asarray(slopes.T @ (slopes * weights[:, None]) + np.eye(slopes.shape[1]))


def descend(
    errors: Callable[[Floats], Floats],
    slopes: Callable[[Floats, Floats], Floats],
    start: Floats,
    bounds: tuple[Floats, Floats],
    *,
    soft: float,
) -> Descent:
    """Minimise the soft loss of the errors and one square for each prior within bounds.

    Parameters
    ----------
    errors : Callable
        Errors of all rows from parameters, which are in prior widths from the prior.
    slopes : Callable
        Their Jacobian, from parameters and the errors there.
    start : ndarray
        First parameters; those outside the bounds are moved to them.
    bounds : tuple of ndarray
        Least and largest parameters.
    soft : float
        Error beyond which a row weighs less.

    Notes
    -----
    A parameter at a bound that its slope pushes against stays there while the others move.
    """
    low, high = bounds
    at = np.clip(start, low, high)
    found = errors(at)
    steepness = slopes(at, found)
    for _ in range(_MOST_STEPS):
        step = _step(at, found, steepness, bounds, soft)
        before, better = _loss(at, found, soft), None
        for share in _SHARES:
            tried = np.clip(at + share * step, low, high)
            if np.array_equal(tried, at) or _expected(tried - at, at, found, steepness, soft) < (
                _LEAST_GAIN
            ):
                break
            after = errors(tried)
            if _loss(tried, after, soft) < before:
                better = tried, after
                break
        if better is None:
            break
        at, found = better
        steepness = slopes(at, found)
    return Descent(at=at, errors=found, slopes=steepness)


def _loss(at: Floats, errors: Floats, soft: float) -> float:
    return float(np.sum(2.0 * (np.sqrt(1.0 + (errors / soft) ** 2) - 1.0)) + at @ at)


def _gradient(at: Floats, errors: Floats, slopes: Floats, soft: float) -> Floats:
    """Of half the loss."""
    return np.asarray(slopes.T @ (soft_weights(errors, soft) * errors) + at)


def _step(
    at: Floats, errors: Floats, slopes: Floats, bounds: tuple[Floats, Floats], soft: float
) -> Floats:
    """Solve for the step of the parameters that no bound holds."""
    low, high = bounds
    pull = _gradient(at, errors, slopes, soft)
    free = ~(((at <= low) & (pull > 0)) | ((at >= high) & (pull < 0)))
    bent = curvature(slopes[:, free], soft_weights(errors, soft))
    step = np.zeros_like(at)
    step[free] = -np.linalg.solve(bent, pull[free])
    return step


def _expected(step: Floats, at: Floats, errors: Floats, slopes: Floats, soft: float) -> float:
    """How much the loss falls over a step if the errors are straight lines."""
    bent = curvature(slopes, soft_weights(errors, soft))
    return float(-(2.0 * _gradient(at, errors, slopes, soft) @ step + step @ bent @ step))
