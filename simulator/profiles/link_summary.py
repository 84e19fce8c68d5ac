"""What the network of a cluster has and how narrow it is: links by kind, bisection, ways."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from simulator.answers import encoded, head
from simulator.errors import InputError
from simulator.events.network.graph.cuts import bisection
from simulator.events.network.graph.ways import hops
from simulator.events.network.topology import topology
from simulator.events.network.topology_graph import regular_graph
from simulator.hardware.cluster import Cluster
from simulator.hardware.edge_list import Edge, endpoint
from simulator.records import dataclass

MOST_GPUS = 16_384
"""Of a network whose cuts are looked for: one of twice as many takes four times as long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkRow:
    """Equal links, of one direction."""

    kind: str
    bytes_per_s: float
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkSummary:
    """The network of a cluster."""

    cluster: str
    gpus: int
    servers: int
    switches: int
    """Places where ways meet; of a regular fabric equal switches side by side are one."""
    cabled: bool
    """As the profile lists it; else by rule from the fabric."""
    links: tuple[LinkRow, ...]
    bisection_bytes_per_s: float
    """What one half of the servers can send to the other, of a single server one half of its GPUs,
    in the narrowest of halves."""
    bisection_exact: bool
    """All halves were tried; else only neighbours."""
    oversubscription: float | None
    """What the adapters of half the servers send over the bisection; None of a single server."""
    most_hops: int | None
    """Cables between the first server's adapters and the last one's."""


def summary(cluster: Cluster) -> LinkSummary:
    """Count the links of a cluster and find its narrowest halves.

    Raises
    ------
    InputError
        If its profiles describe no network, or one GPU has no halves.
    """
    if cluster.gpus < 2:
        raise InputError(f"cluster {cluster.name}: gpus: must be at least 2, got {cluster.gpus}")
    if cluster.gpus > MOST_GPUS:
        rule = f"must be at most {MOST_GPUS} to have its links counted"
        raise InputError(f"cluster {cluster.name}: gpus: {rule}, got {cluster.gpus}")
    laid = topology(cluster)
    graph = laid.graph or regular_graph(laid)
    gpu, first = graph.parts.gpu, laid.gpus_of_server
    servers = len(first) - 1
    parts = [gpu[first[s] : first[s + 1]] for s in range(servers)]
    if servers == 1:
        parts = [gpu[i : i + 1] for i in range(cluster.gpus)]
    narrow = bisection(graph, parts, laid.capacity_bytes_per_s)
    injected = None
    if laid.has("adapter-up"):
        block = laid.blocks["adapter-up"]
        sent = laid.capacity_bytes_per_s[block.first : block.first + block.size]
        injected = float(sent.sum()) / servers * (servers // 2)
    ends = graph.parts.adapters.ravel().tolist()
    return LinkSummary(
        cluster=cluster.name,
        gpus=cluster.gpus,
        servers=servers,
        switches=int(graph.passes.sum()),
        cabled=bool(cluster.edges),
        links=_rows(laid.blocks, laid.capacity_bytes_per_s),
        bisection_bytes_per_s=narrow.bytes_per_s,
        bisection_exact=narrow.exact,
        oversubscription=None if injected is None else max(injected / narrow.bytes_per_s, 1.0),
        most_hops=hops(graph, ends[0], ends[-1]) if ends else None,
    )


def _rows(blocks: Any, capacity: Any) -> tuple[LinkRow, ...]:
    """Links by kind and rate."""
    rows = []
    for kind, block in blocks.items():
        rates = np.round(capacity[block.first : block.first + block.size], 3)
        for rate, count in zip(*np.unique(rates, return_counts=True), strict=True):
            rows.append(LinkRow(kind=kind, bytes_per_s=float(rate), count=int(count)))
    return tuple(rows)


def links_document(link_summary: LinkSummary) -> dict[str, Any]:
    """The summary as JSON."""
    return head("profiles links") | encoded(link_summary)


def edges_document(edges: tuple[Edge, ...], servers: tuple[str, ...]) -> dict[str, Any]:
    """Edges that were read from a machine, counted by what they join."""
    joined = Counter(
        tuple(sorted((endpoint(edge.end_a).kind, endpoint(edge.end_b).kind))) for edge in edges
    )
    names = {name for edge in edges for name in (edge.end_a, edge.end_b)}
    kinds = Counter(endpoint(name).kind for name in names)
    return head("profiles links") | {
        "servers": list(servers),
        "ends": {kind: kinds[kind] for kind in ("gpu", "adapter", "switch")},
        "edges": {" to ".join(pair): count for pair, count in sorted(joined.items())},
        "cables": sum(edge.count for edge in edges),
    }
