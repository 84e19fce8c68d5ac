"""A plan for servers of several kinds: all of them together, or one kind alone.

Layouts are the best of each kind as if all servers were of it; stages and shares of the batch are
placed by capability (``mixed_placement.py``), and the most promising are played on discrete events,
which price every stage on the servers that it lies on. Replicas may have a layout of their kind's
own (``own_layouts.py``). Beside them stands the best layout of each kind on its own servers and no
others: where that is faster, the others are better left out.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.errors import InfeasibleError, InputError
from simulator.events.simulated_step import simulate
from simulator.layout.layouts import Layouts
from simulator.planner.layout_per_server_type import OwnLayouts, each_alone, own_layouts
from simulator.planner.mixed_answer import MixedOption, MixedPlan, in_order
from simulator.planner.mixed_placement import (
    BY_REPLICA,
    BY_STAGE,
    Shares,
    alone,
    candidate_rows,
    shares_of,
    staged,
)
from simulator.planner.mixed_totals import PriceOf, mixed_totals, own_gpus, own_totals
from simulator.scenario import Scenario
from simulator.search.allowed import with_allowed
from simulator.search.explore import explore

_PLAYED = 4
"""Layouts of each way of placing them that are played."""

_OWN_PLAYED = 2
"""Combinations of layouts of each kind that are played."""


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
        *_by_own(made, price_of),
    ]
    for kind, gpus in enumerate(own_gpus(scenario.cluster)):
        options += _alone(made, kind, gpus, price_of)
    if not options:
        names = ", ".join(kind.name for kind in scenario.cluster.kinds)
        rule = "no layout can run and fit on all servers, nor on those of one kind"
        raise InfeasibleError(f"{scenario.where}: cluster.groups: {rule} ({names})")
    return MixedPlan(scenario=scenario, options=in_order(options, scenario.goal))


def _check_given(scenario: Scenario) -> None:
    """Refuse what only a search on servers of one kind decides."""
    open_fields = [f"training.{name}" for name in scenario.choices]
    goal = scenario.goal
    bounds = (("smallest_batch", goal.smallest_batch), ("largest_batch", goal.largest_batch))
    open_fields += [f"goal.{name}" for name, value in bounds if value is not None]
    if open_fields:
        rule = "must leave batch and sequence as they are with servers of several kinds"
        raise InputError(f"{scenario.where}: {name}: {rule}" for name in open_fields)


def _by_stages(scenario: Scenario, price_of: PriceOf | None) -> list[MixedOption]:
    """Pipelines over several kinds, layers dealt by capability, the most promising played."""
    table = candidate_rows(scenario, BY_STAGE)
    if table is None:
        return []
    rows = sorted(staged(scenario, table), key=lambda found: found[1])[:_PLAYED]
    options = []
    for row, _ in rows:
        step = simulate(row, scenario.workload, scenario.cluster, scenario.software)
        assert step.mixed is not None
        fullest = float((step.mixed.memory_bytes / step.mixed.usable_bytes).max())
        if fullest > 1.0:
            continue
        counts = (int(row.micro_batches[0]),) * len(scenario.cluster.kinds)
        seconds = step.step_time_s
        totals = mixed_totals(scenario, row, seconds, price_of=price_of, memory_share=fullest)
        options.append(
            MixedOption(
                way="stages",
                kinds=tuple(kind.name for kind in scenario.cluster.kinds),
                gpus=scenario.cluster.gpus,
                layouts=row,
                described=row.describe(),
                micro_batches=counts,
                step_s=seconds,
                closed_form_s=None,
                totals=totals,
            )
        )
    return options


def _by_shares(scenario: Scenario, price_of: PriceOf | None) -> list[MixedOption]:
    """Replicas on one kind each, with the micro-batches that each kind does in time."""
    table = candidate_rows(scenario, BY_REPLICA)
    if table is None:
        return []
    shares = sorted(shares_of(scenario, table), key=lambda share: share.step_s)[:_PLAYED]
    return [_share(scenario, one, price_of) for one in shares]


def _share(scenario: Scenario, shares: Shares, price_of: PriceOf | None) -> MixedOption:
    seconds = _played_shares(scenario, shares)
    return MixedOption(
        way="shares",
        kinds=tuple(kind.name for kind in scenario.cluster.kinds),
        gpus=scenario.cluster.gpus,
        layouts=shares.layouts,
        described=shares.layouts.describe(),
        micro_batches=shares.micro_batches,
        step_s=seconds,
        closed_form_s=shares.step_s,
        totals=mixed_totals(scenario, shares.layouts, seconds, price_of=price_of),
    )


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


def _by_own(scenario: Scenario, price_of: PriceOf | None) -> list[MixedOption]:
    """Each kind with a layout of its own: played by itself, then the exchange of gradients."""
    return [_own(scenario, layout, price_of) for layout in own_layouts(scenario)[:_OWN_PLAYED]]


def _own(scenario: Scenario, own_layouts: OwnLayouts, price_of: PriceOf | None) -> MixedOption:
    each = list(each_alone(scenario, own_layouts))
    played_s = [
        simulate(row, own.workload, own.cluster, own.software).step_time_s for own, row in each
    ]
    seconds = max(played_s) + own_layouts.legs.between_s
    names = tuple(kind.name for kind in scenario.cluster.kinds)
    words = [f"{name}: {row.describe()}" for name, row in zip(names, own_layouts.rows, strict=True)]
    return MixedOption(
        way="own layouts",
        kinds=names,
        gpus=scenario.cluster.gpus,
        layouts=Layouts.concatenate(list(own_layouts.rows)),
        described="; ".join(words),
        micro_batches=own_layouts.micro_batches,
        step_s=seconds,
        closed_form_s=own_layouts.step_s,
        totals=own_totals(scenario, each, seconds, price_of=price_of),
        legs=own_layouts.legs,
    )


def _alone(scenario: Scenario, kind: int, gpus: int, price_of: PriceOf | None) -> list[MixedOption]:
    """The best layout of one kind on its own servers."""
    cluster = alone(scenario.cluster, kind, gpus)
    fixed = ("dp", "shard_group", "stages")
    free = {name: value for name, value in scenario.pinned.items() if name not in fixed}
    found = explore(scenario.workload, cluster, scenario.software, free, keep=1)
    if not len(found.best):
        return []
    best = found.best.take(slice(0, 1))
    row = best.layouts[:1]
    seconds = simulate(row, scenario.workload, cluster, scenario.software).step_time_s
    own = replace(scenario, cluster=cluster)
    return [
        MixedOption(
            way=f"{cluster.name} alone",
            kinds=(cluster.name,),
            gpus=gpus,
            layouts=row,
            described=row.describe(),
            micro_batches=(int(row.micro_batches[0]),),
            step_s=seconds,
            closed_form_s=float(best.step_time_s[0]),
            totals=mixed_totals(own, row, seconds, price_of=price_of),
        )
    ]
