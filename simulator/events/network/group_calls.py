"""Who the groups of a layout are, and what they ask of the links: one call for each kind.

Only the rate counts here, not how much a step moves: a call has a round size and takes what the
bandwidth terms of the closed form say it does, on adapters or inside a domain, without any start
or latency. Links that leave it less slow those terms, which ``Cluster.links_of`` is for. Over
adapters an all-reduce takes the links of the algorithm that the closed form runs it with.
"""

from __future__ import annotations

import math

import numpy as np

from simulator.arrays import Ints
from simulator.cost.collectives.calls import adapter_bytes, domain_rate, exchange_rate, send_rate
from simulator.cost.collectives.curves import board
from simulator.cost.collectives.nccl.algorithms import CHOICES, choose
from simulator.errors import InputError, problem
from simulator.events.network.collective_hops import in_a_row
from simulator.events.network.transfer import Call
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import RANK_ORDERS, Layouts
from simulator.layout.placement import Group
from simulator.records import dataclass

_SIZE_BYTES = 1e9

_OVER = {"tp": ("tp",), "cp": ("cp",), "dp": ("dp", "cp"), "pp": ("pp",)}
DIMENSIONS = (*_OVER, "etp", "ep", "edp", "experts")
"""Kinds of groups; dp holds the context-parallel ranks too, experts all ranks of ep and etp."""


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """One kind of groups, all of which call at once."""

    group: str
    """As ``Cluster.links_of`` names it."""
    call: Call
    far: bool
    """Over adapters; else inside domains."""

    @property
    def members(self) -> Ints:
        """GPUs of each group, (groups, members)."""
        return np.asarray(self.call.members, dtype=np.int64)


def group_traffic(
    layout: Layouts, cluster: Cluster, *, experts: bool, near: bool = True
) -> list[Traffic]:
    """List what the groups of one layout do on the links, one entry for each kind and way.

    Parameters
    ----------
    layout : Layouts
        One row.
    cluster : Cluster
    experts : bool
        Whether the model has any.
    near : bool
        List what moves inside domains, too.
    """
    traffic = []
    for group, members, operation in _groups(layout, experts):
        traffic += _far(cluster, group, members, operation)
        if near:
            traffic += _near(cluster, group, members, exchanges=operation == "all_to_all")
    for group, pairs in _neighbours(layout):
        traffic += _sends(cluster, group, pairs, near)
    return traffic


def _groups(layout: Layouts, experts: bool) -> list[tuple[str, Ints, str]]:
    """Kind, GPUs of every group, and what it does."""
    row = layout.row()
    reduced = "all_gather" if row["sequence_parallel"] else "all_reduce"
    kinds = [("tp", group_members(layout, "tp"), reduced)]
    if experts:
        kinds.append(("etp", group_members(layout, "etp"), "all_gather"))
    context = group_members(layout, "cp")
    if row["cp_kind"] == "hierarchical":
        adjacent = int(row["cp_a2a"])
        kinds.append(("cp_a2a", context.reshape(-1, adjacent), "all_to_all"))
    elif row["cp_kind"] != "ring":
        operation = "all_to_all" if row["cp_kind"] == "all_to_all" else "all_gather"
        kinds.append(("cp", context, operation))
    if experts and row["dispatcher"] == "allgather":
        kinds.append(("experts", group_members(layout, "experts"), "all_gather"))
    elif experts:
        kinds.append(("ep", group_members(layout, "ep"), "all_to_all"))
    whole = row["sharding"] == "ddp"
    copies = 1 if whole else max(group_members(layout, "dp").shape[1] // int(row["shard_group"]), 1)
    for name in ("dp", "edp") if experts else ("dp",):
        inside, across = _sharded(group_members(layout, name), copies)
        kinds.append((name, inside, "all_reduce" if whole else "all_gather"))
        kinds.append((f"{name}_copies", across, "all_reduce"))
    return [kind for kind in kinds if kind[1].shape[1] > 1]


def _sharded(members: Ints, copies: int) -> tuple[Ints, Ints]:
    """Groups that share states, and those that hold the same share of them."""
    groups, n = members.shape
    copies = 1 if n % copies else copies
    parts = members.reshape(groups, copies, n // copies)
    return parts.reshape(-1, n // copies), parts.transpose(0, 2, 1).reshape(-1, copies)


def _neighbours(layout: Layouts) -> list[tuple[str, Ints]]:
    """Pairs that send to each other at the same time: of stages every second one, then the rest.

    A ring of keys leaves a domain at its last member and enters the next one at its first.
    """
    row, kinds = layout.row(), []
    stages = group_members(layout, "pp")
    pp, wraps = stages.shape[1], int(row["vpp"]) > 1 and stages.shape[1] > 2
    for first in range(min(pp - 1, 2)):
        place = np.arange(first, pp - 1, 2)
        kinds.append(("pp", np.stack([stages[:, place], stages[:, place + 1]], axis=2)))
    if wraps:
        kinds.append(("pp", stages[:, None, [pp - 1, 0]]))
    if row["cp_kind"] in ("ring", "hierarchical") and int(row["cp"]) > 1:
        context, name = group_members(layout, "cp"), "cp"
        if row["cp_kind"] == "hierarchical":
            adjacent = int(row["cp_a2a"])
            name, context = "cp_ring", _sharded(context, context.shape[1] // adjacent)[1]
        if context.shape[1] > 1:
            kinds += [(name, np.stack([context, np.roll(context, -1, axis=1)], axis=2))]
    return [(name, pairs.reshape(-1, 2)) for name, pairs in kinds]


def _far(cluster: Cluster, group: str, members: Ints, operation: str) -> list[Traffic]:
    """What a kind of groups moves over the adapters."""
    local, n = in_a_row(members // cluster.domain), members.shape[1]
    if local == n:
        return []
    shape = Group(size=np.array(n), local=np.array(local))
    algorithm = None
    if operation == "all_to_all":
        seconds = _SIZE_BYTES * (n - local) / n / exchange_rate(cluster, shape.domains)
    else:
        code = choose(cluster, operation, _SIZE_BYTES, shape)
        moved = adapter_bytes(cluster, operation, code, _SIZE_BYTES, shape)
        seconds = moved / domain_rate(cluster, shape)
        algorithm = CHOICES[int(code)].algorithm.word
    call = Call(
        operation=operation,
        members=members,
        size_bytes=_SIZE_BYTES,
        seconds=float(seconds),
        algorithm=algorithm,
    )
    return [Traffic(group=group, call=call, far=True)]


def _near(cluster: Cluster, group: str, members: Ints, *, exchanges: bool) -> list[Traffic]:
    """What it moves between the members of a domain."""
    local = in_a_row(members // cluster.domain)
    if local < 2:
        return []
    operation = "all_to_all" if exchanges else "all_gather"
    rate = float(board(cluster).rates(operation, np.array(local))["rate"])
    seconds = _SIZE_BYTES * (local - 1) / local / rate
    inside = members.reshape(-1, local)
    call = Call(operation=operation, members=inside, size_bytes=_SIZE_BYTES, seconds=seconds)
    return [Traffic(group=group, call=call, far=False)]


def _sends(cluster: Cluster, group: str, pairs: Ints, near: bool) -> list[Traffic]:
    """Sends between neighbours, those that leave a domain apart from those that do not."""
    crosses = pairs[:, 0] // cluster.domain != pairs[:, 1] // cluster.domain
    traffic = []
    for far in (True, False):
        rate = send_rate(cluster, far=far)
        alike = pairs[crosses == far]
        if len(alike) and (far or near):
            call = Call(
                operation="all_gather",
                members=alike,
                size_bytes=_SIZE_BYTES,
                seconds=_SIZE_BYTES / 2.0 / rate,
            )
            traffic.append(Traffic(group=group, call=call, far=far))
    return traffic


def group_members(layout: Layouts, name: str) -> Ints:
    """GPUs of every group of one kind, (groups, members), in the order of ranks.

    Parameters
    ----------
    layout : Layouts
        One row.
    name : str
        One of `DIMENSIONS`.

    Examples
    --------
    >>> group_members(Layouts.of(tp=2, dp=2, global_batch=2), "dp").tolist()
    [[0, 2], [1, 3]]
    """
    if name not in DIMENSIONS:
        raise InputError(problem("network", "group", "unknown kind of group", name, DIMENSIONS))
    row = layout.row()
    order, grid = _grid(layout)
    if name in _OVER:
        axes = [order.index(dimension) for dimension in _OVER[name]]
        axes.sort()
        moved = np.moveaxis(grid, axes, range(-len(axes), 0))
        return moved.reshape(-1, math.prod(grid.shape[axis] for axis in axes))
    stages = np.moveaxis(grid, order.index("pp"), 0).reshape(int(row["pp"]), -1)
    etp, ep = int(row["etp"]), int(row["ep"])
    experts = stages.reshape(len(stages), -1, ep, etp)
    if name == "experts":
        return experts.reshape(-1, ep * etp)
    axis = {"edp": 1, "ep": 2, "etp": 3}[name]
    return np.moveaxis(experts, axis, -1).reshape(-1, experts.shape[axis])


def stage_members(layout: Layouts) -> Ints:
    """GPUs of every pipeline rank of every replica, (dp, pp, tp x cp).

    Examples
    --------
    >>> stage_members(Layouts.of(tp=2, pp=2, dp=2, global_batch=2)).tolist()
    [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    """
    order, grid = _grid(layout)
    moved = np.moveaxis(grid, [order.index("dp"), order.index("pp")], [0, 1])
    return moved.reshape(*moved.shape[:2], -1)


def _grid(layout: Layouts) -> tuple[list[str], Ints]:
    """Dimensions of the rank grid from the outermost to the innermost, and GPUs along them."""
    row = layout.row()
    order = RANK_ORDERS[int(layout.rank_order[0])].split("-")[::-1]
    degrees = [int(row[dimension]) for dimension in order]
    return order, np.arange(math.prod(degrees), dtype=np.int64).reshape(degrees)
