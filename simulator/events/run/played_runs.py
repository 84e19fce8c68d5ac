"""Runs of many seeds, each from its first step to its last, on as many threads as there are."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.compiled import compiled
from simulator.errors import InputError
from simulator.events.run.interruptions import (
    announced,
    corrupted,
    drawn_cause,
    failed,
    first_back,
    found,
    planned,
    sorted_out,
    total_rate,
)
from simulator.events.run.random_counter import exponential, seeded
from simulator.events.run.run_state import (
    CAUSE_PHASES,
    CLOCK,
    FOUND_AT,
    LINES,
    MISSING,
    NEVER_S,
    NEXT_STOP,
    OTHERS,
    SLOW,
    SLOW_AT,
    STATE,
    Played,
    Rules,
    packed,
    rules_of,
)
from simulator.events.run.training_time import advance, fresh
from simulator.records import dataclass
from simulator.reliability.run_outlook import Outlook
from simulator.reliability.run_terms import HARDWARE, SILENT
from simulator.units import DAY_S

STRETCHES = ("training", "checkpoint", "lost", "restarting", "planned stop")
"""Kinds of stretches in a strip."""

_LINES = 200_000

_MOST_SEEDS = 1_000_000

_BY_SEED = ("state", "random", "spent", "counts", "back", "strikes")


@dataclass(frozen=True, kw_only=True)
class PlayedRuns:
    """What became of the runs, one row per seed."""

    causes: tuple[str, ...]
    first_seed: int
    ideal_s: float
    wall_s: Floats
    """Inf where a run was given up: a thousand times the ideal."""
    spent_s: Floats
    """(seeds, causes + 3, phases): causes, then slow servers, planned stops, checkpoints."""
    counts: Any
    """(seeds, causes + 3): interruptions."""
    extras_s: dict[str, float]
    """What every run takes longer: slow steps, evaluation."""
    seconds: float
    """The computation took so long."""

    @property
    def goodput(self) -> Floats:
        """Ideal time over wall time of every run."""
        return np.asarray(self.ideal_s / self.wall_s)

    def by_cause(self) -> dict[str, dict[str, float]]:
        """Mean seconds of a run by what took them and by phase; all of what is not ideal."""
        mean = self.spent_s.mean(axis=0)
        return {
            name: dict(zip(CAUSE_PHASES, map(float, row), strict=True))
            for name, row in zip((*self.causes, *OTHERS), mean, strict=True)
        }

    def phase_shares(self) -> dict[str, float]:
        """Shares of the mean wall time by phase; with the ideal they add up to 1."""
        wall, mean = float(self.wall_s.mean()), self.spent_s.mean(axis=0)
        causes = len(self.causes)
        by_cause = mean[:causes].sum(axis=0)
        shares = dict(zip(CAUSE_PHASES, map(float, by_cause / wall), strict=True))
        others = dict(zip(OTHERS, map(float, mean[causes:].sum(axis=1) / wall), strict=True))
        return {**shares, **others, **{name: x / wall for name, x in self.extras_s.items()}}

    def lost_shares(self) -> dict[str, float]:
        """Shares of the mean wall time by what took them; with the ideal they add up to 1."""
        wall = float(self.wall_s.mean())
        shares = {name: sum(row.values()) / wall for name, row in self.by_cause().items()}
        return {**shares, **{name: x / wall for name, x in self.extras_s.items()}}

    def interruptions(self) -> dict[str, float]:
        """Mean number of interruptions of a run."""
        mean = self.counts.mean(axis=0)
        return dict(zip((*self.causes, *OTHERS[:2]), map(float, mean), strict=False))


def play_runs(
    outlook: Outlook, row: int = 0, *, seeds: int = 1000, first_seed: int = 0, workers: int = 0
) -> PlayedRuns:
    """Play the run of one layout with many seeds.

    Parameters
    ----------
    outlook : Outlook
        Its terms and its intervals are played.
    seeds, first_seed : int
        Seeds ``first_seed`` to ``first_seed + seeds - 1``, each with numbers of its own.
    workers : int
        Threads; 0: one for every processor. They change no result.

    Raises
    ------
    InputError
        If nobody gave the tokens of the run, or seeds are out of range.
    """
    if not 1 <= seeds <= _MOST_SEEDS:
        raise InputError(f"run: seeds: must be 1 to {_MOST_SEEDS:,} runs, got {seeds}")
    if not 0 <= first_seed < 2**62:
        raise InputError(f"run: seed: must be 0 to 2^62, got {first_seed}")
    rules = _rules(outlook, row)
    begun = time.perf_counter()
    record = packed(rules)
    wall, whole = np.empty(seeds), room(rules, _speed_lost(outlook, row), seeds)
    workers = workers or os.cpu_count() or 1
    pieces = np.array_split(np.arange(seeds), min(4 * workers, seeds))

    def run(piece: Any) -> None:
        part = slice(int(piece[0]), int(piece[-1]) + 1)
        rows = whole._replace(**{name: getattr(whole, name)[part] for name in _BY_SEED})
        play(record, rows, first_seed + int(piece[0]), wall[part])

    with ThreadPoolExecutor(workers) as threads:
        list(threads.map(run, pieces))
    terms = outlook.terms.take(row)
    return PlayedRuns(
        causes=outlook.terms.causes,
        first_seed=first_seed,
        ideal_s=rules.work_s,
        wall_s=wall,
        spent_s=whole.spent,
        counts=whole.counts,
        extras_s={name: float(x[0, 0]) * rules.work_s for name, x in terms.extras.items()},
        seconds=time.perf_counter() - begun,
    )


def strip_of(outlook: Outlook, row: int = 0, *, seed: int = 0) -> Floats:
    """Stretches of one run: start, end (seconds) and index into STRETCHES, (stretches, 3).

    Work that a failure undoes is training at first; here it is called lost.
    """
    rules = _rules(outlook, row)
    run = room(rules, _speed_lost(outlook, row), 1, _LINES)
    play(packed(rules), run, seed, np.empty(1))
    return np.asarray(run.strip[: int(run.state[0, LINES])])


def room(rules: Rules, speed_lost: Floats, seeds: int, lines: int = 0) -> Played:
    """Arrays for so many seeds."""
    rows = rules.causes + len(OTHERS)
    return Played(
        state=np.zeros((seeds, STATE)),
        random=np.zeros(seeds, np.uint64),
        spent=np.zeros((seeds, rows, len(CAUSE_PHASES))),
        counts=np.zeros((seeds, rows), np.int64),
        back=np.zeros((seeds, _most_in_repair(rules))),
        strikes=np.zeros((seeds, max(rules.lemons, 1)), np.int64),
        speed_lost=speed_lost,
        strip=np.zeros((lines, 3)),
    )


def _speed_lost(outlook: Outlook, row: int) -> Floats:
    return np.array(outlook.terms.speed_lost[row], np.float64)


def _most_in_repair(rules: Rules) -> int:
    """Servers in repair at a time, more than which no run has."""
    if not rules.shrinks:
        return rules.pool + 2
    young = (max(rules.age_s, DAY_S) / rules.reference_s) ** (rules.shape - 1.0)
    aged = np.where(rules.kind == HARDWARE, max(young, 1.0), 1.0)
    load = float((rules.rate * aged * rules.replaced * rules.repair_s * rules.single).sum())
    load += rules.slow_rate * rules.slow_repair_s
    return rules.pool + 64 + int(load + 12.0 * np.sqrt(load))


def _rules(outlook: Outlook, row: int) -> Rules:
    if not np.isfinite(outlook.terms.work_s[row, 0]):
        raise InputError("training.tokens: a run of unknown length cannot be played; give tokens")
    return rules_of(
        outlook.terms.take(row), float(outlook.interval_s[row]), float(outlook.copy_interval_s[row])
    )


@compiled
def play(table, run, first, wall):  # type: ignore[no-untyped-def]
    """Play one seed after the other; arrays of `run` have a row for each."""
    rules = table[0]
    for i in range(len(wall)):
        run.random[i] = seeded(first + i)
        one = Played(
            state=run.state[i],
            random=run.random[i : i + 1],
            spent=run.spent[i],
            counts=run.counts[i],
            back=run.back[i],
            strikes=run.strikes[i],
            speed_lost=run.speed_lost,
            strip=run.strip,
        )
        wall[i] = _whole_run(rules, one)


@compiled
def _whole_run(rules, run):  # type: ignore[no-untyped-def]
    """Train from event to event until the work is done; return the wall time."""
    state = run.state
    fresh(rules, run)
    state[FOUND_AT], state[NEXT_STOP], state[SLOW_AT] = NEVER_S, rules.stop_every_s, NEVER_S
    if rules.slow_rate > 0.0:
        state[SLOW_AT] = exponential(run.random, 1.0 / rules.slow_rate)
    while state[CLOCK] < rules.longest_s:
        most = total_rate(rules, state[CLOCK])
        fails = state[CLOCK] + exponential(run.random, 1.0 / most) if most > 0.0 else NEVER_S
        grows = first_back(run) if state[MISSING] > 0.0 else NEVER_S
        until = min(fails, state[FOUND_AT], state[NEXT_STOP], state[SLOW_AT], grows)
        if advance(rules, run, until - state[CLOCK]):
            return state[CLOCK]
        _happens(rules, run, until, fails, most)
    return np.inf


@compiled
def _happens(rules, run, until, fails, most):  # type: ignore[no-untyped-def]
    """What ends a stretch of training."""
    state = run.state
    if until == fails:
        cause = drawn_cause(rules, run, most)
        if cause >= 0:
            if rules.kind[cause] == SILENT:
                corrupted(rules, run, cause)
            elif rules.lossless[cause]:
                announced(rules, run, cause)
            else:
                failed(rules, run, cause)
    elif until == state[FOUND_AT]:
        found(rules, run)
    elif until == state[NEXT_STOP]:
        planned(rules, run)
        state[NEXT_STOP] = state[CLOCK] + rules.stop_every_s
    elif until == state[SLOW_AT] and state[SLOW] == 0.0:
        state[SLOW] = 1.0
        state[SLOW_AT] = state[CLOCK] + rules.noticed_s
    else:
        sorted_out(rules, run)
