"""`[search] allow`: what may be decided is, what may not keeps its usual value."""

from typing import Any

import pytest

from simulator.errors import InputError
from simulator.goal import DECIDED
from simulator.planner.plan import plan
from simulator.planner.variants import other_trainings
from simulator.scenario import Scenario, make_scenario
from simulator.search.allowed import decides, with_allowed
from simulator.search.explore import explore


def scenario(*allow: str, software: str = "megatron-core", **layout: Any) -> Scenario:
    search = {"search": {"allow": list(allow)}} if allow else {}
    return make_scenario(
        {
            "model": {"name": "llama-3.1-8b"},
            "training": {"sequence_length": 4096, "global_batch": 32},
            "cluster": {"name": "dgx-h100", "gpus": 8, "software": software},
            "layout": layout,
            **search,
        }
    )


def test_nothing_is_pinned_where_nothing_is_said() -> None:
    assert with_allowed(scenario()) == {}
    assert decides(scenario())[0] == list(DECIDED)


def test_what_may_not_be_decided_keeps_its_usual_value() -> None:
    answer = plan(scenario("tp", "micro_batch", "recompute"))
    table = answer.estimate.layouts
    assert set(table.pp.tolist()) == set(table.cp.tolist()) == {1}
    assert len(set(table.tp.tolist())) > 1
    assert {table.row(i)["recompute_modules"] for i in range(len(table))} == {""}


def test_more_that_may_be_decided_is_never_slower() -> None:
    few, more = ("tp", "micro_batch"), ("tp", "micro_batch", "sharding", "recompute")
    steps = [
        float(plan(scenario(*allow)).found.best.step_time_s[0])
        for allow in (few, more, DECIDED, (*DECIDED, "optimizer_offload"))
    ]
    assert steps == sorted(steps, reverse=True)


def test_offload_is_decided_where_it_is_allowed() -> None:
    allow = ("tp", "micro_batch", "optimizer_offload")
    found = plan(scenario(*allow, recompute="full", software="deepspeed")).found
    assert set(found.best.layouts.optimizer_offload.tolist()) == {0, 1, 2}, "host and drives"
    assert (found.best.layouts.optimizer_offload[0]) == 0, "it is slower where all fits"


def test_offload_of_activations_is_decided_where_it_is_allowed() -> None:
    # 64k tokens on a GPU, nothing recomputed: what 16 layers keep does not fit beside the states
    allow = ("micro_batch", "offload_layers")
    made = make_scenario(
        {
            "model": {"name": "llama-3.2-1b"},
            "training": {"sequence_length": 65536, "global_batch": 8},
            "cluster": {"name": "dgx-h100", "gpus": 8, "software": "megatron-core"},
            "layout": {"recompute": "none"},
            "search": {"allow": list(allow)},
        }
    )
    without = explore(
        made.workload, made.cluster, made.software, with_allowed(made) | {"offload_layers": 0}
    )
    found = plan(made).found
    counts = set(found.roomy.layouts.offload_layers.tolist())
    assert not len(without.best) and len(found.best)
    assert counts <= {0, 4, 8, 12, 16} and len(counts) > 1
    everything = explore(
        made.workload, made.cluster, made.software, with_allowed(made), exhaustive=True
    )
    assert everything.best.step_time_s.tolist() == found.best.step_time_s.tolist()


def test_pins_come_before_what_is_allowed() -> None:
    assert with_allowed(scenario("tp", pp=2))["pp"] == 2
    assert with_allowed(scenario("tp", "schedule", schedule="1f1b"))["schedule"] == "1f1b"


@pytest.mark.parametrize(
    ("word", "said"),
    [("recomputes", "recompute"), ("precisio", "precision"), ("tokens", "training.tokens")],
)
def test_unknown_words_and_those_of_the_training_are_refused(word: str, said: str) -> None:
    with pytest.raises(InputError, match=rf"search\.allow.*{said}"):
        scenario(word)


def test_another_training_is_searched_and_never_chosen() -> None:
    own = plan(scenario())
    found = plan(scenario("precision", "lora_rank"))
    assert found.estimate.layouts.describe() == own.estimate.layouts.describe()
    assert found.scenario.workload.recipe == own.scenario.workload.recipe
    others = {one.change: one for one in other_trainings(found.scenario)}
    assert other_trainings(own.scenario) == []
    assert {"training.precision = fp8", "LoRA (training.lora_rank = 16)"} <= set(others)
    assert not any("nvfp4" in change or "bf16" in change for change in others)  # none on Hopper

    fp8 = make_scenario(
        {**scenario().document, "training": {**scenario().document["training"], "precision": "fp8"}}
    )
    alone = plan(fp8)
    told = others["training.precision = fp8"]
    assert told.layout == alone.estimate.layouts.describe(0)
    assert told.step_time_s == alone.estimate.step_time_s[0]
    assert told.memory_verdict == alone.estimate.verdict_word()


def test_words_of_the_training_leave_the_layout_to_its_own_words() -> None:
    both = scenario("tp", "micro_batch", "precision")
    assert with_allowed(both) == with_allowed(scenario("tp", "micro_batch"))
    assert decides(scenario("precision")) == decides(scenario())


def test_pinned_fields_hold_for_another_training_too() -> None:
    (one,) = other_trainings(plan(scenario("optimizer", tp=4, recompute="full")).scenario)
    assert one.change == "training.optimizer = adamw_8bit"
    assert one.layout is not None
    assert "tp4" in one.layout
    assert "full" in one.layout
