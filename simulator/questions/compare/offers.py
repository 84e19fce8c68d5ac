"""An offer: the best layout of a run on so many accelerators of one cluster, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import hypot, isfinite, log
from typing import TYPE_CHECKING, Any

from simulator.answers import encoded
from simulator.cost.estimate import concatenate
from simulator.cost.step import Estimate
from simulator.economics.energy import co2_kg
from simulator.economics.planning_factor import PlanningFactor, Span, quantile
from simulator.errors import InfeasibleError, InputError
from simulator.hardware.cluster import load_cluster
from simulator.planner.assumptions import Assumption, assumptions
from simulator.planner.batch_choices import batches_of, with_critical_batch, with_sizes
from simulator.planner.plan import (
    FEW_TIGHT,
    KEEP_FOR_ENERGY,
    ranked,
    tight_alternative,
    tight_walked,
    walk_tight_together,
)
from simulator.planner.prediction import predict, refuse_tables
from simulator.questions.compare.gpu_counts import batch_divides, next_good
from simulator.questions.compare.offer import Asked, Offer, filled, goal_of, of_run
from simulator.scenario import Scenario, make_scenario
from simulator.search.best_layout import factor_of
from simulator.search.candidates import widest_tp
from simulator.search.certainty import certainty, likened_runs
from simulator.search.defaults import layout_fields, stated_layout
from simulator.search.explore import SearchResult
from simulator.search.fastest import KEEP, fastest, search_together
from simulator.search.with_failures import priced

if TYPE_CHECKING:
    from simulator.planner.mixed_plan import MixedOption


def on_cluster(scenario: Scenario, name: str, gpus: int) -> Scenario:
    """Put a scenario on so many accelerators of another cluster.

    Degrees that follow from the number of accelerators (dp, shard_group) are set free; software
    that does not run there gives way to what usually does. Its own servers of several kinds stay
    as they are.

    Raises
    ------
    InputError
        If the cluster is unknown, has not so many accelerators, or cannot do what is asked.
    """
    if scenario.cluster.kinds and name == scenario.cluster.name:
        return scenario
    cluster = load_cluster(name, gpus, where=scenario.where)
    section: dict[str, Any] = {"name": name, "gpus": gpus}
    if cluster.accelerator.platform in scenario.software.platforms:
        section["software"] = scenario.software.stands_for or scenario.software.name
        given = scenario.document.get("cluster", {})
        if isinstance(given, Mapping) and given.get("software"):
            section["software"] = given["software"]
    free = {k: v for k, v in scenario.pinned.items() if k not in ("dp", "shard_group")}
    document = {**scenario.document, "cluster": section, "layout": free}
    architecture = scenario.workload.architecture
    made = make_scenario(document, where=scenario.where, architecture=architecture)
    return replace(made, workload=scenario.workload, goal=scenario.goal)


def offer_of(
    scenario: Scenario, name: str, gpus: int, asked: Asked, *, tight_too: bool = True
) -> Offer:
    """Search one cluster and size; what it cannot do is the reason of an offer, not an error."""
    return offers_of(scenario, name, [gpus], asked, tight_too=tight_too)[0]


def offers_of(
    scenario: Scenario, name: str, sizes: Sequence[int], asked: Asked, *, tight_too: bool = True
) -> list[Offer]:
    """The same for several sizes, which are searched together where that says the same."""
    placed = [_placed(scenario, name, gpus) for gpus in sizes]
    able = [x for x in placed if isinstance(x, Scenario)]
    search_sizes(able, asked, tight_too=tight_too)
    label = "" if asked.quote is None else asked.quote.label
    offers = []
    for gpus, on_size in zip(sizes, placed, strict=True):
        try:
            if isinstance(on_size, InputError):
                raise on_size
            best = offer(on_size, asked, name=name, tight_too=tight_too)
        except InputError as error:
            reason = error.problems[0].removeprefix(f"{scenario.where}: ")
            best = Offer(cluster=name, gpus=gpus, feasible=False, reason=reason)
        offers.append(replace(best, quoted=label, quote=asked.quote))
    return offers


def _placed(scenario: Scenario, name: str, gpus: int) -> Scenario | InputError:
    """A scenario on so many accelerators of a cluster, or why it cannot be there."""
    try:
        return on_cluster(scenario, name, gpus)
    except InputError as error:
        return error


def search_sizes(scenarios: Sequence[Scenario], asked: Asked, *, tight_too: bool = True) -> None:
    """Search scenarios that differ in the size of their cluster alone, for their offers.

    What one of them cannot do is left for its own offer to say.
    """
    single = list(filter(None, map(_of_one_batch, scenarios)))
    if len(single) > 1:
        cluster, searched = search_together(single, keep=_kept(single[0]))
        if cluster is not None and tight_too and not single[0].allow_tight:
            wanted = [(result, _wanted(scenario, asked)) for scenario, result in searched]
            walk_tight_together(wanted, cluster)


def _wanted(scenario: Scenario, asked: Asked) -> Scenario:
    return replace(scenario, goal=goal_of(scenario, asked))


def _of_one_batch(scenario: Scenario) -> Scenario | None:
    """A scenario as :func:`offer` searches it; None where it searches several batches or none."""
    if scenario.cluster.kinds:
        return None
    try:
        refuse_tables(scenario)
        batches = batches_of(scenario)
    except InputError:
        return None
    length = scenario.workload.recipe.sequence_length
    return with_sizes(scenario, batches[0], length) if len(batches) == 1 else None


def _kept(scenario: Scenario) -> int:
    """How many layouts of a search are ranked by the goal."""
    return KEEP_FOR_ENERGY if scenario.goal.minimize == "energy" else KEEP


def offer(scenario: Scenario, asked: Asked, *, name: str = "", tight_too: bool = True) -> Offer:
    """Find the best layout of a scenario and what the run costs with it.

    Where the goal leaves the batch open (`smallest_batch`, `largest_batch`) the best batch is
    taken, with the tokens that a larger one needs more. On servers of several kinds it is the best
    way to use them, or some of them (``planner/mixed_plan.py``). With `tight_too` the TIGHT layout
    is named that would be the best if such were allowed.

    Raises
    ------
    InputError
        If the scenario asks for what cannot be.
    """
    refuse_tables(scenario)
    if scenario.cluster.kinds:
        return _mixed_offer(scenario, asked, name or scenario.cluster.name)
    batches = batches_of(scenario)
    length = scenario.workload.recipe.sequence_length
    if len(batches) > 1:
        scenario = with_critical_batch(scenario)
    offers = [
        _offer(with_sizes(scenario, batch, length), asked, name, tight_too=tight_too)
        for batch in batches
    ]
    return min(offers, key=lambda offer: _rank(offer, scenario, asked))


def offer_assumptions(scenario: Scenario, row: Offer) -> list[Assumption]:
    """Price what an offer of a scenario takes for granted, as ``planner/assumptions.py`` does.

    None on servers of several kinds, and where nothing can run.
    """
    if row.layout is None or scenario.cluster.kinds:
        return []
    price = row.price or {}
    if price.get("base") in ("offer", "typed"):
        named = ("grade", "source", "date")
        figure = {"value": row.usd_per_gpu_hour, **{k: price[k] for k in named if price[k]}}
        scenario = at_price(scenario, figure, price["term"])
    made = on_cluster(scenario, row.cluster, row.gpus)
    length = made.workload.recipe.sequence_length
    if len(batches_of(made)) > 1:
        made = with_critical_batch(made)
    made = with_sizes(made, row.global_batch or made.workload.recipe.global_batch, length)
    best = predict(made, **stated_layout(row.layout, made.software))
    return assumptions(replace(best, scenario=made))  # another choice has layouts of its own


def at_price(
    scenario: Scenario, usd_per_gpu_hour: float | dict[str, Any] | None, term: str | None
) -> Scenario:
    """Put a scenario at a price, a number or the table of a figure.

    It is interrupted as often as its servers are where it is on spot.
    """
    given = scenario.document.get("economics", {})
    basis = "spot" if term == "spot" else "profile"
    paid = {**given, "basis": basis, "usd_per_gpu_hour": usd_per_gpu_hour}
    return replace(scenario, document={**scenario.document, "economics": paid})


def _rank(offer: Offer, scenario: Scenario, asked: Asked) -> tuple[bool, bool, float]:
    """What offers of several batches are compared by, least first."""
    goal = scenario.goal.minimize
    span = {"time": offer.days, "cost": offer.usd, "energy": offer.kwh}[goal] or offer.days
    value = span.p50 if span is not None else 1.0 / (offer.tokens_per_s or 1e-300)
    return not offer.feasible, not offer.meets(asked), value


def _offer(scenario: Scenario, asked: Asked, name: str, *, tight_too: bool) -> Offer:
    """The same for the one batch of a scenario."""
    cluster = scenario.cluster
    most_tp = widest_tp(cluster.domain)
    divides = batch_divides(scenario.workload, cluster.gpus, most_tp)
    per_server = cluster.node.accelerators
    good = None
    if not divides:
        sizes = {"per_server": per_server, "largest_tp": most_tp}
        good = next_good(scenario.workload, cluster.gpus, **sizes)
    empty = Offer(
        cluster=name or cluster.name,
        accelerator=cluster.accelerator.name,
        gpus=cluster.gpus,
        feasible=False,
        software=scenario.software.name,
        global_batch=scenario.workload.recipe.global_batch,
        batch_divides=divides,
        next_good=good,
    )
    searched = fastest(scenario, keep=_kept(scenario))
    layouts = 0 if searched.found is None else searched.found.layouts
    if searched.reason:
        return replace(empty, reason=searched.reason, layouts=layouts)
    best = searched.best
    result = priced(best, scenario, price=asked.price_of(scenario))
    first = ranked(best, result, scenario)[:1]
    assert searched.found is not None
    empty = replace(empty, layouts=layouts)
    best, result = best.part(first), result.take(first)
    if tight_too:
        tight = _tight_words(best, searched.found, scenario, asked)
        empty = replace(empty, tight_alternative=tight)
    setting = scenario.workload, cluster, scenario.software
    sure = certainty(best, *setting, likened=likened_runs(best, *setting))
    return filled(empty, scenario, best, result, asked, sure)


def _tight_words(
    best: Estimate, searched: SearchResult, scenario: Scenario, asked: Asked
) -> dict[str, Any] | None:
    """The TIGHT layout that would be the best by the goal if such were allowed."""
    if best.verdict_word() == "TIGHT":
        return None
    wanted = _wanted(scenario, asked)
    tight = tight_walked(searched, wanted).tight
    both = concatenate([best, tight.take(slice(0, FEW_TIGHT))])
    result = priced(both, wanted, price=asked.price_of(scenario))
    place = tight_alternative(both, result, wanted)
    if place is None:
        return None
    step_s = float(both.step_time_s[place])
    faster = 1.0 - step_s / float(best.step_time_s[0])
    return {"layout": both.layouts.describe(place), "step_time_s": step_s, "faster": faster}


_MEMORY = (
    *("memory_headroom", "memory_verdict=memory.verdict"),
    *("memory_total_bytes=memory.memory_total_bytes", "memory_p90_bytes=memory.memory_p90_bytes"),
    "usable_bytes=memory.usable_bytes",
)
"""Of the worst rank of servers of several kinds."""


def _mixed_offer(scenario: Scenario, asked: Asked, name: str) -> Offer:
    """The best way to use servers of several kinds."""
    from simulator.planner.mixed_plan import plan_mixed  # brings the events along

    cluster, recipe = scenario.cluster, scenario.workload.recipe
    wanted = replace(scenario, goal=goal_of(scenario, asked))
    used = dict.fromkeys(kind.accelerator.name for kind in cluster.kinds)
    empty = Offer(
        cluster=name,
        accelerator=" + ".join(used),
        gpus=cluster.gpus,
        feasible=False,
        software=scenario.software.name,
        global_batch=recipe.global_batch,
    )
    try:
        best = plan_mixed(wanted, price_of=asked.price_of).best
    except InfeasibleError as error:
        return replace(empty, reason=str(error).removeprefix(f"{scenario.where}: "))
    outcome = best.run.outcome
    days, usd, kwh = _mixed_spans(best)
    factor = factor_of(scenario)
    planned_days, planned_usd = _with_factor(days, factor), _with_factor(usd, factor)
    hours = None if usd is None or days is None else 24.0 * days.p50 * best.gpus
    region = asked.region or scenario.tariff_on(cluster.kinds[0]).site.region
    return replace(
        empty,
        **of_run(outcome, scenario),
        layout=layout_fields(scenario, best.layouts),
        described=f"{best.way}: {best.described}",
        step_time_s=best.step_s,
        days=days,
        usd=usd,
        kwh=kwh,
        co2_kg=co2_kg(kwh.p50, region) if kwh else None,
        planning_factor=factor,
        planned_kwh=_with_factor(kwh, factor),
        **_goals(asked, (days, usd), (planned_days, planned_usd)),
        **encoded(best.run, _MEMORY),
        evidence=best.run.evidence,
        price_name="of each kind" if usd else "",
        usd_per_gpu_hour=usd.p50 / hours if usd and hours else None,
    )


def _mixed_spans(best: MixedOption) -> tuple[Span | None, Span | None, Span | None]:
    """Days, USD and kWh of the whole run, with the spread of time, price and power."""
    outcome = best.run.outcome
    time = log(float(best.run.certainty.p90_s[0]) / best.step_s) / quantile(0.9)

    def span(value: float, spread: float = 0.0) -> Span | None:
        both = hypot(time, float(outcome.run_spread[0]), spread)
        return Span(p50=value, log_spread=both) if isfinite(value) else None

    return (
        span(float(outcome.days[0])),
        span(float(outcome.usd[0]), float(outcome.usd_spread[0])),
        span(float(outcome.kwh[0]), float(outcome.kwh_spread[0])),
    )


def _with_factor(span: Span | None, factor: PlanningFactor | None) -> Span | None:
    """A total with the planning factor, whose spread adds to its own."""
    if span is None or factor is None:
        return None
    wide = log(factor.p90 / factor.value) / quantile(0.9)
    return Span(p50=factor.value * span.p50, log_spread=hypot(span.log_spread, wide))


def _goals(
    asked: Asked, totals: tuple[Span | None, Span | None], planned: tuple[Span | None, Span | None]
) -> dict[str, Any]:
    """Days and USD to plan for, and the chances of deadline and budget with them and without."""
    (days, usd), (late, dear) = totals, (asked.deadline_days, asked.budget_usd)
    return {
        "planned_days": planned[0],
        "planned_usd": planned[1],
        "deadline_chance": _chance(planned[0] or days, late),
        "budget_chance": _chance(planned[1] or usd, dear),
        "deadline_chance_without_factor": _chance(days, late),
        "budget_chance_without_factor": _chance(usd, dear),
    }


def _chance(span: Span | None, limit: float | None) -> float | None:
    return None if span is None or limit is None else span.chance_within(limit)
