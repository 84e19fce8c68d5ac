"""Rates of one's own: a table of incidents, fitted cause by cause with an interval."""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass
from pathlib import Path

from simulator.errors import InputError, did_you_mean, first_of, problem
from simulator.files import Figure, check_header, read_csv
from simulator.reliability.reliability_profile import Reliability

__all__ = ["FittedRate", "Incidents", "read_incidents", "with_rates"]

_NORMAL_90 = 1.2815515655446004
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
class Incidents:
    """What a log says."""

    where: str
    days: float
    rates: tuple[FittedRate, ...]


def read_incidents(path: Path, run: Reliability, devices: dict[str, float]) -> Incidents:
    """Count incidents of a table with the columns `date` and `cause`, one line each.

    Days are those from the first to the last date, both counted in. Counts are Poisson's: the rate
    is ``(n + 1/2) / device-days`` (Jeffreys' prior), its interval the P10 and P90 of the gamma
    distribution with shape n + 1/2, by Wilson and Hilferty's cube (1931).

    Parameters
    ----------
    devices : dict
        Devices of each kind in the fleet that the log is of: gpu, node, adapter, leaf, spine.

    Raises
    ------
    InputError
        If a line has no date or a cause that [run] has not, or there are none.
    """
    days: list[datetime.date] = []
    counts = dict.fromkeys(run.causes, 0)
    problems: list[str] = []
    header = False
    for line, row in read_csv(path):
        if not header:
            check_header(path, row, required=_COLUMNS, known=_COLUMNS)
            header = True
        try:
            days.append(datetime.date.fromisoformat(row["date"].strip()[:10]))
        except ValueError:
            rule = "must be a date as year-month-day"
            problems.append(problem(f"{path}: line {line}", "date", rule, row["date"]))
        cause = row["cause"].strip()
        if cause in counts:
            counts[cause] += 1
        else:
            rule = f"must be a cause of [run]{did_you_mean(cause, counts)}"
            problems.append(problem(f"{path}: line {line}", "cause", rule, cause))
    if problems:
        raise InputError(first_of(problems, str(path)))
    if not days:
        raise InputError(f"{path}: must have a line for each incident, got none")
    length = float((max(days) - min(days)).days + 1)
    rates = tuple(
        _fitted(cause, count, length * devices[run.causes[cause].device])
        for cause, count in counts.items()
    )
    return Incidents(where=str(path), days=length, rates=rates)


def _fitted(cause: str, count: int, device_days: float) -> FittedRate:
    """Rate of a cause; 0 where there is no such device."""
    if not device_days > 0.0:
        return FittedRate(cause=cause, count=count, per_device_day=0.0, p10=0.0, p90=0.0)
    shape = count + 0.5
    low, high = (_gamma_quantile(shape, z) / device_days for z in (-_NORMAL_90, _NORMAL_90))
    mean = shape / device_days if count else 0.0
    return FittedRate(cause=cause, count=count, per_device_day=mean, p10=low, p90=high)


def _gamma_quantile(shape: float, z: float) -> float:
    """Quantile of a gamma distribution, z of the normal's (Wilson and Hilferty 1931)."""
    inner = 1.0 - 1.0 / (9.0 * shape) + z / (3.0 * math.sqrt(shape))
    return float(shape * max(inner, 0.0) ** 3)


def with_rates(run: Reliability, found: Incidents) -> Reliability:
    """Replace the rates of a run by fitted ones; causes without an incident never happen."""
    from dataclasses import replace

    source = f"{found.where}: incidents of {found.days:g} days"
    causes = dict(run.causes)
    for rate in found.rates:
        spread = 1.0 / math.sqrt(rate.count + 0.5)
        figure = Figure(rate.per_device_day, "fitted", source, "", spread)
        causes[rate.cause] = replace(causes[rate.cause], per_device_day=figure)
    one = Figure(1.0, "fitted", source)
    return replace(run, causes=causes, rate_factor=one, early_shape=1.0)
