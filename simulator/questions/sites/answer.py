"""A run over several sites: what keeps it, and against one place, one site, or waiting for one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from math import inf
from typing import ClassVar

import numpy as np

from simulator.answers import SCENARIO, Answer
from simulator.between_sites.exchange import (
    cycle_s,
    exchange_s,
    exposed_s,
    sent_bytes,
    slowest_uplink,
)
from simulator.between_sites.sites_section import (
    Compression,
    OuterStep,
    Place,
    Sites,
    load_compression,
    load_outer_step,
    low_rank_values,
    message_bytes,
)
from simulator.cost.operators.matrices import weight_matrices
from simulator.errors import InputError, problem
from simulator.frames import DataFrame, frame_of_rows
from simulator.hardware.cluster import Cluster
from simulator.planner.changes import with_less_memory
from simulator.planner.prediction import refuse_mixed
from simulator.questions.compare.offers import on_cluster
from simulator.questions.run_options import Piece, Way, ideal_days, unjudged
from simulator.records import dataclass
from simulator.scenario import Scenario
from simulator.search.fastest import fastest
from simulator.units import show_percent, show_seconds

UTILISATIONS = (0.5, 0.8, 0.9, 0.95, 0.99)
"""Shares of the time spent in steps, of which the rate that they need between sites is told."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteStep(Piece):
    """One site and its best layout."""

    KEYS: ClassVar[tuple[str, ...]] = (
        *("name=place.name", "cluster=place.cluster", "accelerator", "gpus=place.gpus", "batch"),
        *("feasible", "reason?", "layout", "step_time_s", "own_s"),
        *("extra_gpu_bytes=extra_bytes", "host_bytes"),
    )

    place: Place
    accelerator: str = ""
    step_time_s: float = inf
    own_s: float = 0.0
    """What the site computes for all exchanges of a cycle."""
    extra_bytes: float = 0.0
    """Kept on every GPU for the exchange, beside what training takes."""
    host_bytes: float = 0.0
    """Kept in the host memory of every server for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cycle:
    """From one exchange of a part of the model to its next, seconds and bytes."""

    KEYS: ClassVar[tuple[str, ...]] = (
        *("inner_step_s", "inner_steps", "fragments", "message_bytes", "sent_bytes"),
        *("exchange_s", "exposed_s", "own_s", "total_s", "utilisation", "mean_bytes_per_s"),
    )

    inner_step_s: float
    """Of the slowest site."""
    inner_steps: int
    fragments: int
    message_bytes: float
    """One site's message of one fragment."""
    sent_bytes: float
    """What every site sends for a fragment, round the ring."""
    exchange_s: float
    """Of one fragment."""
    exposed_s: float
    """What all sites wait for of it."""
    own_s: float
    """Messages made and read and the outer step, at the slowest site."""
    total_s: float

    @property
    def utilisation(self) -> float:
        """Share of the time that the slowest site spends in steps."""
        return self.inner_steps * self.inner_step_s / self.total_s

    @property
    def step_time_s(self) -> float:
        """Seconds of a step with its share of the exchanges."""
        return self.total_s / self.inner_steps

    @property
    def mean_bytes_per_s(self) -> float:
        """What every site sends, over the whole cycle."""
        return self.fragments * self.sent_bytes / self.total_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Alternative(Way):
    """Another way to run it."""

    KEYS: ClassVar[tuple[str, ...]] = (
        *("name", "gpus", "reason?"),
        *("step_time_s", "tokens_per_s", "days_ideal"),
    )

    gpus: int
    step_time_s: float
    """Of the whole batch; infinite where nothing fits."""


@dataclass(frozen=True, kw_only=True, repr=False)
class SeveralSites(Answer):
    """The answer."""

    COMMAND: ClassVar[str] = "sites"
    KEYS: ClassVar[tuple[str, ...]] = (
        *(*SCENARIO, "outer_step=outer.name", "compression=compression.name", "sites=steps"),
        *("even_batches", "cycle", "uplink_bytes_per_s_for_utilisation"),
        *("more_steps_fraction=more_steps", "more_steps_given", "alternatives", "wait_days"),
        "caveats",
    )

    scenario: Scenario
    sites: Sites
    outer: OuterStep
    compression: Compression
    steps: tuple[SiteStep, ...]
    cycle: Cycle | None
    """None where some site has no layout that fits."""
    uplinks: dict[float, float]
    """Rate of the slowest uplink for each of `UTILISATIONS`, bytes per second."""
    more_steps: float
    """Steps beyond those of training in one place, as a share of them."""
    alternatives: tuple[Alternative, ...]
    """This one first, then step by step over the same sites, the one place, each site alone."""

    @property
    def line(self) -> str:
        """All of it in a few words."""
        if self.cycle is None:
            return next(step.reason for step in self.steps if step.reason)
        used, step = show_percent(self.cycle.utilisation), show_seconds(self.cycle.step_time_s)
        return f"{len(self.steps)} sites, {self.outer.name}, {step} a step, {used} of it in steps"

    def to_frame(self) -> DataFrame:
        """One row per way to run it."""
        return frame_of_rows(asdict(row) for row in self.alternatives)

    @property
    def own(self) -> Alternative:
        """What was asked about."""
        return self.alternatives[0]

    @property
    def even_batches(self) -> tuple[int, ...] | None:
        """Shares of the batch with which all sites would take as long, by what they do now."""
        if self.cycle is None:
            return None
        speeds = np.array([step.batch / step.step_time_s for step in self.steps])
        whole = self.scenario.workload.recipe.global_batch
        return tuple(int(x) for x in np.rint(whole * speeds / speeds.sum()))

    @property
    def uplink_bytes_per_s_for_utilisation(self) -> list[dict[str, float]]:
        """The rates as JSON says them."""
        uplinks = self.uplinks.items()
        return [{"utilisation": share, "bytes_per_s": rate} for share, rate in uplinks]

    @property
    def more_steps_given(self) -> bool:
        """Whether the scenario says how many more steps it takes."""
        return self.sites.more_steps_fraction is not None

    @property
    def caveats(self) -> tuple[str, ...]:
        """What is not in the numbers."""
        lines: tuple[str, ...] = (
            "Days are ideal ones: failures, and sites that drop out, are not in them.",
            "Sites form a ring as fast as its slowest uplink and its farthest hop; what others send"
            " over the same links is not counted.",
        )
        if any(row.name == "gradients every step" for row in self.alternatives):
            after = "Gradients every step are exchanged after the backward pass, not beside it."
            lines = (*lines, after)
        return (*lines, *unjudged(self.scenario.goal))

    @property
    def wait_days(self) -> float | None:
        """Days that one may wait for the one place and end at the same time; below 0: it is slower.

        None where it is not known how long either takes.
        """
        alternative = next((x for x in self.alternatives if x.name == "one place"), None)
        if alternative is None or alternative.days_ideal is None or self.own.days_ideal is None:
            return None
        return self.own.days_ideal - alternative.days_ideal


def several_sites(scenario: Scenario) -> SeveralSites:
    """Find what a run over the sites of a scenario takes, and what else one could do.

    Each site has the layout that is fastest there; [cluster] is the one place that it is compared
    with. Days are ideal ones: what failures cost is a question of its own.

    Raises
    ------
    InputError
        If there is no section [sites], or the run cannot be cut so.
    """
    sites = scenario.required(Sites)
    refuse_mixed(scenario)
    if scenario.workload.recipe.freezes:
        rule = "not yet with adapters or frozen parts"
        raise InputError(f"{scenario.where}: sites: {rule}")
    outer, compression = load_outer_step(sites.outer_step), load_compression(sites.compression)
    shares = _shares(scenario, sites)
    steps = tuple(
        _site(scenario, sites, place, batch) for place, batch in zip(sites.at, shares, strict=True)
    )
    cycle = _cycle(scenario, sites, steps)
    steps_fraction = sites.more_steps_fraction
    more = float(outer.more_steps_fraction if steps_fraction is None else steps_fraction)
    return SeveralSites(
        scenario=scenario,
        sites=sites,
        outer=outer,
        compression=compression,
        steps=steps,
        cycle=cycle,
        uplinks={} if cycle is None else _uplinks(sites, compression, cycle),
        more_steps=more,
        alternatives=_alternatives(scenario, sites, steps, cycle, more),
    )


def _shares(scenario: Scenario, sites: Sites) -> list[int]:
    """Sequences of a step for every site."""
    batch, where = scenario.workload.recipe.global_batch, scenario.where
    given = [place.batch for place in sites.at]
    if given[0] is not None:
        whole = sum(share or 0 for share in given)
        if whole != batch:
            rule = f"batches of all sites must add up to training.global_batch, {batch}"
            raise InputError(problem(where, "sites.at", rule, whole))
        return [share or 0 for share in given]
    gpus = np.array([place.gpus for place in sites.at], float)
    exact = batch * gpus / gpus.sum()
    shares = np.floor(exact).astype(int)
    for i in np.argsort(shares - exact, kind="stable")[: batch - int(shares.sum())]:
        shares[i] += 1
    if not shares.all():
        rule = f"must be at least a sequence for each of {len(gpus)} sites"
        raise InputError(problem(where, "training.global_batch", rule, batch))
    return [int(share) for share in shares]


def _with_batch(scenario: Scenario, batch: int) -> Scenario:
    recipe = replace(scenario.workload.recipe, global_batch=batch)
    return replace(scenario, workload=replace(scenario.workload, recipe=recipe))


def _site(scenario: Scenario, sites: Sites, place: Place, batch: int) -> SiteStep:
    """The fastest layout of a site that fits beside what the exchange keeps."""
    there = _with_batch(_there(scenario, place), batch)
    cluster = there.cluster
    empty = SiteStep(place=place, batch=batch, accelerator=cluster.accelerator.name)
    kept, on_host = _kept_bytes(sites, scenario.workload.architecture.parameters, cluster)
    full = kept >= float(cluster.accelerator.memory.usable_bytes)
    searched = fastest(there if full else with_less_memory(there, kept))
    if full or searched.reason:
        alone = fastest(there).reason
        reason = alone or "what the exchange keeps on every GPU leaves no layout room"
        return replace(empty, reason=reason)
    best = searched.best
    return replace(
        empty,
        described=best.layouts.describe(0),
        layout=best.layouts.row(0),
        step_time_s=float(best.step_time_s[0]),
        own_s=_own_s(there, sites),
        extra_bytes=kept,
        host_bytes=on_host,
    )


def _there(scenario: Scenario, place: Place) -> Scenario:
    """The scenario on the machines of a site; what is wrong with it is said of the site."""
    try:
        return on_cluster(scenario, place.cluster, place.gpus)
    except InputError as error:
        site = f"{scenario.where}: sites.at ({place.name})"
        told = (text.removeprefix(f"{scenario.where}: ") for text in error.problems)
        raise InputError(f"{site}: {text}" for text in told) from None


def _kept_bytes(sites: Sites, parameters: float, cluster: Cluster) -> tuple[float, float]:
    """Bytes that the exchange keeps on every GPU of a site, and in the host of every server."""
    outer, compression = load_outer_step(sites.outer_step), load_compression(sites.compression)
    residual = float(compression.residual_bytes) * parameters / cluster.gpus
    states = float(outer.state_bytes) * parameters
    if sites.outer_states == "gpu":
        return residual + states / cluster.gpus, 0.0
    return residual, states / _servers(cluster)


def _servers(cluster: Cluster) -> int:
    return -(-cluster.gpus // cluster.node.accelerators)


def _own_s(scenario: Scenario, sites: Sites) -> float:
    """Seconds that a site computes for all exchanges of a cycle.

    Every GPU makes and reads the messages of its share of the parameters, at the rate of large
    memory-bound kernels; the outer step runs there or on the host.
    """
    outer, compression = load_outer_step(sites.outer_step), load_compression(sites.compression)
    cluster, parameters = scenario.cluster, float(scenario.workload.architecture.parameters)
    kernel = cluster.accelerator.stream["elementwise"]
    rate = float(kernel.memory_fraction * cluster.accelerator.memory.bandwidth_bytes_per_s)
    read = float(compression.decode_bytes_per_value)
    if compression.form == "sparse":
        read *= sites.compression_fraction
    if not compression.sums:
        read *= len(sites.at) - 1
    traffic = float(compression.encode_bytes_per_value) + read
    seconds = traffic * parameters / cluster.gpus / rate
    if sites.outer_states == "gpu":
        return seconds + float(outer.traffic_bytes) * parameters / cluster.gpus / rate
    return seconds + _host_step_s(scenario, parameters)


def _host_step_s(scenario: Scenario, parameters: float) -> float:
    """Differences to the host (32 bit), its step, weights back."""
    node, cluster = scenario.cluster.node, scenario.cluster
    copy, adam = node.host_bytes_per_s, node.host_adam_parameters_per_s
    if copy is None or adam is None:
        rule = f"not known how fast the host of {node.name} is; must be 'gpu'"
        raise InputError(problem(scenario.where, "sites.outer_states", rule, "host"))
    copies = 2.0 * 4.0 * parameters / cluster.gpus / float(copy)
    return copies + parameters / (_servers(cluster) * float(adam))


def _message(scenario: Scenario, sites: Sites) -> float:
    """Bytes of one site's message of the whole model."""
    compression = load_compression(sites.compression)
    arch = scenario.workload.architecture
    values = float(arch.parameters)
    if compression.form == "low-rank":
        kernels = scenario.software.kernels
        listed = weight_matrices(arch, tp=1, pp=1, ep=1, etp=1, kernels=kernels)
        layers = [arch.layer_kinds.count(kind) for kind in range(len(arch.blocks))]
        times = [*layers, *([1] * len(listed))]
        count = np.array([float(m.count) * times[m.part] for m in listed])
        rows = np.array([float(m.rows) for m in listed])
        columns = np.array([float(m.columns) for m in listed])
        thin = low_rank_values(rows, columns, count, sites.compression_rank).sum()
        whole = float((count * rows * columns).sum())
        values = float(thin) + max(values - whole, 0.0)
    return float(message_bytes(values, compression, fraction=sites.compression_fraction))


def _ring(sites: Sites) -> tuple[float, float]:
    """Rate of the slowest uplink and one-way latency of the farthest site."""
    return min(x.uplink_bytes_per_s for x in sites.at), max(x.latency_s for x in sites.at)


def _cycle(scenario: Scenario, sites: Sites, steps: Sequence[SiteStep]) -> Cycle | None:
    """One cycle, with the slowest site and the slowest uplink."""
    if any(step.reason for step in steps):
        return None
    sums = load_compression(sites.compression).sums
    rate, latency = _ring(sites)
    message = _message(scenario, sites) / sites.fragments
    inner = max(step.step_time_s for step in steps)
    own = max(step.own_s for step in steps)
    number = len(sites.at)
    ring = exchange_s(message, number, uplink_bytes_per_s=rate, latency_s=latency, sums=sums)
    total = cycle_s(
        inner,
        inner_steps=sites.inner_steps,
        fragments=sites.fragments,
        overlap_steps=sites.overlap_steps,
        exchange_s=ring,
        own_s=own,
    )
    return Cycle(
        inner_step_s=inner,
        inner_steps=sites.inner_steps,
        fragments=sites.fragments,
        message_bytes=message,
        sent_bytes=float(sent_bytes(message, number, sums=sums)),
        exchange_s=float(ring),
        exposed_s=float(exposed_s(ring, inner, sites.overlap_steps)),
        own_s=own,
        total_s=float(total),
    )


def _uplinks(sites: Sites, compression: Compression, cycle: Cycle) -> dict[float, float]:
    """Rate of the slowest uplink that each utilisation needs."""
    _, latency = _ring(sites)
    hops = (2.0 if compression.sums else 1.0) * (len(sites.at) - 1) * latency
    needed = slowest_uplink(
        np.array(UTILISATIONS),
        cycle.inner_step_s,
        inner_steps=cycle.inner_steps,
        fragments=cycle.fragments,
        overlap_steps=sites.overlap_steps,
        sent_bytes=cycle.sent_bytes,
        hops_s=hops,
        own_s=cycle.own_s,
    )
    return dict(zip(UTILISATIONS, map(float, needed), strict=True))


def _alternatives(
    scenario: Scenario, sites: Sites, steps: Sequence[SiteStep], cycle: Cycle | None, more: float
) -> tuple[Alternative, ...]:
    """These sites as asked, step by step, one place, each site alone."""
    gpus, reasons = sum(x.gpus for x in sites.at), [x.reason for x in steps if x.reason]
    why = reasons[0] if reasons else ""
    own_s = inf if cycle is None else cycle.step_time_s
    rows = [_alternative(scenario, "these sites", gpus, own_s, why, more)]
    if load_outer_step(sites.outer_step).local_steps:
        plain = replace(
            sites, outer_step="synchronous", inner_steps=1, fragments=1, overlap_steps=0
        )
        every = _cycle(scenario, plain, [replace(x, own_s=0.0) for x in steps])
        every_s = inf if every is None else every.step_time_s
        rows.append(_alternative(scenario, "gradients every step", gpus, every_s, why))
    single = {"one place": scenario}
    single |= {f"{place.name} alone": _there(scenario, place) for place in sites.at}
    for name, there in single.items():
        found = fastest(there)
        step_s = inf if found.reason else found.step_time_s
        rows.append(_alternative(scenario, name, there.cluster.gpus, step_s, found.reason))
    return tuple(rows)


def _alternative(
    scenario: Scenario, name: str, gpus: int, step_s: float, reason: str, more: float = 0.0
) -> Alternative:
    recipe = scenario.workload.recipe
    rate = recipe.tokens_per_step / step_s
    return Alternative(
        name=name,
        gpus=gpus,
        step_time_s=step_s,
        tokens_per_s=rate,
        days_ideal=ideal_days(recipe, rate, more=more),
        reason=reason,
    )
