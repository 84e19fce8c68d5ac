"""Goodput in closed form: Young's and Daly's checkpoints with all that a restart takes.

Failures are memoryless. A segment of S seconds of training that fails at rate r takes
``(1 / r + E) (exp(r S) - 1)`` seconds where every failure costs E (Daly 2006, equation 13, which
is exact); E has detection, diagnosis, replacement, and restarts that fail on their own or through
another failure. A checkpoint written in the background is there b seconds later, and planned
stops save what is done: between two interruptions of either kind, Y seconds of training apart
(exponential, rate a = r + p), whole intervals of S seconds are kept that began to be written b
seconds before a failure, ``floor((Y - b) / S)`` of them, and all that Y has of work before a
planned stop. The mean of the first is ``exp(-a b) / (exp(a S) - 1)``, which with p = b = 0 is
Daly's formula. Copies in the memory of peers make a process inside the process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.records import dataclass
from simulator.reliability.run_terms import HARDWARE, PREEMPTION, SILENT, RunTerms
from simulator.reliability.spare_pool import PoolUse, pool_use
from simulator.units import DAY_S

NEVER = 0.02
"""Goodput below which a run is said never to finish."""

_DOWN = ("detection", "diagnosis", "replacement", "start", "loading", "warm-up", "failed restarts")
_EXPOSED = ("start", "loading", "warm-up", "failed restarts")

_ROUNDS = 3
"""How often the time in which servers can fail is found again, from what it makes of the run."""

SWITCHES = ("leaf", "spine")


@dataclass(frozen=True, kw_only=True)
class Instant:
    """Shares of wall time at given rates; shape (layouts, 1) where nothing else is said."""

    goodput: Floats
    phases: dict[str, Floats]
    """What is lost, by phase; with goodput they add up to 1."""
    by_cause: Floats
    """What is lost by each cause of interruptions, (layouts, causes)."""
    failures: Floats
    """Interruptions per second of wall time, by cause."""
    stops: Floats
    """Planned ones: maintenance, and slow servers that are replaced."""
    training: Floats
    """Share of wall time in which a run trains, lost work and stalls included."""
    exposed: Floats
    """Share of wall time in which servers fail: training, lost work included, and restarts."""
    waiting: Floats
    """Share of wall time in which a run waits for the first repair."""
    deviation: Floats
    """Variance of wall time per second of it, in seconds."""


@dataclass(frozen=True, kw_only=True)
class _Costs:
    """What one failure of every cause takes until the restart, (layouts, causes)."""

    detection: Floats
    diagnosis: Floats
    replacement: Floats
    none_s: Floats
    """What is waited where no spare is left."""
    swap_s: Floats
    """Mean time to replace a slow server, (layouts, 1)."""

    @property
    def total(self) -> Floats:
        return np.asarray(self.detection + self.diagnosis + self.replacement)


def instant(
    terms: RunTerms,
    interval_s: Floats,
    copy_interval_s: Floats,
    *,
    scale: Any = 1.0,
    lemons_left: Any = 1.0,
    reached: Callable[[Floats], Floats] | None = None,
) -> Instant:
    """Find where the time goes at the rates of one moment.

    Parameters
    ----------
    interval_s, copy_interval_s : (layouts, 1)
        Ideal training time between checkpoints to storage, and between copies to peers.
    scale : (layouts, 1) or float
        Multiplier of hardware rates: the fleet's age.
    lemons_left : (layouts, 1) or float
        Share of the servers that fail far more often that was not sorted out yet.
    reached : callable, optional
        Share of the servers that are in repair in the long run which are by then, from the mean
        times of repairs: all spares are there when a run begins.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        rate = _rates(terms, scale, lemons_left)
        stops = terms.kind != SILENT
        training: Any = 1.0
        exposed: Any = 1.0
        trains: Any = 1.0
        down_s: Any = 0.0
        for _ in range(_ROUNDS):  # what happens while a run trains depends on how long it does
            fails = np.where(terms.lossless, trains, exposed)  # no restart heeds a notice
            use = _spares(terms, rate * stops * fails, down_s, reached)
            cycle = _Cycle(_Stops(terms, rate, use, training), interval_s, copy_interval_s)
            shares = cycle.shares()
            idle = np.minimum(np.nan_to_num(shares.waiting, nan=0.0), 1.0 - 1e-6)
            exposed = np.minimum(np.nan_to_num(shares.exposed, nan=0.0) / (1.0 - idle), 1.0)
            training = np.clip(np.nan_to_num(shares.training, nan=0.0), 1e-6, 1.0)
            trains = np.minimum(training / (1.0 - idle), 1.0)
            down_s = np.nan_to_num(_down_seconds(shares, idle), nan=0.0, posinf=0.0)
        return shares


def goodput_by_interval(terms: RunTerms, copy_interval_s: Floats) -> Callable[[Floats], Floats]:
    """Goodput as a function of the interval between checkpoints, all (layouts, 1).

    That of :func:`instant` after one round: what no interval changes is found once.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        rate = _rates(terms, 1.0, 1.0)
        use = _spares(terms, rate * (terms.kind != SILENT), 0.0, None)
        stops = _Stops(terms, rate, use, 1.0)

    def goodput(interval_s: Floats) -> Floats:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            cycle = _Cycle(stops, interval_s, copy_interval_s)
            return cycle.silent(cycle.wall()).goodput

    return goodput


def _down_seconds(instant: Instant, idle: Any) -> Floats:
    """How long a server that failed is in repair, on average, before anything else can fail.

    It fails as a down time D of the run begins, not at any time: among r seconds of repair, those
    in which the run trains are ``r / (1 + D u / r)`` times the share u of training, for D and r
    that end at a constant rate.
    """
    down = sum((instant.phases[name] for name in _DOWN), 0.0 * idle) - idle
    per_failure_s = down / np.maximum(instant.failures.sum(axis=1, keepdims=True), 1e-300)
    return np.asarray(np.maximum(per_failure_s * instant.training / (instant.training + down), 0.0))


def _rates(terms: RunTerms, scale: Any, lemons_left: Any) -> Floats:
    hardware = terms.kind == HARDWARE
    share = float(terms.run.lemon_failure_fraction) * (terms.lemons > 0)
    of_servers = np.array([c.device not in SWITCHES for c in terms.run.causes.values()])
    left = np.where(hardware & of_servers, 1.0 - share * (1.0 - lemons_left), 1.0)
    return np.asarray(terms.rate * np.where(hardware, scale, 1.0) * left)


def _single(terms: RunTerms) -> Any:
    return np.array([c.device not in SWITCHES for c in terms.run.causes.values()])


def _spares(
    terms: RunTerms, rate: Floats, down_s: Any, reached: Callable[[Floats], Floats] | None
) -> PoolUse:
    """What failed servers find; those below a failed switch are back with it and do not count."""
    taken = rate * terms.replaced * _single(terms)
    slow = float(terms.run.slow.per_node_day) / DAY_S * terms.nodes
    repair_s = np.append(terms.repair_s, float(terms.run.slow.repair_s))
    load = np.hstack([taken, slow]) * repair_s / (1.0 + down_s / np.maximum(repair_s, 1e-9))
    if reached is not None:
        load = load * reached(repair_s)
    how: dict[str, Any] = {"shrinks": _shrinks(terms), "lost": terms.speed_lost}
    return pool_use(load, repair_s, terms.hot, terms.pool, **how)


def _shrinks(terms: RunTerms) -> Any:
    """Whether a run goes on without a server; none does whose only replica lacks it."""
    lost = terms.speed_lost[:, :2][:, -1:]
    return (terms.run.spares.when_none == "shrink") & (lost < 1.0)


def _costs(terms: RunTerms, use: PoolUse) -> _Costs:
    spares, restart = terms.run.spares, terms.run.restart
    hot_s, cold_s = float(spares.hot_s), float(spares.cold_s)
    waits = np.where(_shrinks(terms), 0.0, 1.0)
    none_s, slow_s = waits * use.waits_s[:, :-1], waits * use.waits_s[:, -1:]
    quick = use.hot * hot_s + use.cold * cold_s
    enough_hot, enough = terms.taken_nodes <= terms.hot, terms.taken_nodes <= terms.pool
    together = np.where(enough_hot, hot_s, np.where(enough, cold_s, terms.repair_s))
    single = _single(terms)
    people = float(restart.manual_fraction) * float(restart.manual_s)
    announced = terms.kind == PREEMPTION
    shape = terms.rate.shape
    return _Costs(
        detection=np.broadcast_to(np.where(terms.kind == SILENT, 0.0, terms.detection_s), shape),
        diagnosis=np.broadcast_to(np.where(announced, 0.0, terms.diagnosis_s + people), shape),
        replacement=np.asarray(
            terms.replaced * np.where(single, quick + use.none * none_s, together)
        ),
        none_s=none_s * single,
        swap_s=quick + use.none * slow_s,
    )


class _Stops:
    """What ends training and what each end costs, whatever lies between checkpoints."""

    def __init__(self, terms: RunTerms, rate: Floats, use: PoolUse, training: Any) -> None:
        costs = _costs(terms, use)
        total = costs.total
        self.total = total
        lossy = rate * ((terms.kind != SILENT) & ~terms.lossless)
        self.terms, self.costs, self.use, self.lossy = terms, costs, use, lossy
        self.announced = rate * terms.lossless
        self.every = lossy.sum(axis=1, keepdims=True)
        self.copied = copies = lossy * (terms.from_copies & terms.in_memory)
        self.speed = _speed(terms, use)
        self.down = _weighted(lossy, total)
        self.first = copies.sum(axis=1, keepdims=True)
        self.second = self.every - self.first
        self.restart_1 = self.restarted(_weighted(copies, total), terms.copy_restart_s)
        self.restart_2 = self.restarted(_weighted(lossy - copies, total), terms.restart_s)
        self.planned = self.restarted(np.zeros_like(terms.nodes), terms.restart_s)
        self.stop_share, self.stop_rate, self.swap_share = self.planned_shares(training)
        self.restarting = self.stop_rate * self.planned  # after planned stops
        self.saves = self.stop_rate / training + self.announced.sum(axis=1, keepdims=True)
        self.announced_share = _weighted_sum(self.announced, terms.write_s + total + self.planned)
        self.silent = rate * (terms.kind == SILENT)
        self.silent_late = _weighted(self.silent, np.broadcast_to(terms.detection_s, rate.shape))
        self.silent_down = self.restarted(_weighted(self.silent, total), terms.restart_s)

    def restarted(self, before: Floats, restart_s: Floats) -> Floats:
        """Time from a failure until training: `before`, then restarts until one holds."""
        restart = self.terms.run.restart
        fails = float(restart.failing_fraction)
        holds = np.exp(-self.every * restart_s)
        tries = _shrunk(self.every, restart_s)
        again = tries + (1.0 - holds) * self.down + holds * fails * float(restart.retry_s)
        return np.asarray(before + again / ((1.0 - fails) * holds))

    def planned_shares(self, training: Any) -> tuple[Floats, Floats, Floats]:
        """Share of wall time of maintenance, stops a second of it, share of replacing slow ones."""
        terms, run = self.terms, self.terms.run
        stop_s = terms.write_s + self.planned
        pause = (
            (float(run.maintenance.stop_s) + stop_s) if run.maintenance.every_s else 0.0 * stop_s
        )
        every = run.maintenance.every_s or np.inf
        turned = float(run.slow.per_node_day) / DAY_S * terms.nodes
        swaps = turned / (1.0 + turned * float(run.slow.noticed_s))
        grown = self.use.back_per_s * training * _shrinks(terms)
        swap_share = swaps * (stop_s + self.costs.swap_s) + grown * stop_s
        return pause / (every + pause), 1.0 / (every + pause) + swaps + grown, swap_share


@dataclass(frozen=True, slots=True)
class _Silent:
    """What silent corruption leaves of a cycle's shares; (layouts, 1) but for the first."""

    per_cause: Floats
    """Times a second by cause, (layouts, causes)."""
    every: Floats
    left: Floats
    """Wall time without what corruption adds, over all of it."""
    goodput: Floats


class _Cycle:
    """From one checkpoint to storage to the next; sums are means over many of them."""

    def __init__(self, stops: _Stops, interval_s: Floats, copy_interval_s: Floats) -> None:
        self.stops, self.tau, terms = stops, interval_s, stops.terms
        self.work = plain = self.tau / stops.speed
        self.short = 0.0 * self.tau
        self.length = useful = terms.stall_s + plain
        if terms.in_memory:
            count = self.tau / copy_interval_s
            self.short = copy_interval_s / stops.speed + terms.copy_s
            self.length = terms.stall_s + count * _growth(stops.first, self.short)
            useful = terms.stall_s + count * self.short
        second, saves = stops.second, stops.saves
        ends = np.maximum(second + saves, 1e-30)
        passes = 1.0 / np.expm1(ends * self.length)  # whole cycles between two interruptions
        kept = second * np.exp(-ends * terms.background_s) * passes
        kept = kept + saves * (passes + _begun(ends, plain, self.length) / plain)
        never = second + saves < 1e-20
        self.training = np.where(never, self.length, 1.0 / np.where(never, 1.0, kept))
        stalls = np.where(never, 1.0, self.training * ends * passes)
        self.stalled = stalls * (useful - plain)
        self.fails_1 = stops.first * self.training
        self.fails_2 = second * self.training

    def wall(self) -> Floats:
        """Wall time of a cycle; silent corruption is not in it."""
        stops = self.stops
        wall = self.training + self.fails_1 * stops.restart_1 + self.fails_2 * stops.restart_2
        wall = wall + self.training * stops.announced_share
        return np.asarray(wall / np.maximum(1.0 - stops.stop_share - stops.swap_share, 0.0))

    def silent(self, wall: Floats) -> _Silent:
        """Find what is left where all that is done until corruption is found is lost."""
        stops, good = self.stops, self.tau / wall
        per_cause = stops.silent * self.training / wall
        every = per_cause.sum(axis=1, keepdims=True)
        aged = (self.length / 2.0 + stops.terms.background_s) / self.length * self.tau
        left = 1.0 / (1.0 + every * (stops.silent_late + stops.silent_down))
        return _Silent(per_cause, every, left, (good - every * aged) * left)

    def shares(self) -> Instant:
        """Divide the time of a cycle by what it went into."""
        wall, events = self.wall(), self.events()
        phases = self.phases(wall, events)
        phases["maintenance"] = self.stops.stop_share
        phases["slow servers"] = phases["slow servers"] + self.stops.swap_share
        return self.with_silent(wall, phases, self.by_cause(wall, events), events / wall)

    def events(self) -> Floats:
        """Interruptions of a cycle by cause, those during restarts left out."""
        return np.asarray((self.stops.lossy + self.stops.announced) * self.training)

    def phases(self, wall: Floats, events: Floats) -> dict[str, Floats]:
        """Shares of wall time by phase."""
        stops, announced = self.stops, self.stops.announced
        terms, costs, planned = stops.terms, stops.costs, stops.planned
        restarts = self.fails_1 + self.fails_2
        drains = (announced * self.training).sum(axis=1, keepdims=True)
        loads = self.fails_1 * terms.copy_load_s + (self.fails_2 + drains) * terms.load_s
        before = _weighted_sum(events, stops.total)
        plain = before + (restarts + drains) * (terms.start_s + terms.warmup_s) + loads
        whole = self.fails_1 * stops.restart_1 + self.fails_2 * stops.restart_2
        whole = whole + _weighted_sum(announced * self.training, stops.total) + drains * planned
        drained = drains * terms.write_s
        good = self.tau / wall
        return {
            "lost work": (self.training - self.stalled - self.work) / wall,
            "detection": _weighted_sum(events, costs.detection) / wall,
            "diagnosis": _weighted_sum(events, costs.diagnosis) / wall,
            "replacement": (_weighted_sum(events, costs.replacement) + drained) / wall,
            "start": (restarts + drains) * terms.start_s / wall,
            "loading": loads / wall,
            "warm-up": (restarts + drains) * terms.warmup_s / wall,
            "failed restarts": (whole - plain) / wall,
            "checkpoints": self.stalled / wall,
            "slow servers": good * (1.0 / stops.speed - terms.stretch),
            **{name: good * extra for name, extra in terms.extras.items()},
        }

    def by_cause(self, wall: Floats, events: Floats) -> Floats:
        """Shares of wall time by cause: its own costs, its share of lost work and restarts."""
        stops, terms, costs = self.stops, self.stops.terms, self.stops.total
        in_copies = stops.copied > 0.0
        announced = stops.announced * self.training
        lossy = events - announced
        age = np.where(in_copies, self.short / 2.0, self.length / 2.0 + terms.background_s)
        weight = lossy * age
        total = np.maximum(weight.sum(axis=1, keepdims=True), 1e-300)
        lost = (self.training - self.stalled - self.work) * weight / total
        restart = np.where(in_copies, stops.restart_1, stops.restart_2)
        mean = np.where(in_copies, _weighted(stops.copied, costs),
                        _weighted(stops.lossy - stops.copied, costs))  # fmt: skip
        cost_s = lossy * (restart - mean + costs) + announced * (
            costs + stops.planned + terms.write_s
        )
        return np.asarray((cost_s + lost) / wall)

    def with_silent(
        self, wall: Floats, phases: dict[str, Floats], by_cause: Floats, failures: Floats
    ) -> Instant:
        """Put corruption on top: all that is done until it is found, and since the checkpoint."""
        terms, costs, good = self.stops.terms, self.stops.costs, self.tau / wall
        silent, down = self.silent(wall), self.stops.silent_down
        per_cause, every, left = silent.per_cause, silent.every, silent.left
        lost = 1.0 - left - every * left * down + (good * left - silent.goodput)
        scaled = {name: share * left for name, share in phases.items()}
        shares = {
            "detection": costs.detection,
            "diagnosis": costs.diagnosis,
            "replacement": costs.replacement,
        }
        part = {name: _weighted_sum(per_cause, cost) * left for name, cost in shares.items()}
        part["start"] = every * left * terms.start_s
        part["loading"] = every * left * terms.load_s
        part["warm-up"] = every * left * terms.warmup_s
        part["failed restarts"] = every * left * down - sum(part.values())
        part["lost work"] = lost
        for name, share in part.items():
            scaled[name] = scaled[name] + share
        more = per_cause / np.maximum(every, 1e-300) * (lost + every * left * down)
        variance = self.variance(failures + per_cause, per_cause)
        return Instant(
            goodput=silent.goodput,
            phases=scaled,
            by_cause=by_cause * left + more,
            failures=(failures + per_cause) * left,
            stops=self.stops.stop_rate * left,
            training=self.training / wall * left,
            exposed=(self.training / wall + self.stops.restarting) * left
            + sum(scaled[name] for name in _EXPOSED),
            waiting=self.waiting(failures + per_cause) * left,
            deviation=variance,
        )

    def waiting(self, failures: Floats) -> Floats:
        """Share of wall time that waits for a repair where no spare is left."""
        without_spare = failures * self.stops.terms.replaced * self.stops.use.none
        return _weighted_sum(without_spare, self.stops.costs.none_s)

    def variance(self, failures: Floats, silent: Floats) -> Floats:
        """Variance of wall time per second of it.

        Failures are a compound Poisson process; what missing servers take lasts for a while.
        """
        stops, terms, restart = self.stops, self.stops.terms, self.stops.terms.run.restart
        people = float(restart.manual_fraction) * float(restart.manual_s) ** 2
        age = np.where(stops.copied > 0.0, self.short, self.length)
        mean = stops.total + terms.restart_s + age / 2.0
        together = ~_single(terms) & (terms.taken_nodes > terms.pool)
        waits = np.where(together, terms.repair_s**2, 0.0)
        spread = terms.diagnosis_s**2 + 2.0 * people + age**2 / 12.0 + 2.0 * terms.replaced * waits
        late = np.where(silent > 0.0, terms.detection_s, 0.0)
        lossy = (failures - silent) * (mean**2 + spread)
        variance = (lossy + silent * ((mean + late) ** 2 + spread)).sum(axis=1, keepdims=True)
        return np.asarray(variance + stops.use.unsure_s)


def _speed(terms: RunTerms, use: PoolUse) -> Floats:
    """Ideal seconds of training per second of it, on average."""
    slow = terms.run.slow
    turned = float(slow.per_node_day) / DAY_S * terms.nodes * float(slow.noticed_s)
    share = turned / (1.0 + turned)
    speed = (1.0 - share) + share / float(slow.time_factor)
    speed = speed * np.where(_shrinks(terms), np.maximum(1.0 - use.slower, 1e-9), 1.0)
    return np.asarray(speed / terms.stretch)


def _begun(rate: Any, work_s: Any, length_s: Any) -> Floats:
    """Mean work in a cycle that an interruption ends: of the `length_s`, `work_s` come first."""
    left = np.exp(-rate * length_s)
    return np.asarray((_shrunk(rate, work_s) - work_s * left) / -np.expm1(-rate * length_s))


def _growth(rate: Any, seconds: Any) -> Floats:
    """``(exp(r s) - 1) / r``, which is s where r is 0."""
    rate = np.maximum(rate, 1e-30)
    return np.asarray(np.expm1(rate * seconds) / rate)


def _shrunk(rate: Any, seconds: Any) -> Floats:
    """``(1 - exp(-r s)) / r``, which is s where r is 0."""
    rate = np.maximum(rate, 1e-30)
    return np.asarray(-np.expm1(-rate * seconds) / rate)


def _weighted(weights: Floats, values: Floats) -> Floats:
    """Mean over causes, 0 where there are none."""
    total = np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)
    return np.asarray((weights * values).sum(axis=1, keepdims=True) / total)


def _weighted_sum(weights: Floats, values: Floats) -> Floats:
    return np.asarray((weights * values).sum(axis=1, keepdims=True))
