"""Which servers the stages of each replica lie on, and which replicas are therefore alike.

Ranks that keep step in every layer wait for the slowest of the servers they lie on: those of a
stage (tensor- and context-parallel), and of replicas in one expert group or that gather parameters
together. So what counts is the set of kinds of servers of each stage of such a block of replicas;
blocks with the same sets, and without deviations of their own, are simulated once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Ints
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import Layouts
from simulator.records import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Alike:
    """Replicas that are simulated once."""

    numbers: tuple[int, ...]
    """Data-parallel replicas, from 0."""
    named: tuple[int, ...]
    """Deviations that are of these replicas only: their place in the list."""
    servers: tuple[Cluster, ...]
    """Of each pipeline rank; of several kinds where its ranks, or those in step, lie on several."""


def gpus_on(layout: Layouts, cluster: Cluster) -> Ints:
    """GPUs of each kind of servers in every stage of every replica, (dp, pp, kinds).

    Groups are filled by ranks in their order.
    """
    from simulator.events.network.group_calls import stage_members  # brings the links along

    ranks = stage_members(layout)
    if not cluster.kinds:
        return np.full((*ranks.shape[:2], 1), ranks.shape[2])
    kind = np.repeat(
        [group.kind for group in cluster.groups], [group.gpus for group in cluster.groups]
    )
    count = len(cluster.kinds)
    return np.stack([(kind[ranks] == code).sum(axis=2) for code in range(count)], axis=2)


def alike_replicas(
    layout: Layouts, cluster: Cluster, span: int, replicas: Sequence[int | None]
) -> list[Alike]:
    """Sort the replicas of a layout into those that are alike.

    Parameters
    ----------
    layout : Layouts
        One row.
    cluster : Cluster
    span : int
        Replicas that keep step in every layer.
    replicas : sequence of int or None
        The replica of each deviation; None: every one.
    """
    held = gpus_on(layout, cluster) > 0
    dp = len(held)
    blocks = np.logical_or.reduceat(held, np.arange(0, dp, span))
    patterns, which = np.unique(blocks.reshape(len(blocks), -1), axis=0, return_inverse=True)
    servers = [_servers(one.reshape(held.shape[1:]), cluster) for one in patterns]
    numbers_of: dict[tuple[tuple[int, ...], int], list[int]] = {}
    pattern_numbers: dict[int, list[int]] = {}
    for i, replica in enumerate(replicas):
        if replica is not None:
            pattern_numbers.setdefault(replica // span, []).append(i)
    for block, pattern in enumerate(which.reshape(-1).tolist()):
        numbers = range(block * span, min((block + 1) * span, dp))
        numbers_of.setdefault((tuple(pattern_numbers.get(block, ())), pattern), []).extend(numbers)
    return [
        Alike(numbers=tuple(numbers), named=named, servers=servers[pattern])
        for (named, pattern), numbers in sorted(
            numbers_of.items(), key=lambda item: (item[0][0] != (), item[1])
        )
    ]


def _servers(kinds: NDArray[np.bool_], cluster: Cluster) -> tuple[Cluster, ...]:
    """The servers of each pipeline rank; `kinds` has shape (pp, kinds)."""
    sets = [tuple(np.flatnonzero(row).tolist()) for row in kinds]
    made = {one: _cluster_of(one, cluster) for one in sets}
    return tuple(made[one] for one in sets)


def _cluster_of(kinds: tuple[int, ...], cluster: Cluster) -> Cluster:
    """One kind as a cluster of its own, or several together."""
    some = tuple(cluster.each[kind] for kind in kinds)
    if len(some) == 1:
        return some[0]
    return replace(cluster, name=" + ".join(one.name for one in some), kinds=some)
