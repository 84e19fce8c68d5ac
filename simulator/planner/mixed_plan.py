"""A plan for servers of several kinds: all of them together, or one kind alone.

Layouts are the best of each kind as if all servers were of it; stages and shares of the batch are
placed by capability (``mixed_placement.py``), and the most promising are played on discrete events,
which price every stage on the servers that it lies on. Beside them stands the best layout of each
kind on its own servers and no others: where that is faster, the others are better left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from simulator.cost.step import evaluate
from simulator.economics.economics_section import price_and_site
from simulator.economics.energy import cluster_energy_joule
from simulator.economics.price import cost_usd
from simulator.errors import InfeasibleError
from simulator.events.simulated_step import simulate
from simulator.frames import DataFrame, frame_of_rows
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import Layouts
from simulator.planner.allowed import with_allowed
from simulator.planner.explore import explore
from simulator.planner.mixed_placement import (
    BY_REPLICA,
    BY_STAGE,
    Shares,
    alone,
    candidate_rows,
    own_gpus,
    shares_of,
    staged,
)
from simulator.planner.real_run import real_run
from simulator.scenario import Scenario
from simulator.units import DAY_S, HOUR_S, show_percent

__all__ = ["MixedOption", "MixedPlan", "option_row", "plan_mixed"]

_PLAYED = 4
"""Layouts of each way of placing them that are played."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MixedOption:
    """One way to use the servers."""

    way: str
    """stages: of one pipeline on several kinds. shares: replicas on one kind each, with unlike
    numbers of micro-batches. NAME alone: the servers of one kind and no others."""
    kinds: tuple[str, ...]
    """Kinds that are used."""
    gpus: int
    layouts: Layouts
    described: str
    micro_batches: tuple[int, ...]
    """Of a replica, by kind that is used."""
    step_s: float
    """Played on discrete events."""
    closed_form_s: float | None
    """None where there is no closed form: stages on several kinds."""
    days: float | None
    """Of the whole run, with what fails; None without tokens."""
    usd: float | None
    """None without tokens or a price."""


@dataclass(frozen=True, kw_only=True)
class MixedPlan:
    """Ways to use a cluster of several kinds of servers, the fastest first."""

    scenario: Scenario
    options: tuple[MixedOption, ...]

    def __repr__(self) -> str:
        return f"MixedPlan({self.verdict})"

    @property
    def best(self) -> MixedOption:
        """The fastest."""
        return self.options[0]

    @property
    def meets_goal(self) -> bool:
        """Whether the fastest way meets deadline and budget, where one was given."""
        goal, best = self.scenario.goal, self.best
        late = goal.deadline_days is not None and (best.days or np.inf) > goal.deadline_days
        dear = goal.budget_usd is not None and (best.usd or np.inf) > goal.budget_usd
        return not (late or dear)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Kinds of servers without which the step is fastest."""
        every = (kind.name for kind in self.scenario.cluster.kinds)
        return tuple(name for name in every if name not in self.best.kinds)

    @property
    def verdict(self) -> str:
        """What to do, in a sentence."""
        best = self.best
        rest = [one for one in self.options if one.way.endswith("alone") != bool(self.left_out)]
        if self.left_out:
            names = " and ".join(self.left_out)
            if not rest:
                return f"{names} left out: nothing runs on all servers"
            more = show_percent(rest[0].step_s / best.step_s - 1.0)
            return f"{names} better left out: a step on all servers takes {more} longer"
        if not rest:
            return f"all servers by {best.way}: no kind alone can run it"
        less = show_percent(rest[0].step_s / best.step_s - 1.0)
        name = rest[0].kinds[0]
        return f"all servers by {best.way}; the best kind alone, {name}, takes {less} longer"

    def to_frame(self) -> DataFrame:
        """One row per way."""
        return frame_of_rows([option_row(one) for one in self.options])

    def _repr_html_(self) -> str:
        return str(self.to_frame().to_html(index=False))


def option_row(one: MixedOption) -> dict[str, object]:
    """What an option says, as plain values."""
    return {
        "way": one.way,
        "kinds": list(one.kinds),
        "gpus": one.gpus,
        "layout": one.layouts.row(),
        "described": one.described,
        "micro_batches": list(one.micro_batches),
        "step_time_s": one.step_s,
        "closed_form_s": one.closed_form_s,
        "days": one.days,
        "usd": one.usd,
    }


def plan_mixed(scenario: Scenario) -> MixedPlan:
    """Find how to use servers of several kinds.

    Raises
    ------
    InfeasibleError
        If nothing can run and fit on all of them, and on no kind alone.
    """
    options = [*_by_stages(scenario), *_by_shares(scenario)]
    for kind, gpus in enumerate(own_gpus(scenario.cluster)):
        options += _alone(scenario, kind, gpus)
    if not options:
        names = ", ".join(kind.name for kind in scenario.cluster.kinds)
        rule = "no layout can run and fit on all servers, nor on those of one kind"
        raise InfeasibleError(f"{scenario.where}: cluster.groups: {rule} ({names})")
    return MixedPlan(scenario=scenario, options=tuple(sorted(options, key=lambda one: one.step_s)))


def _by_stages(scenario: Scenario) -> list[MixedOption]:
    """Pipelines over several kinds, layers dealt by capability, the most promising played."""
    table = candidate_rows(scenario, BY_STAGE)
    if table is None:
        return []
    rows = sorted(staged(scenario, table), key=lambda found: found[1])[:_PLAYED]
    options = []
    for row, _ in rows:
        step = simulate(row, scenario.workload, scenario.cluster, scenario.software)
        assert step.mixed is not None
        if (step.mixed.memory_bytes <= step.mixed.usable_bytes).all():
            count = int(row.micro_batches[0])
            options.append(_option(scenario, "stages", row, step.step_time_s, (count,) * 2, None))
    return options


def _by_shares(scenario: Scenario) -> list[MixedOption]:
    """Replicas on one kind each, with the micro-batches that each kind does in time."""
    table = candidate_rows(scenario, BY_REPLICA)
    if table is None:
        return []
    found = sorted(shares_of(scenario, table), key=lambda one: one.step_s)[:_PLAYED]
    return [
        _option(
            scenario, "shares", one.layouts, _played_shares(scenario, one), one.micro_batches,
            one.step_s,
        )
        for one in found
    ]  # fmt: skip


def _played_shares(scenario: Scenario, one: Shares) -> float:
    """Each kind with its share, played as if all servers were of it: replicas meet at the end."""
    before, after = [], []
    for kind, count in zip(scenario.cluster.kinds, one.micro_batches, strict=True):
        batch = count * int(one.layouts.dp[0]) * int(one.layouts.micro_batch[0])
        row = Layouts.of(**{**one.layouts.row(), "global_batch": batch})
        step = simulate(row, scenario.workload, kind, scenario.software)
        tail = step.terms_s.get("dp", 0.0)
        before.append(step.step_time_s - tail)
        after.append(tail)
    return max(before) + max(after)


def _alone(scenario: Scenario, kind: int, gpus: int) -> list[MixedOption]:
    """The best layout of one kind on its own servers."""
    cluster = alone(scenario.cluster, kind, gpus)
    free = {k: v for k, v in with_allowed(scenario).items() if k not in ("dp", "shard_group")}
    found = explore(scenario.workload, cluster, scenario.software, free, keep=1)
    if not len(found.best):
        return []
    best = found.best.take(slice(0, 1))
    row = best.layouts[:1]
    step = simulate(row, scenario.workload, cluster, scenario.software)
    own = replace(scenario, cluster=cluster)
    counts = (int(row.micro_batches[0]),)
    closed_s = float(best.step_time_s[0])
    return [_option(own, f"{cluster.name} alone", row, step.step_time_s, counts, closed_s)]


def _option(
    scenario: Scenario,
    way: str,
    row: Layouts,
    step_s: float,
    micro_batches: tuple[int, ...],
    closed_form_s: float | None,
) -> MixedOption:
    cluster = scenario.cluster
    used = cluster.kinds or (cluster,)
    gpus = own_gpus(cluster) if cluster.kinds else (cluster.gpus,)
    days = _days(scenario, row, step_s)
    return MixedOption(
        way=way,
        kinds=tuple(kind.name for kind in used),
        gpus=cluster.gpus,
        layouts=row,
        described=row.describe(),
        micro_batches=micro_batches[: len(used)],
        step_s=step_s,
        closed_form_s=closed_form_s,
        days=days,
        usd=_usd(scenario, list(zip(used, gpus, strict=True)), step_s, days) if days else None,
    )


def _days(scenario: Scenario, row: Layouts, step_s: float) -> float | None:
    """Days of the real run; goodput as on servers of the first kind."""
    steps = scenario.workload.recipe.steps
    if steps is None:
        return None
    kind = scenario.cluster.each[0]
    first = replace(scenario, cluster=kind)
    estimate = evaluate(row, scenario.workload, kind, scenario.software)
    slower = replace(estimate, step_time_s=np.array([step_s]))
    good = float(real_run(slower, first).goodput[0])
    return steps * step_s / good / DAY_S if good > 0.0 else None


def _usd(
    scenario: Scenario, gpus: Sequence[tuple[Cluster, int]], step_s: float, days: float
) -> float | None:
    """All servers for so many days, each kind at its own price, computing all the time."""
    total = 0.0
    for kind, count in gpus:
        price, site = price_and_site(scenario.economics, kind)
        if price.usd_per_gpu_hour is None:
            return None
        held = replace(kind, groups=(replace(kind.groups[0], gpus=count),))
        joule = cluster_energy_joule(held, site, step_time_s=step_s, busy_s=step_s)
        per_step = cost_usd(
            seconds=step_s,
            gpus=count,
            energy_joule=joule,
            usd_per_gpu_hour=float(price.usd_per_gpu_hour),
            electricity_usd_per_kwh=float(site.electricity_usd_per_kwh),
            included_power=price.included_power,
        )
        total += float(per_step) * HOUR_S / step_s
    return total * days * 24.0
