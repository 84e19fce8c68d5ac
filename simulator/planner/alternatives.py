"""Three other layouts of a plan, and what speaks for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from simulator.planner.plan import Plan

_ALTERNATIVES = 3


def alternatives(plan: Plan) -> list[tuple[int, str]]:
    """Up to three other layouts, and what speaks for each.

    The next by the goal, what surely fits where the best may not, the most memory free, the least
    energy; else the next by the goal.
    """
    estimate, front = plan.estimate, plan.pareto
    verdicts = [estimate.verdict_word(i) for i in range(len(estimate))]
    asked = [(1, "next best")]
    if verdicts[0] != "FITS" and "FITS" in verdicts:
        asked.append((verdicts.index("FITS"), "first that FITS"))
    if len(front):
        free = front[np.argmin(estimate.memory_total_bytes[front])]
        asked.append((int(free), "most memory free"))
        kwh = plan.outcome.kwh[front]
        if np.isfinite(kwh).all():
            asked.append((int(front[np.argmin(kwh)]), "least energy"))
    asked += [(i, "next") for i in range(2, 2 + _ALTERNATIVES)]
    chosen: dict[int, str] = {}
    for place, why in asked:
        if 0 < place < len(estimate) and len(chosen) < _ALTERNATIVES:
            chosen.setdefault(place, why)
    return sorted(chosen.items())
