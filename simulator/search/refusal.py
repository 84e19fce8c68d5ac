"""Why a layout cannot run, in the words of the field that is wrong, with the nearest good value.

The rules and their wordings stand in ``layout/rules``; here the values that are offered instead are
tried, with the defaults of the other fields following them. And pinned fields that contradict
another one or the software, so that a search would pass over them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from simulator.layout.layouts import Layouts
from simulator.layout.rules.feasibility import FEASIBLE, RULES, reasons
from simulator.layout.rules.rule import Case
from simulator.scenario import Scenario
from simulator.schedules.registry import SCHEDULES, usual
from simulator.search.defaults import complete

_LARGEST_BATCH = 2**31 - 1
_LARGEST_PRODUCT = 2**30
"""Of degrees: layouts are tables of 32 bit, and some of their products are doubled."""

_RIVALS = {
    "recompute_modules": ("recompute", "'selective'"),
    "recompute_layers": ("recompute", "'full'"),
}
"""Field -> the field that it goes with, and the value of it that it needs."""

_OF_SOFTWARE = {"schedule": "schedules", "cp_kind": "cp_kinds", "dispatcher": "dispatchers"}
"""Field -> what the software has of it (`supports`), whatever the degrees that it bears on are."""


def limits(scenario: Scenario, pinned: Mapping[str, Any]) -> list[str]:
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
        f"{scenario.where}: layout.{name}: must be at most the {limit} {what}, got {pinned[name]}"
        f" (nearest: {limit})"
        for name, (limit, what) in most.items()
        if (pinned.get(name) or 0) > limit
    ]
    for names, limit in ((("tp", "pp", "cp", "dp"), gpus), (("ep", "etp"), gpus)):
        typed = [name for name in names if pinned.get(name) is not None]
        product = math.prod(pinned[name] for name in typed)
        if product > _LARGEST_PRODUCT and not problems:
            words = " x ".join(typed)
            rule = f"{words} must be at most the {limit} GPUs"
            problems.append(f"{scenario.where}: layout.{typed[-1]}: {rule}, got {product}")
    if batch > _LARGEST_BATCH:
        rule = f"must be at most {_LARGEST_BATCH}"
        problems.append(f"{scenario.where}: training.global_batch: {rule}, got {batch}")
    return problems


def refusal(
    scenario: Scenario, pinned: Mapping[str, Any], row: Mapping[str, Any], code: int
) -> str:
    """Word the reason why a layout cannot run.

    Parameters
    ----------
    pinned : mapping
        Layout fields that were typed; the others follow from them when a value is tried.
    row : mapping
        The whole layout.
    code : int
        Its reason code (``feasibility.reasons``), not 0.
    """

    def can_run(name: str, values: list[int]) -> list[bool]:
        return _can_run(scenario, pinned, name, values)

    case = Case(
        workload=scenario.workload,
        cluster=scenario.cluster,
        software=scenario.software,
        where=scenario.where,
        given=pinned,
        row=row,
        can_run=can_run,
    )
    return RULES[code - 1].sentence(case)


def _can_run(
    scenario: Scenario, pinned: Mapping[str, Any], name: str, values: list[int]
) -> list[bool]:
    """Whether the layout can run with each value of one field, the defaults following it."""
    if not values:
        return []
    rows = [complete(scenario, {**pinned, name: value})[0] for value in values]
    table = Layouts.of(**{key: [row[key] for row in rows] for key in rows[0]})
    codes = reasons(table, scenario.workload, scenario.cluster, scenario.software)
    return [bool(code == FEASIBLE) for code in codes]


def contradictions(scenario: Scenario, pinned: Mapping[str, Any]) -> list[str]:
    """Name pinned fields that no layout can have, whatever the others are."""
    software, problems = scenario.software, []
    for name, plural in _OF_SOFTWARE.items():
        word, allowed = pinned.get(name), getattr(software.supports, plural)
        if word is not None and word != "any" and allowed and word not in allowed:
            rule = f"must be one of {', '.join(allowed)} in {software.name}"
            problems.append(f"{scenario.where}: layout.{name}: {rule}, got {word!r}")
    if not problems:
        problems = [*_wrong_pieces(scenario, pinned), *_wrong_chunks(scenario, pinned)]
    return problems


def _wrong_pieces(scenario: Scenario, pinned: Mapping[str, Any]) -> list[str]:
    """Stages are one number for each of pp x vpp pieces, of which vpp lie on a rank."""
    pieces, vpp = len(pinned.get("stages") or ()), pinned.get("vpp")
    if not pieces or not vpp or "pp" in pinned or pieces % vpp == 0:
        return []
    near = max(n for n in range(1, vpp) if pieces % n == 0)
    rule = f"must divide the {pieces} numbers of layout.stages"
    return [f"{scenario.where}: layout.vpp: {rule}, got {vpp} (nearest: {near})"]


def _wrong_chunks(scenario: Scenario, pinned: Mapping[str, Any]) -> list[str]:
    """A schedule has its own number of chunks."""
    word, vpp = pinned.get("schedule"), pinned.get("vpp")
    if word not in SCHEDULES or vpp is None or pinned.get("pp") == 1:
        return []
    named = SCHEDULES[word]
    if named.fewest_chunks <= vpp <= named.most_chunks:
        return []
    if named.by_default:
        rule = f"must be {usual(vpp)} with vpp = {vpp}, got {word!r}"
        return [f"{scenario.where}: layout.schedule: {rule}"]
    few, many = named.fewest_chunks, named.most_chunks
    chunks = str(few) if few == many else f"at least {few}"
    rule = f"must be {chunks} with {word}, got {vpp} (nearest: {few})"
    return [f"{scenario.where}: layout.vpp: {rule}"]


def not_kept(scenario: Scenario, layouts: Layouts) -> list[str]:
    """Name the pinned fields that the best layout does not have, each with what it contradicts."""
    row, pinned, problems = layouts.row(0), scenario.pinned, []
    for name, (rival, needed) in _RIVALS.items():
        if name not in pinned or rival not in pinned or pinned[name] == "any":
            continue
        if _different(row[name], pinned[name]):
            said = f"needs {rival} = {needed} (it is {pinned[rival]!r})"
            problems.append(f"{scenario.where}: layout.{name}: {said}, got {pinned[name]!r}")
    return problems


def _different(value: object, wanted: object) -> bool:
    """Whether two values differ; modules are named in any order."""
    if isinstance(value, str) and isinstance(wanted, str):
        return set(value.split("+")) != set(wanted.split("+"))
    return value != wanted
