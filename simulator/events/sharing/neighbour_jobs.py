"""Other jobs on other servers of the same fabric: what they leave of the links between switches.

Servers of all jobs alternate under the switches, each job's spread evenly, as they come to lie
where a scheduler gives out what is free. A neighbour's calls come and go in no step with this
job's, so that a link has on average left what the neighbour's mean load leaves: its calls' loads
(``events/network/link_loads.py``) times the share of its step for which they move bytes. Jobs do
not slow their neighbours down to less than an even share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from simulator.arrays import Floats, Ints
from simulator.errors import InputError, problem
from simulator.events.deviations.deviations import replicas_of
from simulator.events.network.link_loads import LoadTable, Users
from simulator.events.network.links import BETWEEN_SWITCHES, link_name
from simulator.events.network.topology import topology
from simulator.events.sharing.byte_time import COMMUNICATION, ByteTime, bytes_of_all, call_seconds
from simulator.events.sharing.contended import Contended, Ground, Network, contended, on_links
from simulator.events.sharing.phase_rows import destinations
from simulator.events.step.charge import step_time_s
from simulator.events.step.play import Played, play_step
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import Layouts
from simulator.records import dataclass
from simulator.software.profile import Software
from simulator.workload.recipe import Workload

_PP = COMMUNICATION.index("pp")


@dataclass(frozen=True, kw_only=True)
class Job:
    """Another job: one layout of what it trains, on how many servers, with what."""

    layout: Layouts
    workload: Workload
    cluster: Cluster
    software: Software


def alternating(counts: Sequence[int]) -> list[Ints]:
    """Places of the servers of several jobs, each job's spread evenly over all.

    Examples
    --------
    >>> [places.tolist() for places in alternating([4, 2])]
    [[0, 2, 3, 5], [1, 4]]
    """
    at = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
    job = np.repeat(np.arange(len(counts)), counts)
    order = np.lexsort((job, at))
    return [np.flatnonzero(job[order] == j).astype(np.int64) for j in range(len(counts))]


def links_with_neighbours(cluster: Cluster, jobs: Sequence[Job], network: Network) -> Ground:
    """The links of a fabric that several jobs use, as the first one finds them.

    Raises
    ------
    InputError
        If a job's servers are of another kind or on another fabric.
    """
    _check(cluster, jobs)
    clusters = [cluster, *(job.cluster for job in jobs)]
    size = cluster.node.accelerators
    servers = [-(-neighbour.gpus // size) for neighbour in clusters]
    whole = replace(cluster, groups=(replace(cluster.groups[0], gpus=sum(servers) * size),))
    links = topology(whole)
    seats = [
        (places[:, None] * size + np.arange(size)).ravel()[: neighbour.gpus]
        for places, neighbour in zip(alternating(servers), clusters, strict=True)
    ]
    load = np.zeros(links.links)
    for job, job_seats in zip(jobs, seats[1:], strict=True):
        load += _mean_load(job, Ground(links=links, seats=job_seats))
    left = np.maximum(1.0 - load, 1.0 / len(clusters))
    link_degradation = dict(network.link_degradation)
    for kind in BETWEEN_SWITCHES:
        if links.has(kind):
            block = links.blocks[kind]
            for at in range(block.first, block.first + block.size):
                if left[at] < 1.0:
                    name = link_name(links, at)
                    link_degradation[name] = link_degradation.get(name, 1.0) * float(left[at])
    return Ground(links=links, seats=seats[0], link_degradation=link_degradation)


def _check(cluster: Cluster, jobs: Sequence[Job]) -> None:
    """Refuse jobs that cannot share this job's network."""
    wrong = []
    if cluster.node.scale_up.domain > cluster.node.accelerators:
        rule = "must be left out where domains reach over servers"
        wrong.append(problem("simulate", "beside", rule, cluster.name))
    for i, job in enumerate(jobs):
        if job.cluster.name != cluster.name:
            rule = f"must be on the same fabric, {cluster.name}"
            wrong.append(problem("simulate", f"beside[{i}]", rule, job.cluster.name))
    if wrong:
        raise InputError(wrong)


def _mean_load(job: Job, ground: Ground) -> Floats:
    """Share of every link that a job takes over its step on average."""
    network = Network(contention=True)
    experts = job.workload.architecture.is_moe
    found: Contended = contended(job.layout, job.cluster, network, experts=experts, ground=ground)
    cluster, deviations = on_links(job.cluster, found, ())
    given = (job.layout, job.workload, cluster, job.software)
    replicas = replicas_of(*given, deviations)
    played = play_step(replicas)
    table = found.table
    assert isinstance(table, LoadTable)
    whole = call_seconds(replicas)
    busy_s = _busy_s(played, bytes_of_all(replicas, whole, table.kinds, given, deviations))
    load, step_s = np.zeros(ground.links.links), step_time_s(played)
    for user, (link, share) in table.users.items():
        load[link] += share * min(busy_s.get(user, 0.0) / step_s, 1.0)
    return load


def _busy_s(played: Played, calls: Sequence[ByteTime]) -> dict[Users, float]:
    """Seconds of a step for which each user's calls move bytes."""
    listed, target = played.program, destinations(played)
    flat = np.ravel_multi_index((listed.rank, listed.chunk, listed.kind), target.shape)
    count = np.bincount(flat, minlength=target.size).reshape(target.shape) / played.steps
    step_end, pp = played.replicas[0].step_end, played.pp
    busy_s: dict[Users, float] = {}
    for call in calls:
        for stage in range(pp):
            pass_s = count[stage][..., None] * call.passes_s[stage]
            once_s = step_end.reductions * call.reduce_s[stage].sum() + call.gather_s[stage].sum()
            user = (call.group, call.far, stage)
            busy_s[user] = busy_s.get(user, 0.0) + float(pass_s.sum() + once_s)
        for rank, chunk, kind in np.argwhere(target[:pp] >= 0).tolist():
            if call.group == "pp":
                sent = ("send", rank, int(target[rank, chunk, kind]) % pp)
                seconds = call.passes_s[rank, chunk, kind, _PP] + call.sends_s[rank]
                busy_s[sent] = busy_s.get(sent, 0.0) + float(count[rank, chunk, kind] * seconds)
    return busy_s
