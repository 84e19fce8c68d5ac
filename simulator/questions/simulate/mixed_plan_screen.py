"""What `foreshard plan` and `foreshard predict` print for servers of several kinds."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from simulator.cli.screen import (
    amount,
    heading,
    notes,
    plain_table,
    seconds_like,
)
from simulator.cost.mixed_gradient_sum import GradientSumPhases
from simulator.cost.terms import LABELS
from simulator.planner.mixed_answer import MixedOption, MixedPlan
from simulator.planner.mixed_prediction import MixedPrediction
from simulator.questions.simulate.mixed_screen import kinds_table, mixed_lines, verdicts
from simulator.units import show_percent, show_seconds, show_seconds_span, show_usd

_NOTES = (
    "stages: pipeline stages lie on one kind of servers each, layers dealt by what each kind does"
    " and holds; played on discrete events",
    "shares: replicas lie on one kind each and take unlike numbers of micro-batches, which few"
    " frameworks offer; each kind played with its share",
    "days and USD: each kind fails, draws and is paid as its own servers do",
)

_OWN = (
    "own layouts: as shares, and each kind cuts the model in its own way; gradients are reduced in"
    " three legs, which no framework in wide use offers"
)


def mixed_plan_screen(answer: MixedPlan) -> Iterator[RenderableType]:
    """Give every way to use the servers, best first."""
    yield heading(answer.scenario)
    yield Text(f"\n{answer.verdict}\n", style="bold")
    unit, scale = seconds_like(answer.best.step_s)
    fastest_s = min(one.step_s for one in answer.options)
    table = plain_table(
        "way", "GPUs", f"step ({unit})", "slower", "micro-batches", "days", "USD", "layout",
        left=("way", "layout"),
    )  # fmt: skip
    for one in answer.options:
        slower = show_percent(one.step_s / fastest_s - 1.0)
        days = "" if one.totals.days is None else f"{one.totals.days:,.1f}"
        usd = "" if one.totals.usd is None else show_usd(one.totals.usd)
        cells = (f"{one.gpus:,}", amount(scale * one.step_s), slower, _counts(one), days, usd)
        table.add_row(one.way, *cells, one.described)
    yield table
    option = next((one for one in answer.options if one.legs is not None), None)
    said = [] if option is None or option.legs is None else [_OWN, _legs(option.kinds, option.legs)]
    yield notes("Read this", [*_NOTES[:2], *said, *_NOTES[2:]])


def _legs(kinds: tuple[str, ...], legs: GradientSumPhases) -> str:
    """The three legs of the gradients of the first row with layouts of their own."""
    named = (
        ("reduce-scatter in each kind", legs.reduce_scatter_s),
        ("exchange of pieces between the kinds", legs.exchange_s),
        ("gather of weights in each kind", legs.gather_s),
    )
    words = []
    for what, seconds in named:
        each = (f"{show_seconds(s)} ({kind})" for kind, s in zip(kinds, seconds, strict=True))
        words.append(f"{what} {', '.join(each)}")
    return (
        f"its legs: {'; '.join(words)}; the slowest exchange, {show_seconds(legs.between_s)},"
        " is shown whole"
    )


def mixed_prediction_screen(answer: MixedPrediction) -> Iterator[RenderableType]:
    """Give one layout on servers of several kinds: its played step and the whole run."""
    step, kinds = answer.step, list(answer.kinds)
    assert step.mixed is not None
    yield heading(answer.scenario)
    yield _verdict(answer)
    yield _terms(answer)
    yield ""
    yield kinds_table(step, step.mixed, kinds)
    yield notes("Servers of several kinds", mixed_lines(step, step.mixed, kinds))
    assumed = ", ".join(f"{name} = {value}" for name, value in answer.defaults.items())
    yield notes("Assumed, because not given", [assumed])
    yield notes("Read this with the numbers", list(_PLAYED))


_PLAYED = (
    "played on discrete events: stages on unlike servers have no closed form; P10 to P90 are those"
    " of the kind that is least sure",
    "days, USD and kWh: each kind fails, draws and is paid as its own servers do",
)


def _verdict(answer: MixedPrediction) -> Text:
    """Layout, step time, memory of each kind, the whole run."""
    totals = answer.totals
    text = Text(f"\n{answer.layouts.describe()}\n", style="bold")
    text.append(
        f"step {show_seconds(answer.step_time_s)} (P10 to P90: "
        f"{show_seconds_span(*answer.interval_s)}),"
        f" {totals.tokens_per_s / answer.scenario.cluster.gpus:,.0f} tokens/s/GPU,"
        f" MFU {show_percent(totals.mfu)}\n",
        style="not bold",
    )
    text.append_text(verdicts(list(answer.kinds)))
    if totals.days is not None:
        usd = "no price" if totals.usd is None else show_usd(totals.usd)
        kwh = "" if totals.kwh is None else f", {totals.kwh:,.0f} kWh"
        text.append(
            f"whole run: {totals.days:,.1f} days, {usd}{kwh}; goodput"
            f" {show_percent(totals.goodput)}\n",
            style="not bold",
        )
    text.append(f"evidence: {totals.evidence.grade}\n", style="not bold")
    return text


def _terms(answer: MixedPrediction) -> Table:
    """Terms of the rank that paces the step."""
    unit, scale = seconds_like(answer.step_time_s)
    table = plain_table("time of a step", f"played ({unit})", left=("time of a step",))
    for name, seconds in answer.step.terms_s.items():
        if seconds:
            table.add_row(LABELS.get(name, name), amount(scale * seconds))
    table.add_row("sum = step time", amount(scale * answer.step_time_s))
    return table


def _counts(mixed_option: MixedOption) -> str:
    return " + ".join(f"{count:,}" for count in dict.fromkeys(mixed_option.micro_batches))
