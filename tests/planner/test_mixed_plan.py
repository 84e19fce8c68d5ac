"""Servers of several kinds planned: against every split tried, each kind alone, and one kind."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import simulator
from simulator import catalogue
from simulator.cli.main import app
from simulator.errors import InfeasibleError
from simulator.events.simulated_step import simulate
from simulator.layout.layouts import Layouts
from simulator.planner.mixed_plan import (
    MixedPlan,
    _played_shares,
    _shared_step,
    kinds_of_blocks,
    plan_mixed,
    shares_of,
)
from simulator.planner.mixed_prediction import predict_mixed
from simulator.planner.prediction import predict
from simulator.scenario import Scenario, make_scenario

H, A = "dgx-h100", "dgx-a100"


def made(*groups: tuple[str, int], model: str = "llama-3.2-1b", **layout: Any) -> Scenario:
    tables = [{"name": name, "gpus": gpus} for name, gpus in groups]
    document = {
        "model": {"name": model},
        "training": {"sequence_length": 4096, "global_batch": 32, "tokens": 1e10},
        "cluster": {"groups": tables, "software": "megatron-core"},
        "layout": {"recompute": "none", "sharding": "zero1", "cp": 1, **layout},
    }
    return make_scenario(document, where="run.toml")


@pytest.fixture
def twin(tmp_path: Path) -> str:
    """The same servers under another name."""
    path = tmp_path / "twin.toml"
    path.write_text(catalogue.find("clusters", H).read_text())
    return str(path)


def best_of(plan: MixedPlan, way: str) -> float:
    return min(one.step_s for one in plan.options if one.way == way)


@pytest.mark.evidence
def test_layers_dealt_over_unlike_stages_are_nearly_the_best_of_all_splits() -> None:
    """16 layers over an H100 and an A100 stage: each of the fifteen splits played."""
    layout = {"tp": 8, "pp": 2, "vpp": 1, "micro_batch": 4, "rank_order": "tp-cp-dp-pp"}
    scenario = made((H, 8), (A, 8), **layout)
    found = next(one for one in plan_mixed(scenario).options if one.way == "stages")
    row = found.layouts
    every = {
        first: simulate(
            row.replace(stages=[(first, 16 - first)]),
            *(scenario.workload, scenario.cluster, scenario.software),
        ).step_time_s
        for first in range(1, 16)
    }
    assert found.step_s <= 1.01 * min(every.values())
    assert found.step_s < every[8]  # dealt evenly
    assert sum(row.row()["stages"]) == 16 and row.row()["stages"][0] > 8


@pytest.mark.evidence
def test_shares_of_the_batch_are_the_best_of_all() -> None:
    """Replicas of an H100 and an A100 server: every way to deal 32 sequences to two replicas."""
    scenario = made((H, 8), (A, 8), model="llama-3.1-8b", tp=8, pp=1, micro_batch=1)
    row = Layouts.of(tp=8, dp=2, global_batch=32, sequence_parallel=True, sharding="zero1",
                     rank_order="tp-cp-pp-dp")  # fmt: skip
    (found,) = shares_of(scenario, row)
    assert found.replicas == (1, 1)
    every = {m: _shared_step(scenario, row, (m, 32 - m)) for m in range(1, 32)}
    assert found.step_s == min(seconds for seconds in every.values() if seconds is not None)
    fast, slow = found.micro_batches
    assert fast + slow == 32 and fast > slow


def test_a_step_of_shares_ends_with_the_slower_kind() -> None:
    """24 of 32 sequences on the A100, 8 on the H100: no faster than the A100 with its own alone."""
    scenario = made((H, 8), (A, 8), model="llama-3.1-8b", tp=8, pp=1, micro_batch=1)
    row = Layouts.of(tp=8, dp=2, global_batch=32, sequence_parallel=True, sharding="zero1",
                     rank_order="tp-cp-pp-dp")  # fmt: skip
    (found,) = shares_of(scenario, row)
    counts = tuple(8 if kind.name == H else 24 for kind in scenario.cluster.kinds)
    alone = [
        simulate(
            found.layouts.replace(global_batch=2 * count),
            *(scenario.workload, kind, scenario.software),
        ).step_time_s
        for kind, count in zip(scenario.cluster.kinds, counts, strict=True)
    ]
    assert max(alone) > 2 * min(alone)
    assert _played_shares(scenario, replace(found, micro_batches=counts)) >= max(alone)


def test_ranks_fill_groups_in_order() -> None:
    cluster = made((H, 16), (A, 8)).cluster
    assert cluster.gpus_by_kind == (16, 8)
    assert kinds_of_blocks(cluster, 8) == [0, 0, 1]
    assert kinds_of_blocks(cluster, 16) is None


@pytest.mark.evidence
def test_two_equal_groups_plan_as_one(twin: str) -> None:
    """And stages and shares are dealt as on servers of one kind."""
    both = plan_mixed(made((H, 8), (twin, 8)))
    alike = {"recompute": "none", "sharding": "zero1", "cp": 1, "software": "megatron-core"}
    one = simulator.plan(
        model="llama-3.2-1b", cluster=H, gpus=16, sequence_length=4096, global_batch=32,
        tokens=1e10, **alike,
    )  # fmt: skip
    assert both.best.step_s == pytest.approx(float(one.estimate.step_time_s[0]), rel=0.01)
    assert both.left_out == ()
    for option in both.options:
        assert len(set(option.micro_batches)) == 1


@pytest.mark.evidence
def test_all_of_them_are_never_slower_than_the_best_alone() -> None:
    """The answer is the fastest; each kind alone is what a plan on it says."""
    found = plan_mixed(made((H, 8), (A, 8)))
    assert found.best.step_s == min(one.step_s for one in found.options)
    for name in (H, A):
        (own,) = [one for one in found.options if one.way == f"{name} alone"]
        assert own.closed_form_s == pytest.approx(own.step_s, rel=0.02)
    # two kinds together are no faster than their speeds added up
    added = 1.0 / (1.0 / best_of(found, f"{H} alone") + 1.0 / best_of(found, f"{A} alone"))
    assert found.best.step_s > 0.95 * added
    outcome = found.best.run.outcome
    assert np.isfinite(outcome.days[0]) and np.isfinite(outcome.usd[0])


@pytest.mark.parametrize("kinds", [(H, "l40s-pcie"), ("l40s-pcie", H)])
def test_memory_is_that_of_the_fullest_kind_and_each_is_priced_alone(
    kinds: tuple[str, str],
) -> None:
    pins: dict[str, Any] = {"tp": 1, "pp": 1, "micro_batch": 1}
    found = predict_mixed(made(*((name, 8) for name in kinds), **pins))
    shares = [kind.memory_bytes / kind.usable_bytes for kind in found.kinds]
    assert shares[0] != shares[1]
    assert found.memory_bytes == found.kinds[shares.index(max(shares))].memory_bytes
    for kind, name in zip(found.kinds, kinds, strict=True):
        alone = predict(made((name, 8), **pins))
        assert kind.these_servers_only_step_s == pytest.approx(alone.step_time_s, rel=1e-6)


@pytest.mark.evidence
def test_a_slow_part_is_better_left_out() -> None:
    """A pipeline over H100 and cards of players: 990 and 71 TFLOP/s, and a slow network."""
    found = plan_mixed(made((H, 8), ("rtx3090-pcie", 8)))
    assert found.left_out == ("rtx3090-pcie",)
    assert found.best.way == f"{H} alone" and "left out" in found.verdict


@pytest.mark.evidence
def test_nothing_that_fits_is_said() -> None:
    scenario = make_scenario(
        {
            "model": {"name": "llama-3.1-405b"},
            "training": {"sequence_length": 4096, "global_batch": 32},
            "cluster": {"groups": [{"name": H, "gpus": 8}, {"name": A, "gpus": 8}]},
        }
    )
    with pytest.raises(InfeasibleError, match="no layout can run and fit on all servers"):
        plan_mixed(scenario)


CASE = """
[model]
name = "llama-3.2-1b"
[training]
sequence_length = 4096
global_batch = 32
tokens = 1e10
[[cluster.groups]]
name = "dgx-h100"
gpus = 8
[[cluster.groups]]
name = "dgx-a100"
gpus = 8
[layout]
tp = 8
pp = 1
cp = 1
micro_batch = 2
recompute = "none"
sharding = "zero1"
"""


@pytest.fixture
def case(tmp_path: Path) -> str:
    path = tmp_path / "run.toml"
    path.write_text(CASE)
    return str(path)


def test_plan_writes_them(case: str) -> None:
    said = json.loads(RUNNER.invoke(app, ["plan", case, "--json"]).stdout)
    steps = [one["step_time_s"] for one in said["options"]]
    assert steps == sorted(steps) and np.isfinite(steps).all()
    ways = {"shares", "own layouts", f"{H} alone", f"{A} alone"}
    assert {one["way"] for one in said["options"]} == ways
    for one in said["options"]:
        legs, own = one["legs_s"], one["way"] == "own layouts"
        assert len(one["layouts"]) == (2 if own else 1) and one["layouts"][0] == one["layout"]
        assert (legs is not None) == own
        if own:
            assert set(legs) == {"reduce_scatter", "exchange", "gather"}
            assert sum(x["global_batch"] for x in one["layouts"]) == 32
            assert max(legs["exchange"]) < one["step_time_s"]


def test_options_of_one_kind_are_refused(case: str) -> None:
    wrong = RUNNER.invoke(app, ["plan", case, "--refine", "2"])
    assert wrong.exit_code == 2 and "--refine: must be left out" in wrong.stderr


@pytest.mark.evidence
def test_plan_prints_them_and_says_when_a_goal_is_missed(case: str) -> None:
    late = RUNNER.invoke(app, ["plan", case, "--set", "goal.deadline_days=0.01"])
    assert late.exit_code == 1 and f"{H} alone" in late.stdout
    assert "within 0.01 days: " in late.stdout and ", missed" in late.stdout
    assert "shares: replicas lie on one kind each" in late.stdout


RUNNER = CliRunner(env={"COLUMNS": "160"})
