"""Durations that vary: every task draws its own, and the slowest of many decides.

A task's duration is multiplied by exp(spread z - spread^2 / 2) with z normal: lognormal with the
given mean. Where a task stands for many ranks that must all arrive (a collective, or replicas that
are simulated once), the slowest of them counts: the largest of k draws is the quantile u^(1/k) of
one, u uniform, so that it is drawn at once (David and Nagaraja, Order Statistics, section 2.1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from simulator.arrays import Floats
from simulator.compiled import compiled
from simulator.errors import InputError


def slowest_factor(
    spread: ArrayLike, seed: int | Sequence[int], slowest_of: ArrayLike = 1, tasks: int = 1
) -> Floats:
    """Draw by how much the slowest of some ranks exceeds the mean, one factor per task.

    Parameters
    ----------
    spread : array_like
        Standard deviation of the logarithm; one for all tasks, or one per task.
    seed : int or sequence of int
        The same seed gives the same factors.
    slowest_of : array_like
        Ranks that a task stands for, of which the slowest counts; one for all, or one per task.
    tasks : int

    Examples
    --------
    >>> bool(slowest_factor(0.1, 7, 1000)[0] > slowest_factor(0.1, 7, 1)[0])
    True
    """
    sigma, ranks = np.asarray(spread, np.float64), np.asarray(slowest_of, np.float64)
    if not ((sigma >= 0.0) & np.isfinite(sigma)).all():
        raise InputError(f"jitter: spread must be finite and not negative, got {sigma.min()}")
    if not (ranks >= 1.0).all():
        raise InputError(f"jitter: slowest_of must be 1 or more, got {ranks.min()}")
    u = np.random.default_rng(seed).random(tasks)
    # the share of draws above the largest of k: 1 - u^(1/k), without cancellation
    above = -np.expm1(np.log(np.maximum(u, 1e-300)) / np.broadcast_to(ranks, tasks))
    return np.asarray(np.exp(sigma * _normal(above) - 0.5 * sigma**2))


def _normal(above: Floats) -> Floats:
    """Find the normal deviate that a given share of draws exceeds."""
    deviate = np.empty(len(above))
    _newton(above, deviate)
    return deviate


@compiled
def _newton(above, deviate):  # type: ignore[no-untyped-def]
    """The same by Newton's method, into `deviate`."""
    for i in range(len(above)):
        small = max(min(above[i], 1.0 - above[i]), 1e-300)
        # start: the tail is near exp(-z^2 / 2) / 2 at most, so this lies above the root
        z = math.sqrt(max(-2.0 * math.log(2.0 * small), 0.0))
        for _ in range(60):
            tail = 0.5 * math.erfc(z / math.sqrt(2.0))
            density = math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
            # on the logarithm of the tail, which is nearly a parabola
            step = tail / density * math.log(tail / small)
            z += step
            if abs(step) < 1e-14 * (1.0 + abs(z)):
                break
        deviate[i] = z if above[i] <= 0.5 else -z
