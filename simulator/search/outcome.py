"""From step times to what a person decides on: throughput, days, money, energy, evidence."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.cost.step import Estimate
from simulator.economics.energy import cluster_energy_joule, co2_kg
from simulator.economics.money_spread import energy_spread, usd_spread
from simulator.economics.planning_factor import PlanningFactor, Span
from simulator.economics.price import Price, Site, cost_usd, load_price, load_site
from simulator.files import Figure
from simulator.frames import DataFrame, Table
from simulator.goal import Goal
from simulator.hardware.cluster import Cluster
from simulator.records import dataclass
from simulator.reliability.run_outlook import Outlook
from simulator.search.certainty import Certainty
from simulator.units import DAY_S, HOUR_S, KWH_J
from simulator.workload.recipe import Recipe

COMPUTING = ("gemm", "attention", "memory_bound", "recompute", "slowdown", "optimizer")
"""Time terms in which the device computes; in the others it waits or communicates."""

_MIXED_PEAK = "bf16"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Per layout; NaN where the tokens of the whole run, or the price, are not known."""

    tokens_per_s: Floats
    tokens_per_s_per_gpu: Floats
    mfu: Floats
    """Model FLOPs over dense bf16 peak (fp32 peak where the device has no bf16)."""
    hfu: Floats
    """The same with recomputation."""
    days: Floats
    """Of the real run: with failures, checkpoints, restarts and slow steps; inf where it never
    ends, and then money and energy are NaN."""
    days_ideal: Floats
    """Steps x step time."""
    goodput: Floats
    """Ideal time over real time; 1 where nobody asked what goes wrong."""
    gpu_hours: Floats
    """Of the real run, hot spares and the rest of racks that are let whole included."""
    usd: Floats
    kwh: Floats
    usd_spread: Floats
    """Relative standard deviation of the money beyond that of the step time: price, tariff."""
    kwh_spread: Floats
    """The same of the energy: draws, cooling, network."""
    price: Price
    site: Site
    gpus_per_server: int = 1
    real: Outlook | None = None
    """Where the time of the real run goes."""

    def take(self, rows: Any) -> Outcome:
        """Return the outcome of some layouts."""
        columns: dict[str, Any] = {
            name: value[rows] for name, value in vars(self).items() if isinstance(value, np.ndarray)
        }
        return replace(self, real=None if self.real is None else self.real.take(rows), **columns)

    @property
    def co2_kg(self) -> Floats:
        """CO2 equivalent of the energy, by the site's region."""
        return co2_kg(self.kwh, self.site.region)

    @property
    def run_spread(self) -> Floats:
        """Relative standard deviation of the length of the run by what happens to fail."""
        return np.zeros(len(self.days)) if self.real is None else self.real.relative_deviation


@dataclass(frozen=True, kw_only=True)
class Spans:
    """P10 and P90 per layout of what a whole run takes: step time and figures together."""

    days: tuple[Floats, Floats]
    usd: tuple[Floats, Floats]
    kwh: tuple[Floats, Floats]


@dataclass(frozen=True, kw_only=True)
class PlannedTotals:
    """P10, P50 and P90 per layout of a run with the planning factor on it."""

    days: tuple[Floats, Floats, Floats]
    usd: tuple[Floats, Floats, Floats]
    kwh: tuple[Floats, Floats, Floats]


def planned_totals(
    estimate: Estimate, outcome: Outcome, sure: Certainty, factor: PlanningFactor
) -> PlannedTotals:
    """Give days, money and energy what published runs took on top, with intervals."""
    step_s = estimate.step_time_s
    wide = sure.planned(step_s, factor)

    def held(total: Floats, spread: Floats | float) -> tuple[Floats, Floats, Floats]:
        middle = factor.value * total
        low, high = wide.span(middle, step_s, np.hypot(spread, outcome.run_spread))
        return low, middle, high

    return PlannedTotals(
        days=held(outcome.days, 0.0),
        usd=held(outcome.usd, outcome.usd_spread),
        kwh=held(outcome.kwh, outcome.kwh_spread),
    )


def spans(estimate: Estimate, outcome: Outcome, sure: Certainty) -> Spans:
    """Give days, money and energy their intervals."""
    step_s = estimate.step_time_s
    return Spans(
        days=sure.span(outcome.days, step_s, outcome.run_spread),
        usd=sure.span(outcome.usd, step_s, np.hypot(outcome.usd_spread, outcome.run_spread)),
        kwh=sure.span(outcome.kwh, step_s, np.hypot(outcome.kwh_spread, outcome.run_spread)),
    )


@dataclass(frozen=True, kw_only=True)
class GoalChances:
    """Per layout, the chance of meeting a goal; NaN where none was set or nothing is known."""

    deadline: Floats
    budget: Floats
    """With the planning factor, where there is one."""
    deadline_without_factor: Floats
    budget_without_factor: Floats


def goal_chances(
    step_s: Floats,
    outcome: Outcome,
    sure: Certainty,
    goal: Goal,
    factor: PlanningFactor | None = None,
) -> GoalChances:
    """Say how likely every layout is to finish in time and within the budget."""
    money = np.hypot(outcome.usd_spread, outcome.run_spread)

    def chances(known: Certainty, value: float) -> tuple[Floats, Floats]:
        days, usd = value * outcome.days, value * outcome.usd
        return (
            known.chance_within(days, step_s, goal.deadline_days, outcome.run_spread),
            known.chance_within(usd, step_s, goal.budget_usd, money),
        )

    without = chances(sure, 1.0)
    held = chances(sure.planned(step_s, factor), factor.value) if factor else without
    return GoalChances(
        deadline=held[0],
        budget=held[1],
        deadline_without_factor=without[0],
        budget_without_factor=without[1],
    )


def answer_frame(
    estimate: Estimate,
    outcome: Outcome,
    certainty: Certainty,
    table: Table = "layouts",
    factor: PlanningFactor | None = None,
) -> DataFrame:
    """One row per layout of an answer; `layouts` with throughput, money, energy and intervals.

    And with the price of an hour, and what to plan for where there is a planning factor.

    Raises
    ------
    InputError
        If there is no such table.
    """
    costs = estimate.to_frame(table)
    if table != "layouts":
        return costs
    return costs.assign(
        **answer_columns(estimate, outcome, certainty),
        **_ends(spans(estimate, outcome, certainty)),
        **_planned_columns(estimate, outcome, certainty, factor),
        **_price_columns(outcome.price),
    )


def _ends(whole: Spans) -> dict[str, Floats]:
    """P10 and P90 of what the whole run takes."""
    return {
        f"{total.name}_{end}": getattr(whole, total.name)[at]
        for total in fields(Spans)
        for at, end in enumerate(("p10", "p90"))
    }


def _planned_columns(
    estimate: Estimate, outcome: Outcome, certainty: Certainty, factor: PlanningFactor | None
) -> dict[str, Any]:
    """Totals to plan for; NaN without a planning factor."""
    unknown = np.full(len(estimate), np.nan)
    planned = factor and planned_totals(estimate, outcome, certainty, factor)
    return {
        f"planned_{total.name}_{end}": getattr(planned, total.name)[at] if planned else unknown
        for total in fields(PlannedTotals)
        for at, end in enumerate(Span.KEYS)
    }


def _price_columns(price: Price) -> dict[str, Any]:
    """What an hour costs, and who asks it."""
    hourly, *origin = price.origin.items()
    return dict([hourly, *((f"price_{name}", value) for name, value in origin)])


def answer_columns(estimate: Estimate, outcome: Outcome, certainty: Certainty) -> dict[str, Any]:
    """What every layout of an answer costs: columns of its table, values of its rows."""
    shares = ("tokens_per_s_per_gpu", "mfu", "hfu", "goodput")
    names = (*shares, "days", "days_ideal", "gpu_hours", "usd", "kwh", "co2_kg")
    return {
        **estimate.costs(),
        "p10_s": certainty.p10_s,
        "p90_s": certainty.p90_s,
        "probability_fastest": certainty.fastest,
        **{name: getattr(outcome, name) for name in names},
    }


def outcome(
    estimate: Estimate,
    recipe: Recipe,
    cluster: Cluster,
    *,
    price: Price | None = None,
    site: Site | None = None,
    real: Outlook | None = None,
) -> Outcome:
    """Price every layout of an estimate for the whole run, by the cluster's price unless given.

    `real` is what becomes of the run (``search/with_failures.py``); without it every step succeeds.

    MFU divides model FLOPs by ``gpus x dense bf16 peak x step time`` (Chowdhery et al. 2022,
    appendix B).
    """
    price = price or load_price(cluster.price)
    site = site or load_site(price.site)
    step_s = estimate.step_time_s
    gpus = estimate.layouts.world.astype(float)
    run_s = step_s * (recipe.steps if recipe.steps is not None else np.nan)
    peaks = cluster.accelerator.matrix_flop_per_s
    peak = gpus * float(peaks.get(_MIXED_PEAK, max(peaks.values())))
    busy_s = busy_seconds(estimate)
    per_step = cluster_energy_joule(cluster, site, step_time_s=step_s, busy_s=busy_s)
    ideal_s, spare_gpus = run_s, np.zeros(len(estimate))
    never = np.full(len(estimate), False)
    joule = per_step * (ideal_s / step_s)
    if real is not None:
        run_s = np.where(real.finishes, ideal_s / np.maximum(real.goodput, 1e-3), np.nan)
        never = ~real.finishes & ~np.isnan(ideal_s)
        spare_gpus = real.hot_spares * cluster.node.accelerators
        joule = _real_joule(cluster, site, run_s=run_s, step_s=step_s, real=real, joule=per_step)
    held = cluster.rented(gpus + spare_gpus)
    hourly = np.nan if price.usd_per_gpu_hour is None else price.usd_per_gpu_hour
    usd = cost_usd(
        seconds=run_s,
        gpus=held,
        energy_joule=joule,
        usd_per_gpu_hour=hourly,
        electricity_usd_per_kwh=float(site.electricity_usd_per_kwh),
        included_power=price.included_power,
    )
    energy = energy_spread(cluster, site, step_time_s=step_s, busy_s=busy_s)
    power_share = 1.0 - run_s / HOUR_S * held * hourly / usd
    return Outcome(
        tokens_per_s=recipe.tokens_per_step / step_s,
        tokens_per_s_per_gpu=recipe.tokens_per_step / step_s / gpus,
        mfu=estimate.model_flop / step_s / peak,
        hfu=estimate.executed_flop / step_s / peak,
        days=np.where(never, np.inf, run_s / DAY_S),
        days_ideal=ideal_s / DAY_S,
        goodput=np.ones(len(estimate)) if real is None else real.goodput,
        gpu_hours=run_s / HOUR_S * held,
        usd=usd,
        kwh=joule / KWH_J,
        usd_spread=usd_spread(price, site, power_share=power_share, energy=energy),
        kwh_spread=energy,
        price=price,
        site=site,
        gpus_per_server=cluster.node.accelerators,
        real=real,
    )


def busy_seconds(estimate: Estimate) -> Floats:
    """Seconds of a step in which a device computes: the mean device, not the slowest."""
    busy_s = np.zeros(len(estimate))
    for name in COMPUTING:
        busy_s = busy_s + estimate.terms_s[name]
    return np.maximum(busy_s - estimate.imbalance_s, 0.0)


def _real_joule(
    cluster: Cluster, site: Site, *, run_s: Floats, step_s: Floats, real: Outlook, joule: Floats
) -> Floats:
    """Energy of the real run: training draws what a step does, the rest waits, spares idle."""
    idle = replace(site, waiting_activity=Figure(0.0, "assumed", "idle"))
    nothing = np.zeros_like(step_s)
    waiting = cluster_energy_joule(cluster, site, step_time_s=step_s, busy_s=nothing)
    resting = cluster_energy_joule(cluster, idle, step_time_s=step_s, busy_s=nothing)
    trained, spares = real.training_share, real.hot_spares / real.terms.nodes[:, 0]
    per_step = trained * joule + (1.0 - trained) * waiting + spares * resting
    return np.asarray(run_s / step_s * per_step)
