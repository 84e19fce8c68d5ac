"""Goodput against what one can choose: accelerators, checkpoint interval, spares."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from simulator.arrays import Floats
from simulator.planner.plan import Plan
from simulator.planner.prediction import Prediction
from simulator.reliability.run_outlook import Outlook, outlook
from simulator.reliability.run_terms import RunTerms, run_terms
from simulator.search.with_failures import machine_of

_SIZES = 64 * 2 ** np.arange(12)
"""64 to 131,072 accelerators."""

_POINTS = 25
_MOST_SPARES = 24


@dataclass(frozen=True, kw_only=True, slots=True)
class SpareChoice:
    """The run with a number of hot spares."""

    hot: int
    goodput: float
    gpu_hours: float
    usd: float
    """NaN where the price is not known."""


@dataclass(frozen=True, kw_only=True)
class RunCurves:
    """Goodput in closed form; the number that is planned with is a point of each."""

    KEYS: ClassVar[tuple[str, ...]] = ("gpus=over_gpus", "interval=over_interval", "spares")

    gpus: Floats
    by_gpus: Floats
    interval_s: Floats
    by_interval: Floats
    spares: tuple[SpareChoice, ...]

    @property
    def over_gpus(self) -> dict[str, Floats]:
        """Goodput by accelerators."""
        return {"gpus": self.gpus, "goodput": self.by_gpus}

    @property
    def over_interval(self) -> dict[str, Floats]:
        """Goodput by the checkpoint interval."""
        return {"seconds": self.interval_s, "goodput": self.by_interval}

    @property
    def cheapest(self) -> SpareChoice:
        """The number of hot spares with which the run takes fewest paid GPU-hours."""
        return min(self.spares, key=lambda choice: choice.gpu_hours)


def run_curves(prediction: Prediction | Plan) -> RunCurves:
    """Vary one thing at a time, for a prediction or a plan's best layout.

    The other layouts of other sizes are the same one, replicated.
    """
    real = prediction.outcome.real
    assert real is not None
    terms = real.terms.take(0)
    best = float(real.interval_s[0])
    intervals = best * np.geomspace(0.05, 20.0, _POINTS)
    intervals = np.sort(np.append(intervals, best))
    rows = np.zeros(len(intervals), int)
    by_interval = outlook(terms.take(rows), interval_s=intervals[:, None])
    sizes = _sized(prediction)
    return RunCurves(
        gpus=_SIZES.astype(float),
        by_gpus=sizes.goodput,
        interval_s=by_interval.interval_s,
        by_interval=by_interval.goodput,
        spares=_by_spares(prediction, terms),
    )


def _sized(prediction: Prediction | Plan) -> Outlook:
    """More or fewer replicas of the same layout, which take the same time for their share."""
    scenario = prediction.scenario
    machine = machine_of(prediction.estimate.take(np.zeros(1, int)), scenario)
    times = _SIZES / float(np.asarray(machine.gpus)[0])
    grown = {
        name: np.maximum(np.ceil(getattr(machine, name)[0] * times), 1.0)
        for name in ("replicas", "writer_nodes", "writer_gpus")
    }
    if (np.asarray(machine.writer_gpus) < np.asarray(machine.gpus)).any():
        for name in ("writer_nodes", "writer_gpus"):  # one replica writes, however many there are
            grown[name] = np.minimum(grown[name], float(getattr(machine, name)[0]))
    return outlook(run_terms(scenario.run, replace(machine, gpus=_SIZES.astype(float), **grown)))


def _by_spares(prediction: Prediction | Plan, terms: RunTerms) -> tuple[SpareChoice, ...]:
    """Goodput and paid hours with none to many hot spares, out of a pool that holds them."""
    most = int(max(min(np.ceil(0.1 * terms.nodes[0, 0]), _MOST_SPARES), 2))
    hot = np.unique(np.append(np.linspace(0, 4 * most, 17).astype(int), int(terms.hot[0, 0])))
    hot = hot[hot <= max(4 * most, int(terms.hot[0, 0]))]
    many = terms.take(np.zeros(len(hot), int))
    column = hot[:, None].astype(float)
    found = outlook(replace(many, hot=column, pool=np.maximum(many.pool, column)))
    outcome = prediction.outcome
    gpus = float(prediction.estimate.layouts.world[0])
    node_gpus = prediction.scenario.cluster.node.accelerators
    with np.errstate(divide="ignore"):
        hours = 24.0 * float(outcome.days_ideal[0]) / found.goodput * (gpus + hot * node_gpus)
    hourly: Any = outcome.price.usd_per_gpu_hour
    price = float("nan") if hourly is None else float(hourly)
    return tuple(
        SpareChoice(
            hot=int(count),
            goodput=float(good),
            gpu_hours=float(paid),
            usd=float(paid) * price,
        )
        for count, good, paid in zip(hot, found.goodput, hours, strict=True)
    )
