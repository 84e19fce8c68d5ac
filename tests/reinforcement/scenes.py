"""Scenarios with [rl] that tests share."""

from __future__ import annotations

from typing import Any

from simulator.reinforcement.decode import Replica
from simulator.rollouts.rl_section import RL
from simulator.scenario import Scenario, make_scenario


def scene(*, gpus: int = 16, model: str = "llama-3.1-8b", **changes: Any) -> Scenario:
    """GRPO of a small model; `changes` are fields by dotted name with __ for the dot."""
    document: dict[str, Any] = {
        "model": {"name": model},
        "training": {"sequence_length": 4096, "global_batch": 512},
        "cluster": {"name": "dgx-h100", "gpus": gpus, "software": "megatron-bridge"},
        "layout": {"pp": 2, "recompute": "full"},
        "rl": {"prompts": 64, "samples": 32, "prompt_tokens": 128, "answer_tokens": 1000.0},
    }
    overrides = [f"{name.replace('__', '.')}={_toml(value)}" for name, value in changes.items()]
    return make_scenario(document, overrides=overrides)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def replica(scenario: Scenario) -> Replica:
    """The replica of its engine."""
    rl = scenario.required(RL)
    return Replica.of(rl, scenario.workload.architecture, scenario.cluster)
