"""Collectives that run at the same time: how much longer each takes for what it shares.

The closed forms know how long a call takes where nothing else is on its links. Here calls of one
job or of several, started when they start, share the links of a network of which some may be worn
or lost: each keeps its own time alone, and is slower by what it must leave to others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from simulator.arrays import Floats
from simulator.errors import InputError
from simulator.events.network.collective_phases import modelled
from simulator.events.network.flows import Flows, joined
from simulator.events.network.links import Topology, degraded
from simulator.events.network.transfer import Transfer, transfer
from simulator.hardware.cluster import Cluster
from simulator.records import dataclass


@dataclass(frozen=True, kw_only=True)
class Call:
    """One collective on each of several groups at once."""

    operation: str
    members: ArrayLike
    """GPUs of each group, (groups, members)."""
    size_bytes: float
    """As the collectives of ``cost/collectives/calls.py`` take it."""
    seconds: float
    """What it takes on sound links that nothing else uses."""
    algorithm: str | None = None
    """Whose links it takes (``events/network/collective_phases.py``); None: those of a ring, of an
    all-to-all directly."""
    start_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class InCompany:
    """What calls take beside one another."""

    seconds: tuple[Floats, ...]
    """By call, one per group."""
    slowdown: tuple[Floats, ...]
    """The same over its time alone; 1 where it takes none."""
    flows: Flows
    """One per group, groups of the first call first."""
    transfer: Transfer
    """Of all flows."""


def in_company(
    cluster: Cluster,
    network: Topology,
    calls: Sequence[Call],
    *,
    link_degradation: Mapping[str, float] | None = None,
    crowded: bool = False,
) -> InCompany:
    """Run calls beside one another.

    Parameters
    ----------
    cluster : Cluster
    network : Topology
        Its sound links.
    calls : sequence of Call
    worn : mapping, optional
        Share that is left of links by name; 0 is a lost link, which flows go around.
    crowded : bool
        The groups of a call share the links between switches, which its time does not know of.

    Raises
    ------
    InputError
        If there is no call, one is impossible, or lost links leave no way.
    """
    if not calls:
        raise InputError("network: calls: must name at least one collective")
    links = degraded(network, link_degradation) if link_degradation else network
    tables = [
        modelled(
            cluster,
            links,
            call.members,
            call.size_bytes,
            call.seconds,
            operation=call.operation,
            algorithm=call.algorithm,
            start_s=call.start_s,
            crowded=crowded,
        )
        for call in calls
    ]
    flows = joined(*tables)
    played = transfer(flows, links.capacity_bytes_per_s)
    ends = np.cumsum([len(table) for table in tables])
    took = np.split(played.end_s - played.start_s, ends[:-1])
    slower = tuple(
        np.divide(call_s, call.seconds, out=np.ones_like(call_s), where=call_s > 0.0)
        for call_s, call in zip(took, calls, strict=True)
    )
    return InCompany(seconds=tuple(took), slowdown=slower, flows=flows, transfer=played)
