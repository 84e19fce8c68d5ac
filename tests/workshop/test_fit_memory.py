"""Spread of reserved memory: calibration rows only, by hand, and what the profiles hold."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

from simulator import catalogue
from simulator.errors import InputError
from simulator.software.profile import load_software
from workshop.fits.training.memory import Spreads, fit_memory, readings, report

RUNS = catalogue.folder("validation") / "runs"


@pytest.fixture(scope="module")
def fit() -> Spreads:
    return fit_memory()


def test_rows_of_the_test_split_are_refused() -> None:
    with pytest.raises(InputError, match="split: must be 'calibrate'"):
        readings(RUNS / "test.csv")


@pytest.mark.evidence
def test_every_distinct_reading_counts_once(fit: Spreads) -> None:
    """18 SimuMax rows are six layouts, whose notes give the reserved memory; 10 of torchtitan."""
    count: dict[str, int] = {}
    for one in fit.readings:
        count[one.framework] = count.get(one.framework, 0) + 1
    assert count["simumax-megatron"] == 6 and count["torchtitan"] == 10
    assert set(count) == {"simumax-megatron", "torchtitan", "megatron-deepspeed"}
    assert {x.kind for x in fit.readings if x.framework == "megatron-deepspeed"} == {"nvidia_smi"}
    assert set(fit.within) == {"simumax-megatron", "torchtitan"}


@pytest.mark.evidence
def test_the_ratio_is_reserved_over_allocated_where_allocated_is_exact(fit: Spreads) -> None:
    """SimuMax: 70.88 GiB reserved of 66.55 allocated is 1.065 (pp 2); 29.12 of 28.29: 1.029."""
    by_layout = {x.layout: math.exp(x.log_ratio) for x in fit.readings}
    assert by_layout["llama-3-70b-l12 pp2 dp4 mb1 zero1"] == pytest.approx(70.88 / 66.55, rel=2e-3)
    assert by_layout["llama-3-70b-l12 tp8 mb1 sp zero1"] == pytest.approx(29.12 / 28.29, rel=2e-3)


@pytest.mark.evidence
def test_the_spread_within_is_the_root_mean_square_with_one_figure_fitted(fit: Spreads) -> None:
    for name, spread in fit.within.items():
        errors = [x.log_error for x in fit.readings if x.framework == name]
        quantile = {6: 1.476, 10: 1.383}[len(errors)]  # of Student's t at 90 %, from his table
        wider = quantile * math.sqrt(1 + 1 / len(errors)) / 1.2816
        usual = math.hypot(*errors) / math.sqrt(len(errors) - 1)
        assert spread == pytest.approx(wider * usual, rel=1e-3)
    assert fit.between > max(fit.within.values())
    assert any(line.startswith("any other") for line in report(fit))


@pytest.mark.evidence
def test_the_profiles_hold_the_fit(fit: Spreads) -> None:
    """To a tenth: other terms of memory move errors a little without a new fit."""
    for profile, framework in (
        ("megatron-core", "simumax-megatron"),
        ("megatron-core-defaults", "simumax-megatron"),
        ("torchtitan", "torchtitan"),
    ):
        held = load_software(profile).allocator.reserved_spread
        assert held is not None and held.grade == "fitted"
        assert held == pytest.approx(fit.within[framework], rel=0.1)
    between = load_software("plain-ddp").allocator.reserved_spread
    assert between == pytest.approx(fit.between, rel=0.1)


def test_one_framework_tells_nothing_of_the_spread_between(tmp_path: Path) -> None:
    with (RUNS / "calibrate.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["run_id"].startswith("titan-")]
    path = tmp_path / "one.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    with pytest.raises(InputError, match="needs readings of two frameworks or more, got 1"):
        fit_memory(path)
