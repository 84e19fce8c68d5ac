"""A network as a graph: ways, cuts and halves by hand; regular fabrics as their folded road."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.events.network.graph.cuts import bisection, min_cut
from simulator.events.network.graph.ways import hops
from simulator.events.network.links import Topology, degraded, link_name, link_number
from simulator.events.network.routes import routes
from simulator.events.network.topology import topology
from simulator.events.network.topology_graph import regular_graph
from simulator.events.sharing.contended import Network, contended
from simulator.files import Figure
from simulator.hardware.cluster import Cluster, load_cluster, with_edges
from simulator.hardware.edge_list import Edge
from simulator.layout.layouts import Layouts

GB = 1e9


def cables(*lines: tuple[str, str, float, int]) -> tuple[Edge, ...]:
    return tuple(Edge(end_a=a, end_b=b, bytes_per_s=rate, count=n) for a, b, rate, n in lines)


def cabled(name: str, gpus: int, edges: tuple[Edge, ...], **fabric: object) -> Topology:
    """The links of a cluster with these cables, whose adapters reach all of their rate."""
    cluster = load_cluster(name, gpus)
    sound = replace(cluster.fabric, usable_fraction=type(cluster.fabric.usable_fraction)(1.0))
    cluster = replace(cluster, fabric=replace(sound, **fabric))  # type: ignore[arg-type]
    return topology(with_edges(cluster, edges, where="test"))


def ways_of(network: Topology, source: int, target: int) -> dict[str, float]:
    found = routes(network, source, target)
    return {
        link_name(network, int(link)): float(share)
        for link, share in zip(found.link, found.share, strict=True)
    }


def servers_of(network: Topology) -> list[np.ndarray]:
    assert network.graph is not None
    gpu, first = network.graph.parts.gpu, network.gpus_of_server
    return [gpu[first[s] : first[s + 1]] for s in range(len(first) - 1)]


def halves(network: Topology) -> float:
    assert network.graph is not None
    found = bisection(network.graph, servers_of(network), network.capacity_bytes_per_s)
    assert found.exact
    return found.bytes_per_s


# gh200: one GPU and one adapter to a server, so that a graph of servers is what it looks like.
DUMBBELL = cables(
    ("adapter 0.0", "left", 40 * GB, 1), ("adapter 1.0", "left", 40 * GB, 1),
    ("adapter 2.0", "right", 40 * GB, 1), ("adapter 3.0", "right", 40 * GB, 1),
    ("left", "right", 10 * GB, 2),
)  # fmt: skip


def test_a_dumbbell_is_as_wide_as_its_bar() -> None:
    network = cabled("gh200", 4, DUMBBELL)
    bar = {"adapter-up 0.0": 1.0, "trunk left>right": 1.0, "adapter-down 2.0": 1.0}
    assert ways_of(network, 0, 2) == bar
    assert ways_of(network, 1, 0) == {"adapter-up 1.0": 1.0, "adapter-down 0.0": 1.0}
    assert halves(network) == 20 * GB  # not the 80 of {0, 2} and {1, 3}
    graph = network.graph
    assert graph is not None
    left, right = graph.parts.gpu[:1], graph.parts.gpu[2:3]
    cut = min_cut(graph, left, right, network.capacity_bytes_per_s)
    assert cut.bytes_per_s == 20 * GB
    assert [link_name(network, int(graph.link[arc])) for arc in cut.arcs] == ["trunk left>right"]
    one = min_cut(graph, left, graph.parts.gpu[1:2], network.capacity_bytes_per_s)
    assert one.bytes_per_s == 40 * GB  # its adapter
    assert hops(graph, graph.parts.adapters[0, 0], graph.parts.adapters[2, 0]) == 3


def fat_tree(up: float) -> tuple[Edge, ...]:
    """Two leaves of two servers, two spines; every leaf with one cable to each of them."""
    down = [(f"adapter {s}.0", f"leaf {s // 2}", 40 * GB, 1) for s in range(4)]
    trunks = [(f"leaf {i}", f"spine {j}", up, 1) for i in range(2) for j in range(2)]
    return cables(*down, *trunks)


def test_a_fat_tree_spreads_over_its_spines() -> None:
    network = cabled("gh200", 4, fat_tree(20 * GB))  # 80 down, 40 up: 2:1
    assert ways_of(network, 0, 3) == {
        "adapter-up 0.0": 1.0,
        "trunk leaf 0>spine 0": 0.5,
        "trunk leaf 0>spine 1": 0.5,
        "trunk spine 0>leaf 1": 0.5,
        "trunk spine 1>leaf 1": 0.5,
        "adapter-down 3.0": 1.0,
    }
    assert halves(network) == 40 * GB
    assert halves(cabled("gh200", 4, fat_tree(40 * GB))) == 80 * GB  # non-blocking


def test_parallel_cables_are_ways_of_their_own() -> None:
    edges = (*fat_tree(20 * GB)[:4], *cables(
        ("leaf 0", "spine 0", 20 * GB, 3), ("leaf 0", "spine 1", 20 * GB, 1),
        ("leaf 1", "spine 0", 20 * GB, 1), ("leaf 1", "spine 1", 20 * GB, 1),
    ))  # fmt: skip
    found = ways_of(cabled("gh200", 4, edges), 0, 2)
    assert found["trunk leaf 0>spine 0"] == found["trunk spine 0>leaf 1"] == 0.75
    assert found["trunk leaf 0>spine 1"] == found["trunk spine 1>leaf 1"] == 0.25


def test_a_lost_trunk_is_gone_around() -> None:
    network = cabled("gh200", 4, fat_tree(20 * GB))
    lost = degraded(network, {"trunk leaf 0>spine 1": 0.0})
    assert ways_of(lost, 0, 3) == {
        "adapter-up 0.0": 1.0,
        "trunk leaf 0>spine 0": 1.0,
        "trunk spine 0>leaf 1": 1.0,
        "adapter-down 3.0": 1.0,
    }
    assert ways_of(lost, 3, 0)["trunk leaf 1>spine 1"] == 0.5  # the other direction is sound
    both = degraded(network, {"trunk leaf 0>spine 0": 0.0, "trunk leaf 0>spine 1": 0.0})
    with pytest.raises(InputError, match="no way is left from GPU 0 to GPU 2"):
        routes(both, 0, 2)


def test_a_torus_of_four_gpus() -> None:
    around = [(0, 1), (1, 3), (3, 2), (2, 0)]
    wires = cables(*((f"gpu 0.{a}", f"gpu 0.{b}", 25 * GB, 1) for a, b in around))
    network = cabled("gb200-nvl72", 4, wires)
    assert ways_of(network, 0, 1) == {"wire gpu 0.0>gpu 0.1": 1.0}
    assert ways_of(network, 0, 3) == {  # two ways of two hops, half each
        "wire gpu 0.0>gpu 0.1": 0.5,
        "wire gpu 0.1>gpu 0.3": 0.5,
        "wire gpu 0.0>gpu 0.2": 0.5,
        "wire gpu 0.2>gpu 0.3": 0.5,
    }
    assert network.graph is not None
    chips = [network.graph.parts.gpu[i : i + 1] for i in range(4)]
    found = bisection(network.graph, chips, network.capacity_bytes_per_s)
    assert (found.bytes_per_s, found.half) == (50 * GB, (0, 1))
    cut = min_cut(network.graph, chips[0], chips[3], network.capacity_bytes_per_s)
    assert cut.bytes_per_s == 50 * GB


def test_wires_of_a_server_take_the_place_of_its_ports() -> None:
    ports = [(f"gpu 0.{i}", "nvswitch", 450 * GB, 1) for i in range(8)]
    network = cabled("dgx-h100", 8, cables(*ports))
    assert not network.has("gpu-up")
    assert ways_of(network, 2, 5) == {"wire gpu 0.2>nvswitch": 1.0, "wire nvswitch>gpu 0.5": 1.0}


def by_rule(network: Topology) -> Topology:
    return replace(network, graph=regular_graph(network))


def loads(network: Topology, source: np.ndarray, target: np.ndarray, **more: bool) -> np.ndarray:
    ways = routes(network, source, target, **more)
    load = np.zeros(network.links)
    np.add.at(load, ways.link, ways.share * (1.0 + np.repeat(source % 7, np.diff(ways.first))))
    return load / network.capacity_bytes_per_s * GB


REGULAR = [
    ("dgx-h100", 512, {}),
    ("dgx-h100", 64, {"topology": "fat-tree", "leaf_servers": 4}),
    ("dgx-h100", 256, {"leaf_servers": 4, "pod_servers": 8}),
    ("dgx-h100", 256, {"topology": "dragonfly", "leaf_servers": 4, "pod_servers": 8}),
    ("aws-p4d", 32, {}),
    ("gb200-nvl72", 144, {}),
    ("mi300x-8", 32, {}),
    ("a10-pcie", 32, {}),
    ("frontier", 64, {}),
    ("gcp-a3-mega", 64, {}),
    ("hls-gaudi2", 32, {}),
    ("rtx4090-pcie", 8, {}),
]


def regular(name: str, gpus: int, fabric: dict[str, object]) -> Cluster:
    cluster = load_cluster(name, gpus)
    return replace(cluster, fabric=replace(cluster.fabric, **fabric))  # type: ignore[arg-type]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "gpus", "fabric"), REGULAR)
@pytest.mark.parametrize("spread", [False, True])
def test_regular_fabrics_are_their_graph(
    name: str, gpus: int, fabric: dict[str, object], spread: bool
) -> None:
    network = topology(regular(name, gpus, fabric))
    draw = np.random.default_rng(19)
    source, target = draw.integers(0, gpus, (2, 300))
    folded = loads(network, source, target, spread=spread)
    general = loads(by_rule(network), source, target, spread=spread)
    np.testing.assert_allclose(general, folded, rtol=1e-9, atol=0.0)


def test_pcie_switches_are_their_graph() -> None:
    cluster = load_cluster("a10-pcie", 16)
    up = replace(cluster.node.scale_up, pcie_switch_accelerators=4)
    group = replace(cluster.groups[0], node=replace(cluster.node, scale_up=up))
    network = topology(replace(cluster, groups=(group,)))
    source, target = np.divmod(np.arange(256), 16)
    np.testing.assert_allclose(
        loads(by_rule(network), source, target), loads(network, source, target), rtol=1e-9
    )


@pytest.mark.parametrize("chips", [8, 64])
def test_a_torus_is_its_graph_where_all_send_to_all(chips: int) -> None:
    # Arithmetic goes axis by axis, the graph any shortest way: of one flow they differ, of all not.
    network = topology(load_cluster("tpu-v4", chips))
    source, target = np.divmod(np.arange(chips * chips), chips)
    one = np.zeros_like(source)  # equal weights
    folded, general = (loads_of(road, source, target, one) for road in (network, by_rule(network)))
    by_axis = [load.reshape(chips, -1).sum(axis=0) for load in (folded, general)]
    np.testing.assert_allclose(by_axis[1], by_axis[0], rtol=1e-9)
    if chips == 64:  # a torus of 4 x 4 x 4, all of whose chips are alike
        np.testing.assert_allclose(general, folded, rtol=1e-9)


def loads_of(
    network: Topology, source: np.ndarray, target: np.ndarray, weight: np.ndarray
) -> np.ndarray:
    ways = routes(network, source, target)
    each = np.repeat(1.0 + weight, np.diff(ways.first))
    return np.bincount(ways.link, weights=ways.share * each, minlength=network.links)


def superpod(servers: int, unit: int, spines: int) -> tuple[Edge, ...]:
    """Rail-optimised: adapter i of the servers of a unit on leaf i, each leaf to all spines."""
    lines = [
        (f"adapter {s}.{rail}", f"leaf {s // unit}.{rail}", 50 * GB, 1)
        for s in range(servers)
        for rail in range(8)
    ]
    lines += [
        (f"leaf {u}.{rail}", f"spine {spine}", 25 * GB, unit * 2 // spines)
        for u in range(servers // unit)
        for rail in range(8)
        for spine in range(spines)
    ]
    return cables(*lines)


def test_a_cabled_superpod_is_the_regular_one() -> None:
    cluster = load_cluster("dgx-h100", 128)
    cluster = replace(cluster, fabric=replace(cluster.fabric, leaf_servers=4))
    folded = topology(cluster)
    spread_out = topology(with_edges(cluster, superpod(16, 4, 4), where="test"))
    source, target = np.divmod(np.arange(128 * 128), 128)
    by_kind = {}
    for network in (folded, spread_out):
        ways = routes(network, source, target)
        load = np.bincount(ways.link, weights=ways.share, minlength=network.links)
        filled = load / network.capacity_bytes_per_s
        for kind, block in network.blocks.items():
            by_kind.setdefault(kind, filled[block.first : block.first + block.size])
    np.testing.assert_allclose(by_kind["trunk"].max(), by_kind["leaf-up"].max(), rtol=1e-9)
    np.testing.assert_allclose(by_kind["trunk"].min(), by_kind["leaf-down"].min(), rtol=1e-9)
    for kind in ("gpu-up", "adapter-up", "adapter-down"):
        one, other = (network.blocks[kind] for network in (folded, spread_out))
        np.testing.assert_array_equal(
            folded.capacity_bytes_per_s[one.first : one.first + one.size],
            spread_out.capacity_bytes_per_s[other.first : other.first + other.size],
        )
    assert spread_out.graph is not None
    graph = spread_out.graph
    found = bisection(graph, servers_of(spread_out)[::4], spread_out.capacity_bytes_per_s)
    assert found.bytes_per_s == pytest.approx(2 * 8 * 47 * GB)  # of 4 servers 2 send, at 0.94


def test_links_of_cables_have_their_ends_as_names() -> None:
    network = cabled("gh200", 4, DUMBBELL)
    number = link_number(network, "trunk left>right")
    assert link_name(network, number) == "trunk left>right"
    with pytest.raises(InputError, match="must be a cable's ends as 'A>B', got 'trunk left>rigth'"):
        link_number(network, "trunk left>rigth")
    half = degraded(network, {"trunk left>right": 0.5})
    assert half.capacity_bytes_per_s[number] == 10 * GB


def test_a_run_takes_the_first_servers() -> None:
    assert len(servers_of(cabled("gh200", 2, DUMBBELL))) == 2


def test_edges_that_do_not_join_the_servers() -> None:
    beyond = (*DUMBBELL, *cables(("adapter 3.1", "left", GB, 1)))
    with pytest.raises(InputError, match=r"got 'adapter 3\.1' \(nearest: 'adapter 3\.0'\)"):
        cabled("gh200", 4, beyond)
    with pytest.raises(InputError, match="must list the 6 servers of the run, got 4"):
        cabled("gh200", 6, DUMBBELL)
    with pytest.raises(InputError, match=r"no cable leads to 'adapter 2\.0'"):
        cabled("gh200", 4, (*DUMBBELL[:2], *DUMBBELL[3:]))
    with pytest.raises(InputError) as error:
        cabled("gh200", 4, DUMBBELL[:-1])
    assert error.value.problems == (
        "test: edges: no way leads from the GPUs of server 0 to those of server 2",
        "test: edges: no way leads from the GPUs of server 0 to those of server 3",
    )
    with pytest.raises(InputError, match=r"'gpu 0\.3' to the first GPU of its domain"):
        pair = [("gpu 0.0", "gpu 0.1"), ("gpu 0.0", "gpu 0.2"), ("gpu 0.3", "lonely")]
        cabled("gb200-nvl72", 4, cables(*((a, b, GB, 1) for a, b in pair)))


def test_a_step_on_cables_is_that_on_the_regular_fabric() -> None:
    # Four to one above leaves of two servers; each leaf with one cable to each of two spines.
    cluster = load_cluster("dgx-h100", 64)
    narrow = Figure(4.0, "assumed", "of this test")
    fabric = replace(cluster.fabric, oversubscription=narrow, leaf_servers=2)
    cluster = replace(cluster, fabric=fabric)
    lines = [
        (f"adapter {s}.{r}", f"leaf {s // 2}.{r}", 50 * GB, 1) for s in range(8) for r in range(8)
    ]
    lines += [
        (f"leaf {u}.{r}", f"spine {k}", 12.5 * GB, 1)
        for u in range(4)
        for r in range(8)
        for k in range(2)
    ]
    wired = with_edges(cluster, cables(*lines), where="test")
    crowded = Network(contention=True)
    for layout in ({"tp": 8, "dp": 8}, {"tp": 8, "pp": 2, "dp": 4}, {"dp": 64}):
        table = Layouts.of(**layout, global_batch=64)  # type: ignore[arg-type]
        rule, listed = (contended(table, c, crowded, experts=False) for c in (cluster, wired))
        assert listed.slowdown == pytest.approx(dict(rule.slowdown), rel=1e-9)
        fullest = (rule.links["leaf-up"].utilisation, listed.links["trunk"].utilisation)
        assert fullest[0] == pytest.approx(fullest[1], rel=1e-9)
    worn = Network(contention=True, link_degradation={"trunk leaf 0.0>spine 0": 0.0})
    table = Layouts.of(tp=8, dp=8, global_batch=64)  # a ring of each rail fills its leaves
    assert contended(table, cluster, crowded, experts=False).slowdown["dp"] == 1.0
    around = contended(table, wired, worn, experts=False)
    assert around.slowdown["dp"] == pytest.approx(2.0, rel=1e-9)  # one of two cables is left
