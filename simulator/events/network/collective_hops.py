"""The hops of each algorithm: who sends how much to whom, and what must move at one rate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from simulator.arrays import Floats, Ints
from simulator.cost.collectives.curves import board
from simulator.hardware.cluster import Cluster
from simulator.records import dataclass

# --- the double binary tree --------------------------------------------------------------


def double_tree(servers: int) -> tuple[Ints, Ints]:
    """Edges of both trees, those of the first first: (child, parent).

    Examples
    --------
    >>> [edge.tolist() for edge in double_tree(4)]
    [[1, 2, 3, 2, 1, 0], [2, 0, 2, 1, 3, 1]]
    """
    child = np.arange(1, servers)
    parent = np.array([_parent(int(rank), servers) for rank in child], dtype=np.int64)
    if servers % 2:
        other = tuple((edge + 1) % servers for edge in (child, parent))
    else:
        other = tuple(servers - 1 - edge for edge in (child, parent))
    return np.concatenate([child, other[0]]), np.concatenate([parent, other[1]])


def _parent(rank: int, servers: int) -> int:
    """Clear the lowest digit that is set and set the one above it, if there is such a rank."""
    lowest = rank & -rank
    up = (rank ^ lowest) | (lowest << 1)
    return up if up < servers else rank ^ lowest


PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
"""Times that a ring moves the bytes around."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hops:
    """Hops of one step of every group, groups first."""

    source: Ints
    target: Ints
    size_bytes: Any
    limit: Any = np.inf
    channels: int = 0
    """Pipelines of a group, whose hops move at one rate; 0: every hop by itself."""
    near: float = 0.0
    """Hops inside a domain that the step waits for, one after the other."""
    far: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """What an algorithm unfolds: one collective on several groups."""

    cluster: Cluster
    operation: str
    members: Ints
    """(groups, members)"""
    size_bytes: Floats
    """By group."""
    local: int
    """Members in one domain."""

    @property
    def n(self) -> int:
        """Members of a group."""
        return self.members.shape[1]

    @property
    def domains(self) -> int:
        """Domains that a group touches."""
        return self.n // self.local

    def of(self, members: Ints, size_bytes: Floats, operation: str, local: int) -> Call:
        """A call on parts of the groups."""
        return Call(
            cluster=self.cluster,
            operation=operation,
            members=members,
            size_bytes=size_bytes,
            local=local,
        )

    def rate(self, members: int) -> float:
        """What such a call moves between so many members of a domain; no limit for one."""
        if members < 2:
            return np.inf
        return float(board(self.cluster).rates(self.operation, np.array(members))["rate"])


def in_a_row(domain: Ints) -> int:
    """Members in a domain, where every domain of every group has as many in a row; else 1."""
    groups, n = domain.shape
    local = int((domain[0] == domain[0, 0]).sum()) if groups else 1
    if n % local:
        return 1
    blocks = domain.reshape(groups, n // local, local)
    together = (blocks == blocks[:, :, :1]).all()
    apart = (np.diff(np.sort(blocks[:, :, 0], axis=1), axis=1) != 0).all()
    return local if together and apart else 1


def ring(call: Call) -> list[Hops]:
    """Rings through all members, one for each member of a domain, each by another rail.

    ``n - 1`` phases of a share of the bytes, twice for an all-reduce.
    """
    passes, n = PASSES[call.operation], call.n
    if n < 2:
        return [_none()]
    order = _orders(call)
    channels = order.shape[1]
    size = passes * (n - 1) / n * call.size_bytes / channels
    target = np.roll(order, -1, axis=2)
    if call.cluster.node.scale_up.torus:  # half of the bytes the other way round
        order, target = (
            np.concatenate(pair, axis=1) for pair in ((order, target), (target, order))
        )
        size, channels = size / 2, 2 * channels
    inside = call.local if call.local > 1 else (n if call.domains == 1 else 1)
    far = passes * (call.domains - 1)
    return [
        Hops(
            source=order.ravel(),
            target=target.ravel(),
            size_bytes=np.repeat(size, channels * n),
            limit=call.rate(inside) / channels,
            channels=channels,
            near=passes * (n - 1) - far,
            far=far,
        )
    ]


def _orders(call: Call) -> Ints:
    """Order of each ring, (groups, rings, members).

    Ring k enters the even domains at member k and leaves them at k + 1, the odd ones the other way
    round: what leaves by a rail arrives on it, and each rail is taken once each way.
    """
    if call.local == 1 or call.domains == 1:
        return call.members[:, None, :]
    local, domains = call.local, call.domains
    blocks = call.members.reshape(len(call.members), domains, local)
    rings = []
    for k in range(local):
        even = np.array([k, *((k + 2 + i) % local for i in range(local - 2)), (k + 1) % local])
        place = np.where(np.arange(domains)[:, None] % 2 == 0, even, even[::-1])
        rings.append(np.take_along_axis(blocks, place[None], axis=2).reshape(len(blocks), -1))
    return np.stack(rings, axis=1)


def tree(call: Call) -> list[Hops]:
    """Two trees over the domains, each with half of the bytes, and a chain inside each domain."""
    if call.n < 2:
        return [_none()]
    groups, local, domains = len(call.members), call.local, call.domains
    blocks = call.members.reshape(groups, domains, local)
    child, parent = double_tree(domains)
    inner = np.tile(np.arange(domains), 2)  # a chain in each domain for each tree
    source, target = [], []
    for k in range(local):
        place = (k + np.arange(local)) % local
        ups = [blocks[:, child, k]] + [blocks[:, inner, place[i + 1]] for i in range(local - 1)]
        downs = [blocks[:, parent, k]] + [blocks[:, inner, place[i]] for i in range(local - 1)]
        up, down = np.concatenate(ups, axis=1), np.concatenate(downs, axis=1)
        source.append(np.concatenate([up, down], axis=1))
        target.append(np.concatenate([down, up], axis=1))
    table = np.stack(source, axis=1)
    hops = table.shape[1] * table.shape[2]
    return [
        Hops(
            source=table.ravel(),
            target=np.stack(target, axis=1).ravel(),
            size_bytes=np.repeat(call.size_bytes / local / 2, hops),
            channels=local,
            near=2 * (local - 1),
            far=2 * np.ceil(np.log2(domains)),
        )
    ]


def hierarchical(call: Call) -> list[Hops]:
    """Reduce and scatter inside each domain, trees between domains on a share each, gather inside.

    So NCCL adds up where the switches of domains do (NVLS tree), all phases at once.
    """
    if call.local == 1 or call.domains == 1:
        return ring(call)
    groups, local, domains = len(call.members), call.local, call.domains
    blocks = call.members.reshape(groups, domains, local)
    inside = blocks.reshape(groups * domains, local)
    across = blocks.transpose(0, 2, 1).reshape(groups * local, domains)
    whole = np.repeat(call.size_bytes, domains)
    shares = np.repeat(call.size_bytes / local, local)
    (scattered,) = ring(call.of(inside, whole, "reduce_scatter", local))
    (between,) = tree(call.of(across, shares, "all_reduce", 1))
    (gathered,) = ring(call.of(inside, whole, "all_gather", local))
    parts = ((scattered, domains), (between, local), (gathered, domains))
    return [replace(hops, channels=hops.channels * number) for hops, number in parts]


def direct(call: Call) -> list[Hops]:
    """Every rank sends to all others at once."""
    groups, n = call.members.shape
    if n < 2:
        return [_none()]
    place = np.arange(n)
    peer = (place + np.arange(1, n)[:, None]) % n
    crosses = place // call.local != peer // call.local
    rate = call.rate(call.local) / max(call.local - 1, 1)
    far = call.domains > 1
    return [
        Hops(
            source=np.repeat(call.members[:, None], n - 1, axis=1).ravel(),
            target=call.members[:, peer].ravel(),
            size_bytes=np.repeat(call.size_bytes / n, n * (n - 1)),
            limit=np.tile(np.where(crosses, np.inf, rate).ravel(), groups),
            near=0.0 if far else 1.0,
            far=1.0 if far else 0.0,
        )
    ]


def _none() -> Hops:
    empty = np.zeros(0, dtype=np.int64)
    return Hops(source=empty, target=empty, size_bytes=np.zeros(0))
