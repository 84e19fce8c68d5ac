"""Numbers first, then ink: every table and picture of the report as plain records.

Pages, pictures and tests read these; nothing here draws. Times are in seconds, sizes in bytes; a
value that does not exist (days of a run of unknown length) is None, never NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from simulator.cost.estimate import Estimate
from simulator.cost.rank_memory import rank_memory
from simulator.cost.step import evaluate
from simulator.economics.price import Price
from simulator.events.played import SimulatedStep
from simulator.evidence.card import Card
from simulator.planner.answer_evidence import UsedFigure, used_figures
from simulator.planner.assumptions import assumption_lines, bearing_defaults
from simulator.planner.fitting import StageMemory, stage_memory
from simulator.planner.layout_row import LayoutRow, layout_rows
from simulator.planner.movers import Mover, movers
from simulator.planner.plan import Plan
from simulator.planner.sensitivity import binding, memory_margin, sensitivity
from simulator.planner.simulated import played
from simulator.planner.variants import Variant, other_trainings
from simulator.records import dataclass
from simulator.report.comparison import TimeBar, TimeChange, time_bars, time_changes, why_it_wins
from simulator.report.decision import Asked, Offer, Option, three_options
from simulator.report.report_identity import question
from simulator.report.wording import (
    assumed_words,
    energy_words,
    goodput_words,
    hours_words,
    idle_words,
    length_words,
    planned_words,
    played_words,
    price_words,
    verdict_sentences,
)
from simulator.scenario import Scenario
from simulator.search.allowed import with_allowed
from simulator.search.explore import fastest_of_pairs
from simulator.search.outcome import Outcome
from simulator.units import DAY_S, HOUR_S, show_count

_LEAST_LOSS = 5e-5
"""Share of the wall time that is worth a line."""

_HOURS = DAY_S / HOUR_S
_LEAST_COST = 1e-4
"""Parts of the money below this share are left out."""

_FRONT = 8
"""Layouts of the Pareto front in its table."""

TOP = 20
"""Rows of the table of layouts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RefinedRow:
    """One layout that was played on discrete events."""

    layout: str
    step_time_s: float
    closed_form_s: float
    place: int
    """By the closed form, from 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CostLine:
    """One part of the money; all parts add up to it."""

    what: str
    amount: str
    usd: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryReport:
    """Memory of every pipeline rank against the two HBM lines."""

    stages: list[StageMemory]
    usable_bytes: float
    capacity_bytes: float
    advice: str = ""
    """What a TIGHT layout would bring, or what FITS where the best is TIGHT."""

    @property
    def kinds(self) -> list[str]:
        """Kinds that take any memory, in the order in which they are stacked."""
        names = list(self.stages[0].memory_bytes)
        return [k for k in names if any(stage.memory_bytes[k] > 0 for stage in self.stages)]


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchStatistics:
    """What the search saw."""

    layouts: int
    evaluated: int
    feasible: int
    dropped: dict[str, int]
    """Layouts dropped by reason, most first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanNumbers:
    """Everything that the report of a plan shows."""

    title: str
    question: str
    """A word for what was asked (``report_identity.py``)."""
    job: str
    """The whole job in one line: model, tokens, batch, types, software, machines, price, goal."""
    model: str
    cluster: str
    accelerator: str
    gpus: int
    software: str
    deadline_days: float | None
    budget_usd: float | None
    layouts: list[LayoutRow]
    """Best first; the first is the verdict."""
    front: list[LayoutRow]
    """Layouts that no other beats, fastest first."""
    costs: list[CostLine]
    """Parts of the best layout's money; empty where it is not known."""
    price: str
    """What an hour costs, and how sure that is."""
    planned: str
    """Days and money with what published runs took on top; blank without a length."""
    hours: str
    """GPU-hours, which GPUs beside the run's are paid for, energy and its CO2."""
    tied: int
    """How many leading layouts cannot be told apart, more than `layouts` perhaps."""
    memory: MemoryReport
    bars: list[TimeBar]
    changes: list[TimeChange]
    reasons: list[str]
    """Why the best layout wins, one sentence for each other bar."""
    peak_flop_per_s: float
    """Dense bf16 of a GPU: what MFU is a share of."""
    degrees: list[DegreeCell]
    """The fastest step of each pair of tp and pp; empty where one is pinned."""
    movers: list[Mover]
    """What moves money and days most."""
    offers: list[Offer]
    """The plan's own answer, and the same run on other GPUs and sizes."""
    options: list[Option]
    """The three to choose among."""
    asked: Asked
    upgrades: list[Variant]
    others: list[Variant]
    """What other trainings take that `[search] allow` names, fastest first."""
    binding: list[str]
    run: str
    """Goodput of the real run, and what takes most of the rest."""
    losses: list[tuple[str, float]]
    """Shares of the wall time that do not train, the largest first."""
    summary: list[str]
    """The verdict in sentences."""
    assumptions: list[str]
    """Those that change the answer most, with the price of the other choice."""
    defaults: list[str]
    """What nobody chose and bears on the verdict, with the price of its alternative."""
    search: SearchStatistics
    evidence: Card
    assumed: list[UsedFigure]
    step: SimulatedStep
    """The best layout's step, played on discrete events."""
    played: str
    """Its time beside the closed form's, and where they differ."""
    refined: list[RefinedRow]
    """Layouts that --refine played, best first."""

    @property
    def own(self) -> Offer:
        """The verdict as an offer among others."""
        return self.offers[0]

    @property
    def best(self) -> LayoutRow:
        """The verdict."""
        return self.layouts[0]


def collect(
    plan: Plan,
    *,
    offers: Sequence[Offer],
    asked: Asked,
    upgrades: list[Variant] | None = None,
) -> PlanNumbers:
    """Gather every number of the report; upgrades and pairs of degrees are searched here.

    Parameters
    ----------
    offers : sequence of Offer
        The plan's own answer first, then other GPUs and sizes.
    asked : Asked
        Limits that options have to meet.
    upgrades : list of Variant, optional
        What ``sensitivity(plan)`` gave, if it was asked for already.
    """
    scenario = plan.scenario
    bars = time_bars(plan)
    upgrades = sensitivity(plan) if upgrades is None else upgrades
    peaks = scenario.cluster.accelerator.matrix_flop_per_s
    step = played(plan, 0)
    others = bearing_defaults(scenario, plan.estimate.layouts)
    gpus, model = scenario.cluster.gpus, scenario.workload.architecture.name
    return PlanNumbers(
        title=f"{model} on {gpus:,} GPU{'s' if gpus > 1 else ''} of {scenario.cluster.name}",
        question=question(scenario, played=0 if plan.refined is None else len(plan.refined.steps)),
        job=job_line(scenario, plan.outcome.price),
        model=model,
        cluster=scenario.cluster.name,
        accelerator=scenario.cluster.accelerator.name,
        gpus=gpus,
        software=f"{scenario.software.name} ({scenario.software.release})",
        deadline_days=scenario.goal.deadline_days,
        budget_usd=scenario.goal.budget_usd,
        layouts=layout_rows(plan, range(min(TOP, len(plan.estimate)))),
        front=layout_rows(plan, [int(i) for i in plan.pareto[:_FRONT]]),
        costs=cost_lines(plan.outcome, gpus),
        price=price_words(plan.outcome),
        planned=planned_words(plan),
        hours=f"{hours_words(plan.outcome, gpus)}, {energy_words(plan.outcome)}",
        tied=plan.certainty.tied,
        memory=memory_report(plan),
        bars=bars,
        changes=time_changes(bars),
        reasons=[*why_it_wins(bars), *_no_naive(plan)],
        peak_flop_per_s=float(peaks.get("bf16", max(peaks.values()))),
        degrees=degree_map(plan),
        movers=movers(plan, upgrades),
        offers=list(offers),
        options=three_options(offers, asked, query=offers[0]),
        asked=asked,
        upgrades=upgrades,
        others=other_trainings(plan.scenario),
        binding=binding(plan),
        run=goodput_words(plan.outcome),
        losses=_losses(plan),
        summary=verdict_sentences(plan),
        assumptions=assumption_lines(plan, brief=True),
        defaults=[one.sentence(bars[0].step_time_s) for one in others],
        search=search_statistics(plan),
        evidence=plan.evidence,
        assumed=[figure for figure in _used(plan) if figure.grade == "assumed"],
        step=step,
        played=played_words(step.terms_s, _closed_terms(plan)),
        refined=refined_rows(plan),
    )


def _closed_terms(plan: Plan) -> dict[str, float]:
    """Seconds of each term of the best layout by the closed form."""
    best, made = plan.estimate.layouts[:1], plan.scenario
    form = evaluate(best, made.workload, made.cluster, made.software)
    return {name: float(column[0]) for name, column in form.terms_s.items()}


def _used(plan: Plan) -> list[UsedFigure]:
    scenario, result = plan.scenario, plan.outcome
    recipe, software = scenario.workload.recipe, scenario.software
    return used_figures(recipe, scenario.cluster, software, result.price, result.site)


def refined_rows(plan: Plan) -> list[RefinedRow]:
    """Tabulate what --refine played, best first; empty without it."""
    if plan.refined is None:
        return []
    columns = (plan.refined.steps, plan.refined.closed_form_s, plan.refined.places)
    return [
        RefinedRow(
            layout=plan.estimate.layouts.describe(i),
            step_time_s=step.step_time_s,
            closed_form_s=float(closed_s),
            place=int(place) + 1,
        )
        for i, (step, closed_s, place) in enumerate(zip(*columns, strict=True))
    ]


def _losses(plan: Plan) -> list[tuple[str, float]]:
    real = plan.outcome.real
    found = [] if real is None else real.largest_losses(0, len(real.phases))
    return [(name, share) for name, share in found if share > _LEAST_LOSS]


def job_line(scenario: Scenario, price: Price) -> str:
    """Say what is asked about in one line."""
    arch, recipe = scenario.workload.architecture, scenario.workload.recipe
    cluster = scenario.cluster
    size = show_count(arch.parameters)
    tokens = length_words(recipe)
    left = "".join(f"; [{name}] not in these figures" for name in scenario.elsewhere)
    left += "".join(
        f"; {words}" for words in (assumed_words(scenario), idle_words(scenario)) if words
    )
    return (
        f"{arch.name} ({size} parameters), {tokens}, {recipe.global_batch:,} sequences of"
        f" {recipe.sequence_length:,}, {recipe.precision}, {recipe.optimizer};"
        f" {scenario.software.name} on {cluster.gpus:,} x {cluster.accelerator.name}"
        f" ({cluster.name}), {price.words()}; best by {scenario.goal.minimize}{left}"
    )


def cost_lines(outcome: Outcome, gpus: int, i: int = 0) -> list[CostLine]:
    """Split the money of a layout; nothing where tokens or price are not known.

    Hours of the ideal run are steps x step time; what the real run takes longer is lost to
    failures, checkpoints and slow steps; what is paid beyond `gpus` waits as hot spares, or is the
    rest of racks that are let whole.
    """
    usd, rate = float(outcome.usd[i]), outcome.price.usd_per_gpu_hour
    if rate is None or not math.isfinite(usd):
        return []
    ideal = float(outcome.days_ideal[i]) * _HOURS * gpus
    held = float(outcome.days[i]) * _HOURS * gpus
    paid, real = float(outcome.gpu_hours[i]), outcome.real
    spare = 0.0 if real is None else float(real.hot_spares[i]) * outcome.gpus_per_server
    waiting = held / gpus * spare
    parts = (
        ("training", ideal),
        ("failures, checkpoints, restarts and slow steps", held - ideal),
        ("hot spares", waiting),
        ("rest of racks that are let whole", paid - held - waiting),
    )
    lines = [
        CostLine(what=what, amount=f"{show_count(hours)} GPU-hours", usd=hours * float(rate))
        for what, hours in parts
    ]
    power = usd - float(outcome.gpu_hours[i]) * float(rate)
    lines.append(
        CostLine(what="electricity", amount=f"{show_count(float(outcome.kwh[i]))} kWh", usd=power)
    )
    return [line for line in lines if line.usd > _LEAST_COST * usd]


def memory_report(plan: Plan, index: int = 0) -> MemoryReport:
    """Break the memory of one of the plan's layouts down by pipeline rank and kind."""
    scenario = plan.scenario
    row = plan.estimate.layouts[index]
    ranks = rank_memory(row, scenario.workload, scenario.cluster, scenario.software)
    memory = scenario.cluster.accelerator.memory
    return MemoryReport(
        stages=stage_memory(ranks, float(memory.usable_bytes)),
        usable_bytes=float(memory.usable_bytes),
        capacity_bytes=float(memory.capacity_bytes),
        advice=memory_margin(plan) if index == 0 else "",
    )


def search_statistics(plan: Plan) -> SearchStatistics:
    """Count what the search enumerated, dropped and kept."""
    found = plan.found
    dropped = sorted(found.dropped.items(), key=lambda item: -item[1])
    return SearchStatistics(
        layouts=found.layouts,
        evaluated=found.evaluated,
        feasible=found.feasible,
        dropped=dict(dropped),
    )


def _no_naive(plan: Plan) -> list[str]:
    """Say that plain data parallelism is missing where it is."""
    if plan.naive is not None:
        return []
    gpus, batch = plan.scenario.cluster.gpus, plan.scenario.workload.recipe.global_batch
    because = (
        f"{batch:,} sequences do not divide over {gpus:,} GPUs" if batch % gpus else "software"
    )
    return [f"Data parallelism alone cannot run here ({because}), so it is not compared."]


_STAGES = (1, 2, 4, 8, 16)
"""Pipeline-parallel degrees of the map, beside that of the best layout."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DegreeCell:
    """One pair of degrees; without a step no layout runs and fits."""

    tp: int
    pp: int
    step_time_s: float | None = None
    verdict: str = "OOM"
    """FITS or TIGHT of its fastest layout."""
    layout: str = ""
    """In a few words."""


def degree_map(plan: Plan) -> list[DegreeCell]:
    """Search each pair of degrees that a server and the GPUs allow; nothing where one is pinned.

    Pairs among the plan's best layouts are known: the first of them is the fastest of its pair.
    The others are slower, and are searched without the walk from the best: half the time, for
    cells that are up to some 2 % too slow.
    """
    scenario, estimate = plan.scenario, plan.estimate
    pinned = with_allowed(scenario)
    if {"tp", "pp"} & set(pinned):
        return []
    gpus, server = scenario.cluster.gpus, scenario.cluster.node.accelerators
    stages = sorted({*_STAGES, int(estimate.layouts.pp[0])})
    pairs = [
        (1 << k, pp)
        for k in range(min(server, 8).bit_length())
        for pp in stages
        if gpus % ((1 << k) * pp) == 0 and pp <= scenario.workload.architecture.layers
    ]
    known: dict[tuple[int, int], DegreeCell] = {}
    by_step = sorted(range(len(estimate)), key=lambda i: float(estimate.step_time_s[i]))
    able = estimate.able(allow_tight=scenario.allow_tight)
    for i in by_step:
        pair = int(estimate.layouts.tp[i]), int(estimate.layouts.pp[i])
        if able[i] and pair not in known and plan.scenario.goal.minimize != "energy":
            known[pair] = _cell(pair, estimate, i)
    rest = [pair for pair in pairs if pair not in known]
    setting = scenario.workload, scenario.cluster, scenario.software
    tight, near = scenario.allow_tight, plan.found.near
    best = fastest_of_pairs(setting, pinned, rest, near=near, allow_tight=tight) if rest else []
    for pair, cell in zip(rest, best, strict=True):
        known[pair] = _cell(pair, cell, 0) if len(cell) else DegreeCell(tp=pair[0], pp=pair[1])
    return [known[pair] for pair in pairs]


def _cell(pair: tuple[int, int], estimate: Estimate, i: int) -> DegreeCell:
    return DegreeCell(
        tp=pair[0],
        pp=pair[1],
        step_time_s=float(estimate.step_time_s[i]),
        verdict=estimate.verdict_word(i),
        layout=estimate.layouts.describe(i),
    )
