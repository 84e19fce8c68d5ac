"""Whole runs once more, on simpy: an engine that shares nothing with ours but the rules.

Processes wait for one another and are interrupted; checkpoints, failures, repairs and planned stops
are events each. What both play to the same end are random scenarios, each with many seeds: means
within three standard errors of one another.
"""

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
import simpy

from simulator.events.run.played_runs import play_runs
from simulator.reliability.reliability_profile import read_run
from simulator.reliability.run_outlook import Outlook, outlook
from simulator.reliability.run_terms import Machine, RunTerms, run_terms

DAY = 86_400.0
NODES = 64


class OneRun:
    """A run as a story: train, stall, write in the background, fail, be repaired, start again."""

    def __init__(self, terms: RunTerms, interval_s: float, seed: int) -> None:
        self.t, self.run = terms, terms.run
        self.rng, self.env = np.random.default_rng(seed), simpy.Environment()
        self.interval_s = interval_s
        self.speed = 1.0 / float(terms.stretch[0, 0])
        self.work, self.done, self.safe = float(terms.work_s[0, 0]), 0.0, 0.0
        self.in_repair = 0
        self.repaired = self.env.event()
        self.writing: Any = None
        self.rates = terms.rate[0]

    def played(self) -> float:
        self.env.run(until=self.env.process(self.story()))
        return float(self.env.now)

    def story(self) -> Generator[Any, Any, None]:
        while self.done < self.work:
            training = self.env.process(self.train())
            cause = self.env.process(self.fail(training))
            yield training
            if cause.is_alive:
                cause.interrupt()
            elif self.done < self.work:
                yield self.env.process(self.recover(int(cause.value)))

    def fail(self, training: Any) -> Generator[Any, Any, int]:
        total = float(self.rates.sum())
        try:
            yield self.env.timeout(self.rng.exponential(1.0 / total) if total else 1e12)
        except simpy.Interrupt:
            return -1
        if training.is_alive:
            training.interrupt()
        return int(self.rng.choice(len(self.rates), p=self.rates / total))

    def train(self) -> Generator[Any, Any, None]:
        """Steps until a failure; what a stall or a background write does not finish is nothing."""
        stall, background = float(self.t.stall_s[0, 0]), float(self.t.background_s[0, 0])
        try:
            while self.done < self.work:
                part = min(self.interval_s, self.work - self.done)
                yield self.env.timeout(part / self.speed)
                self.done += part
                if self.done >= self.work:
                    return
                yield self.env.timeout(stall)
                self.writing = self.env.process(self.write(self.done, background))
        except simpy.Interrupt:
            if self.writing is not None and self.writing.is_alive:
                self.writing.interrupt()
            self.done = self.safe

    def write(self, position: float, background: float) -> Generator[Any, Any, None]:
        try:
            yield self.env.timeout(background)
            self.safe = position
        except simpy.Interrupt:
            return

    def recover(self, cause: int) -> Generator[Any, Any, None]:
        restart = self.run.restart
        seconds = float(self.t.restart_s[0, 0])
        yield self.env.process(self.replace(cause))
        while True:
            total = float(self.rates.sum())
            next_s = self.rng.exponential(1.0 / total) if total else np.inf
            if next_s < seconds:
                yield self.env.timeout(next_s)
                other = int(self.rng.choice(len(self.rates), p=self.rates / total))
                yield self.env.process(self.replace(other))
                continue
            yield self.env.timeout(seconds)
            if self.rng.random() >= float(restart.failing_fraction):
                return
            yield self.env.timeout(float(restart.retry_s))

    def replace(self, cause: int) -> Generator[Any, Any, None]:
        yield self.env.timeout(float(self.t.detection_s[cause]))
        yield self.env.timeout(self.rng.exponential(float(self.t.diagnosis_s[cause])))
        if self.rng.random() < float(self.run.restart.manual_fraction):
            yield self.env.timeout(self.rng.exponential(float(self.run.restart.manual_s)))
        if self.rng.random() >= float(self.t.replaced[cause]):
            return
        out = self.in_repair
        self.in_repair += 1
        self.env.process(self.repair(float(self.t.repair_s[cause])))
        spares = self.run.spares
        if out < int(self.t.hot[0, 0]):
            yield self.env.timeout(float(spares.hot_s))
        elif out < int(self.t.pool[0, 0]):
            yield self.env.timeout(float(spares.cold_s))
        else:
            yield self.repaired

    def repair(self, mean_s: float) -> Generator[Any, Any, None]:
        yield self.env.timeout(self.rng.exponential(mean_s))
        self.in_repair -= 1
        event, self.repaired = self.repaired, self.env.event()
        event.succeed()


def scenario(seed: int) -> Outlook:
    """64 servers for ten days that fail every few hours; no switch, no corruption, no stops."""
    rng = np.random.default_rng(seed)
    causes = {
        name: {"per_device_day": 0.0}
        for name in ("leaf_switch", "spine_switch", "silent_corruption", "preemption")
    }
    raw = {
        "rate_factor": float(10 ** rng.uniform(0.5, 1.6)),
        "causes": causes,
        "restart": {
            "schedule_s": float(rng.uniform(30.0, 1200.0)),
            "failing_fraction": float(rng.uniform(0.0, 0.5)),
            "manual_fraction": float(rng.uniform(0.0, 0.2)),
        },
        "storage": {"write_bytes_per_s": float(10 ** rng.uniform(9.5, 11.0)), "queue_nodes": 0},
        "checkpoints": {
            "mode": str(rng.choice(["sync", "async"])),
            "interval_s": float(10 ** rng.uniform(3.0, 4.2)),
        },
        "spares": {"hot": int(rng.integers(0, 3)), "pool": int(rng.integers(3, 12))},
        "slow": {"per_node_day": 0.0},
        "maintenance": {"every_s": 0.0},
    }
    machine = Machine(
        gpus=8 * NODES,
        node_gpus=8,
        step_s=10.0,
        work_s=10 * DAY,
        checkpoint_bytes=float(10 ** rng.uniform(11.0, 12.3)),
        writer_nodes=NODES,
        writer_gpus=8 * NODES,
    )
    return outlook(run_terms(read_run(raw, where="test"), machine))


def both(seed: int, runs: int) -> float:
    """Difference of the means, in standard errors."""
    found = scenario(seed)
    ours = play_runs(found, seeds=400).wall_s
    interval = float(found.interval_s[0])
    theirs = np.array(
        [OneRun(found.terms, interval, 1000 * seed + i).played() for i in range(runs)]
    )
    error = np.hypot(ours.std() / np.sqrt(len(ours)), theirs.std(ddof=1) / np.sqrt(runs))
    return float((ours.mean() - theirs.mean()) / error)


def test_a_run_on_simpy_ends_when_ours_does() -> None:
    assert abs(both(0, 60)) < 3.0


@pytest.mark.evidence
def test_a_hundred_scenarios_on_simpy_end_when_ours_do() -> None:
    apart = np.array([both(seed, 40) for seed in range(100)])
    assert (np.abs(apart) < 4.0).all()
    assert abs(apart.mean()) < 0.3  # no side is slower
    assert 0.8 < apart.std() < 1.25  # they differ as chance has it
