"""Kernels of an engine's iteration by hand, with figures that all differ."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from simulator.errors import InfeasibleError
from simulator.reinforcement import trainer
from simulator.reinforcement.decode_kernels import (
    all_reduce_in_domain_s,
    expert_layer_s,
    reached_experts,
)
from simulator.rollouts.lengths import answer_lengths
from simulator.rollouts.profiles import load_framework
from simulator.rollouts.rl_section import RL
from simulator.scenario import Scenario
from simulator.search.fastest import Fastest
from tests.reinforcement.scenes import scene

FIGURES: Any = SimpleNamespace(
    expert_launch_s=11e-6, expert_s=0.7e-6, expert_memory_fraction=0.8, expert_peak_fraction=0.4,
    expert_row_passes=1.9, expert_sharpness=3.0, one_shot_s=5e-6, one_shot_bytes_per_s=2e11,
    two_shot_s=9e-6, two_shot_bytes_per_s=3e11,
)  # fmt: skip


@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.3, 2.5])
@pytest.mark.parametrize(("experts", "top_k"), [(7, 2), (13, 5), (40, 6)])
def test_chances_of_experts_add_up_to_those_that_a_token_takes(
    exponent: float, experts: int, top_k: int
) -> None:
    """min(1, c s) of shares s that fall with the rank, c by halving so that they add up to k."""
    share = np.arange(1.0, experts + 1.0) ** -exponent
    low, high = 0.0, 1e9
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (
            (middle, high) if np.minimum(middle * share, 1.0).sum() < top_k else (low, middle)
        )
    chance = np.minimum(high * share, 1.0)
    tokens = np.array([1.0, 3.0, 17.0])
    expected = (1.0 - (1.0 - chance) ** tokens[:, None]).sum(axis=1)
    found = reached_experts(tokens, experts, top_k, exponent=exponent)
    assert found == pytest.approx(expected, rel=2e-3)
    assert found[0] == pytest.approx(top_k, rel=2e-3)


@pytest.mark.parametrize(("copies", "rows"), [(30.0, 5 * 16), (700.0, 700)])
def test_a_layer_of_experts(copies: float, rows: int) -> None:
    """Five experts of two matrices, fp8: weights once, products in tiles of 16 rows, copies."""
    found = expert_layer_s(FIGURES, 4e12, 2e15, tokens=10.0, reached=5.0, copies=copies,
                           hidden=3000.0, ffn=700.0, matrices=2.0, weight_bytes=1.0)  # fmt: skip
    read = 5 * 2 * 3000 * 700 / (0.8 * 4e12)
    products = 2 * 2 * 3000 * 700 * rows / (0.4 * 2e15)
    passed = copies * (4 * 3000 + 2 * 2 * 700) / 4e12
    expected = 11e-6 + 0.7e-6 * 5 + (read**3 + products**3) ** (1 / 3) + 1.9 * passed
    assert float(found) == pytest.approx(expected)


@pytest.mark.parametrize("size", [1e4, 1e7])
def test_an_all_reduce_takes_the_faster_way(size: float) -> None:
    """Of six ranks: all five others' data, or five parts in six twice."""
    once, twice = 5e-6 + 5 * size / 2e11, 9e-6 + 2 * 5 / 6 * size / 3e11
    assert float(all_reduce_in_domain_s(FIGURES, 6, size)) == pytest.approx(min(once, twice))
    assert (once < twice) == (size == 1e4)
    assert float(all_reduce_in_domain_s(FIGURES, 1, size)) == 0.0


@pytest.mark.parametrize(
    ("kept", "prompts", "shape"), [(1.0, 1, (1, 5)), (0.3, 1, (3, 5)), (0.3, 4, (13, 5))]
)
def test_a_step_has_a_prompt_at_least(kept: float, prompts: int, shape: tuple[int, int]) -> None:
    rl = RL(prompts=prompts, samples=5, answer_tokens=70.0, algorithm="dapo", kept_groups=kept)
    assert answer_lengths(rl, 400).shape == shape


@pytest.mark.parametrize(("answers", "batch"), [(64, 16), (72, 32), (128, 32), (132, 64)])
def test_layouts_of_a_trainer_are_searched_for_a_power_of_two_of_bins(
    answers: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four sequences of 1,024 tokens fill a bin of 4,096: 16, 18, 32 and 33 of them."""
    asked: list[int] = []

    def search(scenario: Scenario) -> Fastest:
        asked.append(scenario.workload.recipe.global_batch)
        return Fastest(found=None, reason="enough is known")

    monkeypatch.setattr(trainer, "fastest", search)
    scenario = scene(rl__prompts=answers, rl__samples=1, training__global_batch=answers)
    framework = load_framework("nemo-rl")
    with pytest.raises(InfeasibleError, match="enough is known"):
        trainer.best_trainer(
            scenario, scenario.required(RL), np.full(answers, 1024.0), scenario.cluster, framework
        )
    assert asked == [batch]
