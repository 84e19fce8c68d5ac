"""Seconds of one collective on a process group: NCCL's choice, then what the chosen kernel takes.

A group of `size` ranks has `local` members in each scale-up domain. The library chooses by its own
tables (`cost.collectives.nccl.algorithms`); what the choice takes inside a domain is a curve
fitted to measurements, and what it takes among domains follows from hops and from the adapters that
the group's local members bring along (all groups of a domain run at once, so each member brings its
own share).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats, Ints
from simulator.cost.collectives.curves import Regime, board, curve_s
from simulator.cost.collectives.nccl.algorithm import CallShape
from simulator.cost.collectives.nccl.algorithms import CHOICES, Choice, by_algorithm, choose
from simulator.hardware.accelerator import Accelerator
from simulator.hardware.cluster import Cluster
from simulator.hardware.fabric import CollectiveLibrary, Fabric
from simulator.hardware.node import Node
from simulator.layout.keys import distinct_rows
from simulator.layout.placement import Group
from simulator.record_cache import for_same_records


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

    Nothing to send, or nobody to send it to, is no call. Calls of one machine stay known: searches
    of other sizes and other settings make most of them again.
    """
    alike = [np.asarray(x) for x in (size_bytes, group.size, group.local, integer)]
    every = np.broadcast(*alike)
    shape = every.shape
    if not (np.count_nonzero(alike[0]) and np.count_nonzero(alike[1] > 1)):
        return np.zeros(shape)
    if every.size <= _FEW:
        calls = list(zip(*(_listed(x, every) for x in alike), strict=True))
        return np.array(_seconds(cluster, operation, calls)).reshape(shape)
    columns = [(x if x.shape == shape else np.broadcast_to(x, shape)).ravel() for x in alike]
    rows = distinct_rows(*columns)
    calls = list(zip(*(column[rows.first].tolist() for column in columns), strict=True))
    return np.array(_seconds(cluster, operation, calls))[rows.inverse].reshape(shape)


def _listed(column: NDArray[Any], every: np.broadcast) -> list[Any]:
    """A value for each of `every`; ``np.broadcast_to`` takes ten times as long for few."""
    if column.size == 1:
        return [column.item()] * every.size
    wide = column if column.size == every.size else np.broadcast_to(column, every.shape)
    listed: list[Any] = wide.ravel().tolist()
    return listed


_FEW = 64
"""Rows whose distinct ones are not looked for: to price a few layouts is mostly such calls."""


def _seconds(cluster: Cluster, operation: str, calls: list[tuple[Any, ...]]) -> list[float]:
    """Seconds of calls (bytes, members, those in a domain, whether integers), known or not yet."""
    first = cluster.groups[0]
    of_machine = _known(first.node, first.accelerator, cluster.fabric, cluster.library)
    known = of_machine.setdefault(operation, {})
    if len(known) > _MOST_KNOWN:
        known = of_machine[operation] = {}
    if new := [call for call in dict.fromkeys(calls) if call not in known]:
        size, n, local, whole = map(np.array, zip(*new, strict=True))
        group = Group(size=n, local=local)
        seconds = _distinct_s(cluster, operation, size.astype(float), group, integer=whole)
        known.update(zip(new, seconds.tolist(), strict=True))
    return [known[call] for call in calls]


_MOST_KNOWN = 1 << 15
"""Calls of one kind that stay known on one machine; the largest searches make some thousand."""


@for_same_records(32)
def _known(
    node: Node, accelerator: Accelerator, fabric: Fabric, library: CollectiveLibrary
) -> dict[str, dict[tuple[Any, ...], float]]:
    """Seconds by operation and call: bytes, members, those in a domain, whether integers.

    The records are all that a call's time depends on: servers outside its group are not.
    """
    return {}


def _distinct_s(
    cluster: Cluster, operation: str, size_bytes: Floats, group: Group, *, integer: Any
) -> Floats:
    """Gathers and reductions: start, hops, ramp and bytes of the chosen algorithm and protocol."""
    shape = CallShape.of(operation, group)
    n, local, crosses = shape.n, shape.local, shape.nodes > 1
    code = choose(cluster, operation, size_bytes, group, integer=integer)
    here = board(cluster)
    far_hops = by_algorithm(code, lambda algorithm: algorithm.far_hops(shape))
    waits_s = 0.0 if operation == "all_reduce" else float(cluster.fabric.gather_hop_s)
    start_s = far_hops * (np.take(_far_hop_s(cluster), code) + waits_s)
    regime = regimes(cluster, code)
    in_switch = regime == Regime.NVLS
    members = np.where(in_switch, local, n)
    moved_bytes = shape.passes * size_bytes * (members - 1) / members
    joint = float(cluster.library.nvls_tree_fraction)
    moved_bytes = np.where(in_switch & crosses, moved_bytes / joint, moved_bytes)
    inside = np.where(local > 1, local, n)
    far_bytes = adapter_bytes(cluster, operation, code, size_bytes, group)
    seconds = curve_s(
        here.figures,
        regime=regime,
        near_steps=by_algorithm(code, lambda algorithm: algorithm.near_steps(shape)),
        start=here.start(operation),
        moved_bytes=np.where(crosses & (local == 1), 0.0, moved_bytes),
        **here.rates(operation, inside, integer),
        far_start_s=np.where(crosses, start_s, 0.0),
        far_bytes_s=np.where(crosses, far_bytes / domain_rate(cluster, group), 0.0),
        fills=by_algorithm(code, lambda algorithm: algorithm.fills),
    )
    residual = here.residual(operation, regime, n, size_bytes)
    seconds = seconds * np.where(crosses, 1.0, residual * here.release_factor(regime))
    return np.where((n > 1) & (size_bytes > 0), seconds, 0.0)


def regimes(cluster: Cluster, code: Any) -> Ints:
    """`Regime` that calls run in, by the code of what NCCL chose."""
    return np.take(_REGIMES[board(cluster).reduces], code)


def _regime(choice: Choice, reduces: bool) -> Regime:
    if choice.algorithm.in_switch and reduces:
        return Regime.NVLS
    return {"ll": Regime.LL, "ll128": Regime.LL128, "simple": Regime.BULK}[choice.protocol]


_REGIMES = {
    reduces: np.array([_regime(choice, reduces) for choice in CHOICES]) for reduces in (False, True)
}
"""By code of a choice, where a switch reduces or none does."""


def adapter_bytes(
    cluster: Cluster, operation: str, code: Any, size_bytes: Any, group: Group
) -> Floats:
    """Bytes for which a call keeps the adapters of a domain busy at their full rate."""
    shape, library = CallShape.of(operation, group), cluster.library
    size_bytes = np.asarray(size_bytes, dtype=float)
    return np.asarray(
        by_algorithm(code, lambda algorithm: algorithm.adapter_bytes(library, shape, size_bytes))
    )


def _far_hop_s(cluster: Cluster) -> Floats:
    """One hop over the network, by code of algorithm and protocol, in seconds."""
    library = cluster.library
    hop_s = [choice.algorithm.far_hop_s(library, choice.protocol) for choice in CHOICES]
    return np.array(hop_s) + float(cluster.fabric.extra_hop_s)


def domain_rate(cluster: Cluster, group: Group) -> Floats:
    """Rate of the adapters that a group's members in one domain bring along, in bytes/s.

    Rings pass the over-subscribed layer only where the next leaf begins: once for the servers of
    a leaf, which share its uplinks.
    """
    share = group.local * cluster.network_bytes_per_s_per_gpu
    over, leaf = cluster.fabric.narrow
    narrowed = np.where(group.domains > leaf, max(over / leaf, 1.0), 1.0)
    return np.asarray(share / narrowed)


def broadcasts_s(cluster: Cluster, size_bytes: Any, group: Group) -> Floats:
    """Time in which every rank of a group broadcasts its share of `size_bytes` in turn, in seconds.

    Ring broadcast: a pipeline of ``n - 1`` hops, so every share pays the latency of the whole ring
    (NCCL tuning.cc: as many hops as a gather) and then moves at the bus bandwidth.
    """
    size_bytes = np.asarray(size_bytes, dtype=float)
    n, nodes = group.size, group.domains
    share_bytes = size_bytes / n
    code = choose(cluster, "broadcast", share_bytes, group)
    here, hops = board(cluster), nodes - 1
    seconds = curve_s(
        here.figures,
        regime=regimes(cluster, code),
        near_steps=n - 1 - hops,
        start=1.0,
        moved_bytes=np.where((group.local == 1) & (nodes > 1), 0.0, share_bytes),
        **here.rates("all_gather", np.where(group.local > 1, group.local, n)),
        far_start_s=np.where(nodes > 1, hops * np.take(_far_hop_s(cluster), code), 0.0),
        far_bytes_s=np.where(nodes > 1, share_bytes / domain_rate(cluster, group), 0.0),
    )
    return np.where(n > 1, n * seconds, 0.0)


def all_to_all_s(cluster: Cluster, sent_bytes: Any, group: Group) -> Floats:
    """Time of an all-to-all in which each rank sends `sent_bytes` in total, its own share included.

    The parts for domain mates and for the others move at once, over links and over adapters: among
    N nodes the rate tends to ``N / (N - 1)`` of an adapter's. To a peer LL carries small parts.
    Sends to peers start one after the other and wait for the network together (32 servers on EFA
    take 1.7 ms for 32 MiB, where a wait for each of 248 peers would be 6).
    """
    sent_bytes = np.asarray(sent_bytes, dtype=float)
    n, local, nodes = group.size, group.local, group.domains
    here, library = board(cluster), cluster.library
    peers_s = (n - local) * float(library.all_to_all_peer_s["network"])
    small = sent_bytes / n <= here.release.send_ll_bytes
    regime = np.where(small, Regime.LL, Regime.BULK)
    seconds = curve_s(
        here.exchange,
        regime=regime,
        near_steps=local - 1,
        start=1.0,
        moved_bytes=sent_bytes * (local - 1) / n,
        **here.rates("all_to_all", np.where(local > 1, local, 2)),
        far_start_s=peers_s + np.where(nodes > 1, float(cluster.fabric.extra_hop_s), 0.0),
        far_bytes_s=sent_bytes * (n - local) / n / exchange_rate(cluster, nodes),
    )
    residual = here.residual(here.exchange_kind, regime, n, sent_bytes)
    seconds = seconds * np.where(nodes > 1, 1.0, residual * here.release_factor(regime))
    return np.where(n > 1, seconds, 0.0)


def exchange_rate(cluster: Cluster, nodes: Any) -> Floats:
    """What one rank sends to other domains of so many, each as much, in bytes/s.

    Of the others, those beyond its leaf are reached through the over-subscribed layer.
    """
    over, leaf = cluster.fabric.narrow
    beyond = np.maximum(nodes - leaf, 0) / np.maximum(nodes - 1, 1)
    return np.asarray(cluster.network_bytes_per_s_per_gpu / np.maximum(over * beyond, 1.0))


def send_s(
    cluster: Cluster, size_bytes: Any, crosses_network: Any, *, beyond: bool = True
) -> Floats:
    """Time of one send to a neighbour while another neighbour's arrives, in seconds.

    `beyond`: neighbours may meet only above the over-subscribed layer of the network.

    Inside a domain that is an all-to-all of two, and takes its start; training sends both ways at
    once (rings of context parallelism, forward and backward passes of a pipeline).
    """
    size_bytes = np.asarray(size_bytes, dtype=float)
    links, base, here = cluster.node.scale_up, cluster.library.send_base_s, board(cluster)
    far = base["network"] + float(cluster.fabric.extra_hop_s)
    far = far + size_bytes / send_rate(cluster, far=True, beyond=beyond)
    if np.all(crosses_network) and np.shape(crosses_network) == size_bytes.shape:
        return np.asarray(far)
    rate = send_rate(cluster, far=False)
    near = base[links.kind] + size_bytes / rate
    if here.curve is not None:
        small = size_bytes <= here.release.send_ll_bytes
        regime = np.where(small, Regime.LL, Regime.BULK)
        near = curve_s(
            here.exchange,
            regime=regime,
            near_steps=1,
            start=1.0,
            moved_bytes=size_bytes,
            rate=rate,
            ll_rate=here.rates("all_to_all", 2)["ll_rate"],
        )
        residual = here.residual(here.exchange_kind, regime, 2, 2.0 * size_bytes)
        near = near * residual * here.release_factor(regime)
    return np.where(crosses_network, far, near)


def one_way_send_s(cluster: Cluster, size_bytes: Any, crosses_network: Any) -> Floats:
    """Time of one send beside which nothing comes in, in seconds: what point-to-point tests time.

    Where nobody timed such sends on the board it is :func:`send_s`.
    """
    size_bytes, both = np.asarray(size_bytes, float), send_s(cluster, size_bytes, crosses_network)
    curve = board(cluster).curve
    if curve is None or curve.one_way is None:
        return both
    way = curve.one_way
    rate = float(cluster.node.scale_up.bandwidth_bytes_per_s) * float(way.link_fraction)
    start_s = np.where(size_bytes <= way.small_bytes, float(way.small_s), float(way.large_s))
    return np.where(crosses_network, both, start_s + size_bytes / rate)


def send_rate(cluster: Cluster, *, far: bool, beyond: bool = True) -> float:
    """Bytes per second of a send between neighbours, over an adapter or inside a domain.

    `beyond` as for :func:`send_s`.
    """
    if far:
        over, leaf = cluster.fabric.narrow
        narrowed = beyond and cluster.nodes > leaf
        return cluster.network_bytes_per_s_per_gpu / (over if narrowed else 1.0)
    return float(cluster.node.scale_up.send_bytes_per_s)


def library_units(cluster: Cluster) -> float:
    """Compute units that a collective takes while it runs, of those that there are."""
    units = float(cluster.accelerator.compute_units)
    return min(float(cluster.library.compute_units), units)


def slowdown_share(cluster: Cluster) -> float:
    """Share of the compute rate that kernels lose while a collective runs beside them."""
    return library_units(cluster) / float(cluster.accelerator.compute_units)


def send_units(cluster: Cluster, crosses_network: Any) -> Floats:
    """Compute units that a send and what arrives meanwhile take.

    An adapter is kept busy by few thread blocks; links of a domain take as many as a collective.
    """
    usual = library_units(cluster)
    return np.where(crosses_network, min(float(cluster.library.network_send_units), usual), usual)


def send_share(cluster: Cluster, crosses_network: Any) -> Floats:
    """Share of the compute rate that kernels lose while sends run beside them."""
    return send_units(cluster, crosses_network) / float(cluster.accelerator.compute_units)
