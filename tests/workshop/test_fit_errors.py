"""Deviations of step times: covariances by hand, recovery of known ones, what the profiles hold."""

from __future__ import annotations

import csv
import tomllib
from pathlib import Path

import numpy as np
import pytest

from simulator import catalogue
from simulator.cost.step import evaluate
from simulator.cost.uncertainty import SHARED, load_step_errors
from simulator.measured.rows import MeasuredRun
from simulator.units import P90
from workshop.fits.training.errors import (
    _fitted,
    _Group,
    _score,
    covered,
    with_deviations,
)
from workshop.fits.training.fit import TrainingRun, as_shipped, choose
from workshop.fits.training.holdout_runs import scaled, source_family

RUNS = catalogue.folder("validation") / "runs"
PLACE = {name: SHARED.index(name) for name in SHARED}


def group(residuals: list[float], model: list[int], kernels: list[int]) -> _Group:
    """Runs of one source and device whose every layout is another."""
    count = len(residuals)
    shares = np.zeros((count, len(SHARED)))
    shares[:, [PLACE["compute"], PLACE["experts"], PLACE["kernels"], PLACE["layout"]]] = 1.0
    parts = np.stack([np.outer(column, column) for column in shares.T])
    parts[PLACE["experts"]] *= np.equal.outer(model, model)
    parts[PLACE["kernels"]] *= np.equal.outer(kernels, kernels)
    parts[PLACE["layout"]] *= np.eye(count)
    return _Group(np.array(residuals), parts)


def deviations(**known: float) -> np.ndarray:
    found = np.zeros(len(SHARED))
    for name, value in known.items():
        found[PLACE[name]] = value
    return found


def test_runs_share_the_errors_of_what_they_have_in_common() -> None:
    runs = group([0.0, 0.0, 0.0], model=[0, 0, 1], kernels=[0, 0, 1])
    found = runs.covariance(deviations(compute=0.01, experts=0.1, kernels=0.05, layout=0.02), 0.03)
    # variances in 1e-4: compute 1, experts 100, kernels 25, layout 4, run 9
    assert 1e4 * found[0, 0] == pytest.approx(139.0)
    assert 1e4 * found[0, 1] == pytest.approx(126.0)  # one model, one set of kernels
    assert 1e4 * found[0, 2] == pytest.approx(1.0)  # one device


@pytest.mark.evidence
def test_known_deviations_are_found_again() -> None:
    draw = np.random.default_rng(7)
    groups = []
    for _ in range(60):
        kernels = [0, 0, 1, 1, 2, 2, 3, 3]
        own = 0.06 * draw.standard_normal(4)[kernels] + 0.03 * draw.standard_normal(8)
        groups.append(group((0.04 * draw.standard_normal() + own).tolist(), [0] * 8, kernels))
    for one in groups:
        one.parts[PLACE["experts"]] = 0.0
    found = _fitted(groups)
    assert found["kernels"] == pytest.approx(0.06, rel=0.2)
    assert found["compute"] == pytest.approx(0.04, rel=0.3)
    run = float(load_step_errors().run)  # measured alone, and part of what is each run's own
    assert np.hypot(found["layout"], run) == pytest.approx(0.03, rel=0.2)
    assert found["tail"] == pytest.approx(1.0, abs=0.15)
    found_deviations = scaled(np.array([found[name] for name in SHARED]), found)
    assert _score(groups, found_deviations, run)[1] == pytest.approx(0.8, abs=0.05)


def test_the_score_of_one_run_by_hand() -> None:
    """Predicted 10 % too slow with a deviation of 5 %: [1.1 / e, 1.1 e], e = exp(1.2816 x 0.05)."""
    one = group([float(np.log(1.1))], [0], [0])
    reach = float(np.exp(P90 * 0.05))
    low, high = 1.1 / reach, 1.1 * reach
    score, inside = _score([one], deviations(), 0.05)
    assert inside == 0.0 and score == pytest.approx(high - low + 10.0 * (low - 1.0))


def few_runs(folder: Path, which: slice = slice(-3, None)) -> list[TrainingRun]:
    """Runs of Narayanan et al. 2021, table 1, in the order of their sizes."""
    return choose(few_rows(folder, which))


def few_rows(folder: Path, which: slice) -> Path:
    with (RUNS / "calibrate.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["source"] == "narayanan21-t1"]
    path = folder / "few.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows[which])
    return path


def test_as_shipped_predicts_what_the_profiles_do(tmp_path: Path) -> None:
    fit = as_shipped(few_rows(tmp_path, slice(3)))
    for one, error in zip(fit.runs, fit.after.tolist(), strict=True):
        run = one.run
        step_s = evaluate(run.layout, run.workload, run.cluster, run.software).step_time_s[0]
        assert error == pytest.approx(np.log(step_s / one.step_s), abs=5e-3)
    assert covered(fit.runs) == {"a100-sxm-80": ("fp16",)}


def test_what_calibration_runs_had_is_in_the_profile() -> None:
    steps = load_step_errors()
    assert "bf16" in steps.covered["h100-sxm"] and "fp16" in steps.covered["a100-sxm-80"]
    assert set(steps.covered) <= set(catalogue.names("accelerators"))


def test_the_profile_is_written_with_its_words_kept(tmp_path: Path) -> None:
    text = catalogue.find("uncertainty", "step").read_text(encoding="utf-8")
    runs = few_runs(tmp_path)
    fitted = {"links": 0.12345, "tail": 1.5}
    new = with_deviations(text, fitted, runs)
    changed = [line for line in new.splitlines() if line not in text.splitlines()]
    assert 'links = { value = 0.123, grade = "fitted", source = "left_out" }' in changed
    assert 'tail = { value = 1.5, grade = "fitted", source = "left_out" }' in changed
    found = tomllib.loads(new)
    assert found["covered"] == {"a100-sxm-80": ["fp16"]}
    assert found["run"] == tomllib.loads(text)["run"] and new.startswith("# How far")


def test_a_family_is_a_source_without_its_release() -> None:
    row = MeasuredRun(where="a.csv: line 2", fields={"source": "mbridge-25.09"})
    assert source_family(row) == "mbridge"
