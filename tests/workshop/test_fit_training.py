"""Fits to training steps: calibration rows only, absolute figures, nothing else moved."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator import catalogue
from simulator.errors import InputError
from simulator.files import figures
from simulator.measured.replay import Run
from workshop.fits.training.fit import (
    TrainingFit,
    TrainingRun,
    apply,
    choose,
    fit_training,
    report,
)
from workshop.fits.training.parameters import PARAMETERS

RUNS = catalogue.folder("validation") / "runs"
PRIORS = {name: parameter.prior.value for name, parameter in PARAMETERS.items()}

Row = dict[str, str]


def table(path: Path, wanted: Callable[[Row], bool], change: Row | None = None) -> Path:
    """Write the wanted rows of the shipped calibration runs."""
    with (RUNS / "calibrate.csv").open(newline="", encoding="utf-8") as file:
        rows = [row | (change or {}) for row in csv.DictReader(file) if wanted(row)]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def narayanan(row: Row) -> bool:
    return row["source"] == "narayanan21-t1"


@pytest.fixture(scope="module")
def chosen() -> list[TrainingRun]:
    return choose(RUNS / "calibrate.csv")


def test_rows_of_the_test_split_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"split: must be 'calibrate'.*got 'test' \(270 such rows\)"
    ):
        choose(RUNS / "test.csv")
    mixed = table(
        tmp_path / "one.csv", lambda row: row["source"] == "narayanan21-t1", {"split": "test"}
    )
    with pytest.raises(InputError, match="nothing is ever fitted to other rows"):
        fit_training(mixed)
    blank = table(
        tmp_path / "blank.csv", lambda row: row["source"] == "narayanan21-t1", {"split": ""}
    )
    with pytest.raises(InputError, match="got ''"):
        fit_training(blank)


def test_chosen_rows_are_calibration_rows_that_differ_in_more_than_their_size(
    chosen: list[TrainingRun],
) -> None:
    assert {run.row.get("split") for run in chosen} == {"calibrate"}
    with (RUNS / "calibrate.csv").open(newline="", encoding="utf-8") as file:
        sources = {row["source"] for row in csv.DictReader(file)}
    assert {run.row.get("source") for run in chosen} == sources
    assert all(run.row.get("cp") in ("", "1") for run in chosen)
    alike = (
        "source",
        "gpu",
        "model",
        "precision",
        "seq_len",
        "micro_batch",
        "tp",
        "pp",
        "recompute",
    )
    count = Counter(tuple(run.row.get(name) for name in alike) for run in chosen)
    assert max(count.values()) <= 3


def test_every_figure_exists_and_follows_its_parameter(chosen: list[TrainingRun]) -> None:
    moved_to = {name: 2.3 * (value or 1.0) for name, value in PRIORS.items()}
    reached = set()
    for run in {names(training.run): training.run for training in chosen}.values():
        moved = changed(run, apply(run, moved_to))
        for name, parameter in PARAMETERS.items():
            for profile in names(run):
                if parameter.reaches(profile):
                    reached.add(name)
                    for figure, ratio in parameter.figures.items():
                        value = moved.pop((profile, figure))
                        assert value == pytest.approx(ratio * moved_to[name])
        assert moved == {}  # every other figure is as the profile has it
    assert reached == set(PARAMETERS)


def names(run: Run) -> tuple[str, str, str]:
    return run.cluster.accelerator.name, run.cluster.library.name, run.software.name


def changed(before: Run, after: Run) -> dict[tuple[str, str], float]:
    """Figures that differ, by profile and dotted name."""
    found = {}
    parts = [(r.cluster.accelerator, r.cluster.library, r.software) for r in (before, after)]
    for old, new in zip(*parts, strict=True):
        now = dict(figures(new))
        for name, value in figures(old):
            if float(now[name]) != float(value):
                found[(old.name, name)] = float(now[name])
    return found


def test_figures_are_absolute_so_that_a_second_fit_starts_where_the_first_did(
    chosen: list[TrainingRun],
) -> None:
    run = chosen[0].run
    shifted = apply(run, {name: 1.1 * value for name, value in PRIORS.items()})
    assert changed(apply(run, PRIORS), apply(shifted, PRIORS)) == {}


@pytest.mark.evidence
def test_a_fit_brings_the_errors_down_and_keeps_to_the_bounds(tmp_path: Path) -> None:
    small = table(
        tmp_path / "few.csv",
        lambda row: row["source"] == "narayanan21-t1" and int(row["num_gpus"]) <= 256,
    )
    fit = fit_training(small, processes=1)
    assert np.abs(fit.after).mean() < np.abs(fit.before).mean()
    # runs are predicted alone, so that how many processes do it changes nothing
    assert fit_training(small, processes=3).values == fit.values
    for name, parameter in PARAMETERS.items():
        assert parameter.prior.low <= fit.values[name] <= parameter.prior.high
    h100 = [name for name in PARAMETERS if name.startswith("h100")]
    for name in h100:  # no such row: the prior stays
        assert fit.values[name] == pytest.approx(PRIORS[name], rel=1e-3)


def made(values: dict[str, float], runs: tuple[TrainingRun, ...], errors: Any) -> TrainingFit:
    """A fit whose slopes and offsets nobody asks for."""
    none = np.zeros(len(PARAMETERS))
    return TrainingFit(
        values=values,
        runs=runs,
        before=errors,
        after=errors,
        slopes=np.zeros((len(runs), len(none))),
        offsets=none,
        bounds=(none, none),
    )


def test_the_report_names_every_figure_and_marks_what_differs(chosen: list[TrainingRun]) -> None:
    runs = tuple(chosen)
    errors = np.zeros(len(runs))
    values = {name: 3.0 * (value or 1.0) for name, value in PRIORS.items()}
    fit = made(values, runs, errors)
    lines = report(fit)
    for parameter in PARAMETERS.values():
        for figure in parameter.figures:
            assert any(figure in line and line.endswith("differs") for line in lines)
    assert sum("0.0 %" in line for line in lines) == len(
        {(r.row.get("source"), r.row.get("precision")) for r in runs}
    )


def test_figures_are_rounded_as_the_profile_keeps_them() -> None:
    values = {**PRIORS, "h100_rate": 0.78765, "nccl_compute_units": 31.98}
    fit = made(values, (), np.zeros(0))
    rounded = fit.figures()
    assert rounded["h100-sxm"]["gemm.cublas.bf16.training_fraction"] == 0.788
    assert rounded["nccl"]["compute_units"] == 32.0
