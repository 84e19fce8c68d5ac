"""Rates of one's own: a table of incidents, fitted cause by cause with an interval.

Rates of hardware may fall with the fleet's age. Failures at ages t, seen from age a to b, follow a
power law ``k s t^(s - 1)`` (Weibull's hazard; Crow 1974): the likelihood's best s is found by
halving, and its interval holds all s whose likelihood ratio is below the 95 % point of chi squared.
Failures are memoryless, and rates constant, unless that interval lies below 1.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from simulator.errors import InputError, did_you_mean, first_of, problem
from simulator.files import Figure, check_header, read_csv
from simulator.records import dataclass
from simulator.reliability.reliability_profile import Reliability
from simulator.units import DAY_S, P90

_CHI_95 = 3.841458820694124
"""95 % of a chi-squared variable of one degree of freedom lie below."""
_LEAST_COUNT = 5
"""Incidents of hardware below which no shape is looked for."""
_SHAPES = (0.02, 20.0)
_COLUMNS = ("date", "cause")


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedRate:
    """Failures of one cause per device and day."""

    cause: str
    count: int
    per_device_day: float
    p10: float
    p90: float


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedShape:
    """Weibull shape of the failures of hardware over the age of the fleet."""

    KEYS: ClassVar[tuple[str, ...]] = ("value=shape", "low", "high", "kept")

    shape: float
    low: float
    """95 % of the time the shape lies between `low` and `high`."""
    high: float
    kept: bool
    """It lies below 1 for sure: rates fall with age. Otherwise they are taken as constant."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Incidents:
    """What a log says."""

    KEYS: ClassVar[tuple[str, ...]] = ("file=where", "days", "rates", "shape")

    where: str
    days: float
    rates: tuple[FittedRate, ...]
    """Means over the days of the log."""
    shape: FittedShape | None
    """None with too few failures of hardware."""
    age_s: float
    """Age of the fleet when the log begins."""


def read_incidents(path: Path, run: Reliability, devices: dict[str, float]) -> Incidents:
    """Count incidents of a table with the columns `date` and `cause`, one line each.

    A date may have a time; a day without one stands for its noon. Days are those from the first
    to the last date, both counted in, and the fleet is `run.age_s` old when they begin. Counts are
    Poisson's: the rate is ``(n + 1/2) / device-days`` (Jeffreys' prior), its interval the P10 and
    P90 of the gamma distribution with shape n + 1/2, by Wilson and Hilferty's cube (1931).

    Parameters
    ----------
    devices : dict
        Devices of each kind in the fleet that the log is of: gpu, node, adapter, leaf, spine.

    Raises
    ------
    InputError
        If a line has no date or a cause that [run] has not, or there are none.
    """
    moments: list[datetime.datetime] = []
    of_hardware: list[datetime.datetime] = []
    counts = dict.fromkeys(run.causes, 0)
    problems: list[str] = []
    header = False
    for line, row in read_csv(path):
        if not header:
            check_header(path, row, required=_COLUMNS, known=_COLUMNS)
            header = True
        moment = _moment(row["date"])
        if moment is None:
            rule = "must be a date as year-month-day"
            problems.append(problem(f"{path}: line {line}", "date", rule, row["date"]))
        else:
            moments.append(moment)
        cause = row["cause"].strip()
        if cause in counts:
            counts[cause] += 1
            if moment is not None and run.causes[cause].kind == "hardware":
                of_hardware.append(moment)
        else:
            rule = f"must be a cause of [run]{did_you_mean(cause, counts)}"
            problems.append(problem(f"{path}: line {line}", "cause", rule, cause))
    if problems:
        raise InputError(first_of(problems, str(path)))
    if not moments:
        raise InputError(f"{path}: must have a line for each incident, got none")
    first = min(moments).date()
    length = float((max(moments).date() - first).days + 1)
    rates = tuple(
        _fitted(cause, count, length * devices[run.causes[cause].device])
        for cause, count in counts.items()
    )
    begun = datetime.datetime.combine(first, datetime.time())
    age = run.age_s / DAY_S
    for end in (min(moments), max(moments)):  # they say how long the log is, and nothing more
        if end in of_hardware:
            of_hardware.remove(end)
    ages = sorted(age + (moment - begun).total_seconds() / DAY_S for moment in of_hardware)
    return Incidents(
        where=str(path),
        days=length,
        rates=rates,
        shape=_fitted_shape(ages, age, age + length),
        age_s=run.age_s,
    )


def _moment(text: str) -> datetime.datetime | None:
    """A date with or without a time, which lies at noon then; None where it is neither."""
    text = text.strip()
    try:
        if len(text) <= len("2026-11-23"):
            noon = datetime.time(12)
            return datetime.datetime.combine(datetime.date.fromisoformat(text), noon)
        return datetime.datetime.fromisoformat(text).replace(tzinfo=None)
    except ValueError:
        return None


def _fitted_shape(ages: list[float], first: float, last: float) -> FittedShape | None:
    """Shape of the power law of failures at these ages, seen from age `first` to `last`, days."""
    if len(ages) < _LEAST_COUNT:
        return None
    logs = sum(math.log(age) for age in ages)

    def likelihood(shape: float) -> float:
        """Log-likelihood with the best rate for that shape, but for a constant."""
        whole = last**shape - (first**shape if first else 0.0)
        return len(ages) * (math.log(shape) - math.log(whole)) + (shape - 1.0) * logs

    best = _highest(likelihood, *_SHAPES)
    least = likelihood(best) - _CHI_95 / 2.0
    low = _crossing(likelihood, least, best, _SHAPES[0])
    high = _crossing(likelihood, least, best, _SHAPES[1])
    return FittedShape(shape=best, low=low, high=high, kept=high < 1.0)


def _highest(value: Callable[[float], float], low: float, high: float) -> float:
    """Where a function with one peak is highest, by halving the sign of its slope."""
    a, b = math.log(low), math.log(high)
    for _ in range(60):
        middle, nudge = 0.5 * (a + b), 1e-6
        rises = value(math.exp(middle + nudge)) > value(math.exp(middle - nudge))
        a, b = (middle, b) if rises else (a, middle)
    return math.exp(0.5 * (a + b))


def _crossing(value: Callable[[float], float], level: float, inside: float, end: float) -> float:
    """Where a function falls to a level between its peak and an end."""
    a, b = math.log(inside), math.log(end)
    for _ in range(60):
        middle = 0.5 * (a + b)
        a, b = (middle, b) if value(math.exp(middle)) > level else (a, middle)
    return math.exp(0.5 * (a + b))


def _fitted(cause: str, count: int, device_days: float) -> FittedRate:
    """Rate of a cause; 0 where there is no such device."""
    if not device_days > 0.0:
        return FittedRate(cause=cause, count=count, per_device_day=0.0, p10=0.0, p90=0.0)
    shape = count + 0.5
    low, high = (_gamma_quantile(shape, z) / device_days for z in (-P90, P90))
    mean = shape / device_days if count else 0.0
    return FittedRate(cause=cause, count=count, per_device_day=mean, p10=low, p90=high)


def _gamma_quantile(shape: float, z: float) -> float:
    """Quantile of a gamma distribution, z of the normal's (Wilson and Hilferty 1931)."""
    inner = 1.0 - 1.0 / (9.0 * shape) + z / (3.0 * math.sqrt(shape))
    return float(shape * max(inner, 0.0) ** 3)


def with_rates(run: Reliability, incidents: Incidents) -> Reliability:
    """Replace the rates of a run by fitted ones; causes without an incident never happen.

    With a shape the rates of hardware are those of the power law at the age in the middle of the
    log, so that as many failures are expected in its days as there were; the run begins at the age
    at which the log began.
    """
    source = f"{incidents.where}: incidents of {incidents.days:g} days"
    causes = dict(run.causes)
    kept = incidents.shape is not None and incidents.shape.kept
    shape = incidents.shape.shape if incidents.shape is not None and kept else 1.0
    middle_s = incidents.age_s + 0.5 * incidents.days * DAY_S
    first, last = incidents.age_s, incidents.age_s + incidents.days * DAY_S
    mean = (last**shape - first**shape) / (last - first) / (shape * middle_s ** (shape - 1.0))
    for rate in incidents.rates:
        spread = 1.0 / math.sqrt(rate.count + 0.5)
        hardware = causes[rate.cause].kind == "hardware"
        value = rate.per_device_day / (mean if hardware else 1.0)
        figure = Figure(value, "fitted", source, "", spread)
        causes[rate.cause] = replace(causes[rate.cause], per_device_day=figure)
    once = Figure(1.0, "fitted", source)
    return replace(
        run, causes=causes, rate_factor=once, early_shape=shape, reference_age_s=middle_s
    )
