"""GPU-hours of published runs beside the predicted: `validation/gpu_hours.toml`."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any, Literal

from annotated_types import Gt

from simulator import catalogue
from simulator.files import Number, Whole, build, read_toml, record
from simulator.planner.prediction import predict
from simulator.scenario import make_scenario
from simulator.units import DAY_S, HOUR_S

Positive = Annotated[Number, Gt(0)]


@record
class HourCase:
    """One published run."""

    name: str
    model: str
    cluster: str
    gpus: Annotated[Whole, Gt(0)]
    software: str | None = None
    precision: str = "bf16"
    tokens: Positive
    global_batch: Annotated[Whole, Gt(0)]
    sequence_length: Annotated[Whole, Gt(0)]
    layout: dict[str, Any]
    layout_of: Literal["published", "plan"]
    """Who says so: the run's report, or the best that `plan` found."""
    set: str
    """The rates of failures, of other logs than the run's."""
    gpu_hours: Positive
    source: str


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


def read_hour_cases() -> tuple[HourCase, ...]:
    """Read the shipped cases."""
    path = catalogue.folder("validation") / "gpu_hours.toml"
    return build(_Cases, read_toml(path), where=str(path)).case


def hours_of(case: HourCase) -> Hours:
    """Predict the hours of a case: the accelerators that train, no spares, as reports count."""
    training = ("tokens", "global_batch", "sequence_length", "precision")
    cluster: dict[str, Any] = {"name": case.cluster, "gpus": case.gpus}
    if case.software is not None:
        cluster["software"] = case.software
    document = {
        "model": {"name": case.model},
        "cluster": cluster,
        "training": {name: getattr(case, name) for name in training},
        "layout": case.layout,
        "run": {"set": case.set},
    }
    outcome = predict(make_scenario(document, where=case.name)).outcome
    days = float(outcome.days[0])
    hours = case.gpus * DAY_S / HOUR_S
    return Hours(
        case=case,
        ideal=hours * float(outcome.days_ideal[0]),
        real=hours * days,
        goodput=float(outcome.goodput[0]),
    )


def hours_errors(trainings: list[Hours]) -> dict[str, float]:
    """Errors of cases: how many, and medians without and with goodput."""
    return {
        "n": len(trainings),
        "ideal_median_ape": median(
            abs(training.ideal / training.case.gpu_hours - 1.0) for training in trainings
        ),
        "median_ape": median(abs(one.real / one.case.gpu_hours - 1.0) for one in trainings),
    }
