"""Simulate one training step: from a layout to a step time, action by action, input included."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.arrays import Floats
from simulator.cost.loading import Supply, supply_of
from simulator.data_input.supply import workers_of
from simulator.errors import InputError, problem
from simulator.events.deviations.deviations import Deviation, check_deviations, replicas_of
from simulator.events.deviations.jittered_step import Jitter, jittered_step
from simulator.events.deviations.servers import gpus_on
from simulator.events.played import SimulatedStep
from simulator.events.step.charge import (
    critical_shares,
    hidden,
    pacing_rank,
    step_time_s,
    stream_seconds,
    terms,
    work,
)
from simulator.events.step.memory_over_time import (
    closed_bytes,
    memory_over_time,
    tightest_sources,
    usable_bytes,
)
from simulator.events.step.play import Played, play_step
from simulator.events.step.programs import Program
from simulator.events.step.spans import timeline
from simulator.events.step.streams import CAUSES, LINKS, STREAMS
from simulator.events.step.timeline import Jittered, Loading, Mixed, Sharing
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import Layouts
from simulator.records import dataclass
from simulator.software.profile import Software
from simulator.workload.recipe import Workload

if TYPE_CHECKING:  # links come along where they are shared or worn
    from simulator.events.network.link_loads import LoadTable
    from simulator.events.sharing.contended import Contended, Network
    from simulator.events.sharing.neighbour_jobs import Job

__all__ = ["Deviation", "Jitter"]

_MOST_PASSES = 2**23
"""Of a step that is played; 40 seconds and 2 GB of memory. The largest planned has 10^5."""

_LOADED_STEPS = 200
_LOADED_BATCHES = 20_000
"""Micro-batches played; steps of many are played fewer times."""
_LOADING_RANKS = 1024
"""Ranks drawn; of more the slowest is a little faster than it would be."""


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
    links_left = None
    if network is not None or beside:
        from simulator.events.sharing.contended import on_links

        links_left = _links_left(layouts_row, workload, cluster, network, beside, deviations)
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


def _links_left(
    layouts_row: Layouts,
    workload: Workload,
    cluster: Cluster,
    network: Network | None,
    beside: Sequence[Job],
    deviations: Sequence[Deviation],
) -> Contended:
    """What a layout's groups, and jobs beside it, leave of each other's links."""
    from simulator.events.sharing.contended import Network, contended
    from simulator.events.sharing.neighbour_jobs import links_with_neighbours

    network, ground = network or Network(), None
    if beside:
        network = replace(network, contention=True)
        ground = links_with_neighbours(cluster, beside, network)
    check_deviations(deviations, workload, layouts_row)
    experts = workload.architecture.is_moe
    return contended(layouts_row, cluster, network, experts=experts, ground=ground)


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
    from simulator.events.sharing.byte_time import bytes_of_all, call_seconds
    from simulator.events.sharing.link_profiles import profiles
    from simulator.events.sharing.phase_rows import destinations
    from simulator.events.sharing.shared_step import shared

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


def mixed_step(
    played: Played, given: Any, deviations: Sequence[Deviation], table: Program | None
) -> Mixed:
    """Say where the ranks of a played step lie, and play it on each kind of servers alone.

    Parameters
    ----------
    played : Played
    given : tuple
        Layout, workload, cluster and software, which its replicas were priced from.
    deviations : sequence of Deviation
        Likewise.
    table : Program, optional
        The user's table that it was played from.
    """
    row, workload, cluster, software = given
    held = gpus_on(row, cluster)
    alone = [
        step_time_s(play_step(replicas_of(row, workload, kind, software, deviations), table=table))
        for kind in cluster.kinds
    ]
    of_rank = [source for replica in played.replicas for source in tightest_sources(replica)]
    totals = {id(replica): closed_bytes(replica) for replica in of_rank}
    return Mixed(
        kinds=tuple(kind.name for kind in cluster.kinds),
        gpus=np.concatenate(
            [held[list(replica.numbers)].sum(axis=0) for replica in played.replicas]
        ),
        replicas=tuple(replica.numbers for replica in played.replicas),
        memory_bytes=np.array(
            [totals[id(replica)][rank % played.pp] for rank, replica in enumerate(of_rank)]
        ),
        usable_bytes=np.array([usable_bytes(replica) for replica in of_rank]),
        alone_s=tuple(alone),
        steady_s=step_time_s(played),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaders:
    """Loaders of all ranks, same, except chance."""

    workers: int
    prefetch: int
    batch_s: float
    """Mean time in which one worker makes one micro-batch."""
    spread: float
    """Standard deviation of its logarithm."""
    ranks: int


def play_loaders(loaders: Loaders, compute_s: float, batches: int, seed: int = 0) -> Floats:
    """Seconds that each of so many micro-batches is waited for, each computed in `compute_s`.

    Examples
    --------
    Two workers that take 3 s for a batch hand one out every 1.5 s; ranks that compute for 1 s wait
    for 0.5 s in the mean: the first batch takes 3 s, the second is ready with it, and so on.

    >>> two = Loaders(workers=2, prefetch=1, batch_s=3.0, spread=0.0, ranks=4)
    >>> play_loaders(two, 1.0, 6).round(9).tolist()
    [3.0, 0.0, 1.0, 0.0, 1.0, 0.0]
    """
    draw = np.random.default_rng(seed)
    mean = np.log(max(loaders.batch_s, 1e-30)) - loaders.spread**2 / 2.0
    took = np.exp(mean + loaders.spread * draw.standard_normal((batches, loaders.ranks)))
    waits, now = np.zeros(batches), 0.0
    if loaders.workers == 0:
        return np.asarray(took.max(axis=1))
    ahead = loaders.workers * loaders.prefetch
    free = np.zeros((loaders.workers, loaders.ranks))
    handed = np.zeros(batches)
    for i in range(batches):
        asked = handed[i - ahead] if i >= ahead else 0.0
        worker = free[i % loaders.workers]
        np.maximum(worker, asked, out=worker)
        worker += took[i]
        waits[i] = max(float(worker.max()) - now, 0.0)
        handed[i] = now + waits[i]
        now = handed[i] + compute_s
    return waits


def played_input(supply: Supply, micro_batches: int, step_s: float, seed: int = 0) -> Loading:
    """Play the loaders of a run whose steps take `step_s` without waiting."""
    count = int(np.clip(_LOADED_BATCHES // micro_batches, 2, _LOADED_STEPS))
    share, found = supply.cold_share, {}
    for name, stages in (("cold", supply.cold_s), ("warm", supply.warm_s)):
        slowest = max(float(seconds[0]) for seconds in stages.values())
        workers = int(workers_of(supply.data))
        loaders = Loaders(
            workers=workers,
            prefetch=supply.data.prefetch,
            batch_s=slowest * max(workers, 1) / micro_batches,
            spread=supply.data.spread,
            ranks=int(min(max(supply.readers.ranks[0], 1.0), _LOADING_RANKS)),
        )
        waits = play_loaders(loaders, step_s / micro_batches, count * micro_batches, seed)
        found[name] = waits.reshape(count, micro_batches)
    half = slice(count // 2, None)  # the first steps live off batches made before them
    per_step = {name: waits[half].sum(axis=1) for name, waits in found.items()}
    copies = float(supply.copy_s[0])
    most = per_step["cold" if share >= 0.5 else "warm"]
    mean = share * per_step["cold"].mean() + (1.0 - share) * per_step["warm"].mean()
    return Loading(
        waiting_s=copies + float(mean),
        waiting_p90_s=copies + float(np.quantile(most, 0.9)),
        first_batch_s=float(found["cold"][0, 0]),
        spread=supply.data.spread,
        steps=count,
    )


def with_loading(step: SimulatedStep, loading: Loading) -> SimulatedStep:
    """A played step behind the wait for its samples, in which nothing else runs."""
    before, late_s = step.step_time_s, loading.waiting_s
    after = before + late_s
    kept = before / after
    shares = {name: share * kept for name, share in step.critical_share.items()}
    shares["input"] = shares.get("input", 0.0) + late_s / after
    return replace(
        step,
        step_time_s=after,
        terms_s={**step.terms_s, "input": step.terms_s["input"] + late_s},
        critical_share=shares,
        idle_s=step.idle_s + late_s,
        links={name: share * kept for name, share in step.links.items()},
        loading=loading,
    )
