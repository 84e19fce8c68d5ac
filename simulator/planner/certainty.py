"""How sure a prediction or a ranking is: intervals, chances of being fastest, ties."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.cost.estimate import Estimate
from simulator.cost.uncertainty import (
    bearing,
    chance_of_beating,
    errors_of,
    interval,
    probability_fastest,
)
from simulator.hardware.cluster import Cluster
from simulator.software import Software
from simulator.workload.recipe import Workload

__all__ = ["TIE", "Certainty", "certainty"]

Floats = NDArray[np.float64]

TIE = 0.2
"""Least chance of beating the best layout at which another one ties with it."""


@dataclass(frozen=True, kw_only=True)
class Certainty:
    """Per layout of an estimate, in its order."""

    p10_s: Floats
    """Step time that is undercut with a chance of one in ten."""
    p90_s: Floats
    fastest: Floats
    """Probability of being the fastest of these layouts; NaN where they were not compared."""
    beats_best: Floats
    """Probability of being faster than the first one, of which it is one half; NaN likewise."""

    @property
    def tied(self) -> int:
        """How many leading layouts cannot be told apart: each may well be faster than the first."""
        apart = np.flatnonzero(self.beats_best < TIE)
        return int(apart[0]) if len(apart) else len(self.beats_best)

    def span(self, values: Floats, step_s: Floats) -> tuple[Floats, Floats]:
        """P10 and P90 of values that grow with the step time: days, GPU-hours, USD, energy."""
        return values * self.p10_s / step_s, values * self.p90_s / step_s


def certainty(
    estimate: Estimate,
    workload: Workload,
    cluster: Cluster,
    software: Software,
    *,
    compared: bool = False,
) -> Certainty:
    """Judge how sure the step times of an estimate are.

    `compared`: its layouts are those of one run, the best one first; say which may be the fastest.
    """
    errors = errors_of(cluster, software, workload.recipe)
    shares = bearing(estimate, experts=workload.architecture.is_moe)
    step_s = estimate.step_time_s
    low, high = interval(step_s, shares, errors)
    unknown = np.full(len(step_s), np.nan)
    return Certainty(
        p10_s=low,
        p90_s=high,
        fastest=probability_fastest(step_s, shares, errors) if compared else unknown,
        beats_best=chance_of_beating(step_s, shares, errors) if compared else unknown,
    )
