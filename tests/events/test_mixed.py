"""Servers of several kinds: steps worked out by hand, laws, and what is unfolded."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator import catalogue
from simulator.cost.terms import HIDDEN
from simulator.errors import InputError
from simulator.events.deviations.deviations import partners, replicas_of
from simulator.events.network.group_calls import stage_members
from simulator.events.played import SimulatedStep
from simulator.events.sharing.contended import Network
from simulator.events.simulated_step import Deviation, Jitter, simulate
from simulator.events.step.pass_costs import CAUSE
from simulator.events.step.play import Replica
from simulator.hardware.cluster import load_cluster
from simulator.hardware.cluster_section import load_groups
from simulator.layout.layouts import Layouts
from simulator.schedules.schedule import BACKWARD, FORWARD
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

H, A = "dgx-h100", "dgx-a100"
SENDS = CAUSE["pp"]


def given(
    *groups: tuple[str, int],
    model: str = "llama-3.1-8b",
    m: int = 8,
    software: str = "megatron-core",
    **layout: Any,
) -> Any:
    table = Layouts.of(**layout, global_batch=m * layout.get("dp", 1))
    recipe = Recipe(sequence_length=4096, global_batch=int(table.global_batch[0]))
    work = Workload(architecture=presets.load(model), recipe=recipe)
    cluster = load_groups([{"name": n, "gpus": g} for n, g in groups], where="run.toml")
    return table, work, cluster, load_software(software)


def on(name: str, setting: Any) -> Any:
    """The same on servers of one kind."""
    return *setting[:2], load_cluster(name, setting[2].gpus), setting[3]


def whole(name: str, setting: Any) -> Replica:
    return replicas_of(*on(name, setting))[0]


def mixed_of(step: SimulatedStep) -> Any:
    assert step.mixed is not None
    return step.mixed


# --- steps by hand -----------------------------------------------------------------------------


def test_two_stages_of_which_the_second_is_slower() -> None:
    """1F1B with one replica: the slow stage works on end, once it has its first micro-batch.

    The step is the fast stage's forward pass, m forward and backward passes of the slow one, the
    fast one's last backward pass, then the norm and the slower optimizer step. Both passes send
    over the slower adapters.
    """
    m = 6
    setting = given((H, 8), (A, 8), tp=8, pp=2, m=m, software="megatron-lm-2022")
    fast, slow = whole(H, setting), whole(A, setting)
    send_s = max(float(one.passes.shown_s[0, 0, FORWARD, SENDS]) for one in (fast, slow))
    seconds = {}
    for one, stage in ((fast, 0), (slow, 1)):
        shown = one.passes.shown_s[stage, 0]
        for way in (FORWARD, BACKWARD):
            seconds[stage, way] = float(shown[way].sum() - shown[way, SENDS]) + send_s
    assert seconds[0, FORWARD] + seconds[0, BACKWARD] < seconds[1, FORWARD] + seconds[1, BACKWARD]
    ends = max(fast.step_end.norm_s, slow.step_end.norm_s)
    ends += max(float(fast.step_end.optimizer_s[0]), float(slow.step_end.optimizer_s[1]))
    expected = seconds[0, FORWARD] + m * (seconds[1, FORWARD] + seconds[1, BACKWARD])
    expected += seconds[0, BACKWARD] + ends
    step = simulate(*setting)
    assert step.step_time_s == pytest.approx(expected, rel=1e-9)
    assert step.pacing_rank == 1
    assert sum(step.terms_s.values()) == pytest.approx(step.step_time_s, rel=1e-12)


def test_replicas_apart_wait_for_the_slowest_once_a_step() -> None:
    """Without a pipeline the slow replicas are as slow as if all were; the fast ones wait."""
    setting = given((H, 16), (A, 16), tp=8, dp=4, software="megatron-lm-2022")
    step = simulate(*setting)
    assert step.step_time_s == pytest.approx(simulate(*on(A, setting)).step_time_s, rel=1e-9)
    fast = simulate(*on(H, setting))
    compute = [float(x) for x in step.busy_s[:, 0]]
    assert compute[0] == pytest.approx(float(fast.busy_s[0, 0]), rel=1e-9)
    assert float(step.idle_s[0, 0]) > float(step.idle_s[1, 0])


def test_reductions_of_all_replicas_end_with_the_slowest() -> None:
    setting = given((A, 16), (H, 16), tp=8, dp=4)
    slow = np.maximum(whole(H, setting).step_end.reduce_s, whole(A, setting).step_end.reduce_s)
    replicas = replicas_of(*setting)
    assert len(replicas) == 2
    for one in replicas:
        assert np.array_equal(one.step_end.reduce_s, slow)


# --- laws --------------------------------------------------------------------------------------

LAYOUTS: list[dict[str, Any]] = [
    {"tp": 4, "dp": 8},
    {"tp": 8, "pp": 4, "dp": 1, "vpp": 2},
    {"tp": 4, "pp": 2, "dp": 4},
    {"tp": 2, "pp": 4, "dp": 4, "rank_order": "tp-cp-pp-dp"},
    {"dp": 32, "sharding": "zero3", "software": "torchtitan"},
    {"dp": 16, "pp": 2, "ep": 8, "model": "mixtral-8x7b"},
    {"tp": 8, "pp": 4, "dp": 1, "schedule": "dualpipe", "model": "llama-3.1-70b"},
    {"tp": 4, "cp": 4, "dp": 2},
]


@pytest.fixture
def twin(tmp_path: Path) -> str:
    """The same servers under another name."""
    path = tmp_path / "twin.toml"
    path.write_text(catalogue.find("clusters", H).read_text())
    return str(path)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_groups_of_like_servers_are_one(layout: dict[str, Any], twin: str) -> None:
    setting = given((H, 16), (twin, 16), **layout)
    assert len(setting[2].kinds) == 2
    step, plain = simulate(*setting), simulate(*on(H, setting))
    assert step.step_time_s == pytest.approx(plain.step_time_s, rel=1e-12)
    assert mixed_of(step).alone_s == pytest.approx([plain.step_time_s] * 2, rel=1e-12)
    assert step.ranks_of.sum() == mixed_of(step).gpus.sum() == 32


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_lies_between_those_on_each_kind(layout: dict[str, Any]) -> None:
    """And the order of groups does not matter to how many of the ranks are on which."""
    for groups in (((H, 16), (A, 16)), ((A, 16), (H, 16))):
        step = simulate(*given(*groups, **layout))
        fast, slow = sorted(mixed_of(step).alone_s)
        assert fast < step.step_time_s <= slow * (1.0 + 1e-9)
        assert mixed_of(step).gpus.sum(axis=0).tolist() == [16, 16]


def test_stages_on_other_servers_are_the_deviation_that_says_so() -> None:
    setting = given((H, 16), (A, 16), tp=4, pp=4, dp=2)
    other = load_cluster(A, 32)
    said = [Deviation(stage=stage, cluster=other) for stage in (2, 3)]
    named = simulate(*on(H, setting), deviations=said)
    step = simulate(*setting)
    assert step.terms_s == pytest.approx(named.terms_s, rel=1e-12)
    assert step.ranks_of.tolist() == named.ranks_of.tolist() == [8] * 4


def test_replicas_on_other_servers_are_the_deviations_that_say_so_folded() -> None:
    setting = given((H, 16), (A, 16), tp=4, pp=2, dp=4, rank_order="tp-cp-pp-dp")
    other = load_cluster(A, 32)
    said = [Deviation(replica=replica, cluster=other) for replica in (2, 3)]
    named = simulate(*on(H, setting), deviations=said)
    step = simulate(*setting)
    assert step.step_time_s == pytest.approx(named.step_time_s, rel=1e-12)
    assert named.ranks_of.tolist() == [8, 8, 4, 4, 4, 4]
    assert step.ranks_of.tolist() == [8, 8, 8, 8]


# --- what is unfolded --------------------------------------------------------------------------


def test_ranks_fill_groups_along_the_rank_order() -> None:
    """Two stages of two replicas of two ranks: replicas outside stages, or the other way round."""
    inner = Layouts.of(tp=2, pp=2, dp=2, global_batch=2, rank_order="tp-cp-pp-dp")
    assert stage_members(inner).tolist() == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    outer = Layouts.of(tp=2, pp=2, dp=2, global_batch=2, rank_order="pp-tp-cp-dp")
    assert stage_members(outer).tolist() == [[[0, 2], [1, 3]], [[4, 6], [5, 7]]]


def test_replicas_on_like_servers_are_simulated_once() -> None:
    """Replicas 0-1 and 6-7 on H100 servers, 2-5 on A100 ones."""
    step = simulate(*given((H, 8), (A, 16), (H, 8), tp=4, dp=8))
    assert step.ranks_of.tolist() == [16, 16]
    assert mixed_of(step).replicas == ((0, 1, 6, 7), (2, 3, 4, 5))
    assert mixed_of(step).place(0) == (0, [(0, 1), (6, 7)])
    assert [mixed_of(step).servers(rank) for rank in (0, 1)] == [H, A]


def test_a_group_may_end_inside_a_stage() -> None:
    """4 stages of 3 replicas of 4 ranks, 32 on H100: stage 2 has its replicas on both."""
    step = simulate(*given((H, 32), (A, 16), tp=4, pp=4, dp=3))
    assert mixed_of(step).replicas == ((0, 1), (2,))
    on_h = [[8, 0], [8, 0], [8, 0], [0, 8], [4, 0], [4, 0], [0, 4], [0, 4]]
    assert mixed_of(step).gpus.tolist() == on_h


@pytest.mark.parametrize(
    "layout",
    [
        {"dp": 16, "sharding": "zero3", "software": "torchtitan"},
        {"dp": 16, "ep": 16, "model": "deepseek-v2"},
        {"tp": 8, "cp": 2, "dp": 1, "model": "llama-3.1-70b"},
    ],
)
@pytest.mark.parametrize("groups", [((H, 8), (A, 8)), ((A, 8), (H, 8))])
def test_ranks_in_step_in_every_layer_are_as_slow_as_the_slowest(
    layout: dict[str, Any], groups: tuple[tuple[str, int], ...]
) -> None:
    """A100 servers take longer for every piece of a pass, whichever come first."""
    setting = given(*groups, **layout)
    step = simulate(*setting)
    assert step.ranks_of.tolist() == [16]
    assert mixed_of(step).gpus.tolist() == [[8, 8]]
    slow = simulate(*on(A, setting))
    assert step.step_time_s == pytest.approx(slow.step_time_s, rel=1e-9)


def test_in_step_the_slowest_is_found_piece_by_piece() -> None:
    """The servers that compute slowly have the better network: the step has the worse of both."""
    table, work, cluster, software = given(
        (H, 8), (A, 8), dp=16, sharding="zero3", software="torchtitan"
    )
    first = cluster.kinds[0].groups[0]
    out = replace(
        first.node.scale_out,
        adapter_bytes_per_s=type(first.node.scale_out.adapter_bytes_per_s)(2.5e9),
    )
    poor = replace(first, node=replace(first.node, scale_out=out))
    kinds = (replace(cluster.kinds[0], groups=(poor,)), cluster.kinds[1])
    mixed = replace(cluster, kinds=kinds)
    (one,) = replicas_of(table, work, mixed, software)
    alone = [replicas_of(table, work, kind, software)[0].passes for kind in kinds]
    gemm, gathers, beside = CAUSE["gemm"], CAUSE["fsdp"], HIDDEN.index("fsdp")
    calls = [x.shown_s[..., gathers] + x.hidden_s[..., beside] for x in alone]
    assert calls[0].sum() > calls[1].sum()
    assert alone[0].shown_s[..., gemm].sum() < alone[1].shown_s[..., gemm].sum()
    assert np.array_equal(one.passes.shown_s[..., gemm], alone[1].shown_s[..., gemm])
    found = one.passes.shown_s[..., gathers] + one.passes.hidden_s[..., beside]
    assert found == pytest.approx(calls[0], rel=1e-12)
    assert np.array_equal(one.passes.hidden_s, alone[1].hidden_s)


# --- sends -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "pp", "chunks", "ahead", "back"),
    [
        ("1f1b", 4, 1, [[1], [2], [3], [2]], [[1], [0], [1], [2]]),
        # pieces 0 1 2 on chunk 0, 3 4 5 on chunk 1
        ("interleaved", 3, 2, [[1, 1], [2, 2], [0, 1]], [[1, 2], [0, 0], [1, 1]]),
        # down to rank 2 and up again
        ("zb_v", 3, 2, [[1, 1], [2, 0], [1, 1]], [[1, 1], [0, 2], [1, 1]]),
        # one way per chunk
        ("dualpipe", 4, 2, [[1, 1], [2, 0], [3, 1], [2, 2]], [[1, 1], [0, 2], [1, 3], [2, 2]]),
    ],
)
def test_who_sends_to_whom(
    schedule: str, pp: int, chunks: int, ahead: list[list[int]], back: list[list[int]]
) -> None:
    assert partners(schedule, pp, chunks).tolist() == [ahead, back]


def test_only_sends_between_unlike_servers_take_the_slower_adapters() -> None:
    """Stages 0 and 1 on H100, 2 and 3 on A100 servers, of slower adapters."""
    setting = given((H, 16), (A, 16), tp=8, pp=4, software="megatron-lm-2022")
    (one,) = replicas_of(*setting)
    quick, late = (float(whole(x, setting).passes.shown_s[0, 0, FORWARD, SENDS]) for x in (H, A))
    assert quick < late
    sent = one.passes.shown_s[:, 0, :, SENDS]
    assert sent[:, FORWARD].tolist() == [quick, late, late, late]
    assert sent[:, BACKWARD].tolist() == [quick, quick, late, late]


def test_sends_beside_compute_take_the_slower_adapters_too() -> None:
    setting = given((H, 16), (A, 16), tp=8, pp=4, vpp=2)
    (one,) = replicas_of(*setting)
    quick, late = (float(whole(x, setting).passes.send_s[0]) for x in (H, A))
    assert 0.0 < quick < late
    # in rounds stage 3 sends to stage 0, too, and stage 1 to stage 2
    assert one.passes.send_s.tolist() == [late, late, late, late]
    wide = given((H, 32), (A, 32), tp=8, pp=8, vpp=2)
    (one,) = replicas_of(*wide)
    quick, late = (float(whole(x, wide).passes.send_s[0]) for x in (H, A))
    assert one.passes.send_s.tolist() == [late, quick, quick, *[late] * 5]


# --- deviations, memory, the rest ------------------------------------------------------------


def test_deviations_lie_over_the_servers_of_their_place() -> None:
    """A quarter longer than on the A100 servers that the stage is on, not than on the first."""
    setting = given((H, 8), (A, 8), tp=8, pp=2)
    slow, plain = (
        simulate(*setting, deviations=found) for found in ([Deviation(compute=1.25)], [])
    )
    assert slow.terms_s["gemm"] == pytest.approx(1.25 * plain.terms_s["gemm"], rel=1e-9)
    assert slow.pacing_rank == plain.pacing_rank == 1
    moved = simulate(*setting, deviations=[Deviation(stage=1, cluster=load_cluster(H, 16))])
    assert moved.step_time_s == pytest.approx(mixed_of(plain).alone_s[0], rel=1e-9)


def test_a_deviation_unfolds_its_replica_alone() -> None:
    setting = given((H, 16), (A, 16), tp=4, dp=8)
    step = simulate(*setting, deviations=[Deviation(replica=5, compute=1.5)])
    assert step.ranks_of.tolist() == [16, 12, 4]
    assert mixed_of(step).replicas == ((0, 1, 2, 3), (4, 6, 7), (5,))
    assert step.pacing_rank == 2


def test_memory_is_weighed_on_the_devices_it_lies_on() -> None:
    setting = given((H, 8), ("dgx-a100-40", 8), tp=8, pp=2)
    step = simulate(*setting)
    own = [load_cluster(x, 8).accelerator.memory.usable_bytes for x in (H, "dgx-a100-40")]
    assert mixed_of(step).usable_bytes.tolist() == [float(x) for x in own]
    for rank in range(2):
        peak = step.memory.peak(rank)[1]
        assert peak == pytest.approx(float(mixed_of(step).memory_bytes[rank]), rel=1e-9)


def test_durations_that_vary_leave_the_comparison_alone() -> None:
    setting = given((H, 8), (A, 8), tp=8, pp=2)
    plain, varied = simulate(*setting), simulate(*setting, jitter=Jitter(spread=0.05))
    assert varied.step_time_s > plain.step_time_s
    assert mixed_of(varied).steady_s == mixed_of(plain).steady_s == plain.step_time_s
    assert mixed_of(varied).alone_s == mixed_of(plain).alone_s


def test_links_between_unlike_servers_are_not_laid_out() -> None:
    setting = given((H, 8), (A, 8), tp=8, pp=2)
    with pytest.raises(InputError, match=r"network: must be left out .* with cluster\.groups"):
        simulate(*setting, network=Network(contention=True))
