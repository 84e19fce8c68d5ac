"""One run on several clusters and sizes, and which of them to take.

At equal numbers of accelerators the fastest leads, at equal money the fastest that it buys, at an
equal deadline the cheapest that meets it; the Pareto front has what no other offer beats in all of
time, money, free memory and energy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from simulator.answers import SCENARIO, Answer, encoded
from simulator.economics.energy import co2_kg
from simulator.economics.planning_factor import Span
from simulator.economics.quotes import Quote
from simulator.errors import InputError, problem
from simulator.frames import DataFrame, frame_of_rows
from simulator.goal import CONFIDENCE
from simulator.hardware.cluster import load_cluster
from simulator.planner.assumptions import Assumption
from simulator.planner.plan import front
from simulator.planner.prediction import refuse_tables
from simulator.questions.compare.gpu_counts import parse_counts, whole_servers
from simulator.questions.compare.many_searches import done_in_order
from simulator.questions.compare.offer import Asked, Offer, nearest
from simulator.questions.compare.offers import at_price, offer_assumptions, offers_of
from simulator.records import dataclass
from simulator.report.decision import Option, best_offers, three_options
from simulator.scenario import Scenario

KNEE = 0.5
"""The knee is the last size before an added accelerator brings less than this share of one at the
smallest size."""

_OCTAVES = 2
"""Doublings below and above the scenario's own number that are compared unless sizes are given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """Sizes of one cluster that can run, fewest accelerators first."""

    KEYS: ClassVar[tuple[str, ...]] = (
        *("cluster", "gpus", "speedup", "mfu"),
        *("usd", "marginal", "knee_gpus=knee"),
    )

    cluster: str
    gpus: tuple[int, ...]
    speedup: tuple[float, ...]
    """Tokens/s over those of the smallest size."""
    mfu: tuple[float, ...]
    usd: tuple[float | None, ...]
    marginal: tuple[float, ...]
    """Tokens/s that an accelerator added since the size before brings, over what one has at the
    smallest size; 1 for the smallest."""
    knee: int | None
    """The last size before `marginal` falls below KNEE; None if it does not."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison(Answer):
    """Offers of all clusters and sizes, in the order in which they were asked for."""

    COMMAND: ClassVar[str] = "compare"
    KEYS: ClassVar[tuple[str, ...]] = (
        *SCENARIO,
        "asked",
        "rows",
        "*views",
        "assumptions",
        "caveats",
    )

    scenario: Scenario
    asked: Asked
    rows: tuple[Offer, ...]

    @property
    def line(self) -> str:
        """All of it in a few words."""
        clusters = len({row.cluster for row in self.rows})
        able = sum(row.feasible for row in self.rows)
        return f"{clusters} clusters, {len(self.rows)} offers, {able} can run"

    def to_frame(self) -> DataFrame:
        """One row per offer."""
        return frame_of_rows([offer_row(row) for row in self.rows])

    @property
    def views(self) -> dict[str, Any]:
        """Offers by their number in `rows`, where a view picks some, as JSON says them."""
        place = {id(row): i for i, row in enumerate(self.rows)}

        def chosen(rows: Sequence[Offer]) -> list[dict[str, Any]]:
            return [{"row": place[id(row)], **row.short} for row in rows]

        met = any(row.meets(self.asked) for row in self.rows)
        near = None if met else nearest(self.rows, self.asked)
        equal = self.at_equal_gpus().items()
        decision = {name: row and chosen([row])[0] for name, row in self.decision.items()}
        return {
            "decision": {"confidence": self.asked.confidence, **decision},
            "at_equal_gpus": [{"gpus": gpus, "rows": chosen(rows)} for gpus, rows in equal],
            "equal_budget_usd": self.budget_usd,
            "at_equal_budget": chosen(self.at_equal_budget()),
            "equal_deadline_days": self.deadline_days,
            "at_deadline": chosen(self.at_deadline()),
            "pareto": chosen(self.pareto()),
            "curves": self.curves(),
            "nearest": None if near is None else chosen([near])[0],
        }

    @property
    def options(self) -> list[Option]:
        """Soonest, safest and cheapest of the offers that keep deadline and budget."""
        return three_options(self.rows, self.asked)

    @property
    def feasible(self) -> list[Offer]:
        """Offers that can run."""
        return [row for row in self.rows if row.feasible]

    @property
    def decision(self) -> dict[str, Offer | None]:
        """Which to take: the cheapest, the soonest and the safest that meet what is asked.

        Each None where none does; what FITS before what is TIGHT. The safest has the best chance to
        meet what is asked, up to 99 %; of equal ones the smallest error to expect, then the most
        memory free. Where the cheapest has an assumed price, the cheapest of those that somebody
        quotes stands beside it.
        """
        able = [row for row in self.feasible if row.meets(self.asked)]
        able = [row for row in able if not self._risky(row)] or able
        best: dict[str, Offer] = best_offers(able) if able else {}
        cheapest, quoted = best.get("cheapest"), None
        if cheapest is not None and cheapest.assumed_price:
            paid = [row for row in able if row.usd and not row.assumed_price]
            quoted = min(paid, key=_usd, default=None)
        return {
            "cheapest": cheapest,
            "cheapest_quoted": quoted,
            "soonest": best.get("soonest"),
            "safest": best.get("safest"),
        }

    @property
    def recommended(self) -> Offer | None:
        """The cheapest that meets what is asked, the soonest where no price is known."""
        return self.decision["cheapest"] or self.decision["soonest"]

    @cached_property
    def assumptions(self) -> list[Assumption]:
        """What the offer to take, or else the nearest, takes for granted and bears on it most."""
        row = self.recommended or nearest(self.rows, self.asked)
        return [] if row is None else offer_assumptions(self.scenario, row)

    @property
    def caveats(self) -> tuple[str, ...]:
        """What it takes for granted, as ``offer_sentences.py`` words it."""
        words = import_module("simulator.questions.compare.offer_sentences").caveats_of
        return tuple(words(self))

    @property
    def reference(self) -> Offer | None:
        """The offer whose money and time stand for a budget and a deadline that nobody gave.

        The scenario's own cluster and size where it was compared and has a price, else the first
        with a price.
        """
        own = own_cluster(self.scenario), self.scenario.cluster.gpus
        mine = [row for row in self.feasible if (row.cluster, row.gpus) == own]
        priced = [row for row in self.feasible if row.usd is not None]
        paid = [row for row in mine if row.usd is not None]
        return next(iter([*paid, *priced, *mine, *self.feasible]), None)

    @property
    def budget_usd(self) -> float | None:
        """The budget, or what to plan for the reference (P50); None where it has no price."""
        if self.asked.budget_usd is not None:
            return self.asked.budget_usd
        chosen = self.reference
        money = None if chosen is None else chosen.usd_to_plan
        return None if money is None else money.p50

    @property
    def deadline_days(self) -> float | None:
        """The deadline, or what to plan for the reference (P50); None without tokens."""
        if self.asked.deadline_days is not None:
            return self.asked.deadline_days
        chosen = self.reference
        days = None if chosen is None else chosen.days_to_plan
        return None if days is None else days.p50

    def at_equal_gpus(self) -> dict[int, list[Offer]]:
        """By number of accelerators, offers from the fastest to the slowest."""
        sizes, risky = sorted({row.gpus for row in self.feasible}), self._risky
        of_size = {size: [row for row in self.feasible if row.gpus == size] for size in sizes}
        return {
            size: sorted(rows, key=lambda row: (risky(row), _step(row)))
            for size, rows in of_size.items()
        }

    def at_equal_budget(self) -> list[Offer]:
        """Of each cluster the fastest offer that the budget pays, fastest first."""
        limit = self.budget_usd
        if limit is None:
            return []
        chance = self.asked.confidence if self.asked.budget_usd is not None else 0.5
        asked = replace(self.asked, budget_usd=limit * _ROUND, deadline_days=None)
        return self._best(replace(asked, confidence=chance), _step)

    def at_deadline(self) -> list[Offer]:
        """Of each cluster the offer that is in time for least money, cheapest first."""
        limit = self.deadline_days
        if limit is None:
            return []
        chance = self.asked.confidence if self.asked.deadline_days is not None else 0.5
        asked = replace(self.asked, deadline_days=limit * _ROUND, budget_usd=None)
        return self._best(replace(asked, confidence=chance), _usd)

    def at_both(self) -> list[Offer]:
        """Of each cluster the cheapest offer that meets all that is asked."""
        return self._best(self.asked, _usd)

    def of_each_cluster(self) -> list[Offer]:
        """Of each cluster the cheapest offer that meets what is asked, else the cheapest."""
        met = self.at_both()
        rest = self._best(Asked(allow_tight=self.asked.allow_tight), _usd)
        return [*met, *(row for row in rest if row.named not in {best.named for best in met})]

    def _best(self, asked: Asked, key: Callable[[Offer], float]) -> list[Offer]:
        """Of each cluster the best that meets what is asked; what FITS before what is TIGHT."""

        def order(row: Offer) -> tuple[bool, float, int]:
            return self._risky(row), key(row), row.gpus

        able = [row for row in self.feasible if row.meets(asked)]
        offered = dict.fromkeys(row.named for row in able)
        best = [min((r for r in able if r.named == name), key=order) for name in offered]
        return sorted(best, key=order)

    def _risky(self, row: Offer) -> bool:
        return row.risky(self.asked)

    def pareto(self) -> list[Offer]:
        """Priced offers that none beats in all of time, money, free memory and energy."""
        able = [row for row in self.feasible if row.days and row.usd and row.kwh]
        able = [row for row in able if not self._risky(row)] or able
        if not able:
            return []
        values = np.array([_objectives(row) for row in able])
        return [row for row, kept in zip(able, front(values), strict=True) if kept]

    def curves(self) -> list[Curve]:
        """Speed-up, MFU and cost over the number of accelerators, a curve for each cluster."""
        names = dict.fromkeys(row.named for row in self.feasible)
        return [_curve([r for r in self.feasible if r.named == name]) for name in names]


def _usd(row: Offer) -> float:
    return row.usd.p50 if row.usd else float("inf")


_ROUND = 1.0 + 1e-9
"""The reference itself meets its own money and time, whatever the last bit says."""


def compare_clusters(
    scenario: Scenario,
    clusters: Sequence[str],
    counts: Sequence[int] | str | None = None,
    *,
    deadline_days: float | None = None,
    budget_usd: float | None = None,
    confidence: float = CONFIDENCE,
    prices: Mapping[str, float] | None = None,
    quotes: Sequence[Quote] = (),
    region: str | None = None,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Search the best layout of a run on every cluster and size.

    Parameters
    ----------
    scenario : Scenario
        The run; its own cluster counts only where it is among `clusters`, or where its servers are
        of several kinds: then it is compared first, at its own size.
    clusters : sequence of str
        Cluster profiles, by name or path.
    counts : sequence of int or str, optional
        Accelerators; as ``questions.compare.gpu_counts.parse_counts`` reads them. Ranges are
        rounded down to whole servers. Two octaves around the scenario's own number unless given;
        where its servers are of several kinds, those of each kind alone and all of them.
    deadline_days, budget_usd : float, optional
        In place of the scenario's own goal.
    confidence : float
        Chance with which they must be met, between 0 and 1.
    prices : mapping, optional
        USD of an accelerator's hour by cluster, ``*`` for the others.
    quotes : sequence of Quote, optional
        Rows of a table of offers (``economics/quotes.py``), each on its own cluster at its own
        price; of `clusters` those alone that an offer is put on.
    region : str, optional
        Where the electricity comes from, for its carbon; that of the site unless given.
    jobs : int, optional
        Processes; all cores unless given.
    progress : callable, optional
        Told how many offers are found, of how many.

    Raises
    ------
    InputError
        If a cluster is unknown, counts or limits make no sense, tokens are missing for them, or
        the run has embedding tables.
    """
    refuse_tables(scenario)
    goal = scenario.goal
    asked = Asked(
        deadline_days=goal.deadline_days if deadline_days is None else deadline_days,
        budget_usd=goal.budget_usd if budget_usd is None else budget_usd,
        confidence=confidence,
        prices=dict(prices or {}),
        region=region,
        allow_tight=scenario.allow_tight,
    )
    _check(scenario, clusters, asked)
    points = [
        (scenario, name, _sizes(scenario, name, counts), asked) for name in dict.fromkeys(clusters)
    ]
    if quotes:
        points = [
            (
                at_price(scenario, quote.usd_per_gpu_hour, quote.term),
                name,
                sizes,
                replace(asked, quote=quote),
            )
            for quote in quotes
            for _, name, sizes, _ in points
            if name == quote.cluster
        ]
    if scenario.cluster.kinds:
        points.insert(0, (scenario, scenario.cluster.name, [scenario.cluster.gpus], asked))
    rows, whole = list[Offer](), sum(len(sizes) for _, _, sizes, _ in points)
    for offers in done_in_order(offers_of, points, jobs=jobs):
        rows += offers
        if progress is not None:
            progress(len(rows), whole)
    return Comparison(scenario=scenario, asked=asked, rows=tuple(rows))


def own_cluster(scenario: Scenario) -> str:
    """Return the name or path by which a scenario names its cluster."""
    section = scenario.document.get("cluster", {})
    return str(section.get("name", scenario.cluster.name))


def first_that_holds(clusters: Sequence[str], gpus: int | None) -> str | None:
    """Return the first cluster that has so many accelerators: the one a run is described on.

    The first of all where none has; None where there are none.
    """
    for name in clusters:
        try:
            load_cluster(name, gpus or 1)
        except InputError:
            continue
        return name
    return next(iter(clusters), None)


def own_clusters(scenario: Scenario) -> list[str]:
    """Return what a scenario is compared on unless it is said: its cluster, or its kinds' ones."""
    groups = scenario.document.get("cluster", {}).get("groups", ())
    if not scenario.cluster.kinds:
        return [own_cluster(scenario)]
    return list(dict.fromkeys(str(group["name"]) for group in groups))


def default_counts(gpus: int) -> list[int]:
    """Sizes around the scenario's own: two doublings below and above."""
    sizes = {max(gpus >> k, 1) for k in range(1, _OCTAVES + 1)}
    return sorted(sizes | {gpus << k for k in range(_OCTAVES + 1)})


def _sizes(scenario: Scenario, name: str, counts: Sequence[int] | str | None) -> list[int]:
    """Sizes of one cluster; those of ranges are whole servers, and none is asked for twice."""
    per_server = load_cluster(name, 1, where=scenario.where).node.accelerators
    if counts is None and scenario.cluster.kinds:
        own = zip(own_clusters(scenario), scenario.cluster.gpus_by_kind, strict=True)
        return sorted({*(gpus for kind, gpus in own if kind == name), scenario.cluster.gpus})
    if counts is None:
        counts = default_counts(scenario.cluster.gpus)
    elif isinstance(counts, str):
        exact = {int(part) for part in counts.split(",") if part.strip().isdigit()}
        sizes = parse_counts(counts)
        return sorted({n if n in exact else whole_servers(n, per_server) for n in sizes})
    else:
        return parse_counts(",".join(map(str, counts)))
    return sorted({whole_servers(size, per_server) for size in counts})


def _check(scenario: Scenario, clusters: Sequence[str], asked: Asked) -> None:
    """Refuse what makes no sense, all of it at once."""
    problems = []
    where = scenario.where
    if not clusters:
        problems.append(f"{where}: clusters: at least one cluster must be given")
    for name in clusters:
        try:
            load_cluster(name, 1, where=where, field="clusters")
        except InputError as error:
            problems += error.problems
    for name, value in (("deadline", asked.deadline_days), ("budget", asked.budget_usd)):
        if value is not None and not 0.0 < value < float("inf"):
            problems.append(problem(where, name, "must be a positive number", value))
        elif value is not None and scenario.workload.recipe.tokens is None:
            problems.append(f"{where}: {name}: needs training.tokens, got {value}")
    if not 0.0 < asked.confidence < 1.0:
        problems.append(problem(where, "confidence", "must be between 0 and 1", asked.confidence))
    for name, price in asked.prices.items():
        field = "price" if name == "*" else f"price of {name}"
        if not 0.0 < price < float("inf"):
            problems.append(problem(where, field, "must be a positive number", price))
        if name != "*" and name not in clusters:
            problems.append(problem(where, "price", "must name a cluster", name, clusters))
    if asked.region is not None:
        try:
            co2_kg(1.0, asked.region, where=where)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)


def _step(row: Offer) -> float:
    assert row.step_time_s is not None
    return row.step_time_s


def _objectives(row: Offer) -> tuple[float, float, float, float]:
    """What is compared, each smaller where better."""
    assert row.days and row.usd and row.kwh and row.memory_headroom is not None
    return row.days.p50, row.usd.p50, -row.memory_headroom, row.kwh.p50


def _curve(rows: Sequence[Offer]) -> Curve:
    """The curve of one cluster."""
    rows = sorted(rows, key=lambda row: row.gpus)
    speed = [row.tokens_per_s or 0.0 for row in rows]
    first = speed[0] / rows[0].gpus
    marginal = [1.0]
    for before, row in pairwise(rows):
        gained = (row.tokens_per_s or 0.0) - (before.tokens_per_s or 0.0)
        marginal.append(gained / (row.gpus - before.gpus) / first)
    low = next((i for i, value in enumerate(marginal) if value < KNEE), None)
    return Curve(
        cluster=rows[0].named,
        gpus=tuple(row.gpus for row in rows),
        speedup=tuple(value / speed[0] for value in speed),
        mfu=tuple(row.mfu or 0.0 for row in rows),
        usd=tuple(row.usd.p50 if row.usd else None for row in rows),
        marginal=tuple(marginal),
        knee=None if low is None else rows[low - 1].gpus,
    )


_TOTALS = ("days", "usd", "kwh", "planned_days", "planned_usd", "planned_kwh")

_ROW = (
    *("cluster", "accelerator", "gpus", "feasible", "software", "global_batch", "step_time_s"),
    *("tokens_per_s_per_gpu", "mfu", "deadline_chance", "budget_chance", "co2_kg"),
    *("deadline_chance_without_factor", "budget_chance_without_factor"),
    *("days_ideal", "goodput", "memory_headroom", "verdict=memory_verdict"),
    *("memory_p90_bytes", "usable_bytes"),
    *("usd_per_gpu_hour", "note"),
    *(f"price_{name}=price.{name}" for name in ("provider", "term", "date", "grade", "base")),
    *("price_source=price.source", "paid_gpus"),
    *(f"{name}_{end}={name}.{end}" for name in _TOTALS for end in Span.KEYS),
    *("layout=described", "evidence=evidence.grade"),
)


def offer_row(row: Offer) -> dict[str, Any]:
    """One offer as the row of a table: numbers and words only."""
    return encoded(row, _ROW)
