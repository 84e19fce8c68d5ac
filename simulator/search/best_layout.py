"""What is asked of an answer about layouts most often: plain numbers of its first one."""

from __future__ import annotations

from importlib import import_module
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.answers import Answer, plain
from simulator.arrays import Floats
from simulator.cost.step import Estimate
from simulator.economics.planning_factor import PlanningFactor, Span, planning_factor
from simulator.economics.price import MARK
from simulator.evidence.card import Card
from simulator.frames import DataFrame, Table
from simulator.goal import EVEN
from simulator.scenario import Scenario
from simulator.search.certainty import Certainty
from simulator.search.checkpoints import Checkpoint, checkpoints
from simulator.search.defaults import layout_fields
from simulator.search.outcome import (
    GoalChances,
    Outcome,
    PlannedTotals,
    answer_frame,
    goal_chances,
    planned_totals,
)
from simulator.units import show_seconds, show_usd


class BestLayout(Answer):
    """An estimate, its outcome and certainty; the numbers are those of the first row."""

    scenario: Scenario
    estimate: Estimate
    outcome: Outcome
    certainty: Certainty

    def to_frame(self, table: Table = "layouts") -> DataFrame:
        """One row per layout, best first: what it costs; or seconds by term; or bytes by kind."""
        factor = self.planning_factor
        return answer_frame(self.estimate, self.outcome, self.certainty, table, factor)

    @property
    def asked(self) -> dict[str, Any]:
        """What was asked: the head of its document."""
        scenario = self.scenario
        flop = {"model_flop_per_step": float(self.estimate.model_flop)}
        return {
            "scenario": scenario.document,
            "assumed_software": scenario.assumed_software,
            "assumed_training": scenario.assumed,
            "idle_fields": scenario.idle,
            "elsewhere": scenario.elsewhere,
            "workload": plain(scenario.workload.architecture) | flop,
        }

    @property
    def evidence(self) -> Card:
        """What measured runs and figures stand behind it."""
        raise NotImplementedError

    @property
    def caveats(self) -> tuple[str, ...]:
        """What it takes for granted and leaves out, as ``report/evidence.py`` words it."""
        words: tuple[str, ...] = import_module("simulator.report.evidence").caveats_of(self)
        return words

    @property
    def layout(self) -> dict[str, Any]:
        """The whole layout as `predict` takes it back, and as JSON says it."""
        return layout_fields(self.scenario, self.estimate.layouts)

    @property
    def checkpoint(self) -> Checkpoint:
        """What its run writes to go on from: bytes, seconds, how often, what stays."""
        return checkpoints(self.scenario, self.estimate, self.outcome.real)[0]

    @property
    def goal_chances(self) -> GoalChances:
        """How likely each layout is to meet deadline and budget."""
        goal, factor = self.scenario.goal, self.planning_factor
        return goal_chances(self.estimate.step_time_s, self.outcome, self.certainty, goal, factor)

    @property
    def in_time(self) -> NDArray[np.bool_]:
        """Whether the deadline of each layout is not missed; true without one."""
        return ~(self.goal_chances.deadline < EVEN)

    @property
    def in_budget(self) -> NDArray[np.bool_]:
        """Whether the budget of each layout is not missed; true without one."""
        return ~(self.goal_chances.budget < EVEN)

    @property
    def planning_factor(self) -> PlanningFactor | None:
        """What published runs took on top; None where no length is known or all is ideal."""
        return factor_of(self.scenario)

    @property
    def planned(self) -> PlannedTotals | None:
        """Days, money and energy of every layout with the planning factor; None without one."""
        factor = self.planning_factor
        if factor is None:
            return None
        return planned_totals(self.estimate, self.outcome, self.certainty, factor)

    @property
    def planned_days(self) -> dict[str, float] | None:
        """P10, P50 and P90 of the days with the planning factor; None without one."""
        return None if self.planned is None else _ends(self.planned.days)

    @property
    def planned_usd(self) -> dict[str, float] | None:
        """The same of the money; None without a price, too."""
        return None if self.planned is None else _ends(self.planned.usd)

    @property
    def planned_kwh(self) -> dict[str, float] | None:
        """The same of the energy; None without a factor."""
        return None if self.planned is None else _ends(self.planned.kwh)

    @property
    def step_time_s(self) -> float:
        """Seconds of one optimizer step."""
        return float(self.estimate.step_time_s[0])

    @property
    def interval_s(self) -> tuple[float, float]:
        """P10 and P90 of the step time."""
        return float(self.certainty.p10_s[0]), float(self.certainty.p90_s[0])

    @property
    def memory_bytes(self) -> float:
        """Bytes on the worst rank."""
        return float(self.estimate.memory_total_bytes[0])

    @property
    def fits(self) -> bool:
        """Whether the worst rank is expected (P50) to stay within usable memory."""
        return bool(self.estimate.fits[0])

    @property
    def memory_verdict(self) -> str:
        """FITS, TIGHT or OOM (``simulator.cost.estimate.VERDICTS``)."""
        return self.estimate.verdict_word()

    @property
    def mfu(self) -> float:
        """Model FLOPs over dense bf16 peak."""
        return float(self.outcome.mfu[0])

    @property
    def days(self) -> float | None:
        """Days of the real run; None where the tokens are not known."""
        return _first(self.outcome.days)

    @property
    def usd(self) -> float | None:
        """What it costs; None where the tokens or the price are not known."""
        return _first(self.outcome.usd)

    @property
    def kwh(self) -> float | None:
        """Energy at the meter; None where the tokens are not known."""
        return _first(self.outcome.kwh)

    @property
    def deadline_chance(self) -> float | None:
        """Probability to finish in time; None without a deadline."""
        return _first(self.goal_chances.deadline)

    @property
    def budget_chance(self) -> float | None:
        """Probability to stay within the budget; None without one."""
        return _first(self.goal_chances.budget)

    @property
    def line(self) -> str:
        """Layout, step time, memory, days and money in a few words."""
        cluster = self.scenario.cluster
        words = [
            f"{self.scenario.workload.architecture.name} on {cluster.gpus:,} x {cluster.name}",
            self.estimate.layouts.describe(0),
            f"{show_seconds(self.step_time_s)} a step",
            self.memory_verdict,
        ]
        if self.days is not None:
            words.append(f"{self.days:,.1f} days")
        if self.usd is not None:
            words.append(show_usd(self.usd) + MARK * self.outcome.price.assumed)
        return ", ".join(words)


def factor_of(scenario: Scenario) -> PlanningFactor | None:
    """Return the planning factor of a scenario's run; None where it has none."""
    if scenario.goal.ideal or scenario.workload.recipe.steps is None:
        return None
    return planning_factor()


def _ends(columns: tuple[Floats, Floats, Floats]) -> dict[str, float] | None:
    """P10, P50 and P90 of the first layout; None where they are not known."""
    ends = {name: float(column[0]) for name, column in zip(Span.KEYS, columns, strict=True)}
    return ends if isfinite(ends["p50"]) else None


def _first(column: Floats) -> float | None:
    """None where it is not finite."""
    first: float | None = plain(column[0])
    return first
