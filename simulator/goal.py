"""The sections [goal] and [search]: what a plan is for, and what it may decide."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Annotated, Any, Literal

from annotated_types import Gt, Le

from simulator.errors import InputError, did_you_mean, problem
from simulator.files import Number, Unit, Whole, record
from simulator.section import Rule, Section, build_section
from simulator.workload.recipe import LARGEST, Recipe

Positive = Annotated[Whole, Gt(0), Le(LARGEST)]

CONFIDENCE = 0.8
"""Chance with which offers must meet deadline and budget, unless another is asked for."""

EVEN = 0.5
"""Chance below which a deadline or a budget is missed."""

DECIDED = (
    *("tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch", "sharding", "rank_order"),
    *("recompute", "recompute_modules", "stages"),
)
"""Layout fields that a search decides by default."""

UNDECIDED = (
    *("schedule", "dispatcher", "cp_kind"),
    *("offload_layers", "optimizer_offload", "parameter_offload"),
)
"""Those that it decides where `[search] allow` names them."""

OFFERED = ("precision", "optimizer", "moment_dtype", "gradient_dtype", "lora_rank")
"""Fields of [training] of which a plan says what others would take, where allow names them."""


@record
class SearchSection:
    """What a search may decide."""

    allow: tuple[str, ...] | None = None
    """Layout fields that may be decided; the others take the value that predict takes; none given:
    the usual ones (tp to stages), not schedule, dispatcher, cp_kind and offloads. What changes the
    result of the training is never decided: where precision, optimizer, moment_dtype,
    gradient_dtype or lora_rank is named, plan says what others of them would take."""
    allow_tight: bool = False
    """Rank layouts that are TIGHT (the P90 of their memory is more than is usable) as if they
    fitted; otherwise they stand behind all that FIT."""

    def problems(self, where: str) -> list[str]:
        """Words that are no field of a layout, or a field of the training."""
        problems, training = [], {field.name for field in fields(Recipe)}
        for word in self.allow or ():
            if word in OFFERED:
                continue
            if word in training:
                rule = "changes the training, so it is yours to set: training." + word
                problems.append(f"{where}: search.allow: {word!r} {rule}")
            elif word not in (*DECIDED, *UNDECIDED):
                every = (*DECIDED, *UNDECIDED, *OFFERED)
                known, hint = ", ".join(every), did_you_mean(word, every)
                problems.append(f"{where}: search.allow: must be among {known}, got {word!r}{hint}")
        return problems


@record
class Goal:
    """What the plan is for."""

    minimize: Literal["time", "cost", "energy"] = "time"
    """What the best layout is best at."""
    deadline_days: Annotated[Number, Gt(0)] | None = None
    """The run must finish within this many days."""
    budget_usd: Annotated[Number, Gt(0)] | None = None
    """The run must cost no more than this."""
    ideal: bool = False
    """Steps x step time alone: neither failures nor the planning factor."""
    smallest_batch: Annotated[Positive, Unit("sequences")] | None = None
    """plan may shrink the global batch to this; none given: training.global_batch is the smallest,
    unless largest_batch is below it."""
    largest_batch: Annotated[Positive, Unit("sequences")] | None = None
    """plan may raise the global batch to this; none given: training.global_batch is the largest,
    unless smallest_batch is above it."""


def goal_word(chance: float) -> Literal["safe", "at risk", "missed"]:
    """Say how a deadline or a budget stands that is kept with this chance.

    >>> goal_word(CONFIDENCE), goal_word(0.555), goal_word(0.499)
    ('safe', 'at risk', 'missed')
    """
    if chance < EVEN:
        return "missed"
    return "at risk" if chance < CONFIDENCE else "safe"


def read_search(raw: Any, *, where: str) -> SearchSection:
    """Read [search]; InputError with every word that names nothing a search may decide."""
    section = build_section(SearchSection, raw, where=where, name="search")
    if wrong := section.problems(where):
        raise InputError(wrong)
    return section


def read_goal(raw: Any, *, where: str) -> Goal:
    """Read [goal]."""
    return build_section(Goal, raw, where=where, name="goal")


def _wrong_limits(goal: Goal, training: Recipe | None, *, where: str) -> list[str]:
    """Batches in the wrong order, and limits of a run whose length nobody says."""
    problems: list[str] = []
    if (goal.smallest_batch or 0) > (goal.largest_batch or math.inf):
        rule = f"must be at most goal.largest_batch = {goal.largest_batch}"
        text = problem(where, "goal.smallest_batch", rule, goal.smallest_batch)
        problems.append(f"{text} (nearest: {goal.largest_batch})")
    if training is None or training.tokens is not None:
        return problems
    for name in ("deadline_days", "budget_usd"):
        if (limit := getattr(goal, name)) is not None:
            problems.append(f"{where}: goal.{name}: needs training.tokens, got {limit}")
    return problems


GOAL = Section(
    name="goal",
    schemas=(Goal,),
    read=Rule(read_goal),
    required=True,
    checks=(Rule(_wrong_limits, needs=("goal",), uses=("training",)),),
)

SEARCH = Section(name="search", schemas=(SearchSection,), read=Rule(read_search), required=True)
