"""From the profiles of a cluster to its links: ports, PCIe switches, adapters, leaves, pods, torus.

What is taken for granted: flows are spread evenly over the equal ways between two switches (ECMP
without collisions, or adaptive routing), so that all links of a leaf to the spine are one link, and
those of a pod to the core another. A port carries what the fastest of all calls was measured to
move, which is less than its data sheet says; an adapter its usable share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from simulator.arrays import Floats, Ints
from simulator.cost.collectives.curves import board
from simulator.errors import InputError
from simulator.events.network.links import Blocks, Seats, Topology
from simulator.events.network.topology_graph import Bundles, Cables, cabled_graph, cables_of
from simulator.hardware.cluster import Cluster, with_edges
from simulator.hardware.fabric import Fabric
from simulator.hardware.node import Node

_MESHED = ("xgmi", "hccs", "roce")
"""Scale-up links that join each accelerator of a server to each other one, without a switch."""


def topology(cluster: Cluster) -> Topology:
    """Lay out the links of a cluster.

    Raises
    ------
    InputError
        If the profiles describe no network: a torus of another size than its domain, a dragonfly
        without groups, a pod that cuts leaves, PCIe switches that do not divide a server.
    """
    check(cluster)
    seats, first = _seats(cluster)
    fabric, node = cluster.fabric, cluster.node
    rails = math.gcd(node.scale_out.adapters, node.accelerators)
    servers = len(first) - 1
    pod = fabric.pod_servers or max(servers, 1)
    links = Blocks()
    cables = cables_of(cluster)
    _inside(links, cluster, seats, cables)
    _between(links, cluster, first, rails, cables)
    capacity = np.concatenate(links.capacity)
    laid = Topology(
        capacity_bytes_per_s=capacity,
        rated_bytes_per_s=capacity,
        latency_s=np.concatenate(links.latency),
        blocks=links.blocks,
        seats=seats,
        gpus_of_server=first,
        rails=rails,
        leaf_servers=fabric.leaf_servers,
        aligned=fabric.topology == "rail-optimised",
        proxies=fabric.topology == "rail-optimised" and node.scale_up.kind == "nvlink",
        pcie=node.scale_up.kind == "pcie",
        pod_servers=pod,
        torus=slice_shape(cluster) if node.scale_up.torus else (),
        torus_wraps_at=node.scale_up.torus_wraps_at,
    )
    if not cluster.edges:
        return laid
    return replace(laid, graph=cabled_graph(laid, cables, node.scale_out.adapters))


def check(cluster: Cluster) -> None:
    """Refuse profiles of which no network can be made."""
    where = f"cluster {cluster.name}"
    with_edges(cluster, cluster.edges, where=where)
    found = [*_of_node(cluster.node), *_of_fabric(cluster.fabric, where)]
    for index, group in enumerate(cluster.groups):
        found += _unlike(group.node, cluster.node, f"{where}: groups[{index}].node")
    if found:
        raise InputError(found)


def _of_node(node: Node) -> Iterator[str]:
    links, where = node.scale_up, f"node {node.name}"
    if links.torus and math.prod(links.torus) != links.domain:
        shape = " x ".join(str(length) for length in links.torus)
        rule = f"must multiply to the domain's {links.domain} accelerators"
        yield f"{where}: scale_up.torus: {rule}, got {shape} = {math.prod(links.torus)}"
    under = links.pcie_switch_accelerators
    if under is not None and node.accelerators % under:
        rule = f"must divide the server's {node.accelerators} accelerators"
        near = math.gcd(node.accelerators, under)
        yield f"{where}: scale_up.pcie_switch_accelerators: {rule}, got {under} (nearest: {near})"
    rates = {
        "scale_up.bus_bytes_per_s": links.bus_bytes_per_s,
        "scale_out.adapter_bytes_per_s": node.scale_out.adapter_bytes_per_s,
    }
    for name, rate in rates.items():
        if not rate > 0.0:
            yield f"{where}: {name}: must be positive, got {float(rate):g}"


def _of_fabric(fabric: Fabric, where: str) -> Iterator[str]:
    pod, leaf = fabric.pod_servers, fabric.leaf_servers
    if fabric.topology == "dragonfly" and pod is None:
        yield f"{where}: fabric.pod_servers: a dragonfly must have it, servers of a group"
    if pod is not None and pod % leaf:
        near = max(round(pod / leaf), 1) * leaf
        rule = f"must be a multiple of leaf_servers, {leaf}"
        yield f"{where}: fabric.pod_servers: {rule}, got {pod} (nearest: {near})"
    for name in ("oversubscription", "pod_oversubscription"):
        if (got := float(getattr(fabric, name))) < 1.0:
            yield f"{where}: fabric.{name}: must be at least 1, got {got:g} (nearest: 1)"
    if not 0.0 < (got := float(fabric.usable_fraction)) <= 1.0:
        rule = "must lie above 0 and be at most 1"
        yield f"{where}: fabric.usable_fraction: {rule}, got {got:g} (nearest: 1)"


def _unlike(node: Node, first: Node, where: str) -> list[str]:
    """What keeps servers from sharing one network with those of the first group."""
    pairs = {
        "accelerators": (node.accelerators, first.accelerators),
        "scale_out.adapters": (node.scale_out.adapters, first.scale_out.adapters),
        "scale_up.kind": (node.scale_up.kind, first.scale_up.kind),
        "scale_up.domain": (node.scale_up.domain, first.scale_up.domain),
    }
    return [
        f"{where}.{name}: must be that of the first group, {wanted!r}, got {got!r}"
        for name, (got, wanted) in pairs.items()
        if got != wanted
    ]


def slice_shape(cluster: Cluster) -> tuple[int, ...]:
    """Axes of the part of a torus that one domain of the run takes: the nearest to a cube.

    Examples
    --------
    >>> from simulator.hardware.cluster import load_cluster
    >>> slice_shape(load_cluster("tpu-v4", 128))
    (4, 4, 8)
    """
    whole, size = cluster.node.scale_up.torus, cluster.domain
    shapes = _shapes(size, whole)
    if not shapes:
        near = next(fewer for fewer in range(size - 1, 0, -1) if _shapes(fewer, whole))
        raise InputError(
            f"cluster {cluster.name}: gpus: no slice of {size} chips lies in a torus of"
            f" {' x '.join(str(length) for length in whole)} (nearest: {near})"
        )
    return min(shapes, key=lambda shape: (sum(shape), shape))


def _shapes(size: int, whole: tuple[int, ...]) -> list[tuple[int, ...]]:
    if len(whole) == 1:
        return [(size,)] if size <= whole[0] else []
    return [
        (length, *rest)
        for length in range(1, min(size, whole[0]) + 1)
        if size % length == 0
        for rest in _shapes(size // length, whole[1:])
    ]


def port_bytes_per_s(cluster: Cluster) -> float:
    """What the scale-up port of an accelerator moves at best, one direction.

    The best of the rates that calls inside a domain were measured (or are taken) to reach.
    """
    here, links = board(cluster), cluster.node.scale_up
    members = np.unique(np.minimum(2 ** np.arange(1, 15), max(links.domain, 2)))
    rings = (here.rates(name, members)["rate"].max() for name in ("all_gather", "all_reduce"))
    exchange = here.rates("all_to_all", members)["rate"].max()
    return float(max(*rings, exchange, links.send_bytes_per_s))


def _seats(cluster: Cluster) -> tuple[Seats, Ints]:
    """Fill servers and domains in the order of ranks, as groups are placed."""
    per_server, gpu = cluster.node.accelerators, np.arange(cluster.gpus, dtype=np.int64)
    server, local = gpu // per_server, gpu % per_server
    rails = math.gcd(cluster.node.scale_out.adapters, per_server)
    under = cluster.node.scale_up.pcie_switch_accelerators or per_server
    seats = Seats(
        server=server,
        domain=gpu // cluster.domain,
        local=gpu % cluster.domain,
        rail=local * rails // per_server,
        switch=server * (per_server // under) + local // under,
    )
    first = np.append(np.arange(0, cluster.gpus, per_server), cluster.gpus).astype(np.int64)
    return seats, first


def _by_gpu(cluster: Cluster, rate: Callable[[Cluster], float]) -> Floats:
    """A rate of each GPU: that of its group of servers."""
    parts = [replace(cluster, groups=(group,)) for group in cluster.groups]
    return np.repeat([rate(part) for part in parts], [part.gpus for part in parts])


def _inside(links: Blocks, cluster: Cluster, seats: Seats, cables: Cables) -> None:
    """Links inside a domain, and between accelerators and host memory."""
    up, gpus, size = cluster.node.scale_up, cluster.gpus, cluster.domain
    hops = cluster.library.ring_hop_s
    hop_s = float(hops.get(up.kind, hops.get("nvlink", hops["network"])).simple)
    rate = _by_gpu(cluster, port_bytes_per_s)
    if cables.wired:
        links.add_named("wire", _both_ways(cables.wires), hop_s)
    elif up.torus:
        ways = 2 * len(up.torus)
        each = max(float(up.bus_bytes_per_s) / ways, float(up.send_bytes_per_s))
        links.add("torus", (gpus, ways), each, hop_s)
    else:
        links.add("gpu-up", (gpus,), rate, hop_s)
        links.add("gpu-down", (gpus,), rate)
    if up.kind in _MESHED and size > 1 and not cables.wired:
        wires = max(float(up.bandwidth_bytes_per_s) / max(up.domain - 1, 1), up.send_bytes_per_s)
        links.add("pair", (gpus // size, size, size), wires)
    if up.kind == "pcie" and up.pcie_switch_accelerators and not cables.wired:
        first = np.unique(seats.switch, return_index=True)[1]
        links.add("pcie-up", (len(first),), rate[first])
        links.add("pcie-down", (len(first),), rate[first])
    if all(group.node.host_bytes_per_s is not None for group in cluster.groups):
        host = _by_gpu(cluster, lambda part: float(part.node.host_bytes_per_s or 0.0))
        links.add("host-up", (gpus,), host)
        links.add("host-down", (gpus,), host)


def _both_ways(bundles: Bundles, share: float = 1.0) -> dict[str, float]:
    """Rates of cables by name, one direction after the other."""
    return {
        f"{a}>{b}": bundle.bytes_per_s * share
        for ends, bundle in bundles.items()
        for a, b in (ends, ends[::-1])
    }


def _between(links: Blocks, cluster: Cluster, first: Ints, rails: int, cables: Cables) -> None:
    """Links among servers: adapters, then switches by rule or as they are cabled."""
    fabric, servers = cluster.fabric, len(first) - 1
    if servers < 2:
        return
    rate = _by_gpu(cluster, lambda part: part.network_bytes_per_s_per_gpu)
    of_server = rate[first[:-1]] * cluster.node.accelerators
    network = cluster.library.ring_hop_s.get("network")
    hop_s = 0.0 if network is None else float(network.simple)
    of_adapter: Floats = of_server / rails
    if cluster.edges:
        usable = float(fabric.usable_fraction)
        adapters = cluster.node.scale_out.adapters
        of_adapter = cables.adapter_bytes_per_s(servers, rails, adapters) * usable
    links.add("adapter-up", (servers, rails), of_adapter, hop_s + fabric.extra_hop_s)
    links.add("adapter-down", (servers, rails), of_adapter)
    if cluster.edges:
        links.add_named("trunk", _both_ways(cables.trunks, usable))
    else:
        _switches(links, fabric, of_server, rails)


def _switches(links: Blocks, fabric: Fabric, of_server: Floats, rails: int) -> None:
    """Links above the adapters of a regular fabric: leaves, pods or groups."""
    pod = fabric.pod_servers or len(of_server)
    over, leaf = float(fabric.oversubscription), fabric.leaf_servers
    leaves = rails if fabric.topology == "rail-optimised" else 1
    fly = fabric.topology == "dragonfly"
    of_leaf = np.repeat(_of_switch(of_server, leaf) / leaves, leaves) / (1.0 if fly else over)
    links.add("leaf-up", (len(of_leaf),), of_leaf)
    links.add("leaf-down", (len(of_leaf),), of_leaf)
    of_pod = _of_switch(of_server, pod) / over
    if (pods := len(of_pod)) < 2:
        return
    if fly:
        links.add("global", (pods, pods), of_pod / (pods - 1))
    else:
        links.add("pod-up", (pods,), of_pod / float(fabric.pod_oversubscription))
        links.add("pod-down", (pods,), of_pod / float(fabric.pod_oversubscription))


def _of_switch(of_server: Floats, servers: int) -> Floats:
    """What a full switch of so many servers takes in; one that a run fills in part is as large."""
    start = np.arange(0, len(of_server), servers)
    present = np.minimum(len(of_server) - start, servers)
    return np.asarray(np.add.reduceat(of_server, start) * servers / present)
