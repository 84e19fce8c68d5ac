"""What pays most, checked against a full search; what binds, with the right numbers."""

from dataclasses import replace

import pytest

from simulator.planner import sensitivity as module
from simulator.planner.changes import machine_with
from simulator.planner.plan import Plan, plan
from simulator.planner.remedies import batch_binds
from simulator.planner.sensitivity import binding, sensitivity
from simulator.planner.variants import Variant
from simulator.scenario import make_scenario
from simulator.search.explore import TOO_LARGE, explore
from simulator.units import show_bytes

NAMES = {
    "GEMM throughput",
    "memory bandwidth",
    "scale-up bandwidth",
    "network bandwidth",
    "network latency",
    "usable memory",
    "host launch rate",
}


def make_plan(model: str, gpus: int, batch: int = 256, **goal: object) -> Plan:
    document = {
        "model": {"name": model},
        "training": {"sequence_length": 4096, "global_batch": batch, "tokens": 1e12},
        "cluster": {"name": "dgx-h100", "gpus": gpus},
        "goal": {"minimize": "time", **goal},
    }
    return plan(make_scenario(document))


@pytest.fixture(scope="module")
def answer() -> Plan:
    return make_plan("llama-3.1-8b", 64)


@pytest.fixture(scope="module")
def upgrades(answer: Plan) -> list[Variant]:
    return sensitivity(answer)


def test_better_is_never_slower_and_the_best_comes_first(
    answer: Plan, upgrades: list[Variant]
) -> None:
    assert {upgrade.name for upgrade in upgrades} == NAMES
    assert all(upgrade.gain >= 0.0 for upgrade in upgrades)
    assert [u.gain for u in upgrades] == sorted((u.gain for u in upgrades), reverse=True)
    before = float(answer.estimate.step_time_s[0])
    for upgrade in upgrades:
        assert upgrade.step_time_s is not None and upgrade.same_layout_s is not None
        assert upgrade.step_time_s <= upgrade.same_layout_s <= before
        assert upgrade.gain == pytest.approx(before / upgrade.step_time_s - 1.0)


def test_a_rate_gains_no_more_than_it_grew(upgrades: list[Variant]) -> None:
    for upgrade in upgrades:
        if "rate" in upgrade.name or "bandwidth" in upgrade.name:
            assert upgrade.gain <= module.BETTER - 1.0 + 1e-9


@pytest.mark.evidence
def test_gains_are_those_of_a_full_search(answer: Plan) -> None:
    scenario = answer.scenario
    found = {upgrade.name: upgrade for upgrade in sensitivity(answer)}
    machine = (scenario.cluster, scenario.software)
    machines = {
        name: machine_with(machine, (thing, factor)) for name, _, thing, factor in module._UPGRADES
    }
    machines["usable memory"] = machine_with(machine, ("memory", module.BETTER))
    for name, (cluster, software) in machines.items():
        best = explore(scenario.workload, cluster, software, keep=1).best
        assert found[name].step_time_s == pytest.approx(float(best.step_time_s[0])), name


def test_memory_pays_where_it_is_short() -> None:
    tight = make_plan("llama-3.1-70b", 16, batch=64)
    gains = {upgrade.name: upgrade.gain for upgrade in sensitivity(tight)}
    assert gains["usable memory"] > 0.0


def test_an_upgrade_keeps_where_a_figure_comes_from(answer: Plan) -> None:
    cluster = answer.scenario.cluster
    before = cluster.accelerator.memory.usable_bytes
    machine = (cluster, answer.scenario.software)
    after = machine_with(machine, ("memory", module.BETTER))[0].accelerator.memory.usable_bytes
    assert float(after) == pytest.approx(1.1 * float(before))
    assert (after.grade, after.source) == (before.grade, before.source)
    assert answer.scenario.cluster.accelerator.memory.usable_bytes == before


def test_half_the_network_latency_leaves_the_links_inside_alone(answer: Plan) -> None:
    library = answer.scenario.cluster.library
    machine = (answer.scenario.cluster, answer.scenario.software)
    nearer = machine_with(machine, ("network.latency", 0.5))[0].library
    assert nearer.ring_hop_s["nvlink"] == library.ring_hop_s["nvlink"]
    assert nearer.ring_hop_s["network"].simple == pytest.approx(
        library.ring_hop_s["network"].simple / 2
    )
    assert nearer.send_base_s["network"] == pytest.approx(library.send_base_s["network"] / 2)


def test_memory_sentence_has_the_numbers_of_the_search(answer: Plan) -> None:
    sentence = binding(answer)[0]
    large = answer.found.fastest_too_large
    assert large is not None and sentence.startswith("Memory")
    assert f"{answer.found.dropped[TOO_LARGE]:,} of {answer.found.evaluated:,}" in sentence
    assert large.layouts.describe() in sentence
    if large.step_time_s[0] < answer.estimate.step_time_s[0]:
        lack = float(large.memory_total_bytes[0]) - large.usable_bytes
        assert show_bytes(lack) in sentence
    free = replace(answer, found=replace(answer.found, fastest_too_large=None))
    assert "does not bind" in binding(free)[0]


def test_deadline_and_budget_bind_when_missed(answer: Plan) -> None:
    assert answer.planned_days is not None and answer.planned_usd is not None
    days, usd = answer.planned_days["p50"], answer.planned_usd["p50"]
    loose, tight, even = (
        replace(
            answer,
            scenario=replace(
                answer.scenario,
                goal=replace(
                    answer.scenario.goal, deadline_days=times * days, budget_usd=times * usd
                ),
            ),
        )
        for times in (2.0, 0.5, 1.0)
    )
    for name in ("deadline", "budget"):
        assert any(s.startswith(f"The {name} is safe: ") for s in binding(loose))
        assert any(s.startswith(f"The {name} is missed: ") for s in binding(tight))
        assert any(s.startswith(f"The {name} is at risk: 50.0 % chance") for s in binding(even))
    assert not any("deadline" in s or "budget" in s for s in binding(answer))


def test_pinned_fields_are_named() -> None:
    document = {
        "model": {"name": "gpt2-small"},
        "training": {"sequence_length": 1024, "global_batch": 64},
        "cluster": {"name": "dgx-h100", "gpus": 8},
        "layout": {"tp": 2},
    }
    sentences = binding(plan(make_scenario(document)))
    assert sentences[-1] == "Pinned by the scenario, so not searched: tp = 2."
    assert any(s.startswith("Largest time term: ") for s in sentences)


@pytest.mark.parametrize(
    ("gpus", "batch", "said"),
    [
        (128, 1024, ""),  # a sequence set for every replica
        (1024, 1536, ""),  # 512 replicas, tp 2
        (136, 1024, "at most 8 replicas on 136 GPUs, so that tp x pp x cp is a multiple of 17"),
        (136, 1088, ""),
        (96, 1024, "at most 32 replicas on 96 GPUs, so that tp x pp x cp is a multiple of 3"),
        (96, 1024, "1,056 sequences, or 64 GPUs, leave them free"),
        (64, 1021, "a multiple of 64; 960 or 1,024 sequences leave them free"),
        (1024, 1000, "a multiple of 128; 512 or 1,024 sequences leave them free"),
        (1024, 64, ""),  # few sequences, a replica for each
        (8, 37, "at most 1 replica on 8 GPUs, so that tp x pp x cp is a multiple of 8; 32 or 40"),
        (8, 12, ""),  # four replicas, two GPUs each
    ],
)
def test_a_batch_that_stops_dividing_is_named(gpus: int, batch: int, said: str) -> None:
    scenario = make_scenario(
        {
            "model": {"name": "gpt2-small"},
            "training": {"sequence_length": 1024, "global_batch": batch},
            "cluster": {"name": "dgx-h100", "gpus": gpus},
        }
    )
    assert said in batch_binds(scenario)
    assert bool(said) == bool(batch_binds(scenario))
