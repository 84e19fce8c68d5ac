"""Where nothing fits: the true cause, and what would make it fit, each found by trying."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from simulator import catalogue
from simulator.cost.estimate import Estimate
from simulator.errors import InputError
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.layout.layouts import divisors, odd_part
from simulator.planner.changes import SMALLER, training_changes
from simulator.planner.variants import Variant, priced_variant
from simulator.scenario import Scenario
from simulator.search.explore import SearchResult
from simulator.software.profile import load_software
from simulator.software.releases import load_releases
from simulator.software.software_section import wrong_machine
from simulator.units import DAY_S, HOUR_S, show_bytes, show_days, show_seconds, show_usd

_DEVICES = 3
"""Larger devices that are tried, the smallest first."""

_TIERS = {"host": "host memory", "nvme": "local drives"}


def why_nothing_fits(result: SearchResult, scenario: Scenario) -> str:
    """Say which layout came nearest, what it lacks, and what would make it fit."""
    miss, recipe = result.nearest_miss, scenario.workload.recipe
    head = "no layout can run" if miss is None else "does not fit in memory"
    lines = [
        f"{scenario.where}: {head} on {scenario.cluster.gpus:,} GPUs, none of {result.layouts:,}"
        f" layouts, at {recipe.global_batch:,} sequences of {recipe.sequence_length:,} a step"
    ]
    if miss is None:
        for reason, count in sorted(result.dropped.items(), key=lambda item: -item[1])[:3]:
            lines.append(f"  {count} layouts: {reason}")
    else:
        lines.append(f"  nearest miss: {miss.layouts.describe()} {_lack(miss)}")
    if bound := batch_binds(scenario):
        lines.append(f"  {bound}")
    lines += [f"  {_words(remedy)}" for remedy in remedies(scenario, miss)]
    if scenario.pinned:
        pinned = ", ".join(sorted(scenario.pinned))
        lines.append(f"  pinned by the scenario: {pinned}")
    return "\n".join(lines)


def _words(remedy: Variant) -> str:
    also = "would also fit, with another training" if remedy.another_training else "would fit"
    step_s, scenario = remedy.step_time_s or 0.0, remedy.scenario
    words = f"{also}: {remedy.change}, as {remedy.layout}, {show_seconds(step_s)} a step"
    if (steps := scenario.workload.recipe.steps) is None:
        return words
    price, gpu_hours = scenario.tariff.price, steps * step_s / HOUR_S * _paid(remedy)
    rate = price.usd_per_gpu_hour
    usd = "" if rate is None else f" and {show_usd(gpu_hours * rate)}{price.mark}"
    return f"{words}, {show_days(steps * step_s / DAY_S)}{usd} without failures"


def _lack(miss: Estimate) -> str:
    """What a layout has too little of: memory of the device, of the host, or of drives."""
    need, have = float(miss.memory_total_bytes[0]), miss.usable_bytes
    if need > have:
        largest = max(miss.memory_bytes, key=lambda kind: float(miss.memory_bytes[kind][0]))
        return (
            f"needs {show_bytes(need)} of {show_bytes(have)} usable;"
            f" it lacks {show_bytes(need - have)}, most of it is {largest}"
            f" ({show_bytes(float(miss.memory_bytes[largest][0]))})"
        )
    short = [
        f"{show_bytes(float(away[0]))} of {show_bytes(miss.room_bytes[tier])} of {_TIERS[tier]}"
        for tier, away in miss.offloaded_bytes.items()
        if away[0] > miss.room_bytes[tier]
    ]
    fits = f"fits on its GPUs ({show_bytes(need)} of {show_bytes(have)})"
    return f"{fits}; a server needs {' and '.join(short)}"


def remedies(scenario: Scenario, miss: Estimate | None) -> list[Variant]:
    """What would make it fit, the cheapest first; what changes the training comes last.

    `miss` is the layout that came nearest, if one can run at all.
    """
    fitting = [*_freed(scenario), *_more_gpus(scenario)]
    if miss is not None:
        fitting += [*_offloaded(scenario), *_other_software(scenario), *_larger(scenario, miss)]
        fitting += _other_training(scenario)
    return sorted(fitting, key=lambda remedy: (remedy.another_training, _gpu_seconds(remedy)))


def _gpu_seconds(remedy: Variant) -> float:
    """What a step takes of the machine: the cheapest remedy has the least."""
    return _paid(remedy) * (remedy.step_time_s or 0.0)


def _paid(remedy: Variant) -> int:
    """Accelerators that are paid for: racks are let whole."""
    return int(remedy.scenario.cluster.rented(remedy.gpus))


def _tried(
    scenario: Scenario, change: str, pinned: Mapping[str, Any], *, another_training: bool = False
) -> Iterator[Variant]:
    """The fastest layout of a changed scenario, if one fits."""
    changed = replace(scenario, pinned=dict(pinned))
    variant = priced_variant(changed, change=change, another_training=another_training)
    if variant.layout is not None:
        yield variant


def _freed(scenario: Scenario) -> Iterator[Variant]:
    """Each pinned field set free alone, then all of them."""
    for name, value in scenario.pinned.items():
        rest = {k: v for k, v in scenario.pinned.items() if k != name}
        yield from _tried(scenario, f"layout.{name} other than {value}", rest)
    if len(scenario.pinned) > 1:
        yield from _tried(scenario, "nothing pinned", {})


def _more_gpus(scenario: Scenario) -> Iterator[Variant]:
    """The next number of GPUs that is enough, by doubling."""
    pinned = {k: v for k, v in scenario.pinned.items() if k not in ("dp", "shard_group")}
    for times in (2, 4, 8, 16, 32, 64):
        larger = _resized(scenario.cluster, scenario.cluster.gpus * times)
        remedy = list(_tried(replace(scenario, cluster=larger), f"{larger.gpus} GPUs", pinned))
        if remedy:
            yield from remedy
            return


def _resized(cluster: Cluster, gpus: int) -> Cluster:
    return cluster.with_gpus(gpus)


def _offloaded(scenario: Scenario) -> Iterator[Variant]:
    """The first tier at which a layout fits that keeps states off the device."""
    can, cluster = scenario.software.supports, scenario.cluster
    tiers = ("cpu", "nvme") if can.nvme_offload and cluster.node.nvme is not None else ("cpu",)
    for tier in tiers if can.optimizer_offload else ():
        names = ["optimizer_offload", *(["parameter_offload"] if can.parameter_offload else [])]
        for choice in (dict.fromkeys(names[:n], tier) for n in range(1, len(names) + 1)):
            if set(choice) & set(scenario.pinned):
                continue
            words = " and ".join(f"{name} = {tier}" for name in choice)
            pinned = {**scenario.pinned, **choice}
            remedy = list(_tried(scenario, f"layout.{words}", pinned))
            if remedy:
                yield from remedy
                return


def _other_software(scenario: Scenario) -> Iterator[Variant]:
    """Frameworks of the same platform that shard or keep less."""
    cluster, recipe = scenario.cluster, scenario.workload.recipe
    for name in load_releases().instead:
        software = load_software(name)
        wrong = wrong_machine(recipe, cluster, software, where=scenario.where)
        if not wrong and name != scenario.software.name:
            other = replace(scenario, software=software)
            yield from _tried(other, f"cluster.software = {name}", scenario.pinned)


def _larger(scenario: Scenario, miss: Estimate) -> Iterator[Variant]:
    """The same number of devices with more memory, the smallest that is enough."""
    platform, need = scenario.cluster.accelerator.platform, float(miss.memory_total_bytes[0])
    recipe = scenario.workload.recipe
    if need <= miss.usable_bytes:
        return
    devices: dict[str, tuple[float, str, Cluster]] = {}
    for name in catalogue.names("clusters"):
        try:
            cluster = load_cluster(name, scenario.cluster.gpus)
        except InputError:  # a size that this cluster does not have
            continue
        device, usable = cluster.accelerator, float(cluster.accelerator.memory.usable_bytes)
        wrong = wrong_machine(recipe, cluster, scenario.software, where=scenario.where)
        if device.platform == platform and usable >= need and not wrong:
            devices.setdefault(device.name, (usable, name, cluster))
    for _, name, cluster in sorted(devices.values(), key=lambda device: device[:2])[:_DEVICES]:
        other = replace(scenario, cluster=cluster)
        remedy = list(_tried(other, f"cluster.name = {name}", scenario.pinned))
        if remedy:
            yield from remedy
            return


def _other_training(scenario: Scenario) -> Iterator[Variant]:
    """What changes the result of the training: states of fewer bytes, adapters."""
    for change, other in training_changes(scenario, SMALLER).items():
        yield from _tried(other, change, scenario.pinned, another_training=True)


def batch_binds(scenario: Scenario) -> str:
    """Say that a batch divides among few of the GPUs only, and what would divide; else a blank.

    Replicas share the sequences of a step evenly, so that their number divides the greatest
    common divisor of batch and GPUs. What is left, tp x pp x cp, is named where it has an odd
    factor, powers of two being what these degrees usually are, or where it is more than a server
    has, or all GPUs, though there are sequences for more replicas; with the nearest batches.

    Examples
    --------
    >>> from simulator.scenario import make_scenario
    >>> print(batch_binds(make_scenario({
    ...     "model": {"name": "llama-3.1-8b"},
    ...     "training": {"sequence_length": 8192, "global_batch": 1024},
    ...     "cluster": {"name": "dgx-h100", "gpus": 136},
    ... })))
    The batch binds: 1,024 sequences divide among at most 8 replicas on 136 GPUs, so that
    tp x pp x cp is a multiple of 17; 1,088 sequences, or 128 GPUs, leave them free.
    >>> print(batch_binds(make_scenario({
    ...     "model": {"name": "llama-3.1-8b"},
    ...     "training": {"sequence_length": 8192, "global_batch": 1021},
    ...     "cluster": {"name": "dgx-h100", "gpus": 64},
    ... })))
    The batch binds: 1,021 sequences divide among at most 1 replica on 64 GPUs, so that
    tp x pp x cp is a multiple of 64; 960 or 1,024 sequences leave them free.
    """
    gpus, batch = scenario.cluster.gpus, scenario.workload.recipe.global_batch
    replicas = math.gcd(gpus, batch)
    forced = gpus // replicas
    odd = odd_part(forced)
    server = scenario.cluster.node.accelerators
    most = max(d for d in divisors(gpus) if d <= batch)
    if odd == 1 and (replicas == most or (forced <= server and replicas > 1)):
        return ""
    if odd == 1:
        below = batch // most * most
        return (
            f"{_divided(batch, replicas, gpus)} {forced:,}; {below:,} or {below + most:,} sequences"
            " leave them free."
        )
    near = max(round(batch / gpus), 1) * gpus
    fewer = next((n for n in range(gpus - server, 0, -server) if _is_free(n, batch)), 0)
    other = f", or {fewer:,} GPUs, leave" if fewer else " leave"
    return f"{_divided(batch, replicas, gpus)} {odd:,}; {near:,} sequences{other} them free."


def _divided(batch: int, replicas: int, gpus: int) -> str:
    some = "replica" if replicas == 1 else "replicas"
    return (
        f"The batch binds: {batch:,} sequences divide among at most {replicas:,} {some} on"
        f" {gpus:,} GPUs, so that tp x pp x cp is a multiple of"
    )


def _is_free(gpus: int, batch: int) -> bool:
    forced = gpus // math.gcd(gpus, batch)
    return forced & (forced - 1) == 0
