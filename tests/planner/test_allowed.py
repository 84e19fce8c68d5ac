"""`[search] allow`: what may be decided is, what may not keeps its usual value."""

from typing import Any

import pytest

from simulator.errors import InputError
from simulator.planner.allowed import decides, with_allowed
from simulator.planner.explore import explore
from simulator.planner.search import plan
from simulator.scenario import DECIDED, Scenario, make_scenario


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
    [("recomputes", "recompute"), ("precision", "training"), ("lora_rank", "training")],
)
def test_unknown_words_and_those_of_the_training_are_refused(word: str, said: str) -> None:
    with pytest.raises(InputError, match=rf"search\.allow.*{said}"):
        scenario(word)
