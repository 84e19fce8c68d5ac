"""What breaks symmetry: how much is unfolded, what it costs, and what is refused."""

from dataclasses import replace
from typing import Any

import pytest

from simulator.errors import InputError
from simulator.events.simulated_step import Deviation, simulate
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

COMPUTE = ("gemm", "attention", "memory_bound", "stragglers", "slowdown")


def given(
    model: str = "llama-3.1-70b", m: int = 16, software: str = "megatron-core", **layout: Any
) -> Any:
    table = Layouts.of(**layout, global_batch=m * layout.get("dp", 1))
    recipe = Recipe(sequence_length=4096, global_batch=int(table.global_batch[0]))
    work = Workload(architecture=presets.load(model), recipe=recipe)
    return table, work, load_cluster("dgx-h100", int(table.world[0])), load_software(software)


@pytest.fixture(scope="module")
def dense() -> Any:
    return given(tp=8, pp=4, dp=4)


def test_an_unfolded_replica_that_is_like_the_others_changes_nothing(dense: Any) -> None:
    folded = simulate(*dense)
    unfolded = simulate(*dense, deviations=[Deviation(stage=1, replica=2)])
    assert folded.ranks_of.tolist() == [32] * 4
    assert unfolded.ranks_of.tolist() == [24] * 4 + [8] * 4
    assert unfolded.step_time_s == pytest.approx(folded.step_time_s, rel=1e-12)
    assert unfolded.tasks > 1.9 * folded.tasks


def test_a_slow_gpu_costs_its_replica_and_all_wait_for_it(dense: Any) -> None:
    """The slowest stage of one replica takes 20 % longer: so do its own m passes, no others."""
    plain = simulate(*dense)
    slow = simulate(*dense, deviations=[Deviation(stage=3, replica=0, compute=1.2)])
    assert slow.pacing_rank == 7  # stage 3 of the replica beside the folded ones
    for name in ("gemm", "attention", "memory_bound"):
        assert slow.terms_s[name] == pytest.approx(1.2 * plain.terms_s[name], rel=1e-9)
    assert slow.terms_s["tp"] == pytest.approx(plain.terms_s["tp"], rel=1e-9)
    longer = 0.2 * sum(plain.terms_s[name] for name in COMPUTE)
    assert slow.step_time_s - plain.step_time_s == pytest.approx(longer, rel=0.02)
    # a slow GPU among many replicas costs as much as one in every replica
    each = simulate(*dense, deviations=[Deviation(stage=3, compute=1.2)])
    assert len(each.ranks_of) == 4
    assert slow.step_time_s == pytest.approx(each.step_time_s, rel=1e-3)


def test_a_fast_stage_that_gets_slower_costs_nothing_until_it_is_the_slowest(dense: Any) -> None:
    plain = simulate(*dense)
    spare = simulate(*dense, deviations=[Deviation(stage=1, compute=1.01)])
    assert spare.pacing_rank == plain.pacing_rank == 3
    assert spare.step_time_s - plain.step_time_s < 0.004 * plain.step_time_s


def test_half_the_fast_links_lengthen_tensor_parallel_collectives() -> None:
    setting = given(tp=8, m=8, software="megatron-lm-2022")
    plain = simulate(*setting)
    half = simulate(*setting, deviations=[Deviation(scale_up=0.5)])
    assert 1.5 < half.terms_s["tp"] / plain.terms_s["tp"] <= 2.0 + 1e-9
    assert half.terms_s["gemm"] == plain.terms_s["gemm"]


def test_a_weak_adapter_of_one_replica_slows_the_reduction_of_all() -> None:
    setting = given(tp=8, dp=4, software="megatron-lm-2022")
    plain = simulate(*setting)
    weak = simulate(*setting, deviations=[Deviation(replica=1, scale_out=0.25)])
    everywhere = simulate(*setting, deviations=[Deviation(scale_out=0.25)])
    assert plain.terms_s["dp"] > 0
    assert 3.0 < weak.terms_s["dp"] / plain.terms_s["dp"] <= 4.0
    assert weak.step_time_s == pytest.approx(everywhere.step_time_s, rel=1e-9)


def test_another_node_group_is_priced_on_its_own_servers() -> None:
    setting = given("llama-3.1-8b", tp=2, pp=2, dp=2)
    other = load_cluster("dgx-a100", 8)
    mixed = simulate(*setting, deviations=[Deviation(stage=1, cluster=other)])
    table, work, _, software = setting
    alone = simulate(table, work, other, software)
    assert mixed.pacing_rank == 1
    assert mixed.terms_s["gemm"] == pytest.approx(alone.terms_s["gemm"], rel=1e-9)
    fast = simulate(*setting)
    assert fast.step_time_s < mixed.step_time_s < alone.step_time_s


def test_an_expert_group_keeps_step_so_it_is_unfolded_whole() -> None:
    setting = given("mixtral-8x7b", dp=16, ep=8, m=4)
    slow = simulate(*setting, deviations=[Deviation(replica=3, expert_load=1.5)])
    with pytest.raises(InputError, match=r"expert_load: must be at most \d+ \(ep\)"):
        simulate(*setting, deviations=[Deviation(expert_load=1e12)])
    assert slow.ranks_of.tolist() == [8, 8]
    plain = simulate(*setting)
    assert slow.step_time_s > plain.step_time_s
    recipe = replace(setting[1].recipe, moe_imbalance=1.5)
    loaded = simulate(setting[0], replace(setting[1], recipe=recipe), *setting[2:])
    assert slow.terms_s["gemm"] == pytest.approx(loaded.terms_s["gemm"], rel=1e-9)


def test_replicas_that_gather_every_layer_keep_step() -> None:
    setting = given("llama-3.1-8b", dp=8, m=2, software="torchtitan", sharding="zero3")
    slow = simulate(*setting, deviations=[Deviation(replica=3, compute=1.5)])
    assert slow.ranks_of.tolist() == [8]


@pytest.mark.parametrize(
    ("deviation", "said"),
    [
        (Deviation(stage=4), r"deviations\[0\].stage: must be from 0 to 3, got 4"),
        (Deviation(replica=-1), r"deviations\[0\].replica: must be from 0 to 3, got -1"),
        (Deviation(compute=0.0), r"compute: must be above 0 .*, got 0.0"),
        (Deviation(compute=float("nan")), r"compute: must be above 0"),
        (Deviation(scale_up=0.0), r"scale_up: must be above 0 and at most 1 .*dead link"),
        (Deviation(scale_out=1.5), r"scale_out: must be above 0 and at most 1 .*, got 1.5"),
        (Deviation(compute=1e308), r"compute: must be from 1e-06 to 1e\+06, got 1e\+308"),
        (Deviation(compute=1e-9), r"compute: must be from 1e-06"),
        (Deviation(scale_out=1e-300), r"scale_out: must be at least 1e-06, got 1e-300"),
        (Deviation(expert_load=2.0), r"expert_load: must be left out of a model without experts"),
    ],
)
def test_impossible_deviations_are_refused(dense: Any, deviation: Deviation, said: str) -> None:
    with pytest.raises(InputError, match=said):
        simulate(*dense, deviations=[deviation])


def test_all_that_is_wrong_is_said_at_once(dense: Any) -> None:
    with pytest.raises(InputError) as caught:
        simulate(*dense, deviations=[Deviation(stage=9, compute=-1.0), Deviation(replica=9)])
    assert len(caught.value.problems) == 3


def test_one_layout_at_a_time(dense: Any) -> None:
    table = Layouts.concatenate([dense[0], dense[0]])
    with pytest.raises(InputError, match="one layout at a time, got 2"):
        simulate(table, *dense[1:])
