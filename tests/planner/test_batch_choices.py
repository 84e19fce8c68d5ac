"""Batch and sequence as lists and ranges: each is searched, the best by the goal is the plan."""

import math
from typing import Any

import pytest

from simulator.api import plan as plan_of
from simulator.api import predict as predict_of
from simulator.errors import InfeasibleError, InputError
from simulator.planner.batch_choices import (
    MOST_TRIED,
    batches_of,
    plan_over,
    with_critical_batch,
    with_sizes,
)
from simulator.planner.plan import plan
from simulator.questions.compare.answer import compare_clusters
from simulator.scenario import Scenario, make_scenario


def scenario(several: bool = True, gpus: int = 8, **sections: Any) -> Scenario:
    training = {"sequence_length": 4096, "global_batch": 64}
    return make_scenario(
        {
            "model": {"name": "llama-3.1-8b"},
            "cluster": {"name": "dgx-h100", "gpus": gpus, "software": "megatron-core"},
            "layout": {"tp": 2, "pp": 1, "recompute": "none"},
            **sections,
            "training": {**training, **sections.get("training", {})},
        },
        several=several,
    )


@pytest.mark.evidence
def test_the_plan_is_the_best_of_the_plans_of_each() -> None:
    open_ = scenario(training={"global_batch": [64, 16, 32]})
    found = plan_over(open_)
    alone = [plan(with_sizes(open_, batch, 4096)) for batch in (16, 32, 64)]
    speeds = [float(one.outcome.tokens_per_s[0]) for one in alone]
    assert [one.tokens_per_s for one in found.tried] == speeds
    assert [one.global_batch for one in found.tried] == [16, 32, 64]
    assert float(found.outcome.tokens_per_s[0]) == max(speeds)
    recipe = found.scenario.workload.recipe
    assert found.scenario.document["training"]["global_batch"] == recipe.global_batch
    assert not found.scenario.choices


def test_a_largest_batch_below_that_of_the_training_is_kept() -> None:
    recipe = plan_over(scenario(goal={"largest_batch": 32})).scenario.workload.recipe
    assert recipe.global_batch == 32


def test_bounds_of_the_goal_open_the_batch() -> None:
    assert batches_of(scenario()) == [64]
    assert batches_of(scenario(goal={"largest_batch": 256})) == [64, 96, 128, 192, 256]
    assert batches_of(scenario(goal={"smallest_batch": 32})) == [32, 48, 64]
    assert batches_of(scenario(goal={"smallest_batch": 32, "largest_batch": 48})) == [32, 48]
    assert batches_of(scenario(goal={"largest_batch": 32})) == [32]
    listed = {"training": {"global_batch": [16, 64, 512]}}
    assert batches_of(scenario(goal={"largest_batch": 100}, **listed)) == [16, 64]


def test_an_odd_number_of_servers_keeps_batches_that_divide() -> None:
    found = batches_of(scenario(gpus=56, training={"global_batch": "56..448"}))
    assert {56, 112, 224, 448} <= set(found)
    many = batches_of(scenario(training={"global_batch": "1..100000"}))
    assert len(many) <= MOST_TRIED and (many[0], many[-1]) == (1, 100_000)


@pytest.mark.evidence
def test_what_does_not_fit_is_told_beside_what_does() -> None:
    found = plan_over(scenario(training={"global_batch": [3, 64]}, layout={"dp": 8}))
    assert [bool(one.layout) for one in found.tried] == [False, True]
    assert found.tried[0].reason and math.isnan(found.tried[0].step_time_s)
    with pytest.raises(InfeasibleError):
        plan_over(scenario(training={"global_batch": [3, 5]}, layout={"dp": 8}))


@pytest.mark.evidence
def test_sequences_are_chosen_too() -> None:
    found = plan_over(scenario(training={"sequence_length": "2048..8192", "global_batch": [32]}))
    assert [one.sequence_length for one in found.tried] == [2048, 3072, 4096, 6144, 8192]


def test_python_takes_ranges_as_well() -> None:
    names = {"model": "llama-3.1-8b", "cluster": "dgx-h100", "gpus": 8}
    found = plan_of(**names, tp=2, pp=1, recompute="none", global_batch="16..32")
    assert [one.global_batch for one in found.tried] == [16, 24, 32]
    with pytest.raises(InputError, match=r"training\.global_batch: must be one number here"):
        predict_of(**names, global_batch=[16, 32])


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"training": {"global_batch": "512..256"}},
            "training.global_batch: must rise, the smaller number first: this range is upside down,"
            " got '512..256' (nearest: '256..512')",
        ),
        (
            {"training": {"sequence_length": "8192 to 1024"}},
            "upside down, got '8192 to 1024' (nearest: '1024..8192')",
        ),
        (
            {"training": {"global_batch": "256-512"}},
            "must have two dots between its ends, got '256-512' (nearest: '256..512')",
        ),
        ({"training": {"global_batch": "2..x"}}, "must be two whole numbers and two dots"),
        ({"training": {"global_batch": [8, 0]}}, "must be whole numbers of 1 or more, got 0"),
        ({"training": {"sequence_length": []}}, "must list 1 to 64 numbers, got 0"),
        (
            {"goal": {"smallest_batch": 64, "largest_batch": 32}},
            "goal.smallest_batch: must be at most goal.largest_batch = 32, got 64 (nearest: 32)",
        ),
        ({"training": {"sequence_length": "4096..1000000"}}, "sequence_length"),
    ],
)
def test_ranges_that_cannot_be(sections: dict[str, Any], message: str) -> None:
    if "1000000" in str(sections):
        sections["model"] = {"name": "gpt2-small"}
    with pytest.raises(InputError) as caught:
        scenario(**sections)
    assert len(caught.value.problems) == 1
    assert message in caught.value.problems[0]


def test_a_goal_that_leaves_none_names_the_nearest() -> None:
    open_ = scenario(training={"global_batch": "256..512"}, goal={"largest_batch": 128})
    with pytest.raises(InputError, match=r"must leave some of training\.global_batch") as caught:
        plan_over(open_)
    assert "(nearest: 256)" in str(caught.value)


def test_a_larger_batch_needs_more_tokens() -> None:
    """McCandlish et al. 2018: tokens grow by 1 + B / B_crit; 8 B parameters after 1e11 tokens have
    a loss of 1.6934 + 406.4 / 8.03e9^0.3392 + 410.7 / 1e11^0.2849, B_crit = 2e8 / loss^(1 / 0.21).
    """
    training = {"tokens": 1e11, "global_batch": 64, "sequence_length": 4096}
    open_ = scenario(training=training, goal={"largest_batch": 128})
    charged = with_critical_batch(open_).workload.recipe
    parameters = open_.workload.architecture.active_parameters
    loss = 1.6934 + 406.4 / parameters**0.3392 + 410.7 / 1e11**0.2849
    critical = 2e8 / loss ** (1.0 / 0.21) / 4096
    assert charged.critical_batch == pytest.approx(critical, rel=1e-9)
    found = {one.global_batch: one for one in plan_over(open_).tried}
    assert found[64].tokens == pytest.approx(1e11, rel=1e-9)  # the batch that tokens are said for
    ratio = (1.0 + 128 / critical) / (1.0 + 64 / critical)
    assert found[128].tokens == pytest.approx(1e11 * ratio, rel=1e-9)


def test_what_is_said_of_the_critical_batch_stands() -> None:
    training = {"tokens": 1e11, "critical_batch": 100.0}
    open_ = scenario(training=training, goal={"largest_batch": 128})
    assert with_critical_batch(open_) is open_
    tried = {one.global_batch: one.tokens for one in plan_over(open_).tried}
    assert tried[64] == pytest.approx(1.64e11) and tried[128] == pytest.approx(2.28e11)
    longer = with_sizes(open_, 64, 8192).workload.recipe
    assert longer.critical_batch == 50.0  # as many tokens


@pytest.mark.parametrize("critical", [30.0, 1e6])
def test_compare_takes_a_larger_batch_only_where_it_pays(critical: float) -> None:
    """16 GPUs take twice the batch faster, unless nearly twice the tokens are needed for it."""
    training = {"tokens": 1e11, "critical_batch": critical, "global_batch": 32}
    open_ = scenario(training=training, goal={"largest_batch": 64}, gpus=16)
    (row,) = compare_clusters(open_, ["dgx-h100"], [16], jobs=1).rows
    alone = {
        batch: compare_clusters(with_sizes(open_, batch, 4096), ["dgx-h100"], [16], jobs=1).rows[0]
        for batch in (32, 64)
    }
    days = {batch: one.days.p50 for batch, one in alone.items() if one.days is not None}
    assert row.days is not None and row.days.p50 <= min(days.values())
    assert row.global_batch == (32 if critical == 30.0 else 64)
