"""Ways to use servers of several kinds, best first by the goal, and which of them to leave out."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

from simulator.answers import Answer
from simulator.cost.mixed_gradient_sum import GradientSumPhases
from simulator.frames import DataFrame, frame_of_rows
from simulator.goal import Goal
from simulator.layout.layouts import Layouts
from simulator.planner.mixed_servers import asked_of
from simulator.planner.mixed_totals import MixedTotals
from simulator.scenario import Scenario
from simulator.units import show_percent


@dataclass(frozen=True, kw_only=True, slots=True)
class MixedOption:
    """One way to use the servers."""

    way: str
    """stages: of one pipeline on several kinds. shares: replicas on one kind each, with unlike
    numbers of micro-batches. own layouts: the same, and each kind with a layout of its own. NAME
    alone: the servers of one kind and no others."""
    kinds: tuple[str, ...]
    """Kinds that are used."""
    gpus: int
    layouts: Layouts
    """One row, or one of each kind where they are unlike."""
    described: str
    micro_batches: tuple[int, ...]
    """Of a replica, by kind that is used."""
    step_s: float
    """Played on discrete events."""
    closed_form_s: float | None
    """None where there is no closed form: stages on several kinds."""
    totals: MixedTotals
    legs: GradientSumPhases | None = None
    """Of the sum of gradients over kinds whose layouts are unlike."""

    def value(self, goal: Goal) -> float:
        """What the goal makes least; the step where money or energy are not known."""
        totals = self.totals
        found = {"time": totals.days, "cost": totals.usd, "energy": totals.kwh}[goal.minimize]
        return self.step_s if found is None else found

    def meets(self, goal: Goal) -> bool:
        """Whether deadline and budget are met; what is not known does not meet them."""
        days, usd = self.totals.days, self.totals.usd
        late = goal.deadline_days is not None and (inf if days is None else days) > (
            goal.deadline_days
        )
        dear = goal.budget_usd is not None and (inf if usd is None else usd) > goal.budget_usd
        return not (late or dear)


def in_order(options: list[MixedOption], goal: Goal) -> tuple[MixedOption, ...]:
    """Best first: those that meet deadline and budget, by what the goal makes least."""
    return tuple(
        sorted(
            options, key=lambda option: (not option.meets(goal), option.value(goal), option.step_s)
        )
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class MixedPlan(Answer):
    """Ways to use a cluster of several kinds of servers, the best by the goal first."""

    COMMAND: ClassVar[str] = "plan"
    KEYS: ClassVar[tuple[str, ...]] = ("*asked", "verdict", "left_out", "options=rows")

    scenario: Scenario
    options: tuple[MixedOption, ...]

    @property
    def asked(self) -> dict[str, Any]:
        """What was asked: the head of its document."""
        return asked_of(self.scenario)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row per way."""
        return [option_row(option) for option in self.options]

    @property
    def line(self) -> str:
        """The verdict."""
        return self.verdict

    @property
    def best(self) -> MixedOption:
        """The best by the goal."""
        return self.options[0]

    @property
    def meets_goal(self) -> bool:
        """Whether the best way meets deadline and budget, where one was given."""
        return self.best.meets(self.scenario.goal)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Kinds of servers that the best way does not use."""
        every = (kind.name for kind in self.scenario.cluster.kinds)
        return tuple(name for name in every if name not in self.best.kinds)

    @property
    def verdict(self) -> str:
        """What to do, in a sentence."""
        best = self.best
        rest = [
            option for option in self.options if option.way.endswith("alone") != bool(self.left_out)
        ]
        if self.left_out:
            names = " and ".join(self.left_out)
            if not rest:
                return f"{names} left out: nothing runs on all servers"
            return f"{names} better left out: {self._more(rest[0], 'a step on all servers')}"
        if not rest:
            return f"all servers by {best.way}: no kind alone can run it"
        name = rest[0].kinds[0]
        return f"all servers by {best.way}; {self._more(rest[0], f'the best kind alone, {name},')}"

    def _more(self, other: MixedOption, what: str) -> str:
        """How much more another way takes of what the goal makes least."""
        goal = self.scenario.goal
        if not other.meets(goal) and self.meets_goal:
            return f"{what} misses deadline or budget"
        more = show_percent(other.value(goal) / self.best.value(goal) - 1.0)
        known = {"time": True, "cost": other.totals.usd, "energy": other.totals.kwh}[goal.minimize]
        if known is None or goal.minimize == "time":
            return f"{what} takes {more} longer"
        return f"{what} takes {more} more {'money' if goal.minimize == 'cost' else 'energy'}"

    def to_frame(self) -> DataFrame:
        """One row per way."""
        return frame_of_rows(self.rows)


def option_row(mixed_option: MixedOption) -> dict[str, Any]:
    """What an option says, as plain values."""
    totals = mixed_option.totals
    p10_s, p90_s = totals.interval_s
    return {
        "way": mixed_option.way,
        "kinds": list(mixed_option.kinds),
        "gpus": mixed_option.gpus,
        "layout": mixed_option.layouts.row(),
        "described": mixed_option.described,
        "layouts": [mixed_option.layouts.row(i) for i in range(len(mixed_option.layouts))],
        "micro_batches": list(mixed_option.micro_batches),
        "legs_s": None if mixed_option.legs is None else _legs_row(mixed_option.legs),
        "step_time_s": mixed_option.step_s,
        "p10_s": p10_s,
        "p90_s": p90_s,
        "closed_form_s": mixed_option.closed_form_s,
        "tokens_per_s": totals.tokens_per_s,
        "mfu": totals.mfu,
        "memory_headroom": totals.memory_headroom,
        "goodput": totals.goodput,
        "days": totals.days,
        "usd": totals.usd,
        "kwh": totals.kwh,
        "evidence": totals.evidence.grade,
    }


def _legs_row(legs: GradientSumPhases) -> dict[str, list[float]]:
    """Seconds of each leg, by kind."""
    return {
        "reduce_scatter": list(legs.reduce_scatter_s),
        "exchange": list(legs.exchange_s),
        "gather": list(legs.gather_s),
    }
