"""The fastest layouts of a scenario, or why there are none: what decisions ask of its parts."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from simulator.cost.estimate import Estimate
from simulator.cost.states.state_bytes import least_state_bytes
from simulator.hardware.cluster import Cluster
from simulator.record_cache import for_same_records
from simulator.records import dataclass
from simulator.scenario import Scenario
from simulator.search.allowed import with_allowed
from simulator.search.candidates import count
from simulator.search.explore import (
    TOO_LARGE,
    SearchResult,
    cluster_of_sizes,
    explore,
    explore_sizes,
)
from simulator.units import show_bytes

KEEP = 64
"""Fastest layouts by coarse costs that are priced finely, a quarter of what is kept of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fastest:
    """What a search found."""

    found: SearchResult | None
    """None where there was nothing to search."""
    reason: str = ""
    """Why no layout can run and fit; blank where one does."""

    @property
    def best(self) -> Estimate:
        """The fastest layouts, those that FIT where any does; only where there is no reason."""
        assert self.found is not None and not self.reason
        return self.found.best

    @property
    def step_time_s(self) -> float:
        """Seconds of a step of the fastest."""
        return float(self.best.step_time_s[0])


def explore_scenario(
    scenario: Scenario, pinned: Mapping[str, Any], *, cluster: Cluster | None = None, **how: Any
) -> SearchResult:
    """Explore a scenario's layouts, on another cluster if one is given; `how` as ``explore`` says.

    Whether TIGHT layouts may win is the scenario's.
    """
    machine = cluster or scenario.cluster, scenario.software
    return explore(scenario.workload, *machine, pinned, allow_tight=scenario.allow_tight, **how)


MOST_KNOWN = 8
"""Searches that stay known: those of the sizes and machines between which a question goes on."""

_SHORT = 1 << 22
"""Layouts of one size up to which several sizes together take a tenth to a half less time than one
after another. Of six million and more they take longer, and more memory."""

_Key = tuple[bytes, ...]

_known: OrderedDict[_Key, Fastest] = OrderedDict()


def fastest(scenario: Scenario, *, keep: int = KEEP) -> Fastest:
    """Search a scenario's layouts, those that it allows.

    What was searched is known by the bytes of all that a search takes, grades and spreads of
    figures among them: a scenario with another price, budget or deadline is not searched again.
    """
    pinned = with_allowed(scenario)
    key = _key(scenario, pinned, keep)
    result = _known.pop(key, None)
    return _remember(key, result or _searched(scenario, pinned, keep))


def _key(scenario: Scenario, pinned: Mapping[str, Any], keep: int) -> _Key:
    """What a search is known by: compared, never loaded."""
    records = scenario.workload, scenario.cluster, scenario.software
    rest = pinned, scenario.pinned, scenario.allow_tight, keep
    return *map(_bytes_of, records), pickle.dumps(rest)


@for_same_records(32)
def _bytes_of(record: Any) -> bytes:
    """A record in bytes: points of a sweep that differ in money share theirs."""
    return pickle.dumps(record)


def _remember(key: _Key, result: Fastest) -> Fastest:
    _known[key] = result
    if len(_known) > MOST_KNOWN:
        _known.popitem(last=False)
    return result


def search_together(
    scenarios: Sequence[Scenario], *, keep: int = KEEP
) -> tuple[Cluster | None, list[tuple[Scenario, SearchResult]]]:
    """Search scenarios that differ in the size of their cluster alone: `fastest` knows them then.

    In one table where that says the same in less time: where prices take nothing of a cluster that
    hangs on its size, and each table alone is short. Nothing is done otherwise, and of a size of
    which nothing fits, which `fastest` searches to say why. Returns the cluster that stands for all
    sizes, and what was searched on it.
    """
    by_gpus = {x.cluster.gpus: x for x in scenarios if not hopeless(x, x.cluster)}
    rising = [by_gpus[gpus] for gpus in sorted(by_gpus)][:MOST_KNOWN]
    clusters = [scenario.cluster for scenario in rising]
    if len(rising) < 2 or not _alike(clusters, rising[0]):
        return None, []
    workload, software, pinned = rising[0].workload, rising[0].software, with_allowed(rising[0])
    if "any" in pinned.values() or count(workload, clusters[-1], software, pinned) > _SHORT:
        return None, []
    how: dict[str, Any] = {"keep": keep, "allow_tight": rising[0].allow_tight}
    results = explore_sizes(workload, clusters, software, pinned, **how)
    searched = [(x, y) for x, y in zip(rising, results, strict=True) if y is not None]
    for scenario, result in searched:
        _remember(_key(scenario, with_allowed(scenario), keep), Fastest(found=result))
    return cluster_of_sizes(clusters), searched


def _alike(clusters: Sequence[Cluster], scenario: Scenario) -> bool:
    """Whether prices of clusters differ in nothing but what layouts say of their size."""
    first = clusters[0]
    over, leaf = first.fabric.narrow
    return (
        scenario.workload.data is None
        and len({cluster.domain for cluster in clusters}) == 1
        and first.gpus >= first.node.accelerators
        and (over <= 1.0 or len({cluster.nodes > leaf for cluster in clusters}) == 1)
        and not any(x.kinds or x.edges or len(x.groups) > 1 for x in clusters)
    )


def _searched(scenario: Scenario, pinned: Mapping[str, Any], keep: int) -> Fastest:
    """The same, not known yet."""
    if reason := hopeless(scenario, scenario.cluster):
        return Fastest(found=None, reason=reason)
    result = explore_scenario(scenario, pinned, keep=keep, counts=False)
    return Fastest(
        found=result, reason="" if len(result.best) else why_not(result, scenario.pinned)
    )


def hopeless(scenario: Scenario, cluster: Cluster) -> str:
    """Say so where model states alone, spread over all GPUs, exceed usable memory: no search."""
    either = cluster.accelerator.fp8_either_layout
    least = least_state_bytes(scenario.workload, scenario.software, either_layout=either)
    need = least / cluster.gpus
    have = float(cluster.accelerator.memory.usable_bytes)
    if need <= have:
        return ""
    return (
        f"does not fit: weights, gradients and optimizer states alone, spread over all GPUs, take"
        f" {show_bytes(need)} of {show_bytes(have)} usable"
    )


def why_not(result: SearchResult, pinned: Mapping[str, object] | None = None) -> str:
    """Say why nothing fits: the memory of the nearest miss, or the commonest reason.

    Where no nearest miss was looked for, how many layouts need too much. The reason may lie in
    fields that were `pinned` against each other, so they are named.
    """
    miss = result.nearest_miss
    if miss is not None:
        need = float(miss.memory_total_bytes[0])
        return (
            f"does not fit: the smallest layout ({miss.layouts.describe()}) needs"
            f" {show_bytes(need)} of {show_bytes(miss.usable_bytes)} usable"
        )
    if too_large := result.dropped.get(TOO_LARGE):
        return f"does not fit: each of {too_large:,} layouts that can run needs {TOO_LARGE}"
    if result.dropped:
        reason = max(result.dropped, key=lambda reason: result.dropped[reason])
        fixed = ", ".join(f"layout.{name} = {value}" for name, value in (pinned or {}).items())
        return f"cannot run: {reason}" + (f" (with {fixed})" if fixed else "")
    return "cannot run: no layout of this many GPUs"
