"""What a search may decide: `[search] allow`, over what the scenario pins."""

from __future__ import annotations

from typing import Any

from simulator.goal import DECIDED, OFFERED, UNDECIDED
from simulator.scenario import Scenario
from simulator.search.defaults import complete


def with_allowed(scenario: Scenario) -> dict[str, Any]:
    """Pinned fields of the search: those given, and those that it may not decide.

    What may not be decided has the value that ``predict`` takes for it; of what is not decided by
    default and allowed, every value that the software has is tried ("any").

    Examples
    --------
    >>> from simulator.scenario import make_scenario
    >>> run = {"model": {"name": "llama-3.1-8b"}, "cluster": {"name": "dgx-h100", "gpus": 8},
    ...     "training": {"sequence_length": 8192, "global_batch": 64}}
    >>> some = make_scenario(run | {"search": {"allow": ["tp", "micro_batch", "schedule"]}})
    >>> pinned = with_allowed(some)
    >>> pinned["pp"], pinned["recompute"], pinned["schedule"], "tp" in pinned
    (1, 'none', 'any', False)
    """
    pinned = dict(scenario.pinned)
    if (allow := _of_layout(scenario)) is None:
        return pinned
    usual, _ = complete(scenario, {"tp": 1, "pp": 1, "cp": 1})
    for name in DECIDED:
        if name not in allow and name not in pinned:
            pinned[name] = usual.get(name, {"recompute_modules": "", "stages": ()}.get(name, 1))
    for name in UNDECIDED:
        if name in allow and name not in pinned:
            pinned[name] = "any"
    return pinned


def decides(scenario: Scenario) -> tuple[list[str], list[str]]:
    """Fields that the search decided, and those that it would if they were allowed."""
    words = _of_layout(scenario)
    allow = DECIDED if words is None else words
    names = [name for name in (*DECIDED, *UNDECIDED) if name in allow]
    return names, [name for name in (*DECIDED, *UNDECIDED) if name not in allow]


def _of_layout(scenario: Scenario) -> tuple[str, ...] | None:
    """Fields of the layout that are allowed; None where nobody named any, the usual ones."""
    allow = scenario.allow
    if allow and all(word in OFFERED for word in allow):
        return None
    return allow if allow is None else tuple(word for word in allow if word not in OFFERED)
