"""What decisions about parts of a run say of every part, and of every way to run it."""

from __future__ import annotations

from typing import Any

from simulator.goal import Goal
from simulator.records import dataclass
from simulator.units import DAY_S
from simulator.workload.recipe import Recipe


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A part of a run that has a layout of its own."""

    batch: int
    """Sequences of a step that are its share."""
    described: str = ""
    """The layout in a few words; blank where none fits."""
    layout: dict[str, Any] | None = None
    reason: str = ""
    """Why no layout fits."""

    @property
    def feasible(self) -> bool:
        """Whether some layout fits."""
        return not self.reason


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """A way to run all of it."""

    name: str
    tokens_per_s: float = 0.0
    days_ideal: float | None = None
    """Without failures; None: no tokens given, or nothing fits."""
    reason: str = ""
    """Why it cannot be."""


def unjudged(goal: Goal) -> list[str]:
    """Say of a deadline and a budget that ideal days are not held against them."""
    limits = {"goal.deadline_days": goal.deadline_days, "goal.budget_usd": goal.budget_usd}
    given = " and ".join(name for name, limit in limits.items() if limit is not None)
    return [f"{given}: not judged here; `foreshard plan` does, for one place."] if given else []


def ideal_days(recipe: Recipe, tokens_per_s: float, *, more: float = 0.0) -> float | None:
    """Days of a run without failures that takes so many more steps, as a share of them.

    None where nobody gave its tokens, or nothing runs.
    """
    if recipe.steps is None or tokens_per_s <= 0.0:
        return None
    return recipe.steps * recipe.tokens_per_step * (1.0 + more) / tokens_per_s / DAY_S
