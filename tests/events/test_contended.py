"""Groups of a layout on worn links and crowded switches, worked by hand."""

from dataclasses import replace
from typing import Any

import pytest

from simulator.cost.collectives.curves import board
from simulator.errors import InputError
from simulator.events.deviations.deviations import replicas_of
from simulator.events.network.topology import port_bytes_per_s
from simulator.events.sharing.byte_time import COMMUNICATION, byte_time, call_seconds
from simulator.events.sharing.contended import Network
from simulator.events.simulated_step import Deviation, simulate
from simulator.files import Figure
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

CROWDED = Network(contention=True)
OUTER, INNER = "tp-cp-pp-dp", "tp-cp-dp-pp"


def given(
    model: str = "llama-3.1-70b",
    m: int = 8,
    cluster: str = "dgx-h100",
    over: float = 1.0,
    leaf: int = 0,
    software: str = "megatron-lm-2022",
    **layout: Any,
) -> Any:
    table = Layouts.of(**layout, global_batch=m * layout.get("dp", 1))
    recipe = Recipe(sequence_length=4096, global_batch=int(table.global_batch[0]))
    work = Workload(architecture=presets.load(model), recipe=recipe)
    machine = load_cluster(cluster, int(table.world[0]))
    if leaf:
        narrow = Figure(over, "assumed", "of this test")
        fabric = replace(machine.fabric, oversubscription=narrow, leaf_servers=leaf)
        machine = replace(machine, fabric=fabric)
    return table, work, machine, load_software(software)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("order", [INNER, OUTER])
@pytest.mark.parametrize("cluster", ["dgx-h100", "aws-p5", "l40s-pcie", "mi300x-8", "gb200-nvl72"])
@pytest.mark.parametrize(
    "layout",
    [
        {"tp": 4, "pp": 3, "dp": 6},
        {"tp": 2, "cp": 4, "pp": 3, "dp": 3, "cp_kind": "all_gather"},
        {"cp": 4, "pp": 2, "dp": 9, "cp_kind": "ring"},
        {"dp": 72, "sharding": "zero3", "shard_group": 36},
        {"dp": 72, "sharding": "ddp"},
        {"tp": 12, "dp": 6, "sharding": "zero1", "shard_group": 3},
    ],
)
def test_on_sound_links_that_nobody_narrows_nothing_changes(
    cluster: str, order: str, layout: dict[str, Any]
) -> None:
    """The closed form shares adapters between the members of a domain; that is not counted twice.

    L40S servers are 2:1 below their spine, which the closed form takes for every hop.
    """
    setting = given("llama-3.2-3b", cluster=cluster, rank_order=order, **layout)
    plain, crowded = simulate(*setting), simulate(*setting, network=CROWDED)
    assert crowded.network is not None
    assert set(crowded.network.slowdown.values()) <= {1.0}
    assert crowded.step_time_s == plain.step_time_s
    assert dict(crowded.terms_s) == dict(plain.terms_s)


@pytest.mark.parametrize("order", [INNER, OUTER])
@pytest.mark.parametrize("cluster", ["dgx-h100", "l40s-pcie"])
def test_sends_beside_compute_meet_the_rings_of_keys(cluster: str, order: str) -> None:
    """Chunks send beside compute, over the ports or adapters that rings of keys fill meanwhile:
    each kind alone has what the closed form gives it, and both together a little less."""
    layout = {"cp": 4, "pp": 2, "dp": 9, "cp_kind": "ring", "vpp": 2}
    setting = given("llama-3.2-3b", cluster=cluster, rank_order=order, **layout)
    plain, crowded = simulate(*setting), simulate(*setting, network=CROWDED)
    assert crowded.network is not None and crowded.sharing is not None
    assert set(crowded.network.slowdown.values()) <= {1.0}
    assert crowded.sharing.alone_s == pytest.approx(plain.step_time_s, rel=1e-12)
    assert 1.0 <= crowded.step_time_s / plain.step_time_s < 1.01
    lost_s = crowded.step_time_s - plain.step_time_s
    assert sum(crowded.sharing.lost_s.values()) == pytest.approx(lost_s, abs=1e-12)


@pytest.mark.parametrize("dispatcher", ["alltoall", "allgather"])
def test_nor_for_experts(dispatcher: str) -> None:
    setting = given("mixtral-8x7b", tp=2, pp=2, dp=16, ep=8, dispatcher=dispatcher)
    crowded = simulate(*setting, network=CROWDED)
    assert crowded.network is not None
    assert set(crowded.network.slowdown.values()) <= {1.0}
    assert crowded.step_time_s == simulate(*setting).step_time_s


def test_four_rings_on_a_spine_narrowed_four_times() -> None:
    """16 servers, 4 under each leaf switch, which has the uplinks of one. With dp outermost a leaf
    holds the 4 stages of a replica: the 4 rings of a rail leave it at once, each at a quarter of
    what the closed form grants it, for which a leaf is passed once."""
    setting = given(tp=8, pp=4, dp=4, rank_order=OUTER, over=4.0, leaf=4)
    plain, crowded = simulate(*setting), simulate(*setting, network=CROWDED)
    assert crowded.network is not None
    assert crowded.network.slowdown == pytest.approx({"dp": 4.0, "pp": 1.0})
    assert crowded.network.links["leaf-up"].utilisation == pytest.approx(1.0)
    assert crowded.network.links["adapter-up"].utilisation == pytest.approx(0.25)
    quarter = simulate(*setting, deviations=[Deviation(scale_out=0.25)])
    assert crowded.terms_s["dp"] == pytest.approx(quarter.terms_s["dp"], rel=1e-9)
    assert crowded.terms_s["pp"] == plain.terms_s["pp"]


def test_rings_that_stay_below_a_leaf_do_not_feel_the_spine() -> None:
    setting = given(tp=8, pp=4, dp=4, rank_order=INNER, over=4.0, leaf=4)
    crowded = simulate(*setting, network=CROWDED)
    assert crowded.network is not None
    assert crowded.network.slowdown == pytest.approx({"dp": 1.0, "pp": 1.0})
    assert crowded.step_time_s == simulate(*setting).step_time_s


def test_experts_across_a_narrow_spine() -> None:
    """16 experts' ranks in 2 servers, which stages put under 2 leaves of 2 servers each: what the
    closed form takes to stay below one leaf all crosses the spine, a quarter as wide."""
    setting = given(
        "mixtral-8x22b", tp=8, pp=2, dp=2, ep=8, etp=2, rank_order=OUTER, over=4.0, leaf=2
    )
    crowded = simulate(*setting, network=CROWDED)
    assert crowded.network is not None
    assert crowded.network.slowdown["ep"] == pytest.approx(4.0)
    quarter = simulate(*setting, deviations=[Deviation(scale_out=0.25)])
    assert crowded.terms_s["ep"] == pytest.approx(quarter.terms_s["ep"], rel=1e-9)
    assert crowded.terms_s["ep"] > 2.0 * simulate(*setting).terms_s["ep"]


@pytest.mark.parametrize(
    ("term", "layout"),
    [
        ("tp", {"tp": 16}),
        ("cp", {"tp": 4, "cp": 4, "cp_kind": "all_gather", "dp": 2}),
        ("cp", {"tp": 4, "cp": 4, "cp_kind": "all_to_all", "dp": 2}),
        ("cp", {"tp": 4, "cp": 4, "cp_kind": "ring", "dp": 2}),
        ("cp", {"tp": 2, "cp": 8, "cp_kind": "hierarchical", "cp_a2a": 4, "dp": 2}),
        ("fsdp", {"tp": 4, "dp": 8, "sharding": "zero3"}),
        ("dp", {"tp": 8, "dp": 4, "sharding": "ddp"}),
        ("fsdp", {"dp": 32, "sharding": "zero3", "shard_group": 16}),
        ("pp", {"tp": 8, "pp": 2, "dp": 2}),
    ],
)
def test_every_kind_of_groups_feels_a_worn_adapter(term: str, layout: dict[str, Any]) -> None:
    """GPUs that send from server 0 do so at half the rate: as if all adapters were half worn."""
    setting = given("llama-3.1-8b", **layout)
    plain = simulate(*setting)
    worn = Network(link_degradation={f"adapter-up 0.{rail}": 0.5 for rail in range(8)})
    slow = simulate(*setting, network=worn)
    half = simulate(*setting, deviations=[Deviation(scale_out=0.5)])
    assert slow.terms_s[term] == pytest.approx(half.terms_s[term], rel=1e-9)
    assert slow.terms_s[term] > 1.2 * plain.terms_s[term] > 0.0


def test_what_stays_below_a_leaf_is_not_slowed_by_copies_that_cross_the_spine() -> None:
    """States shared by the 16 ranks of a leaf's 2 servers, gradients reduced over 4 leaves, 4:1.

    Gathers stay below the leaf. The closed form narrows rings over more servers than a leaf has by
    4 / 2; those of one server a leaf cross the spine at each hop: a quarter of the adapters."""
    setting = given(
        "llama-3.1-8b",
        dp=64,
        sharding="zero3",
        shard_group=16,
        over=4.0,
        leaf=2,
        software="torchtitan",
        m=2,
    )
    plain, crowded = simulate(*setting), simulate(*setting, network=CROWDED)
    assert crowded.network is not None
    assert crowded.network.slowdown == pytest.approx({"dp": 1.0, "dp_copies": 2.0})
    both = [x.terms_s["fsdp"] + x.hidden_s["fsdp"] for x in (plain, crowded)]
    # both sums over 4 copies once more: 2 x 3/4 of fp32 gradients / 16 over half of an adapter's
    # 47 GB/s, and the ramps of calls of 60 MB
    parameters = setting[1].architecture.parameters
    once = 2 * 3 / 4 * 4 * parameters / 16 / (47e9 / 2)
    assert 2.0 * once * (1.0 - 1e-6) < both[1] - both[0] < 2.0 * 1.15 * once


def test_trees_cross_a_narrow_spine_more_often_than_rings() -> None:
    """64 ranks of 8 servers under 4 leaves, 4:1: where switches of servers add up, NCCL reduces
    over two trees of servers. Six of their edges end in servers 2 and 3, from where they carry half
    of the bytes each: 3 of a rank's share over 2/4 of an adapter. The closed form has 2 x 7/8 over
    adapters of which the spine leaves 2/4 as well; sharded states go over rings, which it has as
    they are."""
    setting = given("llama-3.2-3b", dp=64, sharding="ddp", over=4.0, leaf=2)
    crowded = simulate(*setting, network=CROWDED)
    assert crowded.network is not None
    assert crowded.network.slowdown == pytest.approx({"dp": 3 / (2 * 7 / 8)})
    rings = simulate(setting[0].replace(sharding="zero1"), *setting[1:], network=CROWDED)
    assert rings.network is not None and rings.network.slowdown == {"dp": 1.0}


def test_a_half_worn_adapter_doubles_the_network_part_of_what_crosses_it() -> None:
    setting = given(tp=8, dp=4)
    plain = simulate(*setting)
    worn = simulate(*setting, network=Network(link_degradation={"adapter-up 3.2": 0.5}))
    assert worn.network is not None
    assert worn.network.slowdown == pytest.approx({"dp": 2.0})
    half = simulate(*setting, deviations=[Deviation(scale_out=0.5)])
    assert worn.terms_s["dp"] == pytest.approx(half.terms_s["dp"], rel=1e-9)
    assert 1.9 < worn.terms_s["dp"] / plain.terms_s["dp"] <= 2.0
    assert worn.terms_s["tp"] == plain.terms_s["tp"]


def test_a_lost_adapter_shares_its_neighbours_rail() -> None:
    setting = given(tp=8, dp=4)
    lost = simulate(*setting, network=Network(link_degradation={"adapter-up 3.2": 0.0}))
    half = simulate(*setting, network=Network(link_degradation={"adapter-up 3.2": 0.5}))
    assert lost.network is not None
    assert lost.network.slowdown == pytest.approx({"dp": 2.0})
    assert lost.step_time_s == pytest.approx(half.step_time_s, rel=1e-9)


def test_only_the_stages_that_cross_it_are_slower() -> None:
    """Servers 2 and 3 hold stage 1; sends of stage 0 arrive there by adapter-down, not by -up."""
    setting = given(tp=8, pp=4, dp=2)
    worn = simulate(*setting, network=Network(link_degradation={"adapter-up 3.2": 0.5}))
    assert worn.network is not None
    slowed = [{left.group for left in stage} for stage in worn.network.stages]
    assert slowed == [{"pp"}, {"dp", "pp"}, {"pp"}, set()]
    assert {x.scale_out for stage in worn.network.stages for x in stage} == {0.5}


def test_a_worn_port_slows_collectives_inside_its_server() -> None:
    """What a gather moves at best over what half a port carries; adapters are not slower."""
    setting = given(tp=8, dp=2)
    plain = simulate(*setting)
    worn = simulate(*setting, network=Network(link_degradation={"gpu-up 3": 0.5}))
    rate = float(board(setting[2]).rates("all_gather", 8)["rate"])
    assert worn.network is not None
    assert worn.network.slowdown_inside == pytest.approx(
        {"tp": rate / (port_bytes_per_s(setting[2]) / 2.0)}
    )
    assert worn.network.slowdown == {"dp": 1.0}
    assert worn.terms_s["tp"] > 1.3 * plain.terms_s["tp"]
    assert worn.terms_s["dp"] == plain.terms_s["dp"]


def test_deviations_keep_what_is_left_of_links() -> None:
    """A slow stage on worn links is both: slower in compute, and in what it reduces."""
    setting = given(tp=8, pp=2, dp=4, software="megatron-lm-2022")
    network = Network(link_degradation={"adapter-up 5.2": 0.5})
    slow = [Deviation(stage=1, replica=2, compute=1.2)]
    plain, worn = simulate(*setting), simulate(*setting, network=network)
    both = simulate(*setting, network=network, deviations=slow)
    assert both.terms_s["gemm"] == pytest.approx(1.2 * plain.terms_s["gemm"], rel=1e-9)
    assert both.terms_s["dp"] == pytest.approx(worn.terms_s["dp"], rel=1e-3)
    assert worn.terms_s["dp"] > 1.5 * plain.terms_s["dp"]


def test_the_time_of_bytes_is_bytes_over_rate() -> None:
    """A send of 4096 tokens x 8192 x 2 bytes, an eighth by each rank; 47 GB/s of an adapter. What a
    send takes beyond that is its start, and neither kind of links but its own decides it."""
    setting = given(tp=8, pp=2, dp=2, software="megatron-core", sequence_parallel=True)
    replicas = replicas_of(*setting)
    whole = call_seconds(replicas)
    far, near = (byte_time(whole, "pp", way, setting, ()) for way in (True, False))
    pp = COMMUNICATION.index("pp")
    expected = 4096 * 8192 * 2 / 8 / 47e9
    assert far.passes_s[:, :, :2, pp] == pytest.approx(expected, rel=1e-6)
    base = setting[2].library.send_base_s["network"] + setting[2].fabric.extra_hop_s
    assert whole.passes_s[:, :, :2, pp] == pytest.approx(expected + float(base), rel=1e-9)
    assert not near.passes_s.any() and not far.reduce_s.any()


def test_the_same_twice() -> None:
    setting = given(tp=4, pp=2, dp=8, rank_order=OUTER, over=3.0, leaf=2)
    network = Network(link_degradation={"adapter-up 3.2": 0.5, "leaf-up 1": 0.25}, contention=True)
    first, again = (simulate(*setting, network=network) for _ in range(2))
    assert first.network == again.network
    assert dict(first.terms_s) == dict(again.terms_s)


@pytest.mark.parametrize(
    ("worn", "said"),
    [
        ({"adapter-up 9.0": 0.5}, r"there is no adapter-up 9.0.*nearest: 'adapter-up 3.0'"),
        ({"adapter 1.0": 0.5}, "unknown kind of link 'adapter' .*did you mean 'adapter-"),
        ({"": 0.5}, "unknown kind of link ''"),
        ({"adapter-up 1.0": -0.5}, r"0 to 1, got -0.5 \(nearest: 0 \(lost\)\)"),
        ({"host-up 1": 0.5}, "must be a link that ranks use among themselves"),
        ({f"adapter-up 1.{rail}": 0.0 for rail in range(8)}, "no way is left from GPU"),
    ],
)
def test_links_that_cannot_be(worn: dict[str, float], said: str) -> None:
    with pytest.raises(InputError, match=said):
        simulate(*given(tp=8, dp=4), network=Network(link_degradation=worn))


def test_a_deviation_is_refused_by_the_number_it_was_given() -> None:
    with pytest.raises(InputError, match=r"deviations\[0\].stage: must be from 0 to 0, got 4"):
        simulate(*given(tp=8, dp=4), network=CROWDED, deviations=[Deviation(stage=4)])
