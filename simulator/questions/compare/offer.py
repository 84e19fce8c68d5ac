"""An offer: a run on so many accelerators of one cluster, what it takes and costs.

To find one is for ``offers.py``, which searches; an answer that is there already is one as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from math import hypot, inf, isfinite, log
from typing import Any, ClassVar

from simulator.answers import encoded, plain
from simulator.cost.step import Estimate
from simulator.economics.energy import co2_kg
from simulator.economics.planning_factor import UNKNOWN, PlanningFactor, Span, quantile
from simulator.economics.price import Price
from simulator.economics.quotes import Quote
from simulator.evidence.card import Card
from simulator.files import Figure
from simulator.goal import CONFIDENCE, Goal
from simulator.planner.answer_evidence import scenario_evidence
from simulator.records import dataclass
from simulator.scenario import Scenario
from simulator.search.best_layout import BestLayout, factor_of
from simulator.search.certainty import Certainty
from simulator.search.checkpoints import Checkpoint, checkpoints
from simulator.search.defaults import layout_fields
from simulator.search.outcome import GoalChances, Outcome, goal_chances
from simulator.search.with_failures import never_finishes

_MONTH_DAYS = 365.25 / 12.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What a decision is made by, beside the scenario."""

    KEYS: ClassVar[tuple[str, ...]] = ("deadline_days", "budget_usd", "confidence", "prices")

    deadline_days: float | None = None
    budget_usd: float | None = None
    confidence: float = CONFIDENCE
    """Chance with which deadline and budget must be met."""
    prices: Mapping[str, float] = field(default_factory=dict)
    """USD of an accelerator's hour, by cluster; ``*`` for those that are not named."""
    region: str | None = None
    """Where the electricity comes from; None: as the site of the price says."""
    allow_tight: bool = False
    """Whether offers whose memory is TIGHT stand among those that FIT (`[search]`)."""
    quote: Quote | None = None
    """Row of a table of offers whose price is paid."""

    def price_of(self, scenario: Scenario) -> Price:
        """Return the price of a scenario's cluster: the one given, else the scenario's."""
        cluster = scenario.cluster
        price = scenario.tariff.price
        if self.quote is not None:
            return self.quote.price(price.site)
        given = self.prices.get(cluster.name, self.prices.get("*"))
        if given is None:
            return price
        figure = Figure(given, "measured", "given", "", None)
        typed: dict[str, Any] = {"name": "given", "provider": "", "base": "typed", "note": ""}
        return replace(price, usd_per_gpu_hour=figure, included_power=True, **typed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """One cluster and size. What is not known, or of a run that cannot be, is None."""

    KEYS: ClassVar[tuple[str, ...]] = (
        *("cluster", "accelerator", "gpus", "feasible", "reason?", "software?", "global_batch"),
        *("layout", "step_time_s", "tokens_per_s_per_gpu", "mfu", "*totals", "days_ideal"),
        *("co2_kg", "goodput", "checkpoint"),
        *("planning_factor", "planned_days", "planned_usd", "planned_kwh", "deadline_chance"),
        "budget_chance",
        *("deadline_chance_without_factor", "budget_chance_without_factor"),
        *("memory_headroom", "verdict=memory_verdict", "memory_total_bytes", "memory_p90_bytes"),
        *("usable_bytes", "tight_alternative", "usd_per_gpu_hour", "price", "batch_divides"),
        *("next_good_gpus=next_good", "evidence", "offer=quote", "beside_usd"),
    )

    cluster: str
    accelerator: str = ""
    gpus: int
    feasible: bool
    """Some layout can run and fits."""
    reason: str = ""
    """Why none can."""
    software: str = ""
    global_batch: int | None = None
    """Sequences of a step: the best where the goal leaves it open."""
    layout: dict[str, Any] | None = None
    described: str = ""
    """The layout in a few words."""
    step_time_s: float | None = None
    tokens_per_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    mfu: float | None = None
    days: Span | None = None
    usd: Span | None = None
    kwh: Span | None = None
    days_ideal: float | None = None
    """Steps x step time."""
    ideal: bool = False
    """Whether goodput and planning factor are left out of all totals."""
    co2_kg: float | None = None
    goodput: float | None = None
    planning_factor: PlanningFactor | None = None
    """What published runs took on top; None where everything is to be ideal."""
    planned_days: Span | None = None
    planned_usd: Span | None = None
    planned_kwh: Span | None = None
    """With it: what deadline, budget and their chances are held against."""
    deadline_chance: float | None = None
    budget_chance: float | None = None
    deadline_chance_without_factor: float | None = None
    budget_chance_without_factor: float | None = None
    memory_headroom: float | None = None
    """Share of usable memory that stays free on the worst rank."""
    memory_verdict: str | None = None
    """FITS, or TIGHT where the P90 of its memory is more than is usable and no layout FITS, or one
    that is TIGHT was allowed."""
    memory_total_bytes: float | None = None
    memory_p90_bytes: float | None = None
    usable_bytes: float | None = None
    tight_alternative: dict[str, Any] | None = None
    """A layout that is faster, if a trial run shows that it fits: in words, its step, and how much
    of the time it saves."""
    evidence: Card | None = None
    price: dict[str, Any] | None = None
    """What an hour costs, who asks it and how sure that is (``Price.origin``)."""
    price_name: str = ""
    """Name of the price profile, or ``given``."""
    quote: Quote | None = None
    """Row of a table of offers that its price is of."""
    quoted: str = ""
    """Provider, instance and term of it; blank where the price is not of one."""
    checkpoint: Checkpoint | None = None
    """What the run writes to go on from; None on servers of several kinds."""
    rented_together: int = 1
    """Accelerators that are let as one (``Cluster.rented_together``)."""
    paid_gpus: int = 0
    """Accelerators that are paid for, hot spares and whole racks included."""
    usd_per_gpu_hour: float | None = None
    batch_divides: bool = True
    """Some degrees split the batch evenly (``gpu_counts.py``)."""
    next_good: int | None = None
    """The next larger count that the batch divides, where this one is not."""
    layouts: int = 0
    """Layouts that were searched."""

    @property
    def totals(self) -> dict[str, Any]:
        """What the run takes, as JSON says it."""
        return {name: getattr(self, name) or UNKNOWN for name in ("days", "usd", "kwh")}

    @property
    def short(self) -> dict[str, Any]:
        """What a view says of it."""
        names = ("cluster", "gpus", "step_time_s", "days_p50=days.p50", "usd_p50=usd.p50")
        return encoded(self, names)

    @property
    def named(self) -> str:
        """The cluster, or the offer of a table that its price is of."""
        return self.quoted or self.cluster

    @property
    def of_racks(self) -> bool:
        """Whether more is paid for than the run and its spares hold: racks are let whole."""
        return self.rented_together > 1

    @property
    def beside_usd(self) -> dict[str, float] | None:
        """What an offer asks beside the hours: one checkpoint kept for the run, and taken away.

        None where it says neither.
        """
        quote, days, saved = self.quote, self.days_to_plan, self.checkpoint
        if quote is None or days is None or saved is None:
            return None
        asked = {
            "storage": (quote.storage_usd_per_gb_month, days.p50 / _MONTH_DAYS),
            "egress": (quote.egress_usd_per_gb, 1.0),
        }
        beside = {
            name: usd * saved.bytes / 1e9 * times
            for name, (usd, times) in asked.items()
            if usd is not None
        }
        return beside or None

    @property
    def days_to_plan(self) -> Span | None:
        """Days with the planning factor, where there is one."""
        return self.planned_days or self.days

    @property
    def usd_to_plan(self) -> Span | None:
        """Money with the planning factor, where there is one."""
        return self.planned_usd or self.usd

    @property
    def chance(self) -> float | None:
        """The lesser chance of those to meet deadline and budget; None where neither is asked."""
        known = [x for x in (self.deadline_chance, self.budget_chance) if x is not None]
        return min(known, default=None)

    @property
    def assumed_price(self) -> bool:
        """Whether its money rests on a price that nobody quoted."""
        return self.price is not None and self.price["grade"] == "assumed"

    def meets(self, asked: Asked) -> bool:
        """Whether deadline and budget are met with the confidence that is asked for."""
        return self.feasible and max(excesses(self, asked).values(), default=0.0) <= 1.0

    def risky(self, asked: Asked) -> bool:
        """Whether it may run out of memory, and nobody allowed that."""
        return self.memory_verdict == "TIGHT" and not asked.allow_tight

    @property
    def note(self) -> str:
        """What has to be known about it, in a sentence; empty where nothing."""
        if not self.feasible:
            return self.reason
        if self.batch_divides:
            return ""
        free = f"; over {self.next_good:,} GPUs it divides without" if self.next_good else ""
        return f"the batch divides only with uneven stages or context parallelism{free}"


def excesses(row: Offer, asked: Asked) -> dict[str, float]:
    """By which factor an offer takes more than is asked for, ``time`` and ``money``; inf: unknown.

    Of limits that nobody asked for there is none; days and money hold the planning factor.
    """
    limits = {
        "time": (row.days_to_plan, asked.deadline_days),
        "money": (row.usd_to_plan, asked.budget_usd),
    }
    return {
        name: span.at(asked.confidence) / limit if span is not None else inf
        for name, (span, limit) in limits.items()
        if limit is not None
    }


def nearest(rows: Iterable[Offer], asked: Asked) -> Offer | None:
    """Return the offer that misses what is asked by the least factor, or meets it by the most."""
    able = [row for row in rows if row.feasible]
    return min(able, key=lambda row: max(excesses(row, asked).values(), default=1.0), default=None)


def asked_of(answer: BestLayout) -> Asked:
    """Deadline and budget of an answer, to be met with the usual confidence."""
    goal, tight = answer.scenario.goal, answer.scenario.allow_tight
    return Asked(
        deadline_days=goal.deadline_days,
        budget_usd=goal.budget_usd,
        confidence=CONFIDENCE,
        allow_tight=tight,
    )


def offer_of_answer(answer: BestLayout, asked: Asked) -> Offer:
    """The first layout of an answer as an offer, on the cluster and size of its scenario."""
    made, first = answer.scenario, [0]
    empty = Offer(
        cluster=str(made.document.get("cluster", {}).get("name", made.cluster.name)),
        accelerator=made.cluster.accelerator.name,
        gpus=made.cluster.gpus,
        feasible=False,
        software=made.software.name,
        global_batch=made.workload.recipe.global_batch,
    )
    best, result = answer.estimate.take(first), answer.outcome.take(first)
    return filled(empty, made, best, result, asked, answer.certainty.take(first))


def filled(
    empty: Offer,
    scenario: Scenario,
    best: Estimate,
    result: Outcome,
    asked: Asked,
    sure: Certainty,
) -> Offer:
    """Write down what the best layout takes."""
    cluster, price = scenario.cluster, result.price
    if reason := never_finishes(result, scenario):
        return replace(empty, reason=reason)
    days, usd, kwh = _totals(best, result, sure)
    factor = factor_of(scenario)
    planned_days, planned_usd, planned_kwh = _planned(best, result, sure, factor)
    free = 1.0 - float(best.memory_total_bytes[0]) / float(best.usable_bytes)
    return replace(
        empty,
        **of_run(result, scenario),
        layout=layout_fields(scenario, best.layouts),
        described=best.layouts.describe(),
        step_time_s=float(best.step_time_s[0]),
        days=days,
        usd=usd,
        kwh=kwh,
        co2_kg=co2_kg(kwh.p50, asked.region or result.site.region) if kwh else None,
        planning_factor=factor,
        planned_days=planned_days,
        planned_usd=planned_usd,
        planned_kwh=planned_kwh,
        **_chances(goal_chances(best.step_time_s, result, sure, goal_of(scenario, asked), factor)),
        memory_headroom=free,
        memory_verdict=best.verdict_word(),
        memory_total_bytes=float(best.memory_total_bytes[0]),
        memory_p90_bytes=plain(best.memory_p90_bytes[0]),
        usable_bytes=float(best.usable_bytes),
        evidence=scenario_evidence(scenario, best, result),
        price=price.origin,
        price_name=price.name,
        paid_gpus=_paid(result),
        checkpoint=checkpoints(scenario, best, result.real)[0],
        rented_together=cluster.rented_together,
        usd_per_gpu_hour=_number(price.usd_per_gpu_hour),
    )


def of_run(result: Outcome, scenario: Scenario) -> dict[str, Any]:
    """What an offer takes of its run as it is, servers of one kind or of several."""
    rates = ("tokens_per_s", "tokens_per_s_per_gpu", "mfu", "goodput")
    return {
        "feasible": True,
        **{name: float(getattr(result, name)[0]) for name in rates},
        "days_ideal": plain(result.days_ideal[0]),
        "ideal": scenario.goal.ideal,
    }


def _totals(
    best: Estimate, result: Outcome, sure: Certainty
) -> tuple[Span | None, Span | None, Span | None]:
    """Days, USD and kWh of the whole run, with the spread of time, price and power."""
    time = log(float(sure.p90_s[0]) / float(best.step_time_s[0])) / quantile(0.9)

    def span(value: float, spread: float = 0.0) -> Span | None:
        return Span(p50=value, log_spread=hypot(time, spread)) if isfinite(value) else None

    happens = float(result.run_spread[0])
    days = span(float(result.days[0]), happens)
    usd = span(float(result.usd[0]), hypot(happens, float(result.usd_spread[0])))
    return days, usd, span(float(result.kwh[0]), hypot(happens, float(result.kwh_spread[0])))


def _planned(
    best: Estimate, result: Outcome, sure: Certainty, factor: PlanningFactor | None
) -> tuple[Span | None, ...]:
    """Days, USD and kWh with the planning factor; None without one."""
    if factor is None:
        return None, None, None
    totals = _totals(best, result, sure.planned(best.step_time_s, factor))

    def over(span: Span | None) -> Span | None:
        return replace(span, p50=factor.value * span.p50) if span is not None else None

    return tuple(over(span) for span in totals)


def goal_of(scenario: Scenario, asked: Asked) -> Goal:
    """The scenario's goal with what is asked for."""
    late, dear = asked.deadline_days, asked.budget_usd
    return replace(scenario.goal, deadline_days=late, budget_usd=dear)


def _chances(chances: GoalChances) -> dict[str, Any]:
    """Chances of one layout by the names that an offer has for them; None where there is none."""
    names = {
        "deadline_chance": chances.deadline,
        "budget_chance": chances.budget,
        "deadline_chance_without_factor": chances.deadline_without_factor,
        "budget_chance_without_factor": chances.budget_without_factor,
    }
    return {name: float(x[0]) if isfinite(x[0]) else None for name, x in names.items()}


def _paid(result: Outcome) -> int:
    """Accelerators that are paid for; 0 where the length of the run is not known."""
    hours = 24.0 * float(result.days[0])
    return round(float(result.gpu_hours[0]) / hours) if isfinite(hours) and hours > 0.0 else 0


def _number(figure: Figure | None) -> float | None:
    return None if figure is None else float(figure)
