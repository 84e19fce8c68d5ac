"""What becomes of a run: goodput over its length, the best interval, and when it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.records import dataclass
from simulator.reliability.goodput import NEVER, Instant, goodput_by_interval, instant
from simulator.reliability.run_terms import HARDWARE, RunTerms
from simulator.units import DAY_S

_WITHOUT_END_S = 90.0 * DAY_S
"""Length over which rates are averaged where nobody gave the tokens of the run."""

_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(8)
_GOLDEN = (np.sqrt(5.0) - 1.0) / 2.0
_TRIES = 16
"""Golden sections: they find the interval to half a percent, where goodput is flat."""
_ROUNDS = 8


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """Of every layout; shape (layouts,) where nothing else is said."""

    terms: RunTerms
    goodput: Floats
    """Ideal time over wall time; 0 where the run can never finish."""
    wall_s: Floats
    """NaN where nobody gave the tokens of the run, inf where it can never finish."""
    deviation_s: Floats
    """Standard deviation of `wall_s` by what failures come and how long each takes."""
    phases: dict[str, Floats]
    """Shares of wall time that are lost, by phase; with goodput they add up to 1."""
    by_cause: Floats
    """Shares that each cause of interruptions takes, (layouts, causes)."""
    failures: Floats
    """Interruptions per second of wall time, (layouts, causes)."""
    interval_s: Floats
    """Ideal training time between checkpoints to storage."""
    daly_s: Floats
    """Daly's best interval, for comparison."""
    copy_interval_s: Floats
    hot_spares: Floats
    """Servers that wait, paid, beside the run."""

    @property
    def training_share(self) -> Floats:
        """Share of wall time in which devices train, what is repeated counted in."""
        names = ("lost work", "slow servers", *self.terms.extras)
        return np.asarray(self.goodput + sum(self.phases[name] for name in names))

    @property
    def relative_deviation(self) -> Floats:
        """Standard deviation of the wall time over it; 0 where its length is not known.

        And 0 where nine runs in ten see no interruption: neither P10 nor P90 has one then, however
        much longer than the run it would be.
        """
        with np.errstate(invalid="ignore", over="ignore"):
            none = np.exp(-self.terms.rate.sum(axis=1) * self.wall_s)
            deviation = np.nan_to_num(self.deviation_s / self.wall_s, nan=0.0)
        return np.where(none >= 0.9, 0.0, deviation)

    @property
    def finishes(self) -> Any:
        """Whether a run ends at all."""
        return self.goodput >= NEVER

    def take(self, rows: Any) -> Outlook:
        """Return the outlook of some layouts."""
        chosen: dict[str, Any] = {
            name: value[rows] for name, value in vars(self).items() if isinstance(value, np.ndarray)
        }
        phases = {name: share[rows] for name, share in self.phases.items()}
        return replace(self, terms=self.terms.take(rows), phases=phases, **chosen)

    def largest_losses(self, row: int = 0, most: int = 3) -> list[tuple[str, float]]:
        """Phases that take the most of wall time, the largest first."""
        shares = {name: float(share[row]) for name, share in self.phases.items()}
        return sorted(shares.items(), key=lambda item: -item[1])[:most]


def daly_interval(terms: RunTerms) -> Floats:
    """Daly's first estimate of the best interval, ``sqrt(2 d M) - d``, (layouts, 1).

    Daly 2006 (A higher order estimate of the optimum checkpoint interval), equation 9 without
    restarts; M is the mean time between interruptions, d what training waits for a checkpoint.
    """
    every = terms.rate.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        mean = 1.0 / every
    return np.asarray(np.maximum(np.sqrt(2.0 * terms.stall_s * mean) - terms.stall_s, terms.step_s))


def best_copy_interval(terms: RunTerms) -> Floats:
    """Interval of copies to peers by Young's formula, no less than a step; (layouts, 1)."""
    interval_s = terms.run.checkpoints.memory_interval_s
    if interval_s is not None:
        return np.full_like(terms.nodes, interval_s)
    every = np.maximum((terms.rate * terms.from_copies).sum(axis=1, keepdims=True), 1e-30)
    young = np.sqrt(2.0 * terms.copy_s / every)
    return np.asarray(np.maximum(young, terms.step_s))


def outlook(terms: RunTerms, *, scale: float = 1.0, interval_s: Any = None) -> Outlook:
    """Find goodput, the best interval where none is given, and the end of the run.

    Parameters
    ----------
    scale : float
        Multiplier of all rates but those of slow servers.
    interval_s : array_like, optional
        Intervals in place of those of the run, (layouts, 1).
    """
    if scale != 1.0:
        terms = _scaled(terms, scale)
    copies = best_copy_interval(terms)
    least = _least_interval(terms, copies)
    stated_s = stated_interval(terms) if interval_s is None else interval_s
    if stated_s is None:
        most = _most_interval(terms)
        goodput = goodput_by_interval(terms, copies)
        tau = _best(lambda interval: _inverse(goodput(interval)), least, most)
    else:
        tau = np.maximum(np.broadcast_to(np.asarray(stated_s, float), terms.nodes.shape), least)
    means, wall_s = _over_run(terms, tau, np.minimum(copies, tau))
    never = ~(means.goodput >= NEVER)
    good = np.where(never, 0.0, means.goodput)
    wall = np.where(never, np.nan, wall_s)
    wall_s = np.where(never, np.inf, wall_s)
    return Outlook(
        terms=terms,
        goodput=good[:, 0],
        wall_s=np.where(np.isnan(terms.work_s), np.nan, wall_s)[:, 0],
        deviation_s=np.sqrt(np.where(never, np.nan, means.deviation) * wall)[:, 0],
        phases={name: share[:, 0] for name, share in means.phases.items()},
        by_cause=means.by_cause,
        failures=means.failures,
        interval_s=tau[:, 0],
        daly_s=daly_interval(terms)[:, 0],
        copy_interval_s=copies[:, 0],
        hot_spares=terms.hot[:, 0],
    )


def stated_interval(terms: RunTerms) -> Any:
    """Interval that the run states, in seconds or in steps of each layout; None: the best."""
    every_steps = terms.run.checkpoints.every_steps
    if every_steps is None:
        return terms.run.checkpoints.interval_s
    return every_steps * terms.step_s


def relief(terms: RunTerms) -> float:
    """By how much rates must fall for a run that never finishes to finish, found by halving."""
    low, high = 0.0, 1.0
    for _ in range(16):
        middle = 0.5 * (low + high)
        ends = bool(outlook(terms, scale=middle).finishes.all())
        low, high = (middle, high) if ends else (low, middle)
    return low


def _scaled(terms: RunTerms, scale: float) -> RunTerms:
    return replace(terms, rate=terms.rate * scale)


def _inverse(goodput: Floats) -> Floats:
    return np.where(goodput > 0.0, 1.0 / np.maximum(goodput, 1e-300), np.inf)


def _least_interval(terms: RunTerms, copies: Floats) -> Floats:
    """A step, a copy to peers, and what the background takes: one checkpoint at a time."""
    least = np.maximum(terms.step_s, terms.background_s - terms.stall_s)
    return np.asarray(np.maximum(least, copies) if terms.in_memory else least)


def _most_interval(terms: RunTerms) -> Floats:
    work = np.where(np.isnan(terms.work_s), _WITHOUT_END_S, terms.work_s)
    return np.asarray(np.maximum(work, 2.0 * terms.step_s))


def _best(value: Callable[[Floats], Floats], low: Floats, high: Floats) -> Floats:
    """Least value between two bounds by golden sections of the logarithm, row by row.

    Where both tries are infinite (failures come before any checkpoint), shorter is taken.
    """
    a, b = np.log(low), np.log(np.maximum(high, low))
    x, y = b - _GOLDEN * (b - a), a + _GOLDEN * (b - a)
    at_x, at_y = value(np.exp(x)), value(np.exp(y))
    for _ in range(_TRIES):
        left = ~(at_x > at_y)
        a, b = np.where(left, a, x), np.where(left, y, b)
        fresh = np.where(left, b - _GOLDEN * (b - a), a + _GOLDEN * (b - a))
        at = value(np.exp(fresh))
        x, y = np.where(left, fresh, y), np.where(left, x, fresh)
        at_x, at_y = np.where(left, at, at_y), np.where(left, at_x, at)
    return np.asarray(np.exp(0.5 * (a + b)))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Means:
    """Over a run, of what an `Instant` calls so."""

    goodput: Floats
    phases: dict[str, Floats]
    by_cause: Floats
    failures: Floats
    deviation: Floats


def _over_run(terms: RunTerms, tau: Floats, copies: Floats) -> tuple[_Means, Floats]:
    """Means over the run, and its length: the work done is the integral of goodput over time."""
    work = np.where(np.isnan(terms.work_s), np.nan, terms.work_s)
    changes = terms.run.early_shape != 1.0 or terms.run.lemon_strikes > 0
    points, weights = (_POINTS, _WEIGHTS) if changes else (np.zeros(1), np.full(1, 2.0))
    length = np.where(np.isnan(work), _WITHOUT_END_S, work)
    exposed = np.ones_like(length)
    for _ in range(_ROUNDS):
        parts = [
            _at(terms, (tau, copies), length, exposed, 0.5 * (1.0 + point) if changes else None)
            for point in points
        ]
        goodput = _mean([part.goodput for part in parts], weights)
        with np.errstate(divide="ignore"):
            grown = np.where(np.isnan(work), length, work / goodput)
        exposed = _mean([part.exposed for part in parts], weights)
        if np.allclose(grown, length, rtol=1e-7, atol=0.0):
            break
        length = np.where(goodput >= NEVER, grown, length)
    return _means(parts, weights), np.where(np.isnan(work), np.nan, grown)


def _at(
    terms: RunTerms,
    intervals: tuple[Floats, Floats],
    length: Floats,
    exposed: Floats,
    place: float | None,
) -> Instant:
    """Shares at a place of the run; None: rates are the same everywhere, spares on average."""

    def reached(repair_s: Floats) -> Floats:
        lengths = np.maximum(length / np.maximum(repair_s, 1e-9), 1e-9)
        if place is None:
            return np.asarray(1.0 + np.expm1(-lengths) / lengths)
        before = np.maximum(seconds - repair_s, 0.0)  # they failed a repair ago
        late = terms.ages(before) / terms.ages(seconds)
        late = late * _share_left(terms, before, exposed) / _share_left(terms, seconds, exposed)
        ages = np.append(terms.kind == HARDWARE, False)  # the last are slow ones
        return np.asarray(-np.expm1(-place * lengths) * np.where(ages, late, 1.0))

    seconds = (0.5 if place is None else place) * length
    return instant(
        terms,
        *intervals,
        scale=terms.ages(seconds),
        lemons_left=_lemons_left(terms, seconds, exposed),
        reached=reached,
    )


def _share_left(terms: RunTerms, seconds: Floats, exposed: Floats) -> Floats:
    """Share of the failures of hardware that is left once lemons are sorted out."""
    share = float(terms.run.lemon_failure_fraction) * (terms.lemons > 0)
    return np.asarray(1.0 - share * (1.0 - _lemons_left(terms, seconds, exposed)))


def _lemons_left(terms: RunTerms, seconds: Floats, exposed: Floats) -> Floats:
    """Share of lemons with fewer failures than sort them out: Poisson's distribution function."""
    strikes = terms.run.lemon_strikes
    if not strikes:
        return np.ones_like(np.asarray(seconds, float) + terms.nodes)
    devices = [cause.device not in ("leaf", "spine") for cause in terms.run.causes.values()]
    theirs = (terms.rate * ((terms.kind == HARDWARE) & np.array(devices))).sum(1, keepdims=True)
    share = float(terms.run.lemon_failure_fraction)
    mean = theirs * share / np.maximum(terms.lemons, 1.0) * exposed * terms.aged_s(seconds)
    term, total = np.exp(-mean), np.exp(-mean)
    for count in range(1, strikes):
        term = term * mean / count
        total = total + term
    return np.asarray(total)


def _means(parts: list[Instant], weights: Floats) -> _Means:
    """Those of moments of a run."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        phases = [part.phases for part in parts]
        return _Means(
            goodput=_mean([part.goodput for part in parts], weights),
            phases={name: _mean([x[name] for x in phases], weights) for name in phases[0]},
            by_cause=_mean([part.by_cause for part in parts], weights),
            failures=_mean([part.failures for part in parts], weights),
            deviation=_mean([part.deviation for part in parts], weights),
        )


def _mean(values: list[Floats], weights: Floats) -> Floats:
    """Weighted mean of what is so at some moments."""
    return np.asarray(sum(w / 2.0 * x for w, x in zip(weights, values, strict=True)))
