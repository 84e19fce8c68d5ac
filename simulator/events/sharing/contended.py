"""What worn links and crowded switches leave to each kind of groups of a layout.

The groups of one kind call at the same time, all of them. How much longer the bytes of a call take
than the closed form has it is what the rates of that kind are divided by, stage by stage; starts
and latencies stay. Replicas wait for one another, so the slowest group of a stage stands for those
of all replicas. Here kinds take turns; what they cost each other where they meet in the course of a
step is played (``events/sharing/shared_step.py``), with what every kind puts on the links.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import ClassVar

import numpy as np

from simulator.arrays import Floats, Ints
from simulator.cost.collectives.calls import send_rate
from simulator.errors import InputError, problem
from simulator.events.deviations.deviations import Deviation
from simulator.events.network.collective_phases import modelled
from simulator.events.network.flows import Flows
from simulator.events.network.group_calls import Traffic, group_members, group_traffic
from simulator.events.network.link_loads import LoadTable
from simulator.events.network.links import BETWEEN_SWITCHES, Topology, degraded, link_name
from simulator.events.network.topology import topology
from simulator.events.network.transfer import Call, in_company
from simulator.hardware.cluster import Cluster, LinksLeft
from simulator.layout.layouts import Layouts
from simulator.layout.placement import place
from simulator.records import dataclass

_SAME = 1e-6
"""Slowdowns nearer to 1 than this are rounding."""
_COPIES = ("host-up", "host-down")
_OUTSIDE = ("adapter-up", "adapter-down", *BETWEEN_SWITCHES)


@dataclass(frozen=True, kw_only=True)
class Network:
    """What is not as the closed form takes it: sound links that switches never run short of."""

    link_degradation: Mapping[str, float] = field(default_factory=dict)
    """Share that is left of links by name (``network/links.py``), 0 to 1; what crosses a lost one
    goes another way. What another job takes of a link is worn off it, too."""
    contention: bool = False
    """Groups share the links between switches by where they really run, over-subscription and all;
    else each finds there what the closed form says. And kinds of groups that move bytes at the same
    moment share every link that both cross, and calls hold compute units beside passes when and as
    long as they run; else each has its links to itself, and the closed form says what it slows."""


@dataclass(frozen=True, kw_only=True)
class LinkUse:
    """The fullest link of its kind."""

    link: str
    group: str
    """The kind of groups that fills it."""
    utilisation: float
    """Share of what is left of it, while their bytes move."""


@dataclass(frozen=True, kw_only=True)
class Contended:
    """How much longer the bytes of each kind of groups take than the closed form has it."""

    KEYS: ClassVar[tuple[str, ...]] = (
        *("contention=given.contention", "worn=given.link_degradation", "beside", "slowdown"),
        *("slowdown_inside", "links"),
    )

    given: Network
    slowdown: Mapping[str, float]
    """Over adapters, of the slowest group; by kind, those that use adapters."""
    slowdown_inside: Mapping[str, float]
    """Inside domains; by kind, those that do, where links inside are worn."""
    links: Mapping[str, LinkUse]
    """By kind of link."""
    stages: tuple[tuple[LinksLeft, ...], ...]
    """Per pipeline rank, what is left to the kinds that are slowed."""
    table: LoadTable | None = field(default=None, compare=False, repr=False)
    """What every kind puts on the links, where they share them."""
    beside: Mapping[str, float] = field(default_factory=dict)
    """The least that other jobs leave of a link, by kind."""


@dataclass(frozen=True, kw_only=True)
class Ground:
    """A network and where a job sits in it."""

    links: Topology
    seats: Ints
    """GPU of the network that each rank is."""
    link_degradation: Mapping[str, float] = field(default_factory=dict)
    """What is left of links by name, to this job."""


def contended(
    layout: Layouts,
    cluster: Cluster,
    network: Network,
    *,
    experts: bool,
    ground: Ground | None = None,
) -> Contended:
    """Run the groups of one layout over the links of its cluster.

    Parameters
    ----------
    layout : Layouts
        One row.
    cluster : Cluster
    network : Network
    experts : bool
        Whether the model has some.
    ground : Ground, optional
        The network that the job shares with others, and what these leave of it; none: it has the
        network of its cluster for itself.

    Raises
    ------
    InputError
        If a worn link is not there, or lost links leave no way.
    """
    if ground is None:
        seats = np.arange(cluster.gpus, dtype=np.int64)
        ground = Ground(
            links=topology(cluster), seats=seats, link_degradation=network.link_degradation
        )
    links, given = ground.links, ground.link_degradation
    weakened = degraded(links, given)
    _refuse_copies(given)
    inside = {name: x for name, x in given.items() if name.split()[0] not in _OUTSIDE}
    outside = {name: x for name, x in given.items() if links.pcie or name not in inside}
    left_of: dict[tuple[str, bool], Floats] = {}
    uses: dict[str, LinkUse] = {}
    pp = int(layout.pp[0])
    stage = np.empty(int(layout.world[0]), dtype=np.int64)
    stage[group_members(layout, "pp")] = np.arange(pp)
    table = LoadTable.of(layout, cluster, weakened, ground.seats) if network.contention else None
    near = bool(inside) or network.contention
    for traffic in group_traffic(layout, cluster, experts=experts, near=near):
        call = replace(traffic.call, members=ground.seats[traffic.members])
        if not (traffic.far or inside):
            flows, slower = _sound(cluster, links, call), np.ones(len(traffic.members))
        else:
            left = outside if traffic.far else inside
            here = in_company(
                cluster, links, [call], link_degradation=left, crowded=network.contention
            )
            slower = np.where(here.slowdown[0] > 1.0 + _SAME, here.slowdown[0], 1.0)
            flows, span = here.flows, here.transfer.makespan_s
            _note(uses, weakened, traffic, here.transfer.carried_bytes / max(span, 1e-300))
            most = left_of.setdefault((traffic.group, traffic.far), np.ones(pp))
            for member in traffic.members.T:
                np.maximum.at(most, stage[member], slower)
        if table is not None and traffic.group != "pp":
            stages_of = stage[traffic.members[:, 0]]
            table.calls(traffic.group, traffic.far, stages_of, flows, slower)
    return Contended(
        given=network,
        slowdown={group: float(x.max()) for (group, far), x in left_of.items() if far},
        slowdown_inside={group: float(x.max()) for (group, far), x in left_of.items() if not far},
        links=uses,
        stages=tuple(_left(left_of, s) for s in range(pp)),
        table=None if table is None else _with_pairs(table, layout, left_of),
        beside=_left_beside(ground.link_degradation, network.link_degradation),
    )


def _left_beside(
    left: Mapping[str, float], without_neighbours: Mapping[str, float]
) -> dict[str, float]:
    """The least that is left of a link of each kind beyond its wear."""
    lost: dict[str, float] = {}
    for name, share in left.items():
        kind, beyond = name.split()[0], share / without_neighbours.get(name, 1.0) if share else 1.0
        if beyond < 1.0:
            lost[kind] = min(lost.get(kind, 1.0), beyond)
    return lost


def _sound(cluster: Cluster, links: Topology, call: Call) -> Flows:
    """Flows of calls that nothing slows."""
    return modelled(
        cluster,
        links,
        call.members,
        call.size_bytes,
        call.seconds,
        operation=call.operation,
        algorithm=call.algorithm,
    )


def _with_pairs(
    table: LoadTable, layout: Layouts, left_of: Mapping[tuple[str, bool], Floats]
) -> LoadTable:
    """Add sends between stages and copies to what groups load."""
    pp = table.stages.shape[1]
    far = bool(place(layout, table.cluster.domain).pp.local[0] == 1)
    slower = left_of.get(("pp", far), np.ones(pp))
    rate = send_rate(table.cluster, far=far) / slower
    ahead = {(s, s + 1) for s in range(pp - 1)} | ({(pp - 1, 0)} if pp > 1 else set())
    table.sends(ahead | {(other, rank) for rank, other in ahead}, rate)
    table.copies()
    return table


def _refuse_copies(link_degradation: Mapping[str, float]) -> None:
    """No group of ranks uses the links to host memory; the copies on them are not played here."""
    rule = "must be a link that ranks use among themselves"
    wrong = [name for name in link_degradation if name.split()[0] in _COPIES]
    if wrong:
        raise InputError(problem("network", "links", rule, name) for name in wrong)


def _note(uses: dict[str, LinkUse], weakened: Topology, traffic: Traffic, rate: Floats) -> None:
    """Keep the fullest link of each kind."""
    capacity = weakened.capacity_bytes_per_s
    filled = np.where(capacity > 0.0, rate / np.where(capacity > 0.0, capacity, 1.0), 0.0)
    for kind, block in weakened.blocks.items():
        at = block.first + int(filled[block.first : block.first + block.size].argmax())
        share = float(min(filled[at], 1.0))
        if share > (uses[kind].utilisation + _SAME if kind in uses else 0.0):
            uses[kind] = LinkUse(
                link=link_name(weakened, at), group=traffic.group, utilisation=share
            )


def _left(left_of: Mapping[tuple[str, bool], Floats], stage: int) -> tuple[LinksLeft, ...]:
    """What the links leave to each kind of groups in one stage, where that is not all."""
    shares: dict[str, dict[str, float]] = {}
    for (group, far), slower in left_of.items():
        if slower[stage] > 1.0:
            name = "scale_out" if far else "scale_up"
            shares.setdefault(group, {})[name] = 1.0 / float(slower[stage])
    return tuple(LinksLeft(group=group, **left) for group, left in shares.items())


def on_links(
    cluster: Cluster, links_left: Contended, deviations: Sequence[Deviation]
) -> tuple[Cluster, list[Deviation]]:
    """Give every stage the links that are left to it.

    Stages that are left other than the first one become deviations, and so do those of the user in
    every stage, priced with what is left there. `deviations` have been checked.
    """
    first, count = links_left.stages[0], len(links_left.stages)
    cluster, plain = replace(cluster, left=first), cluster
    made = []
    for s, left in enumerate(links_left.stages):
        if left != first:
            made.append(Deviation(stage=s, cluster=replace(plain, left=left)))
    for deviation in deviations:
        for s in range(count) if deviation.stage is None else (deviation.stage,):
            servers = replace(deviation.cluster or plain, left=links_left.stages[s])
            made.append(replace(deviation, stage=s, cluster=servers))
    return cluster, made
