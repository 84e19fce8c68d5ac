"""Simulate one training step: from a layout to a step time, action by action."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from simulator.cost.loading import supply_of
from simulator.errors import InputError, problem
from simulator.events.deviations.deviations import Deviation, check_deviations, replicas_of
from simulator.events.deviations.jittered_step import Jitter, jittered_step
from simulator.events.deviations.slow_servers import mixed_step
from simulator.events.loaders import played_input, with_loading
from simulator.events.network.link_loads import LoadTable
from simulator.events.played import SimulatedStep
from simulator.events.sharing.byte_time import bytes_of_all, call_seconds
from simulator.events.sharing.contended import Network, contended, on_links
from simulator.events.sharing.link_profiles import profiles
from simulator.events.sharing.neighbour_jobs import Job, links_with_neighbours
from simulator.events.sharing.phase_rows import destinations
from simulator.events.sharing.shared_step import shared
from simulator.events.step.charge import (
    critical_shares,
    hidden,
    pacing_rank,
    step_time_s,
    stream_seconds,
    terms,
    work,
)
from simulator.events.step.memory_over_time import memory_over_time
from simulator.events.step.play import Played, play_step
from simulator.events.step.programs import Program
from simulator.events.step.spans import timeline
from simulator.events.step.streams import CAUSES, LINKS, STREAMS
from simulator.events.step.timeline import Jittered, Sharing
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import Layouts
from simulator.software.profile import Software
from simulator.workload.recipe import Workload

__all__ = ["Deviation", "Jitter", "Job", "Network"]

_MOST_PASSES = 2**23
"""Of a step that is played; 40 seconds and 2 GB of memory. The largest planned has 10^5."""


def simulate(
    layouts_row: Layouts,
    workload: Workload,
    cluster: Cluster,
    software: Software,
    *,
    deviations: Sequence[Deviation] = (),
    table: Program | None = None,
    network: Network | None = None,
    beside: Sequence[Job] = (),
    jitter: Jitter | None = None,
) -> SimulatedStep:
    """Play one optimizer step of one layout, action by action.

    Parameters
    ----------
    layouts_row : Layouts
        A feasible layout, a table with one row.
    workload, cluster, software
        What is trained, on what, with what. A cluster of several kinds of servers unfolds the
        replicas that lie on other kinds.
    deviations : sequence of Deviation
        Slow GPUs, weaker links, other servers, loaded experts; none: every replica is like the
        others, and one is simulated.
    table : Program, optional
        Actions of every rank (``events/step/user_actions.py``) in place of the layout's schedule;
        of as many ranks, chunks and micro-batches.
    network : Network, optional
        Worn or lost links, and whether traffic shares links where it meets; none: every group has
        the links that the closed form gives it.
    beside : sequence of Job
        Other jobs on other servers of the same fabric, whose traffic shares its switches; traffic
        then shares links where it meets, too.
    jitter : Jitter, optional
        How much durations vary; none: each is its mean.

    Returns
    -------
    SimulatedStep
        Terms add up to the step time. Without deviations it is that of the closed form
        (``cost/step.py``) but for what `docs/design.md` lists.

    Raises
    ------
    InputError
        More than one layout, a deviation or a table that cannot be, a link that is not there,
        lost links that leave no way, or a network with servers of several kinds.
    """
    if len(layouts_row) != 1:
        raise InputError(f"simulate takes one layout at a time, got {len(layouts_row)}")
    _check_size(layouts_row)
    if cluster.kinds and (network is not None or beside):
        rule = "must be left out (worn links, contention, jobs beside) with cluster.groups"
        raise InputError(problem("simulate", "network", rule, cluster.name))
    began = time.perf_counter()
    links_left = ground = None
    if beside:
        network = replace(network or Network(), contention=True)
        ground = links_with_neighbours(cluster, beside, network)
    if network is not None:
        check_deviations(deviations, workload, layouts_row)
        experts = workload.architecture.is_moe
        links_left = contended(layouts_row, cluster, network, experts=experts, ground=ground)
        cluster, deviations = on_links(cluster, links_left, deviations)
    replicas = replicas_of(layouts_row, workload, cluster, software, deviations)
    played = play_step(replicas, table=table, began=began)
    mixed = None
    if cluster.kinds:
        given = (layouts_row, workload, cluster, software)
        mixed = mixed_step(played, given, deviations, table)
    varied = sharing = None
    if jitter is not None:
        played, varied = _jittered(played, jitter, table)
    if links_left is not None and links_left.table is not None:
        given = (layouts_row, workload, cluster, software)
        played, sharing = _shared(played, links_left.table, given, deviations)
    step = replace(
        summarise(played), network=links_left, jitter=varied, sharing=sharing, mixed=mixed
    )
    supply = supply_of(layouts_row, workload, cluster, software)
    if supply is None:
        return step
    count, seed = int(layouts_row.micro_batches[0]), 0 if jitter is None else jitter.seed
    return with_loading(step, played_input(supply, count, step.step_time_s, seed))


def _check_size(layouts_row: Layouts) -> None:
    """Refuse a step of more passes than memory and patience have room for."""
    row, count = layouts_row.row(), int(layouts_row.micro_batches[0])
    passes = 2 * row["pp"] * row["vpp"] * count
    if passes > _MOST_PASSES:
        rule = f"must make at most {_MOST_PASSES} passes of micro-batches through stages"
        near = row["global_batch"] * _MOST_PASSES // passes
        told = problem("simulate", "training.global_batch", rule, passes)
        raise InputError(f"{told} (nearest: about {near} sequences)")


def _jittered(steady: Played, jitter: Jitter, table: Program | None) -> tuple[Played, Jittered]:
    """Play a step whose durations vary."""
    played = jittered_step(steady, jitter, table)
    return played, Jittered(
        spread=jitter.spread,
        seed=jitter.seed,
        steady_s=step_time_s(steady),
        lost_s=_lost(steady, played),
    )


def _shared(
    plain: Played, table: LoadTable, given: Any, deviations: Sequence[Deviation]
) -> tuple[Played, Sharing]:
    """Play a step with what its tasks take; `given`: what its replicas were priced from."""
    began = time.perf_counter()
    whole, count = call_seconds(plain.replicas), len(plain.replicas)
    calls = bytes_of_all(plain.replicas, whole, table.kinds, given, deviations)
    takes = profiles(table.folded(), calls, whole, plain.passes, destinations(plain), count)
    built = time.perf_counter()
    apart, played, uses = shared(plain, takes)
    played = replace(
        played,
        build_seconds=plain.build_seconds + built - began,
        run_seconds=plain.run_seconds + time.perf_counter() - built,
    )
    span = played.times.makespan_s
    return played, Sharing(
        plain_s=step_time_s(plain),
        alone_s=step_time_s(apart),
        lost_s=_lost(apart, played),
        links={kind: (name, seconds / span) for kind, (name, seconds) in uses.items()},
    )


def _lost(before: Played, after: Played) -> dict[str, float]:
    """How much longer a step is, by cause, on the rank that paces it afterwards."""
    rank = pacing_rank(after)
    grown = terms(after, work(after)[0], rank) - terms(before, work(before)[0], rank)
    return dict(zip(CAUSES, grown.tolist(), strict=True))


def summarise(played: Played) -> SimulatedStep:
    """Charge the time of a played step."""
    shown, hides = work(played)
    pacing = pacing_rank(played)
    terms_s = terms(played, shown, pacing)
    total = float(terms_s.sum())
    path, shares = critical_shares(played)
    busy, exposed, idle = stream_seconds(played, shown, hides, total)
    ranks_of = np.repeat([replica.count for replica in played.replicas], played.pp)
    layouts = played.replicas[0].rows.layouts
    return SimulatedStep(
        step_time_s=total,
        terms_s=dict(zip(CAUSES, terms_s.tolist(), strict=True)),
        hidden_s=hidden(played, hides, terms_s, pacing),
        pacing_rank=pacing,
        ranks_of=ranks_of * int(layouts.tp[0] * layouts.cp[0]),
        busy_s=busy,
        exposed_s=exposed,
        idle_s=idle,
        critical_share=shares,
        links={x: float(busy[:, STREAMS.index(x)].max()) / total for x in LINKS},
        tasks=len(played.step.graph),
        build_seconds=played.build_seconds,
        run_seconds=played.run_seconds,
        draw=lambda: timeline(played, path),
        weigh=lambda: memory_over_time(played),
    )
