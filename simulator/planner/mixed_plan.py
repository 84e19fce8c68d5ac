"""A plan for servers of several kinds: all of them together, or one kind alone.

Layouts are the best of each kind as if all servers were of it. Ranks fill the groups of a cluster
in order. With pipeline ranks outermost, stages lie on one kind of servers each, and layers are
dealt to them by how fast each kind is and what it holds. With replicas outermost, each replica lies
on one kind, and takes as many micro-batches as it does in the time in which the others do theirs.
The most promising are played on discrete events, which price every stage on the servers that it
lies on.

Or every kind has its own degrees, stages, micro-batch and number of replicas, and a share of the
batch that it does while the others do theirs. All kinds meet once a step, where their gradients are
summed (``cost/mixed_gradient_sum.py``); from one meeting to the next each does its optimizer step,
its gather, its passes and its reduction by itself. So a step is that of the slowest kind on its own
servers, with its share, and the exchange.

Beside them stands the best layout of each kind on its own servers and no others: where that is
faster, the others are better left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from simulator.answers import Answer, encoded
from simulator.arrays import Floats
from simulator.cost.mixed_gradient_sum import GradientSumPhases, mixed_gradient_sum
from simulator.cost.pricing import price_keys
from simulator.cost.step import evaluate
from simulator.errors import InfeasibleError, InputError
from simulator.events.simulated_step import simulate
from simulator.frames import DataFrame, frame_of_rows
from simulator.goal import Goal
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import SHARDINGS, Layouts
from simulator.layout.rules.feasibility import FEASIBLE, reasons
from simulator.planner.mixed_prediction import (
    FullestMemory,
    MixedOutcome,
    PriceOf,
    asked_of,
    mixed_outcome,
    outcome_of_kinds,
)
from simulator.planner.plan import goal_value, meets
from simulator.records import dataclass
from simulator.scenario import Scenario
from simulator.search.allowed import with_allowed
from simulator.search.best_layout import factor_of
from simulator.search.defaults import layout_fields
from simulator.search.fastest import explore_scenario
from simulator.search.outcome import GoalChances, goal_chances
from simulator.search.stage_splits import RankCosts, balance_layers
from simulator.units import show_change, show_percent
from simulator.workload.recipe import Workload

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
        "layout": layout_fields(scenario, option.layouts),
        "described": option.described,
        "layouts": [layout_fields(scenario, option.layouts, i) for i in range(len(option.layouts))],
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
    for kind, gpus in _servers(scenario.cluster):
        options += _alone(made, kind.with_gpus(gpus), price_of)
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


def _servers(cluster: Cluster) -> Iterator[tuple[Cluster, int]]:
    """Every kind of servers, and how many accelerators are of it."""
    yield from zip(cluster.kinds, cluster.gpus_by_kind, strict=True)


def _alone(scenario: Scenario, cluster: Cluster, price_of: PriceOf | None) -> list[MixedOption]:
    """The best layout of one kind on its own servers."""
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


BY_STAGE, BY_REPLICA = "tp-cp-dp-pp", "tp-cp-pp-dp"
"""Orders of ranks in which stages, or replicas, lie together."""

_KEEP_ON_ALL = 512
"""Fastest layouts of each kind, as if all servers were of it, from which those are taken that are
tried on all of them: the best of each tp, pp, cp, size of micro-batches and recomputation."""


_CLOSED = 8
"""Layouts with unlike shares, and combinations of layouts, whose closed form is worked out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """A layout whose replicas take unlike numbers of micro-batches."""

    layouts: Layouts
    """With the batch as if all replicas had the first kind's number."""
    micro_batches: tuple[int, ...]
    """Of a replica, by kind."""
    replicas: tuple[int, ...]
    step_s: float
    """Closed form: the slowest kind with its share, and the longest reduction."""


def kinds_of_blocks(cluster: Cluster, size: int) -> list[int] | None:
    """Kind of every block of `size` ranks, in order; None where one would lie on several."""
    of_blocks: list[int] = []
    for group in cluster.groups:
        if group.gpus % size:
            return None
        of_blocks += [group.kind] * (group.gpus // size)
    return of_blocks


def candidate_rows(scenario: Scenario, order: str) -> Layouts | None:
    """The best layouts of each kind, as if all servers were of it; None where there are none."""
    allowed = with_allowed(scenario)
    if allowed.get("rank_order", order) != order:
        return None
    pinned = {"stages": (), **allowed, "rank_order": order}
    tables = []
    for kind in scenario.cluster.kinds:
        table = explore_scenario(scenario, pinned, cluster=kind, keep=_KEEP_ON_ALL).best.layouts
        tables += [table] if len(table) else []
    if not tables:
        return None
    table = Layouts.concatenate(tables)
    return table[np.array(first_of_each(table))]


def first_of_each(table: Layouts) -> list[int]:
    """The first row of each way to split the model: tables hold the fastest first."""
    seen: dict[tuple[int, ...], int] = {}
    columns = (table.tp, table.pp, table.cp, table.dp, table.micro_batch, table.recompute)
    for i, key in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        seen.setdefault(key, i)
    return list(seen.values())


def staged(scenario: Scenario, table: Layouts) -> Iterator[tuple[Layouts, float]]:
    """Layouts with a pipeline, layers dealt to stages by kind; with the sum that was made least.

    A layout whose software has no uneven stages stays as it is dealt, and so do pinned stages.
    """
    cluster, software = scenario.cluster, scenario.software
    able = np.flatnonzero((table.pp > 1) & (table.copies == 1))
    if not len(able):
        return
    table = table[able]
    free = software.supports.uneven_stages and "stages" not in scenario.pinned
    if free:
        table = table.replace(stages=[()] * len(able))
    costs = [_rank_costs(scenario, kind, table) for kind in cluster.kinds]
    for i in range(len(table)):
        row = table[i]
        on = kinds_of_blocks(cluster, int(row.tp[0] * row.cp[0] * row.dp[0]))
        if on is None or any(cost is None for cost in costs):
            continue
        ranks = [cost for kind in on if (cost := costs[kind]) is not None]
        split = _balanced(scenario, ranks, i) if free else ()
        if split is None:
            continue
        balanced = row.replace(stages=[split]) if split else row
        if _allowed(scenario, balanced):
            yield balanced, _pace(ranks, i, balanced)


def _balanced(scenario: Scenario, ranks: list[RankCosts], i: int) -> tuple[int, ...] | None:
    """Layers of every piece so that all kinds FIT, or so that they fit where none lets them."""
    row = np.array([i])
    surely = None if scenario.allow_tight else balance_layers(ranks, row, surely=True)[0]
    return surely or balance_layers(ranks, row, surely=False)[0]


def _pace(ranks: list[RankCosts], i: int, row: Layouts) -> float:
    """Roughly the step: micro-batches of the slowest rank; only to choose which are played."""
    layers = np.full(len(ranks), float(ranks[0].layer_kinds.size)) / len(ranks)
    stages = row.row()["stages"]
    if stages:
        chunks = len(stages) // len(ranks)
        layers = np.array(stages).reshape(chunks, len(ranks)).sum(axis=0).astype(float)
    mean = np.array([rank.block_s[i, rank.layer_kinds].mean() for rank in ranks])
    fixed = np.array([rank.fixed_s[i, s] for s, rank in enumerate(ranks)])
    times = layers * mean + fixed
    return float((int(row.micro_batches[0]) - 1) * times.max() + times.sum())


def _rank_costs(scenario: Scenario, kind: Cluster, table: Layouts) -> RankCosts | None:
    setting = scenario.workload, kind, scenario.software
    if not (reasons(table, *setting) == FEASIBLE).all():
        return None
    return RankCosts.of(table, price_keys(table, *setting))


def _allowed(scenario: Scenario, row: Layouts) -> bool:
    """Whether a layout can run on the servers of every kind."""
    kinds = scenario.cluster.kinds
    codes = (reasons(row, scenario.workload, kind, scenario.software)[0] for kind in kinds)
    return all(int(code) == FEASIBLE for code in codes)


def shares_of(scenario: Scenario, table: Layouts) -> Iterator[Shares]:
    """Layouts with replicas apart, each kind with the micro-batches that it does in time.

    A replica's step is linear in its micro-batches once its pipeline is full, so that two numbers
    of them tell how many each kind does in any time; the least time in which all are done is found
    by halving. Of the shortest few the closed form is worked out with those numbers.
    """
    cluster = scenario.cluster
    if "stages" not in scenario.pinned:
        table = table.replace(stages=[()] * len(table))
    places = [kinds_of_blocks(cluster, int(n)) for n in table.tp * table.cp * table.pp]
    able = np.array([on is not None for on in places], dtype=bool)
    for kind in cluster.kinds:
        able &= reasons(table, scenario.workload, kind, scenario.software) == FEASIBLE
    some = np.flatnonzero(able)
    if not len(some):
        return
    table = table[some]
    counts = [np.bincount(places[i] or [], minlength=len(cluster.kinds)) for i in some]
    splits = _split_batches(scenario, table, np.array(counts))
    for i in np.argsort([seconds for seconds, _ in splits])[:_CLOSED]:
        seconds, shares = splits[i]
        step_s = _shared_step(scenario, table[int(i)], shares) if np.isfinite(seconds) else None
        if step_s is not None:
            replicas = tuple(int(x) for x in counts[i])
            row = table[int(i)]
            yield Shares(layouts=row, micro_batches=shares, replicas=replicas, step_s=step_s)


def _split_batches(
    scenario: Scenario, table: Layouts, replicas: Floats
) -> list[tuple[float, tuple[int, ...]]]:
    """Seconds and micro-batches of a replica by kind, for every layout; inf where one is short."""
    even = table.micro_batches
    turns = np.where(table.vpp > 1, table.pp, 1)  # interleaved chunks take turns of pp
    far = 2 * even
    near_s, far_s, fits = [], [], []
    for kind in scenario.cluster.kinds:
        near = evaluate(table, scenario.workload, kind, scenario.software)
        batched = table.replace(global_batch=far * table.dp * table.micro_batch)
        more = evaluate(batched, scenario.workload, kind, scenario.software)
        near_s.append(near.step_time_s)
        far_s.append(more.step_time_s)
        fits.append(near.fits)
    micro_batch_s = (np.array(far_s) - np.array(near_s)) / (far - even)
    begin = np.array(near_s) - micro_batch_s * even
    total = even * table.dp
    low = np.zeros(len(table))
    high = begin.max(axis=0) + micro_batch_s.max(axis=0) * (total + turns)
    for _ in range(60):
        middle = 0.5 * (low + high)
        done = (_counts(middle, begin, micro_batch_s, turns) * replicas.T).sum(axis=0) >= total
        low, high = np.where(done, low, middle), np.where(done, middle, high)
    shares = np.maximum(_counts(high, begin, micro_batch_s, turns), turns).astype(int)
    high = np.where(np.all(fits, axis=0), high, np.inf)
    return [(float(high[i]), tuple(map(int, shares[:, i]))) for i in range(len(table))]


def _counts(seconds: Floats, begin: Floats, micro_batch_s: Floats, turns: Floats) -> Floats:
    """Micro-batches that are done in so many seconds, in whole turns."""
    count = np.floor((seconds - begin) / (micro_batch_s * turns) + 1e-9) * turns
    return np.asarray(np.maximum(count, 0.0))


def _batched(row: Layouts, micro_batches: int) -> Layouts:
    """The same layout with another number of micro-batches in every replica."""
    batch = micro_batches * int(row.dp[0]) * int(row.micro_batch[0])
    return Layouts.of(**{**row.row(), "global_batch": batch})


def _shared_step(scenario: Scenario, row: Layouts, shares: tuple[int, ...]) -> float | None:
    """Closed form: what each kind takes without its reduction, and the longest of those."""
    before, after = [], []
    for kind, count in zip(scenario.cluster.kinds, shares, strict=True):
        some = _batched(row, count)
        if int(reasons(some, scenario.workload, kind, scenario.software)[0]) != FEASIBLE:
            return None
        estimate = evaluate(some, scenario.workload, kind, scenario.software)
        if not estimate.fits[0]:
            return None
        tail = float(estimate.terms_s["dp"][0])
        before.append(float(estimate.step_time_s[0]) - tail)
        after.append(tail)
    return max(before) + max(after)


_KEEP_OF_KIND = 256
"""Fastest layouts of each kind from which the best of each split of the model are taken."""

_PER_KIND, _ALIKE = 8, 2
"""Layouts of each kind that are tried with those of the others, and how many of these split batches
into the same pieces."""

_SCATTERS = [SHARDINGS.index(name) for name in ("zero1", "zero2")]
"""Shardings that leave every rank one piece of the gradients, after the last micro-batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutPerKind:
    """One layout of each kind, with the share of the batch that each does."""

    clusters: tuple[Cluster, ...]
    """The servers of each kind and no others."""
    rows: tuple[Layouts, ...]
    """One row each, whose batch is the kind's share."""
    micro_batches: tuple[int, ...]
    """Of a replica, by kind."""
    kind_s: tuple[float, ...]
    """Closed form of each kind's step by itself."""
    legs: GradientSumPhases

    @property
    def step_s(self) -> float:
        """Closed form: the slowest kind, and the exchange."""
        return max(self.kind_s) + self.legs.between_s


def with_batch(workload: Workload, batch: int) -> Workload:
    """Return the workload of servers that do `batch` sequences of every step: as many steps."""
    recipe = workload.recipe
    share = batch / recipe.global_batch
    tokens = None if recipe.tokens is None else share * recipe.tokens
    critical = None if recipe.critical_batch is None else share * recipe.critical_batch
    made = replace(recipe, global_batch=batch, tokens=tokens, critical_batch=critical)
    return replace(workload, recipe=made)


def layouts_per_kind(scenario: Scenario) -> list[LayoutPerKind]:
    """Find layouts for each kind, the fastest combinations by their closed form first."""
    if with_allowed(scenario).get("rank_order") == "tp-cp-dp-pp":
        return []
    clusters = [kind.with_gpus(gpus) for kind, gpus in _servers(scenario.cluster)]
    tables = [_table(scenario, cluster) for cluster in clusters]
    if any(table is None for table in tables):
        return []
    rows = [table for table in tables if table is not None]
    settings = zip(clusters, rows, strict=True)
    paces = [_paces(scenario, cluster, table) for cluster, table in settings]
    combinations = []
    for counts, at in _splits(paces, scenario.workload.recipe.global_batch)[:_CLOSED]:
        row = [table[i] for table, i in zip(rows, at, strict=True)]
        layouts = _closed(scenario, clusters, row, counts)
        combinations += [] if layouts is None else [layouts]
    return _unlike(sorted(combinations, key=lambda layouts: layouts.step_s))


def _unlike(combinations: Sequence[LayoutPerKind]) -> list[LayoutPerKind]:
    """The first of all that split the model alike on every kind."""
    first: dict[tuple[int, ...], LayoutPerKind] = {}
    for layouts in combinations:
        rows = Layouts.concatenate(list(layouts.rows))
        split = (rows.tp, rows.pp, rows.cp, rows.dp, rows.micro_batch)
        first.setdefault(tuple(np.concatenate(split).tolist()), layouts)
    return list(first.values())


def _table(scenario: Scenario, cluster: Cluster) -> Layouts | None:
    """The best layout of each way to split the model, on one kind with about its share."""
    fixed = ("dp", "shard_group", "stages")
    free = {name: x for name, x in with_allowed(scenario).items() if name not in fixed}
    batch = _about(scenario.workload.recipe.global_batch, cluster.gpus, scenario.cluster.gpus)
    smaller = replace(scenario, workload=with_batch(scenario.workload, batch))
    best = explore_scenario(smaller, free, cluster=cluster, keep=_KEEP_OF_KIND, counts=False).best
    table = best.layouts
    table = table[np.flatnonzero(_one_piece_a_rank(table))]
    return table[np.array(first_of_each(table))] if len(table) else None


def _about(batch: int, gpus: int, all_gpus: int) -> int:
    """A share of a batch that replicas on `gpus` of `all_gpus` accelerators divide.

    Examples
    --------
    >>> _about(128, 32, 64), _about(128, 24, 32), _about(4, 8, 64)
    (64, 96, 1)
    """
    odd = gpus // (gpus & -gpus)
    share = max(batch * gpus // all_gpus // odd, 1)
    return odd * (1 << (share.bit_length() - 1))


def _one_piece_a_rank(table: Layouts) -> NDArray[np.bool_]:
    """Whether each rank keeps gradients that no other rank has: all replicas share them."""
    both = table.dp * table.cp
    whole = np.isin(table.sharding, _SCATTERS) & (table.shard_group == both)
    return np.asarray((whole | (both == 1)) & (table.copies == 1))


def _paces(scenario: Scenario, cluster: Cluster, table: Layouts) -> list[Pace]:
    """Read off how long layouts take for any number of micro-batches: two numbers of them tell."""
    turns = np.where(table.vpp > 1, table.pp, 1)
    unit = table.dp * table.micro_batch
    few = np.maximum(table.micro_batches, table.pp)
    near, far = few * 1, few * 2
    step_s = []
    for count in (near, far):
        some = table.replace(global_batch=count * unit)
        step_s.append(evaluate(some, scenario.workload, cluster, scenario.software).step_time_s)
    micro_batch_s = (step_s[1] - step_s[0]) / (far - near)
    begin = step_s[0] - micro_batch_s * near
    columns = (begin, micro_batch_s, turns, unit)
    return [
        Pace(begin_s=b, micro_batch_s=m, turn=int(t), unit=int(u))
        for b, m, t, u in zip(*(column.tolist() for column in columns), strict=True)
    ]


def _splits(
    kinds: Sequence[Sequence[Pace]], batch: int
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Micro-batches and layouts of each kind, the soonest first."""
    seconds = soonest(kinds, batch)
    best = [_fastest(paces, seconds) for paces in kinds]
    splits = []
    for at in product(*best):
        split = split_batch([paces[i] for paces, i in zip(kinds, at, strict=True)], batch)
        if split is not None:
            splits.append((*split, at))
    return [(counts, at) for _, counts, at in sorted(splits)]


def _fastest(paces: Sequence[Pace], seconds: float) -> list[int]:
    """Layouts that do most in so many seconds, a few of every size of pieces."""
    order = np.argsort([-sequences_in(pace, seconds) for pace in paces], kind="stable")
    taken, alike = [], Counter[tuple[int, int]]()
    for i in order.tolist():
        piece = paces[i].unit, paces[i].turn
        alike[piece] += 1
        if alike[piece] <= _ALIKE:
            taken.append(i)
    return taken[:_PER_KIND]


def _closed(
    scenario: Scenario, clusters: Sequence[Cluster], table: Sequence[Layouts], counts: Sequence[int]
) -> LayoutPerKind | None:
    """Closed form of a combination; None where one of its layouts cannot run with its share."""
    rows, kind_s, priced = [], [], []
    for cluster, row, count in zip(clusters, table, counts, strict=True):
        batch = count * int(row.dp[0]) * int(row.micro_batch[0])
        array = row.replace(global_batch=np.array([batch]))
        setting = with_batch(scenario.workload, batch), cluster, scenario.software
        if int(reasons(array, *setting)[0]) != FEASIBLE:
            return None
        estimate = evaluate(array, *setting)
        if not estimate.fits[0]:
            return None
        rows.append(array)
        kind_s.append(float(estimate.step_time_s[0]))
        priced.append(price_keys(array, *setting))
    if any(keys.states.by_block[keys.state_key[0]] for keys in priced):
        return None  # reduced part by part, while passes run
    return LayoutPerKind(
        clusters=tuple(clusters),
        rows=tuple(rows),
        micro_batches=tuple(counts),
        kind_s=tuple(kind_s),
        legs=mixed_gradient_sum(priced, [cluster.gpus for cluster in clusters]),
    )


def runs_by_kind(scenario: Scenario, layouts: LayoutPerKind) -> Iterator[tuple[Scenario, Layouts]]:
    """What each kind trains on its own servers: its share of every step."""
    for cluster, row in zip(layouts.clusters, layouts.rows, strict=True):
        workload = with_batch(scenario.workload, int(row.global_batch[0]))
        yield replace(scenario, workload=workload, cluster=cluster), row


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """How long a kind of servers takes with one layout: linear in its micro-batches."""

    begin_s: float
    micro_batch_s: float
    """Of a micro-batch, of every replica."""
    turn: int
    """Micro-batches come in multiples of it: interleaved chunks take turns of all ranks."""
    unit: int
    """Sequences of a micro-batch of all replicas."""


def sequences_in(pace: Pace, seconds: float) -> float:
    """Sequences that are done in so many seconds, parts of a micro-batch counted."""
    return max((seconds - pace.begin_s) / pace.micro_batch_s, 0.0) * pace.unit


def soonest(kinds: Sequence[Sequence[Pace]], batch: int) -> float:
    """Seconds in which all kinds together do a batch, each with its fastest layout."""
    low, high = 0.0, 1e-3
    while _done(kinds, high) < batch:
        low, high = high, 2.0 * high
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if _done(kinds, middle) >= batch else (middle, high)
    return high


def _done(kinds: Sequence[Sequence[Pace]], seconds: float) -> float:
    return sum(max(sequences_in(pace, seconds) for pace in paces) for paces in kinds)


def split_batch(paces: Sequence[Pace], batch: int) -> tuple[float, tuple[int, ...]] | None:
    """Split exactly `batch` sequences, one layout per kind: dynamic programming over the kinds.

    Returns the seconds of the slowest kind and the micro-batches of a replica of each; None where
    no whole numbers of them add up to the batch.

    Examples
    --------
    >>> fast = Pace(begin_s=0.0, micro_batch_s=1.0, turn=1, unit=1)
    >>> slow = Pace(begin_s=0.0, micro_batch_s=3.0, turn=1, unit=1)
    >>> split_batch([fast, slow], 8)
    (6.0, (6, 2))
    """
    best: Floats = np.full(batch + 1, np.inf)
    best[0] = 0.0
    chosen = []
    for pace in paces:
        step = pace.unit * pace.turn
        after, count = np.full(batch + 1, np.inf), np.zeros(batch + 1, dtype=np.int64)
        for turns in range(1, batch // step + 1):
            share, micro_batches = turns * step, turns * pace.turn
            kind_s = pace.begin_s + pace.micro_batch_s * micro_batches
            seconds = np.maximum(best[: batch + 1 - share], kind_s)
            better = seconds < after[share:]
            after[share:][better] = seconds[better]
            count[share:][better] = micro_batches
        best = after
        chosen.append(count)
    if not np.isfinite(best[batch]):
        return None
    left, counts = batch, []
    for pace, count in zip(reversed(paces), reversed(chosen), strict=True):
        counts.append(int(count[left]))
        left -= counts[-1] * pace.unit
    return float(best[batch]), tuple(reversed(counts))
