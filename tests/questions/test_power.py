"""A cap of power: the law of the clock by hand, measured caps of others, and what must hold."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

from simulator.api import power, predict
from simulator.cli.main import app
from simulator.errors import InfeasibleError, InputError
from simulator.hardware.cluster import load_accelerator
from simulator.questions.power.answer import UNTIMED, PowerChoices

pytestmark = pytest.mark.usefixtures("searched_once")
RUNNER = CliRunner()
RUN: dict[str, Any] = {
    "model": "llama-3.1-8b", "cluster": "dgx-h100", "gpus": 32, "tokens": "100B", "tp": 2, "pp": 1,
    "cp": 1, "micro_batch": 1, "sharding": "zero1", "sequence_parallel": False,
}  # fmt: skip


@cache
def capped(cap_kw: float) -> PowerChoices:
    return power(**RUN, cap_kw=cap_kw)


def test_the_draw_of_a_busy_device_by_hand() -> None:
    """90 W idle, 650 W busy, exponent 0.633 of bf16 products: 90 + 560 f^(1/0.633)."""
    answer = capped(30.0)
    assert answer.exponent == pytest.approx(0.633) and not answer.assumed_exponent
    for choice in answer.choices:
        watt = 90.0 + 560.0 * choice.clock ** (1.0 / 0.633)
        assert choice.limit_watt == pytest.approx(watt)


def test_the_draw_of_the_hall_by_hand() -> None:
    """Servers over their share of the network, times PUE: at full clocks nothing but the energy of
    the run without failures over its time."""
    full = capped(30.0).full
    alone = predict(**RUN, ideal=True)
    seconds = float(alone.outcome.days_ideal[0]) * 86_400.0
    assert full.kw == pytest.approx(float(alone.outcome.kwh[0]) * 3600.0 / seconds, rel=1e-6)
    assert full.step_time_s == pytest.approx(alone.step_time_s)


@pytest.mark.parametrize(
    ("device", "precision", "limit", "rated", "low", "high"),
    [
        # facebookexperimental/triton#2023 (2026-07): cuBLAS on a GB300 617 TFLOP/s at 500 W,
        # 1,600 to 2,174 at 1,400 W
        ("gb300", "bf16", 500.0, 1400.0, 617.0 / 2174.0, 617.0 / 1600.0),
        # factryze.ai, power capping: an H100 held at 600 of 700 W loses 10 to 15 % of training
        ("h100-sxm", "bf16", 600.0, 700.0, 1.0 / 1.15, 1.0 / 1.05),
    ],
)
def test_clocks_under_a_limit_are_near_measured_ones(
    device: str, precision: str, limit: float, rated: float, low: float, high: float
) -> None:
    """The law with the profile's exponent and idle draw, busy at the rated limit."""
    part = load_accelerator(device)
    exponent = float(part.gemm["cublas"][precision].clock_exponent)
    idle = float(part.power.idle_watt)
    clock = ((limit - idle) / (rated - idle)) ** (exponent or UNTIMED)
    assert low * 0.85 <= clock <= high * 1.15


@pytest.mark.evidence
def test_a_cap_that_does_not_bind_changes_nothing() -> None:
    answer = capped(1000.0)
    assert (answer.best.gpus, answer.best.clock) == (32, 1.0)
    assert answer.best == answer.full


def test_everything_stays_under_the_cap_and_the_best_is_the_fastest() -> None:
    answer = capped(30.0)
    assert max(choice.kw for choice in answer.choices) <= 30.0
    assert answer.best.step_time_s == min(choice.step_time_s for choice in answer.choices)
    assert answer.best.clock < 1.0  # 32 H100 draw some 40 kW
    tokens = answer.best.tokens_per_s / answer.best.kw * 3600.0
    assert answer.best.tokens_per_kwh == pytest.approx(tokens)


def test_less_power_is_never_faster() -> None:
    points = capped(30.0).frontier
    assert len(points) > 6
    for more, less in pairwise(points):
        assert more.cap_kw > less.cap_kw
        assert less.choice.step_time_s >= more.choice.step_time_s * (1 - 5e-3)
        assert less.choice.kw <= less.cap_kw


@pytest.mark.evidence
def test_picture_screen_and_document(tmp_path: Path) -> None:
    axes = Figure().subplots()
    assert capped(30.0).plot(axes) is axes and axes.has_data()
    path = tmp_path / "run.toml"
    path.write_text(
        '[model]\nname = "gpt2-small"\n[training]\nglobal_batch = 64\nsequence_length = 1024\n'
        '[cluster]\nname = "dgx-h100"\ngpus = 16\n[layout]\ntp = 1\npp = 1\n'
    )
    drawn = tmp_path / "power.svg"
    asked = ["power", str(path), "--cap", "14", "--picture", str(drawn)]
    result = RUNNER.invoke(app, asked)
    assert result.exit_code == 0 and drawn.read_text().startswith("<?xml"), result.output
    document = json.loads(RUNNER.invoke(app, ["power", str(path), "--cap", "14", "--json"]).stdout)
    assert document["best"]["kw"] <= 14.0 and document["best"]["days"] is None
    result = RUNNER.invoke(app, ["power", str(path), "--cap", "0.5"])
    assert result.exit_code == 1 and "kW is less than" in result.stderr
    result = RUNNER.invoke(app, ["power", str(path), "--cap", "-3"])
    assert result.exit_code == 2 and "--cap" in result.stderr
    result = RUNNER.invoke(app, ["power", str(path), "--cap", "5", "--picture", "x.pdf"])
    assert result.exit_code == 2


def test_bad_input() -> None:
    with pytest.raises(InputError, match="--cap"):
        power(**RUN, cap_kw=0.0)
    with pytest.raises(InfeasibleError, match="kW is less than"):
        power(**RUN, cap_kw=1.0)
