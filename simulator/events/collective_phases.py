"""Collectives as flows: the phases of their algorithm, hop by hop.

Equal phases in a row are one step with the bytes and the latency of all. The hops of a ring or a
tree are a pipeline fed in pieces: they move at one rate, that of the slowest, so that a ring is one
flow over the links of all its hops. With nothing else on its links a call takes what the bandwidth
terms of ``cost/collectives.py`` say, but for two things: a tree loads the servers that are inside
both its halves with all of twice the bytes, where the closed form has the mean over servers; and a
ring over a torus takes the two directions of its path, where the closed form has all axes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulator.cost.collective_curves import board
from simulator.errors import InputError, problem
from simulator.events.flows import Flows, couple, flows
from simulator.events.links import Topology
from simulator.events.routes import routes
from simulator.events.trees import double_tree
from simulator.hardware.cluster import Cluster

__all__ = ["ALGORITHMS", "OPERATIONS", "modelled", "unfold"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
"""Times that a ring moves the bytes around."""
OPERATIONS = (*PASSES, "all_to_all")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Hops:
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
class _Call:
    """What an algorithm unfolds."""

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
        return self.members.shape[1]

    @property
    def domains(self) -> int:
        return self.n // self.local

    def of(self, members: Ints, size_bytes: Floats, operation: str, local: int) -> _Call:
        """A call on parts of the groups."""
        return _Call(
            cluster=self.cluster, operation=operation, members=members, size_bytes=size_bytes,
            local=local,
        )  # fmt: skip

    def rate(self, members: int) -> float:
        """What such a call moves between so many members of a domain; no limit for one."""
        if members < 2:
            return np.inf
        return float(board(self.cluster).rates(self.operation, np.array(members))["rate"])


def unfold(
    cluster: Cluster,
    topology: Topology,
    operation: str,
    members: ArrayLike,
    size_bytes: ArrayLike,
    *,
    algorithm: str = "ring",
    start_s: ArrayLike = 0.0,
) -> Flows:
    """Flows of one collective on each of several groups at once.

    Parameters
    ----------
    operation : str
        One of `OPERATIONS`.
    members : array_like of int, (groups, members)
        GPUs of each group, domain by domain.
    size_bytes : array_like
        As the collectives of ``cost/collectives.py`` take it: the whole buffer, or what a rank of
        an all-to-all sends, its own share included. One number, or one by group.
    algorithm : str
        One of `ALGORITHMS`: ring, tree, hierarchical (inside each domain, between them, inside) or
        halving (recursive halving and doubling); direct (all peers at once) or pairwise (one after
        the other) for all-to-all.
    start_s : array_like
        When it starts, one number or one by group.

    Raises
    ------
    InputError
        If a name is unknown, a group has one member twice or is no table of groups, or the
        algorithm cannot do the operation.
    """
    call = _call(cluster, topology, operation, members, size_bytes)
    build, possible = _known(algorithm)
    if operation not in possible:
        raise InputError(
            problem("network", "algorithm", f"must be one that does {operation}", algorithm)
            + f" (nearest: {_nearest(operation)})"
        )
    steps = build(call)
    return _flows(topology, call, steps, np.asarray(start_s, dtype=np.float64))


def modelled(
    cluster: Cluster,
    topology: Topology,
    members: ArrayLike,
    size_bytes: ArrayLike,
    seconds: ArrayLike,
    *,
    operation: str = "all_reduce",
    start_s: ArrayLike = 0.0,
) -> Flows:
    """One task for each group, which takes `seconds` where nothing shares the links of its rings.

    For calls whose time the closed forms know better than a ring of flows does (in-switch
    reduction, small messages): contention slows it as it would the ring.
    """
    call = _call(cluster, topology, operation, members, size_bytes)
    hops = _direct(call)[0] if operation == "all_to_all" else _ring(call)[0]
    groups = len(call.members)
    each = len(hops.source) // groups
    ways, most = couple(
        routes(topology, hops.source, hops.target, spread=operation != "all_to_all"),
        np.broadcast_to(hops.size_bytes, (len(hops.source),)),
        np.repeat(np.arange(groups), each),
    )
    alone = np.broadcast_to(np.asarray(seconds, dtype=np.float64), (groups,))
    if not (alone > 0.0).all():
        at = int(np.flatnonzero(~(alone > 0.0))[0])
        raise InputError(problem("network", f"seconds[{at}]", "must be positive", float(alone[at])))
    start = np.broadcast_to(np.asarray(start_s, dtype=np.float64), (groups,))
    return flows(ways, most, limit_bytes_per_s=most / alone, start_s=start.copy())


def _call(
    cluster: Cluster, topology: Topology, operation: str, members: ArrayLike, size_bytes: ArrayLike
) -> _Call:
    if operation not in OPERATIONS:
        raise InputError(
            problem("network", "operation", "unknown collective", operation, OPERATIONS)
        )
    table = np.asarray(members, dtype=np.int64)
    if table.ndim != 2 or table.shape[1] < 1:
        raise InputError(problem("network", "members", "must be groups of GPUs", table.shape))
    ordered = np.sort(table, axis=1)
    twice = np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))
    if len(twice):
        raise InputError(
            problem("network", f"members[{twice[0]}]", "must not name a GPU twice",
                    table[twice[0]].tolist())
        )  # fmt: skip
    if (table < 0).any() or (table >= topology.gpus).any():
        wrong = int(table[(table < 0) | (table >= topology.gpus)][0])
        near = 0 if wrong < 0 else topology.gpus - 1
        rule = f"must be GPUs of the cluster, 0 to {topology.gpus - 1}"
        raise InputError(problem("network", "members", rule, wrong) + f" (nearest: {near})")
    size = np.broadcast_to(np.asarray(size_bytes, dtype=np.float64), (len(table),))
    if not (size >= 0.0).all():
        wrong_size = float(size[~(size >= 0.0)][0])
        raise InputError(
            problem("network", "size_bytes", "must not be negative", wrong_size) + " (nearest: 0)"
        )
    return _Call(
        cluster=cluster, operation=operation, members=table, size_bytes=size,
        local=_local(topology.seats.domain[table]),
    )  # fmt: skip


def _local(domain: Ints) -> int:
    """Members in a domain, where every domain of every group has as many in a row; else 1."""
    groups, n = domain.shape
    local = int((domain[0] == domain[0, 0]).sum()) if groups else 1
    if n % local:
        return 1
    blocks = domain.reshape(groups, n // local, local)
    together = (blocks == blocks[:, :, :1]).all()
    apart = (np.diff(np.sort(blocks[:, :, 0], axis=1), axis=1) != 0).all()
    return local if together and apart else 1


def _flows(topology: Topology, call: _Call, steps: list[_Hops], start_s: Floats) -> Flows:
    """Route all hops; couple those of a pipeline; chain the steps of each group."""
    groups, number = len(call.members), len(steps)
    source = np.concatenate([hops.source for hops in steps])
    target = np.concatenate([hops.target for hops in steps])
    size = np.concatenate([np.broadcast_to(h.size_bytes, (len(h.source),)) for h in steps])
    limit = np.concatenate([np.broadcast_to(h.limit, (len(h.source),)) for h in steps])
    step, together, used = [], [], 0
    for index, hops in enumerate(steps):
        each = len(hops.source) // max(groups, 1)
        owner = np.repeat(np.arange(groups), each)
        step.append(owner * number + index)
        pipelines = hops.channels or each
        place = np.tile(np.arange(each) * pipelines // max(each, 1), groups)
        together.append(used + owner * pipelines + place)
        used += groups * pipelines
    owner_step, pipe = np.concatenate(step), np.concatenate(together)
    ways = routes(topology, source, target, spread=call.operation != "all_to_all")
    if any(hops.channels for hops in steps):
        ways, size = couple(ways, size, pipe)
        one = np.unique(pipe, return_index=True)[1]
        owner_step, limit = owner_step[one], limit[one]
    near_s, far_s = _hop_s(topology)
    lag = np.tile([hops.near * near_s + hops.far * far_s for hops in steps], groups)
    before = np.arange(groups * number) - 1
    before[::number] = -1
    start = np.repeat(np.broadcast_to(start_s, (groups,)), number)
    return flows(
        ways, size, limit_bytes_per_s=limit, step=owner_step, start_s=start, before=before,
        lag_s=lag,
    )  # fmt: skip


def _hop_s(topology: Topology) -> tuple[float, float]:
    kinds = ("torus", "gpu-up")
    inside = next(kind for kind in kinds if topology.has(kind))
    near = float(topology.latency_s[topology.blocks[inside].first])
    if not topology.has("adapter-up"):
        return near, 0.0
    return near, float(topology.latency_s[topology.blocks["adapter-up"].first])


def _ring(call: _Call) -> list[_Hops]:
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
        _Hops(
            source=order.ravel(), target=target.ravel(),
            size_bytes=np.repeat(size, channels * n), limit=call.rate(inside) / channels,
            channels=channels, near=passes * (n - 1) - far, far=far,
        )
    ]  # fmt: skip


def _orders(call: _Call) -> Ints:
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


def _tree(call: _Call) -> list[_Hops]:
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
    each = table.shape[1] * table.shape[2]
    return [
        _Hops(
            source=table.ravel(), target=np.stack(target, axis=1).ravel(),
            size_bytes=np.repeat(call.size_bytes / local / 2, each), channels=local,
            near=2 * (local - 1), far=2 * np.ceil(np.log2(domains)),
        )
    ]  # fmt: skip


def _hierarchical(call: _Call) -> list[_Hops]:
    """Add up inside each domain, run the call between domains on a share each, gather inside."""
    if call.local == 1 or call.domains == 1:
        return _ring(call)
    groups, local, domains = len(call.members), call.local, call.domains
    blocks = call.members.reshape(groups, domains, local)
    inside = blocks.reshape(groups * domains, local)
    across = blocks.transpose(0, 2, 1).reshape(groups * local, domains)
    between = call.of(across, np.repeat(call.size_bytes / local, local), call.operation, 1)
    whole = np.repeat(call.size_bytes, domains)
    parts = [(between, local)]
    if call.operation != "all_gather":
        parts.insert(0, (call.of(inside, whole, "reduce_scatter", local), domains))
    if call.operation != "reduce_scatter":
        parts.append((call.of(inside, whole, "all_gather", local), domains))
    steps = [(_ring(part)[0], number) for part, number in parts]
    return [replace(hops, channels=hops.channels * number) for hops, number in steps]


def _halving(call: _Call) -> list[_Hops]:
    """Recursive halving and doubling (Thakur et al. 2005): partners ever nearer, then back."""
    n = call.n
    if n & (n - 1):
        near = 2 ** round(np.log2(n))
        rule = "must be a power of two of members for halving"
        raise InputError(problem("network", "members", rule, n) + f" (nearest: {near})")
    place, steps = np.arange(n), []
    distance = n // 2
    while distance >= 1:
        partner = call.members[:, place ^ distance]
        crosses = distance >= call.local
        steps.append(
            _Hops(
                source=call.members.ravel(), target=partner.ravel(),
                size_bytes=np.repeat(call.size_bytes * distance / n, n),
                near=0.0 if crosses else 1.0, far=1.0 if crosses else 0.0,
            )
        )  # fmt: skip
        distance //= 2
    if call.operation == "all_gather":
        return steps[::-1] or [_none()]
    if call.operation == "reduce_scatter":
        return steps or [_none()]
    return [*steps, *steps[::-1]] or [_none()]


def _direct(call: _Call) -> list[_Hops]:
    """Every rank sends to all others at once."""
    steps = _pairwise(call)
    groups, n = call.members.shape
    if n < 2:
        return steps
    shape = (len(steps), groups, n)

    def grouped(name: str) -> NDArray[Any]:
        column = np.stack([np.broadcast_to(getattr(h, name), (groups * n,)) for h in steps])
        return column.reshape(shape).transpose(1, 0, 2).ravel()

    far = call.domains > 1
    return [
        _Hops(
            source=grouped("source"), target=grouped("target"), size_bytes=grouped("size_bytes"),
            limit=grouped("limit"), near=0.0 if far else 1.0, far=1.0 if far else 0.0,
        )
    ]  # fmt: skip


def _pairwise(call: _Call) -> list[_Hops]:
    """Phase i: every rank sends to the i-th after it."""
    n = call.n
    if n < 2:
        return [_none()]
    place, steps = np.arange(n), []
    domain = place // call.local
    rate = call.rate(call.local) / max(call.local - 1, 1)
    for i in range(1, n):
        peer = (place + i) % n
        crosses = domain != domain[peer]
        steps.append(
            _Hops(
                source=call.members.ravel(), target=call.members[:, peer].ravel(),
                size_bytes=np.repeat(call.size_bytes / n, n),
                limit=np.tile(np.where(crosses, np.inf, rate), len(call.members)),
                near=0.0 if crosses.any() else 1.0, far=1.0 if crosses.any() else 0.0,
            )
        )  # fmt: skip
    return steps


def _none() -> _Hops:
    empty = np.zeros(0, dtype=np.int64)
    return _Hops(source=empty, target=empty, size_bytes=np.zeros(0))


_RINGS = tuple(PASSES)
_BUILD: dict[str, tuple[Callable[[_Call], list[_Hops]], tuple[str, ...]]] = {
    "ring": (_ring, _RINGS),
    "tree": (_tree, ("all_reduce",)),
    "hierarchical": (_hierarchical, _RINGS),
    "halving": (_halving, _RINGS),
    "direct": (_direct, ("all_to_all",)),
    "pairwise": (_pairwise, ("all_to_all",)),
}
ALGORITHMS = tuple(_BUILD)


def _known(algorithm: str) -> tuple[Callable[[_Call], list[_Hops]], tuple[str, ...]]:
    if algorithm not in _BUILD:
        raise InputError(
            problem("network", "algorithm", "unknown algorithm", algorithm, ALGORITHMS)
        )
    return _BUILD[algorithm]


def _nearest(operation: str) -> str:
    return next(name for name, (_, possible) in _BUILD.items() if operation in possible)
