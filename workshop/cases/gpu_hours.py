"""GPU-hours of published trainings beside the predicted: `validation/gpu_hours.toml`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, inf, log, sqrt
from statistics import NormalDist, fmean, median, stdev
from typing import Annotated, Any, Literal

from annotated_types import Gt

from simulator import catalogue
from simulator.economics.planning_factor import interval
from simulator.files import Number, Whole, build, read_toml, record
from simulator.planner.prediction import predict
from simulator.scenario import make_scenario
from simulator.units import DAY_S, HOUR_S

Positive = Annotated[Number, Gt(0)]
Kind = Literal["whole", "steady"]

KINDS: tuple[Kind, ...] = ("whole", "steady")
"""Hours of a run as reported, and tokens over a measured rate."""


@record
class HourCase:
    """One published training."""

    name: str
    organisation: str
    year: Whole
    parameters: Positive
    gpu: str
    gpu_hours: Positive
    kind: Kind
    reading: Literal["read", "recalled"]
    source: str
    left_out: str = ""
    """Why its hours cannot be compared; nothing below is given then."""
    model: Any = ""
    """A model of the zoo, or the fields of a config.json."""
    cluster: str = ""
    gpus: Whole = 0
    gpus_of: Literal["published", "plan"] = "published"
    software: str = ""
    switches: dict[str, Any] = field(default_factory=dict)
    """[software] of the run."""
    precision: str = "bf16"
    tokens: Positive | None = None
    global_batch: Whole = 0
    sequence_length: Whole = 0
    layout: dict[str, Any] = field(default_factory=dict)
    layout_of: Literal["published", "plan"] = "plan"
    """Who says so: the run's report, or the best that `plan` found."""
    set: str = "new"
    """The rates of failures, of other logs than the run's."""


@record
class _Cases:
    case: tuple[HourCase, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Hours:
    """One case: accelerator-hours."""

    case: HourCase
    ideal: float
    """Steps x step time x accelerators."""
    real: float
    """With goodput."""
    goodput: float
    step_spread: float
    """Standard deviation of the logarithm of the step time, as predicted."""

    @property
    def ratio(self) -> float:
        """Reported hours over those predicted with goodput."""
        return self.case.gpu_hours / self.real


def read_hour_cases(*, compared: bool = True) -> tuple[HourCase, ...]:
    """Read the shipped cases; `compared`: those alone that a prediction can be held against."""
    path = catalogue.folder("validation") / "gpu_hours.toml"
    cases = build(_Cases, read_toml(path), where=str(path)).case
    return tuple(case for case in cases if not (compared and case.left_out))


def hours_of(case: HourCase) -> Hours:
    """Predict the hours of a case: the accelerators that train, no spares, as reports count."""
    training = ("tokens", "global_batch", "sequence_length", "precision")
    document = {
        "model": {"name": case.model} if isinstance(case.model, str) else dict(case.model),
        "cluster": {"name": case.cluster, "gpus": case.gpus, "software": case.software},
        "training": {name: getattr(case, name) for name in training},
        "layout": case.layout,
        "run": {"set": case.set},
    }
    if case.switches:
        document["software"] = dict(case.switches)
    prediction = predict(make_scenario(document, where=case.name))
    outcome, sure = prediction.outcome, prediction.certainty
    hours = case.gpus * DAY_S / HOUR_S
    wide = log(float(sure.p90_s[0]) / float(sure.p10_s[0]))
    return Hours(
        case=case,
        ideal=hours * float(outcome.days_ideal[0]),
        real=hours * float(outcome.days[0]),
        goodput=float(outcome.goodput[0]),
        step_spread=wide / (2.0 * NormalDist().inv_cdf(0.9)),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class OnTop:
    """What runs of one kind took over their prediction: a log-normal factor."""

    factor: float
    """The median."""
    log_spread: float
    """Standard deviation of the logarithm of a further run: that of the runs, and of their mean."""
    runs: int
    step_spread: float
    """Root mean square of the spreads of the steps that were predicted: `log_spread` holds it."""


def on_top(hours: Sequence[Hours]) -> OnTop:
    """Mean and deviation of the logarithm of reported over predicted hours."""
    ratios = [log(run.ratio) for run in hours]
    runs = len(ratios)
    return OnTop(
        factor=exp(fmean(ratios)),
        log_spread=stdev(ratios) * sqrt(1.0 + 1.0 / runs),
        runs=runs,
        step_spread=sqrt(fmean([run.step_spread**2 for run in hours])),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """A case as it would have been planned by the factor of all others of its kind."""

    hours: Hours
    p10: float
    p50: float
    p90: float

    @property
    def inside(self) -> bool:
        """Whether the reported hours lie between P10 and P90."""
        return self.p10 <= self.hours.case.gpu_hours <= self.p90


def planned_by_others(hours: Sequence[Hours]) -> list[Planned]:
    """Plan every case by what the other cases of its kind took on top."""
    plans = []
    for run in hours:
        others = [x for x in hours if x.case.kind == run.case.kind and x is not run]
        top = on_top(others)
        low, high = interval(top.factor, top.log_spread, top.runs)
        p10, p50, p90 = (run.real * by for by in (low, top.factor, high))
        plans.append(Planned(hours=run, p10=p10, p50=p50, p90=p90))
    return plans


def hours_errors(trainings: list[Hours]) -> dict[str, Any]:
    """Errors of cases: how many, and medians without and with goodput; what they took on top."""
    plans = planned_by_others(trainings)
    kinds = {}
    for kind in KINDS:
        runs = [run for run in trainings if run.case.kind == kind]
        top = on_top(runs)
        low, high = interval(top.factor, top.log_spread, top.runs)
        inside = [run.inside for run in plans if run.hours.case.kind == kind]
        kinds[kind] = {
            "n": top.runs,
            "factor": top.factor,
            "p10": low,
            "p90": high,
            "inside": sum(inside) / len(inside),
        }
    return {
        "n": len(trainings),
        "ideal_median_ape": median(
            abs(training.ideal / training.case.gpu_hours - 1.0) for training in trainings
        ),
        "median_ape": median(abs(run.real / run.case.gpu_hours - 1.0) for run in trainings),
        "planned_median_ape": median(
            abs(run.p50 / run.hours.case.gpu_hours - 1.0) for run in plans
        ),
        "kinds": kinds,
    }


def largest_and_least(trainings: Sequence[Hours], kind: Kind) -> tuple[float, float]:
    """Fewest and most reported hours of a kind."""
    hours = [run.case.gpu_hours for run in trainings if run.case.kind == kind]
    return min(hours, default=inf), max(hours, default=0.0)
