"""Collectives: what a chosen algorithm takes, by hand, and laws of any network."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from simulator.cost.collectives.calls import (
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    broadcasts_s,
    exchange_rate,
    reduce_scatter_s,
    send_rate,
    send_s,
    send_share,
    send_units,
    slowdown_share,
)
from simulator.cost.collectives.dispatch import dispatch_s
from simulator.cost.collectives.nccl.algorithms import choose
from simulator.files import Figure
from simulator.hardware.cluster import Cluster, load_cluster, with_release
from simulator.hardware.tuning import Dispatch
from simulator.layout.placement import Group
from simulator.planner.prediction import predict
from simulator.scenario import make_scenario

US = 1e-6
H100 = load_cluster("dgx-h100", 1024)


def dispatch(cluster: Cluster, size_bytes: Any, members: Group) -> Any:
    """Each token to eight experts (DeepSeek-V3)."""
    return dispatch_s(cluster, size_bytes, 8, members, experts=256, row_bytes=ROW)


EXCHANGES = (all_to_all_s, dispatch)
FUNCTIONS = (all_gather_s, reduce_scatter_s, all_reduce_s, broadcasts_s, *EXCHANGES)
CHOICES = {
    all_gather_s: "all_gather",
    reduce_scatter_s: "reduce_scatter",
    all_reduce_s: "all_reduce",
}
AT_ONCE = Dispatch(
    start_s=Figure(1e-9),
    network_start_s=Figure(0.0),
    link_fraction=Figure(1.0),
    sharpness=Figure(1.0),
)
ROW = 14336.0
"""Bytes of a token of DeepSeek-V3."""
SIZES = st.floats(min_value=1.0, max_value=1e11)


def group(size: int, local: int) -> Group:
    return Group(size=np.array([size]), local=np.array([local]))


def plain(base: Cluster = H100, *, nvls: float | None = None, **node: float) -> Cluster:
    """A cluster of round numbers: bus 100 GB/s, adapters 50 GB/s per GPU, nothing lost.

    Starts and hops are those of NCCL's table: no curve was fitted to its boards.
    """
    values = {
        "bus_bytes_per_s": 100e9,
        "pair_fraction": 1.0,
        "all_to_all_bytes_per_s": 100e9,
        "send_bytes_per_s": 100e9,
        **node,
    }
    adapter = Figure(values.pop("adapter_bytes_per_s", 50e9))
    links = replace(
        base.node.scale_up,
        nvls_bytes_per_s=None if nvls is None else Figure(nvls),
        **{name: Figure(value) for name, value in values.items()},
    )
    server = replace(
        base.node,
        scale_up=links,
        scale_out=replace(base.node.scale_out, adapter_bytes_per_s=adapter),
    )
    fabric = replace(base.fabric, usable_fraction=Figure(1.0), oversubscription=Figure(1.0))
    library = replace(
        base.library,
        curves={},
        network_ramp=Figure(0.0),
        exchange_ramp=Figure(0.0),
        nvls_tree_fraction=Figure(1.0),
        dispatch={"deepep": {"hopper": {"dispatch": AT_ONCE, "combine": AT_ONCE}}},
    )
    return replace(
        base, groups=(replace(base.groups[0], node=server),), fabric=fabric, library=library
    )


def test_a_small_gather_is_the_latency_of_the_ll_ring() -> None:
    # NCCL tuning.cc: ring LL starts in 6.6 us and hops in 0.6 us over NVLink; 8 ranks, 7 hops;
    # LL moves half of the 100 GB/s
    size = 8192.0
    expected = 6.6 * US + 7 * 0.6 * US + size * 7 / 8 / 50e9
    assert all_gather_s(plain(), size, group(8, 8))[0] == pytest.approx(expected, rel=1e-12)


def test_a_large_gather_is_the_bandwidth_of_the_simple_ring() -> None:
    # simple: 8.4 us + 7 x 3.4 us, 7/8 of the bytes at the full bus
    size = 8e9
    expected = 8.4 * US + 7 * 3.4 * US + size * 7 / 8 / 100e9
    assert all_gather_s(plain(), size, group(8, 8))[0] == pytest.approx(expected, rel=1e-12)


def test_a_ring_over_servers_hops_the_network_once_per_server() -> None:
    # 16 ranks in two servers: 15 hops, one over the network (14 us with simple, 3.4 us inside);
    # the eight adapters of a server carry 400 GB/s, more than the bus
    size = 8e9
    expected = 8.4 * US + (14 * 3.4 + 14.0) * US + size * 15 / 16 / 100e9
    assert all_gather_s(plain(), size, group(16, 8))[0] == pytest.approx(expected, rel=1e-12)


def test_hops_of_gathers_over_efa_wait_longer_than_those_of_all_reduces() -> None:
    # 32 servers, 31 hops over the network
    fabric = replace(plain().fabric, gather_hop_s=Figure(40.0 * US))
    slower, calls = replace(plain(), fabric=fabric), (8e9, group(256, 8))
    more_s = all_gather_s(slower, *calls)[0] - all_gather_s(plain(), *calls)[0]
    assert more_s == pytest.approx(31 * 40.0 * US, rel=1e-6)
    assert all_reduce_s(slower, *calls)[0] == all_reduce_s(plain(), *calls)[0]


def test_a_ring_with_one_rank_per_server_has_one_adapter() -> None:
    size = 8e9
    expected = 8.4 * US + 15 * 14.0 * US + size * 15 / 16 / 50e9
    assert all_gather_s(plain(), size, group(16, 1))[0] == pytest.approx(expected, rel=1e-12)


def test_rings_fill_no_pipeline_and_trees_do() -> None:
    """Step after step by hand: every member sends a share at once, and waits for a hop."""
    cluster, size = plain(), 8e9
    ramped = replace(cluster, library=replace(cluster.library, network_ramp=Figure(1.0)))
    step_s = 14.0 * US + size / 16 / 50e9
    expected = 8.4 * US + 15 * step_s
    assert all_gather_s(ramped, size, group(16, 1))[0] == pytest.approx(expected, rel=1e-12)
    calls = 1e6, group(1024, 8)  # a tree: each piece goes up and down 2 log2(128) hops
    more_s = all_reduce_s(ramped, *calls)[0] - all_reduce_s(cluster, *calls)[0]
    assert more_s > 0.0


def test_a_ring_takes_the_adapters_of_its_own_members_only() -> None:
    # two members in a server bring two adapters of 20 GB/s
    slow = plain(adapter_bytes_per_s=20e9)
    size = 8e9
    expected = 8.4 * US + (4 * 3.4 + 3 * 14.0) * US + size * 7 / 8 / 40e9
    assert all_gather_s(slow, size, group(8, 2))[0] == pytest.approx(expected, rel=1e-12)


def test_a_large_ring_all_reduce_moves_twice_the_bytes_of_a_gather() -> None:
    size = 80e9
    expected = 8.4 * US + 14 * 3.4 * US + 2 * size * 7 / 8 / 100e9
    assert all_reduce_s(plain(), size, group(8, 8))[0] == pytest.approx(expected, rel=1e-12)


def test_a_small_all_reduce_over_many_servers_takes_the_tree() -> None:
    # tree: 2 x 7 hops of 0.6 us inside, 2 log2(128) of 5.0 us; the ring would take 2046 hops. LL
    # starts in 6.6 us
    expected = (6.6 + 2 * (7 * 0.6 + 7 * 5.0)) * US
    assert all_reduce_s(plain(), 8.0, group(1024, 8))[0] == pytest.approx(expected, rel=1e-4)


def test_a_tree_over_two_servers_moves_the_bytes_once_over_the_adapters() -> None:
    # Two servers: each sends half of one tree up and half of the other down, S in all. Four
    # adapters of 12.5 GB/s for eight GPUs, 50 GB/s a server: 50 GB/s of all-reduced bytes, which
    # nccl-tests counts as 50 x 2 x 15/16 = 93.75 (p4de.24xlarge: 78 with what a fabric loses).
    cluster = plain(load_cluster("aws-p4de", 16), adapter_bytes_per_s=12.5e9)
    size = 8e9
    assert choose(cluster, "all_reduce", size, group(16, 8))[0] in (4, 5)
    assert all_reduce_s(cluster, size, group(16, 8))[0] == pytest.approx(size / 50e9, rel=2e-3)


def test_reduction_in_the_switch_needs_a_group_inside_one_domain_that_is_large_enough() -> None:
    with_switch, without = plain(nvls=480e9), plain()
    size = 80e9
    inside = all_reduce_s(with_switch, size, group(8, 8))[0]
    base = float(H100.library.nvls_base_s)
    assert inside == pytest.approx(base + 2 * size * 7 / 8 / 480e9, rel=1e-12)
    four = group(4, 4)
    assert all_reduce_s(with_switch, size, four) == all_reduce_s(without, size, four)
    # a switch adds up no integers: the ring does
    whole = all_reduce_s(with_switch, size, group(8, 8), integer=True)
    assert whole == all_reduce_s(without, size, group(8, 8))


def test_switches_of_the_network_move_the_bytes_once() -> None:
    # SHARP behind NVLS: S over the eight adapters of a server, 400 GB/s; the domain's switch moves
    # 2 x 7/8 S at 900 GB/s, which is less
    joined = plain(nvls=900e9)
    reducing = replace(joined, fabric=replace(joined.fabric, reduces_in_network=True))
    size = 80e9
    far = size / 400e9 / float(H100.library.collnet_fraction)
    assert all_reduce_s(reducing, size, group(128, 8))[0] == pytest.approx(far, rel=1e-2)
    # a tree moves 2 x 15/16 of them
    tree = all_reduce_s(joined, size, group(128, 8))[0]
    assert tree == pytest.approx(2 * 15 / 16 * size / 400e9, rel=1e-2)


def test_an_all_to_all_over_n_servers_tends_to_n_over_n_less_one_adapters() -> None:
    # NVIDIA/nccl-tests#130: of what a rank sends, (N - 1)/N leaves the server
    size = 64e9
    for nodes in (2, 4, 16):
        rate = size / all_to_all_s(plain(), size, group(8 * nodes, 8))[0]
        assert rate == pytest.approx(50e9 * nodes / (nodes - 1), rel=1e-2)


def test_an_over_subscribed_layer_is_passed_by_what_leaves_the_leaf() -> None:
    base, size = plain(), 64e9

    def with_leaf(servers: int) -> Cluster:
        fabric = replace(base.fabric, oversubscription=Figure(4.0), leaf_servers=servers)
        return replace(base, fabric=fabric)

    sixteen = group(128, 8)
    free = all_to_all_s(base, size, sixteen)[0]
    assert all_to_all_s(with_leaf(16), size, sixteen)[0] == free
    # 16 servers on leaves of 4: 12 of 15 others are beyond, at a quarter of the rate: 3.2 times
    slow = all_to_all_s(with_leaf(4), size, sixteen)[0]
    assert slow == pytest.approx(3.2 * free, rel=1e-2)
    assert all_to_all_s(with_leaf(1), size, sixteen)[0] == pytest.approx(4.0 * free, rel=1e-2)
    # a ring leaves a leaf once for all its servers, which have the uplinks of four to share
    thin = plain(adapter_bytes_per_s=5e9)
    ring = all_gather_s(thin, size, sixteen)[0]
    on_leaves = replace(thin, fabric=with_leaf(4).fabric)
    assert all_gather_s(on_leaves, size, sixteen)[0] == ring
    alone = replace(thin, fabric=with_leaf(1).fabric)
    assert all_gather_s(alone, size, sixteen)[0] == pytest.approx(4.0 * ring, rel=1e-2)


def test_pods_are_the_over_subscribed_layer_where_leaves_do_not_block() -> None:
    """Meta's cluster: pods of 384 servers, 1:7 above them (Llama 3 herd, section 3.3.1)."""
    one, two = (load_cluster("meta-24k", 8 * servers) for servers in (384, 768))
    adapters = one.network_bytes_per_s_per_gpu
    assert send_rate(one, far=True) == adapters
    assert send_rate(two, far=True) == pytest.approx(adapters / 7)
    # of 767 other servers 384 are beyond the pod, at a seventh
    assert exchange_rate(one, 384) == adapters
    assert exchange_rate(two, 768) == pytest.approx(adapters / (7 * 384 / 767))
    assert load_cluster("meta-24k", 24_576).nodes == 8 * 384


def test_neighbours_of_a_pod_do_not_send_above_it() -> None:
    """Llama 3 405B: pipelines of 8 x 16 ranks, of which 24 fill a pod of 3,072 GPUs.

    With pipeline ranks outermost a neighbour is 1,024 ranks away, some of them in another pod.
    """
    two = load_cluster("meta-24k", 16_384)
    document = {
        "model": {"name": "llama-3.1-405b"},
        "training": {"sequence_length": 8192, "global_batch": 2048},
        "cluster": {"name": "meta-24k", "gpus": 16_384, "software": "megatron-core"},
    }
    pins = {"tp": 8, "pp": 16, "vpp": 1, "cp": 1, "micro_batch": 1, "recompute": "full"}
    near, far = (
        float(predict(make_scenario(document), **pins, rank_order=order).estimate.terms_s["pp"][0])
        for order in ("tp-cp-pp-dp", "tp-cp-dp-pp")
    )
    size = 8192 * 16_384 * 2 / 8
    below, above = (send_s(two, size, True, beyond=beyond) for beyond in (False, True))
    assert above - below == pytest.approx(6.0 * size / two.network_bytes_per_s_per_gpu, rel=1e-9)
    assert near < far / 3.0


def test_older_releases_send_larger_parts_of_an_all_to_all_with_ll() -> None:
    # 64 KiB to each of eight: 2.29 takes the bulk protocol (8.4 us), 2.27 still LL (6.6)
    older, size = with_release(plain(), "2.27"), 8.0 * 65536
    factor = float(older.library.releases["2.27"].ll_time_fraction)
    newest = (8.4 + 7 * 0.6) * US + size * 7 / 8 / 100e9
    assert all_to_all_s(plain(), size, group(8, 8))[0] == pytest.approx(newest)
    small = (6.6 + 7 * 0.6) * US + size * 7 / 8 / 50e9
    assert all_to_all_s(older, size, group(8, 8))[0] == pytest.approx(small * factor)


def test_a_release_that_nobody_measured_is_taken_as_the_next_newer_one() -> None:
    stands_in = {"2.8": "2.23", "2.23": "2.23", "2.24": "2.27", "2.28": "2.28", "2.30": "2.29"}
    for release, measured in stands_in.items():
        assert with_release(plain(), release).library.release == measured
    assert with_release(plain(), "").library.release == "2.29"
    assert with_release(H100, "2.29") is H100


def test_lines_of_128_bytes_start_and_move_as_nccl_counts() -> None:
    # ring LL128 over eight: 14 us + 7 x 1.9 us, 0.92 of the bus; the choice lies between LL and
    # Simple
    size = 16e6
    assert choose(plain(), "all_gather", size, group(8, 8))[0] == 1
    expected = (14 + 7 * 1.9) * US + size * 7 / 8 / 92e9
    assert all_gather_s(plain(), size, group(8, 8))[0] == pytest.approx(expected, rel=1e-12)


def test_trees_of_three_servers_and_more_lose_some_of_the_adapters() -> None:
    # NVIDIA/nccl#1368: five servers, 4 x 400 Gbit/s each: 150 GB/s with trees, 190 with rings
    # one more byte takes 2 x 7/8 of a byte over the 50 GB/s of a server; LL128 moves 0.92 of them
    cluster = plain(load_cluster("aws-p4de", 64), adapter_bytes_per_s=12.5e9)
    sizes = np.array([12e6, 20e6])
    assert (choose(cluster, "all_reduce", sizes, group(64, 8)) == 4).all()
    more_s = np.diff(all_reduce_s(cluster, sizes, group(64, 8)))[0]
    reached = 2 * 8e6 * 7 / 8 / 50e9 / 0.92 / more_s
    assert 150 / 190 < reached < 36.84 / 43.57


def test_an_all_to_all_sends_each_peer_its_share() -> None:
    # 16 ranks, 8 to a server: 7/16 over links of 100 GB/s, at once 8/16 over an adapter of 50 GB/s
    size = 16e9
    far = size * 8 / 16 / 50e9
    assert all_to_all_s(plain(), size, group(16, 8))[0] == pytest.approx(far, rel=1e-3)
    inside = all_to_all_s(plain(), size, group(8, 8))[0]
    assert inside == pytest.approx(size * 7 / 8 / 100e9, rel=1e-3)


def test_an_all_to_all_starts_with_each_peer_and_waits_once_for_the_network() -> None:
    # 256 ranks on 32 servers, 248 peers away; EFA adds a hop, and half of the geometric mean
    cluster, size = plain(), 1e9
    library = replace(cluster.library, exchange_ramp=Figure(0.5))
    fabric = replace(cluster.fabric, extra_hop_s=Figure(20.0 * US))
    base_s = all_to_all_s(cluster, size, group(256, 8))[0]
    start_s, far_s = (20.0 + 248 * 2.7) * US, size * 248 / 256 / 50e9
    expected = base_s + 20.0 * US + 0.5 * math.sqrt(start_s * far_s)
    slower = replace(cluster, library=library, fabric=fabric)
    assert all_to_all_s(slower, size, group(256, 8))[0] == pytest.approx(expected, rel=1e-9)


def test_broadcasts_in_turn_each_pay_the_ring_and_together_move_all_bytes_once() -> None:
    # eight ranks broadcast 1 GB each: eight times 8.4 us + 7 hops of 3.4 us, 8 GB at the full bus
    size = 8e9
    expected = 8 * (8.4 + 7 * 3.4) * US + size / 100e9
    assert broadcasts_s(plain(), size, group(8, 8))[0] == pytest.approx(expected, rel=1e-12)
    # 16 ranks in two servers: 15 hops, one of 14 us
    expected = 16 * (8.4 + 14 * 3.4 + 14.0) * US + size / 100e9
    assert broadcasts_s(plain(), size, group(16, 8))[0] == pytest.approx(expected, rel=1e-12)
    # one rank of each server: 15 hops of 14 us, one adapter of 50 GB/s
    expected = 16 * (8.4 + 15 * 14.0) * US + size / 50e9
    assert broadcasts_s(plain(), size, group(16, 1))[0] == pytest.approx(expected, rel=1e-12)


def test_small_broadcasts_take_the_ll_ring() -> None:
    size = 8192.0
    expected = 8 * (6.6 + 7 * 0.6) * US + size / 50e9
    assert broadcasts_s(plain(), size, group(8, 8))[0] == pytest.approx(expected, rel=1e-12)


def reached(experts: int, ranks: int, local: int, picks: int) -> tuple[float, float]:
    """Other domains, and ranks behind another link of a domain, of random choices of experts.

    DeepEP: over the network to the rank with the same place in the other domain, from there on.
    """
    rng = np.random.default_rng(7)
    scores = rng.random((20_000, experts))
    chosen = np.argpartition(scores, picks, axis=1)[:, :picks] // (experts // ranks)
    hit = np.zeros((len(chosen), ranks), dtype=bool)
    hit[np.arange(len(chosen))[:, None], chosen] = True
    places = hit.reshape(len(chosen), ranks // local, local)
    domains = places.any(axis=2)[:, 1:].sum(axis=1).mean()
    return float(domains), float(places[:, :, 1:].sum(axis=(1, 2)).mean())


@pytest.mark.parametrize(
    ("experts", "ranks", "local", "picks"),
    [
        (256, 64, 8, 8),  # DeepSeek-V3 on eight servers
        (256, 32, 8, 8),
        (128, 16, 8, 8),  # Qwen3-235B-A22B on two
        (256, 8, 8, 8),  # one domain
    ],
)
@pytest.mark.parametrize("link", [50e9, 1e12])
def test_a_dispatch_sends_what_random_choices_of_experts_send(
    experts: int, ranks: int, local: int, picks: int, link: float
) -> None:
    """Links that limit, or adapters of 50 GB/s that do; the draws are good to half a percent."""
    size = 1e9
    far, near = reached(experts, ranks, local, picks)
    cluster = plain(all_to_all_bytes_per_s=link)
    found = dispatch_s(cluster, size, picks, group(ranks, local), experts=experts, row_bytes=ROW)[0]
    assert found == pytest.approx(size * max(far / 50e9, near / link), rel=0.005)


def test_a_dispatch_inside_one_domain_does_not_see_the_network() -> None:
    fast, slow = plain(), plain(adapter_bytes_per_s=1.0)
    for members in (group(2, 2), group(8, 8)):
        assert dispatch_s(slow, 1e9, 8, members, experts=256, row_bytes=ROW) == dispatch_s(
            fast, 1e9, 8, members, experts=256, row_bytes=ROW
        )
    assert dispatch_s(slow, 1e9, 8, group(16, 8), experts=256, row_bytes=ROW) > 1e6


def test_one_expert_for_each_token_is_an_all_to_all() -> None:
    # nothing is sent twice, so both send a token over one link or one adapter
    size = 16e9
    for members in (group(8, 8), group(16, 8), group(16, 1)):
        whole = all_to_all_s(plain(), size, members)[0]
        assert dispatch_s(plain(), size, 1, members, experts=256, row_bytes=ROW)[
            0
        ] == pytest.approx(whole, rel=1e-3)


@given(
    copies=st.integers(1, 16),
    shape=st.sampled_from([(2, 2), (8, 8), (16, 8), (64, 8), (256, 8), (16, 1), (64, 1)]),
)
def test_sending_each_token_once_is_never_slower_than_once_for_every_expert(
    copies: int, shape: tuple[int, int]
) -> None:
    size = 1e9
    once = dispatch_s(plain(), size, copies, group(*shape), experts=256, row_bytes=ROW)
    assert once <= all_to_all_s(plain(), copies * size, group(*shape))


@given(shape=st.sampled_from([(2, 1), (8, 8), (16, 8), (64, 8)]), size=SIZES)
def test_more_experts_for_each_token_never_take_less_time(
    shape: tuple[int, int], size: float
) -> None:
    found = [
        dispatch_s(H100, size, copies, group(*shape), experts=256, row_bytes=ROW)[0]
        for copies in range(1, 20)
    ]
    assert (np.diff(found) >= 0).all()


def test_a_send_is_start_up_and_bytes_over_the_link() -> None:
    base = H100.library.send_base_s
    near, far = send_s(plain(), 1e9, False), send_s(plain(), 1e9, True)
    assert near == pytest.approx(float(base["nvlink"]) + 1e9 / 100e9)
    assert far == pytest.approx(float(base["network"]) + 1e9 / 50e9)


def test_two_members_of_a_board_of_no_known_kind_reach_the_pair_fraction() -> None:
    size = 80e9
    slower = all_gather_s(plain(pair_fraction=0.6), size, group(2, 2))[0]
    assert slower == pytest.approx(size / 2 / 60e9, rel=1e-3)
    # the gap closes with the square: of eight, 1 - 0.4 / 16
    eight = all_gather_s(plain(pair_fraction=0.6), size, group(8, 8))[0]
    assert eight == pytest.approx(size * 7 / 8 / 97.5e9, rel=1e-3)


def test_slowdown_is_the_share_of_compute_units_taken() -> None:
    taken = float(H100.library.compute_units)
    assert slowdown_share(H100) == pytest.approx(taken / 132)


def test_sends_over_adapters_take_two_channels_each_way() -> None:
    """NCCL opens two channels to a peer on another server; links of a domain take all it has."""
    assert send_units(H100, [False, True]).tolist() == [float(H100.library.compute_units), 4.0]
    assert float(send_share(H100, True)) == pytest.approx(4 / 132)
    few = replace(H100, library=replace(H100.library, compute_units=Figure(3.0)))
    assert float(send_units(few, True)) == 3.0  # never more than a collective


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_group_of_one_has_nothing_to_exchange(function: Any) -> None:
    assert function(H100, 1e9, group(1, 1))[0] == 0.0


GROUPS = st.sampled_from(
    [(2, 1), (2, 2), (4, 2), (8, 8), (8, 1), (16, 8), (64, 8), (1024, 8), (96, 4)]
)


@given(size=SIZES, more=st.floats(1.0, 1e3), shape=GROUPS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_more_bytes_never_take_less_time(
    function: Any, size: float, more: float, shape: tuple[int, int]
) -> None:
    """Where the library stays with its choice; it may switch too late or too early."""
    members = group(*shape)
    if (operation := CHOICES.get(function)) is not None:
        assume(
            choose(H100, operation, size, members) == choose(H100, operation, size * more, members)
        )
    if function is not broadcasts_s:
        assert function(plain(), size * more, members) >= function(plain(), size, members) > 0


@given(
    size=SIZES,
    shape=GROUPS,
    faster=st.floats(1.0, 10.0),
    part=st.sampled_from(["bus_bytes_per_s", "all_to_all_bytes_per_s", "adapter_bytes_per_s"]),
)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_more_bandwidth_is_never_slower(
    function: Any, size: float, shape: tuple[int, int], faster: float, part: str
) -> None:
    members = group(*shape)
    before = plain(nvls=200e9)
    default = {"adapter_bytes_per_s": 50e9}.get(part, 100e9)
    after = plain(nvls=200e9 * faster, **{part: default * faster})
    if (operation := CHOICES.get(function)) is not None:
        assume(choose(before, operation, size, members) == choose(after, operation, size, members))
    if function is broadcasts_s:
        assume(part != "adapter_bytes_per_s")
    assert function(after, size, members) <= function(before, size, members)


@given(size=SIZES, faster=st.floats(1.0, 10.0), crosses=st.booleans())
def test_a_send_over_a_faster_link_is_never_slower(
    size: float, faster: float, crosses: bool
) -> None:
    after = plain(send_bytes_per_s=100e9 * faster, adapter_bytes_per_s=50e9 * faster)
    assert send_s(after, size, crosses) <= send_s(plain(), size, crosses)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_an_oversubscribed_fabric_slows_everything_that_crosses_it(function: Any) -> None:
    fabric = replace(plain().fabric, oversubscription=Figure(4.0), leaf_servers=1)
    narrow = replace(plain(), fabric=fabric)
    for members in (group(64, 1), group(64, 8)):
        if function not in EXCHANGES and members.local[0] == 8:
            continue  # eight adapters at a quarter still carry the bus of 100 GB/s
        assert function(narrow, 1e9, members) > 2 * function(plain(), 1e9, members)


def test_all_groups_of_a_table_are_priced_at_once() -> None:
    sizes, local = np.array([1, 2, 8, 16, 1024]), np.array([1, 2, 8, 8, 8])
    table = Group(size=sizes, local=local)
    for function in FUNCTIONS:
        whole = function(H100, 1e7, table)
        alone = [function(H100, 1e7, group(n, m))[0] for n, m in zip(sizes, local, strict=True)]
        assert whole.tolist() == alone
