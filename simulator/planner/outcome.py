"""From step times to what a person decides on: throughput, days, money, energy, evidence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.arrays import Floats
from simulator.cost.step import Estimate
from simulator.economics.energy import cluster_energy_joule
from simulator.economics.money_spread import energy_spread, usd_spread
from simulator.economics.price import Price, Site, cost_usd, load_price, load_site
from simulator.frames import DataFrame, Table
from simulator.hardware.cluster import Cluster
from simulator.planner.certainty import Certainty
from simulator.units import DAY_S, HOUR_S, KWH_J
from simulator.workload.recipe import Recipe

__all__ = [
    "COMPUTING",
    "GoalChances",
    "Outcome",
    "Spans",
    "answer_frame",
    "goal_chances",
    "outcome",
    "spans",
]


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
    gpu_hours: Floats
    usd: Floats
    kwh: Floats
    usd_spread: Floats
    """Relative standard deviation of the money beyond that of the step time: price, tariff."""
    kwh_spread: Floats
    """The same of the energy: draws, cooling, network."""
    price: Price
    site: Site


@dataclass(frozen=True, kw_only=True)
class Spans:
    """P10 and P90 per layout of what a whole run takes: step time and figures together."""

    days: tuple[Floats, Floats]
    usd: tuple[Floats, Floats]
    kwh: tuple[Floats, Floats]


def spans(estimate: Estimate, found: Outcome, sure: Certainty) -> Spans:
    """Give days, money and energy their intervals."""
    step_s = estimate.step_time_s
    return Spans(
        days=sure.span(found.days, step_s),
        usd=sure.span(found.usd, step_s, found.usd_spread),
        kwh=sure.span(found.kwh, step_s, found.kwh_spread),
    )


@dataclass(frozen=True, kw_only=True)
class GoalChances:
    """Per layout, the chance of meeting a goal; NaN where none was set or nothing is known."""

    deadline: Floats
    budget: Floats


def goal_chances(
    estimate: Estimate,
    found: Outcome,
    sure: Certainty,
    *,
    deadline_days: float | None,
    budget_usd: float | None,
) -> GoalChances:
    """Say how likely every layout is to finish in time and within the budget."""
    step_s = estimate.step_time_s
    return GoalChances(
        deadline=sure.chance_within(found.days, step_s, deadline_days),
        budget=sure.chance_within(found.usd, step_s, budget_usd, found.usd_spread),
    )


def answer_frame(
    estimate: Estimate, found: Outcome, certainty: Certainty, table: Table = "layouts"
) -> DataFrame:
    """One row per layout of an answer; `layouts` with throughput, money, energy and intervals.

    Raises
    ------
    InputError
        If there is no such table.
    """
    costs = estimate.to_frame(table)
    if table != "layouts":
        return costs
    names = ("tokens_per_s_per_gpu", "mfu", "hfu", "days", "gpu_hours", "usd", "kwh")
    return costs.assign(
        p10_s=certainty.p10_s,
        p90_s=certainty.p90_s,
        probability_fastest=certainty.fastest,
        **{name: getattr(found, name) for name in names},
    )


def outcome(
    estimate: Estimate, recipe: Recipe, cluster: Cluster, *, price: Price | None = None
) -> Outcome:
    """Price every layout of an estimate for the whole run, by the cluster's price unless given.

    MFU divides model FLOPs by ``gpus x dense bf16 peak x step time`` (Chowdhery et al. 2022,
    appendix B).
    """
    price = price or load_price(cluster.price)
    site = load_site(price.site)
    step_s = estimate.step_time_s
    gpus = estimate.layouts.world.astype(float)
    run_s = step_s * (recipe.steps if recipe.steps is not None else np.nan)
    peaks = cluster.accelerator.matrix_flop_per_s
    peak = gpus * float(peaks.get(_MIXED_PEAK, max(peaks.values())))
    busy_s = np.zeros(len(estimate))
    for name in COMPUTING:
        busy_s = busy_s + estimate.terms_s[name]
    busy_s = np.maximum(busy_s - estimate.imbalance_s, 0.0)  # the mean device, not the slowest
    per_step = cluster_energy_joule(cluster, site, step_time_s=step_s, busy_s=busy_s)
    joule = per_step * (run_s / step_s)
    hourly = np.nan if price.usd_per_gpu_hour is None else price.usd_per_gpu_hour
    usd = cost_usd(
        seconds=run_s,
        gpus=gpus,
        energy_joule=joule,
        usd_per_gpu_hour=hourly,
        electricity_usd_per_kwh=float(site.electricity_usd_per_kwh),
        included_power=price.included_power,
    )
    energy = energy_spread(cluster, site, step_time_s=step_s, busy_s=busy_s)
    power_share = 1.0 - run_s / HOUR_S * gpus * hourly / usd
    return Outcome(
        tokens_per_s=recipe.tokens_per_step / step_s,
        tokens_per_s_per_gpu=recipe.tokens_per_step / step_s / gpus,
        mfu=estimate.model_flop / step_s / peak,
        hfu=estimate.executed_flop / step_s / peak,
        days=run_s / DAY_S,
        gpu_hours=run_s / HOUR_S * gpus,
        usd=usd,
        kwh=joule / KWH_J,
        usd_spread=usd_spread(price, site, power_share=power_share, energy=energy),
        kwh_spread=energy,
        price=price,
        site=site,
    )
