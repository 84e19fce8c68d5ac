"""Runs of months that were reported, beside the closed form: `validation/months.toml`."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any

from annotated_types import Gt

from simulator import catalogue
from simulator.files import Number, Whole, build, read_toml, record
from simulator.reliability.reliability_profile import read_run
from simulator.reliability.run_outlook import Outlook, outlook
from simulator.reliability.run_terms import Machine, run_terms
from simulator.units import DAY_S, HOUR_S

Positive = Annotated[Number, Gt(0)]

_SERVER = 8
_STEP_S = 10.0
"""Of every case: a step only bounds the interval between checkpoints."""

_OF_GPUS = ("gpu", "gpu_memory")


@record
class Case:
    """One reported run."""

    name: str
    gpus: Annotated[Whole, Gt(0)]
    """In servers of eight."""
    ideal_days: Positive
    checkpoint_bytes: Positive
    rates_of: str
    """The log that the rates are from."""
    check: bool = False
    """It is the log that is compared: a consistency check, and no prediction."""
    reported: dict[str, Positive]
    """goodput, days, interruptions, restarts, recoveries, gpu_failures, gpu_hours (of the whole
    run), hours_between (failures)."""
    span_days: Positive | None = None
    """The stretch in which interruptions were counted; none given: the whole run."""
    at_least: tuple[str, ...] = ()
    """What was reported as a bound."""
    not_counted: str = ""
    """Why its figures are in no error: the same run is compared in another table."""
    remark: str = ""
    """What of the report is compared, where that is not all of it."""
    source: str
    run: dict[str, Any]
    """The section [run]."""


@record
class _Cases:
    case: tuple[Case, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """One figure of a case."""

    case: Case
    figure: str
    reported: float
    predicted: float
    ideal: float | None
    """Without anything that fails, where that is a number."""

    @property
    def is_bound(self) -> bool:
        """Whether it was reported as "more than"."""
        return self.figure in self.case.at_least

    @property
    def error(self) -> float:
        """Predicted over reported, less one."""
        return self.predicted / self.reported - 1.0


def read_cases() -> tuple[Case, ...]:
    """Read the shipped cases."""
    path = catalogue.folder("validation") / "months.toml"
    return build(_Cases, read_toml(path), where=str(path)).case


def compared(case: Case) -> list[Compared]:
    """Predict what was reported of a case."""
    run = read_run(case.run, where=case.name)
    nodes = case.gpus / _SERVER
    machine = Machine(
        gpus=case.gpus,
        node_gpus=_SERVER,
        step_s=_STEP_S,
        work_s=case.ideal_days * DAY_S,
        checkpoint_bytes=case.checkpoint_bytes,
        writer_nodes=nodes,
        writer_gpus=case.gpus,
    )
    found = outlook(run_terms(run, machine))
    made = _figures(case, found)
    ideal = {"days": case.ideal_days, "gpu_hours": case.gpus * case.ideal_days * 24.0}
    return [
        Compared(case=case, figure=name, reported=float(value), predicted=made[name],
                 ideal=ideal.get(name))
        for name, value in case.reported.items()
    ]  # fmt: skip


def months_errors(comparisons: list[Compared]) -> dict[str, float]:
    """Errors of the figures of other logs' runs: how many, median, largest, bounds that held.

    A run that another table compares is counted there alone.
    """
    rows = [row for row in comparisons if not (row.case.check or row.case.not_counted)]
    off = [abs(row.error) for row in rows if not row.is_bound]
    bounds = [row.error >= 0.0 for row in rows if row.is_bound]
    return {
        "n": len(off),
        "median_ape": median(off),
        "max_ape": max(off),
        "bounds": len(bounds),
        "bounds_held": sum(bounds),
    }


def _figures(case: Case, outlook: Outlook) -> dict[str, float]:
    """Every figure that a case may report."""
    wall, each = float(outlook.wall_s[0]), outlook.failures[0]
    by_name = dict(zip(outlook.terms.causes, map(float, each), strict=True))
    span = wall if case.span_days is None else case.span_days * DAY_S
    failures = float(each.sum()) * span
    every = outlook.terms.run.maintenance.every_s
    return {
        "goodput": float(outlook.goodput[0]),
        "days": wall / DAY_S,
        "interruptions": failures + (span / every if every else 0.0),
        "restarts": failures,
        "recoveries": failures,
        "gpu_failures": sum(by_name[name] for name in _OF_GPUS) * span,
        "gpu_hours": case.gpus * wall / HOUR_S,
        "hours_between": 1.0 / float(outlook.terms.rate.sum()) / HOUR_S,
    }
