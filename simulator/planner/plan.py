"""Search all layouts of a scenario and rank them by its goal. The answer is a `Plan`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.cost.estimate import VERDICTS, concatenate
from simulator.cost.step import Estimate, evaluate
from simulator.errors import InfeasibleError, InputError, problem
from simulator.events.played import SimulatedStep
from simulator.evidence.card import Card
from simulator.goal import Goal
from simulator.hardware.cluster import Cluster
from simulator.layout.keys import distinct_rows
from simulator.layout.layouts import SHARDINGS
from simulator.layout.rules.feasibility import FEASIBLE, reasons
from simulator.planner.answer_evidence import scenario_evidence
from simulator.planner.assumptions import Assumption, assumptions
from simulator.planner.prediction import refuse_mixed
from simulator.planner.remedies import why_nothing_fits
from simulator.records import dataclass
from simulator.scenario import Scenario
from simulator.search.allowed import with_allowed
from simulator.search.best_layout import BestLayout, factor_of
from simulator.search.candidates import candidates
from simulator.search.certainty import Certainty, by_expectation, certainty
from simulator.search.explore import KEEP, SearchResult
from simulator.search.fastest import explore_scenario
from simulator.search.neighbours import AHEAD, Order, walk_each
from simulator.search.outcome import Outcome
from simulator.search.refusal import contradictions, not_kept
from simulator.search.with_failures import check_finishes, machine_of, priced

_ALTERNATIVES = 3
"""Other layouts that are named beside the best."""

FEW_TIGHT = 8
"""TIGHT layouts that a plan holds beside as many that FIT as it keeps."""

WORTH_A_TRIAL = 0.001
"""Of what the goal makes least: a TIGHT layout that takes less by no more is not named."""

TRIAL = "if a trial run shows that it fits"
"""Stands beside whatever a TIGHT layout would bring."""

KEEP_FOR_ENERGY = 4096
"""A slower layout may need less energy, so more of the fastest are ranked then."""

SLOWER = {"time": 1.02, "cost": 1.02, "energy": 1.5}
"""Times the step of the best by a goal up to which a layout may be better by it: of equal steps
the run that writes checkpoints faster is shorter, and devices that wait draw less."""


@dataclass(frozen=True, kw_only=True)
class Refinement:
    """What playing the best layouts on discrete events said, in the order of the plan."""

    steps: tuple[SimulatedStep, ...]
    closed_form_s: NDArray[np.float64]
    """Step times before."""
    places: NDArray[np.intp]
    """Places before, from 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """The best layout of one global batch and sequence; without a layout `reason` says why."""

    global_batch: int
    sequence_length: int
    reason: str = ""
    layout: str = ""
    step_time_s: float = math.nan
    tokens_per_s: float = math.nan
    days: float = math.nan
    """NaN where the scenario does not say how many tokens."""
    tokens: float | None = None
    """Of the whole run, more with a larger batch where a critical one is known."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Plan(BestLayout):
    """The ranked answer to a scenario; its numbers are those of the best layout."""

    scenario: Scenario
    found: SearchResult
    estimate: Estimate
    """Best layouts, best first by the goal; TIGHT ones behind those that FIT, unless the scenario
    allows them."""
    outcome: Outcome
    naive: Estimate | None
    """The fastest layout with data parallelism alone (zero3, no tp, pp, cp, ep), for comparison."""
    tried: tuple[Tried, ...] = ()
    """Every batch and sequence that was searched, where the scenario leaves them open
    (``planner/batch_choices.py``)."""
    sizes_left_out: str = ""
    """Which of a range of batches or sequences were searched, where not all were."""
    refined: Refinement | None = None
    """Of the first layouts, if they were played (``planner/simulated.py``)."""

    def document(self, *, top: int | None = None) -> dict[str, Any]:
        """Return what ``--json`` prints, with so many layouts; 20 unless given.

        Its launch command and limits are written floors above (``questions/plan/document.py``).
        """
        document: dict[str, Any] = import_module("simulator.questions.plan.document").plan_document(
            self, top=top
        )
        return document

    @cached_property
    def certainty(self) -> Certainty:  # type: ignore[override]  # nobody sets it
        """How sure its layouts are, in the same order; found when it is first asked for."""
        made = self.scenario
        setting = made.workload, made.cluster, made.software
        return certainty(self.estimate, *setting, compared=True)

    @cached_property
    def alone(self) -> Plan:
        """Its best layout without the others, which a verdict need not wait for."""
        return replace(self, estimate=self.estimate.take([0]), outcome=self.outcome.take([0]))

    @property
    def evidence(self) -> Card:
        """What measured runs and figures stand behind it."""
        return scenario_evidence(self.scenario, self.estimate, self.outcome)

    @property
    def assumptions(self) -> list[Assumption]:
        """What it takes for granted and bears on it most."""
        return assumptions(self)

    @property
    def meets_deadline(self) -> bool:
        """Whether the deadline of the best layout is not missed; true without one."""
        return bool(self.alone.in_time[0])

    @property
    def meets_budget(self) -> bool:
        """Whether the budget of the best layout is not missed; true without one."""
        return bool(self.alone.in_budget[0])

    @property
    def tight_alternative(self) -> int | None:
        """Place of the TIGHT layout that would be the best if such were allowed; None without."""
        return tight_alternative(self.estimate, self.outcome, self.scenario)

    @property
    def evenly(self) -> Estimate | None:
        """The best layout with its layers dealt by the rule; None where it is dealt so."""
        best = self.estimate.layouts[:1]
        if not best.stages.any() or "stages" in self.scenario.pinned:
            return None
        made = self.scenario
        return evaluate(best.replace(stages=()), made.workload, made.cluster, made.software)

    @property
    def pareto(self) -> NDArray[np.intp]:
        """Places of layouts that no other of the plan beats in all of OBJECTIVES, fastest first.

        Money and energy count where they are known; memory is that of the fullest device. What may
        not win because it is TIGHT takes no part.
        """
        able = np.flatnonzero(self.estimate.able(allow_tight=self.scenario.allow_tight))
        result, estimate = self.outcome.take(able), self.estimate.take(able)
        columns = [estimate.step_time_s, estimate.memory_total_bytes, result.usd, result.kwh]
        known = [column for column in columns if not np.isnan(column).any()]
        kept = np.flatnonzero(front(np.stack(known, axis=-1)))
        return able[kept[np.argsort(estimate.step_time_s[kept], kind="stable")]]


def tight_alternative(estimate: Estimate, result: Outcome, scenario: Scenario) -> int | None:
    """Place of the TIGHT layout that the goal would put before the first layout by a trial's worth.

    None without one, and where the first is TIGHT itself.
    """
    tight = np.flatnonzero(estimate.verdict == VERDICTS.index("TIGHT"))
    if not len(tight) or tight[0] == 0:
        return None
    value, missed = (
        goal_value(estimate.step_time_s, result, scenario.goal),
        ~meets(result, scenario),
    )
    first = tight[np.lexsort((estimate.step_time_s[tight], value[tight], missed[tight]))[0]]
    least = float(value[0]) * (1.0 - WORTH_A_TRIAL)
    better = (bool(missed[first]), float(value[first])) < (bool(missed[0]), least)
    return int(first) if better else None


def _within(value: NDArray[np.float64], limit: float | None) -> NDArray[np.bool_]:
    return np.full(len(value), True) if limit is None else value <= limit


def plan(
    scenario: Scenario,
    *,
    keep: int = KEEP,
    exhaustive: bool = False,
    keep_near: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Plan:
    """Search all layouts of a scenario and rank them by its goal.

    With `exhaustive` every layout that can run is priced in full; the answer is the same. With
    `keep_near` what comes near to fitting is kept, for the map of degrees of a report.

    Raises
    ------
    InfeasibleError
        If no layout can run and fit; the message names the nearest miss and what would help.
    InputError
        If servers are of several kinds, or a budget is given where nobody knows the price.
    """
    refuse_mixed(scenario)
    _check_priced(scenario)
    if wrong := contradictions(scenario, scenario.pinned):
        raise InputError(wrong)
    scenario = replace(scenario, pinned=with_allowed(scenario))
    keep = max(keep, KEEP_FOR_ENERGY if scenario.goal.minimize == "energy" else KEEP)
    searched = explore_scenario(
        scenario,
        scenario.pinned,
        keep=keep,
        exhaustive=exhaustive,
        walks=False,
        keep_near=keep_near,
        progress=progress,
    )
    if not len(searched.best):
        can_run = searched.nearest_miss is not None
        raise InfeasibleError(why_nothing_fits(searched, scenario), can_run=can_run)
    if wrong := not_kept(scenario, searched.best.layouts):
        raise InputError(wrong)
    searched = _walked(searched, scenario)
    both = concatenate([searched.best, searched.tight.take(slice(0, FEW_TIGHT))])
    result = priced(both, scenario)
    order = ranked(both, result, scenario)
    estimate, result = both.take(order), result.take(order)
    check_finishes(result, scenario)
    return Plan(
        scenario=scenario,
        found=searched,
        estimate=estimate,
        outcome=result,
        naive=_naive(scenario),
    )


def _walked(searched: SearchResult, scenario: Scenario) -> SearchResult:
    """A search with what a walk from its best layouts by the goal comes to.

    The same from its TIGHT ones where one of them would be the best if such were allowed: both
    walks go in step, and what they come to is priced together.
    """
    every, result, tempting = _tempting(searched, scenario)
    walks = [(searched, scenario, result.take(np.arange(len(searched.best))))]
    if not tempting:
        return _walked_from(walks)[0]
    walks.append((replace(searched, best=every), replace(scenario, allow_tight=True), result))
    return _with_tight(*_walked_from(walks))


def tight_walked(searched: SearchResult, scenario: Scenario) -> SearchResult:
    """The same of the TIGHT ones alone."""
    every, result, tempting = _tempting(searched, scenario)
    if not tempting:
        return searched
    bold = replace(scenario, allow_tight=True)
    return _with_tight(searched, *_walked_from([(replace(searched, best=every), bold, result)]))


def walk_tight_together(several: Sequence[tuple[SearchResult, Scenario]], cluster: Cluster) -> None:
    """Price together what :func:`tight_walked` prices of each of some sizes of a cluster.

    They were searched in one table, on a cluster that stands for all; what is priced is known to
    each search then.
    """
    starts = list[tuple[Estimate, Order, dict[str, Any]]]()
    for searched, scenario in several:
        every, result, tempting = _tempting(searched, scenario)
        if tempting and len(searched.tight):
            bold = replace(scenario, allow_tight=True)
            best, _, order, limits = _start(replace(searched, best=every), bold, result)
            starts.append((best, order, limits))
    if len(starts) > 1:
        scenario = several[0][1]
        walk_each(starts, (scenario.workload, cluster, scenario.software), scenario.pinned)


def _tempting(searched: SearchResult, scenario: Scenario) -> tuple[Estimate, Outcome, bool]:
    """All layouts, the TIGHT ones last, their price, and whether a TIGHT one is best if allowed."""
    every = searched.every
    result = priced(every, scenario)
    places, _ = _by_value(every, result, replace(scenario, allow_tight=True))
    return every, result, bool(places[0] >= len(searched.best))


def _with_tight(searched: SearchResult, bold: SearchResult) -> SearchResult:
    """A search with what is TIGHT of what it comes to where such layouts are allowed."""
    rows = np.flatnonzero(bold.best.verdict == VERDICTS.index("TIGHT"))
    return replace(searched, tight=bold.best.take(rows), walked=searched.walked + bold.walked)


def _walked_from(several: Sequence[tuple[SearchResult, Scenario, Outcome]]) -> list[SearchResult]:
    """Searches of a setting with walks in step from their best layouts, whose price is given.

    The goal is more than the step: layouts up to so much slower may be better by it.
    """
    starts, first = [_start(*x) for x in several], several[0][1]
    setting = first.workload, first.cluster, first.software
    begin = [(best, order, limits) for best, _, order, limits in starts]
    walks = walk_each(begin, setting, first.pinned)
    walked = list[SearchResult]()
    for (searched, scenario, _), start, walk in zip(several, starts, walks, strict=True):
        best, result = start[:2]
        places = np.arange(0)
        if walk.better is not None:
            better = _worth(walk.better, priced(walk.better, scenario), scenario)
            both = zip(better, _worth(best, result, scenario), strict=True)
            places = np.lexsort([np.concatenate(columns) for columns in both])
        walked.append(replace(searched, best=best).with_walk(walk, places[: len(best)]))
    return walked


def _start(
    searched: SearchResult, scenario: Scenario, result: Outcome
) -> tuple[Estimate, Outcome, Order, dict[str, Any]]:
    """Where a walk by the goal begins, with its price, the order that leads it, and its limits."""
    places = _by_value(searched.best, result, scenario)[0]
    best, result = searched.best.take(places), result.take(places)
    as_good = scenario.allow_tight or best.verdict[0] == 0  # else any that FITS is better
    value = float(goal_value(best.step_time_s, result, scenario.goal)[0])
    by_goal = _ByGoal(scenario, value, as_good and bool(meets(result, scenario)[0]))
    bounds = scenario.goal.minimize == "energy" and by_goal.decides
    limits = {
        "slower": SLOWER[scenario.goal.minimize] if as_good else math.inf,
        "bound": by_goal if bounds else None,
        "surely": bool(best.verdict[0] == 0) and not scenario.allow_tight,
        "known": searched.rounds,
    }
    return best, result, by_goal.ahead, limits


class _ByGoal:
    """Places of layouts by a scenario's goal, and the least that others could come to.

    A real run takes no less than steps without failures, and a longer step with as much to compute
    no less energy.
    """

    def __init__(self, scenario: Scenario, limit: float, decides: bool) -> None:
        """`decides`: the best so far misses nothing, so that what is no less is no better."""
        self.scenario, self.limit, self.decides = scenario, limit, decides
        self.ideal = replace(scenario, goal=replace(scenario.goal, ideal=True))

    def __call__(self, estimate: Estimate) -> NDArray[np.intp]:
        result = priced(estimate, self.scenario)
        places = _by_value(estimate, result, self.scenario)[0]
        value = goal_value(estimate.step_time_s, result, self.scenario.goal)
        self.limit = float(value[places[0]])
        return places

    def ahead(self, estimate: Estimate) -> NDArray[np.intp]:
        """The same of a walk, whose best layout so far is the first: those before it are right."""
        some = self._rivals(estimate)
        others = np.setdiff1d(np.arange(len(estimate)), some, assume_unique=True)
        if len(some) == 1:
            return np.concatenate([some, others])
        return np.concatenate([some[self(estimate.take(some))], others])

    def _rivals(self, estimate: Estimate) -> NDArray[np.intp]:
        """The first layout, and those that may come before it and be among the AHEAD best.

        Of runs that write and lose as much, the one with the shorter step is over sooner, and
        costs less where its power is paid for by the hour.
        """
        goal, included = self.scenario.goal, self.scenario.tariff.price.included_power
        by_length = goal.minimize == "time" and goal.budget_usd is None
        by_length |= goal.minimize in ("time", "cost") and included
        if not by_length or self.scenario.run.spares.when_none == "shrink":
            able = (
                self.least(estimate) <= self.limit if self.decides else np.full(len(estimate), True)
            )
            return np.concatenate([[0], np.flatnonzero(able[1:]) + 1])
        writers = machine_of(estimate, self.scenario).writer_gpus
        kind = distinct_rows(writers, estimate.verdict).inverse
        order = np.argsort(estimate.step_time_s, kind="stable")
        chosen = [order[kind[order] == i] for i in range(int(kind.max()) + 1)]
        alike = chosen[kind[0]]
        chosen[kind[0]] = alike[: int(np.flatnonzero(alike == 0)[0])]
        return np.sort(np.concatenate([[0], *(x[:AHEAD] for x in chosen)]))

    def least(self, estimate: Estimate) -> NDArray[np.float64]:
        """What the goal makes of layouts at the least, if their steps are no shorter."""
        result = priced(estimate, self.ideal)
        least = goal_value(estimate.step_time_s, result, self.scenario.goal)
        return np.asarray(least * (1.0 - _ROUNDING))


_ROUNDING = 1e-9
"""Of a bound: sums in another order."""


def _check_priced(scenario: Scenario) -> None:
    """Refuse a budget where nobody knows the price."""
    cluster, budget = scenario.cluster, scenario.goal.budget_usd
    if budget is None or scenario.tariff.price.usd_per_gpu_hour is not None:
        return
    rule = f"needs a price (economics.usd_per_gpu_hour), and {cluster.name} has none"
    raise InputError(problem("scenario", "goal.budget_usd", rule, budget))


def by_goal(scenario: Scenario, estimate: Estimate) -> NDArray[np.intp]:
    """Places of layouts of a scenario, the best by its goal first, as predicted."""
    return _by_value(estimate, priced(estimate, scenario), scenario)[0]


def _by_value(
    estimate: Estimate, result: Outcome, scenario: Scenario
) -> tuple[NDArray[np.intp], int]:
    """Places by the goal; what misses deadline or budget comes after what meets both.

    What is TIGHT comes after all that FITS, unless the scenario allows it. With it how many of the
    first are alike in both.
    """
    step_s, value, missed, risky = _worth(estimate, result, scenario)
    order = np.lexsort((step_s, value, missed, risky))
    alike = (missed[order] == missed[order[0]]) & (risky[order] == risky[order[0]])
    return order, int(alike.sum())


def _worth(estimate: Estimate, result: Outcome, scenario: Scenario) -> tuple[NDArray[Any], ...]:
    """What layouts are ordered by, the last first: step, goal, what it misses, what is TIGHT."""
    step_s = estimate.step_time_s
    risky = np.zeros(len(estimate)) if scenario.allow_tight else estimate.verdict
    return step_s, goal_value(step_s, result, scenario.goal), ~meets(result, scenario), risky


def ranked(estimate: Estimate, result: Outcome, scenario: Scenario) -> NDArray[np.intp]:
    """Order by the goal, the first of them by what is to be expected of them.

    (``search/certainty.py: by_expectation``)
    """
    order, alike = _by_value(estimate, result, scenario)
    first, rest = order[:alike], order[alike:]
    value = goal_value(estimate.step_time_s, result, scenario.goal)[first]
    setting = scenario.workload, scenario.cluster, scenario.software
    return np.concatenate([first[by_expectation(value, estimate.part(first), *setting)], rest])


def goal_value(step_s: NDArray[np.float64], result: Outcome, goal: Goal) -> NDArray[np.float64]:
    """What the goal makes least; the step where money or energy are not known."""
    value = {"time": result.days, "cost": result.usd, "energy": result.kwh}[goal.minimize]
    value = np.where(np.isnan(value), step_s, value)
    return np.where(np.isinf(result.days), np.inf, value)  # such a run never ends


def meets(result: Outcome, scenario: Scenario) -> NDArray[np.bool_]:
    """Whether deadline and budget are met by the median to plan for; the unknown meets neither."""
    goal, factor = scenario.goal, factor_of(scenario)
    times = 1.0 if factor is None else factor.value
    in_time = _within(times * result.days, goal.deadline_days)
    return in_time & _within(times * result.usd, goal.budget_usd)


def _naive(scenario: Scenario) -> Estimate | None:
    """The fastest pure data-parallel layout, with the most sharding that the software has."""
    sharding = scenario.software.supports.sharding[-1]
    pinned = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "etp": 1, "sharding": sharding}
    table = candidates(scenario.workload, scenario.cluster, scenario.software, pinned)
    judged = reasons(table, scenario.workload, scenario.cluster, scenario.software)
    table = table[(judged == FEASIBLE) & (table.sharding == SHARDINGS.index(sharding))]
    if not len(table):
        return None
    estimate = evaluate(table, scenario.workload, scenario.cluster, scenario.software)
    rows = estimate.able(allow_tight=scenario.allow_tight)
    rows = rows if rows.any() else np.full(len(estimate), True)
    chosen = np.flatnonzero(rows)
    return estimate.take(chosen[[np.argmin(estimate.step_time_s[chosen])]])


def pinned_words(scenario: Scenario, layout: Mapping[str, Any] | None = None) -> str:
    """Layout fields that a scenario fixed, ``pp = 1, tp = 2``; those that `layout` has otherwise.

    Blank where there are none: the rest was searched.
    """
    pinned = {name: value for name, value in scenario.pinned.items() if value != "any"}
    if layout is not None:
        pinned = {name: value for name, value in pinned.items() if layout.get(name) != value}
    return ", ".join(f"{name} = {value}" for name, value in sorted(pinned.items()))


def alternatives(plan: Plan) -> list[tuple[int, str]]:
    """Up to three other layouts, and what speaks for each.

    What is better but TIGHT, or what FITS where the best is TIGHT; the next by the goal, the most
    memory free, the least energy; else the next by the goal.
    """
    estimate, front = plan.estimate, plan.pareto
    fitting = np.flatnonzero(estimate.verdict == VERDICTS.index("FITS"))
    asked = [(1, "next best")]
    if (tight := plan.tight_alternative) is not None:
        asked.insert(0, (tight, "better, if it fits"))
    elif len(fitting) and fitting[0] > 0:
        asked.append((int(fitting[0]), "first that FITS"))
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


OBJECTIVES = ("time", "money", "memory headroom", "energy")
"""What answers are compared by; less is better but for headroom, of which more is."""

_PIECE = 256


def front(values: Floats) -> NDArray[np.bool_]:
    """Say which rows no other row dominates.

    Parameters
    ----------
    values : ndarray, shape (answers, objectives)
        Less is better; rows with NaN are not on the front and dominate nothing.

    Returns
    -------
    ndarray of bool, shape (answers,)
        Equal rows are all on it or all off it.

    Examples
    --------
    Fast and dear, slow and cheap, slow and dear, and the first once more:

    >>> front(np.array([[1.0, 9.0], [5.0, 2.0], [5.0, 9.0], [1.0, 9.0]])).tolist()
    [True, True, False, True]
    """
    values = np.asarray(values, dtype=float)
    known = np.asarray(~np.isnan(values).any(axis=1))
    kept = known.copy()
    for start in range(0, len(values), _PIECE):
        rows = values[start : start + _PIECE, None, :]
        others = values[None, known, :]
        pairs = rows.shape[0], others.shape[1]
        no_worse, better = np.full(pairs, True), np.full(pairs, False)
        for k in range(values.shape[1]):  # not reduced over the few objectives: that is slow
            no_worse &= others[..., k] <= rows[..., k]
            better |= others[..., k] < rows[..., k]
        kept[start : start + _PIECE] &= ~(no_worse & better).any(axis=1)
    return kept
