"""`--trace` and `--refine`: files, screens, documents and refusals."""

import gzip
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simulator.cli.main import app

RUNNER = CliRunner(env={"COLUMNS": "160"})
NAMES = ["--model", "llama-3.1-8b", "--cluster", "dgx-h100", "--gpus", "8"]
FEW = [*NAMES, "--set", "layout.tp=2", "--set", "layout.recompute=none"]
"""Leaves some hundred layouts to search."""


def test_predict_writes_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "t.json.gz"
    result = RUNNER.invoke(app, ["predict", *NAMES, "--set", "layout.pp=2", "--trace", str(path)])
    assert result.exit_code == 0, result.output
    assert result.stderr == f"Trace: {path}\n"
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    assert {event["pid"] for event in events if event["ph"] == "X"} == {0, 1}


def test_plan_writes_the_best_layouts_trace_beside_json(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    result = RUNNER.invoke(app, ["plan", *FEW, "--json", "--refine", "3", "--trace", str(path)])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    times = [row["simulation"]["step_time_s"] for row in found["layouts"][:3]]
    assert times == sorted(times)
    assert [row["step_time_s"] for row in found["layouts"][:3]] == times
    assert sorted(row["simulation"]["place"] for row in found["layouts"][:3]) == [1, 2, 3]
    assert "simulation" not in found["layouts"][3]
    assert json.loads(path.read_text())["otherData"]["step_time_s"] == times[0]


def test_the_screen_says_what_was_played() -> None:
    result = RUNNER.invoke(app, ["plan", *FEW, "--more", "--no-report", "--refine", "2"])
    assert result.exit_code == 0, result.output
    part = result.stdout.split("Simulated step, on discrete events")[1].split("Bottlenecks")[0]
    assert part.count("by the analytical model") == 2
    assert "Layouts behind these 2 keep their places and closed-form times" in part


@pytest.mark.parametrize("command", ["plan", "predict"])
def test_a_name_that_no_trace_has(command: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    result = RUNNER.invoke(app, [command, *NAMES, "--trace", str(path)])
    assert result.exit_code == 2
    assert "--trace: must end in .json or .json.gz, got" in result.stderr
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "t.json"
    result = RUNNER.invoke(app, ["predict", *NAMES, "--trace", str(path)])
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr
