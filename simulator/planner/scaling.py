"""Speed-up: the fastest layout at each number of GPUs, and what keeps it off the ideal line.

Total speed is a product of three factors: the speed of a single card (tokens/s/GPU at the smallest
number of GPUs that fits), the number of cards, and the speed-up ratio (tokens/s/GPU over that of
a single card). What eats the ratio follows from GPU-seconds per token, which add up by cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field, replace
from functools import cache
from typing import Any

import numpy as np

from simulator.cost.step import Estimate
from simulator.cost.terms import TERMS
from simulator.hardware.cluster import Cluster
from simulator.records import dataclass
from simulator.scenario import Scenario
from simulator.search.allowed import with_allowed
from simulator.search.certainty import certainty
from simulator.search.explore import SearchResult
from simulator.search.fastest import explore_scenario, hopeless, why_not
from simulator.search.in_threads import one_thread
from simulator.search.outcome import outcome
from simulator.second_process import run_in_process
from simulator.workload.recipe import Recipe

SMALLEST = 8
"""Fewest GPUs tried."""

_CAUSE_OF_TERM = {
    "gemm": "kernels",
    "attention": "kernels",
    "memory_bound": "kernels",
    "launch": "kernels",
    "bubble_warmup": "bubble",
    "bubble_drain": "bubble",
}
"""Terms that have a cause in common; any other term is a cause of its own."""

CAUSES = {
    "kernels": "kernel time per token (batch or shard too small)",
    "imbalance": "unequal pipeline stages",
    "bubble": "pipeline fill and drain",
    **{term.name: term.label for term in TERMS if term.name not in _CAUSE_OF_TERM},
}
"""What can eat the speed-up ratio: name and label."""


@dataclass(frozen=True, kw_only=True)
class ScalingPoint:
    """One number of GPUs; without an estimate nothing fits, and `reason` says why."""

    gpus: int
    reason: str = ""
    estimate: Estimate | None = None
    """The fastest layout, a single row."""
    tokens_per_s: float = 0.0
    tokens_per_s_per_gpu: float = 0.0
    mfu: float = 0.0
    speedup: float = 0.0
    """Tokens/s over those of the smallest number that fits."""
    interval: tuple[float, float] = (1.0, 1.0)
    """P10 and P90 of the speed over its median."""
    ratio: float = 0.0
    """Tokens/s/GPU over that of the smallest number that fits; 1 is the ideal line."""
    eaten: dict[str, float] = field(default_factory=dict)
    """By cause (CAUSES), adding up to ``1 - ratio``; negative where a cause got smaller."""

    @property
    def speedup_span(self) -> tuple[float, float]:
        """P10 and P90 of the speed-up over the median speed of the smallest number that fits."""
        low, high = self.interval
        return low * self.speedup, high * self.speedup

    @property
    def layout(self) -> str:
        """The layout in a few words; empty where nothing fits."""
        return self.estimate.layouts.describe() if self.estimate is not None else ""

    def largest(self, most: int = 2) -> dict[str, float]:
        """Return the causes that weigh most on the ratio, for better or worse."""
        names = sorted(self.eaten, key=lambda cause: -abs(self.eaten[cause]))
        return {name: self.eaten[name] for name in names[:most] if self.eaten[name]}


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """The speed-up report: ``speed = single-card speed x GPUs x ratio`` at each point that fits."""

    points: list[ScalingPoint]
    """Fewest GPUs first."""
    base_gpus: int | None
    """The smallest number of GPUs that fits; None where none does."""
    single_card_tokens_per_s: float
    """Tokens/s/GPU at `base_gpus`."""


def counts(cluster: Cluster) -> list[int]:
    """List 8, 16, 32, ... up to the cluster's own number of GPUs, in whole servers."""
    per_server = cluster.node.accelerators
    sizes, size = {cluster.gpus}, SMALLEST
    while size < cluster.gpus:
        sizes.add(size if size <= per_server else size // per_server * per_server)
        size *= 2
    return sorted(sizes)


def scaling(
    scenario: Scenario,
    *,
    found: SearchResult | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Scaling:
    """Find the fastest layout at every number of GPUs and split its speed into factors.

    Parameters
    ----------
    found : SearchResult, optional
        What the search on the scenario's own number of GPUs found; it is not repeated then.
    progress : callable, optional
        Called with (numbers of GPUs done, all) after each.

    Notes
    -----
    The global batch stays (strong scaling). What ``[search] allow`` leaves out is not decided here
    either. Pinned ``dp`` and ``shard_group`` are set free, since
    they fix the number of GPUs; everything else that is pinned stays pinned.
    """
    sizes = counts(scenario.cluster)
    points: list[ScalingPoint] = []
    for done, gpus in enumerate(sizes, start=1):
        points.append(_alone(scenario, gpus, found))
        if progress is not None:
            progress(done, len(sizes))
    return _against_smallest(points, scenario.workload.recipe)


@contextmanager
def scaling_beside(scenario: Scenario, *, found: SearchResult) -> Iterator[Callable[[], Scaling]]:
    """Begin the same in two copies of this process; what is yielded waits for it.

    For a process without threads of its own at work (``simulator/second_process.py``).
    """
    sizes = counts(scenario.cluster)
    first_sizes, second_sizes = (
        sizes[::-2],
        sizes[-2::-2],
    )  # larger sizes mostly take longer: dealt in turn

    def point(gpus: int) -> ScalingPoint:
        with one_thread():
            return _alone(scenario, gpus, found)

    with (
        run_in_process(lambda: list(map(point, first_sizes))) as first,
        run_in_process(lambda: list(map(point, second_sizes))) as second,
    ):

        @cache
        def waited() -> Scaling:
            points = sorted((*first(), *second()), key=lambda point: point.gpus)
            return _against_smallest(points, scenario.workload.recipe)

        yield waited


def _against_smallest(points: list[ScalingPoint], recipe: Recipe) -> Scaling:
    """Compare every number of GPUs with the smallest that fits."""
    base = next((point for point in points if point.estimate is not None), None)
    if base is None:
        return Scaling(points=points, base_gpus=None, single_card_tokens_per_s=0.0)
    return Scaling(
        points=[
            point if point is base or point.estimate is None else _compared(point, base, recipe)
            for point in points
        ],
        base_gpus=base.gpus,
        single_card_tokens_per_s=base.tokens_per_s_per_gpu,
    )


def gpu_seconds_per_token(estimate: Estimate, recipe: Recipe) -> dict[str, float]:
    """Split the GPU-seconds that one token takes by cause, for an estimate of a single row.

    The causes add up to ``step time x GPUs / tokens per step``. Time above the mean stage is inside
    the terms of the slowest stage, nearly all of it in kernels; it is taken out of them here.
    """
    assert len(estimate) == 1, "one layout at a time"
    share = float(estimate.layouts.world[0]) / recipe.tokens_per_step
    causes = dict.fromkeys(CAUSES, 0.0)
    for name, seconds in estimate.terms_s.items():
        cause = _CAUSE_OF_TERM.get(name, name)
        causes[cause] = causes.get(cause, 0.0) + float(seconds[0]) * share
    uneven = float(estimate.imbalance_s[0]) * share
    causes["imbalance"] += uneven
    causes["kernels"] -= uneven
    return causes


def _alone(scenario: Scenario, gpus: int, known: SearchResult | None) -> ScalingPoint:
    """Explore one number of GPUs; `known` is of the scenario's own number."""
    searched = known if gpus == scenario.cluster.gpus else None
    cluster = _resized(scenario.cluster, gpus)
    if reason := hopeless(scenario, cluster):
        return ScalingPoint(gpus=gpus, reason=reason)
    if searched is None:
        pinned = with_allowed(scenario)
        free = {k: v for k, v in pinned.items() if k not in ("dp", "shard_group")}
        few: dict[str, Any] = {"keep": 1, "counts": False, "near_miss": False}
        searched = explore_scenario(scenario, free, cluster=cluster, **few)
    if not len(searched.best):
        return ScalingPoint(gpus=gpus, reason=why_not(searched))
    estimate = searched.best.take(np.array([0]))
    recipe = scenario.workload.recipe
    result = outcome(estimate, recipe, cluster)
    sure = certainty(estimate, scenario.workload, cluster, scenario.software)
    step_s = float(estimate.step_time_s[0])
    return ScalingPoint(
        gpus=gpus,
        estimate=estimate,
        tokens_per_s=float(result.tokens_per_s[0]),
        tokens_per_s_per_gpu=float(result.tokens_per_s_per_gpu[0]),
        mfu=float(result.mfu[0]),
        speedup=1.0,
        interval=(step_s / float(sure.p90_s[0]), step_s / float(sure.p10_s[0])),
        ratio=1.0,
        eaten=dict.fromkeys(CAUSES, 0.0),
    )


def _compared(point: ScalingPoint, base: ScalingPoint, recipe: Recipe) -> ScalingPoint:
    """Fill in speed-up, ratio, and by cause ``(GPU-seconds - those of base) / all GPU-seconds``."""
    assert point.estimate is not None and base.estimate is not None
    here = gpu_seconds_per_token(point.estimate, recipe)
    there = gpu_seconds_per_token(base.estimate, recipe)
    total = sum(here.values())
    return replace(
        point,
        speedup=point.tokens_per_s / base.tokens_per_s,
        ratio=point.tokens_per_s_per_gpu / base.tokens_per_s_per_gpu,
        eaten={cause: (here[cause] - there[cause]) / total for cause in here},
    )


def _resized(cluster: Cluster, gpus: int) -> Cluster:
    """Return the same cluster with another number of GPUs in its first group."""
    if gpus == cluster.gpus:
        return cluster
    return replace(cluster, groups=(replace(cluster.groups[0], gpus=gpus),))
