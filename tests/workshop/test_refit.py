"""`make profiles`: the same facts give the same bytes; nothing is written where anything fails."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

from simulator import catalogue
from simulator.calibration.profile_text import FigureText, Section
from simulator.errors import InputError
from simulator.files import read_profile
from simulator.hardware.accelerator import Accelerator
from simulator.hardware.cluster import load_accelerator
from simulator.profiles.check import check
from workshop.fits.fitting.holdout_errors import LeftOut
from workshop.fits.gemm.profiles import gemm_sections
from workshop.fits.gemm.series import load_series
from workshop.fits.refit import PRODUCERS, Producer, main, refit


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    return Path(shutil.copytree(catalogue.folder("hardware_profiles"), tmp_path / "profiles"))


@pytest.mark.evidence
def test_a_second_run_of_a_producer_changes_nothing(profiles: Path, tmp_path: Path) -> None:
    """Products of three devices, two of which have timed backward passes: the same bytes."""
    some = {"l40s": ("bf16", "fp8"), "a100-sxm-80": ("bf16",), "b200-sxm": ("bf16",)}
    series = [
        one
        for one in load_series()
        if one.library == "cublas" and one.dtype in some.get(one.device, ())
    ]
    producer = Producer(sections=partial(gemm_sections, series), left_out=list)
    refit({"products": producer}, profiles=profiles, left_out=tmp_path / "left_out.csv")
    path = profiles / "accelerators" / "l40s.toml"
    text = path.read_text()
    assert refit({"products": producer}, profiles=profiles, left_out=None) == []
    assert path.read_text() == text
    assert text.startswith("# NVIDIA L40S 48 GB\n") and "# 48 GiB" in text
    assert check(path, "accelerators") == []
    kernel = read_profile(Accelerator, path).gemm["cublas"]["bf16"]
    assert kernel.peak_fraction.grade == "fitted"
    before = load_accelerator("l40s").gemm["cublas"]["bf16"].training_fraction
    assert kernel.training_fraction == before  # no business of this producer


def section(value: float) -> Section:
    return Section(
        path=("power",),
        figures={"busy_watt": FigureText(value=value, grade="fitted")},
        source="meter",
        text="measured at the plug",
        date="2026-11-21",
    )


def producer(profile: str, value: float) -> Producer:
    line = LeftOut(
        kernel="power",
        device=profile,
        library="-",
        dtype="-",
        method="formula",
        rows=3,
        median=0.01,
        p90=0.02,
        spread=0.015,
    )
    return Producer(
        sections=lambda: {profile: [section(value)]},
        left_out=lambda: [line],
        files=lambda: {"residuals/one.csv": "m,n,k\n"},
    )


def test_producers_write_in_order_and_say_what_changed(profiles: Path, tmp_path: Path) -> None:
    both = {"first": producer("l4", 60.0), "second": producer("accelerators/l4", 61.0)}
    changed = refit(both, profiles=profiles, left_out=tmp_path / "left_out.csv")
    assert sorted(path.name for path in changed) == ["l4.toml", "left_out.csv", "one.csv"]
    power = read_profile(Accelerator, profiles / "accelerators" / "l4.toml", kind="accelerators")
    assert power.power.busy_watt == 61.0
    assert len((tmp_path / "left_out.csv").read_text().splitlines()) == 3


def test_nothing_is_written_where_a_profile_is_missing(profiles: Path, tmp_path: Path) -> None:
    before = (profiles / "accelerators" / "l4.toml").read_text()
    both = {"first": producer("l4", 60.0), "second": producer("l5", 61.0)}
    with pytest.raises(InputError, match="second: no such profile, got 'l5'"):
        refit(both, profiles=profiles, left_out=tmp_path / "left_out.csv")
    assert (profiles / "accelerators" / "l4.toml").read_text() == before
    assert not (tmp_path / "left_out.csv").exists()


def test_an_unknown_producer_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["product"]) == 2
    assert "unknown producer 'product' (did you mean 'products'?)" in capsys.readouterr().err
    assert list(PRODUCERS)
