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


@dataclass(frozen=True, kw_only=True)
class _Costs:
    """What one failure of every cause takes until the restart: (causes,) or (layouts, causes)."""

    detection: Floats
    diagnosis: Floats
    replacement: Floats
    none_s: Floats
    """What is waited where no spare is left."""
    swap_s: Floats
    """Mean time to replace a slow server, (layouts, 1)."""
    total: Floats


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
        failures = _Failures(terms, _rates(terms, scale, lemons_left))
        training: Any = 1.0
        exposed: Any = 1.0
        trains: Any = 1.0
        down_s: Any = 0.0
        for _ in range(_ROUNDS):  # what happens while a run trains depends on how long it does
            fails = np.where(terms.lossless, trains, exposed)  # no restart heeds a notice
            use = _spares(terms, failures.stopping * fails, down_s, reached)
            shares = Instant(_Cycle(_Stops(failures, use, training), interval_s, copy_interval_s))
            idle = np.minimum(_or_none(shares.waiting), 1.0 - 1e-6)
            exposed = np.minimum(_or_none(shares.exposed) / (1.0 - idle), 1.0)
            training = np.clip(_or_none(shares.training), 1e-6, 1.0)
            trains = np.minimum(training / (1.0 - idle), 1.0)
            down_s = _down_seconds(shares, idle)
            down_s = np.where(np.isfinite(down_s), down_s, 0.0)
        return shares


def _or_none(share: Floats) -> Floats:
    """A share, 0 where it is not known."""
    return np.where(np.isnan(share), 0.0, share)


def goodput_by_interval(terms: RunTerms, copy_interval_s: Floats) -> Callable[[Floats], Floats]:
    """Goodput as a function of the interval between checkpoints, all (layouts, 1).

    That of :func:`instant` after one round: what no interval changes is found once.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        failures = _Failures(terms, _rates(terms, 1.0, 1.0))
        use = _spares(terms, failures.stopping, 0.0, None)
        stops = _Stops(failures, use, 1.0)

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
    down = sum((instant.down[name] for name in _DOWN), 0.0 * idle) - idle
    per_failure_s = down / np.maximum(instant.failures.sum(axis=1, keepdims=True), 1e-300)
    return np.asarray(np.maximum(per_failure_s * instant.training / (instant.training + down), 0.0))


def _rates(terms: RunTerms, scale: Any, lemons_left: Any) -> Floats:
    hardware = terms.kind == HARDWARE
    share = float(terms.run.lemon_failure_fraction) * (terms.lemons > 0)
    left = np.where(hardware & terms.single, 1.0 - share * (1.0 - lemons_left), 1.0)
    return np.asarray(terms.rate * np.where(hardware, scale, 1.0) * left)


def _spares(
    terms: RunTerms, rate: Floats, down_s: Any, reached: Callable[[Floats], Floats] | None
) -> PoolUse:
    """What failed servers find; those below a failed switch are back with it and do not count."""
    taken = rate * terms.replaced * terms.single
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


class _Failures:
    """What interrupts a run at the rates of one moment, whatever a failed server finds."""

    def __init__(self, terms: RunTerms, rate: Floats) -> None:
        self.terms, spares, people = terms, terms.run.spares, terms.run.restart
        stops, announced = terms.kind != SILENT, terms.kind == PREEMPTION
        self.stopping = rate * stops
        self.lossy = rate * (stops & ~terms.lossless)
        self.announced = rate * terms.lossless
        self.silent = rate * ~stops
        self.every = self.lossy.sum(axis=1, keepdims=True)
        self.copied = copies = self.lossy * (terms.from_copies & terms.in_memory)
        self.first = copies.sum(axis=1, keepdims=True)
        self.second = self.every - self.first
        self.announced_sum = self.announced.sum(axis=1, keepdims=True)
        self.silent_sum = self.silent.sum(axis=1, keepdims=True)
        self.silent_late = _weighted(self.silent, terms.detection_s, self.silent_sum)
        manual_s = float(people.manual_fraction) * float(people.manual_s)
        self.detection_s = np.where(stops, terms.detection_s, 0.0)
        self.diagnosis_s = np.where(announced, 0.0, terms.diagnosis_s + manual_s)
        enough_hot, enough = terms.taken_nodes <= terms.hot, terms.taken_nodes <= terms.pool
        self.together_s = np.where(
            enough_hot, float(spares.hot_s), np.where(enough, float(spares.cold_s), terms.repair_s)
        )
        self.shrinks = _shrinks(terms)

    def costs(self, use: PoolUse) -> _Costs:
        """What each takes, by what its servers find."""
        terms, spares = self.terms, self.terms.run.spares
        waits = np.where(self.shrinks, 0.0, 1.0)
        none_s, slow_s = waits * use.waits_s[:, :-1], waits * use.waits_s[:, -1:]
        quick = use.hot * float(spares.hot_s) + use.cold * float(spares.cold_s)
        alone_s = quick + use.none * none_s
        replacement = terms.replaced * np.where(terms.single, alone_s, self.together_s)
        return _Costs(
            detection=self.detection_s,
            diagnosis=self.diagnosis_s,
            replacement=replacement,
            none_s=none_s * terms.single,
            swap_s=quick + use.none * slow_s,
            total=self.detection_s + self.diagnosis_s + replacement,
        )


class _Stops:
    """What ends training and what each end costs, whatever lies between checkpoints."""

    def __init__(self, failures: _Failures, use: PoolUse, training: Any) -> None:
        terms, costs = failures.terms, failures.costs(use)
        total = costs.total
        self.failures, self.terms, self.costs, self.use = failures, terms, costs, use
        self.speed = _speed(failures, use)
        self.down = _weighted(failures.lossy, total, failures.every)
        self.before_1 = _weighted(failures.copied, total, failures.first)
        self.before_2 = self.down
        if terms.in_memory:
            rest = failures.lossy - failures.copied
            self.before_2 = _weighted(rest, total, rest.sum(axis=1, keepdims=True))
        again_s = self.again(terms.restart_s)
        self.restart_1 = self.before_1 + self.again(terms.copy_restart_s)
        self.restart_2 = self.before_2 + again_s
        self.planned = 0.0 + again_s
        self.stop_share, self.stop_rate, self.swap_share = self.planned_shares(training)
        self.restarting = self.stop_rate * self.planned  # after planned stops
        self.saves = self.stop_rate / training + failures.announced_sum
        whole_s = terms.write_s + total + self.planned
        self.announced_share = _weighted_sum(failures.announced, whole_s)
        silent_s = _weighted(failures.silent, total, failures.silent_sum)
        self.silent_down = silent_s + again_s

    def again(self, restart_s: Floats) -> Floats:
        """Time of restarts until one holds."""
        restart, every = self.terms.run.restart, self.failures.every
        fails = float(restart.failing_fraction)
        holds = np.exp(-every * restart_s)
        tries = _shrunk(every, restart_s)
        again = tries + (1.0 - holds) * self.down + holds * fails * float(restart.retry_s)
        return np.asarray(again / ((1.0 - fails) * holds))

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
        grown = self.use.back_per_s * training * self.failures.shrinks
        swap_share = swaps * (stop_s + self.costs.swap_s) + grown * stop_s
        return pause / (every + pause), 1.0 / (every + pause) + swaps + grown, swap_share


@dataclass(frozen=True, slots=True)
class _Silent:
    """What silent corruption leaves of a cycle's shares; (layouts, 1)."""

    every: Floats
    """Times a second."""
    left: Floats
    """Wall time without what corruption adds, over all of it."""
    goodput: Floats


class _Cycle:
    """From one checkpoint to storage to the next; sums are means over many of them."""

    def __init__(self, stops: _Stops, interval_s: Floats, copy_interval_s: Floats) -> None:
        self.stops, self.tau, terms = stops, interval_s, stops.terms
        first, second, saves = stops.failures.first, stops.failures.second, stops.saves
        self.work = plain = self.tau / stops.speed
        self.short = 0.0 * self.tau
        self.length = useful = terms.stall_s + plain
        if terms.in_memory:
            count = self.tau / copy_interval_s
            self.short = copy_interval_s / stops.speed + terms.copy_s
            self.length = terms.stall_s + count * _growth(first, self.short)
            useful = terms.stall_s + count * self.short
        ends = np.maximum(second + saves, 1e-30)
        passes = 1.0 / np.expm1(ends * self.length)  # whole cycles between two interruptions
        kept = second * np.exp(-ends * terms.background_s) * passes
        kept = kept + saves * (passes + _begun(ends, plain, self.length) / plain)
        never = second + saves < 1e-20
        self.training = np.where(never, self.length, 1.0 / np.where(never, 1.0, kept))
        stalls = np.where(never, 1.0, self.training * ends * passes)
        self.stalled = stalls * (useful - plain)
        self.fails_1 = first * self.training
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
        every = stops.failures.silent_sum * self.training / wall
        aged = (self.length / 2.0 + stops.terms.background_s) / self.length * self.tau
        left = 1.0 / (1.0 + every * (stops.failures.silent_late + stops.silent_down))
        return _Silent(every, left, (good - every * aged) * left)


class Instant:
    """Shares of wall time at the rates of one moment; (layouts, 1) where nothing else is said."""

    goodput: Floats
    down: dict[str, Floats]
    """What is lost from a failure until training goes on, by phase."""
    failures: Floats
    """Interruptions per second of wall time, (layouts, causes)."""
    training: Floats
    """In which a run trains, lost work and stalls included."""
    exposed: Floats
    """In which servers fail: training, lost work included, and restarts."""
    waiting: Floats
    """In which a run waits for the first repair."""

    def __init__(self, cycle: _Cycle) -> None:
        """Divide the time of a cycle by what it went into."""
        stops, wall = cycle.stops, cycle.wall()
        self.cycle, self.wall, self.silent = cycle, wall, cycle.silent(wall)
        left, train = self.silent.left, cycle.training / wall
        self.announced = stops.failures.announced * cycle.training
        # those during restarts left out
        self.events = (stops.failures.lossy + stops.failures.announced) * cycle.training
        self.corrupted = stops.failures.silent * cycle.training / wall
        self.every = self.events / wall + self.corrupted
        self.goodput = self.silent.goodput
        self.down = self._down()
        self.failures = self.every * left
        self.training = train * left
        self.exposed = (train + stops.restarting) * left + sum(self.down[x] for x in _EXPOSED)
        without_spare = self.every * stops.terms.replaced * stops.use.none
        self.waiting = _weighted_sum(without_spare, stops.costs.none_s) * left

    def _down(self) -> dict[str, Floats]:
        cycle, stops, wall, silent = self.cycle, self.cycle.stops, self.wall, self.silent
        terms, costs, left = stops.terms, stops.costs, silent.left
        restarts = cycle.fails_1 + cycle.fails_2
        drains = self.announced.sum(axis=1, keepdims=True)
        loads = cycle.fails_1 * terms.copy_load_s + (cycle.fails_2 + drains) * terms.load_s
        before = _weighted_sum(self.events, costs.total)
        plain = before + (restarts + drains) * (terms.start_s + terms.warmup_s) + loads
        whole = cycle.fails_1 * stops.restart_1 + cycle.fails_2 * stops.restart_2
        whole = whole + _weighted_sum(self.announced, costs.total) + drains * stops.planned
        seconds = {
            "detection": _weighted_sum(self.events, costs.detection),
            "diagnosis": _weighted_sum(self.events, costs.diagnosis),
            "replacement": _weighted_sum(self.events, costs.replacement) + drains * terms.write_s,
            "start": (restarts + drains) * terms.start_s,
            "loading": loads,
            "warm-up": (restarts + drains) * terms.warmup_s,
            "failed restarts": whole - plain,
        }
        again = silent.every * left
        part = {
            "detection": _weighted_sum(self.corrupted, costs.detection) * left,
            "diagnosis": _weighted_sum(self.corrupted, costs.diagnosis) * left,
            "replacement": _weighted_sum(self.corrupted, costs.replacement) * left,
            "start": again * terms.start_s,
            "loading": again * terms.load_s,
            "warm-up": again * terms.warmup_s,
        }
        part["failed restarts"] = again * stops.silent_down - sum(part.values())
        return {name: x / wall * left + part[name] for name, x in seconds.items()}

    @property
    def _corruption(self) -> Floats:
        """What corruption takes beyond restarts: all since it came, and since the checkpoint."""
        left, every = self.silent.left, self.silent.every
        good = self.cycle.tau / self.wall
        lost = 1.0 - left - every * left * self.cycle.stops.silent_down
        return np.asarray(lost + (good * left - self.silent.goodput))

    @property
    def phases(self) -> dict[str, Floats]:
        """What is lost, by phase; with goodput they add up to 1."""
        cycle, stops, left = self.cycle, self.cycle.stops, self.silent.left
        good = cycle.tau / self.wall
        lost = (cycle.training - cycle.stalled - cycle.work) / self.wall
        slow = good * (1.0 / stops.speed - stops.terms.stretch) + stops.swap_share
        return {
            "lost work": lost * left + self._corruption,
            **self.down,
            "checkpoints": cycle.stalled / self.wall * left,
            "slow servers": slow * left,
            **{name: good * extra * left for name, extra in stops.terms.extras.items()},
            "maintenance": stops.stop_share * left,
        }

    @property
    def by_cause(self) -> Floats:
        """Lost by each cause of interruptions, (layouts, causes): its costs, its share of work."""
        cycle, stops, left = self.cycle, self.cycle.stops, self.silent.left
        terms, costs, down = stops.terms, stops.costs.total, stops.silent_down
        in_copies = stops.failures.copied > 0.0
        lossy = self.events - self.announced
        age = np.where(in_copies, cycle.short / 2.0, cycle.length / 2.0 + terms.background_s)
        weight = lossy * age
        total = np.maximum(weight.sum(axis=1, keepdims=True), 1e-300)
        lost = (cycle.training - cycle.stalled - cycle.work) * weight / total
        restart = np.where(in_copies, stops.restart_1, stops.restart_2)
        mean = np.where(in_copies, stops.before_1, stops.before_2)
        cost_s = lossy * (restart - mean + costs) + self.announced * (
            costs + stops.planned + terms.write_s
        )
        every = self.silent.every
        share = self.corrupted / np.maximum(every, 1e-300)
        more = share * (self._corruption + every * left * down)
        return np.asarray((cost_s + lost) / self.wall * left + more)

    @property
    def deviation(self) -> Floats:
        """Variance of wall time per second of it, in seconds.

        Failures are a compound Poisson process; what missing servers take lasts for a while.
        """
        cycle, stops, terms = self.cycle, self.cycle.stops, self.cycle.stops.terms
        restart = terms.run.restart
        people = float(restart.manual_fraction) * float(restart.manual_s) ** 2
        age = np.where(stops.failures.copied > 0.0, cycle.short, cycle.length)
        mean = stops.costs.total + terms.restart_s + age / 2.0
        together = ~terms.single & (terms.taken_nodes > terms.pool)
        waits = np.where(together, terms.repair_s**2, 0.0)
        spread = terms.diagnosis_s**2 + 2.0 * people + age**2 / 12.0 + 2.0 * terms.replaced * waits
        late = np.where(self.corrupted > 0.0, terms.detection_s, 0.0)
        lossy = (self.every - self.corrupted) * (mean**2 + spread)
        silent = self.corrupted * ((mean + late) ** 2 + spread)
        variance = (lossy + silent).sum(axis=1, keepdims=True)
        return np.asarray(variance + stops.use.unsure_s)


def _speed(failures: _Failures, use: PoolUse) -> Floats:
    """Ideal seconds of training per second of it, on average."""
    terms = failures.terms
    slow = terms.run.slow
    turned = float(slow.per_node_day) / DAY_S * terms.nodes * float(slow.noticed_s)
    share = turned / (1.0 + turned)
    speed = (1.0 - share) + share / float(slow.time_factor)
    speed = speed * np.where(failures.shrinks, np.maximum(1.0 - use.slower, 1e-9), 1.0)
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


def _weighted(weights: Floats, values: Floats, total: Floats) -> Floats:
    """Mean over causes of weights that add up to `total`, 0 where there are none."""
    return np.asarray((weights * values).sum(axis=1, keepdims=True) / np.maximum(total, 1e-300))


def _weighted_sum(weights: Floats, values: Floats) -> Floats:
    return np.asarray((weights * values).sum(axis=1, keepdims=True))
