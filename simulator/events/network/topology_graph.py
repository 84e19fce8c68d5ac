"""The links of a cluster as a graph: of a regular fabric by rule, of a listed one by its cables.

Both have the GPUs and the adapters of each rail as nodes. Where servers are not wired by the list,
their inside follows the same rule. Arcs bear the numbers of links, so that what is found on the
graph can be held against what arithmetic finds on the regular fabric.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.events.network.graph.arcs import Graph, GraphBuilder, Parts
from simulator.events.network.links import Topology
from simulator.hardware.cluster import Cluster
from simulator.hardware.edge_list import Edge, endpoint, of_servers
from simulator.records import dataclass


def regular_graph(topology: Topology) -> Graph:
    """The graph of a regular fabric: leaf, spine and core switches, groups of a dragonfly, tori."""
    made, parts = _begun(topology)
    _inside(made, topology, parts)
    _to_adapters(made, topology, parts, np.ones(parts.adapters.shape, dtype=np.bool_))
    if parts.adapters.size:
        _leaves(made, topology, parts)
    return made.graph(parts)


def cabled_graph(topology: Topology, cables: Cables, adapters: int) -> Graph:
    """The graph of cables; `topology` has their links, `adapters` is how many a server has."""
    made, parts = _begun(topology)
    rail_of = _Rails(made, topology, parts, adapters)
    if cables.wired:
        _cables(made, topology, rail_of, "wire", cables.wires)
    else:
        _inside(made, topology, parts)
    if parts.adapters.size:
        wired = {rail_of.node(end) for ends in cables.wires for end in ends}
        _to_adapters(made, topology, parts, ~np.isin(parts.adapters, list(wired)))
        for (adapter, other), bundle in cables.adapters.items():
            _adapter_cable(made, topology, rail_of, (adapter, other), bundle.count)
        _cables(made, topology, rail_of, "trunk", cables.trunks)
    return made.graph(parts)


def _begun(topology: Topology) -> tuple[GraphBuilder, Parts]:
    """A graph of GPUs and adapters."""
    made, first = GraphBuilder(), topology.gpus_of_server
    gpu = [
        made.node(f"gpu {server}.{number - first[server]}", passes=False)
        for number, server in enumerate(topology.seats.server.tolist())
    ]
    servers = len(first) - 1 if topology.has("adapter-up") else 0
    adapters = [
        [made.node(f"adapter {server}.{rail}", passes=False) for rail in range(topology.rails)]
        for server in range(servers)
    ]
    shape = (servers, topology.rails)
    return made, Parts(
        gpu=np.array(gpu, dtype=np.int64),
        adapters=np.array(adapters, dtype=np.int64).reshape(shape),
    )


def _inside(made: GraphBuilder, topology: Topology, parts: Parts) -> None:
    """Links among the GPUs of a domain."""
    if topology.has("torus"):
        _torus(made, topology, parts)
        return
    t, seats = topology, topology.seats
    for number, node in enumerate(parts.gpu.tolist()):
        up, down = int(t.at("gpu-up", number)), int(t.at("gpu-down", number))
        if t.has("pair"):
            made.arc(node, made.node(f"out of GPU {number}"), up)
            made.arc(made.node(f"into GPU {number}"), node, down)
        elif t.has("pcie-up"):
            made.both(node, made.node(f"PCIe switch {seats.switch[number]}"), up, down)
        else:
            made.both(node, made.node(_switch_of(t, number)), up, down)
    if t.has("pair"):
        _mesh(made, topology)
    if t.has("pcie-up"):
        for switch, number in zip(*np.unique(seats.switch, return_index=True), strict=True):
            above = made.node(f"host bridge {seats.server[number]}")
            way = (int(t.at("pcie-up", switch)), int(t.at("pcie-down", switch)))
            made.both(made.node(f"PCIe switch {switch}"), above, *way)


def _switch_of(topology: Topology, gpu: int) -> str:
    """What the port of a GPU leads to."""
    if topology.pcie:
        return f"host bridge {topology.seats.server[gpu]}"
    return f"domain {topology.seats.domain[gpu]}"


def _mesh(made: GraphBuilder, topology: Topology) -> None:
    """Wires from each GPU of a domain to each other one."""
    domains, size, _ = topology.blocks["pair"].shape
    for domain in range(domains):
        for a in range(size):
            for b in set(range(size)) - {a}:
                out = made.node(f"out of GPU {domain * size + a}")
                into = made.node(f"into GPU {domain * size + b}")
                made.arc(out, into, int(topology.at("pair", domain, a, b)))


def _torus(made: GraphBuilder, topology: Topology, parts: Parts) -> None:
    """Links between neighbours; an axis is a ring where it is long enough."""
    shape, seats = topology.torus, topology.seats
    size = int(np.prod(shape))
    for chip in range(topology.gpus):
        place = np.array(np.unravel_index(seats.local[chip], shape))
        for axis, length in enumerate(shape):
            wraps = length > 2 and length % topology.torus_wraps_at == 0
            for way, step in enumerate((1, -1)):
                beside = place.copy()
                beside[axis] += step
                if not (0 <= beside[axis] < length or wraps):
                    continue
                local = int(np.ravel_multi_index(tuple(beside % shape), shape))
                link = int(topology.at("torus", chip, 2 * axis + way))
                other = seats.domain[chip] * size + local
                made.arc(int(parts.gpu[chip]), int(parts.gpu[other]), link)


def _to_adapters(
    made: GraphBuilder, topology: Topology, parts: Parts, joined: NDArray[np.bool_]
) -> None:
    """Joints between GPUs and those rails' adapters that no listed wire leads to.

    As in ``routes``: through the PCIe switch that the adapter hangs on; where rails are aligned
    and GPUs have fast links from the GPUs beside it only; else from all GPUs of the server.
    """
    t, seats = topology, topology.seats
    each = int(t.gpus_of_server[1]) // t.rails
    for server, rail in np.argwhere(joined).tolist():
        adapter = int(parts.adapters[server, rail])
        gpus = np.arange(t.gpus_of_server[server], t.gpus_of_server[server + 1])
        if t.pcie and t.has("gpu-up"):
            beside = int(gpus[rail * each])
            above = (
                f"PCIe switch {seats.switch[beside]}" if t.has("pcie-up") else _switch_of(t, beside)
            )
            made.both(adapter, made.node(above))
            continue
        for gpu in gpus[seats.rail[gpus] == rail] if t.proxies else gpus:
            made.both(adapter, int(parts.gpu[gpu]))


def _leaves(made: GraphBuilder, topology: Topology, parts: Parts) -> None:
    """Switches of a regular fabric above the adapters."""
    t = topology
    above: dict[int, int] = {}
    for server, row in enumerate(parts.adapters.tolist()):
        for rail, adapter in enumerate(row):
            unit = server // t.leaf_servers
            leaf = unit * t.rails + rail if t.aligned else unit
            way = (int(t.at("adapter-up", server, rail)), int(t.at("adapter-down", server, rail)))
            made.both(adapter, made.node(f"leaf {leaf}"), *way)
            above[leaf] = server // t.pod_servers
    for leaf, pod in above.items():
        way = (int(t.at("leaf-up", leaf)), int(t.at("leaf-down", leaf)))
        made.both(made.node(f"leaf {leaf}"), made.node(f"pod {pod}"), *way)
    pods = sorted(set(above.values()))
    for pod in pods:
        if t.has("pod-up"):
            way = (int(t.at("pod-up", pod)), int(t.at("pod-down", pod)))
            made.both(made.node(f"pod {pod}"), made.node("core"), *way)
        for other in pods if t.has("global") else ():
            if other != pod:
                link = int(t.at("global", pod, other))
                made.arc(made.node(f"pod {pod}"), made.node(f"pod {other}"), link)


class _Rails:
    """Nodes of ends of cables: the adapters of a rail are one."""

    def __init__(self, made: GraphBuilder, topology: Topology, parts: Parts, adapters: int) -> None:
        self.made, self.topology, self.parts, self.adapters = made, topology, parts, adapters

    def place(self, name: str) -> tuple[int, int]:
        """Server and rail of an adapter."""
        end = endpoint(name)
        return end.server, end.index * self.topology.rails // self.adapters

    def node(self, name: str) -> int:
        """The node of an end."""
        end = endpoint(name)
        if end.kind == "adapter" and self.parts.adapters.size:
            return int(self.parts.adapters[self.place(name)])
        return self.made.node(name, passes=end.kind == "switch")


def _cables(
    made: GraphBuilder, topology: Topology, rails: _Rails, kind: str, bundles: Bundles
) -> None:
    """Cables with a link each way, which lie in the order of the block of their kind."""
    for number, (ends, bundle) in enumerate(bundles.items()):
        a, b = (rails.node(end) for end in ends)
        link = topology.blocks[kind].first + 2 * number
        made.arc(a, b, link, bundle.count)
        made.arc(b, a, link + 1, bundle.count)


def _adapter_cable(
    made: GraphBuilder, topology: Topology, rails: _Rails, ends: tuple[str, str], count: int
) -> None:
    """Cables of an adapter: its own link each way, whatever switches it is joined to."""
    there = rails.node(ends[1])
    if endpoint(ends[1]).kind == "adapter":
        between = made.node(f"{ends[0]}, {ends[1]}")
        _adapter_arcs(made, topology, rails, ends[1], between, count)
        there = between
    _adapter_arcs(made, topology, rails, ends[0], there, count)


def _adapter_arcs(
    made: GraphBuilder, topology: Topology, rails: _Rails, adapter: str, switch: int, count: int
) -> None:
    node, place = rails.node(adapter), rails.place(adapter)
    made.arc(node, switch, int(topology.at("adapter-up", *place)), count)
    made.arc(switch, node, int(topology.at("adapter-down", *place)), count)


@dataclass(kw_only=True, slots=True)
class Bundle:
    """All cables between two ends."""

    bytes_per_s: float = 0.0
    """Of all of them, one direction."""
    count: int = 0


Bundles = dict[tuple[str, str], Bundle]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cables:
    """Bundles by their two ends; a bundle stands once, whichever end is first."""

    wires: Bundles = field(default_factory=dict)
    """Inside servers and domains: among GPUs, their switches, adapters."""
    adapters: Bundles = field(default_factory=dict)
    """Between an adapter, the first end, and a switch or another adapter."""
    trunks: Bundles = field(default_factory=dict)
    """Between switches of the network."""

    @property
    def wired(self) -> bool:
        """Whether the insides of servers are listed, too."""
        return bool(self.wires)

    def adapter_bytes_per_s(self, servers: int, rails: int, adapters: int) -> Floats:
        """Rate of all cables of the adapters of each rail, (servers, rails)."""
        rate = np.zeros((servers, rails))
        for ends, bundle in self.adapters.items():
            for end in map(endpoint, ends):
                if end.kind == "adapter":
                    rate[end.server, end.index * rails // adapters] += bundle.bytes_per_s
        return rate


def cables_of(cluster: Cluster) -> Cables:
    """Sort the edges of a cluster that its servers use."""
    edges = of_servers(cluster.edges, cluster.nodes)
    inside = _cabled_inside(edges)
    sorted_cables = Cables()
    for edge in edges:
        ends = edge.end_a, edge.end_b
        if endpoint(ends[0]).kind != "adapter":
            ends = edge.end_b, edge.end_a
        if inside & set(ends):
            _add(sorted_cables.wires, edge)
        elif endpoint(ends[0]).kind == "adapter":
            _add(sorted_cables.adapters, edge, ends)
        else:
            _add(sorted_cables.trunks, edge)
    return sorted_cables


def _add(bundles: Bundles, edge: Edge, ends: tuple[str, str] | None = None) -> None:
    a, b = ends or (edge.end_a, edge.end_b)
    bundle = bundles.setdefault((b, a) if (b, a) in bundles else (a, b), Bundle())
    bundle.bytes_per_s += edge.bytes_per_s * edge.count
    bundle.count += edge.count


def _cabled_inside(edges: Iterable[Edge]) -> set[str]:
    """GPUs, and what they reach without an adapter."""
    beside: dict[str, list[str]] = {}
    for edge in edges:
        beside.setdefault(edge.end_a, []).append(edge.end_b)
        beside.setdefault(edge.end_b, []).append(edge.end_a)
    reached = [name for name in beside if endpoint(name).kind == "gpu"]
    inside: set[str] = set()
    while reached:
        if (name := reached.pop()) not in inside and endpoint(name).kind != "adapter":
            inside.add(name)
            reached += beside[name]
    return inside
