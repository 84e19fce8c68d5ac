"""Scenarios that ship: each is read, and together they show what README says."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from simulator.scenario import load_scenario

EXAMPLES = sorted((Path(__file__).resolve().parents[1] / "examples").glob("*.toml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_read(path: Path) -> None:
    scenario = load_scenario(path)
    assert path.read_text(encoding="utf-8").startswith("# "), "says what it asks"
    assert scenario.workload.recipe.tokens_per_step > 0


def test_together_they_show_what_a_scenario_can_say() -> None:
    shown = {
        f"{section}.{field}"
        for path in EXAMPLES
        for section, fields in tomllib.loads(path.read_text(encoding="utf-8")).items()
        for field in fields
    }
    assert shown >= {
        *("training.lora_rank", "training.gradient_dtype", "training.moe_load"),
        *("training.fp8_weights", "layout.optimizer_offload", "layout.dispatcher"),
        *("cluster.groups", "goal.deadline_days"),
    }
