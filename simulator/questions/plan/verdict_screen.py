"""The first screen of `foreshard plan`: what one decides by, in 100 columns and 40 lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simulator.cli.screen import (
    NO_FIT,
    fitting,
    gib,
    heading,
    notes,
    plain_table,
    took,
)
from simulator.economics.price import MARK
from simulator.glossary import section_title
from simulator.planner.assumptions import ASSUMED, assumption_lines
from simulator.planner.input_verdict import input_verdict
from simulator.planner.plan import Plan, alternatives
from simulator.planner.sensitivity import binding, memory_margin, surer_words
from simulator.planner.variants import Variant
from simulator.questions.compare.offer import asked_of, offer_of_answer
from simulator.questions.plan.screen import (
    OTHERWISE,
    batches_tried,
    missed_goals,
    trained_otherwise,
)
from simulator.report.decision import verdict_sentence
from simulator.report.evidence import ties
from simulator.report.wording import (
    end_words,
    energy_words,
    goal_words,
    goodput_words,
    hours_words,
    planned_words,
)
from simulator.search.outcome import Spans, spans
from simulator.units import (
    show_days_span,
    show_number_of_days,
    show_percent,
    show_seconds,
    show_seconds_span,
    show_signed_percent,
    show_usd,
    show_usd_span,
)

_BINDING = 2
"""Of what binds, the first so many."""

_REST = "--more: ranking, time by term, memory by kind, defaults, caveats, the launch command."


def verdict_screen(plan: Plan, upgrades: Callable[[], list[Variant]]) -> Iterator[RenderableType]:
    """Give the verdict; `upgrades` tries some."""
    took("searched", plan.found.seconds)
    yield heading(plan.scenario)
    for line in missed_goals(plan):
        yield Text(line, style=NO_FIT)
    asked = asked_of(plan)
    yield ""
    yield Text(verdict_sentence(offer_of_answer(plan.alone, asked), asked), style="bold")
    yield _best(plan.alone)
    yield notes(ASSUMED, assumption_lines(plan, brief=True))
    yield _others(plan)
    if tie := ties(plan.certainty.tied, len(plan.estimate)):
        yield Text(tie)
    if surer := surer_words(plan):
        yield Text(surer)
    if plan.tried:
        yield notes("Batches tried, by tokens per second", batches_tried(plan))
    binds = 1 if memory_margin(plan) else _BINDING  # which takes two lines
    yield notes(section_title("bottlenecks"), binding(plan)[:binds])
    yield from _pays(upgrades())
    if trained := trained_otherwise(plan):
        yield notes(OTHERWISE, trained)
    yield Text(_REST, style="dim")


def _best(plan: Plan) -> Group:
    """The best layout and all that is decided by."""
    title = fitting(plan.estimate).append(
        f"  {plan.estimate.layouts.describe(0)}", style="bold default"
    )
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in _facts(plan):
        table.add_row(f"  {name}", text)
    return Group(title, table)


def _facts(plan: Plan) -> Iterator[tuple[str, str]]:
    estimate, result, sure = plan.estimate, plan.outcome, plan.certainty
    whole = spans(estimate, result, sure)
    if math.isfinite(float(result.days[0])):
        yield "time", _time(plan, whole)
        yield "money", _money(plan, whole)
        if planned := planned_words(plan):
            yield "planned", planned
    else:
        yield "time", "no training.tokens given: no days, money or energy"
    if goals := ", ".join(goal_words(plan.scenario.goal, plan.goal_chances)):
        yield "goals", goals
    step = show_seconds(float(estimate.step_time_s[0]))
    span = show_seconds_span(float(sure.p10_s[0]), float(sure.p90_s[0]))
    speed = f"{float(result.tokens_per_s_per_gpu[0]):,.0f} tokens/s per GPU"
    yield "step", f"{step} ({span}), {speed}, MFU {show_percent(float(result.mfu[0]))}"
    if plan.refined is not None:
        yield "simulated", _played(plan)
    need, usable = float(estimate.memory_total_bytes[0]), float(estimate.usable_bytes)
    high = float(estimate.memory_p90_bytes[0])
    p90 = f" (P90 {gib(high)})" if math.isfinite(high) else ""
    yield "memory", f"{gib(need)}{p90} of {gib(usable)} GiB usable (worst rank)"
    if goodput := goodput_words(result):
        yield "goodput", goodput.removeprefix("goodput ")
    if (supplied := input_verdict(plan.scenario, estimate)) is not None:
        yield "input", supplied.sentence().removeprefix("input ")
    if plan.scenario.workload.recipe.quantised_base:
        from simulator.interop.exporting import without_command  # every framework's words

        if wrong := without_command(plan.scenario):
            yield "launch", f"no command: {wrong}"
    card = plan.evidence.sentences()
    yield "evidence", ". ".join([card[0].removeprefix("Evidence: "), *card[1:]])


def _time(plan: Plan, whole: Spans) -> str:
    low, high = (float(end[0]) for end in whole.days)
    ends = end_words(plan.outcome, plan.scenario, whole.days)
    date = f"; {ends}" if ends else "; set run.start to get an end date"
    return f"{show_days_span(float(plan.outcome.days[0]), low, high)}{date}"


def _money(plan: Plan, whole: Spans) -> str:
    result, cost = plan.outcome, float(plan.outcome.usd[0])
    words = "no price known"
    if math.isfinite(cost):
        span = show_usd_span(float(whole.usd[0][0]), float(whole.usd[1][0]))
        words = f"{show_usd(cost)}{MARK * result.price.assumed} ({span})"
    price, gpus = result.price, plan.scenario.cluster.gpus
    rate = "" if price.usd_per_gpu_hour is None else f" at {price.words()}"
    return f"{words}{rate}; {hours_words(result, gpus)}, {energy_words(result)}"


def _played(plan: Plan) -> str:
    """The step as discrete events have it, beside the closed form."""
    found = plan.refined
    assert found is not None
    played, closed = found.steps[0].step_time_s, float(found.closed_form_s[0])
    return (
        f"{show_seconds(played)} on discrete events, {show_seconds(closed)} by the analytical model"
        f" ({show_signed_percent(played / closed - 1.0)})"
    )


def _others(plan: Plan) -> Table:
    """The alternatives, against the best."""
    title = "alternatives"
    estimate, result = plan.estimate, plan.outcome
    short = float(result.days[0]) < 1.0  # as above, where it is told in hours
    length = "hours" if short else "days"
    money = "USD" + MARK * result.price.assumed
    table = plain_table(title, "", "time", length, money, "GiB", "", left=(title,))
    table.columns[1].justify = "left"
    for i, why in alternatives(plan):
        slower = float(estimate.step_time_s[i]) / float(estimate.step_time_s[0]) - 1.0
        days, usd = float(result.days[i]), float(result.usd[i])
        shown = f"{24.0 * days:.3g}" if short else show_number_of_days(days)
        table.add_row(
            estimate.layouts.describe(i),
            why,
            show_signed_percent(slower),
            shown if math.isfinite(days) else "-",
            show_usd(usd).removesuffix(" USD") if math.isfinite(usd) else "-",
            gib(float(estimate.memory_total_bytes[i])),
            fitting(estimate, i),
        )
    if not table.row_count:
        return plain_table("no other layout can run and fit", left=())
    return table


def _pays(upgrades: list[Variant]) -> Iterator[Text]:
    """What the step is most sensitive to, in a line."""
    for best in upgrades[:1]:
        if best.gain > 0:
            gain = f"{best.name}, {best.change}: {show_percent(best.gain)} more tokens/s"
            yield Text(f"{section_title('sensitive')}", style="bold").append(f" {gain}", "not bold")
