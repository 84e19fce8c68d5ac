"""Why one layout cannot run, in the words of the field that is wrong, with the nearest good value.

The rules and their wordings stand in ``layout/rules``; here the values that are offered instead are
tried, with the defaults of the other fields following them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from simulator.layout.layouts import Layouts
from simulator.layout.rules.feasibility import FEASIBLE, RULES, reasons
from simulator.layout.rules.rule import Case
from simulator.scenario import Scenario
from simulator.search.defaults import complete

_LARGEST_BATCH = 2**31 - 1
_LARGEST_PRODUCT = 2**30
"""Of degrees: layouts are tables of 32 bit, and some of their products are doubled."""


def limits(scenario: Scenario, given: Mapping[str, Any]) -> list[str]:
    """Problems of fields that are larger than anything could make sense of."""
    gpus, layers = scenario.cluster.gpus, scenario.workload.architecture.layers
    batch = scenario.workload.recipe.global_batch
    most = dict.fromkeys(
        ("tp", "pp", "cp", "cp_a2a", "dp", "ep", "etp", "shard_group"), (gpus, "GPUs")
    )
    most["reshard_after_forward"] = (gpus, "GPUs")
    most |= dict.fromkeys(("vpp", "recompute_layers", "offload_layers"), (layers, "layers"))
    most["micro_batch"] = (batch, "sequences of training.global_batch")
    problems = [
        f"{scenario.where}: layout.{name}: must be at most the {limit} {what}, got {given[name]}"
        f" (nearest: {limit})"
        for name, (limit, what) in most.items()
        if (given.get(name) or 0) > limit
    ]
    for names, limit in ((("tp", "pp", "cp", "dp"), gpus), (("ep", "etp"), gpus)):
        typed = [name for name in names if given.get(name) is not None]
        product = math.prod(given[name] for name in typed)
        if product > _LARGEST_PRODUCT and not problems:
            words = " x ".join(typed)
            rule = f"{words} must be at most the {limit} GPUs"
            problems.append(f"{scenario.where}: layout.{typed[-1]}: {rule}, got {product}")
    if batch > _LARGEST_BATCH:
        rule = f"must be at most {_LARGEST_BATCH}"
        problems.append(f"{scenario.where}: training.global_batch: {rule}, got {batch}")
    return problems


def refusal(scenario: Scenario, given: Mapping[str, Any], row: Mapping[str, Any], code: int) -> str:
    """Word the reason why a layout cannot run.

    Parameters
    ----------
    given : mapping
        Layout fields that were typed; the others follow from them when a value is tried.
    row : mapping
        The whole layout.
    code : int
        Its reason code (``feasibility.reasons``), not 0.
    """

    def can_run(name: str, values: list[int]) -> list[bool]:
        return _can_run(scenario, given, name, values)

    case = Case(
        workload=scenario.workload,
        cluster=scenario.cluster,
        software=scenario.software,
        where=scenario.where,
        given=given,
        row=row,
        can_run=can_run,
    )
    return RULES[code - 1].sentence(case)


def _can_run(
    scenario: Scenario, given: Mapping[str, Any], name: str, values: list[int]
) -> list[bool]:
    """Whether the layout can run with each value of one field, the defaults following it."""
    if not values:
        return []
    rows = [complete(scenario, {**given, name: value})[0] for value in values]
    table = Layouts.of(**{key: [row[key] for row in rows] for key in rows[0]})
    codes = reasons(table, scenario.workload, scenario.cluster, scenario.software)
    return [bool(code == FEASIBLE) for code in codes]
