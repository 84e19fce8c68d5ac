"""Heads of several tasks in a scenario: what is predicted, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simulator.cli.main import app

RUNNER = CliRunner()
SCENARIO = """
[model]
name = "bert-large"
[model.tasks]
outputs = [2, 2, 5]
tower_hidden = 256
experts = 8
expert_hidden = 2048
[training]
sequence_length = 512
global_batch = 256
[cluster]
name = "dgx-h100"
gpus = 8
"""


def predict(tmp_path: Path, text: str = SCENARIO, *more: str) -> Any:
    path = tmp_path / "tasks.toml"
    path.write_text(text)
    return RUNNER.invoke(app, ["predict", str(path), "--json", *more])


def test_a_scenario_with_tasks(tmp_path: Path) -> None:
    """335,141,888 of the bare model, 8 experts, 3 gates, 3 towers and their outputs."""
    result = predict(tmp_path)
    assert result.exit_code == 0, result.output
    h, e, t = 1024, 2048, 256
    experts = 8 * ((h + 1) * e + (e + 1) * h) + 3 * 8 * h
    towers = 3 * (h + 1) * t + (t + 1) * (2 + 2 + 5)
    found = json.loads(result.stdout)
    assert found["workload"]["parameters"] == 335_141_888 + experts + towers
    [layout] = found["layouts"]
    assert layout["step_time_s"] > 0 and layout["fits"]


@pytest.mark.parametrize(
    "report", [[], pytest.param(["--out", "written"], marks=pytest.mark.evidence)]
)
def test_a_plan_with_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tasks.toml"
    path.write_text(SCENARIO)
    pins = ["--set", "layout.pp=1", "--set", "layout.recompute=none"]  # fewer layouts
    result = RUNNER.invoke(app, ["plan", str(path), *pins, "--json", *report])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["layouts"][0]["fits"]


def test_tasks_that_few_samples_have_take_less(tmp_path: Path) -> None:
    wide = SCENARIO.replace("tower_hidden = 256", "tower_hidden = 65536\nper_token = true")
    few = wide.replace("[training]", "batch_fractions = [1.0, 0.5, 0.1]\n[training]")
    whole, part = (
        json.loads(predict(tmp_path, x, "--set", "layout.micro_batch=16").stdout)["layouts"][0]
        for x in (wide, few)
    )
    assert part["step_time_s"] < whole["step_time_s"]
    assert part["memory_total_bytes"] < whole["memory_total_bytes"]
    assert part["memory_bytes"]["weights"] == whole["memory_bytes"]["weights"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("tasks={outputs=[2,2],batch_fractions=[0.5]}", "must have one of each of the 2 tasks"),
        ("tasks={outputs=[2],batch_fractions=[1.5]}", "batch_fractions.0: must be less than or"),
        ("tasks=3", "model.tasks: must be a table, got 3"),
        ("tasks={outputs=[]}", "model.tasks.outputs"),
        ("tasks={outputs=[0]}", "model.tasks.outputs.0: must be greater than 0, got 0"),
        ("tasks={outputs=[2],experts=4}", "model.tasks.expert_hidden: required with experts"),
        ("tasks={outputs=[2],expert_hidden=4}", "model.tasks.expert_hidden: needs experts above 0"),
        ("tasks={outputs=[2],expert=4}", "(did you mean 'experts'?)"),
        ("tasks={experts=4,expert_hidden=8}", "model.tasks.outputs: required field is missing"),
    ],
)
def test_wrong_tasks_are_refused(change: str, message: str) -> None:
    arguments = ["predict", "--model", "bert-large", "--cluster", "dgx-h100", "--gpus", "8"]
    result = RUNNER.invoke(app, [*arguments, "--set", f"model.{change}"])
    assert result.exit_code == 2 and message in result.output, result.output


@pytest.mark.parametrize("model", ["t5-11b", "deepseek-v3"])
def test_models_that_tasks_do_not_stand_behind_yet(model: str) -> None:
    arguments = ["predict", "--model", model, "--cluster", "dgx-h100", "--gpus", "8"]
    result = RUNNER.invoke(app, [*arguments, "--set", "model.tasks={outputs=[2]}"])
    assert result.exit_code == 2 and "model.tasks: not yet for" in result.output
