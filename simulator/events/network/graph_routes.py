"""Ways of flows over the graph of a network, where links are not found by arithmetic.

A flow inside a domain takes shortest ways between its GPUs. One that leaves it takes the adapters
that the collective library chooses, as on a regular fabric, and between these whatever shortest
ways the network has.
"""

from __future__ import annotations

import numpy as np

from simulator.arrays import Bools, Floats, Ints
from simulator.events.network.graph.arcs import Graph
from simulator.events.network.graph.ways import Ways, ways
from simulator.events.network.links import BETWEEN_SWITCHES, Topology, rail_choices

Entries = tuple[Ints, Ints, Floats]


def near_ways(
    topology: Topology, start: Ints, end: Ints, flows: Ints, *, spread: bool
) -> tuple[Entries, Ints]:
    """Links of the flows `flows`, between GPUs of a domain; and those without a way."""
    graph = _graph(topology)
    gpu, inside = graph.parts.gpu, _sound(topology, graph, inside=True)
    nearest = ways(graph, gpu[start[flows]], gpu[end[flows]], sound=inside)
    entries = _entries(graph, nearest, flows)
    if spread and topology.has("pair"):  # rings of many channels use all wires of a mesh alike
        block = topology.blocks["pair"]
        ports = (entries[1] < block.first) | (entries[1] >= block.first + block.size)
        entries = (entries[0][ports], entries[1][ports], entries[2][ports])
    return entries, flows[~nearest.found]


def ways_across(topology: Topology, start: Ints, end: Ints, flows: Ints) -> tuple[Entries, Ints]:
    """Links of the flows `flows` over adapters; and those without a way."""
    graph, rail, done = _graph(topology), topology.seats.rail, list[Entries]()
    left = flows
    if not graph.parts.adapters.size:
        return _none(), left
    for out, into in rail_choices(topology, rail[start], rail[end]):
        if not len(left):
            break
        entries, sound = _over_rails(topology, start[left], end[left], out[left], into[left])
        flow, link, share = entries
        kept = sound[flow]
        done.append((left[flow[kept]], link[kept], share[kept]))
        left = left[~sound]
    columns = zip(*done, strict=True)
    flow, link, share = (np.concatenate(column) for column in columns)
    return (flow, link, share), left


def _over_rails(
    topology: Topology, start: Ints, end: Ints, out: Ints, into: Ints
) -> tuple[Entries, Bools]:
    """Links of all flows, out by one rail and in by another; and which have a way."""
    graph, server = _graph(topology), topology.seats.server
    gpu, adapters = graph.parts.gpu, graph.parts.adapters
    leaving, arriving = adapters[server[start], out], adapters[server[end], into]
    hands, takes = _beside(topology, start, out), _beside(topology, end, into)
    inside, outside = (_sound(topology, graph, inside=where) for where in (True, False))
    legs = [
        ways(graph, gpu[start], gpu[hands], sound=inside),
        ways(graph, gpu[hands], leaving, sound=inside),
        ways(graph, leaving, arriving, sound=outside),
        ways(graph, arriving, gpu[takes], sound=inside),
        ways(graph, gpu[takes], gpu[end], sound=inside),
    ]
    flows = np.arange(len(start))
    parts = [_entries(graph, leg, flows) for leg in legs]
    flow, link, share = (np.concatenate(column) for column in zip(*parts, strict=True))
    return (flow, link, share), np.logical_and.reduce([leg.found for leg in legs])


def _beside(topology: Topology, gpu: Ints, rail: Ints) -> Ints:
    """The GPU that sends over a rail's adapter what this one hands it; itself, where it can."""
    if not topology.proxies:
        return gpu
    per_rail = int(topology.gpus_of_server[1]) // topology.rails
    beside = topology.gpus_of_server[topology.seats.server[gpu]] + rail * per_rail
    return np.where(topology.seats.rail[gpu] == rail, gpu, beside)


def _sound(topology: Topology, graph: Graph, *, inside: bool) -> Bools:
    """Arcs that are not lost, of those inside servers and to their adapters, or of the network."""
    network = np.zeros(topology.links + 1, dtype=np.bool_)  # the last entry is that of joints, -1
    for kind in ("adapter-up", "adapter-down", *BETWEEN_SWITCHES):
        if topology.has(kind):
            block = topology.blocks[kind]
            network[block.first : block.first + block.size] = True
    sound = graph.capacity(topology.capacity_bytes_per_s) > 0.0
    return np.asarray(sound & (network[graph.link] != inside), dtype=np.bool_)


def _entries(graph: Graph, paths: Ways, flows: Ints) -> Entries:
    """Links of the ways, without joints."""
    link = graph.link[paths.arc]
    limits = link >= 0
    return flows[paths.pair[limits]], link[limits], paths.share[limits]


def _none() -> Entries:
    none = np.zeros(0, dtype=np.int64)
    return none, none, np.zeros(0)


def _graph(topology: Topology) -> Graph:
    assert topology.graph is not None
    return topology.graph
