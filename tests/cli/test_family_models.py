"""Every family goes from its config file to a prediction and a plan."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simulator.cli.main import app
from simulator.workload import presets

ZOO = Path(presets.__file__).parent / "zoo"
MODELS = (
    *("bert-large", "deberta-v3-large", "falcon-7b", "gemma-2-9b", "gpt-oss-20b", "mpt-7b"),
    *("opt-66b", "phi-3-mini", "swin-base", "switch-base-128", "t5-v1.1-xxl", "vit-large-16"),
    *("opt-350m", "deberta-v2-xlarge", "llama-4-scout", "llama-4-maverick", "yuan2-2b"),
)

RUNNER = CliRunner()


def answer(*arguments: str) -> dict[str, Any]:
    result = RUNNER.invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", MODELS)
def test_predict_from_a_path(name: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    shutil.copy(ZOO / f"{name}.json", path)
    found = answer("predict", "--model", str(path), "--cluster", "dgx-h100", "--gpus", "64")
    assert found["workload"]["name"] == "mine"
    assert found["workload"]["parameters"] == presets.load(name).parameters
    [layout] = found["layouts"]
    assert layout["step_time_s"] > 0 and 0 < layout["mfu"] < 1


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["gemma-2-9b", "t5-v1.1-xxl", "swin-base", "switch-base-128"])
def test_plan(name: str) -> None:
    pins = ["--set", "layout.pp=1", "--set", "layout.recompute=none"]  # fewer layouts
    found = answer("plan", "--model", name, "--cluster", "dgx-h100", "--gpus", "8", *pins)
    best = found["layouts"][0]
    assert best["fits"] and best["step_time_s"] == min(x["step_time_s"] for x in found["layouts"])


def test_an_image_has_as_many_tokens_as_patches() -> None:
    arguments = ["predict", "--model", "swin-base", "--cluster", "dgx-h100", "--gpus", "8"]
    result = RUNNER.invoke(app, [*arguments, "--set", "training.sequence_length=2048"])
    assert result.exit_code == 2
    assert "swin-base has 3136 tokens per image, got 2048 (nearest: 3136)" in result.output


def test_loads_of_experts_are_set_from_the_scenario() -> None:
    arguments = ["predict", "--model", "gpt-oss-20b", "--cluster", "dgx-h100", "--gpus", "8"]
    arguments += ["--set", "layout.ep=8"]

    def step_s(*more: str) -> float:
        words = [word for text in more for word in ("--set", f"training.{text}")]
        return float(answer(*arguments, *words)["layouts"][0]["step_time_s"])

    full = step_s("moe_imbalance=2.0")
    assert full > step_s("moe_imbalance=2.0", "moe_capacity_factor=1.25") > step_s()
    assert step_s("moe_capacity_factor=2.0", "moe_pads_to_capacity=true") == full
    wrong = ["--set", "training.moe_imbalance=0.5"]
    result = RUNNER.invoke(app, [*arguments, *wrong])
    assert result.exit_code == 2
    assert "training.moe_imbalance: must be greater than or equal to 1" in result.output
