"""A plan for servers of several kinds: all of them together, or one kind alone.

Layouts are the best of each kind as if all servers were of it; stages and shares of the batch are
placed by capability (``mixed_placement.py``), and the most promising are played on discrete events,
which price every stage on the servers that it lies on. Replicas may have a layout of their kind's
own (``layout_per_server_type.py``). Beside them stands the best layout of each kind on its own
servers and no others: where that is faster, the others are better left out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from simulator.answers import Answer, encoded
from simulator.arrays import Floats
from simulator.cost.mixed_gradient_sum import GradientSumPhases
from simulator.errors import InfeasibleError, InputError
from simulator.events.simulated_step import simulate
from simulator.frames import DataFrame, frame_of_rows
from simulator.goal import Goal
from simulator.layout.layouts import Layouts
from simulator.planner.layout_per_server_type import (
    LayoutPerKind,
    layouts_per_kind,
    runs_by_kind,
)
from simulator.planner.mixed_outcome import (
    FullestMemory,
    MixedOutcome,
    PriceOf,
    gpus_by_kind,
    mixed_outcome,
    outcome_of_kinds,
)
from simulator.planner.mixed_placement import (
    BY_REPLICA,
    BY_STAGE,
    Shares,
    candidate_rows,
    servers_of_kind,
    shares_of,
    staged,
)
from simulator.planner.mixed_prediction import asked_of
from simulator.planner.plan import goal_value, meets
from simulator.records import dataclass
from simulator.scenario import Scenario
from simulator.search.allowed import with_allowed
from simulator.search.best_layout import factor_of
from simulator.search.fastest import explore_scenario
from simulator.search.outcome import GoalChances, goal_chances
from simulator.units import show_change, show_percent

_PLAYED = 4
"""Layouts of each way of placing them that are played."""

_PER_KIND_PLAYED = 2
"""Combinations of layouts of each kind that are played."""


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
    """Simulated (discrete events)."""
    closed_form_s: float | None
    """None where there is no closed form: stages on several kinds."""
    run: MixedOutcome
    legs: GradientSumPhases | None = None
    """Of the sum of gradients over kinds whose layouts are unlike."""

    def value(self, goal: Goal) -> float:
        """What the goal makes least; the step where money or energy are not known."""
        return float(goal_value(np.array([self.step_s]), self.run.outcome, goal)[0])

    def meets(self, scenario: Scenario) -> bool:
        """Whether deadline and budget are met; what is not known does not meet them."""
        return bool(meets(self.run.outcome, scenario)[0])

    def chances(self, scenario: Scenario) -> GoalChances:
        """How likely it meets deadline and budget; one row."""
        run, factor = self.run, factor_of(scenario)
        step_s = np.array([self.step_s])
        return goal_chances(step_s, run.outcome, run.certainty, scenario.goal, factor)


def in_order(options: list[MixedOption], scenario: Scenario) -> tuple[MixedOption, ...]:
    """Best first: what FITS, of that what meets deadline and budget, by what the goal makes least.

    What is TIGHT stands among the others where the scenario allows it.
    """
    goal, allowed = scenario.goal, scenario.allow_tight

    def order(option: MixedOption) -> tuple[bool, bool, float, float]:
        risky = option.run.memory.verdict != "FITS" and not allowed
        return risky, not option.meets(scenario), option.value(goal), option.step_s

    return tuple(sorted(options, key=order))


@dataclass(frozen=True, kw_only=True, repr=False)
class MixedPlan(Answer):
    """Ways to use a cluster of several kinds of servers, the best by the goal first."""

    COMMAND: ClassVar[str] = "plan"
    KEYS: ClassVar[tuple[str, ...]] = (
        *("*asked", "verdict", "left_out", "options=rows"),
        "tight_alternative",
    )

    scenario: Scenario
    options: tuple[MixedOption, ...]

    @property
    def asked(self) -> dict[str, Any]:
        """What was asked: the head of its document."""
        return asked_of(self.scenario)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row per way."""
        return [option_row(option, self.scenario) for option in self.options]

    @property
    def line(self) -> str:
        """The verdict."""
        return self.verdict

    @property
    def best(self) -> MixedOption:
        """The best by the goal."""
        return self.options[0]

    @property
    def tight_alternative(self) -> dict[str, Any] | None:
        """The TIGHT way that would be the best if such were allowed; None without."""
        option = self._tight
        return None if option is None else option_row(option, self.scenario)

    @property
    def _tight(self) -> MixedOption | None:
        if self.best.run.memory.verdict != "FITS":
            return None
        tight = (option for option in self.options if option.run.memory.verdict == "TIGHT")
        better = next(tight, None)
        goal = self.scenario.goal
        return better if better and better.value(goal) < self.best.value(goal) else None

    @property
    def meets_goal(self) -> bool:
        """Whether the best way meets deadline and budget, where one was given."""
        return self.best.meets(self.scenario)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Kinds of servers that the best way does not use."""
        every = (kind.name for kind in self.scenario.cluster.kinds)
        return tuple(name for name in every if name not in self.best.kinds)

    @property
    def verdict(self) -> str:
        """What to do, in a sentence or two."""
        words, tight = [self._way], self._tight
        if tight is not None:
            better = show_change(tight.step_s, self.best.step_s)
            words.append(f"{tight.way} are {better}, if a trial run shows that it fits (TIGHT)")
        elif self.best.run.memory.verdict == "TIGHT" and not self.scenario.allow_tight:
            words.append("TIGHT: its P90 of memory is more than is usable, and no way FITS")
        return ". ".join(words)

    @property
    def _way(self) -> str:
        """Which servers to use, and how."""
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
        if not other.meets(self.scenario) and self.meets_goal:
            return f"{what} misses deadline or budget"
        more = show_percent(other.value(goal) / self.best.value(goal) - 1.0)
        outcome = other.run.outcome
        known = {"time": outcome.days, "cost": outcome.usd, "energy": outcome.kwh}[goal.minimize]
        if np.isnan(known[0]) or goal.minimize == "time":
            return f"{what} takes {more} longer"
        return f"{what} takes {more} more {'money' if goal.minimize == 'cost' else 'energy'}"

    def to_frame(self) -> DataFrame:
        """One row per way."""
        return frame_of_rows(self.rows)


def option_row(option: MixedOption, scenario: Scenario) -> dict[str, Any]:
    """What an option says, as plain values."""
    chances = option.chances(scenario)
    sure, outcome, legs = option.run.certainty, option.run.outcome, option.legs
    memory = option.run.memory
    names = ("tokens_per_s", "mfu", "goodput", "days", "usd", "kwh")
    of_run = {name: _known(getattr(outcome, name)) for name in names}
    return {
        "way": option.way,
        "kinds": list(option.kinds),
        "gpus": option.gpus,
        "layout": option.layouts.row(),
        "described": option.described,
        "layouts": [option.layouts.row(i) for i in range(len(option.layouts))],
        "micro_batches": list(option.micro_batches),
        "legs_s": None if legs is None else _legs_row(legs),
        "step_time_s": option.step_s,
        "p10_s": float(sure.p10_s[0]),
        "p90_s": float(sure.p90_s[0]),
        "closed_form_s": option.closed_form_s,
        "tokens_per_s": of_run.pop("tokens_per_s"),
        "mfu": of_run.pop("mfu"),
        "memory_headroom": option.run.memory_headroom,
        **encoded(memory, ("verdict", "memory_total_bytes", "memory_p90_bytes", "usable_bytes")),
        **of_run,
        "deadline_chance": _known(chances.deadline),
        "budget_chance": _known(chances.budget),
        "evidence": option.run.evidence.grade,
    }


def _known(column: Floats) -> float | None:
    return None if np.isnan(column[0]) else float(column[0])


def _legs_row(legs: GradientSumPhases) -> dict[str, list[float]]:
    """Seconds of each leg, by kind."""
    return {
        "reduce_scatter": list(legs.reduce_scatter_s),
        "exchange": list(legs.exchange_s),
        "gather": list(legs.gather_s),
    }


def plan_mixed(scenario: Scenario, *, price_of: PriceOf | None = None) -> MixedPlan:
    """Find how to use servers of several kinds, best first by the goal.

    Parameters
    ----------
    price_of : callable, optional
        What an hour of each kind costs, in place of the scenario's prices.

    Raises
    ------
    InputError
        If batch or sequence are left open.
    InfeasibleError
        If nothing can run and fit on all of them, and on no kind alone.
    """
    _check_given(scenario)
    made = replace(scenario, pinned=with_allowed(scenario))
    options = [
        *_by_stages(made, price_of),
        *_by_shares(made, price_of),
        *_by_kind(made, price_of),
    ]
    for kind, gpus in enumerate(gpus_by_kind(scenario.cluster)):
        options += _alone(made, kind, gpus, price_of)
    if not options:
        names = ", ".join(kind.name for kind in scenario.cluster.kinds)
        rule = "no layout can run and fit on all servers, nor on those of one kind"
        raise InfeasibleError(f"{scenario.where}: cluster.groups: {rule} ({names})")
    return MixedPlan(scenario=scenario, options=in_order(options, scenario))


def _check_given(scenario: Scenario) -> None:
    """Refuse what only a search on servers of one kind decides."""
    open_fields = [f"training.{name}" for name in scenario.choices]
    goal = scenario.goal
    bounds = (("smallest_batch", goal.smallest_batch), ("largest_batch", goal.largest_batch))
    open_fields += [f"goal.{name}" for name, value in bounds if value is not None]
    if open_fields:
        rule = "must leave batch and sequence as they are with servers of several kinds"
        raise InputError(f"{scenario.where}: {name}: {rule}" for name in open_fields)


def _option(
    scenario: Scenario, way: str, rows: Layouts, step_s: float, run: MixedOutcome, **known: Any
) -> MixedOption:
    """An option on all servers of a scenario; with one layout unless `described` says otherwise."""
    values = {
        "closed_form_s": None,
        "described": rows.describe(),
        "micro_batches": (int(rows.micro_batches[0]),) * len(scenario.cluster.each),
    }
    return MixedOption(
        way=way,
        kinds=tuple(kind.name for kind in scenario.cluster.each),
        gpus=scenario.cluster.gpus,
        layouts=rows,
        step_s=step_s,
        run=run,
        **{**values, **known},
    )


def _by_stages(scenario: Scenario, price_of: PriceOf | None) -> list[MixedOption]:
    """Pipelines over several kinds, layers balanced by capability, the most promising played."""
    table = candidate_rows(scenario, BY_STAGE)
    if table is None:
        return []
    rows = sorted(staged(scenario, table), key=lambda row_and_pace: row_and_pace[1])[:_PLAYED]
    options = []
    for row, _ in rows:
        step = simulate(row, scenario.workload, scenario.cluster, scenario.software)
        assert step.mixed is not None
        fullest = FullestMemory.of(step.mixed)
        if fullest.share <= 1.0:
            step_s = step.step_time_s
            run = mixed_outcome(scenario, row, step_s, price_of=price_of, memory=fullest)
            options.append(_option(scenario, "stages", row, step_s, run))
    return options


def _by_shares(scenario: Scenario, price_of: PriceOf | None) -> list[MixedOption]:
    """Replicas on one kind each, with the micro-batches that each kind does in time."""
    table = candidate_rows(scenario, BY_REPLICA)
    if table is None:
        return []
    options = []
    for shares in sorted(shares_of(scenario, table), key=lambda shares: shares.step_s)[:_PLAYED]:
        row, step_s = shares.layouts, _played_shares(scenario, shares)
        run = mixed_outcome(scenario, row, step_s, price_of=price_of)
        known = {"micro_batches": shares.micro_batches, "closed_form_s": shares.step_s}
        options.append(_option(scenario, "shares", row, step_s, run, **known))
    return options


def _played_shares(scenario: Scenario, shares: Shares) -> float:
    """Each kind with its share, played as if all servers were of it: replicas meet at the end."""
    before, after = [], []
    for kind, count in zip(scenario.cluster.kinds, shares.micro_batches, strict=True):
        batch = count * int(shares.layouts.dp[0]) * int(shares.layouts.micro_batch[0])
        row = Layouts.of(**{**shares.layouts.row(), "global_batch": batch})
        step = simulate(row, scenario.workload, kind, scenario.software)
        tail = step.terms_s.get("dp", 0.0)
        before.append(step.step_time_s - tail)
        after.append(tail)
    return max(before) + max(after)


def _by_kind(scenario: Scenario, price_of: PriceOf | None) -> list[MixedOption]:
    """Each kind with a layout of its own: played by itself, then the exchange of gradients."""
    best = layouts_per_kind(scenario)[:_PER_KIND_PLAYED]
    return [_with_layouts(scenario, layouts, price_of) for layouts in best]


def _with_layouts(
    scenario: Scenario, layouts: LayoutPerKind, price_of: PriceOf | None
) -> MixedOption:
    runs = list(runs_by_kind(scenario, layouts))
    played_s = [
        simulate(row, run.workload, run.cluster, run.software).step_time_s for run, row in runs
    ]
    step_s = max(played_s) + layouts.legs.between_s
    named = zip(scenario.cluster.kinds, layouts.rows, strict=True)
    return _option(
        scenario,
        "own layouts",
        Layouts.concatenate(list(layouts.rows)),
        step_s,
        outcome_of_kinds(scenario, runs, step_s, price_of=price_of),
        described="; ".join(f"{kind.name}: {row.describe()}" for kind, row in named),
        micro_batches=layouts.micro_batches,
        closed_form_s=layouts.step_s,
        legs=layouts.legs,
    )


def _alone(scenario: Scenario, kind: int, gpus: int, price_of: PriceOf | None) -> list[MixedOption]:
    """The best layout of one kind on its own servers."""
    cluster = servers_of_kind(scenario.cluster, kind, gpus)
    fixed = ("dp", "shard_group", "stages")
    free = {name: value for name, value in scenario.pinned.items() if name not in fixed}
    best = explore_scenario(
        scenario, free, cluster=cluster, keep=1, counts=False, near_miss=False
    ).best
    if not len(best):
        return []
    row = best.layouts[:1]
    step_s = simulate(row, scenario.workload, cluster, scenario.software).step_time_s
    those = replace(scenario, cluster=cluster)
    run = mixed_outcome(those, row, step_s, price_of=price_of)
    closed_s = float(best.step_time_s[0])
    return [_option(those, f"{cluster.name} alone", row, step_s, run, closed_form_s=closed_s)]
