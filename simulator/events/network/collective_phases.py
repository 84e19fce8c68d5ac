"""Collectives as flows: the phases of their algorithm, hop by hop.

Equal phases in a row are one step with the bytes and the latency of all. The hops of a ring or a
tree are a pipeline fed in pieces: they move at one rate, that of the slowest, so that a ring is one
flow over the links of all its hops. With nothing else on its links a call takes what the bandwidth
terms of ``cost/collectives/calls.py`` say, but for two things: a tree loads the servers that are
inside both its halves with all of twice the bytes, where the closed form has the mean over servers;
and a ring over a torus takes the two directions of its path, where the closed form has all axes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from simulator.arrays import Floats
from simulator.cost.collectives.nccl.algorithms import ALGORITHMS as NCCL
from simulator.cost.collectives.nccl.pat import pat_steps
from simulator.errors import InputError, problem
from simulator.events.network.collective_hops import (
    PASSES,
    Call,
    Hops,
    direct,
    hierarchical,
    in_a_row,
    ring,
    tree,
)
from simulator.events.network.flows import Flows, couple, flows
from simulator.events.network.links import BETWEEN_SWITCHES, Topology
from simulator.events.network.routes import Routes, routes
from simulator.hardware.cluster import Cluster

# --- PAT: a logarithm of steps, all members at once --------------------------------------


def aggregated_trees(call: Call) -> list[Hops]:
    """Steps one after the other, far members first in a gather, last in a scatter.

    Groups with several members in a domain go round a ring, as NCCL has them do.
    """
    if call.n < 2 or call.local > 1:
        return ring(call)
    gathers = call.operation == "all_gather"
    steps = pat_steps(call.n)
    return [
        Hops(
            source=call.members.ravel(),
            target=np.roll(call.members, -step.distance if gathers else step.distance, 1).ravel(),
            size_bytes=np.repeat(step.shares * call.size_bytes / call.n, call.n),
            far=1.0,
        )
        for step in (steps if gathers else reversed(steps))
    ]


OPERATIONS = (*PASSES, "all_to_all")


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
    """Flows of one collective on each of several groups at once, phase after phase.

    As fast as the links are: what closed forms of algorithms are held against. A step is played
    with `modelled` calls, whose time the closed forms know.

    Parameters
    ----------
    operation : str
        One of `OPERATIONS`.
    members : array_like of int, (groups, members)
        GPUs of each group, domain by domain.
    size_bytes : array_like
        As the collectives of ``cost/collectives/calls.py`` take it: the whole buffer, or what a
        rank of an all-to-all sends, its own share included. One number, or one by group.
    algorithm : str
        One of `ALGORITHMS`: those of NCCL, or direct (all peers at once) for all-to-all. What
        switches of a domain or of the network add up goes round a ring here.
    start_s : array_like
        When it starts, one number or one by group.

    Raises
    ------
    InputError
        If a name is unknown, a group has one member twice or is no table of groups, or the
        algorithm cannot do the operation.
    """
    call = _call(cluster, topology, operation, members, size_bytes)
    steps = _steps(call, algorithm)
    return _flows(topology, call, steps, np.asarray(start_s, dtype=np.float64))


def modelled(
    cluster: Cluster,
    topology: Topology,
    members: ArrayLike,
    size_bytes: ArrayLike,
    seconds: ArrayLike,
    *,
    operation: str = "all_reduce",
    algorithm: str | None = None,
    start_s: ArrayLike = 0.0,
    crowded: bool = False,
) -> Flows:
    """One task for each group, which takes `seconds` where nothing shares the links of its hops.

    For calls whose time the closed forms know better than flows do (in-switch reduction, small
    messages): contention slows it as it would the slowest hop of its algorithm, all phases of which
    run at once, fed in pieces. Where its time is too short for their bytes it moves fewer, and
    fills the links that they would overfill. Where `crowded`, only ports and adapters count for
    that: what its groups together ask of the links between switches beyond those slows them, too.
    """
    call = _call(cluster, topology, operation, members, size_bytes)
    steps = _steps(call, algorithm or _nearest(operation))
    groups = len(call.members)
    alone = np.broadcast_to(np.asarray(seconds, dtype=np.float64), (groups,))
    if call.n < 2:
        alone = np.ones(groups)
    elif not (alone > 0.0).all():
        at = int(np.flatnonzero(~(alone > 0.0))[0])
        raise InputError(problem("network", f"seconds[{at}]", "must be positive", float(alone[at])))
    ways, most = _coupled(topology, call, steps)
    sound, usual = replace(topology, capacity_bytes_per_s=topology.rated_bytes_per_s), ways
    if (topology.capacity_bytes_per_s <= 0.0).any():
        usual, _ = _coupled(sound, call, steps)
    rate = np.where(most > 0.0, most, 1.0) / alone
    over = _overfilled(sound, usual, rate, crowded)
    start = np.broadcast_to(np.asarray(start_s, dtype=np.float64), (groups,))
    return flows(
        replace(ways, share=ways.share / over[ways.link]),
        most,
        limit_bytes_per_s=rate,
        start_s=start.copy(),
    )


def _steps(call: Call, algorithm: str) -> list[Hops]:
    """Phases of a call by an algorithm that can do it."""
    if algorithm not in _HOPS:
        raise InputError(
            problem("network", "algorithm", "unknown algorithm", algorithm, ALGORITHMS)
        )
    if call.operation not in _OPERATIONS[algorithm]:
        raise InputError(
            problem("network", "algorithm", f"must be one that does {call.operation}", algorithm)
            + f" (nearest: {_nearest(call.operation)})"
        )
    return _HOPS[algorithm](call)


def _coupled(topology: Topology, call: Call, steps: list[Hops]) -> tuple[Routes, Floats]:
    """Each group as one flow."""
    groups = len(call.members)
    source = np.concatenate([hops.source for hops in steps])
    target = np.concatenate([hops.target for hops in steps])
    size = [np.broadcast_to(hops.size_bytes, (len(hops.source),)) for hops in steps]
    owner = [np.repeat(np.arange(groups), len(hops.source) // groups) for hops in steps]
    return couple(
        routes(topology, source, target, spread=call.operation != "all_to_all"),
        np.concatenate(size),
        np.concatenate(owner),
        groups,
    )


def _overfilled(sound: Topology, ways: Routes, rate: Floats, crowded: bool) -> Floats:
    """By link, how far its kind would be overfilled at these rates; at least 1.

    Where `crowded`, links between switches count as their adapters do.
    """
    weights = ways.share * np.repeat(rate, np.diff(ways.first))
    load = np.bincount(ways.link, weights=weights, minlength=sound.links)
    filled, over = load / sound.rated_bytes_per_s, np.ones(sound.links)
    for block in sound.blocks.values():
        here = slice(block.first, block.first + block.size)
        most = filled[here] if block.names else float(filled[here].max())
        over[here] = np.maximum(most, 1.0)
    if crowded and sound.has("adapter-up"):
        adapters = [sound.blocks[kind] for kind in ("adapter-up", "adapter-down")]
        most = max(float(over[block.first]) for block in adapters)
        for kind in BETWEEN_SWITCHES:
            if sound.has(kind):
                block = sound.blocks[kind]
                over[block.first : block.first + block.size] = most
    return over


def _call(
    cluster: Cluster, topology: Topology, operation: str, members: ArrayLike, size_bytes: ArrayLike
) -> Call:
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
            problem(
                "network",
                f"members[{twice[0]}]",
                "must not name a GPU twice",
                table[twice[0]].tolist(),
            )
        )
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
    return Call(
        cluster=cluster,
        operation=operation,
        members=table,
        size_bytes=size,
        local=in_a_row(topology.seats.domain[table]),
    )


def _flows(topology: Topology, call: Call, steps: list[Hops], start_s: Floats) -> Flows:
    """Route all hops; couple those of a pipeline; chain the steps of each group."""
    groups, number = len(call.members), len(steps)
    source = np.concatenate([hops.source for hops in steps])
    target = np.concatenate([hops.target for hops in steps])
    size = np.concatenate([np.broadcast_to(h.size_bytes, (len(h.source),)) for h in steps])
    limit = np.concatenate([np.broadcast_to(h.limit, (len(h.source),)) for h in steps])
    step, together, used = [], [], 0
    for index, hops in enumerate(steps):
        hops_of_group = len(hops.source) // max(groups, 1)
        owner = np.repeat(np.arange(groups), hops_of_group)
        step.append(owner * number + index)
        pipelines = hops.channels or hops_of_group
        place = np.arange(hops_of_group) * pipelines // max(hops_of_group, 1)
        together.append(used + owner * pipelines + np.tile(place, groups))
        used += groups * pipelines
    owner_step, pipe = np.concatenate(step), np.concatenate(together)
    ways = routes(topology, source, target, spread=call.operation != "all_to_all")
    if any(hops.channels for hops in steps):
        ways, size = couple(ways, size, pipe, used)
        leading = np.unique(pipe, return_index=True)[1]
        owner_step, limit = owner_step[leading], limit[leading]
    near_s, far_s = _hop_s(topology)
    lag = np.tile([hops.near * near_s + hops.far * far_s for hops in steps], groups)
    before = np.arange(groups * number) - 1
    before[::number] = -1
    start = np.repeat(np.broadcast_to(start_s, (groups,)), number)
    return flows(
        ways,
        size,
        limit_bytes_per_s=limit,
        step=owner_step,
        start_s=start,
        before=before,
        lag_s=lag,
    )


def _hop_s(topology: Topology) -> tuple[float, float]:
    kinds = ("torus", "gpu-up", "wire")
    inside = next(kind for kind in kinds if topology.has(kind))
    near = float(topology.latency_s[topology.blocks[inside].first])
    if not topology.has("adapter-up"):
        return near, 0.0
    return near, float(topology.latency_s[topology.blocks["adapter-up"].first])


_HOPS: dict[str, Callable[[Call], list[Hops]]] = {
    "ring": ring,
    "tree": tree,
    "nvls": ring,
    "nvls_tree": hierarchical,
    "collnet": ring,
    "pat": aggregated_trees,
    "direct": direct,
}
"""Phases of each algorithm of NCCL, by its word, and of all-to-alls."""
ALGORITHMS = tuple(_HOPS)
_OPERATIONS = {algorithm.word: algorithm.operations for algorithm in NCCL} | {
    "direct": ("all_to_all",)
}


def _nearest(operation: str) -> str:
    return next(word for word in ALGORITHMS if operation in _OPERATIONS[word])
