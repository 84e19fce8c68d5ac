"""How many accelerators: the fewest for a date, the soonest for a budget, the most that both buy.

Sizes that are tried do not depend on the limits, so that a later date or more money never gives a
worse answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

from simulator import catalogue
from simulator.answers import SCENARIO, Answer, encoded
from simulator.cost.operators.model_flop import step_flop
from simulator.economics.energy import co2_kg
from simulator.economics.scaling_law import USUAL_LAW, Optimum, ScalingLaw, load_law
from simulator.errors import InputError, problem
from simulator.files import read_profile
from simulator.frames import DataFrame, frame_of_rows
from simulator.hardware.cluster import ClusterProfile, load_cluster
from simulator.planner.assumptions import Assumption
from simulator.planner.prediction import refuse_tables
from simulator.questions.compare.answer import offer_row, own_cluster, own_clusters
from simulator.questions.compare.gpu_counts import batch_divides, ladder, whole_servers
from simulator.questions.compare.many_searches import cores, done_in_order
from simulator.questions.compare.offer import Asked, Offer, nearest
from simulator.questions.compare.offer_sentences import price_words
from simulator.questions.compare.offers import offer_assumptions, offer_of
from simulator.records import dataclass
from simulator.report.wording import AT_ASSUMED
from simulator.scenario import Scenario
from simulator.search.candidates import widest_tp
from simulator.units import DAY_S

LARGEST = 16_384
"""Most accelerators that are tried, unless the cluster has fewer or a range is given."""

_PER_OCTAVE = 4
"""Sizes tried in every doubling; those that the batch does not divide are left out."""

_BETWEEN = 8
"""Most sizes tried between the smallest of these that is in time and the one before it: the fewest
in time may be one that the batch divides over with uneven stages alone."""


_MUCH = 0.5
"""Where the fewest in time cost less than this of the budget, it is said what the rest buys."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compute:
    """What the limits buy on one offer, with the confidence that was asked for."""

    KEYS: ClassVar[tuple[str, ...]] = (
        *("gpus=offer.gpus", "days", "binding", "model_flop=flop", "most_tokens=tokens", "loss"),
        *("optimal_parameters=optimum.parameters", "optimal_tokens=optimum.tokens"),
        *("optimal_loss=optimum.loss", "law"),
    )

    offer: Offer
    days: float
    """For which they are held: the deadline, or what the budget pays if that is less."""
    binding: str
    """``deadline`` or ``budget``: which of them is used up."""
    tokens: float
    """Most tokens that the model of the scenario sees in them."""
    flop: float
    """Model FLOPs of the same, which any model of that MFU has."""
    loss: float
    """Of the model after these tokens, by the law."""
    optimum: Optimum
    """The model that makes most of the same FLOPs, by the law."""
    law: ScalingLaw


@dataclass(frozen=True, kw_only=True, repr=False)
class Sized(Answer):
    """The answer to how many."""

    COMMAND: ClassVar[str] = "size"
    KEYS: ClassVar[tuple[str, ...]] = (
        *SCENARIO,
        *("asked=limits", "answer=met", "nearest=nearest_miss.short", "tried", "compute"),
        *("budget_left_usd", "budget_left_share", "budget_would_buy=larger.short"),
        *("assumptions", "caveats"),
    )

    scenario: Scenario
    asked: Asked
    question: str
    """``fewest`` for a date, ``soonest`` for a budget, ``given``: the size was."""
    answer: Offer | None
    """None where no size that was tried meets what is asked."""
    tried: tuple[Offer, ...]
    """Fewest accelerators first."""
    compute: Compute | None
    """None without a deadline or a budget, or where nothing can run."""
    larger: Offer | None = None
    """The largest size that was tried with what is left of the budget; None where nothing is."""

    @property
    def budget_left_usd(self) -> float | None:
        """What the answer leaves of the budget, with the confidence that was asked for."""
        budget, money = self.asked.budget_usd, self.answer and self.answer.usd_to_plan
        return budget - money.at(self.asked.confidence) if budget and money else None

    @property
    def budget_left_share(self) -> float | None:
        """The same over the budget."""
        left, budget = self.budget_left_usd, self.asked.budget_usd
        return None if left is None or budget is None else left / budget

    @cached_property
    def assumptions(self) -> list[Assumption]:
        """What the answer, or else the nearest, takes for granted and bears on it most."""
        row = self.answer or self.nearest
        return [] if row is None else offer_assumptions(self.scenario, row)

    @property
    def caveats(self) -> tuple[str, ...]:
        """Price, evidence, what is planned for, and which sizes were tried."""
        row = self.answer or self.nearest
        lines: list[str] = []
        if row is not None:
            lines += [f"USD per GPU-hour: {price_words(row)}"] if row.usd_per_gpu_hour else []
            lines += [AT_ASSUMED] * row.assumed_price
            lines += row.evidence.sentences()[:2] if row.evidence else []
            if row.planning_factor is not None:
                factor = row.planning_factor.sentence()
                lines.append(f"Plan for: {factor}. The limits are held to it.")
        if self.question != "given":
            lines.append(
                "Tried are powers of two, whole servers that the batch divides over, and others"
                " next below the answer, fewest first."
            )
        return tuple(lines)

    @property
    def line(self) -> str:
        """All of it in a few words."""
        found = "no size" if self.answer is None else f"{self.answer.gpus} GPUs"
        return f"{self.question}: {found}, {len(self.tried)} tried"

    def to_frame(self) -> DataFrame:
        """One row per size that was tried."""
        return frame_of_rows([offer_row(row) for row in self.tried])

    @property
    def limits(self) -> dict[str, Any]:
        """What was asked, as JSON says it."""
        names = ("deadline_days", "budget_usd", "prices")
        return {"question": self.question, **encoded(self.asked, names)}

    @property
    def met(self) -> dict[str, Any] | None:
        """The answer with the confidence that was asked for, as JSON says it."""
        if self.answer is None:
            return None
        return {**encoded(self.answer), "confidence": self.asked.confidence}

    @property
    def nearest_miss(self) -> Offer | None:
        """The nearest offer, where none is the answer."""
        return self.nearest if self.answer is None else None

    @property
    def nearest(self) -> Offer | None:
        """Where nothing meets what is asked, the offer that misses it by the least factor."""
        return nearest(self.tried, self.asked)


def size_run(
    scenario: Scenario,
    *,
    gpus: int | None = None,
    deadline_days: float | None = None,
    budget_usd: float | None = None,
    confidence: float = 0.9,
    prices: Mapping[str, float] | None = None,
    region: str | None = None,
    law: str = USUAL_LAW,
    largest: int | None = None,
    jobs: int | None = None,
) -> Sized:
    """Size a run on the scenario's cluster; servers of several kinds are taken as they are.

    Parameters
    ----------
    gpus : int, optional
        The size, where it is known: what it takes, and what the limits buy on it.
    deadline_days, budget_usd : float, optional
        In place of the scenario's own goal. A deadline asks for the fewest accelerators in time
        (and within the budget, if there is one), a budget alone for the soonest end (in time, if
        the scenario has a deadline).
    confidence : float
        Chance with which they must be met: 0.9 asks the P90.
    prices, region, jobs
        As in :func:`simulator.questions.compare.answer.compare_clusters`.
    law : str
        A scaling law, by name or path.
    largest : int, optional
        Most accelerators to try.

    Raises
    ------
    InputError
        If nothing is asked, what is asked makes no sense, or the run has embedding tables.
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
    chosen = load_law(law, where=scenario.where, field="law")
    _check(scenario, asked, gpus)
    rows: list[Offer] = []

    def search(sizes: Sequence[int]) -> Iterator[Offer]:
        name = scenario.cluster.name if scenario.cluster.kinds else own_cluster(scenario)
        for row in done_in_order(
            offer_of, [(scenario, name, size, asked) for size in sizes], jobs=jobs
        ):
            rows.append(row)
            yield row

    answer: Offer | None
    if gpus is not None or scenario.cluster.kinds:
        question, answer = "given", next(search([gpus or scenario.cluster.gpus]))
    elif asked.deadline_days is not None and (budget_usd is None or deadline_days is not None):
        question, answer = "fewest", _fewest(scenario, asked, search, largest, jobs)
    else:
        question, answer = "soonest", _soonest(scenario, asked, search, largest)
    larger = None
    if question == "fewest" and answer is not None:
        # several processes look further ahead than one: what is told is the same
        rows[:] = [row for row in rows if row.gpus <= answer.gpus]
        larger = _with_the_rest(scenario, answer, asked, search, largest)
    tried = tuple(sorted(rows, key=lambda row: row.gpus))
    compute = _compute(scenario, tried if answer is None else (answer,), asked, chosen)
    fits = answer if answer is not None and answer.meets(asked) else None
    return Sized(
        scenario=scenario,
        asked=asked,
        question=question,
        answer=fits,
        tried=tried,
        compute=compute,
        larger=larger,
    )


def _fewest(
    scenario: Scenario,
    asked: Asked,
    search: Callable[[Sequence[int]], Iterator[Offer]],
    largest: int | None,
    jobs: int | None,
) -> Offer | None:
    """The smallest size that is in time, and within the budget if there is one.

    One that FITS; where none of all sizes does, the smallest that is TIGHT.
    """
    sizes = _sizes(scenario, largest)
    least = _least(scenario, asked)
    ahead = [size for size in sizes if size >= least] or sizes[-1:]
    at_once = max(cores() if jobs is None else jobs, 1)
    found: Offer | None = None
    risky: list[Offer] = []
    while ahead and found is None:
        rows = [row for row in search(ahead[:at_once]) if row.meets(asked)]
        ahead = ahead[at_once:]
        risky += [row for row in rows if row.risky(asked)]
        found = next((row for row in rows if not row.risky(asked)), None)
    if found is None:
        return next(iter(risky), None)
    below = max((size for size in sizes if size < found.gpus), default=0)
    inside = [size for size in _between(scenario, below, found.gpus) if size >= least]
    good = (row for row in search(inside) if row.meets(asked) and not row.risky(asked))
    return next(good, found)


def _with_the_rest(
    scenario: Scenario,
    answer: Offer,
    asked: Asked,
    search: Callable[[Sequence[int]], Iterator[Offer]],
    largest: int | None,
) -> Offer | None:
    """The soonest end that the budget buys, where much of it is left.

    Money hardly depends on the size, so the largest comes first, then halves of it, until one is
    within the budget and a smaller one ends later.
    """
    money = answer.usd_to_plan
    if asked.budget_usd is None or money is None:
        return None
    if money.at(asked.confidence) > _MUCH * asked.budget_usd:
        return None
    ahead = [size for size in _sizes(scenario, largest) if size > answer.gpus]
    powers = [size for size in ahead if size & (size - 1) == 0] or ahead[-1:]
    soonest: Offer | None = None
    for size in powers[::-1]:
        row = next(search([size]))
        if soonest is not None and _days(row, asked) >= _days(soonest, asked):
            break
        soonest = row if row.meets(asked) else soonest
    return soonest


def _soonest(
    scenario: Scenario,
    asked: Asked,
    search: Callable[[Sequence[int]], Iterator[Offer]],
    largest: int | None,
) -> Offer | None:
    """The size with which the run ends first among those within the budget."""
    able = [row for row in search(_sizes(scenario, largest)) if row.meets(asked)]
    return min(able, key=lambda row: (row.risky(asked), _days(row, asked), row.gpus), default=None)


def _sizes(scenario: Scenario, largest: int | None) -> list[int]:
    """Sizes that are tried whatever is asked: powers of two, and what the batch divides between."""
    cluster = scenario.cluster
    most = min(largest or LARGEST, _offered(scenario) or LARGEST * 64)
    fine = ladder(1, most, cluster.node.accelerators, per_octave=_PER_OCTAVE)
    return [size for size in fine if size & (size - 1) == 0 or _is_good(scenario, size)]


def _offered(scenario: Scenario) -> int | None:
    """Most accelerators that the cluster has; None: no limit known."""
    path = catalogue.find("clusters", own_cluster(scenario))
    profile: ClusterProfile = read_profile(ClusterProfile, path, kind="clusters")
    return profile.largest


def _is_good(scenario: Scenario, size: int) -> bool:
    most_tp = widest_tp(scenario.cluster.node.scale_up.domain)
    return batch_divides(scenario.workload, size, most_tp)


def _between(scenario: Scenario, below: int, above: int) -> list[int]:
    """Whole servers between two sizes; where they are many, of those that the batch divides."""
    sizes = range(below + 1, above)
    per_server = scenario.cluster.node.accelerators
    whole = sorted({whole_servers(size, per_server) for size in sizes} & set(sizes))
    if len(whole) <= _BETWEEN:
        return whole
    return _thinned([size for size in whole if _is_good(scenario, size)])


def _thinned(sizes: list[int]) -> list[int]:
    """At most _BETWEEN of them, evenly spread."""
    if len(sizes) <= _BETWEEN:
        return sizes
    return [sizes[i * len(sizes) // _BETWEEN] for i in range(_BETWEEN)]


def _least(scenario: Scenario, asked: Asked) -> float:
    """Accelerators below which the run would need more than the peak rate to be in time."""
    steps, deadline = scenario.workload.recipe.steps, asked.deadline_days
    if steps is None or deadline is None or asked.confidence < 0.5:
        return 0.0
    rates = scenario.cluster.accelerator.matrix_flop_per_s
    recipe = scenario.workload.recipe
    peak = max(rates.values()) if recipe.is_quantised else rates[recipe.matrix_type]
    return step_flop(scenario.workload) * steps / (deadline * DAY_S * float(peak))


def _days(row: Offer, asked: Asked) -> float:
    return row.days_to_plan.at(asked.confidence) if row.days_to_plan else float("inf")


def _compute(
    scenario: Scenario, rows: Sequence[Offer], asked: Asked, law: ScalingLaw
) -> Compute | None:
    """What the limits buy on the offer that makes most of them."""
    purchases = [_bought(scenario, row, asked, law) for row in rows if row.feasible]
    known = [purchase for purchase in purchases if purchase is not None]
    return max(known, key=lambda one: one.tokens, default=None)


def _bought(scenario: Scenario, row: Offer, asked: Asked, law: ScalingLaw) -> Compute | None:
    """What the limits buy on one offer: the whole run's share that fits into them."""
    tokens = scenario.workload.recipe.tokens
    days, usd = row.days_to_plan, row.usd_to_plan
    if tokens is None or days is None:
        return None
    shares = {}
    if asked.deadline_days is not None:
        shares["deadline"] = asked.deadline_days / days.at(asked.confidence)
    if asked.budget_usd is not None and usd is not None:
        shares["budget"] = asked.budget_usd / usd.at(asked.confidence)
    if not shares:
        return None
    binding = min(shares, key=lambda name: shares[name])
    bought = shares[binding] * tokens
    recipe, arch = scenario.workload.recipe, scenario.workload.architecture
    flop = step_flop(scenario.workload) * bought / recipe.tokens_per_step
    return Compute(
        offer=row,
        days=shares[binding] * days.at(asked.confidence),
        binding=binding,
        tokens=bought,
        flop=flop,
        loss=law.loss(arch.active_parameters, bought),
        optimum=law.optimum(flop),
        law=law,
    )


def _check(scenario: Scenario, asked: Asked, gpus: int | None) -> None:
    """Refuse what makes no sense, all of it at once."""
    where, cluster, problems = scenario.where, scenario.cluster, []
    if cluster.kinds and gpus not in (None, cluster.gpus):
        rule = f"must be left out with cluster.groups, which are taken as they are, {cluster.gpus}"
        problems.append(problem(where, "gpus", rule, gpus))
    limits = (("deadline", asked.deadline_days), ("budget", asked.budget_usd))
    if gpus is None and not cluster.kinds and all(value is None for _, value in limits):
        problems.append(f"{where}: a deadline, a budget or a number of GPUs must be given")
    for name, value in limits:
        if value is not None and not 0.0 < value < float("inf"):
            problems.append(problem(where, name, "must be a positive number", value))
    if scenario.workload.recipe.tokens is None:
        problems.append(f"{where}: training.tokens: needed: how long the run is")
    if not 0.0 < asked.confidence < 1.0:
        problems.append(problem(where, "confidence", "must be between 0 and 1", asked.confidence))
    problems += _price_problems(scenario, asked, gpus)
    if asked.region is not None:
        try:
            co2_kg(1.0, asked.region, where=where)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)


def _price_problems(scenario: Scenario, asked: Asked, gpus: int | None) -> list[str]:
    """Prices of clusters that are not sized, and a budget where a cluster has none."""
    where, names = scenario.where, own_clusters(scenario)
    problems = [
        problem(where, "price", "must name the cluster", cluster, names)
        for cluster in asked.prices
        if cluster not in ("*", *names)
    ]
    made = list(scenario.cluster.kinds)
    if not made:
        try:
            made = [load_cluster(names[0], gpus or 1, where=where)]
        except InputError as error:
            return [*problems, *error.problems]
    if asked.budget_usd is None:
        return problems
    for cluster in made:
        if asked.price_of(replace(scenario, cluster=cluster)).usd_per_gpu_hour is None:
            rule = f"needs a price, and {cluster.name} has none: give --price USD or prices="
            problems.append(problem(where, "budget", rule, asked.budget_usd))
    return problems
