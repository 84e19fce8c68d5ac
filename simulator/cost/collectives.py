"""Seconds of one collective on a process group, by NCCL's own latency and bandwidth model.

A group of `size` ranks has `local` members in each scale-up domain. A ring's bus bandwidth
is the lesser of the domain's links and of the adapters that the group's local members bring
along (all groups of a domain run at once, so each member brings its own share). Protocols
and algorithms compete; the fastest is taken, as NCCL's tuner does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.cost.routing import reached_places
from simulator.hardware.cluster import Cluster
from simulator.hardware.fabric import HopLatency
from simulator.layout.placement import Group

__all__ = [
    *("all_gather_s", "all_reduce_s", "all_to_all_s", "broadcasts_s", "dispatch_s"),
    *("domain_bus", "send_s", "slowdown_share"),
]

Floats = NDArray[np.float64]

_PROTOCOLS = ("ll", "ll128", "simple")


def domain_bus(cluster: Cluster, members: Any) -> Floats:
    """Bus bandwidth of a large ring over `members` ranks of one scale-up domain, in bytes/s.

    Two members reach ``pair_fraction`` of what the whole domain does (fewer channels); the gap
    closes with the square of the group size, as nccl-tests runs at 2, 4 and 8 ranks show.
    """
    links = cluster.node.scale_up
    gap = (1.0 - links.pair_fraction) * (2.0 / np.maximum(members, 2)) ** 2
    return np.asarray(links.bus_bytes_per_s * (1.0 - gap))


def all_gather_s(cluster: Cluster, size_bytes: Any, group: Group) -> Floats:
    """Time of an all-gather (or reduce-scatter) of `size_bytes` in total, in seconds.

    Ring: ``n - 1`` steps, ``(n - 1) / n`` of the bytes over every link (NCCL tuning.cc).
    """
    n, spans = group.size, _spans(group)
    network_steps = np.where(spans > 1, spans - 1, 0)
    best: Floats = np.full(np.broadcast_shapes(np.shape(size_bytes), n.shape), np.inf)
    for protocol in _PROTOCOLS:
        latency = _ring_latency(cluster, protocol, n - 1, network_steps)
        rate = _bus(cluster, group, protocol)
        best = np.minimum(best, latency + size_bytes * (n - 1) / n / rate)
    return np.where(n > 1, best, 0.0)


def all_reduce_s(cluster: Cluster, size_bytes: Any, group: Group) -> Floats:
    """Time of an all-reduce of `size_bytes`, in seconds: ring, tree or in-switch, the fastest.

    Ring: ``2 (n - 1)`` steps, twice the bytes of a gather. Tree: ``2 (local - 1 + log2(domains))``
    hops at a share of the ring's bandwidth. In-switch (NVLS): inside one domain only.
    """
    n, spans = group.size, _spans(group)
    network_steps = np.where(spans > 1, 2 * (spans - 1), 0)
    moved = 2.0 * size_bytes * (n - 1) / n
    best: Floats = np.full(np.broadcast_shapes(np.shape(size_bytes), n.shape), np.inf)
    for protocol in _PROTOCOLS:
        rate = _bus(cluster, group, protocol)
        ring = _ring_latency(cluster, protocol, 2 * (n - 1), network_steps) + moved / rate
        tree = _tree_latency(cluster, protocol, group) + moved / (
            rate * cluster.library.tree_fraction
        )
        best = np.minimum(best, np.minimum(ring, tree))
    switch = cluster.node.scale_up.nvls_bytes_per_s
    if switch is not None:
        reachable = (spans == 1) & (n >= cluster.library.nvls_smallest_group)
        in_switch = cluster.library.nvls_base_s + moved / switch
        best = np.where(reachable, np.minimum(best, in_switch), best)
    return np.where(n > 1, best, 0.0)


def broadcasts_s(cluster: Cluster, size_bytes: Any, group: Group) -> Floats:
    """Time in which every rank of a group broadcasts its share of `size_bytes` in turn, in seconds.

    Ring broadcast: a pipeline of ``n - 1`` hops, so every share pays the latency of the whole ring
    (NCCL tuning.cc: as many hops as a gather) and then moves at the bus bandwidth.
    """
    n, spans = group.size, _spans(group)
    network_steps = np.where(spans > 1, spans - 1, 0)
    best: Floats = np.full(np.broadcast_shapes(np.shape(size_bytes), n.shape), np.inf)
    for protocol in _PROTOCOLS:
        latency = _ring_latency(cluster, protocol, n - 1, network_steps)
        best = np.minimum(best, n * latency + size_bytes / _bus(cluster, group, protocol))
    return np.where(n > 1, best, 0.0)


def all_to_all_s(cluster: Cluster, sent_bytes: Any, group: Group) -> Floats:
    """Time of an all-to-all in which each rank sends `sent_bytes` in total, its own share included.

    The parts for domain mates and for the others move at once, over links and over adapters.
    """
    n, local = group.size, group.local
    links, library = cluster.node.scale_up, cluster.library
    near = sent_bytes * (local - 1) / n / links.all_to_all_bytes_per_s
    outside = cluster.network_bytes_per_s_per_gpu / cluster.fabric.oversubscription
    far = sent_bytes * (n - local) / n / outside
    peers = (local - 1) * library.all_to_all_peer_s[links.kind]
    peers = peers + (n - local) * library.all_to_all_peer_s["network"]
    return np.where(n > 1, library.ring_base_s.ll + peers + np.maximum(near, far), 0.0)


def dispatch_s(
    cluster: Cluster, token_bytes: Any, copies: int, group: Group, *, experts: int,
    groups: int = 1, top_groups: int = 1, load: Any = 1.0,
) -> Floats:  # fmt: skip
    """Time of sending tokens to `copies` experts spread evenly over the group, in seconds.

    DeepEP: a token crosses the network once for every other domain that has one of its experts,
    and the domain's links once for every rank there that has one (``cost/routing.py`` has how many
    that are). A combine takes the road back.

    Parameters
    ----------
    token_bytes : array_like
        Bytes of the tokens of one rank, each once.
    copies, experts : int
        Experts per token, of how many.
    groups, top_groups : int
        Groups of experts, and how many of them a token may take its experts from.
    load : array_like
        Tokens of the fullest rank over the mean: it gets so many more, at most every token once.
    """
    n, local, spans = group.size, group.local, _spans(group)
    links, library = cluster.node.scale_up, cluster.library
    routed = {"picks": copies, "experts": experts, "groups": groups, "top_groups": top_groups}
    domains = np.minimum(load * reached_places(spans, **routed), spans)
    ranks = np.minimum(load * reached_places(n, **routed), n)
    outside = cluster.network_bytes_per_s_per_gpu / cluster.fabric.oversubscription
    far = token_bytes * domains * (spans - 1) / spans / outside
    near = token_bytes * ranks * (local - 1) / local / links.all_to_all_bytes_per_s
    peers = (local - 1) * library.all_to_all_peer_s[links.kind]
    peers = peers + (spans - 1) * library.all_to_all_peer_s["network"]
    return np.where(n > 1, library.ring_base_s.ll + peers + np.maximum(near, far), 0.0)


def send_s(cluster: Cluster, size_bytes: Any, crosses_network: Any) -> Floats:
    """Time of one point-to-point send between neighbours, in seconds."""
    links, base = cluster.node.scale_up, cluster.library.send_base_s
    near = base[links.kind] + size_bytes / links.send_bytes_per_s
    rate = cluster.network_bytes_per_s_per_gpu / cluster.fabric.oversubscription
    far = base["network"] + size_bytes / rate
    return np.where(crosses_network, far, near)


def slowdown_share(cluster: Cluster) -> float:
    """Share of the compute rate that kernels lose while a collective runs beside them."""
    units = float(cluster.accelerator.compute_units)
    return min(float(cluster.library.compute_units) / units, 1.0)


def _spans(group: Group) -> NDArray[Any]:
    """Scale-up domains that a group touches."""
    return -(-group.size // group.local)


def _bus(cluster: Cluster, group: Group, protocol: str) -> Floats:
    """Bus bandwidth of a ring over the group with one protocol, in bytes/s."""
    library = cluster.library
    inside = domain_bus(cluster, group.local)
    outside = group.local * cluster.network_bytes_per_s_per_gpu / cluster.fabric.oversubscription
    crosses = group.size > group.local
    alone = group.local == 1
    bus = np.where(crosses, np.where(alone, outside, np.minimum(inside, outside)), inside)
    if protocol == "ll128":
        return bus * library.ll128_fraction
    if protocol == "ll":
        caps = library.ll_cap_bytes_per_s
        return np.minimum(
            bus * library.ll_fraction, np.where(crosses, caps["network"], caps["domain"])
        )
    return bus


def _hop(latency: HopLatency, protocol: str) -> float:
    return float(getattr(latency, protocol))


def _ring_latency(cluster: Cluster, protocol: str, steps: Any, network_steps: Any) -> Floats:
    """Start-up and hops of a ring: base + (steps - network) x link hop + network x network hop."""
    library, kind = cluster.library, cluster.node.scale_up.kind
    near = _hop(library.ring_hop_s[kind], protocol)
    far = _hop(library.ring_hop_s["network"], protocol)
    base = _hop(library.ring_base_s, protocol)
    return np.asarray(base + (steps - network_steps) * near + network_steps * far)


def _tree_latency(cluster: Cluster, protocol: str, group: Group) -> Floats:
    """Start-up and hops of a double tree: base + 2 ((local - 1) near + log2(domains) far)."""
    library, kind = cluster.library, cluster.node.scale_up.kind
    near = _hop(library.tree_hop_s[kind], protocol)
    far = _hop(library.tree_hop_s["network"], protocol)
    depth = (group.local - 1) * near + np.ceil(np.log2(_spans(group))) * far
    return np.asarray(_hop(library.tree_base_s, protocol) + 2.0 * depth)
