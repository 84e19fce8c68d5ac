"""How sure a prediction or a ranking is: intervals, chances of being fastest, ties."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.cost.estimate import Estimate, concatenate
from simulator.cost.uncertainty import (
    Belief,
    bearing,
    belief,
    expected_order,
    same_kernels,
    spread_near,
    traits,
)
from simulator.economics.planning_factor import PlanningFactor, Span
from simulator.evidence.likeness import P90_T4, Nearness, nearness
from simulator.hardware.cluster import Cluster
from simulator.record_cache import for_same_records
from simulator.records import dataclass
from simulator.software.profile import Software
from simulator.units import P90
from simulator.workload.recipe import Workload

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

    def take(self, rows: Sequence[int]) -> Certainty:
        """Some of the layouts, by their rows."""
        return Certainty(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    def span(
        self, values: Floats, step_s: Floats, spread: Floats | float = 0.0
    ) -> tuple[Floats, Floats]:
        """P10 and P90 of values that grow with the step time: days, GPU-hours, USD, energy.

        Parameters
        ----------
        values, step_s : ndarray
            Per layout.
        spread : ndarray or float
            Relative standard deviation that the value has beyond the step time's: of the price,
            of the draw. Independent errors: variances of the logarithm add on each side.
        """
        low, high = (np.hypot(side, P90 * spread) for side in self._sides(step_s))
        return values * np.exp(-low), values * np.exp(high)

    def chance_within(
        self,
        values: Floats,
        step_s: Floats,
        limit: float | None,
        spread: Floats | float = 0.0,
    ) -> Floats:
        """Chance that values which grow with the step time stay within a limit.

        Parameters are those of :meth:`span`; NaN without a limit. On each side of the median the
        logarithm has the tails of Student's t with four degrees of freedom, through P10 and P90.

        Examples
        --------
        A deadline at the P90 of the days:

        >>> ends = {"p10_s": np.array([9.0]), "p90_s": np.array([12.0])}
        >>> sure = Certainty(**ends, fastest=np.array([np.nan]), beats_best=np.array([np.nan]))
        >>> round(float(sure.chance_within(np.array([100.0]), np.array([10.0]), 120.0)[0]), 3)
        0.9
        """
        if limit is None:
            return np.full(len(step_s), np.nan)
        low, high = (np.hypot(side, P90 * spread) for side in self._sides(step_s))
        away = np.log(limit / values)
        side = np.where(away < 0.0, low, high)
        with np.errstate(divide="ignore", invalid="ignore"):
            return heavy_tailed(P90_T4 * away / side)

    def planned(self, step_s: Floats, factor: PlanningFactor) -> Certainty:
        """Return the certainty of values that a planning factor was put on.

        The interval of the factor holds the error of the steps it was learnt of; what a step is
        less sure than those comes on top.
        """
        known = P90 * factor.step_spread
        low, high = (np.sqrt(np.maximum(side**2 - known**2, 0.0)) for side in self._sides(step_s))
        low = np.hypot(low, np.log(factor.value / factor.p10))
        high = np.hypot(high, np.log(factor.p90 / factor.value))
        return replace(self, p10_s=step_s * np.exp(-low), p90_s=step_s * np.exp(high))

    def _sides(self, step_s: Floats) -> tuple[Floats, Floats]:
        """Logarithms from P10 to the step time, and from there to P90."""
        return np.log(step_s / self.p10_s), np.log(self.p90_s / step_s)


def heavy_tailed(score: Floats) -> Floats:
    """Cumulative distribution of Student's t with four degrees of freedom."""
    part = np.clip(score, -1e8, 1e8) / 2.0
    sine = part / np.sqrt(1.0 + part**2)
    return np.asarray(np.where(np.isnan(score), np.nan, 0.5 + 0.25 * sine * (3.0 - sine**2)))


def ratio_span(
    before: Estimate, after: Estimate, workload: Workload, cluster: Cluster, software: Software
) -> tuple[float, float]:
    """Return P10 and P90 of the step time of one layout over that of another, a row each.

    Errors that both share cancel; where one layout takes the same time on both machines, all do.
    """
    same = before.layouts.row() == after.layouts.row()
    ratio = float(after.step_time_s[0] / before.step_time_s[0])
    if same and ratio == 1.0:
        return ratio, ratio
    known = belief(cluster, software, workload)
    experts = workload.architecture.is_moe
    shares = np.concatenate([bearing(side, experts=experts) for side in (before, after)])
    both = concatenate([before, after]).layouts
    spread = float(np.sqrt(known.apart(shares, same_kernels(both), same=same)[1]))
    return ratio * math.exp(-P90 * spread), ratio * math.exp(P90 * spread)


def changed_total(
    before: float | None, after: float | None, ratio: float, span: tuple[float, float]
) -> dict[str, float | None]:
    """Return P10, P50 and P90 of how much more a run takes; each None where a total is not known.

    Parameters
    ----------
    before, after : float or None
        Days or USD, which grow with the step time.
    ratio, span
        Step time after over before, and its P10 and P90 (:func:`ratio_span`): what both totals are
        unsure of alike, such as the price, cancels.

    Examples
    --------
    A step that is 10 % shorter, give or take 5 %, of a run of 100 days:

    >>> changed_total(100.0, 90.0, 0.9, (0.85, 0.95))
    {'p10': -15.0, 'p50': -10.0, 'p90': -5.0}
    """
    if before is None or after is None:
        return dict.fromkeys(Span.KEYS)
    alike = after / ratio
    ends = (span[0] * alike - before, after - before, span[1] * alike - before)
    return {name: round(end, 12) for name, end in zip(Span.KEYS, ends, strict=True)}


CLOSE = 32
"""Of the fastest so many are ordered by what is to be expected of them."""


def by_expectation(
    values: Floats, estimate: Estimate, workload: Workload, cluster: Cluster, software: Software
) -> NDArray[np.intp]:
    """Order layouts, the best by `values` first, by what is to be expected of the first CLOSE.

    Where the best is hardly better than one that is nearer to measured runs, that one is taken
    (:func:`simulator.cost.uncertainty.expected_order`).
    """
    return each_by_expectation([(values, estimate)], workload, cluster, software)[0]


def each_by_expectation(
    several: Sequence[tuple[Floats, Estimate]],
    workload: Workload,
    cluster: Cluster,
    software: Software,
) -> list[NDArray[np.intp]]:
    """The same of several tables, each with its values; all are set against measured runs once."""
    orders = [np.arange(len(estimate)) for _, estimate in several]
    first = [x if len(x) <= CLOSE else x.part(np.arange(CLOSE)) for _, x in several]
    able = [
        i
        for i, (values, _) in enumerate(several)
        if len(first[i]) > 1 and np.isfinite(values[: len(first[i])]).all()
    ]
    if not able:
        return orders
    both = first[able[0]] if len(able) == 1 else concatenate([first[i] for i in able])
    ends = np.cumsum([len(first[i]) for i in able])
    errors = np.split(expected_errors(both, workload, cluster, software), ends[:-1])
    for i, error in zip(able, errors, strict=True):
        orders[i][: len(error)] = expected_order(several[i][0][: len(error)], error)
    return orders


@for_same_records(16)
def likened_runs(
    estimate: Estimate, workload: Workload, cluster: Cluster, software: Software
) -> Nearness:
    """All measured runs set against the layouts of an estimate."""
    return nearness(traits(estimate, workload, cluster, software))


def expected_errors(
    estimate: Estimate, workload: Workload, cluster: Cluster, software: Software
) -> Floats:
    """Relative errors of the step to expect of each layout, by measured runs near it."""
    return likened_runs(estimate, workload, cluster, software).expected


def certainty(
    estimate: Estimate,
    workload: Workload,
    cluster: Cluster,
    software: Software,
    *,
    compared: bool = False,
    believed: Belief | None = None,
    shares: Floats | None = None,
    likened: Nearness | None = None,
) -> Certainty:
    """Judge how sure the step times of an estimate are.

    Parameters
    ----------
    compared : bool
        Its layouts are those of one run, the best one first: say which may be the fastest.
    believed : Belief, optional
        What measured runs of this site say of the errors; the estimate is corrected by it already.
    shares : ndarray, optional
        What each error bears on, as :func:`simulator.cost.uncertainty.bearing` returns it for the
        estimate, unless something is to be added.
    likened : Nearness, optional
        Of measured runs to the layouts of the estimate, where they are set against them already.
    """
    known = believed or belief(cluster, software, workload)
    if shares is None:
        shares = bearing(estimate, experts=workload.architecture.is_moe)
    step_s = estimate.step_time_s
    low, high = known.interval(step_s, shares)
    if believed is None:
        near = likened or nearness(traits(estimate, workload, cluster, software))
        wide = spread_near(near)
        reach = np.exp(P90 * np.maximum(wide, known.log_spread(shares)))
        low, high = step_s / reach, step_s * reach
        known = belief(cluster, software, workload, wide=float(wide.mean()))
    fastest = beats = np.full(len(step_s), np.nan)
    if compared:
        kernels = same_kernels(estimate.layouts)
        fastest = known.fastest(step_s, shares, kernels)
        beats = known.beats(step_s, shares, kernels)
    return Certainty(p10_s=low, p90_s=high, fastest=fastest, beats_best=beats)
