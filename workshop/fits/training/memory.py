"""How far reserved memory lies from its prediction: the spread behind P10 and P90 of memory.

Allocated memory has no fitted term, so what is left between a prediction and a reading of reserved
memory is the caching allocator and what the accounting misses. Its spread is taken over distinct
layouts of calibration runs, framework by framework. A framework that nobody read takes the spread
between frameworks: what one would be off by with another one's figure.

``python -m workshop.fits.training.memory`` prints both, and the readings behind them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simulator import catalogue
from simulator.cost.estimate import P90
from simulator.cost.step import evaluate
from simulator.errors import InputError
from simulator.measured.replay import load_tables, replay
from simulator.measured.rows import MeasuredRun, number, read_runs
from simulator.units import GIB

SPLIT = "calibrate"

_FRAMEWORK = re.compile(r"[a-z]+(?:-[a-z]+)*")


@dataclass(frozen=True, kw_only=True, slots=True)
class ReservedReading:
    """One layout of a framework whose reserved memory was read."""

    framework: str
    """What its software is called up to the first number."""
    kind: str
    """``reserved`` as torch counts it, or ``nvidia_smi`` less context and communicators."""
    layout: str
    log_error: float
    """Logarithm of measured over predicted reserved memory."""
    log_ratio: float
    """Logarithm of measured reserved over predicted memory without the fragmentation figure."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spreads:
    """Standard deviations of the logarithm of measured over predicted reserved memory."""

    within: dict[str, float]
    """By framework, of those whose reserved memory torch counted."""
    between: float
    """Of a framework that nobody read."""
    readings: tuple[ReservedReading, ...]


def readings(path: Path | str) -> list[ReservedReading]:
    """Compare the rows of a table that have a reading, each distinct layout once.

    Raises
    ------
    InputError
        If any row of the table, used or not, belongs to another split than ``calibrate``.
    """
    rows = read_runs([path])
    if wrong := [row for row in rows if row.get("split") != SPLIT]:
        raise InputError(
            f"{wrong[0].where}: split: must be {SPLIT!r}: nothing is ever fitted to other rows,"
            f" got {wrong[0].get('split')!r} ({len(wrong)} such rows)"
        )
    tables = load_tables()
    reserved_readings: dict[tuple[str, str, float, float], ReservedReading] = {}
    for row in rows:
        kind, reading_bytes = _reading(row)
        if not kind:
            continue
        run = replay(row.fields, tables, where=row.where)
        estimate = evaluate(run.layout, run.workload, run.cluster, run.software)
        outside = sum(float(estimate.memory_bytes[x][0]) for x in ("communicators", "context"))
        predicted = float(estimate.memory_total_bytes[0]) - outside
        if kind == "nvidia_smi":
            reading_bytes -= outside
        fraction = float(run.software.allocator.fragmentation_fraction)
        error = math.log(reading_bytes / predicted)
        named = _FRAMEWORK.match(row.get("software"))
        reserved_reading = ReservedReading(
            framework=named.group().removesuffix("-") if named else row.get("software"),
            kind=kind,
            layout=f"{row.get('model')} {run.layout.describe()}",
            log_error=error,
            log_ratio=error + math.log1p(fraction),
        )
        reserved_readings.setdefault(
            (reserved_reading.framework, row.get("model"), predicted, reading_bytes),
            reserved_reading,
        )
    return list(reserved_readings.values())


def _reading(row: MeasuredRun) -> tuple[str, float]:
    """Kind and bytes of a row's reading of reserved memory; without a kind where it has none."""
    kind = row.get("memory_kind")
    if row.get("peak_reserved_gib"):
        return "reserved", number(row.fields, "peak_reserved_gib") * GIB
    if kind not in ("reserved", "nvidia_smi"):
        return "", 0.0
    return kind, number(row.fields, "peak_memory_gib") * GIB


def fit_memory(path: Path | str | None = None) -> Spreads:
    """Take the spreads from the calibration runs of a table; the shipped one by default.

    Within a framework: its fragmentation figure is one fitted number, so n - 1 errors are free.
    Between: standard deviation of the frameworks' mean ratios (Bessel), and the mean variance
    within, since a new framework has both. Both are widened by how few they were taken from.
    """
    read = readings(path or catalogue.folder("validation") / "runs" / "calibrate.csv")
    by_framework: dict[str, list[ReservedReading]] = {}
    for one in read:
        by_framework.setdefault(one.framework, []).append(one)
    many = {name: some for name, some in by_framework.items() if len(some) > 1}
    if len(many) < 2:
        raise InputError(f"fit: needs readings of two frameworks or more, got {len(many)}")
    within = {
        name: _few(len(some)) * math.sqrt(sum(x.log_error**2 for x in some) / (len(some) - 1))
        for name, some in many.items()
        if all(x.kind == "reserved" for x in some)
    }
    means = [np.mean([x.log_ratio for x in some]) for some in many.values()]
    inside = [np.var([x.log_ratio for x in some], ddof=1) for some in many.values()]
    between = math.sqrt(float(np.var(means, ddof=1)) + float(np.mean(inside)))
    between *= _few(len(means))
    return Spreads(within=within, between=between, readings=tuple(read))


def _few(n: int) -> float:
    """How much wider a P10-P90 interval is that `n` values foretell another one with.

    Student's t in place of the normal quantile, and the error of their mean: the interval of
    prediction of a normal sample (Student 1908), over that of a known mean and deviation.
    """
    from scipy.stats import t  # type: ignore[import-untyped, unused-ignore]

    return float(t.ppf(0.9, n - 1)) * math.sqrt(1.0 + 1.0 / n) / P90


def report(fit: Spreads) -> list[str]:
    """Word the spreads and the readings behind them."""
    lines = [f"{name:<20} spread {spread:.4f}" for name, spread in fit.within.items()]
    lines.append(f"{'any other':<20} spread {fit.between:.4f}")
    return [*lines, *_listed(fit.readings)]


def _listed(read: Sequence[ReservedReading]) -> list[str]:
    return [
        f"{x.framework:<20} {x.kind:<10} {100 * x.log_error:+6.1f} %"
        f" {math.exp(x.log_ratio):6.3f}  {x.layout}"
        for x in read
    ]


if __name__ == "__main__":
    print(*report(fit_memory()), sep="\n")
