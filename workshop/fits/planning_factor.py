"""The planning factor from published trainings (`validation/gpu_hours.toml`).

``python -m workshop.fits.planning_factor`` writes hardware_profiles/planning_factors/published.toml
and prints what was tried beside the kind of the hours: size, year and accelerators. None of them is
told apart from nothing; a factor by them has no smaller error on runs left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulator import catalogue
from simulator.report.write import write_file
from workshop.cases.gpu_hours import (
    KINDS,
    Hours,
    Kind,
    hours_of,
    largest_and_least,
    on_top,
    read_hour_cases,
)

_TABLES: dict[Kind, str] = {"whole": "whole_run", "steady": "steady_rate"}
_DATE = "2026-11-26"


def profile(hours: Sequence[Hours]) -> str:
    """Write the profile as text."""
    lines = [
        "# What published trainings took over the hours that are predicted for them, with goodput.",
        "# `python -m workshop.fits.planning_factor` writes it from validation/gpu_hours.toml.",
        "",
        "[sources.runs]",
        'text = "validation/gpu_hours.toml: reported over predicted GPU-hours, software of the day,'
        ' published layouts where there are any; mean and deviation of the logarithm"',
        f'date = "{_DATE}"',
    ]
    for kind in KINDS:
        runs = [run for run in hours if run.case.kind == kind]
        top, (least, most) = on_top(runs), largest_and_least(runs, kind)
        lines += [
            "",
            f"[{_TABLES[kind]}]",
            f'factor = {{ value = {top.factor:.3f}, grade = "fitted", source = "runs",'
            f" spread = {top.log_spread:.3f} }}",
            f"runs = {top.runs}",
            f"least_gpu_hours = {least:.0f}",
            f"most_gpu_hours = {most:.0f}",
            f"step_spread = {top.step_spread:.3f}",
        ]
    return "\n".join(lines) + "\n"


def effects(hours: Sequence[Hours]) -> dict[str, tuple[float, float]]:
    """Coefficients of the logarithm of the ratio with their standard errors.

    ``steady`` against whole runs, ``size`` by doubling of parameters, ``year`` by year, ``gpus`` by
    doubling of accelerators.
    """
    cases = [run.case for run in hours]
    columns = {
        "whole": np.ones(len(cases)),
        "steady": np.array([float(case.kind == "steady") for case in cases]),
        "size": np.log2([float(case.parameters) / 13e9 for case in cases]),
        "year": np.array([case.year - 2023.0 for case in cases]),
        "gpus": np.log2([case.gpus / 512.0 for case in cases]),
    }
    table = np.column_stack(list(columns.values()))
    ratio = np.log([run.ratio for run in hours])
    slopes = np.linalg.lstsq(table, ratio, rcond=None)[0]
    left = ratio - table @ slopes
    variance = float(left @ left) / (len(ratio) - table.shape[1])
    errors = np.sqrt(variance * np.diag(np.linalg.inv(table.T @ table)))
    return {name: (float(x), float(e)) for name, x, e in zip(columns, slopes, errors, strict=True)}


def main() -> None:
    """Fit, write the profile and print the effects that were tried."""
    hours = [hours_of(case) for case in read_hour_cases()]
    folder = catalogue.folder("hardware_profiles") / "planning_factors"
    folder.mkdir(exist_ok=True)
    write_file(folder / "published.toml", profile(hours).encode())
    for name, (value, error) in effects(hours).items():
        print(f"{name}: {value:+.3f} +- {error:.3f}")


if __name__ == "__main__":
    main()
