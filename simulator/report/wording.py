"""What becomes of a run in words: its length, goodput, end and price; why played times differ.

And the verdict of a plan in sentences; the page and the document read them.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from simulator.arrays import Floats
from simulator.cost.terms import LABELS
from simulator.economics.price import MARK
from simulator.goal import Goal, goal_word
from simulator.quoting import comment_line, option_word
from simulator.scenario import Scenario
from simulator.search.best_layout import BestLayout
from simulator.search.outcome import GoalChances, Outcome, spans
from simulator.units import (
    DAY_S,
    HOUR_S,
    show_bytes,
    show_chance,
    show_co2,
    show_count,
    show_days,
    show_days_span,
    show_kwh,
    show_kwh_span,
    show_percent,
    show_seconds,
    show_seconds_span,
    show_signed_percent,
    show_usd,
    show_usd_span,
)
from simulator.workload.recipe import Recipe

if TYPE_CHECKING:
    from simulator.cost.step import Estimate
    from simulator.planner.plan import Plan


_MOST = 3
"""Losses, or terms, that are named."""

_FEW = 1.1
"""Times the speed below which the percents above it are said."""

AT_ASSUMED = f"{MARK} at an assumed price: a guess or a page read second hand, no quote"

IDEAL = "nothing on top: goodput and the planning factor are left out (--ideal)"
"""Stands beside every total where both are."""

_LEAST_GAP = 0.001
"""Differences of terms below this share of the step are not named."""


def assumed_words(scenario: Scenario) -> str:
    """Say which fields of the training nobody gave, and what they were taken to be."""
    values = ", ".join(f"training.{name} = {value}" for name, value in scenario.assumed.items())
    return f"assumed, because not given: {values}" if values else ""


def idle_words(scenario: Scenario) -> str:
    """Say on which fields that were given nothing hangs, and why."""
    names = dict[str, list[str]]()
    for name, why in scenario.idle.items():
        names.setdefault(why, []).append(name)
    fields = "; ".join(f"{', '.join(several)} ({why})" for why, several in names.items())
    return f"given, but nothing here hangs on it: {fields}" if fields else ""


def length_words(recipe: Recipe) -> str:
    """Tokens of the run with its batch, beside those of a small one where they are fewer.

    Examples
    --------
    >>> one = Recipe(sequence_length=8, global_batch=64, tokens=1e9, critical_batch=128.0)
    >>> length_words(one)
    '1.5B tokens (1B with a small batch)'
    >>> length_words(Recipe(sequence_length=8192, global_batch=1024, tokens=15))
    '15 tokens (less than the 8.39M of one step)'
    """
    if recipe.tokens is None or recipe.run_tokens is None:
        return "one step"
    small = (
        ""
        if recipe.critical_batch is None
        else f" ({show_count(recipe.tokens)} with a small batch)"
    )
    if recipe.run_tokens < recipe.tokens_per_step:  # a T or a B that nobody typed, most often
        small += f" (less than the {show_count(recipe.tokens_per_step)} of one step)"
    return f"{show_count(recipe.run_tokens)} tokens{small}"


def goodput_words(outcome: Outcome, i: int = 0) -> str:
    """Goodput of a layout, the three phases that take most, and how often it is interrupted.

    Blank where nobody asked what goes wrong.
    """
    if outcome.real is None:
        return ""
    losses = ", ".join(
        f"{name} {show_percent(share)}" for name, share in outcome.real.largest_losses(i, _MOST)
    )
    days = float(outcome.days_ideal[i])
    ideal = f" ({show_days(days)} without failures)" if math.isfinite(days) else ""
    each = float(outcome.real.failures[i].sum())
    often = f"; an interruption every {show_seconds(1.0 / each)}" if each > 0.0 else ""
    return f"goodput {show_percent(float(outcome.goodput[i]))}{ideal}: {losses}{often}"


def end_words(outcome: Outcome, scenario: Scenario, days: tuple[Floats, Floats], i: int = 0) -> str:
    """The day on which a run ends that begins on `run.start`; blank where nobody says when."""
    start, last = scenario.run.start, float(outcome.days[i])
    if start is None or not math.isfinite(last):
        return ""
    try:
        ends = [
            (start + datetime.timedelta(days=math.ceil(float(day)))).isoformat()
            for day in (last, days[0][i], days[1][i])
        ]
    except OverflowError:  # beyond the year 9999
        return "ends later than any calendar goes"
    return f"begun on {start.isoformat()} it ends on {ends[0]} ({ends[1]} to {ends[2]})"


def hours_words(outcome: Outcome, gpus: int, i: int = 0) -> str:
    """GPU-hours of a layout, and which GPUs beside the run's `gpus` are paid for in them."""
    hours, days = float(outcome.gpu_hours[i]), float(outcome.days[i])
    shown = f"{show_count(hours)} GPU-hours"
    if not days > 0.0 or not math.isfinite(days):
        return shown
    paid = round(hours / (days * DAY_S / HOUR_S))
    real = outcome.real
    spares = 0 if real is None else round(float(real.hot_spares[i]) * outcome.gpus_per_server)
    beside = [f"{spares:,} of hot spares"] * (spares > 0)
    if rest := paid - gpus - spares:
        beside.append(f"{rest:,} of racks that are let whole")
    return f"{shown} on {paid:,} GPUs, {' and '.join(beside)}" if beside else shown


def energy_words(outcome: Outcome, span: str = "", i: int = 0) -> str:
    """Energy of a layout at the meter, `span` behind it, and its CO2 with the region taken."""
    carbon = f"{show_co2(float(outcome.co2_kg[i]))} of CO2 ({outcome.site.region})"
    return f"{show_kwh(float(outcome.kwh[i]))}{span}, {carbon}"


def change_words(fields: Mapping[str, tuple[Any, Any]], names: Sequence[str] | None = None) -> str:
    """What of a layout changes, or of it the fields that are named.

    >>> change_words({"tp": (8, 4), "recompute": ("none", "full"), "recompute_layers": (0, 28)})
    'tp 8 to 4, recompute none to full of 28 layers'
    >>> change_words({"recompute_layers": (0, 28)}), change_words({"shard_group": (8, "")})
    ('recompute layers all to 28', 'shard group 8 to usual')
    """
    shown = {
        name: tuple(option_word(end) or "usual" for end in ends) for name, ends in fields.items()
    }
    layers = shown.pop("recompute_layers", None)
    if layers is not None and "recompute" in shown:
        pairs = zip(shown["recompute"], layers, strict=True)
        shown["recompute"] = tuple(
            f"{kind} of {n} layers" if n != "0" else kind for kind, n in pairs
        )
    elif layers is not None:  # of full recomputation, which is of all where no number is said
        shown["recompute_layers"] = tuple("all" if n == "0" else n for n in layers)
    return ", ".join(
        f"{name.replace('_', ' ')} {' to '.join(shown[name])}"
        for name in shown
        if names is None or name in names or (name == "recompute" and "recompute_layers" in names)
    )


def planned_words(answer: BestLayout, i: int = 0) -> str:
    """What to plan for with what published runs took on top: days, money, energy.

    Blank without tokens; that there is nothing on top where all is to be ideal.
    """
    totals, factor = planned_totals_words(answer, i), answer.planning_factor
    if not totals or factor is None:
        return totals
    return f"{totals}: {factor.sentence(float(answer.outcome.gpu_hours[i]))}"


def planned_totals_words(answer: BestLayout, i: int = 0) -> str:
    """The same without saying of which runs the factor is."""
    if answer.scenario.goal.ideal and answer.days is not None:
        return IDEAL
    planned = answer.planned
    if planned is None or not math.isfinite(float(planned.days[1][i])):
        return ""
    low, middle, high = (float(column[i]) for column in planned.days)
    words = f"plan for {show_days_span(middle, low, high)}"
    low, middle, high = (float(column[i]) for column in planned.usd)
    if math.isfinite(middle):
        mark = MARK * answer.outcome.price.assumed
        words += f", {show_usd(middle)}{mark} ({show_usd_span(low, high)})"
    low, middle, high = (float(column[i]) for column in planned.kwh)
    if math.isfinite(middle):
        words += f", {show_kwh(middle)} ({show_kwh_span(low, high)})"
    return words


def speed_words(times: float) -> str:
    """How much faster a run would have to be.

    >>> speed_words(1.004), speed_words(2.256)
    ('0.4 % more speed', '2.26 times the speed')
    """
    if times < _FEW:
        return f"{show_percent(times - 1.0)} more speed"
    return f"{times:,.3g} times the speed"


def chance_words(held: float, without: float, what: str = "") -> str:
    """A chance of something with the planning factor, and without it where that is another.

    What is not safe is said to be so.

    >>> chance_words(0.85, 0.9995), chance_words(0.5, 0.5, "in time")
    ('85.0 % chance (over 99.9 % without the planning factor)', '50.0 % chance in time, at risk')
    """
    shown, other = show_chance(held), show_chance(without)
    beside = "" if shown == other else f" ({other} without the planning factor)"
    word = goal_word(held)
    return f"{shown} chance {what}".strip() + beside + f", {word}" * (word != "safe")


def goal_words(goal: Goal, chances: GoalChances) -> list[str]:
    """How likely the first layout is to meet deadline and budget."""
    words = []
    if goal.deadline_days is not None:
        both = float(chances.deadline[0]), float(chances.deadline_without_factor[0])
        unit = "day" if goal.deadline_days == 1 else "days"
        words.append(f"within {goal.deadline_days:,g} {unit}: {chance_words(*both)}")
    if goal.budget_usd is not None:
        both = float(chances.budget[0]), float(chances.budget_without_factor[0])
        words.append(f"at most {show_usd(goal.budget_usd)}: {chance_words(*both)}")
    return words


def risk_comments(answer: BestLayout) -> list[str]:
    """What stands against starting the first layout, as comments of a launch file.

    Memory that may not do, a deadline or a budget that is at risk or missed.
    """
    goal, chances = answer.scenario.goal, answer.goal_chances
    said = [] if answer.memory_verdict == "FITS" else [_memory(answer)]
    for chance, alone in (
        (answer.deadline_chance, replace(goal, budget_usd=None)),
        (answer.budget_chance, replace(goal, deadline_days=None)),
    ):
        if chance is not None and goal_word(chance) != "safe":
            said += [f"{words[0].upper()}{words[1:]}." for words in goal_words(alone, chances)]
    return [comment_line(words) for words in said]


def price_words(outcome: Outcome) -> str:
    """Say what the price is, how sure, and whether it holds electricity."""
    price = outcome.price
    rate = price.usd_per_gpu_hour
    if rate is None:
        return f"No price is known ({price.name}): give one with `foreshard compare --price USD`."
    spread = "" if rate.spread is None else f", give or take {show_percent(rate.spread)}"
    power = "with" if price.included_power else "without"
    source = f"; {rate.source}" if rate.source else ""
    said = [*filter(None, (price.term, price.provider, price.name, rate.grade, rate.date))]
    return (
        f"{float(rate):,.2f} USD per GPU-hour ({', '.join(said)}{spread}), {power}"
        f" electricity{source}. {price.note}".strip()
    )


def played_words(played_s: Mapping[str, float], closed_s: Mapping[str, float]) -> str:
    """Compare the terms of a played step with those of the closed form; each adds up to its step.

    Examples
    --------
    >>> played_words({"gemm": 1.0, "pp": 0.1}, {"gemm": 1.0, "pp": 0.05}).partition(": ")[2]
    'pipeline sends +50.0 ms.'
    """
    played, closed = sum(played_s.values()), sum(closed_s.values())
    gaps = {
        name: played_s.get(name, 0.0) - closed_s.get(name, 0.0) for name in {**closed_s, **played_s}
    }
    felt = sorted(
        (n for n in gaps if abs(gaps[n]) > _LEAST_GAP * closed), key=lambda n: -abs(gaps[n])
    )
    both = f"{show_seconds(played)} simulated, {show_seconds(closed)} by the analytical model"
    if not felt:
        return f"{both}: the same, term by term, to {show_percent(_LEAST_GAP)} of the step."
    words = ", ".join(
        f"{LABELS.get(name, name)} {'+' if gaps[name] > 0 else '-'}{show_seconds(abs(gaps[name]))}"
        for name in felt[:_MOST]
    )
    more = f" and {len(felt) - _MOST} smaller ones" if len(felt) > _MOST else ""
    return f"{both} ({show_signed_percent(played / closed - 1.0)}): {words}{more}."


def verdict_sentences(plan: Plan) -> list[str]:
    """What to expect of the best layout, a sentence each: run, what to plan for, goals, memory."""
    planned = planned_words(plan)
    goals = goal_words(plan.scenario.goal, plan.goal_chances)
    said = [f"{words[0].upper()}{words[1:]}." for words in (planned, *goals) if words]
    return [_run(plan), *said, _memory(plan)]


def _run(plan: Plan) -> str:
    """Days and money, or the step where nobody said how long the run is."""
    scenario, result = plan.scenario, plan.outcome
    name = scenario.workload.architecture.name
    head = f"{name} on {scenario.cluster.gpus:,} x {scenario.cluster.name}"
    days, usd = float(result.days[0]), float(result.usd[0])
    if not math.isfinite(days):
        span = show_seconds_span(*plan.interval_s)
        return f"{head}: {show_seconds(plan.step_time_s)} a step ({span})."
    whole = spans(plan.estimate, result, plan.certainty)
    low, high = (float(end[0]) for end in whole.days)
    words = [f"{head}: ready in {show_days_span(days, low, high)}"]
    if math.isfinite(usd):
        span = show_usd_span(float(whole.usd[0][0]), float(whole.usd[1][0]))
        words.append(f"{show_usd(usd)}{MARK * result.price.assumed} ({span})")
    return f"{', '.join(words)}."


def _memory(answer: BestLayout) -> str:
    """Whether memory holds, and with how much to spare."""
    from simulator.planner.sensitivity import lack_words

    estimate = answer.estimate
    if answer.memory_verdict == "OOM":
        return out_of_memory_words(estimate)
    if answer.memory_verdict == "TIGHT":
        return f"Memory is TIGHT: {lack_words(estimate, 0)}; make a trial run first."
    high = float(estimate.memory_p90_bytes[0])
    if not math.isfinite(high):
        free = estimate.usable_bytes - answer.memory_bytes
        return f"Memory fits with {show_bytes(free)} to spare; how sure that is nobody measured."
    return f"Memory FITS with {show_bytes(estimate.usable_bytes - high)} to spare at its P90."


def out_of_memory_words(estimate: Estimate) -> str:
    """What the first layout needs and what there is."""
    needs, usable = float(estimate.memory_total_bytes[0]), estimate.usable_bytes
    return (
        f"OOM: it needs {show_bytes(needs)} of {show_bytes(usable)} and does not start. `plan`"
        " names layouts that fit; pin one with --set layout.tp=8 and so on."
    )
