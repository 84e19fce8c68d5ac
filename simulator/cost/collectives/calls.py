"""Seconds of one collective on a process group: NCCL's choice, then what the chosen kernel takes.

A group of `size` ranks has `local` members in each scale-up domain. The library chooses by its own
tables (`simulator.cost.collectives.nccl_choice`); what the choice takes inside a domain is a curve
fitted to measurements, and what it takes among domains follows from hops and from the adapters that
the group's local members bring along (all groups of a domain run at once, so each member brings its
own share).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.cost.collectives.curves import Board, board, curve_s
from simulator.cost.collectives.nccl_choice import (
    COLLNET,
    LL,
    LL128,
    NVLS,
    NVLS_TREE,
    PAT,
    TREES,
    choose,
    spans,
)
from simulator.hardware.cluster import Cluster
from simulator.layout.keys import distinct_rows
from simulator.layout.placement import Group

__all__ = [
    "adapter_bytes",
    "all_gather_s",
    "all_reduce_s",
    "all_to_all_s",
    "broadcasts_s",
    "domain_rate",
    "exchange_rate",
    "library_units",
    "reduce_scatter_s",
    "send_rate",
    "send_s",
    "slowdown_share",
]


_BULK = np.where(LL128, 3, 1)
"""By code: regime of a call that is not small."""


def all_gather_s(cluster: Cluster, size_bytes: Any, group: Group) -> Floats:
    """Time of an all-gather of `size_bytes` in total, in seconds.

    Ring: ``n - 1`` steps, ``(n - 1) / n`` of the bytes over every link.
    """
    return _ring_s(cluster, "all_gather", size_bytes, group)


def reduce_scatter_s(
    cluster: Cluster, size_bytes: Any, group: Group, *, integer: Any = False
) -> Floats:
    """Time of a reduce-scatter of `size_bytes` in total, in seconds: as a gather, and adds up."""
    return _ring_s(cluster, "reduce_scatter", size_bytes, group, integer=integer)


def all_reduce_s(
    cluster: Cluster, size_bytes: Any, group: Group, *, integer: Any = False
) -> Floats:
    """Time of an all-reduce of `size_bytes`, in seconds: over rings, trees or in the switch.

    Ring: ``2 (n - 1)`` steps, twice the bytes of a gather. Tree: ``2 (local - 1 + log2(domains))``
    hops. Beyond the domain a tree moves ``2 (domains - 1) / domains`` of the bytes over the
    adapters of a domain (two trees, each node a leaf of one of them), switches that reduce
    move them once; neither gets all of an adapter.
    """
    return _ring_s(cluster, "all_reduce", size_bytes, group, integer=integer)


def _ring_s(
    cluster: Cluster, operation: str, size_bytes: Any, group: Group, *, integer: Any = False
) -> Floats:
    """Price each distinct call once: a million layouts reduce a few hundred sizes.

    Nothing to send, or nobody to send it to, is no call.
    """
    shape = np.broadcast_shapes(np.shape(size_bytes), np.shape(group.size), np.shape(integer))
    if not (np.any(size_bytes) and np.any(group.size > 1)):
        return np.zeros(shape)
    columns = [
        np.broadcast_to(np.asarray(column), shape).ravel()
        for column in (size_bytes, group.size, group.local, integer)
    ]
    rows = distinct_rows(*columns)
    size, n, local, whole = (column[rows.first] for column in columns)
    calls = Group(size=n, local=local)
    seconds = _distinct_s(cluster, operation, size.astype(float), calls, integer=whole)
    return seconds[rows.inverse].reshape(shape)


def _distinct_s(
    cluster: Cluster, operation: str, size_bytes: Floats, group: Group, *, integer: Any
) -> Floats:
    """Gathers and reductions: start, hops, ramp and bytes of the chosen algorithm and protocol."""
    n, local, nodes = group.size, group.local, spans(group)
    code = choose(cluster, operation, size_bytes, group, integer=integer)
    here, passes = board(cluster), 2 if operation == "all_reduce" else 1
    hops = passes * (nodes - 1)
    tree = TREES[code]
    near_steps = np.where(tree, 2 * (local - 1), passes * (n - 1) - hops)
    start_s = _far_hops(code, hops, nodes) * np.take(_far_hop_s(cluster), code)
    regime = np.where(LL[code], 0, np.where(_in_switch(code, here), 2, _BULK[code]))
    members = np.where(regime == 2, local, n)
    moved_bytes = passes * size_bytes * (members - 1) / members
    joint = float(cluster.library.nvls_tree_fraction)
    moved_bytes = np.where((regime == 2) & (nodes > 1), moved_bytes / joint, moved_bytes)
    crosses, inside = nodes > 1, np.where(local > 1, local, n)
    far_bytes = adapter_bytes(cluster, operation, code, size_bytes, group)
    seconds = curve_s(
        here.figures,
        regime=regime,
        near_steps=near_steps,
        start=here.start(operation),
        moved_bytes=np.where(crosses & (local == 1), 0.0, moved_bytes),
        **here.rates(operation, inside, integer),
        far_start_s=np.where(crosses, start_s, 0.0),
        far_bytes_s=np.where(crosses, far_bytes / domain_rate(cluster, group), 0.0),
    )
    left = here.residual(operation, regime, n, size_bytes)
    seconds = seconds * np.where(crosses, 1.0, left * here.release_factor(regime))
    return np.where((n > 1) & (size_bytes > 0), seconds, 0.0)


def adapter_bytes(
    cluster: Cluster, operation: str, code: Any, size_bytes: Any, group: Group
) -> Floats:
    """Bytes for which a call keeps the adapters of a domain busy at their full rate."""
    n, nodes, passes = group.size, spans(group), 2 if operation == "all_reduce" else 1
    once = np.where(code == COLLNET, size_bytes, passes * size_bytes * (n - 1) / n)
    joined = TREES[code] | (code == NVLS_TREE)
    far_bytes = np.where(joined, 2.0 * size_bytes * (nodes - 1) / nodes, once)
    return np.asarray(far_bytes / _network_share(cluster, code, nodes))


def _network_share(cluster: Cluster, code: Any, nodes: Any) -> Floats:
    """Share of the adapters' rate that an algorithm reaches over so many nodes."""
    library = cluster.library
    branching = TREES[code] & (nodes > 2)
    share = np.where(branching, float(library.tree_network_fraction), 1.0)
    return np.where(code == COLLNET, float(library.collnet_fraction), share)


def _in_switch(code: Any, here: Board) -> NDArray[np.bool_]:
    """Whether the domain's own switch adds up, alone or before the network does."""
    reduces = (code == NVLS) | (code == NVLS_TREE)
    return reduces | (code == COLLNET) if here.reduces else reduces


def _far_hops(code: Any, ring_hops: Any, nodes: Any) -> Floats:
    """Hops over the network that the start of a call waits for."""
    depth = np.ceil(np.log2(nodes))
    hops = np.where(TREES[code] | (code == NVLS_TREE), 2.0 * depth, ring_hops)
    return np.where(code == COLLNET, 2.0, np.where(code == PAT, depth, hops))


def _far_hop_s(cluster: Cluster) -> Floats:
    """One hop over the network, by code of algorithm and protocol, in seconds."""
    library, tables = cluster.library, cluster.library.tuning
    ring, tree = library.ring_hop_s["network"], library.tree_hop_s["network"]
    listed = [
        *(ring.ll, ring.ll128, ring.simple, tree.ll, tree.ll128, tree.simple),
        *(0.0, tables.nvls_hop_s["tree"], tables.nvls_hop_s["network"] / 2, tables.pat_hop_s),
    ]
    return np.array(listed) + float(cluster.fabric.extra_hop_s)


def domain_rate(cluster: Cluster, group: Group) -> Floats:
    """Rate of the adapters that a group's members in one domain bring along, in bytes/s.

    Rings pass the over-subscribed layer only where the next leaf begins: once for the servers of
    a leaf, which share its uplinks.
    """
    share = group.local * cluster.network_bytes_per_s_per_gpu
    over, leaf = float(cluster.fabric.oversubscription), cluster.fabric.leaf_servers
    narrowed = np.where(spans(group) > leaf, max(over / leaf, 1.0), 1.0)
    return np.asarray(share / narrowed)


def broadcasts_s(cluster: Cluster, size_bytes: Any, group: Group) -> Floats:
    """Time in which every rank of a group broadcasts its share of `size_bytes` in turn, in seconds.

    Ring broadcast: a pipeline of ``n - 1`` hops, so every share pays the latency of the whole ring
    (NCCL tuning.cc: as many hops as a gather) and then moves at the bus bandwidth.
    """
    size_bytes = np.asarray(size_bytes, dtype=float)
    n, nodes = group.size, spans(group)
    each = size_bytes / n
    code = choose(cluster, "broadcast", each, group)
    here, hops = board(cluster), nodes - 1
    seconds = curve_s(
        here.figures,
        regime=np.where(LL[code], 0, _BULK[code]),
        near_steps=n - 1 - hops,
        start=1.0,
        moved_bytes=np.where((group.local == 1) & (nodes > 1), 0.0, each),
        **here.rates("all_gather", np.where(group.local > 1, group.local, n)),
        far_start_s=np.where(nodes > 1, hops * np.take(_far_hop_s(cluster), code), 0.0),
        far_bytes_s=np.where(nodes > 1, each / domain_rate(cluster, group), 0.0),
    )
    return np.where(n > 1, n * seconds, 0.0)


def all_to_all_s(cluster: Cluster, sent_bytes: Any, group: Group) -> Floats:
    """Time of an all-to-all in which each rank sends `sent_bytes` in total, its own share included.

    The parts for domain mates and for the others move at once, over links and over adapters: among
    N nodes the rate tends to ``N / (N - 1)`` of an adapter's. To a peer LL carries small parts.
    """
    sent_bytes = np.asarray(sent_bytes, dtype=float)
    n, local, nodes = group.size, group.local, spans(group)
    here, library = board(cluster), cluster.library
    peers_s = library.all_to_all_peer_s["network"] + float(cluster.fabric.extra_hop_s)
    regime = np.where(sent_bytes / n <= here.release.send_ll_bytes, 0, 1)
    seconds = curve_s(
        here.exchange,
        regime=regime,
        near_steps=local - 1,
        start=1.0,
        moved_bytes=sent_bytes * (local - 1) / n,
        **here.rates("all_to_all", np.where(local > 1, local, 2)),
        far_start_s=(n - local) * peers_s,
        far_bytes_s=sent_bytes * (n - local) / n / exchange_rate(cluster, nodes),
    )
    left = here.residual(here.exchange_kind, regime, n, sent_bytes)
    seconds = seconds * np.where(nodes > 1, 1.0, left * here.release_factor(regime))
    return np.where(n > 1, seconds, 0.0)


def exchange_rate(cluster: Cluster, nodes: Any) -> Floats:
    """What one rank sends to other domains of so many, each as much, in bytes/s.

    Of the others, those beyond its leaf are reached through the over-subscribed layer.
    """
    over, leaf = float(cluster.fabric.oversubscription), cluster.fabric.leaf_servers
    beyond = np.maximum(nodes - leaf, 0) / np.maximum(nodes - 1, 1)
    return np.asarray(cluster.network_bytes_per_s_per_gpu / np.maximum(over * beyond, 1.0))


def send_s(cluster: Cluster, size_bytes: Any, crosses_network: Any) -> Floats:
    """Time of one send to a neighbour while another neighbour's arrives, in seconds.

    Inside a domain that is an all-to-all of two, and takes its start; training sends both ways at
    once (rings of context parallelism, forward and backward passes of a pipeline).
    """
    size_bytes = np.asarray(size_bytes, dtype=float)
    links, base, here = cluster.node.scale_up, cluster.library.send_base_s, board(cluster)
    rate = send_rate(cluster, far=False)
    near = base[links.kind] + size_bytes / rate
    if here.curve is not None:
        regime = np.where(size_bytes <= here.release.send_ll_bytes, 0, 1)
        near = curve_s(
            here.exchange,
            regime=regime,
            near_steps=1,
            start=1.0,
            moved_bytes=size_bytes,
            rate=rate,
            ll_rate=here.rates("all_to_all", 2)["ll_rate"],
        )
        left = here.residual(here.exchange_kind, regime, 2, 2.0 * size_bytes)
        near = near * left * here.release_factor(regime)
    far = base["network"] + float(cluster.fabric.extra_hop_s)
    far = far + size_bytes / send_rate(cluster, far=True)
    return np.where(crosses_network, far, near)


def send_rate(cluster: Cluster, *, far: bool) -> float:
    """Bytes per second of a send between neighbours, over an adapter or inside a domain."""
    if far:
        return cluster.network_bytes_per_s_per_gpu / float(cluster.fabric.oversubscription)
    return float(cluster.node.scale_up.send_bytes_per_s)


def library_units(cluster: Cluster) -> float:
    """Compute units that a collective takes while it runs, of those that there are."""
    units = float(cluster.accelerator.compute_units)
    return min(float(cluster.library.compute_units), units)


def slowdown_share(cluster: Cluster) -> float:
    """Share of the compute rate that kernels lose while a collective runs beside them."""
    return library_units(cluster) / float(cluster.accelerator.compute_units)
