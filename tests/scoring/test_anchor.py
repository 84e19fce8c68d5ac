"""`predict --anchored-by`: a measured run corrects the prediction of a larger one."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simulator import catalogue
from simulator.cli.main import app
from simulator.scoring.hidden_end import hidden_end, hidden_runs
from simulator.scoring.series import series
from simulator.scoring.validation import validate

RUNS = catalogue.folder("validation") / "runs"
LOGS = Path(__file__).resolve().parent.parent / "data" / "logs"
TARGET = ["--model", "llama-3.1-70b", "--cluster", "dgx-h100", "--gpus", "512",
          "--set", "layout.tp=4", "--set", "layout.pp=4"]  # fmt: skip


def table(path: Path, **change: str) -> Path:
    """A table of one run: Nemotron-4 15B on 16 H100, with some columns changed."""
    with (RUNS / "calibrate.csv").open(newline="", encoding="utf-8") as file:
        row = next(r for r in csv.DictReader(file) if r["run_id"] == "dgxc-v25.02.02-093")
    row |= {"tokens_per_s_per_gpu": "", "model_tflops_per_gpu": ""} | change
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, row)
        writer.writeheader()
        writer.writerow(row)
    return path


def answer(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["predict", *TARGET, *arguments, "--json"])
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_slow_run_makes_the_next_one_slower_and_surer(tmp_path: Path) -> None:
    plain = answer()["layouts"][0]
    measured_s = 1.1 * 2.84  # a tenth slower than predicted
    found = answer("--anchored-by", str(table(tmp_path / "a.csv", step_time_s=f"{measured_s}")))
    layout, told = found["layouts"][0], found["anchored_by"]
    assert told["uncorrected_s"] == pytest.approx(plain["step_time_s"])
    assert 1.0 < layout["step_time_s"] / plain["step_time_s"] < 1.1
    assert sum(layout["terms_s"].values()) == pytest.approx(layout["step_time_s"])
    assert layout["p90_s"] / layout["p10_s"] < plain["p90_s"] / plain["p10_s"]
    (run,) = told["runs"]
    assert run["measured_s"] == pytest.approx(measured_s)
    assert all(e["spread_after"] <= e["spread_before"] for e in told["errors"].values())
    assert set(told["errors"]["compute"]) == {"factor", "spread_before", "spread_after"}


def test_a_run_of_another_device_is_refused(tmp_path: Path) -> None:
    other = table(tmp_path / "a.csv", gpu="A100-SXM4-80GB", software="simumax-megatron-2026")
    result = CliRunner().invoke(app, ["predict", *TARGET, "--anchored-by", str(other)])
    assert result.exit_code == 2
    assert "accelerator: must be h100-sxm as in the scenario, got a100-sxm-80" in result.stderr
    assert "software: must be megatron-core as in the scenario, got megatron-core-" in result.stderr


def test_a_run_that_cannot_be_predicted_is_refused(tmp_path: Path) -> None:
    other = table(tmp_path / "a.csv", software="megatron-lm-2022")
    result = CliRunner().invoke(app, ["predict", *TARGET, "--anchored-by", str(other)])
    assert result.exit_code == 2 and "a.csv: line 2: the layout cannot run" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--anchored-by", str(LOGS / "megatron_2025.log")], "--anchor-scenario: must be given"),
        (["--anchored-by", "nowhere.csv"], "no such file"),
    ],
)
def test_bad_input_is_named(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(app, ["predict", *TARGET, *arguments])
    assert result.exit_code == 2 and words in result.stderr


def test_a_known_small_run_brings_larger_ones_nearer() -> None:
    """On the calibration series, their large ends hidden: nearer, and with narrower intervals."""
    rows = validate(RUNS / "calibrate.csv").rows
    found = hidden_end(hidden_runs(series(rows)), "calibrate")
    assert found is not None and found.runs > 40
    assert found.mape[1] < found.mape[0]
    assert found.width[1] < 0.7 * found.width[0]
    assert found.coverage[1] >= 0.75
