"""Links and routes of real and made-up clusters, worked by hand from their profiles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulator import catalogue
from simulator.errors import InputError
from simulator.events.network.flows import flows
from simulator.events.network.links import Topology, degraded, link_name, link_number
from simulator.events.network.routes import host_routes, routes
from simulator.events.network.topology import slice_shape, topology
from simulator.events.network.transfer import transfer
from simulator.files import Figure
from simulator.hardware.cluster import Cluster, load_cluster


def names(network: Topology, source: int, target: int, **more: bool) -> list[str]:
    return [link_name(network, int(at)) for at in routes(network, source, target, **more).link]


def with_fabric(name: str, gpus: int, **fields: object) -> Cluster:
    cluster = load_cluster(name, gpus)
    return replace(cluster, fabric=replace(cluster.fabric, **fields))


def with_links(name: str, gpus: int, **fields: object) -> Cluster:
    cluster = load_cluster(name, gpus)
    group = cluster.groups[0]
    node = replace(group.node, scale_up=replace(group.node.scale_up, **fields))
    return replace(cluster, groups=(replace(group, node=node),))


def test_capacities_of_a_superpod() -> None:
    """64 servers of 8 adapters of 50 GB/s, 0.94 of it usable; units of 32 servers and 8 leaves,
    each with 32 links of 47 GB/s up; NVLink ports carry more than a ring, less than 450 GB/s."""
    network = topology(load_cluster("dgx-h100", 512))
    rate = network.capacity_bytes_per_s
    assert network.blocks["adapter-up"].shape == (64, 8)
    assert rate[link_number(network, "adapter-down 63.7")] == pytest.approx(47e9)
    assert network.blocks["leaf-up"].shape == (16,)
    assert rate[link_number(network, "leaf-up 15")] == pytest.approx(32 * 47e9)
    assert 3.6e11 <= rate[link_number(network, "gpu-up 0")] < 4.5e11


def test_routes_of_aligned_rails() -> None:
    """On its own rail a flow passes one leaf; to another it is handed to a neighbour first; to
    another unit it climbs to the spine."""
    network = topology(load_cluster("dgx-h100", 512))
    assert names(network, 0, 1) == ["gpu-up 0", "gpu-down 1"]
    assert names(network, 0, 8) == ["adapter-up 0.0", "adapter-down 1.0"]
    assert names(network, 0, 9) == [
        *("gpu-up 0", "gpu-down 1", "adapter-up 0.1", "adapter-down 1.1"),
    ]
    assert names(network, 3, 32 * 8 + 3) == [
        *("adapter-up 0.3", "leaf-up 3", "leaf-down 11", "adapter-down 32.3"),
    ]
    assert names(network, 5, 5) == []


def test_a_fat_tree_without_rails_meets_at_the_leaf_of_the_server() -> None:
    network = topology(with_fabric("dgx-h100", 64, topology="fat-tree", leaf_servers=4))
    assert names(network, 0, 9) == ["adapter-up 0.0", "adapter-down 1.1"]
    assert names(network, 0, 33) == [
        *("adapter-up 0.0", "leaf-up 0", "leaf-down 1", "adapter-down 4.1"),
    ]


def test_gpus_share_an_adapter_and_several_adapters_serve_one_gpu() -> None:
    """p4d: 4 adapters of 12.5 GB/s for 8 GPUs, 0.918 usable; p5: 32 for 8, four to a GPU."""
    few = topology(load_cluster("aws-p4d", 16))
    assert few.seats.rail[:8].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert few.capacity_bytes_per_s[link_number(few, "adapter-up 0.0")] == pytest.approx(11.475e9)
    many = topology(load_cluster("aws-p5", 16))
    assert many.blocks["adapter-up"].shape == (2, 8)
    assert many.capacity_bytes_per_s[link_number(many, "adapter-up 0.0")] == pytest.approx(45e9)


def test_a_rack_of_72_is_one_domain_of_18_servers() -> None:
    network = topology(load_cluster("gb200-nvl72", 144))
    assert names(network, 0, 71) == ["gpu-up 0", "gpu-down 71"]
    assert names(network, 0, 72)[0] == "adapter-up 0.0"
    assert network.blocks["adapter-up"].shape == (36, 4)


def test_wires_of_a_mesh_are_for_sends_not_for_rings() -> None:
    """Eight MI300X, each joined to each: a send has one of seven links of 64 GB/s."""
    network = topology(load_cluster("mi300x-8", 8))
    assert names(network, 0, 7) == ["gpu-up 0", "pair 0.0.7", "gpu-down 7"]
    assert names(network, 0, 7, spread=True) == ["gpu-up 0", "gpu-down 7"]


def test_boards_under_a_pcie_switch_share_its_link() -> None:
    """Four to a switch: inside it the ports only; beyond it the links to the host bridge; and to
    the one adapter, which hangs on the first switch, the second one's GPUs cross the bridge."""
    network = topology(with_links("a10-pcie", 16, pcie_switch_accelerators=4))
    assert names(network, 0, 3) == ["gpu-up 0", "gpu-down 3"]
    assert names(network, 0, 4) == ["gpu-up 0", "pcie-up 0", "pcie-down 1", "gpu-down 4"]
    assert names(network, 5, 8)[:4] == ["gpu-up 5", "pcie-up 1", "pcie-down 0", "adapter-up 0.0"]
    assert names(network, 5, 8)[-2:] == ["adapter-down 1.0", "gpu-down 8"]


def test_pods_of_a_fat_tree_meet_at_the_core() -> None:
    """Meta's 24k cluster: 384 servers to a pod, 1 uplink for 7 downlinks above it."""
    cluster = with_fabric(
        "grand-teton-h100", 4 * 8, pod_servers=2, pod_oversubscription=Figure(7.0)
    )
    network = topology(cluster)
    assert names(network, 0, 8)[-1] == "adapter-down 1.0"
    assert "pod-up 0" not in names(network, 0, 8)
    assert {"pod-up 0", "pod-down 1"} < set(names(network, 0, 16))
    up = network.capacity_bytes_per_s[link_number(network, "pod-up 0")]
    of_server = 8 * cluster.network_bytes_per_s_per_gpu
    assert up == pytest.approx(2 * of_server / 7.0)


def test_groups_of_a_dragonfly_are_joined_in_pairs() -> None:
    """Three groups of two servers, taper 2: half of what a group injects, over two neighbours."""
    cluster = with_fabric("frontier", 48, pod_servers=2)
    network = topology(cluster)
    assert "global 0.2" in names(network, 0, 32)
    each = network.capacity_bytes_per_s[link_number(network, "global 0.2")]
    of_server = 8 * cluster.network_bytes_per_s_per_gpu
    assert each == pytest.approx(2 * of_server / 2.0 / 2)
    detour = names(degraded(network, {"global 0.2": 0.0}), 0, 32)
    assert {"global 0.1", "global 1.2"} < set(detour)


def test_slices_of_a_torus() -> None:
    """Google's own shapes: 4x4x4, 4x4x8, 4x8x8, 8x8x8 (TPU v5p documentation)."""
    shapes = [slice_shape(load_cluster("tpu-v5p", chips)) for chips in (64, 128, 256, 512)]
    assert shapes == [(4, 4, 4), (4, 4, 8), (4, 8, 8), (8, 8, 8)]
    assert slice_shape(load_cluster("tpu-v4", 4096)) == (16, 16, 16)


def test_ways_through_a_torus() -> None:
    """4 x 4 x 4, chip = 16 x + 4 y + z: axis after axis, the short way round; two steps along an
    axis of four are as far either way, so that each way has a half."""
    network = topology(load_cluster("tpu-v4", 64))
    assert names(network, 0, 16) == ["torus 0.0"]
    assert names(network, 0, 48) == ["torus 0.1"]  # three steps ahead are one back
    assert names(network, 0, 21) == ["torus 0.0", "torus 16.2", "torus 20.4"]
    both = routes(network, 0, 2)
    assert both.share.tolist() == [0.5] * 4
    assert {link_name(network, int(at)) for at in both.link} == {
        *("torus 0.4", "torus 1.4", "torus 0.5", "torus 3.5"),
    }


def test_a_short_axis_has_no_way_round() -> None:
    """A slice of 2 x 2 x 2 chips is a mesh: one link between two neighbours."""
    network = topology(load_cluster("tpu-v4", 8))
    assert network.torus == (2, 2, 2)
    assert names(network, 0, 1) == ["torus 0.4"]
    assert names(network, 1, 0) == ["torus 1.5"]


def test_a_lost_torus_link_sends_bytes_the_other_way_round() -> None:
    network = degraded(topology(load_cluster("tpu-v4", 64)), {"torus 0.0": 0.0})
    assert names(network, 0, 16) == ["torus 0.1", "torus 48.1", "torus 32.1"]


def test_both_axes_are_gone_round_where_neither_leads_ahead() -> None:
    """2 x 4 x 4, chip = 16 x + 4 y + z: from 0 to 5 in y and z; the short axis is a mesh."""
    lost = dict.fromkeys(("torus 0.2", "torus 1.2", "torus 0.4", "torus 4.4"), 0.0)
    network = degraded(topology(load_cluster("tpu-v4", 32)), lost)
    assert network.torus == (2, 4, 4)
    ways = ["torus 0.3", "torus 12.3", "torus 8.3", "torus 4.5", "torus 7.5", "torus 6.5"]
    assert names(network, 0, 5) == ways


def test_a_lost_adapter_leaves_the_other_rails() -> None:
    network = degraded(topology(load_cluster("dgx-h100", 512)), {"adapter-up 0.3": 0.0})
    way = names(network, 3, 11)
    assert "adapter-up 0.3" not in way
    assert sum(name.startswith("adapter-up 0.") for name in way) == 1
    assert names(network, 4, 12) == ["adapter-up 0.4", "adapter-down 1.4"]


def test_a_lost_leaf_sends_its_rail_over_another() -> None:
    network = degraded(topology(load_cluster("dgx-h100", 512)), {"leaf-up 3": 0.0})
    way = names(network, 3, 259)
    assert "leaf-up 4" in way and "leaf-up 3" not in way


def test_a_lost_port_leaves_the_network() -> None:
    network = degraded(topology(load_cluster("dgx-h100", 16)), {"gpu-up 0": 0.0})
    assert names(network, 0, 1)[0] == "adapter-up 0.0"


def test_a_worn_link_slows_what_crosses_it_and_nothing_else() -> None:
    """Half of 47 GB/s for the one flow; its neighbour keeps all."""
    network = topology(load_cluster("dgx-h100", 16))
    worn = degraded(network, {"adapter-up 0.0": 0.5})
    sends = flows(routes(worn, [0, 1], [8, 9]), 47e9)
    assert transfer(sends, worn.capacity_bytes_per_s).end_s == pytest.approx([2.0, 1.0])


def test_an_oversubscribed_spine_halves_what_crosses_it() -> None:
    """Leaves of two servers, 2:1. All 8 GPUs of servers 0 and 1 send over the spine: 16 flows share
    2 x 8 x 47 / 2 GB/s, half of an adapter each; inside the leaf a flow has it whole."""
    cluster = with_fabric(
        "dgx-h100", 32, topology="leaf-spine", leaf_servers=2, oversubscription=Figure(2.0)
    )
    network = topology(cluster)
    source = np.arange(16)
    over = transfer(flows(routes(network, source, source + 16), 47e9), network.capacity_bytes_per_s)
    assert over.end_s == pytest.approx(np.full(16, 2.0))
    full = over.carried_bytes / (2.0 * network.capacity_bytes_per_s)
    assert full[link_number(network, "leaf-up 0")] == pytest.approx(1.0)
    assert full[link_number(network, "adapter-up 0.0")] == pytest.approx(0.5)
    under = transfer(
        flows(routes(network, source[:8], source[:8] + 8), 47e9), network.capacity_bytes_per_s
    )
    assert under.end_s == pytest.approx(np.full(8, 1.0))


def test_servers_of_two_kinds_keep_their_own_rates() -> None:
    """Two DGX H100 beside two HGX H800, adapters of 50 GB/s each, NVLink of 400 GB/s both ways
    where the others have 900: the ports differ, the adapters do not."""
    one, two = load_cluster("dgx-h100", 16), load_cluster("hgx-h800", 16)
    network = topology(replace(one, groups=one.groups + two.groups))
    rate = network.capacity_bytes_per_s
    assert network.gpus == 32
    ports = [rate[link_number(network, f"gpu-up {gpu}")] for gpu in (0, 15, 16, 31)]
    assert ports[0] == ports[1] > 1.5 * ports[2]
    assert ports[2] == ports[3]
    assert rate[link_number(network, "adapter-up 3.7")] == pytest.approx(47e9)
    unlike = load_cluster("aws-p4d", 16)
    with pytest.raises(InputError, match=r"groups\[1\].node.scale_out.adapters: must be that of"):
        topology(replace(one, groups=one.groups + unlike.groups))


def test_copies_to_the_host_have_a_link_of_their_own() -> None:
    network = topology(load_cluster("dgx-h100", 8))
    way = host_routes(network, [3], up=True)
    assert [link_name(network, int(at)) for at in way.link] == ["host-up 3"]
    assert network.capacity_bytes_per_s[way.link[0]] == 50e9


def test_copies_to_the_host_cross_the_port_that_peers_use_where_there_is_no_other() -> None:
    network = topology(load_cluster("l40s-pcie", 8))
    way = host_routes(network, [2, 5], up=False)
    names = [link_name(network, int(at)) for at in way.link]
    assert names == ["host-down 2", "gpu-down 2", "host-down 5", "gpu-down 5"]
    assert way.first.tolist() == [0, 2, 4]


@pytest.mark.parametrize("name", catalogue.names("clusters"))
def test_every_cluster_has_a_way_between_any_two(name: str) -> None:
    node = load_cluster(name, 1).node
    gpus = max(node.accelerators, min(node.scale_up.domain, 64)) * 2
    cluster = load_cluster(name, gpus)
    network = topology(cluster)
    assert (network.capacity_bytes_per_s > 0.0).all()
    target = np.arange(1, gpus)
    for way in (routes(network, 0, 1), routes(network, np.zeros_like(target), target)):
        assert (np.diff(way.first) >= 1).all()
    assert [link_number(network, link_name(network, at)) for at in range(0, network.links, 7)] == [
        *range(0, network.links, 7)
    ]


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"adapter-upp 0.0": 0.5}, r"unknown kind of link 'adapter-upp' \(did you mean 'adapter-"),
        ({"adapter-up 9.0": 0.5}, r"there is no adapter-up 9.0.*\(nearest: 'adapter-up 1.0'\)"),
        ({"gpu-up": 0.5}, r"must be named like 'gpu-up 0' \(what a GPU sends"),
        ({"gpu-up 0": 1.5}, r"gpu-up 0: must be the share .* got 1.5 \(nearest: 1 \(sound\)\)"),
        ({"gpu-up 0": -0.5}, r"got -0.5 \(nearest: 0 \(lost\)\)"),
        ({"gpu-up 0": float("nan")}, r"got nan"),
    ],
)
def test_links_are_worn_by_name(shares: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        degraded(topology(load_cluster("dgx-h100", 16)), shares)


def test_no_way_left_names_both_ends_and_what_is_lost() -> None:
    network = topology(load_cluster("dgx-h100", 16))
    lost = degraded(network, {f"adapter-up 0.{rail}": 0.0 for rail in range(8)})
    with pytest.raises(InputError, match=r"no way is left from GPU 2 to GPU 9: lost adapter-up 0"):
        routes(lost, [2], [9])
    alone = degraded(topology(load_cluster("dgx-h100", 8)), {"gpu-down 1": 0.0})
    with pytest.raises(InputError, match=r"from GPU 0 to GPU 1: lost gpu-down 1"):
        routes(alone, [0], [1])


def test_gpus_that_are_not_there_are_refused() -> None:
    with pytest.raises(InputError, match=r"target\[1\]: must be a GPU .* got 16 \(nearest: 15\)"):
        routes(topology(load_cluster("dgx-h100", 16)), [0, 0], [1, 16])


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        (with_links("tpu-v4", 8, torus=(16, 16, 8)),
         r"scale_up.torus: must multiply to the domain's 4096 .*, got 16 x 16 x 8 = 2048"),
        (with_fabric("frontier", 16, pod_servers=None),
         r"fabric.pod_servers: a dragonfly must have it"),
        (with_fabric("dgx-h100", 16, pod_servers=50),
         r"fabric.pod_servers: must be a multiple of leaf_servers, 32, got 50 \(nearest: 64\)"),
        (with_fabric("dgx-h100", 16, oversubscription=Figure(0.5)),
         r"fabric.oversubscription: must be at least 1, got 0.5 \(nearest: 1\)"),
        (with_fabric("dgx-h100", 16, usable_fraction=Figure(0.0)),
         r"fabric.usable_fraction: must lie above 0 and be at most 1, got 0"),
        (with_links("a10-pcie", 8, pcie_switch_accelerators=3),
         r"pcie_switch_accelerators: must divide the server's 8 accelerators, got 3"),
        (with_links("dgx-h100", 8, bus_bytes_per_s=Figure(0.0)),
         r"scale_up.bus_bytes_per_s: must be positive, got 0"),
        (with_links("tpu-v5e", 136),
         r"gpus: no slice of 136 chips lies in a torus of 16 x 16 \(nearest: 135\)"),
    ],
)  # fmt: skip
def test_impossible_topologies(cluster: Cluster, message: str) -> None:
    with pytest.raises(InputError, match=message):
        topology(cluster)
