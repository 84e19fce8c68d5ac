"""The largest that each field may be, clusters that are searched together, units of chances."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.files import Figure
from simulator.goal import Goal
from simulator.planner.prediction import Prediction, predict
from simulator.scenario import Scenario, make_scenario
from simulator.search.fastest import _alike
from simulator.search.outcome import goal_chances
from simulator.search.refusal import limits


@pytest.fixture(scope="module")
def made() -> Scenario:
    """32 layers on 24 GPUs, 48 sequences."""
    return make_scenario(
        {
            "model": {"name": "llama-3.1-8b"},
            "training": {"sequence_length": 4096, "global_batch": 48, "tokens": 1e10},
            "cluster": {"name": "dgx-h100", "gpus": 24},
        }
    )


MOST = {
    **dict.fromkeys(("tp", "pp", "cp", "cp_a2a", "dp", "ep", "etp", "shard_group"), 24),
    **{"reshard_after_forward": 24, "vpp": 32, "recompute_layers": 32, "offload_layers": 32},
    "micro_batch": 48,
}


@pytest.mark.parametrize("name", MOST)
def test_a_field_may_be_as_large_as_what_it_divides(made: Scenario, name: str) -> None:
    most = MOST[name]
    assert limits(made, {name: most}) == limits(made, {name: None}) == limits(made, {}) == []
    (said,) = limits(made, {name: most + 1})
    assert said.startswith(f"scenario: layout.{name}: must be at most the {most} ") or (
        f"layout.{name}: must be at most the {most} " in said
    )
    assert said.endswith(f", got {most + 1} (nearest: {most})")


@pytest.mark.parametrize(("batch", "said"), [(2**31 - 1, False), (2**31, True)])
def test_the_largest_batch(made: Scenario, batch: int, *, said: bool) -> None:
    recipe = replace(made.workload.recipe, global_batch=batch)
    large = replace(made, workload=replace(made.workload, recipe=recipe))
    assert bool(limits(large, {})) is said


@pytest.mark.parametrize(("dp", "said"), [(2**15, False), (2**15 + 1, True)])
def test_products_of_degrees_stay_in_32_bits(made: Scenario, dp: int, *, said: bool) -> None:
    large = replace(made, cluster=made.cluster.with_gpus(2**16))
    found = limits(large, {"tp": 2**15, "dp": dp})
    assert bool(found) is said
    assert not said or "layout.dp: tp x dp must be at most the 65536 GPUs" in found[0]


def test_clusters_whose_prices_differ_in_their_size_alone(made: Scenario) -> None:
    """Whole servers on one side of the leaf where the network above it is narrow."""
    whole = made.cluster
    narrow = replace(whole, fabric=replace(
        whole.fabric, oversubscription=Figure(2.0), leaf_servers=3
    ))  # fmt: skip

    def alike(of: Any, *sizes: int) -> bool:
        return _alike([of.with_gpus(size) for size in sizes], made)

    assert alike(whole, 8, 16, 24, 32) and alike(narrow, 8, 16, 24) and alike(narrow, 32, 40)
    assert not alike(narrow, 24, 32)
    even = replace(narrow, fabric=replace(narrow.fabric, oversubscription=Figure(1.0)))
    assert alike(even, 24, 32)
    assert not alike(whole, 4, 8) and not alike(whole, 4, 4), "parts of a server"
    data: Any = object()
    fed = replace(made, workload=replace(made.workload, data=data))
    assert not _alike([whole.with_gpus(8), whole.with_gpus(16)], fed)


@pytest.fixture(scope="module")
def predicted(made: Scenario) -> Prediction:
    return predict(made)


@pytest.mark.parametrize("with_factor", [False, True])
def test_chances_do_not_hang_on_the_unit_of_money_or_time(
    predicted: Prediction, *, with_factor: bool
) -> None:
    """Twice the days against twice the deadline, thrice the money against thrice the budget."""
    outcome, step_s = predicted.outcome, predicted.estimate.step_time_s
    factor = predicted.planning_factor if with_factor else None
    days, usd = float(outcome.days[0]), float(outcome.usd[0])

    def chances(time: float, money: float) -> list[float]:
        scaled = replace(outcome, days=time * outcome.days, usd=money * outcome.usd)
        goal = Goal(deadline_days=1.2 * time * days, budget_usd=1.3 * money * usd)
        found = goal_chances(step_s, scaled, predicted.certainty, goal, factor)
        held = (found.deadline, found.budget, found.deadline_without_factor,
                found.budget_without_factor)  # fmt: skip
        return [float(x[0]) for x in held]

    plain = chances(1.0, 1.0)
    assert chances(2.0, 3.0) == pytest.approx(plain, rel=1e-9)
    assert all(0.0 < chance < 1.0 for chance in plain)
    assert (plain[:2] == plain[2:]) is (factor is None)
    if factor is not None:  # what is planned for is the value of the factor times as much
        goal = Goal(deadline_days=factor.value * days, budget_usd=factor.value * usd)
        found = goal_chances(step_s, outcome, predicted.certainty, goal, factor)
        assert np.isclose(found.deadline[0], 0.5, atol=0.01)
        assert np.isclose(found.budget[0], 0.5, atol=0.01)
