"""The layouts of a plan under another scenario: an answer while the search for its own runs."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from simulator.cost.step import evaluate
from simulator.layout.layouts import Layouts
from simulator.layout.rules.feasibility import FEASIBLE, reasons
from simulator.planner.plan import Plan, ranked
from simulator.scenario import Scenario
from simulator.schedules.registry import usual_codes
from simulator.search.certainty import certainty
from simulator.search.with_failures import priced

MOST = 48
"""Layouts of the plan before that are priced again: together a tenth of a second or less."""

_FRONT = 16
"""Of them those of its front with most free memory, for when the best no longer fit."""


def repriced(before: Plan, scenario: Scenario) -> Plan | None:
    """Price the best and the leanest layouts of a plan for another scenario, pins put over them.

    Where none fits, the one that needs least memory is the answer. The degree of data parallelism
    and what hangs on a pin follow; layouts that cannot run are left out.

    Returns
    -------
    Plan or None
        Its ``found`` is that of the plan before; None if none of the layouts can run.
    """
    setting = scenario.workload, scenario.cluster, scenario.software
    chosen = np.unique(np.r_[before.pareto[-_FRONT:], : min(MOST - _FRONT, len(before.estimate))])
    table = moved(before.estimate.layouts[chosen], scenario)
    table = table[reasons(table, *setting) == FEASIBLE]
    if not len(table):
        return None
    estimate = evaluate(table, *setting)
    fits = np.flatnonzero(estimate.fits)
    estimate = estimate.take(fits if len(fits) else [int(np.argmin(estimate.memory_total_bytes))])
    result = priced(estimate, scenario)
    order = ranked(estimate, result, scenario)
    estimate, result = estimate.take(order), result.take(order)
    return Plan(
        scenario=scenario,
        found=before.found,
        estimate=estimate,
        outcome=result,
        certainty=certainty(estimate, *setting, compared=True),
        naive=None,
    )


def moved(table: Layouts, scenario: Scenario) -> Layouts:
    """Put a scenario's pins, batch and number of accelerators over layouts; each row once."""
    was, pinned = table, scenario.pinned
    table = table.replace(**pinned, global_batch=scenario.workload.recipe.global_batch)
    dp = np.maximum(scenario.cluster.gpus // (table.tp * table.pp * table.cp), 1)
    vpp = np.where(table.pp == 1, 1, table.vpp)
    gcd = np.gcd(table.micro_batch, np.maximum(table.global_batch // dp, 1))
    follows: dict[str, Any] = {"dp": dp, "vpp": vpp}
    follows["schedule"] = np.where(vpp == was.vpp, was.schedule, usual_codes(vpp))
    whole = was.shard_group == was.dp * was.cp
    follows["shard_group"] = np.where(whole, dp * table.cp, was.shard_group)
    usually = int(True in scenario.software.supports.sequence_parallel)
    newly = np.where(was.tp == 1, usually, was.sequence_parallel)
    follows["sequence_parallel"] = np.where(table.tp == 1, 0, newly)
    for name in ("recompute_layers", "recompute_modules"):
        follows[name] = np.where(table.recompute == was.recompute, getattr(was, name), 0)
    if "micro_batch" not in pinned:
        follows["micro_batch"] = gcd
    follows["cp_a2a"] = np.where(table.cp == was.cp, was.cp_a2a, 1)
    same = (table.pp == was.pp) & (vpp == was.vpp)
    splits = tuple(dict.fromkeys([*was.splits, ()]))
    follows["stages"] = np.where(same, was.stages, splits.index(()))
    table = dataclasses.replace(table, **follows, splits=splits)
    rows = np.stack(list(table.columns().values()), axis=1)
    _, first = np.unique(rows, axis=0, return_index=True)
    return table[np.sort(first)]
