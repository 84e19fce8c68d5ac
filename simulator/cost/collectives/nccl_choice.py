"""Which algorithm and protocol NCCL runs a collective with: its own arithmetic, its own tables.

NCCL fills latency and bandwidth of every algorithm and protocol that the machine allows and takes
the one whose time it believes to be the shortest (src/graph/tuning.cc). It decides the regime that
a call runs in; `simulator.cost.collectives.calls` knows what that regime then takes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.arrays import Floats, Ints
from simulator.hardware.cluster import Cluster
from simulator.hardware.fabric import HopLatency
from simulator.layout.placement import Group

__all__ = [
    "ALGORITHMS",
    "COLLNET",
    "LL",
    "LL128",
    "NVLS",
    "NVLS_TREE",
    "PAT",
    "TREES",
    "believed_s",
    "choose",
    "spans",
]


ALGORITHMS = (
    *("ring ll", "ring ll128", "ring simple", "tree ll", "tree ll128", "tree simple"),
    *("nvls", "nvls tree", "collnet", "pat"),
)
"""What a code of :func:`choose` stands for."""
NVLS, NVLS_TREE, COLLNET, PAT = 6, 7, 8, 9
LL = np.array([code in (0, 3) for code in range(len(ALGORITHMS))])
"""By code: whether the protocol is LL, that of small messages."""
LL128 = np.array([code in (1, 4) for code in range(len(ALGORITHMS))])
TREES = np.array([code in (3, 4, 5) for code in range(len(ALGORITHMS))])

_PROTOCOLS = ("ll", "ll128", "simple")
_SMALLEST = 64.0
"""Bytes at which the table of corrections of trees starts."""
_SIMPLE_POSTS = 3.0
"""Messages to the network that Simple posts for one of LL."""
_POST_S = {"amd": 2e-6}
_USUAL_POST_S = 1e-6
"""What a host takes to post one message to the network (tuning.cc), by maker and otherwise."""


def spans(group: Group) -> Ints:
    """Scale-up domains that a group touches: what NCCL calls nodes."""
    return np.asarray(-(-group.size // group.local))


def choose(
    cluster: Cluster, operation: str, size_bytes: Any, group: Group, *, integer: Any = False
) -> Ints:
    """Code of what NCCL runs (position in `ALGORITHMS`).

    Parameters
    ----------
    operation : str
        ``all_reduce``; ``all_gather`` or ``reduce_scatter``, which it treats alike; ``broadcast``.
    size_bytes : array_like
        The gathered or reduced buffer.
    integer : array_like of bool
        Whether the elements are integers, which switches do not add up.
    """
    size_bytes = np.asarray(size_bytes, dtype=float)
    shape = np.broadcast_shapes(size_bytes.shape, np.shape(group.size))
    code, best = np.zeros(shape, dtype=np.int64), np.full(shape, np.inf)
    for number, seconds in believed_s(cluster, operation, size_bytes, group, integer=integer):
        better = seconds < best
        code, best = np.where(better, number, code), np.where(better, seconds, best)
    return code


def believed_s(
    cluster: Cluster, operation: str, size_bytes: Any, group: Group, *, integer: Any = False
) -> list[tuple[int, Floats]]:
    """What NCCL believes each algorithm and protocol to take; infinite where it is not allowed."""
    tuner = _Tuner(cluster, operation, np.asarray(size_bytes, dtype=float), group)
    found = [(p, tuner.ring(name)) for p, name in enumerate(_PROTOCOLS)]
    if operation == "all_reduce":
        found += [(3 + p, tuner.tree(name)) for p, name in enumerate(_PROTOCOLS)]
        if cluster.node.scale_up.nvls_bytes_per_s is not None:
            found += [(NVLS, tuner.nvls(integer))]
        if tuner.crosses.any():
            found += [(NVLS_TREE, tuner.nvls_tree(integer)), (COLLNET, tuner.collnet())]
    elif operation != "broadcast" and tuner.crosses.any():
        found += [(PAT, tuner.pat())]
    return found


class _Tuner:
    """NCCL's tables as seen by one kind of call on one machine; one use per choice."""

    def __init__(self, cluster: Cluster, operation: str, size_bytes: Floats, group: Group) -> None:
        self.cluster, self.library, self.tables = cluster, cluster.library, cluster.library.tuning
        self.links, self.size_bytes = cluster.node.scale_up, size_bytes
        generation = cluster.accelerator.generation
        known = self.tables.like.get(generation, generation)
        self.row = known if known in self.tables.ll_ceiling_bytes_per_s else "volta"
        self.host_row = "ampere" if cluster.node.host == "amd" else "volta"
        self.group, self.nodes = group, spans(group)
        self.crosses, self.alone = self.nodes > 1, group.local == 1
        self.column = np.minimum(self.nodes, 3) - 1
        passes = 2 if operation == "all_reduce" else 1
        self.steps = passes * (group.size - 1)
        self.far_steps = passes * (self.nodes - 1)
        self.ratio = group.size / np.maximum(self.steps, 1)
        if operation == "broadcast":  # a pipeline: the bytes pass every link once
            self.ratio = np.ones(np.shape(group.size))
        self.all_reduce = operation == "all_reduce"
        self.post_s = _POST_S.get(cluster.node.host, _USUAL_POST_S)
        self._search()

    def _search(self) -> None:
        """Channels and their rate: what the topology search finds inside, cut to the adapters."""
        kind = "pcie" if self.links.kind == "pcie" else self.row
        graph = self.tables.graph[kind]
        wires = float(self.links.bandwidth_bytes_per_s) * self.tables.link_fraction
        rate = graph.channel_bytes_per_s
        self.channels = max(min(int(wires / rate), graph.channels), 1)
        self.inside = self.channels * min(rate, wires)
        out = self.cluster.node.scale_out
        each = out.adapters * float(out.adapter_bytes_per_s) / self.cluster.node.accelerators
        self.outside = self.group.local * each
        bus = np.where(self.crosses, np.minimum(self.inside, self.outside), self.inside)
        self.bus = np.where(self.crosses & self.alone, self.outside, bus)

    def _by_nodes(self, table: dict[str, tuple[float, float, float]]) -> Floats:
        return np.take(np.array(table[self.row]), self.column)

    def _ll_ceiling(self) -> Floats:
        """Picked by accelerator inside a node, by the maker of the host among several."""
        table = self.tables.ll_ceiling_bytes_per_s
        among = np.take(np.array(table[self.host_row]), self.column)
        return np.where(self.crosses, among, table[self.row][0])

    def _time(self, latency_s: Any, rate: Any, allowed: Any = True) -> Floats:
        believed = latency_s + self.size_bytes / np.maximum(rate, 1e-30)
        return np.where(allowed & (np.asarray(rate) > 0), believed, np.inf)

    def _near_hop(self, table: dict[str, HopLatency], protocol: str) -> float:
        near = table.get(self.links.kind, table["nvlink"])
        return float(getattr(near, protocol))

    def ring(self, protocol: str) -> Floats:
        t, library = self.tables, self.library
        rate = self.bus
        if protocol == "ll":
            rate = np.minimum(self._ll_ceiling(), rate * t.ll_fraction)
        elif protocol == "ll128":
            own = library.releases[library.release].ring_ll128_bytes_per_s
            most = self.channels * self._by_nodes({**t.ring_ll128_bytes_per_s, **own})
            rate = np.minimum(t.ll128_fraction * rate, most)
        far_table = library.ring_hop_s["network"]
        far = np.where(
            self.alone & self.crosses,
            float(getattr(library.tree_hop_s["network"], protocol)),
            float(getattr(far_table, protocol)),
        )
        post = self.post_s * (_SIMPLE_POSTS if protocol == "simple" else 1.0)
        near = self._near_hop(library.ring_hop_s, protocol)
        held = np.where(self.crosses, np.maximum(near, post), near)
        base = float(getattr(library.ring_base_s, protocol))
        latency = np.asarray(base + (self.steps - self.far_steps) * held + self.far_steps * far)
        if protocol == "simple" and self.all_reduce:
            full = self.size_bytes >= _SMALLEST * self.channels * self.group.size
            factor = t.ring_plateau.get(self.row, t.ring_plateau["newer"])
            latency = latency * np.where(self.crosses & full, factor, 1.0)
        return self._time(latency, rate * self.ratio, self._allows(protocol))

    def _allows(self, protocol: str) -> bool:
        """LL128 needs stores of 128 bytes that arrive whole: NVLink's."""
        return protocol != "ll128" or self.links.kind != "pcie"

    def tree(self, protocol: str) -> Floats:
        t, library = self.tables, self.library
        most = self.channels * self._by_nodes(t.tree_simple_bytes_per_s)
        rate = np.minimum(t.tree_fraction * self._tree_bus(), most)
        if protocol == "ll":
            rate = np.minimum(rate / t.tree_ll_divisor, self._ll_ceiling())
        elif protocol == "ll128":
            share = np.where(self.crosses, t.ll128_tree_fraction[1], t.ll128_tree_fraction[0])
            most = self.channels * self._by_nodes(t.tree_ll128_bytes_per_s)
            rate = np.minimum(rate * share, most)
        near = self._near_hop(library.tree_hop_s, protocol)
        far = float(getattr(library.tree_hop_s["network"], protocol))
        base = float(getattr(library.tree_base_s, protocol))
        latency = base + 2 * ((self.group.local - 1) * near + np.floor(np.log2(self.nodes)) * far)
        rate = 0.5 * rate * self._correction(protocol)
        return self._time(latency, rate, self._allows(protocol))

    def _tree_bus(self) -> Floats:
        """Between two nodes a tree sends half of what a ring does: links inside may be faster."""
        far = self.outside * np.where(self.nodes == 2, 2.0, 1.0)
        return np.where(self.crosses, np.minimum(self.inside, far), self.inside)

    def _correction(self, protocol: str) -> Floats:
        """NCCL's factor on trees: one for each power of two from 64 B; it skips the last entry."""
        table = np.array(self.tables.tree_correction[protocol])
        power = np.floor(np.log2(np.maximum(self.size_bytes / _SMALLEST, 1.0))).astype(np.int64)
        inside = power < len(table) - 1
        return np.where(inside, np.take(table, np.minimum(power, len(table) - 1)), 1.0)

    def _switch_rate(self) -> float:
        share = self.tables.nvls_efficiency.get(self.row, 0.0)
        return self.inside * share * (self.channels - 1) / self.channels * 2.0

    def nvls(self, integer: Any) -> Floats:
        t, fewest = self.tables, self.library.nvls_smallest_group
        allowed = ~self.crosses & (self.group.size >= fewest) & ~np.asarray(integer)
        return self._time(t.nvls_hop_s["nvlink"], self._switch_rate() * self.ratio, allowed)

    def nvls_tree(self, integer: Any) -> Floats:
        t = self.tables
        if self.links.nvls_bytes_per_s is None:
            return np.full(np.shape(self.nodes), np.inf)
        far = self.outside * np.where(self.nodes == 2, 2.0, 1.0)
        cap = self.channels * self._by_nodes(t.nvls_tree_bytes_per_s)
        rate = np.minimum(self._switch_rate(), np.minimum(far, np.where(cap > 0, cap, np.inf)))
        fewest = self.library.nvls_smallest_group
        allowed = self.crosses & (self.group.local >= fewest) & ~np.asarray(integer)
        latency = t.nvls_hop_s["nvlink"] + 2 * np.log2(self.nodes) * t.nvls_hop_s["tree"]
        if self.row == "blackwell" and self.cluster.node.host != "grace":
            rate = rate * self._correction("simple")
        return self._time(latency, rate * self.ratio, allowed)

    def collnet(self) -> Floats:
        """Switches of the network add up: behind reduction in the domain's, else behind chains."""
        t = self.tables
        allowed = self.crosses & self.cluster.fabric.reduces_in_network
        if self.links.nvls_bytes_per_s is not None:
            rate = np.minimum(self._switch_rate(), self.outside * 2.0) * self.ratio
            return self._time(t.nvls_hop_s["nvlink"] + t.nvls_hop_s["network"], rate, allowed)
        latency = 2 * (self.group.local - 1) * t.collnet_hop_s["nvlink"]
        return self._time(latency + t.collnet_hop_s["network"], 0.5 * self.bus, allowed)

    def pat(self) -> Floats:
        t = self.tables
        latency = t.pat_base_s + np.log2(self.nodes) * t.pat_hop_s / 3.5
        latency = latency + t.pat_rank_s * self.group.size
        return self._time(
            latency, t.pat_fraction * self.bus * self.ratio, self.crosses & self.alone
        )
