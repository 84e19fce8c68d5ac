"""Search: enumerate, judge, evaluate, rank. The answer is a `Plan`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.cost.step import Estimate, estimates, evaluate
from simulator.errors import InfeasibleError
from simulator.hardware.cluster import Cluster
from simulator.layout.feasibility import FEASIBLE, REASONS, reasons
from simulator.layout.layout import SHARDINGS, Layouts
from simulator.planner.candidates import candidates
from simulator.planner.outcome import Outcome, outcome
from simulator.scenario import Scenario
from simulator.software import Software
from simulator.units import show_bytes
from simulator.workload.recipe import Workload

__all__ = ["TOO_LARGE", "Found", "Plan", "explore", "plan"]

TOO_LARGE = "more memory than usable on the fullest GPU"
"""Reason of layouts that were evaluated but do not fit."""

PIECE = 1 << 18
"""Candidates judged and evaluated at once; bounds the memory of a search over millions."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What one exploration of the layout space saw."""

    best: Estimate
    """The fastest layouts that fit, best first."""
    layouts: int
    """Distinct layouts enumerated."""
    feasible: int
    """Layouts that can run and fit."""
    evaluated: int
    """Layouts with every time and memory term computed."""
    dropped: dict[str, int]
    """Layouts dropped, by reason."""
    nearest_miss: Estimate | None
    """The evaluated layout that needs least memory, when none fits."""
    fastest_too_large: Estimate | None
    """The fastest layout that was dropped for memory."""
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The ranked answer to a scenario."""

    scenario: Scenario
    found: Found
    estimate: Estimate
    """Best layouts, best first by the goal."""
    outcome: Outcome
    naive: Estimate | None
    """The fastest layout with data parallelism alone (zero3, no tp, pp, cp, ep), for comparison."""
    naive_fits: bool

    @property
    def meets_deadline(self) -> NDArray[np.bool_]:
        """Whether each layout finishes in time; true where no deadline was given."""
        limit = self.scenario.goal.deadline_days
        return self.outcome.days <= (np.inf if limit is None else limit)

    @property
    def meets_budget(self) -> NDArray[np.bool_]:
        """Whether each layout stays within the budget; true where none was given."""
        limit = self.scenario.goal.budget_usd
        return self.outcome.usd <= (np.inf if limit is None else limit)


def explore(
    workload: Workload,
    cluster: Cluster,
    software: Software,
    pinned: Mapping[str, Any] | None = None,
    *,
    keep: int = 64,
    progress: Callable[[int, int], None] | None = None,
) -> Found:
    """Evaluate every layout and keep the fastest that fit.

    Parameters
    ----------
    pinned : mapping, optional
        Layout fields with a fixed value.
    keep : int
        How many of the fastest to return.
    progress : callable, optional
        Called with (candidates done, candidates in all) after every piece.
    """
    begun = time.perf_counter()
    table = candidates(workload, cluster, software, pinned)
    dropped = np.zeros(len(REASONS), dtype=np.int64)
    best: list[Estimate] = []
    too_large: list[Estimate] = []
    smallest: list[Estimate] = []
    evaluated = fitting = 0
    for start in range(0, len(table), PIECE):
        piece = table[start : start + PIECE]
        code = reasons(piece, workload, cluster, software)
        dropped += np.bincount(code, minlength=len(REASONS))
        possible = piece[code == FEASIBLE]
        if len(possible):
            for estimate in estimates(possible, workload, cluster, software):
                fits = estimate.fits
                evaluated, fitting = evaluated + len(estimate), fitting + int(fits.sum())
                best.append(_fastest(estimate, fits, keep))
                too_large.append(_fastest(estimate, ~fits, 1))
                smallest.append(estimate.take(np.array([np.argmin(estimate.memory_total_bytes)])))
        if progress is not None:
            progress(start + len(piece), len(table))
    counts = {REASONS[i]: int(n) for i, n in enumerate(dropped) if n and i != FEASIBLE}
    if evaluated > fitting:
        counts[TOO_LARGE] = evaluated - fitting
    return Found(
        best=_fastest_of(best, keep, workload, cluster, software),
        layouts=len(table),
        feasible=fitting,
        evaluated=evaluated,
        dropped=counts,
        nearest_miss=_least(smallest, "memory_total_bytes") if not fitting else None,
        fastest_too_large=_least([x for x in too_large if len(x)], "step_time_s"),
        seconds=time.perf_counter() - begun,
    )


def plan(
    scenario: Scenario, *, keep: int = 64, progress: Callable[[int, int], None] | None = None
) -> Plan:
    """Search all layouts of a scenario and rank them by its goal.

    Raises
    ------
    InfeasibleError
        If no layout can run and fit; the message names the nearest miss and what would help.
    """
    found = explore(
        scenario.workload,
        scenario.cluster,
        scenario.software,
        scenario.pinned,
        keep=keep,
        progress=progress,
    )
    if not len(found.best):
        raise InfeasibleError(_nothing_fits(found, scenario))
    result = outcome(found.best, scenario.workload.recipe, scenario.cluster)
    naive = _naive(scenario)
    answer = Plan(
        scenario=scenario,
        found=found,
        estimate=found.best,
        outcome=result,
        naive=naive,
        naive_fits=bool(naive.fits[0]) if naive is not None else False,
    )
    return _ranked(answer)


def _ranked(answer: Plan) -> Plan:
    """Order by the goal; layouts that miss deadline or budget come after those that meet both."""
    result = answer.outcome
    goal = {"time": result.days, "cost": result.usd, "energy": result.kwh}
    value = goal[answer.scenario.goal.minimize]
    value = np.where(np.isnan(value), answer.estimate.step_time_s, value)
    missed = ~(answer.meets_deadline & answer.meets_budget) & ~np.isnan(result.days)
    order = np.lexsort((answer.estimate.step_time_s, value, missed))
    estimate = answer.estimate.take(order)
    recipe, cluster = answer.scenario.workload.recipe, answer.scenario.cluster
    return replace(answer, estimate=estimate, outcome=outcome(estimate, recipe, cluster))


def _fastest(estimate: Estimate, rows: NDArray[np.bool_], keep: int) -> Estimate:
    """The `keep` fastest of the given rows, ties in the order of enumeration."""
    chosen = np.flatnonzero(rows)
    if len(chosen) > 4 * keep:
        cut = np.partition(estimate.step_time_s[chosen], keep)[keep]
        chosen = chosen[estimate.step_time_s[chosen] <= cut]
    order = np.argsort(estimate.step_time_s[chosen], kind="stable")
    return estimate.take(chosen[order[:keep]])


def _fastest_of(
    parts: list[Estimate], keep: int, workload: Workload, cluster: Cluster, software: Software
) -> Estimate:
    """The fastest of several tables, evaluated once more as one table."""
    tables = [part.layouts for part in parts if len(part)]
    if not tables:
        return (
            parts[0]
            if parts
            else evaluate(_one_row(cluster), workload, cluster, software).take(slice(0, 0))
        )
    joined = evaluate(Layouts.concatenate(tables), workload, cluster, software)
    return _fastest(joined, np.full(len(joined), True), keep)


def _one_row(cluster: Cluster) -> Layouts:
    return Layouts.of(dp=cluster.gpus)


def _least(parts: list[Estimate], field: str) -> Estimate | None:
    """The single-row estimate whose `field` is least."""
    return min(parts, key=lambda part: float(getattr(part, field)[0])) if parts else None


def _naive(scenario: Scenario) -> Estimate | None:
    """The fastest pure data-parallel layout, with the most sharding that the software has."""
    sharding = scenario.software.supports.sharding[-1]
    pinned = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "etp": 1, "sharding": sharding}
    table = candidates(scenario.workload, scenario.cluster, scenario.software, pinned)
    judged = reasons(table, scenario.workload, scenario.cluster, scenario.software)
    table = table[(judged == FEASIBLE) & (table.sharding == SHARDINGS.index(sharding))]
    if not len(table):
        return None
    estimate = evaluate(table, scenario.workload, scenario.cluster, scenario.software)
    rows = estimate.fits if estimate.fits.any() else np.full(len(estimate), True)
    return _fastest(estimate, rows, 1)


def _nothing_fits(found: Found, scenario: Scenario) -> str:
    """Say which layout came nearest, what it lacks, and what would make it fit."""
    lines = [
        f"{scenario.where}: no feasible layout among {found.layouts}"
        f" on {scenario.cluster.gpus} GPUs"
    ]
    miss = found.nearest_miss
    if miss is None:
        for reason, count in sorted(found.dropped.items(), key=lambda item: -item[1])[:3]:
            lines.append(f"  {count} layouts: {reason}")
        return "\n".join(lines)
    need, have = float(miss.memory_total_bytes[0]), miss.usable_bytes
    largest = max(miss.memory_bytes, key=lambda kind: float(miss.memory_bytes[kind][0]))
    lines.append(
        f"  nearest miss: {miss.layouts.describe()} needs {show_bytes(need)}"
        f" of {show_bytes(have)} usable;"
        f" it lacks {show_bytes(need - have)}, most of it is {largest}"
        f" ({show_bytes(float(miss.memory_bytes[largest][0]))})"
    )
    states = sum(
        float(miss.memory_bytes[kind][0]) for kind in ("weights", "gradients", "optimizer")
    )
    lines += _remedies(scenario, need, have, states)
    return "\n".join(lines)


def _remedies(scenario: Scenario, need: float, have: float, states: float) -> list[str]:
    """What would make the nearest miss fit, found by trying: more GPUs, or a larger device."""
    tried: list[str] = []
    cluster = scenario.cluster
    for times in (2, 4, 8, 16, 32, 64):
        group = replace(cluster.groups[0], gpus=cluster.gpus * times)
        larger = replace(cluster, groups=(group,))
        pinned = {k: v for k, v in scenario.pinned.items() if k != "dp"}
        found = explore(scenario.workload, larger, scenario.software, pinned, keep=1)
        if found.feasible:
            tried.append(f"  would fit: {larger.gpus} GPUs, as {found.best.layouts.describe()}")
            break
    tried.append(
        f"  would fit: {show_bytes(need)} of usable memory per GPU instead of {show_bytes(have)}"
    )
    if scenario.pinned:
        tried.append(
            f"  pinned by the scenario: {', '.join(sorted(scenario.pinned))}; unpinning may help"
        )
    return tried
