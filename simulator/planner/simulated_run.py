"""Whole runs of one layout as an answer: what `simulate --run` prints."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from simulator.answers import Answer
from simulator.arrays import Floats
from simulator.errors import InputError, problem
from simulator.frames import DataFrame, choose, frame
from simulator.planner.plan import Plan
from simulator.planner.prediction import Prediction
from simulator.planner.simulated import predict_best
from simulator.records import dataclass
from simulator.reliability.incidents import Incidents, read_incidents, with_rates
from simulator.reliability.run_outlook import Outlook, outlook
from simulator.reliability.run_terms import RunTerms, run_terms
from simulator.scenario import Scenario
from simulator.search.defaults import layout_fields
from simulator.search.with_failures import devices_of, machine_of
from simulator.units import DAY_S, show_percent

if TYPE_CHECKING:  # brings the events along
    from simulator.events.run.played_runs import PlayedRuns

SEEDS = 1000
"""Runs that are played unless somebody says how many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShorterStep:
    """A step of a run that trains on without one server."""

    step_time_s: float
    tokens: float
    """Of the step: all of the batch where it is kept."""


@dataclass(frozen=True, kw_only=True, repr=False)
class SimulatedRun(Answer):
    """Runs that were played, beside the closed form."""

    COMMAND: ClassVar[str] = "simulate --run"
    KEYS: ClassVar[tuple[str, ...]] = (
        *("*prediction.asked", "layout", "searched=prediction.searched"),
        *("verdict=prediction.memory_verdict", "run", "curves", "incidents"),
        *("checkpoint=prediction.checkpoint", "closed_form", "caveats"),
    )

    prediction: Prediction
    """The step of which the runs are made, and the closed form of the whole run."""
    played: PlayedRuns
    incidents: Incidents | None = None
    """The log that the rates are from, where one was given."""

    @property
    def line(self) -> str:
        """Goodput and days in a few words."""
        low, middle, high = self.days(0.1), self.days(0.5), self.days(0.9)
        runs = len(self.played.wall_s)
        words = f"goodput {show_percent(self.goodput)}, {middle:.1f} days ({low:.1f} to {high:.1f})"
        return f"{words}, {runs:,} runs simulated"

    @property
    def layout(self) -> dict[str, Any]:
        """As `predict` takes it back."""
        return layout_fields(self.prediction.scenario, self.prediction.estimate.layouts)

    @property
    def run(self) -> dict[str, Any]:
        """What became of the runs beside the closed form, as JSON says it."""
        played, real, outcome = self.played, self.outlook, self.prediction.outcome
        days, goal = played.wall_s / DAY_S, self.prediction.scenario.goal.deadline_days
        return {
            "goodput": {"mean": self.goodput, **_marks(played.goodput, 10, 90)},
            "lost": played.lost_shares(),
            "phases": played.phase_shares(),
            "days": {"ideal": played.ideal_s / DAY_S, **_marks(days, 10, 50, 90)},
            "in_time": None if goal is None else float(np.mean(days <= goal)),
            "interruptions": played.interruptions(),
            "checkpoint_interval_s": real.interval_s[0],
            "daly_interval_s": real.daly_s[0],
            "copy_interval_s": real.copy_interval_s[0] if real.terms.in_memory else None,
            "spares": int(real.hot_spares[0]),
            "one_server_less": self.without_a_server,
            "cheapest_spares": self.curves.cheapest.hot,
            "usd_per_point_of_goodput": 0.01 * outcome.usd[0] / outcome.goodput[0],
            "closed_form_goodput": real.goodput[0],
            "seeds": len(played.wall_s),
            "first_seed": played.first_seed,
            "seconds": None,
        }

    @property
    def closed_form(self) -> dict[str, Any]:
        """What `predict` says of the whole run: with the error of a step and what it costs.

        ``run.in_time`` is the share of the runs played whose steps are all as long as predicted.
        """
        (row,) = self.prediction.rows
        names = list(row)
        return {name: row[name] for name in names[names.index("days_ideal") :]}

    @property
    def caveats(self) -> tuple[str, ...]:
        """Those of the prediction."""
        return self.prediction.caveats

    @property
    def outlook(self) -> Outlook:
        """The closed form: goodput, best interval, losses by phase and cause."""
        real = self.prediction.outcome.real
        assert real is not None
        return real

    @property
    def goodput(self) -> float:
        """Ideal time over the mean time of the runs."""
        return float(self.played.ideal_s / self.played.wall_s.mean())

    def days(self, share: float) -> float:
        """Return the days within which that share of the runs ends."""
        return float(np.quantile(self.played.wall_s, share)) / DAY_S

    def chance_within(self, days: float) -> float:
        """Share of the runs that end within so many days; the step takes what it is said to."""
        return float(np.mean(self.played.wall_s <= days * DAY_S))

    @property
    def without_a_server(self) -> ShorterStep | None:
        """A step while a server is missing; None where the run waits for its repair."""
        terms, recipe = self.outlook.terms, self.prediction.scenario.workload.recipe
        speed = 1.0 - float(terms.speed_lost[0, :2][-1])
        if terms.run.spares.when_none != "shrink" or speed <= 0.0:
            return None
        step_s, tokens = float(terms.step_s[0, 0]), float(recipe.tokens_per_step)
        if terms.run.spares.keep_batch:
            return ShorterStep(step_time_s=step_s / speed, tokens=tokens)
        return ShorterStep(step_time_s=step_s, tokens=tokens * speed)

    @cached_property
    def curves(self) -> RunCurves:
        """Goodput against accelerators, checkpoint interval and spares, in closed form."""
        return run_curves(self.prediction)

    @cached_property
    def strip(self) -> Floats:
        """One of the runs: start, end (seconds) and kind of every stretch."""
        from simulator.events.run.played_runs import strip_of

        return strip_of(self.outlook, seed=self.played.first_seed)

    def to_frame(
        self, table: Literal["causes", "runs", "gpus", "interval", "spares"] = "causes"
    ) -> DataFrame:
        """Runs as a table.

        `causes`: one row per cause, seconds of a mean run by phase; `runs`: one row per run;
        `gpus`, `interval`, `spares`: goodput against what one can choose.

        Raises
        ------
        InputError
            If there is no such table.
        """
        tables = {
            "causes": self._causes,
            "runs": self._runs,
            "gpus": lambda: {"gpus": self.curves.gpus, "goodput": self.curves.by_gpus},
            "interval": lambda: {
                "interval_s": self.curves.interval_s,
                "goodput": self.curves.by_interval,
            },
            "spares": self._spares,
        }
        columns = dict(choose(table, tables)())
        return frame(columns, index=columns.pop("cause", None), name=_INDEX.get(table))

    def _causes(self) -> dict[str, Any]:
        causes_s, wall = self.played.by_cause(), float(self.played.wall_s.mean())
        times = self.played.interruptions()
        extras = self.played.extras_s
        names = [*causes_s, *extras]
        phases = list(next(iter(causes_s.values())))
        lost = [sum(row.values()) for row in causes_s.values()] + list(extras.values())
        return {
            "cause": names,
            "times": [times.get(name, np.nan) for name in names],
            "lost_share": np.array(lost) / wall,
            **{
                f"{_word(phase)}_s": [
                    causes_s[name][phase] if name in causes_s else np.nan for name in names
                ]
                for phase in phases
            },
        }

    def _runs(self) -> dict[str, Any]:
        played = self.played
        seeds = played.first_seed + np.arange(len(played.wall_s))
        causes = len(played.causes)
        return {
            "seed": seeds,
            "days": played.wall_s / DAY_S,
            "goodput": played.goodput,
            "interruptions": played.counts[:, :causes].sum(axis=1),
        }

    def _spares(self) -> dict[str, Any]:
        rows = self.curves.spares
        names = ("hot", "goodput", "gpu_hours", "usd")
        return {name: [getattr(row, name) for row in rows] for name in names}


_INDEX = {"causes": "cause"}


def _word(phase: str) -> str:
    return phase.replace(" ", "_").replace("-", "_")


def simulate_run(
    scenario: Scenario,
    *,
    seeds: int | None = None,
    first_seed: int = 0,
    incidents: Path | None = None,
    workers: int = 0,
) -> SimulatedRun:
    """Play whole runs of a scenario's layout.

    Parameters
    ----------
    seeds, first_seed : int
        Runs, with numbers of their own from `first_seed` on; SEEDS unless said.
    incidents : path, optional
        A table of incidents whose rates stand in place of those of [run].
    workers : int
        Threads; 0: one for every processor. They change no result.

    Raises
    ------
    InputError
        If nobody gave the tokens of the run, or with what is wrong with the table.
    InfeasibleError
        If the run never ends.
    """
    from simulator.events.run.played_runs import play_runs

    if scenario.workload.recipe.tokens is None:
        rule = "required: whole runs are played to their last token"
        raise InputError(f"{scenario.where}: training.tokens: {rule}")
    if scenario.goal.ideal:
        rule = "must be false: what is played is what goes wrong"
        raise InputError(problem(scenario.where, "goal.ideal", rule, True))
    read = None
    if incidents is not None:
        read = read_incidents(incidents, scenario.run, devices_of(scenario))
        scenario = replace(scenario, run=with_rates(scenario.run, read))
    prediction = predict_best(scenario)
    real = prediction.outcome.real
    assert real is not None
    runs = SEEDS if seeds is None else seeds
    played = play_runs(real, seeds=runs, first_seed=first_seed, workers=workers)
    return SimulatedRun(prediction=prediction, played=played, incidents=read)


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
    outlooks = outlook(replace(many, hot=column, pool=np.maximum(many.pool, column)))
    outcome = prediction.outcome
    gpus = float(prediction.estimate.layouts.world[0])
    node_gpus = prediction.scenario.cluster.node.accelerators
    with np.errstate(divide="ignore"):
        hours = 24.0 * float(outcome.days_ideal[0]) / outlooks.goodput * (gpus + hot * node_gpus)
    hourly: Any = outcome.price.usd_per_gpu_hour
    price = float("nan") if hourly is None else float(hourly)
    return tuple(
        SpareChoice(
            hot=int(count),
            goodput=float(good),
            gpu_hours=float(paid),
            usd=float(paid) * price,
        )
        for count, good, paid in zip(hot, outlooks.goodput, hours, strict=True)
    )


def _marks(values: Floats, *marks: int) -> dict[str, float]:
    """Percentiles of the runs."""
    return {f"p{mark}": float(np.percentile(values, mark)) for mark in marks}
