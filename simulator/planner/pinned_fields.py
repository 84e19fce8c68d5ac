"""Pinned fields that contradict another one, so that a search had to pass over one of them."""

from __future__ import annotations

from simulator.layout.layouts import Layouts
from simulator.scenario import Scenario

__all__ = ["not_kept"]

_RIVALS = {
    "recompute_modules": ("recompute", "'selective'"),
    "recompute_layers": ("recompute", "'full'"),
    "schedule": ("vpp", "what the schedule has"),
}
"""Field -> the field that it goes with, and the value of it that it needs."""


def not_kept(scenario: Scenario, layouts: Layouts) -> list[str]:
    """Name the pinned fields that the best layout does not have, each with what it contradicts."""
    row, pinned, problems = layouts.row(0), scenario.pinned, []
    for name, (rival, needed) in _RIVALS.items():
        if name not in pinned or rival not in pinned or pinned[name] == "any":
            continue
        if name == "schedule" and row["pp"] == 1:
            continue  # no pipeline, no schedule
        if _different(row[name], pinned[name]):
            said = f"needs {rival} = {needed} (it is {pinned[rival]!r})"
            problems.append(f"{scenario.where}: layout.{name}: {said}, got {pinned[name]!r}")
    return problems


def _different(found: object, wanted: object) -> bool:
    """Whether two values differ; modules are named in any order."""
    if isinstance(found, str) and isinstance(wanted, str):
        return set(found.split("+")) != set(wanted.split("+"))
    return found != wanted
