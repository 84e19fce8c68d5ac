"""Pinned fields that contradict another one or the software, so that a search passes over them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator.layout.layouts import Layouts
from simulator.scenario import Scenario
from simulator.schedules.registry import SCHEDULES, usual

_RIVALS = {
    "recompute_modules": ("recompute", "'selective'"),
    "recompute_layers": ("recompute", "'full'"),
}
"""Field -> the field that it goes with, and the value of it that it needs."""

_OF_SOFTWARE = {"schedule": "schedules", "cp_kind": "cp_kinds", "dispatcher": "dispatchers"}
"""Field -> what the software has of it (`supports`), whatever the degrees that it bears on are."""


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


def _different(found: object, wanted: object) -> bool:
    """Whether two values differ; modules are named in any order."""
    if isinstance(found, str) and isinstance(wanted, str):
        return set(found.split("+")) != set(wanted.split("+"))
    return found != wanted
