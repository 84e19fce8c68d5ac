"""The screen of `foreshard plan --more`: the ranking and all that stands behind it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simulator.arrays import Floats
from simulator.cli.screen import (
    NO_FIT,
    console,
    fitting,
    gib,
    heading,
    memory_table,
    notes,
    plain_table,
    term_table,
    took,
    waiting,
)
from simulator.cost.step import Estimate
from simulator.economics.price import MARK
from simulator.glossary import CAVEATS, section_title
from simulator.goal import OFFERED
from simulator.layout.layouts import dealt_words
from simulator.planner.assumptions import ASSUMED, assumption_lines, bearing_defaults
from simulator.planner.input_verdict import READY, input_verdict
from simulator.planner.plan import Plan
from simulator.planner.sensitivity import binding, surer_words
from simulator.planner.variants import Variant, other_trainings
from simulator.report.evidence import (
    FIT_RULE,
    limits_of,
    ties,
)
from simulator.report.numbers import refined_rows
from simulator.report.wording import end_words, goodput_words, speed_words
from simulator.search.allowed import decides
from simulator.search.outcome import Spans, spans
from simulator.search.search_caps import search_caps
from simulator.units import (
    show_count,
    show_days,
    show_kwh,
    show_number_of_days,
    show_percent,
    show_seconds,
    show_seconds_span,
    show_signed_percent,
    show_usd,
    show_usd_span,
)

OTHERWISE = f"{section_title('other_trainings')} (another result)"
"""Heading of what `[search] allow` names of the training."""

_ORDER = {"time": "fastest", "cost": "cheapest", "energy": "least energy"}

_WIDE = 116
"""Columns of the screen from which all columns are shown, and memory and time side by side."""

_NARROW = (0, 1, 2, 6, 7, 8, 10)
"""Columns of the ranking on a narrow screen."""

_FRONT = section_title("pareto")

_MOST_OF_FRONT = 5
"""Layouts of it on the screen."""

_UPGRADES = 3
"""Upgrades named on the screen; the report has them all."""


def screen(
    plan: Plan,
    upgrades: Callable[[], list[Variant]],
    launch: str,
    *,
    top: int,
) -> Iterator[RenderableType]:
    """Give a plan; `upgrades` tries some."""
    took("searched", plan.found.seconds)
    wide = console().width >= _WIDE
    yield heading(plan.scenario)
    for line in missed_goals(plan):
        yield Text(line, style=NO_FIT)
    yield ""
    yield _ranking(plan, top, wide)
    yield notes(ASSUMED, assumption_lines(plan))
    yield ""
    yield _why(plan, wide)
    yield ""
    if plan.refined is not None:
        yield notes(
            "Simulated step, on discrete events", [*_played(plan)[:top], *_not_played(plan)]
        )
    if real := _real_run(plan):
        yield notes(f"{section_title('failures')} of the best layout", real)
    yield notes(_FRONT, _front(plan))
    verdict = input_verdict(plan.scenario, plan.estimate)
    yield notes("Input", [READY if verdict is None else verdict.sentence()])
    if plan.tried:
        yield notes("Batches tried, by tokens per second", batches_tried(plan))
    yield notes(section_title("bottlenecks"), binding(plan))
    sensitive = f"{section_title('sensitive')}, with the best layout for each"
    yield notes(sensitive, _upgrades(upgrades()))
    yield notes(f"All {section_title('assumptions').lower()}", _defaults(plan))
    if trained := trained_otherwise(plan):
        yield notes(OTHERWISE, trained)
    yield notes("Searched", _searched(plan))
    yield notes(CAVEATS, limits_of(plan))
    yield Text("Launch the best layout", style="bold")
    yield Text(launch, no_wrap=True)
    yield ""


def _real_run(plan: Plan) -> list[str]:
    """Goodput of the best layout, what takes most of it, and when the run ends."""
    whole = spans(plan.estimate, plan.outcome, plan.certainty)
    ends = end_words(plan.outcome, plan.scenario, whole.days)
    saved = plan.checkpoint.sentence() if plan.outcome.real is not None else ""
    return [line for line in (goodput_words(plan.outcome), saved, ends) if line]


def _front(plan: Plan) -> list[str]:
    """Layouts of the Pareto front, each with what it gives up and gets against the fastest."""
    estimate, places = plan.estimate, plan.pareto
    fastest = float(estimate.step_time_s[places[0]])
    lines = []
    for i in places[:_MOST_OF_FRONT]:
        free = 1.0 - float(estimate.memory_total_bytes[i]) / float(estimate.usable_bytes)
        slower = float(estimate.step_time_s[i]) / fastest - 1.0
        kwh = float(plan.outcome.kwh[i])
        energy = f", {show_kwh(kwh)}" if math.isfinite(kwh) else ""
        lines.append(
            f"{estimate.layouts.describe(int(i))}: {show_signed_percent(slower)} time,"
            f" {show_percent(free)} of memory free{energy}"
        )
    more = len(places) - len(lines)
    return [*lines, f"and {more} more, in --json"] if more > 0 else lines


def _ranking(plan: Plan, top: int, wide: bool) -> Table:
    """The best layouts, best first."""
    layout = f"{_ORDER[plan.scenario.goal.minimize]} first"
    usable = gib(plan.estimate.usable_bytes)
    columns = (
        layout,
        "step",
        "fastest",
        "tokens/s\nper GPU",
        "MFU",
        "HFU",
        f"GiB of\n{usable}",
        "",
        "days",
        "GPU-\nhours",
        "USD" + MARK * plan.outcome.price.assumed,
        "kWh",
    )
    shown = range(len(columns)) if wide else _NARROW
    table = plain_table(*(columns[column] for column in shown), left=(layout,))
    for i in range(min(top, len(plan.estimate))):
        cells = _ranked(plan, i)
        table.add_row(*(cells[column] for column in shown), style="bold" if i == 0 else "")
    said = (
        ties(plan.certainty.tied, min(top, len(plan.estimate))),
        surer_words(plan),
        "Below a value: its P10 to P90.",
        FIT_RULE,
        "" if wide else _left_out(columns),
    )
    table.caption = " ".join(filter(None, said))
    table.caption_justify = "left"
    return table


def _left_out(columns: tuple[str, ...]) -> str:
    """Name the columns that a narrow screen has no room for."""
    names = (name for place, name in enumerate(columns) if place not in _NARROW)
    words = ", ".join(name.replace("-\n", "-").replace("\n", " ") for name in names)
    return f"Not shown for want of {_WIDE} columns: {words}; --json has them."


def _ranked(plan: Plan, i: int) -> list[Text | str]:
    """The cells of one layout; what misses deadline or budget is red."""
    estimate, result, sure = plan.estimate, plan.outcome, plan.certainty
    cells: list[Text | str] = [
        estimate.layouts.describe(i),
        _over(
            show_seconds(float(estimate.step_time_s[i])),
            show_seconds_span(float(sure.p10_s[i]), float(sure.p90_s[i])),
        ),
        show_percent(float(sure.fastest[i])),
        f"{float(result.tokens_per_s_per_gpu[i]):,.0f}",
        show_percent(float(result.mfu[i])),
        show_percent(float(result.hfu[i])),
        _over(gib(float(estimate.memory_total_bytes[i])), _memory_span(estimate, i)),
        fitting(estimate, i),
    ]
    if not math.isfinite(float(result.days[i])):
        return [*cells, "-", "-", "-", "-"]
    whole = spans(estimate, result, sure)
    usd = _usd(plan, whole, i)
    days = _over(
        show_number_of_days(float(result.days[i])), _to(whole.days, i, show_number_of_days)
    )
    return [
        *cells,
        Text(days, style="" if plan.in_time[i] else NO_FIT),
        show_count(float(result.gpu_hours[i])),
        Text(usd, style="" if plan.in_budget[i] else NO_FIT),
        _over(show_count(float(result.kwh[i])), _to(whole.kwh, i, show_count)),
    ]


def _to(span: tuple[Floats, Floats], i: int, show: Callable[[float], str]) -> str:
    """P10 to P90 of one layout."""
    low, high = (show(float(end[i])) for end in span)
    return f"{low} to {high}"


def _usd(plan: Plan, whole: Spans, i: int) -> str:
    """Cost of one layout over its P10 to P90."""
    cost = float(plan.outcome.usd[i])
    if not math.isfinite(cost):
        return "-"
    words = (show_usd(cost), show_usd_span(float(whole.usd[0][i]), float(whole.usd[1][i])))
    return _over(*(word.removesuffix(" USD") for word in words))


def _over(value: str, span: str) -> str:
    """A value over its P10 to P90, which a table has room for with a dash only."""
    return f"{value}\n{span.replace(' to ', '-')}"


def _memory_span(estimate: Estimate, i: int) -> str:
    """P10 to P90 of the worst rank in GiB; nothing where the software has no spread."""
    p10, p90 = float(estimate.memory_p10_bytes[i]), float(estimate.memory_p90_bytes[i])
    return f"{gib(p10)} to {gib(p90)}" if math.isfinite(p90) else "no interval"


def _played(plan: Plan) -> list[str]:
    """Each played layout beside its closed form."""
    return [
        f"{row.layout}: {show_seconds(row.step_time_s)}, by the analytical model"
        f" {show_seconds(row.closed_form_s)}"
        f" ({show_signed_percent(row.step_time_s / row.closed_form_s - 1.0)}),"
        f" where it was number {row.place}"
        for row in refined_rows(plan)
    ]


def _not_played(plan: Plan) -> list[str]:
    """Say what times the layouts have that were not played."""
    count = 0 if plan.refined is None else len(plan.refined.steps)
    if count == len(plan.estimate):
        return []
    return [f"Layouts behind these {count:,} keep their places and closed-form times"]


def _why(plan: Plan, wide: bool) -> RenderableType:
    """Memory of the winner, and its time beside the runner-up's and plain data parallelism's."""
    capacity = float(plan.scenario.cluster.accelerator.memory.capacity_bytes)
    columns: dict[str, tuple[Estimate, int]] = {"best": (plan.estimate, 0)}
    if len(plan.estimate) > 1:
        columns["runner-up"] = (plan.estimate, 1)
    if plan.naive is not None:
        columns["data parallel only"] = (plan.naive, 0)
    memory, terms = memory_table(plan.estimate, 0, capacity), term_table(columns)
    both: RenderableType = Group(memory, "", terms)
    if wide:
        both = Table.grid(padding=(0, 6))
        both.add_row(memory, terms)
    return Group(both, _naive(plan), *_evenly(plan))


def _naive(plan: Plan) -> Text:
    """Say which layout stands for plain data parallelism."""
    if plan.naive is None:
        return Text("data parallel only: no such layout can run here", style="italic")
    return Text(
        f"data parallel only: {plan.naive.layouts.describe()}, {plan.naive.verdict_word()}",
        style="italic",
    )


def _evenly(plan: Plan) -> list[Text]:
    """Say what the best layout would take with its layers dealt evenly, where they are not."""
    even = plan.evenly
    if even is None:
        return []
    own, other = float(plan.estimate.step_time_s[0]), float(even.step_time_s[0])
    fits = "" if even.fits[0] else f", {even.verdict_word()}"
    split = dealt_words(plan.estimate.layouts.row()["stages"])
    return [
        Text(
            f"layers dealt {split} over time and memory; evenly: {show_seconds(other)}"
            f" ({show_signed_percent(other / own - 1.0)}){fits}",
            style="italic",
        )
    ]


def batches_tried(plan: Plan) -> list[str]:
    """Every batch and sequence of a plan over several, with its best layout."""
    lines = []
    for one in plan.tried:
        sizes = f"{one.global_batch:,} sequences of {one.sequence_length:,}"
        if one.layout:
            speed = f"{one.tokens_per_s:,.0f} tokens/s, step {show_seconds(one.step_time_s)}"
            if one.tokens is not None:
                speed += f", {one.days:,.1f} days for {show_count(one.tokens)} tokens"
            lines.append(f"{sizes}: {speed}, {one.layout}")
        else:
            lines.append(f"{sizes}: {one.reason}")
    if plan.sizes_left_out:
        lines.append(plan.sizes_left_out)
    critical = plan.scenario.workload.recipe.critical_batch
    if critical is not None:
        lines.append(
            f"a batch of {critical:,.0f} sequences would need twice the tokens of a small one"
            " (training.critical_batch; the scaling law's, assumed, where nobody gave it)"
        )
    return lines


def _upgrades(upgrades: list[Variant]) -> list[str]:
    return [
        f"{upgrade.name}, {upgrade.change}: {show_percent(upgrade.gain)} more tokens/s"
        f" ({upgrade.layout})"
        for upgrade in upgrades[:_UPGRADES]
        if upgrade.gain > 0
    ]


def _defaults(plan: Plan) -> list[str]:
    """What nobody chose, with the price of the best layout under its alternative."""
    step_s = float(plan.estimate.step_time_s[0])
    found = bearing_defaults(plan.scenario, plan.estimate.layouts)
    return [one.sentence(step_s) for one in found]


def trained_otherwise(plan: Plan) -> list[str]:
    """Trainings that `[search] allow` names, each with its fastest layout."""
    if not any(word in OFFERED for word in plan.scenario.allow or ()):
        return []
    with waiting("trying other trainings"):
        found = other_trainings(plan.scenario)
    none = "software and device have no other of " + ", ".join(plan.scenario.allow or ())
    return [one.sentence(float(plan.estimate.step_time_s[0])) for one in found] or [none]


def _searched(plan: Plan) -> list[str]:
    """How many layouts, how many fit, and why the others were dropped."""
    found = plan.found
    lines = [f"{found.layouts:,} layouts: {found.feasible:,} can run and fit"]
    for reason, count in sorted(found.dropped.items(), key=lambda item: -item[1]):
        lines.append(f"{count:,} dropped: {reason}")
    lines += search_caps(plan.scenario)
    own, others = decides(plan.scenario)
    lines.append(f"Decided: {', '.join(own)}; where [search] allow names them: {', '.join(others)}")
    return lines


def missed_goals(plan: Plan) -> list[str]:
    """Name the goals that the best layout misses, and by how much: what is to be planned for."""
    goal, factor = plan.scenario.goal, plan.planning_factor
    times = 1.0 if factor is None else factor.value
    how = "" if factor is None else ", with what published runs took on top"
    days, usd = times * plan.outcome.days[0], times * plan.outcome.usd[0]
    lines = []
    if goal.deadline_days is not None and not plan.meets_deadline:
        limit = show_days(goal.deadline_days)
        lines.append(
            f"MISSED: {_none(plan, plan.in_time)} meets the deadline of {limit}."
            f" The best takes {show_days(days)}{how}: it needs"
            f" {speed_words(days / goal.deadline_days)}."
        )
    if goal.budget_usd is not None and not plan.meets_budget:
        limit = show_usd(goal.budget_usd)
        lines.append(
            f"MISSED: {_none(plan, plan.in_budget)} meets the budget of {limit}."
            f" The best costs {show_usd(usd)}{plan.outcome.price.mark}{how}: it needs prices"
            f" {100.0 * (1.0 - goal.budget_usd / usd):.3g} % lower."
        )
    return lines


def _none(plan: Plan, met: NDArray[np.bool_]) -> str:
    """What does not meet a goal: one that is TIGHT may, or one that misses the other."""
    if met[plan.estimate.able(allow_tight=plan.scenario.allow_tight)].any():
        return "Not the best layout, nor any with both deadline and budget,"
    return "No layout that FITS" if met.any() else "No layout"
