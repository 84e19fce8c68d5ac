"""The fastest layout of each pair of tensor- and pipeline-parallel degrees, for a heat map."""

from __future__ import annotations

from simulator.cost.estimate import Estimate
from simulator.planner.plan import Plan
from simulator.records import dataclass
from simulator.search.allowed import with_allowed
from simulator.search.explore import fastest_of_pairs

_STAGES = (1, 2, 4, 8, 16)
"""Pipeline-parallel degrees of the map, beside that of the best layout."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DegreeCell:
    """One pair of degrees; without a step no layout runs and fits."""

    tp: int
    pp: int
    step_time_s: float | None = None
    verdict: str = "OOM"
    """FITS or TIGHT of its fastest layout."""
    layout: str = ""
    """In a few words."""


def degree_map(plan: Plan) -> list[DegreeCell]:
    """Search each pair of degrees that a server and the GPUs allow; nothing where one is pinned.

    Pairs among the plan's best layouts are known: the first of them is the fastest of its pair.
    The others are slower, and are searched without the walk from the best: half the time, for
    cells that are up to some 2 % too slow.
    """
    scenario, estimate = plan.scenario, plan.estimate
    pinned = with_allowed(scenario)
    if {"tp", "pp"} & set(pinned):
        return []
    gpus, server = scenario.cluster.gpus, scenario.cluster.node.accelerators
    stages = sorted({*_STAGES, int(estimate.layouts.pp[0])})
    pairs = [
        (1 << k, pp)
        for k in range(min(server, 8).bit_length())
        for pp in stages
        if gpus % ((1 << k) * pp) == 0 and pp <= scenario.workload.architecture.layers
    ]
    known: dict[tuple[int, int], DegreeCell] = {}
    by_step = sorted(range(len(estimate)), key=lambda i: float(estimate.step_time_s[i]))
    able = estimate.able(allow_tight=scenario.allow_tight)
    for i in by_step:
        pair = int(estimate.layouts.tp[i]), int(estimate.layouts.pp[i])
        if able[i] and plan.scenario.goal.minimize != "energy":
            known.setdefault(pair, _cell(pair, estimate, i))
    rest = [pair for pair in pairs if pair not in known]
    setting = scenario.workload, scenario.cluster, scenario.software
    tight = scenario.allow_tight
    best = fastest_of_pairs(setting, pinned, rest, allow_tight=tight) if rest else []
    for pair, cell in zip(rest, best, strict=True):
        known[pair] = _cell(pair, cell, 0) if len(cell) else DegreeCell(tp=pair[0], pp=pair[1])
    return [known[pair] for pair in pairs]


def _cell(pair: tuple[int, int], estimate: Estimate, i: int) -> DegreeCell:
    return DegreeCell(
        tp=pair[0],
        pp=pair[1],
        step_time_s=float(estimate.step_time_s[i]),
        verdict=estimate.verdict_word(i),
        layout=estimate.layouts.describe(i),
    )
