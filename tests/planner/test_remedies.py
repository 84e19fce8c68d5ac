"""Where nothing fits: the true cause, and changes that make it fit, cheapest first."""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from simulator.cost.step import evaluate
from simulator.layout.layouts import Layouts
from simulator.planner.remedies import _lack, _larger, _words, batch_binds, remedies
from simulator.planner.variants import Variant
from simulator.scenario import Scenario, make_scenario
from simulator.search.explore import explore


def scenario(cluster: str, gpus: int, software: str, **layout: Any) -> Scenario:
    return make_scenario(
        {
            "model": {"name": "llama-3.1-70b"},
            "training": {"sequence_length": 8192, "global_batch": 64},
            "cluster": {"name": cluster, "gpus": gpus, "software": software},
            "layout": layout,
        }
    )


FEW = {"recompute": "full", "recompute_layers": 0, "sequence_parallel": True, "cp": 1}
"""Keeps the searches of a test small."""


@pytest.fixture(scope="module")
def found() -> list[Variant]:
    """70 B parameters on 8 L40S of 48 GB: states alone take 16 B each, 141 GB a GPU."""
    of = scenario("l40s-pcie", 8, "megatron-core", **FEW)
    miss = explore(of.workload, of.cluster, of.software, of.pinned, keep=1).nearest_miss
    return remedies(of, miss)


@pytest.mark.evidence
def test_remedies_stand_cheapest_first_and_other_trainings_last(found: list[Variant]) -> None:
    keys = [(one.another_training, one.gpus * (one.step_time_s or 0.0)) for one in found]
    assert keys == sorted(keys)
    assert len(keys) >= 3


def test_money_of_a_remedy_is_that_of_whole_racks() -> None:
    """6.00 USD (assumed) an hour of each of 72, of which 4 and 8 work."""
    few = {"sequence_parallel": True, "cp": 1}
    small = scenario("gb200-nvl72", 4, "megatron-core", **few)
    small = replace(small, workload=replace(
        small.workload, recipe=replace(small.workload.recipe, tokens=1e11)
    ))  # fmt: skip
    miss = explore(small.workload, small.cluster, small.software, small.pinned, keep=1).nearest_miss
    lines = [_words(remedy) for remedy in remedies(small, miss)]
    racks = [line for line in lines if "cluster.name" not in line]
    assert any("8 GPUs" in line for line in racks)
    for line in racks:
        days, usd, unit = re.findall(r"([\d.,]+) days and ([\d.]+) ([kM]) USD\* ", line)[0]
        paid = float(usd) * {"k": 1e3, "M": 1e6}[unit]
        assert paid == pytest.approx(72 * 24 * 6.0 * float(days.replace(",", "")), rel=0.01), line


def test_adapters_and_more_gpus_are_named(found: list[Variant]) -> None:
    named = {one.change: one for one in found}
    assert "LoRA (training.lora_rank = 16)" in named
    assert named["LoRA (training.lora_rank = 16)"].another_training
    assert any(one.gpus > 8 for one in found)
    assert not any(one.another_training for one in found if "GPUs" in one.change)


def test_a_remedy_fits_when_it_is_searched_again(found: list[Variant]) -> None:
    more = next(one for one in found if one.gpus > 8)
    of = scenario("l40s-pcie", more.gpus, "megatron-core", **FEW)
    again = explore(of.workload, of.cluster, of.software, of.pinned, keep=1)
    assert again.best.layouts.describe() == more.layout
    assert again.best.step_time_s[0] == more.step_time_s
    fewer = scenario("l40s-pcie", more.gpus // 2, "megatron-core", **FEW)
    assert not explore(*(fewer.workload, fewer.cluster, fewer.software), fewer.pinned).feasible


def test_three_larger_devices_are_tried_the_smallest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fills an H100 of 80 GB to the last byte and half as much again."""
    of, tried = scenario("dgx-h100", 8, "megatron-core"), []
    device = of.cluster.accelerator

    def nothing(other: Scenario, change: str, pinned: Any) -> tuple[()]:
        assert change == f"cluster.name = {other.cluster.name}"
        tried.append(other.cluster.accelerator)
        return ()

    monkeypatch.setattr("simulator.planner.remedies._tried", nothing)
    room, need = (times * float(device.memory.usable_bytes) for times in (1.0, 1.5))
    miss: Any = SimpleNamespace(usable_bytes=room, memory_total_bytes=[need])
    assert not [*_larger(of, miss)]
    sizes = [float(one.memory.usable_bytes) for one in tried]
    assert len({one.name for one in tried}) == len(sizes) == 3
    assert need <= sizes[0] and sizes == sorted(sizes)
    assert {one.platform for one in tried} == {device.platform}


def test_a_full_host_is_the_cause_where_the_device_has_room() -> None:
    """ZeRO-Offload keeps states of 8.75 B parameters a GPU in the memory of their server."""
    of = scenario("dgx-h100", 8, "deepspeed")
    row = Layouts.of(
        dp=8, global_batch=64, sharding="zero3", recompute="full", optimizer_offload="cpu"
    )
    node = replace(of.cluster.node, host_memory_bytes=1e11)
    cluster = replace(of.cluster, groups=(replace(of.cluster.groups[0], node=node),))
    miss = evaluate(row, of.workload, cluster, of.software)
    assert miss.memory_total_bytes[0] < miss.usable_bytes and not miss.fits[0]
    assert "host memory" in _lack(miss) and "lacks" not in _lack(miss) and "-" not in _lack(miss)


@pytest.mark.parametrize(
    ("gpus", "batch", "said"),
    [
        (16, 64, ""), (16, 6, ""), (16, 2, ""),  # a replica a server, or of all that divide
        (16, 7, "at most 1 replica on 16 GPUs, so that tp x pp x cp is a multiple of 16; 4 or 8"),
        (64, 36, "at most 4 replicas on 64 GPUs, so that tp x pp x cp is a multiple of 16; 32 or"),
        (48, 32, "at most 16 replicas on 48 GPUs, so that tp x pp x cp is a multiple of 3; 48"),
    ],
)  # fmt: skip
def test_a_batch_binds_where_too_few_replicas_divide_it(gpus: int, batch: int, said: str) -> None:
    """The greatest common divisor of GPUs and sequences; a server of 8 for each is no bound."""
    made = scenario("dgx-h100", gpus, "megatron-core")
    recipe = replace(made.workload.recipe, global_batch=batch)
    words = batch_binds(replace(made, workload=replace(made.workload, recipe=recipe)))
    assert said in words if said else words == ""
