"""Screens of `foreshard predict`: the step term by term; with --memory what every stage holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simulator.cli.screen import (
    NO_FIT,
    amount,
    console,
    fitting,
    gib,
    heading,
    memory_table,
    notes,
    plain_table,
    seconds_like,
    table_of,
    term_table,
)
from simulator.cost.estimate import VERDICTS
from simulator.cost.memory.moments import MOMENTS
from simulator.cost.terms import MEMORY_MEANING
from simulator.cost.uncertainty import BEARS_ON
from simulator.economics.price import MARK
from simulator.glossary import CAVEATS, section_title
from simulator.planner.assumptions import ASSUMED, assumption_lines
from simulator.planner.input_verdict import READY, input_verdict
from simulator.planner.prediction import Prediction
from simulator.questions.compare.offer import asked_of, offer_of_answer
from simulator.quoting import option_word
from simulator.report.decision import verdict_sentence
from simulator.report.evidence import FIT_RULE, NO_INTERVAL, limits_of
from simulator.report.wording import (
    chance_words,
    change_words,
    end_words,
    energy_words,
    goodput_words,
    hours_words,
    planned_words,
)
from simulator.search.outcome import Spans, spans
from simulator.units import (
    show_count,
    show_days_span,
    show_kwh_span,
    show_percent,
    show_seconds,
    show_seconds_span,
    show_usd,
    show_usd_span,
)

if TYPE_CHECKING:
    from simulator.planner.fitting import Fitting
    from simulator.planner.sensitivity import FigureEffect
    from simulator.planner.variants import Variant
    from simulator.scoring.anchor import Correction


_FELT = 0.002
"""Least standard deviation of an error whose correction is worth a line."""

_LEAST = 5e-5
"""Changes of the step time below this share are counted, not listed."""

_WHOLE = {
    "scale": "the whole step, for every doubling of the cluster",
    "experts": "the whole step of this model",
    "software": "the whole step, with this software on this device",
    "kernels": "the whole step, with these shapes",
    "layout": "the whole step of this layout, on any size of cluster",
}
"""Errors that bear on whole steps, and on which."""


def screen(
    prediction: Prediction,
    correction: Correction | None = None,
    effects: Sequence[FigureEffect] | None = None,
    *,
    formulas: bool = False,
) -> Iterator[RenderableType]:
    """Give a prediction, with the formula of each term and kind of memory if asked for.

    `correction` is what measured runs made of it, `effects` what figures do to it.
    """
    estimate = prediction.estimate
    capacity = float(prediction.scenario.cluster.accelerator.memory.capacity_bytes)
    yield heading(prediction.scenario)
    yield verdict(prediction)
    yield notes(ASSUMED, assumption_lines(prediction))
    yield ""
    if correction is not None:
        yield notes("Corrected by measured runs", _corrections(correction))
    yield term_table({"time": (estimate, 0)}, share=True, formula=formulas)
    yield notes("", _memos(prediction))
    yield ""
    yield memory_table(estimate, 0, capacity, MEMORY_MEANING.__getitem__ if formulas else None)
    if not formulas:
        yield Text("--explain: the formula of each term and of each kind of memory.", style="dim")
    yield ""
    yield notes("Assumed, because not given", _assumptions(prediction))
    priced = {assumption.name for assumption in prediction.assumptions}
    others = [other for other in prediction.bearing_defaults if other.name not in priced]
    if others:
        lines = [other.sentence(prediction.step_time_s) for other in others]
        yield notes(section_title("assumptions"), lines)
    yield notes(CAVEATS, limits_of(prediction))
    if effects is not None:
        yield from _figures(effects, prediction.step_time_s)


def verdict(prediction: Prediction) -> Text:
    """The verdict in a sentence, then layout, step time, speed, memory and cost in a few lines."""
    estimate, result = prediction.estimate, prediction.outcome
    asked = asked_of(prediction)
    said = verdict_sentence(offer_of_answer(prediction, asked), asked)
    text = Text(f"\n{said}\n{estimate.layouts.describe()}\n", style="bold")
    text.append(
        f"step {show_seconds(prediction.step_time_s)} (P10 to P90: "
        f"{show_seconds_span(*prediction.interval_s)}), "
        f"{float(result.tokens_per_s_per_gpu[0]):,.0f} tokens/s/GPU, "
        f"MFU {show_percent(prediction.mfu)}, HFU {show_percent(float(result.hfu[0]))}\n",
        style="not bold",
    )
    text.append_text(fitting(estimate))
    p10, p90 = float(estimate.memory_p10_bytes[0]), float(estimate.memory_p90_bytes[0])
    between = f" (P10 {gib(p10)}, P90 {gib(p90)})" if math.isfinite(p90) else f" ({NO_INTERVAL})"
    text.append(
        f": {gib(prediction.memory_bytes)}{between} of {gib(estimate.usable_bytes)} GiB usable"
        " (worst rank)\n",
        style="not bold",
    )
    for tier, name in (("host", "host memory"), ("nvme", "local NVMe")):
        used, room = float(estimate.offloaded_bytes[tier][0]), estimate.room_bytes[tier]
        if used > 0:
            whole = f" of {gib(room)}" if math.isfinite(room) else ""
            verdict, style = ("", "not bold") if used <= room else (": too much", NO_FIT)
            text.append(f"{name}: {gib(used)}{whole} GiB a server{verdict}\n", style=style)
    days = float(result.days[0])
    if math.isfinite(days):
        mark = MARK * (result.price.assumed and math.isfinite(float(result.usd[0])))
        cost = f"{show_usd(float(result.usd[0]))}{mark}{_usd_span(prediction)}"
        if result.price.usd_per_gpu_hour is not None:
            cost += f" at {result.price.words()}"
        text.append(
            f"whole run: {show_days_span(days, *_ends(prediction))}, "
            f"{hours_words(result, prediction.scenario.cluster.gpus)}, "
            f"{cost}, {energy_words(result, _kwh_span(prediction))}\n",
            style="not bold",
        )
        if planned := planned_words(prediction):
            text.append(f"{planned}\n", style="not bold")
        text.append(_goal_words(prediction), style="not bold")
    if (supplied := input_verdict(prediction.scenario, estimate)) is not None:
        late = NO_FIT if supplied.waiting_s > 0.0 else "not bold"
        text.append(f"{supplied.sentence()}\n", style=late)
    ends = end_words(result, prediction.scenario, _whole(prediction).days)
    saved = prediction.checkpoint.sentence() if result.real is not None else ""
    for line in filter(None, (goodput_words(result), saved, ends)):
        text.append(f"{line}\n", style="not bold")
    return text


def _goal_words(prediction: Prediction) -> str:
    """Chances of meeting deadline and budget; nothing where none was set."""
    goal, chances = prediction.scenario.goal, prediction.goal_chances
    words = []
    if goal.deadline_days is not None:
        both = float(chances.deadline[0]), float(chances.deadline_without_factor[0])
        words.append(f"deadline of {goal.deadline_days:,.1f} days: {chance_words(*both)}")
    if goal.budget_usd is not None and math.isfinite(float(chances.budget[0])):
        both = float(chances.budget[0]), float(chances.budget_without_factor[0])
        words.append(f"budget of {show_usd(goal.budget_usd)}: {chance_words(*both)}")
    return "".join(f"{line}\n" for line in words)


def _whole(prediction: Prediction) -> Spans:
    return spans(prediction.estimate, prediction.outcome, prediction.certainty)


def _ends(prediction: Prediction) -> tuple[float, float]:
    """P10 and P90 of the days; GPU-hours grow with them."""
    low, high = _whole(prediction).days
    return float(low[0]), float(high[0])


def _kwh_span(prediction: Prediction) -> str:
    """P10 to P90 of the energy, with the spread of draws and cooling."""
    low, high = _whole(prediction).kwh
    return f" ({show_kwh_span(float(low[0]), float(high[0]))})"


def _usd_span(prediction: Prediction) -> str:
    """P10 to P90 of the cost, with the spread of the price; nothing where it is not known."""
    low, high = _whole(prediction).usd
    return f" ({show_usd_span(float(low[0]), float(high[0]))})" if math.isfinite(low[0]) else ""


def _corrections(correction: Correction) -> list[str]:
    """What was measured, and which terms it moved by how much."""
    lines = [
        f"{where}: measured {show_seconds(measured_s)}, predicted {show_seconds(predicted_s)}"
        for where, measured_s, predicted_s in correction.runs
    ]
    sure = correction.certainty
    before = show_seconds_span(*correction.uncorrected_span_s)
    after = show_seconds_span(float(sure.p10_s[0]), float(sure.p90_s[0]))
    lines.append(
        f"step: {show_seconds(correction.uncorrected_s)} ({before}) before,"
        f" {show_seconds(float(correction.estimate.step_time_s[0]))} ({after}) now"
    )
    for name, (factor, wide, narrow) in correction.factors.items():
        if wide >= _FELT:
            lines.append(
                f"{_error(name)}: x {factor:.3f}, standard deviation {show_percent(wide)} before,"
                f" {show_percent(narrow)} now"
            )
    if "kernels" not in correction.factors:
        lines.append("no measured run computed with these shapes: their own error stays")
    return lines


def _error(name: str) -> str:
    """An error and the terms that it bears on."""
    terms = BEARS_ON.get(name, ())
    if name in _WHOLE:
        return f"{name} ({_WHOLE[name]})"
    return name.replace("_", " ") + (f" ({', '.join(terms)})" if terms != (name,) else "")


def _memos(prediction: Prediction) -> list[str]:
    """What stands beside the sum: communication under compute, and what unequal stages cost."""
    unit, scale = seconds_like(prediction.step_time_s)
    estimate = prediction.estimate
    parts = [
        f"{name} {amount(scale * float(column[0]))} {unit}"
        for name, column in estimate.hidden_s.items()
        if column[0]
    ]
    lines = [f"hidden under compute, not in the sum: {', '.join(parts)}"] if parts else []
    uneven = float(estimate.imbalance_s[0])
    if uneven > 1e-6 * prediction.step_time_s:
        lines.append(
            f"unequal stages, inside the sum: {amount(scale * uneven)} {unit}; stage"
            f" {int(estimate.slowest_stage[0])} paces the step"
        )
    return lines


def _assumptions(prediction: Prediction) -> list[str]:
    words = [
        f"{name} = {option_word(value) or 'none'}" for name, value in prediction.defaults.items()
    ]
    lines = [f"layout: {', '.join(words)}"] if words else []
    return lines if prediction.scenario.workload.data else [*lines, f"data: {READY}"]


def _figures(effects: Sequence[FigureEffect], step_s: float) -> Iterator[RenderableType]:
    """What every figure does to a step time; those that hardly move it are counted."""
    from simulator.planner.sensitivity import UNSTATED

    listed = [effect for effect in effects if abs(effect.change_s) > _LEAST * step_s]
    yield ""
    yield Text("Figures behind the step time")
    yield effects_table(
        listed,
        "made larger by",
        ("step time", lambda effect: f"{100.0 * effect.change_s / step_s:+.2f} %"),
    )
    yield Text(
        f"* its profile states no spread: {show_percent(UNSTATED)} taken."
        f" {len(effects) - len(listed)} more figures move the step time by less than 0.005 %."
        " Sources: foreshard profiles show KIND NAME."
    )


def effects_table(
    effects: Sequence[FigureEffect], moved: str, change: tuple[str, Callable[[FigureEffect], str]]
) -> Table:
    """Figures, by how much each was made larger, and what that changes."""
    return table_of(
        effects,
        ("profile", lambda effect: effect.figure.profile),
        ("figure", lambda effect: effect.figure.name),
        ("value", lambda effect: f"{effect.figure.value:.4g}"),
        ("grade", lambda effect: effect.figure.grade),
        (moved, lambda effect: show_percent(effect.moved) + " *" * (not effect.figure.spread)),
        change,
        left=("profile", "figure", "grade"),
    )


def memory_screen(prediction: Prediction, fitting: Fitting) -> Iterator[RenderableType]:
    """Give the memory of every pipeline stage of a prediction."""
    yield heading(prediction.scenario)
    yield Text(f"\n{prediction.estimate.layouts.describe()}", style="bold")
    yield _verdict(fitting)
    yield _stages(fitting)
    yield ""
    yield _formulas(fitting)
    yield ""
    if fitting.verdict != "FITS":
        yield _changes(prediction, fitting)


def _verdict(fitting: Fitting) -> Text:
    """FITS, TIGHT or OOM, by how much, and how sure."""
    text = Text(fitting.verdict, style=fitting.verdict)
    share = show_percent(abs(fitting.margin_bytes) / fitting.usable_bytes)
    usable, capacity = gib(fitting.usable_bytes), gib(fitting.capacity_bytes)
    words = "free on" if fitting.margin_bytes >= 0 else "too much on"
    text.append(
        f": {gib(abs(fitting.margin_bytes))} GiB ({share}) {words} the worst rank, HBM line at"
        f" {usable} of {capacity} GiB\n{_interval(fitting)}\n",
        style="default",
    )
    if not fitting.room_for_offload:
        text.append("host memory or drives of a server cannot hold what is offloaded\n")
    return text


def _interval(fitting: Fitting) -> str:
    """P10 to P90 of the fullest stage, and how the P90 stands to the HBM line."""
    if math.isnan(fitting.p90_bytes):
        return f"{NO_INTERVAL}: the software profile has no reserved_spread, so no TIGHT"
    over = fitting.p90_bytes - fitting.usable_bytes
    words = f"{gib(abs(over))} GiB {'above' if over > 0 else 'below'} the line"
    return f"P10 {gib(fitting.p10_bytes)}, P90 {gib(fitting.p90_bytes)} GiB ({words}). {FIT_RULE}"


def _stages(fitting: Fitting) -> Group:
    """A row per kind that takes memory, a column per pipeline stage, in GiB.

    Stages that the screen has no room for follow below.
    """
    ranks = fitting.ranks
    rows = {kind: size for kind, size in ranks.kinds_bytes.items() if size.any()}
    rows["sum"] = ranks.total_bytes
    if np.isfinite(ranks.p90_bytes).all():
        rows["P90"] = ranks.p90_bytes
    rows["free"] = fitting.usable_bytes - ranks.total_bytes
    if fitting.replayed:
        rows["trace"] = np.array([stage.reserved_bytes for stage in fitting.replayed])
    texts = {name: [gib(float(size)) for size in sizes] for name, sizes in rows.items()}
    label = max(len(name) for name in texts)
    cell = max(len(text) for row in texts.values() for text in row) + 2
    room = max((console().width - label) // cell, 1)
    stages = range(len(ranks.total_bytes))
    tables = [
        _stage_table(fitting, texts, label, stages[first : first + room])
        for first in range(0, len(stages), room)
    ]
    return Group(*tables, _stage_notes(fitting))


def _stage_table(
    fitting: Fitting, texts: Mapping[str, list[str]], label: int, stages: Sequence[int]
) -> Table:
    """Some of the stages; those that do not fit surely have the colour of their verdict."""
    verdicts = [VERDICTS[int(code)] for code in fitting.ranks.verdict(fitting.usable_bytes)]
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    table.add_column("stage", min_width=label, no_wrap=True)
    for stage in stages:
        style = "" if verdicts[stage] == "FITS" else verdicts[stage]
        table.add_column(str(stage), justify="right", no_wrap=True, style=style)
    for name, row in texts.items():
        style = "bold" if name == "sum" else ""
        table.add_row(name, *(row[stage] for stage in stages), style=style)
    return table


def _stage_notes(fitting: Fitting) -> str:
    """What the rows hold, and when each stage is fullest."""
    moments: dict[str, list[int]] = {}
    for stage, moment in enumerate(fitting.ranks.moment):
        moments.setdefault(MOMENTS[int(moment)], []).append(stage)
    words = "GiB on every GPU of a stage"
    if fitting.replayed:
        words += "; trace: reserved by a replay of the allocator, without communicators"
    if len(moments) == 1:
        return f"{words}; fullest at: {next(iter(moments))}"
    stages_of = [f"{moment} ({_numbers(stages)})" for moment, stages in moments.items()]
    return f"{words}; fullest at: {', '.join(stages_of)}"


def _numbers(stages: Sequence[int]) -> str:
    """Stages in order, as a range where they follow one another."""
    if len(stages) == 1:
        return f"stage {stages[0]}"
    if stages[-1] - stages[0] == len(stages) - 1:
        return f"stages {stages[0]} to {stages[-1]}"
    return f"stages {', '.join(map(str, stages))}"


def _formulas(fitting: Fitting) -> Table:
    """Formula and inputs of every kind on the fullest stage."""
    rank = int(fitting.ranks.total_bytes.argmax())
    title = f"stage {rank}"
    table = plain_table(title, "GiB", "formula", "inputs", left=(title, "formula", "inputs"))
    for kind, inputs in fitting.ranks.inputs[rank].items():
        size = float(fitting.ranks.kinds_bytes[kind][rank])
        words = [f"{name} {_number(value)}" for name, value in inputs.items()]
        table.add_row(kind, gib(size), MEMORY_MEANING[kind], "; ".join(words))
    return table


def _changes(prediction: Prediction, fitting: Fitting) -> Any:
    """The cheapest changes that make it fit, or how near the nearest comes."""
    if not fitting.changes:
        lines = [
            "No change of up to three fields of this layout fits; `foreshard plan` searches"
            " all layouts."
        ]
        if fitting.nearest is not None:
            need = gib(fitting.nearest.memory_total_bytes or 0.0)
            lines.append(
                f"Nearest: {change_words(fitting.nearest.fields)}, which needs {need} GiB."
            )
        return notes("What would make it fit", lines)
    surely = " with its P90" if fitting.verdict == "TIGHT" else ""
    title = f"cheapest changes that make it fit{surely}"

    def cost(change: Variant) -> str:
        share = change.added_s / prediction.step_time_s
        return f"{'+' if share >= 0 else '-'}{show_percent(abs(share))}"

    def verdict(change: Variant) -> Text:
        word = str(change.memory_verdict)
        return Text(word, style=word)

    return table_of(
        fitting.changes,
        (title, lambda change: change_words(change.fields)),
        ("step time", lambda change: show_seconds(change.step_time_s or 0.0)),
        ("cost", cost),
        ("GiB", lambda change: gib(change.memory_total_bytes or 0.0)),
        ("", verdict),
        ("layout", lambda change: str(change.layout)),
        left=(title, "layout"),
    )


def _number(value: float) -> str:
    """A count in words, or a small number with the digits that it has."""
    return show_count(value) if value >= 1e4 else f"{value:.6g}"
