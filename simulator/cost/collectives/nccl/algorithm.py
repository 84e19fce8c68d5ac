"""What one algorithm of NCCL is to its choice, the closed forms and the flows; the machine it sees.

The machine is as NCCL's tables see it: channels, rates, latencies (src/graph/tuning.cc).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from simulator.arrays import Floats, Ints
from simulator.hardware.cluster import Cluster
from simulator.hardware.fabric import CollectiveLibrary, HopLatency
from simulator.layout.placement import Group
from simulator.records import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class CallShape:
    """Who takes part in a call, and how often a ring would move its bytes around."""

    n: Ints
    """Members."""
    local: Ints
    """Members in one scale-up domain."""
    nodes: Ints
    """Domains."""
    passes: int
    """Two for an all-reduce."""

    @classmethod
    def of(cls, operation: str, group: Group) -> CallShape:
        """Shape of calls on groups."""
        passes = 2 if operation == "all_reduce" else 1
        return cls(n=group.size, local=group.local, nodes=group.domains, passes=passes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Belief:
    """What NCCL reckons with: its time of a call is latency and bytes over bandwidth."""

    latency_s: Any
    bytes_per_s: Any
    """Of the gathered or reduced buffer."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Algorithm:
    """One algorithm. Its links are in ``events/network/collective_phases.py``, by `word`."""

    word: str
    operations: tuple[str, ...]
    """Collectives that it runs."""
    protocols: tuple[str, ...]
    """Protocols that it runs them with, those for the smallest messages first."""
    allowed: Callable[[Tuner, str], Any]
    """Whether NCCL would run calls with a protocol."""
    belief: Callable[[Tuner, str], Belief]
    """NCCL's arithmetic for a protocol (src/graph/tuning.cc); read only where it is allowed."""
    near_steps: Callable[[CallShape], Any]
    """Hops inside a domain that the start of a call waits for."""
    far_hops: Callable[[CallShape], Any]
    """Hops over the network that the start of a call waits for."""
    far_hop_s: Callable[[CollectiveLibrary, str], float]
    """Seconds of such a hop with a protocol."""
    adapter_bytes: Callable[[CollectiveLibrary, CallShape, Floats], Any]
    """Bytes for which a call keeps the adapters of a domain busy at their full rate."""
    fills: bool = True
    """Whether bytes pass hop after hop from one end to the other, so that a call over the network
    fills a pipeline with its pieces. Where every member sends its own share at once, all links are
    busy from the start: ``n - 1`` steps of ``bytes / n`` and a hop each, and nothing to fill."""
    in_switch: bool = False
    """Whether the switch of a domain adds up, where it can."""


class Tuner:
    """NCCL's tables for one kind of call on one machine; one use per choice."""

    def __init__(
        self,
        cluster: Cluster,
        operation: str,
        size_bytes: Floats,
        group: Group,
        *,
        integer: Any = False,
    ) -> None:
        self.cluster, self.library, self.tables = cluster, cluster.library, cluster.library.tuning
        self.node, self.size_bytes = cluster.groups[0].node, size_bytes
        self.links = self.node.scale_up
        generation = cluster.groups[0].accelerator.generation
        known = self.tables.like.get(generation, generation)
        self.row = known if known in self.tables.ll_ceiling_bytes_per_s else "volta"
        self.host_row = "ampere" if self.node.host == "amd" else "volta"
        self.group, self.nodes = group, group.domains
        self.floating = ~np.asarray(integer)
        self.crosses, self.alone = self.nodes > 1, group.local == 1
        self.column = np.minimum(self.nodes, 3) - 1
        self.all_reduce = operation == "all_reduce"
        passes = 2 if self.all_reduce else 1
        self.steps = passes * (group.size - 1)
        self.far_steps = passes * (self.nodes - 1)
        self.ratio = group.size / np.maximum(self.steps, 1)
        if operation == "broadcast":  # a pipeline: the bytes pass every link once
            self.ratio = np.ones(np.shape(group.size))
        posts = self.tables.post_s
        self.post_s = posts.get(self.node.host, posts["other"])
        self._search()

    def _search(self) -> None:
        """Channels and their rate: what the topology search finds inside, cut to the adapters."""
        kind = "pcie" if self.links.kind == "pcie" else self.row
        graph = self.tables.graph[kind]
        wires = float(self.links.bandwidth_bytes_per_s) * self.tables.link_fraction
        rate = graph.channel_bytes_per_s
        self.channels = max(min(int(wires / rate), graph.channels), 1)
        self.inside = self.channels * min(rate, wires)
        out = self.node.scale_out
        adapters = out.adapters * float(out.adapter_bytes_per_s)
        self.outside = self.group.local * (adapters / self.node.accelerators)
        bus = np.where(self.crosses, np.minimum(self.inside, self.outside), self.inside)
        self.bus = np.where(self.crosses & self.alone, self.outside, bus)

    def by_nodes(self, table: dict[str, tuple[float, float, float]]) -> Floats:
        """Entry of the accelerator's row for one, two, or three and more nodes."""
        return np.take(np.array(table[self.row]), self.column)

    def ll_ceiling(self) -> Floats:
        """Most of LL: by accelerator inside a node, by the maker of the host among several."""
        table = self.tables.ll_ceiling_bytes_per_s
        among = np.take(np.array(table[self.host_row]), self.column)
        return np.where(self.crosses, among, table[self.row][0])

    def near_hop_s(self, table: dict[str, HopLatency], protocol: str) -> float:
        """Latency of one hop over the links of a domain."""
        near = table.get(self.links.kind, table["nvlink"])
        return float(getattr(near, protocol))

    def whole_lines(self, protocol: str) -> bool:
        """LL128 needs stores of 128 bytes that arrive whole: NVLink's."""
        return protocol != "ll128" or self.links.kind != "pcie"

    def paired_outside(self) -> Floats:
        """Rate of the adapters to trees: between two nodes these send half of what a ring does."""
        return np.asarray(self.outside * np.where(self.nodes == 2, 2.0, 1.0))

    def tree_correction(self, protocol: str) -> Floats:
        """NCCL's factor on trees: one for each power of two; it skips the last entry."""
        table = np.array(self.tables.tree_correction[protocol])
        smallest = self.tables.tree_correction_from_bytes
        power = np.floor(np.log2(np.maximum(self.size_bytes / smallest, 1.0))).astype(np.int64)
        inside = power < len(table) - 1
        return np.where(inside, np.take(table, np.minimum(power, len(table) - 1)), 1.0)

    def switch_rate(self) -> float:
        """Rate of reductions in the switch of a domain."""
        share = self.tables.nvls_efficiency.get(self.row, 0.0)
        return self.inside * share * (self.channels - 1) / self.channels * 2.0
