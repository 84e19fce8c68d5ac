"""Collectives as flows: hand-worked times, the closed forms, published rates, shared links."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from simulator.cost.collectives import calls as closed
from simulator.cost.collectives.curves import board
from simulator.cost.collectives.nccl.algorithm import CallShape
from simulator.cost.collectives.nccl.algorithms import ALGORITHMS as NCCL
from simulator.errors import InputError
from simulator.events.network.collective_hops import double_tree
from simulator.events.network.collective_phases import ALGORITHMS, modelled, unfold
from simulator.events.network.flows import joined
from simulator.events.network.links import Topology, degraded, link_name, link_number
from simulator.events.network.topology import topology
from simulator.events.network.transfer import Transfer, transfer
from simulator.files import Figure
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.layout.placement import Group

GB = 1e9
ADAPTER = 0.92 * 25.0
"""GB/s of an adapter of dgx-a100 that collectives reach."""


@cache
def machine(name: str, gpus: int) -> tuple[Cluster, Topology]:
    cluster = load_cluster(name, gpus)
    return cluster, topology(cluster)


def moved(
    cluster: Cluster, network: Topology, operation: str, members: object, size: float, **more: str
) -> float:
    """Seconds of the bytes alone, without latency."""
    table = unfold(cluster, network, operation, members, size, **more)
    still = replace(table, lag_s=np.zeros(len(table.lag_s)))
    return transfer(still, network.capacity_bytes_per_s).makespan_s


EVERY = np.arange(64)[None]
COLUMNS = np.arange(64).reshape(8, 8).T
"""One GPU of each of 8 servers: 8 groups, each on a rail of its own."""


def test_a_ring_by_hand() -> None:
    """8 groups of 8 servers, an adapter each: 2 x 7/8 of 23 GB over 23 GB/s is 1.75 s; half of it
    for a gather."""
    at = machine("dgx-a100", 64)
    assert moved(*at, "all_reduce", COLUMNS, ADAPTER * GB) == pytest.approx(1.75)
    assert moved(*at, "reduce_scatter", COLUMNS, ADAPTER * GB) == pytest.approx(0.875)


def test_a_ring_over_servers_takes_all_adapters() -> None:
    """64 GPUs: 8 rings, each an adapter of every server: 2 x 63/64 of 184 GB over 8 x 23 GB/s."""
    at = machine("dgx-a100", 64)
    assert moved(*at, "all_reduce", EVERY, 8 * ADAPTER * GB) == pytest.approx(2 * 63 / 64)


def test_rings_over_servers_keep_to_rails() -> None:
    """Each of the 8 rings leaves a server by the rail on which it enters the next: it never takes a
    leaf's uplink nor hands its bytes to a neighbour for that; 8 hops of the network and 7 x 8 of
    NVLink make 8 x 2 adapters and 2 x 56 ports, all loaded alike."""
    cluster, network = machine("dgx-a100", 64)
    table = unfold(cluster, network, "all_reduce", EVERY, GB)
    for ring in range(8):
        links = table.link[table.first[ring] : table.first[ring + 1]]
        kinds = [link_name(network, int(at)).split()[0] for at in links]
        count = {kind: kinds.count(kind) for kind in set(kinds)}
        assert count == {"gpu-up": 56, "gpu-down": 56, "adapter-up": 8, "adapter-down": 8}
    assert table.share == pytest.approx(np.ones(len(table.share)))


def test_a_ring_waits_for_its_hops() -> None:
    """8 members of a server: 14 hops; over 8 servers: 14 hops of the network, 112 of NVLink."""
    cluster, network = machine("dgx-a100", 64)
    hops = cluster.library.ring_hop_s
    near, far = float(hops["nvlink"].simple), float(hops["network"].simple)
    inside = unfold(cluster, network, "all_reduce", np.arange(8)[None], GB)
    assert inside.lag_s.tolist() == pytest.approx([14 * near])
    across = unfold(cluster, network, "all_reduce", EVERY, GB)
    assert across.lag_s.tolist() == pytest.approx([14 * far + 112 * near])


def test_a_tree_by_hand() -> None:
    """Of 4 servers the one inside a tree sends half of the bytes up and half to each of two below,
    and is a leaf of the other, where it sends half up: 2 x 23 GB over its adapter, 2 s. Two servers
    send half up in one tree and half down in the other: 1 s."""
    at = machine("dgx-a100", 64)
    assert moved(*at, "all_reduce", COLUMNS[:, :4], ADAPTER * GB, algorithm="tree") == (
        pytest.approx(2.0)
    )
    assert moved(*at, "all_reduce", COLUMNS[:, :2], ADAPTER * GB, algorithm="tree") == (
        pytest.approx(1.0)
    )


@pytest.mark.parametrize("servers", [2, 3, 4, 5, 8, 13, 64])
def test_two_trees_span_all_servers_and_share_the_work(servers: int) -> None:
    """Each is a tree; nobody has more than two below it; with an even number of servers each is a
    leaf of one of the two."""
    child, parent = (edges.reshape(2, -1) for edges in double_tree(servers))
    for kids, ups in zip(child, parent, strict=True):
        assert sorted({*range(servers)} - set(kids.tolist())) == [*set(ups) - set(kids)]
        above = dict(zip(kids.tolist(), ups.tolist(), strict=True))
        for server in range(servers):
            steps = 0
            while server in above and steps <= servers:
                server, steps = above[server], steps + 1
            assert steps <= np.ceil(np.log2(servers)) + 1
        assert np.bincount(ups, minlength=servers).max() <= 2
    if servers % 2 == 0:
        inside = [set(ups.tolist()) for ups in parent]
        assert not inside[0] & inside[1]
    else:
        assert len(set(parent[0].tolist()) & set(parent[1].tolist())) <= 1


def test_phases_inside_and_between_servers_by_hand() -> None:
    """Reduce-scatter of 8 in a server, trees of 8 servers on an eighth each, gather of 8. A server
    inside a tree sends half up and half to each of two below, and half up in the other tree."""
    cluster, network = machine("dgx-a100", 64)
    size = 8 * ADAPTER * GB
    rates = {
        name: float(board(cluster).rates(name, np.array(8))["rate"])
        for name in ("reduce_scatter", "all_gather")
    }
    inside = sum(7 / 8 * size / rate for rate in rates.values())
    found = moved(cluster, network, "all_reduce", EVERY, size, algorithm="nvls_tree")
    assert found == pytest.approx(inside + 2.0)


def test_a_modelled_task_takes_the_links_of_its_algorithm() -> None:
    """The same call as one task of 4 s: rings load all adapters alike; of trees, the adapters of
    servers inside one carry twice a rank's share, those of its two roots the share once."""
    cluster, network = machine("dgx-a100", 64)
    moves = {
        name: modelled(cluster, network, EVERY, 8 * ADAPTER * GB, 4.0, algorithm=name)
        for name in ("ring", "nvls_tree")
    }
    for name, expected in (
        ("ring", [2 * 63 / 64] * 8),
        # inside a tree: half up and half to each of two below, and half up as a leaf of the other;
        # its root: half to the one below, and half up as a leaf of the other
        ("nvls_tree", [1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.0]),
    ):
        found = transfer(moves[name], network.capacity_bytes_per_s)
        assert found.end_s == pytest.approx([4.0])
        carried = [
            found.carried_bytes[link_number(network, f"adapter-up {server}.0")] / ADAPTER / GB
            for server in range(8)
        ]
        assert carried == pytest.approx(expected)


def test_pat_halves_the_distance_with_every_step() -> None:
    """Of 8 servers: 4 away an eighth of the bytes, then 2 away two, then 1 away four; a scatter the
    other way round. Three hops of the network, and 7/8 of the bytes over each adapter."""
    cluster, network = machine("dgx-a100", 64)
    size = ADAPTER * GB
    far_s = float(cluster.library.ring_hop_s["network"].simple)
    for operation, steps in (
        ("all_gather", [(1, 4), (2, 2), (4, 1)]),
        ("reduce_scatter", [(4, 7), (2, 6), (1, 4)]),
    ):
        table = unfold(cluster, network, operation, COLUMNS[:1], size, algorithm="pat")
        assert table.lag_s.tolist() == pytest.approx([far_s] * 3)
        for step, (shares, target) in enumerate(steps):
            sent = table.size_bytes[table.step == step]
            assert sent.tolist() == pytest.approx([shares / 8 * size] * 8)
            at = int(np.flatnonzero(table.step == step)[0])
            links = table.link[table.first[at] : table.first[at + 1]]
            ways = {link_name(network, int(link)) for link in links}
            assert {"adapter-up 0.0", f"adapter-down {target}.0"} <= ways
        assert moved(cluster, network, operation, COLUMNS, size, algorithm="pat") == (
            pytest.approx(7 / 8)
        )


@pytest.mark.parametrize("servers", [2, 3, 5, 8, 13])
def test_pat_takes_the_steps_and_bytes_of_its_closed_form(servers: int) -> None:
    cluster, network = machine("dgx-a100", 104)
    columns = np.arange(servers * 8).reshape(servers, 8).T
    (pat,) = (algorithm for algorithm in NCCL if algorithm.word == "pat")
    group = Group(size=np.array(servers), local=np.array(1))
    shape = CallShape.of("all_gather", group)
    size = np.asarray(5e9)
    said = pat.adapter_bytes(cluster.library, shape, size) / closed.domain_rate(cluster, group)
    assert moved(cluster, network, "all_gather", columns, 5e9, algorithm="pat") == (
        pytest.approx(float(said), rel=0.01)
    )
    table = unfold(cluster, network, "all_gather", columns[:1], 5e9, algorithm="pat")
    hop_s = pat.far_hop_s(cluster.library, "simple")
    assert table.lag_s.sum() == pytest.approx(float(pat.far_hops(shape)) * hop_s)


def test_several_members_to_a_server_go_round_a_ring_instead_of_pat() -> None:
    cluster, network = machine("dgx-a100", 64)
    tables = [
        unfold(cluster, network, "all_gather", EVERY, GB, algorithm=word)
        for word in ("pat", "ring")
    ]
    assert tables[0].link.tolist() == tables[1].link.tolist()


def test_an_all_to_all_by_hand() -> None:
    """64 GPUs send 1/64 of 23 GB to each: 56/64 over the adapter, more than 7/64 over NVLink."""
    at = machine("dgx-a100", 64)
    once = moved(*at, "all_to_all", EVERY, ADAPTER * GB, algorithm="direct")
    assert once == pytest.approx(56 / 64)
    pairs = moved(*at, "all_to_all", COLUMNS, ADAPTER * GB, algorithm="direct")
    assert pairs == pytest.approx(7 / 8)


CALLS = [
    ("all_reduce", EVERY, Group(size=np.array(64), local=np.array(8))),
    ("all_reduce", COLUMNS, Group(size=np.array(8), local=np.array(1))),
    ("reduce_scatter", COLUMNS, Group(size=np.array(8), local=np.array(1))),
    ("all_gather", EVERY, Group(size=np.array(64), local=np.array(8))),
    ("all_to_all", EVERY, Group(size=np.array(64), local=np.array(8))),
    ("all_to_all", COLUMNS, Group(size=np.array(8), local=np.array(1))),
    ("all_reduce", EVERY.reshape(16, 4), Group(size=np.array(4), local=np.array(4))),
]


@pytest.mark.parametrize("over", [1.0, 3.0])
@pytest.mark.parametrize("name", ["dgx-a100", "aws-p4de", "grand-teton-h100"])
@pytest.mark.parametrize(("operation", "members", "group"), CALLS)
def test_large_calls_take_what_the_closed_forms_say(
    name: str, over: float, operation: str, members: object, group: Group
) -> None:
    """Where nothing shares, all groups of a kind at once, 1 TB so that starts and ramps vanish;
    leaves of two servers, over-subscribed or not. In-switch reduction is left to the closed form;
    rings of several servers where it would be chosen keep the rate that rings have."""
    cluster = load_cluster(name, 64)
    links = replace(cluster.node.scale_up, nvls_bytes_per_s=None)
    group_ = replace(cluster.groups[0], node=replace(cluster.node, scale_up=links))
    fabric = replace(cluster.fabric, leaf_servers=2, oversubscription=Figure(over))
    cluster = replace(cluster, groups=(group_,), fabric=fabric)
    algorithm = "direct" if operation == "all_to_all" else "ring"
    found = moved(cluster, topology(cluster), operation, members, 1e12, algorithm=algorithm)
    said = getattr(closed, f"{operation}_s")(cluster, 1e12, group)
    assert found == pytest.approx(float(said), rel=0.03)


def test_published_rates_of_large_all_reduces() -> None:
    """Bus bandwidth, 2 (n - 1) / n of the bytes over the time: 128 H200 on p5en reach 370 GB/s
    (awsome-distributed-training), 16 A100 over 4 HDR adapters a server 89.5 (nccl-tests 152)."""
    at = machine("aws-p5en", 128)
    bus = 2 * 127 / 128 * GB / moved(*at, "all_reduce", np.arange(128)[None], GB)
    assert bus == pytest.approx(369.9e9, rel=0.04)
    cluster = load_cluster("dgx-a100", 16)
    out = replace(cluster.node.scale_out, adapters=4)
    group = replace(cluster.groups[0], node=replace(cluster.node, scale_out=out))
    four = replace(cluster, groups=(group,))
    bus = 2 * 15 / 16 * GB / moved(four, topology(four), "all_reduce", np.arange(16)[None], GB)
    assert bus == pytest.approx(89.5e9, rel=0.04)


def test_a_ring_scales_as_published() -> None:
    """Patarasuk and Yuan 2009: 2 (n - 1) / n of the bytes over each link, whatever the number of
    members, so that the time of ever more servers tends to twice the bytes and no further."""
    times = []
    for servers in (2, 4, 8, 16, 32, 64):
        at = machine("dgx-a100", servers * 8)
        columns = np.arange(servers * 8).reshape(servers, 8).T
        times.append(moved(*at, "all_reduce", columns, ADAPTER * GB))
    assert times == pytest.approx([1.0, 1.5, 1.75, 1.875, 1.9375, 1.96875])


def test_two_jobs_on_one_spine_slow_each_other() -> None:
    """Leaves of one server, 4:1. Two rings of 2 servers each over 4 servers: each has its leaves to
    itself. Interleaved with a third job on the same servers, two rings share each leaf."""
    cluster = load_cluster("dgx-a100", 32)
    cluster = replace(
        cluster,
        fabric=replace(
            cluster.fabric, topology="leaf-spine", leaf_servers=1, oversubscription=Figure(4.0)
        ),
    )
    network = topology(cluster)
    rows = np.arange(32).reshape(4, 8)
    jobs = [rows[[0, 1], :4].reshape(1, 8), rows[[2, 3], :4].reshape(1, 8)]
    rival = rows[[0, 1], 4:].reshape(1, 8)

    def play(*groups: object) -> Transfer:
        tables = [unfold(cluster, network, "all_reduce", group, GB) for group in groups]
        return transfer(joined(*tables), network.capacity_bytes_per_s)

    alone, apart, shared = play(jobs[0]), play(*jobs), play(*jobs, rival)
    assert apart.makespan_s == pytest.approx(alone.makespan_s)
    slow = shared.step_end_s - shared.start_s[0]
    alone_s = alone.makespan_s - alone.start_s[0]
    assert slow == pytest.approx([2 * alone_s, alone_s, 2 * alone_s])


def test_one_worn_adapter_slows_its_ring_only() -> None:
    """Of 8 rings, one over an adapter at half its rate: 3.5 s instead of 1.75."""
    cluster, network = machine("dgx-a100", 64)
    worn = degraded(network, {"adapter-up 2.5": 0.5})
    table = unfold(cluster, worn, "all_reduce", COLUMNS, ADAPTER * GB)
    found = transfer(table, worn.capacity_bytes_per_s)
    took = found.end_s - found.start_s
    assert took == pytest.approx([1.75] * 5 + [3.5] + [1.75] * 2)


def test_a_lost_adapter_is_passed_by() -> None:
    """The ring of rail 5 leaves server 2 over another rail, which now carries two rings."""
    cluster, network = machine("dgx-a100", 64)
    lost = degraded(network, {"adapter-up 2.5": 0.0})
    table = unfold(cluster, lost, "all_reduce", COLUMNS, ADAPTER * GB)
    took = np.sort(transfer(table, lost.capacity_bytes_per_s).end_s - table.lag_s[0])
    assert took == pytest.approx([1.75] * 6 + [3.5] * 2)


def test_a_modelled_task_takes_its_time_alone_and_longer_in_company() -> None:
    """A call of 2 s that needs half of its adapters, twice on the same links: still 2 s each;
    four of them: 4 s."""
    cluster, network = machine("dgx-a100", 64)
    half = ADAPTER * GB / 1.75  # moves at half of an adapter's rate when it takes 2 s
    task = modelled(cluster, network, COLUMNS, half, 2.0)
    capacity = network.capacity_bytes_per_s
    assert transfer(task, capacity).end_s == pytest.approx(np.full(8, 2.0))
    assert transfer(joined(task, task), capacity).end_s == pytest.approx(np.full(16, 2.0))
    four = transfer(joined(*[task] * 4), capacity)
    assert four.end_s == pytest.approx(np.full(32, 4.0))


def test_uneven_groups_are_rings_in_the_given_order() -> None:
    """Three ranks of one server and one of another: a plain ring of 4 over one adapter."""
    at = machine("dgx-a100", 64)
    members = np.array([[0, 1, 2, 8]])
    assert moved(*at, "all_gather", members, ADAPTER * GB) == pytest.approx(0.75)


def test_every_algorithm_of_nccl_has_its_hops() -> None:
    assert {algorithm.word for algorithm in NCCL} | {"direct"} == set(ALGORITHMS)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_group_of_one_moves_nothing(algorithm: str) -> None:
    operation = {"direct": "all_to_all", "pat": "all_gather"}.get(algorithm, "all_reduce")
    cluster, network = machine("dgx-a100", 64)
    table = unfold(cluster, network, operation, [[3], [4]], GB, algorithm=algorithm)
    assert transfer(table, network.capacity_bytes_per_s).makespan_s == 0.0


def test_a_torus_ring_takes_both_directions_of_its_path() -> None:
    """Four chips along an axis of four, 2 of the 6 links of a chip: half of the bytes each way."""
    cluster, network = machine("tpu-v4", 64)
    link = network.capacity_bytes_per_s[link_number(network, "torus 0.0")]
    members = np.array([[0, 16, 32, 48]])
    found = moved(cluster, network, "all_gather", members, float(link))
    assert found == pytest.approx(0.75 / 2)


@pytest.mark.parametrize(
    ("arguments", "more", "message"),
    [
        (("all_reduse", [[0, 1]], 1.0), {}, r"unknown collective.*did you mean 'all_reduce'"),
        (("all_reduce", [[0, 1]], 1.0), {"algorithm": "rings"}, r"did you mean 'ring'"),
        (("all_gather", [[0, 1]], 1.0), {"algorithm": "tree"}, r"does all_gather.*nearest: ring"),
        (("all_reduce", [[0, 0]], 1.0), {}, r"members\[0\]: must not name a GPU twice"),
        (("all_reduce", [[0, 64]], 1.0), {}, r"must be GPUs of the cluster, 0 to 63, got 64"),
        (("all_reduce", [0, 1], 1.0), {}, r"members: must be groups of GPUs"),
        (("all_reduce", [[0, 1]], -1.0), {}, r"size_bytes: must not be negative, got -1.0"),
    ],
)  # fmt: skip
def test_impossible_calls(arguments, more, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=message):
        unfold(*machine("dgx-a100", 64), *arguments, **more)


def test_a_modelled_task_must_take_time() -> None:
    with pytest.raises(InputError, match=r"seconds\[0\]: must be positive, got 0.0"):
        modelled(*machine("dgx-a100", 64), [[0, 1]], 1.0, 0.0)
