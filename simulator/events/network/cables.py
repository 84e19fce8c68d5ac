"""The cables that a user lists, sorted by what they join: inside servers, adapters, switches.

An edge lies inside a server, or a domain of several, where a GPU reaches it without an adapter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

import numpy as np

from simulator.arrays import Floats
from simulator.hardware.cluster import Cluster
from simulator.hardware.edge_list import Edge, endpoint, of_servers
from simulator.records import dataclass


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
    inside = _inside(edges)
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


def _inside(edges: Iterable[Edge]) -> set[str]:
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
