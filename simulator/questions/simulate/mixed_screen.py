"""What `foreshard simulate`, `plan` and `predict` print of servers of several kinds."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from simulator.cli.screen import (
    NO_FIT,
    amount,
    gib,
    heading,
    notes,
    plain_table,
    seconds_like,
)
from simulator.cost.mixed_gradient_sum import GradientSumPhases
from simulator.cost.terms import LABELS
from simulator.economics.price import MARK
from simulator.events.played import SimulatedStep
from simulator.events.step.streams import STREAMS
from simulator.events.step.timeline import Mixed
from simulator.glossary import CAVEATS
from simulator.planner.mixed_plan import MixedPlan
from simulator.planner.mixed_prediction import KindUse, MixedPrediction, usd_per_step
from simulator.report.wording import energy_words, goal_words, planned_words
from simulator.search.best_layout import factor_of
from simulator.units import show_days, show_percent, show_seconds, show_seconds_span, show_usd

_PLACES = 8
"""Simulated ranks whose place is said at most."""


def verdicts(kinds: list[KindUse]) -> Text:
    """Whether the worst rank of each kind fits, a line each."""
    text = Text()
    for kind in kinds:
        text.append(kind.verdict, style=kind.verdict)
        text.append(
            f": {gib(kind.memory_bytes)} of {gib(kind.usable_bytes)} GiB usable on the worst rank"
            f" of {kind.name}\n",
            style="not bold",
        )
    return text


def kinds_table(step: SimulatedStep, mixed: Mixed, kinds: list[KindUse]) -> Table:
    """GPUs of each kind: how long they compute and wait; the step if all were of the kind."""
    unit, scale = seconds_like(step.step_time_s)
    like = f"step, all {sum(kind.gpus for kind in kinds):,} like these"
    columns = [f"{word} ({unit})" for word in ("computing", "not computing", like)]
    table = plain_table("servers", "GPUs", *columns, "played is", left=("servers",))
    compute = STREAMS.index("compute")
    for kind in kinds:
        name = STREAMS[compute]
        seconds = (kind.busy_s[name], kind.idle_s[name], kind.uniform_cluster_step_s)
        off = 100.0 * (mixed.steady_s / kind.uniform_cluster_step_s - 1.0)
        cells = [f"{kind.gpus:,}", *(amount(scale * x) for x in seconds), f"{off:+.1f} %"]
        table.add_row(kind.name, *cells)
    return table


def mixed_lines(step: SimulatedStep, mixed: Mixed, kinds: list[KindUse]) -> list[str]:
    """What the slower servers cost, where ranks lie, and the price of a step."""
    first = kinds[0]
    lost = mixed.steady_s - first.uniform_cluster_step_s
    gpus = sum(kind.gpus for kind in kinds)
    lines = [
        f"step {show_seconds(first.uniform_cluster_step_s)} if all {gpus:,} GPUs were {first.name}:"
        f" {show_seconds(abs(lost))} {'longer' if lost >= 0.0 else 'shorter'} as they are"
    ]
    lines += [
        _without_others(kind, mixed.steady_s)
        for kind in kinds
        if kind.these_servers_only_step_s > 0
    ]
    shown = min(len(mixed.gpus), _PLACES)
    lines += [_place(mixed, rank) for rank in range(shown)]
    if shown < len(mixed.gpus):
        lines.append(f"and {len(mixed.gpus) - shown:,} more simulated ranks (--json lists them)")
    usd = usd_per_step(kinds, step)
    if math.isfinite(usd):
        join = ", ".join(f"{kind.name} {kind.usd_per_hour:,.2f}" for kind in kinds)
        lines.append(f"{usd:,.4f} USD per step, each kind at its own price (per hour: {join})")
    return lines


def _without_others(kind: KindUse, steady_s: float) -> str:
    """Whether servers of one kind are faster without the others; closed form of their own step."""
    alone, named = (
        kind.these_servers_only_step_s,
        f"the {kind.gpus:,} {kind.name} without the others",
    )
    text = f"{named}: {show_seconds(alone)} by the analytical model,"
    text += " the same layout with fewer replicas"
    gain = 1.0 - alone / steady_s
    return f"{text}: the others slow them by {show_percent(gain)}" if gain > 0.0 else text


def _place(mixed: Mixed, rank: int) -> str:
    """Stage, replicas and servers of a simulated rank."""
    stage, runs = mixed.place(rank)
    replicas = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)
    return f"rank {rank}: stage {stage} of replicas {replicas} on {mixed.servers(rank)}"


_NOTES = (
    "stages: pipeline stages lie on one kind of servers each, layers dealt by what each kind does"
    " and holds; simulated on discrete events",
    "shares: replicas lie on one kind each and take unlike numbers of micro-batches, which few"
    " frameworks offer; each kind played with its share",
    "days and USD: each kind fails, draws and is paid as its own servers do",
)

_OWN = (
    "own layouts: as shares, and each kind cuts the model in its own way; gradients are reduced in"
    " three phases, which no framework in wide use offers"
)


def mixed_plan_screen(answer: MixedPlan) -> Iterator[RenderableType]:
    """Give every way to use the servers, best first."""
    yield heading(answer.scenario)
    yield Text(f"\n{answer.verdict}\n", style="bold")
    for words in goal_words(answer.scenario.goal, answer.best.chances(answer.scenario)):
        yield Text(words, style="" if answer.meets_goal else NO_FIT)
    unit, scale = seconds_like(answer.best.step_s)
    fastest_s = min(option.step_s for option in answer.options)
    money = "USD" + MARK * answer.best.run.outcome.price.assumed
    named = ("way", "", "GPUs", f"step ({unit})", "slower", "micro-batches")
    dated = answer.scenario.workload.recipe.steps is not None
    table = plain_table(*named, *(("days", money) if dated else ()), left=("way",))
    for number, option in enumerate(answer.options, 1):
        slower = show_percent(option.step_s / fastest_s - 1.0)
        days, usd = (float(x[0]) for x in (option.run.outcome.days, option.run.outcome.usd))
        totals = (f"{days:,.1f}", "no price" if math.isnan(usd) else show_usd(usd))
        table.add_row(
            f"{number} {option.way}",
            Text(option.run.memory.verdict, style=option.run.memory.verdict),
            f"{option.gpus:,}",
            amount(scale * option.step_s),
            slower,
            " + ".join(f"{count:,}" for count in dict.fromkeys(option.micro_batches)),
            *(totals if dated else ()),
        )
    yield table
    layouts = [f"{number} {option.described}" for number, option in enumerate(answer.options, 1)]
    yield notes("layout of each", layouts)
    legs = [_legs(option.kinds, option.legs) for option in answer.options if option.legs][:1]
    said = [*_NOTES[:2], *([_OWN, *legs] if legs else []), *_NOTES[2:]]
    factor = factor_of(answer.scenario)
    if factor is not None:
        said.append(f"days and USD to plan for: {factor.sentence()}")
    yield notes(CAVEATS, said)


def _legs(kinds: tuple[str, ...], legs: GradientSumPhases) -> str:
    """The three phases of the gradients of the first row with layouts of their own."""
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
    yield notes(CAVEATS, list(_PLAYED))


_PLAYED = (
    "simulated on discrete events: stages on unlike servers have no analytical model; P10 to P90"
    " are those of the kind that is least sure",
    "days, USD and kWh: each kind fails, draws and is paid as its own servers do",
)


def _verdict(answer: MixedPrediction) -> Text:
    """Layout, step time, memory of each kind, the whole run."""
    outcome = answer.outcome
    text = Text(f"\n{answer.estimate.layouts.describe()}\n", style="bold")
    text.append(
        f"step {show_seconds(answer.step_time_s)} (P10 to P90: "
        f"{show_seconds_span(*answer.interval_s)}),"
        f" {float(outcome.tokens_per_s_per_gpu[0]):,.0f} tokens/s/GPU,"
        f" MFU {show_percent(answer.mfu)}\n",
        style="not bold",
    )
    text.append_text(verdicts(list(answer.kinds)))
    if answer.days is not None:
        usd = "no price" if answer.usd is None else show_usd(answer.usd)
        usd += " at an assumed price" * outcome.price.assumed
        energy = "" if answer.kwh is None else f", {energy_words(outcome)}"
        text.append(
            f"whole run: {show_days(answer.days)}, {usd}{energy}; goodput"
            f" {show_percent(float(outcome.goodput[0]))}\n",
            style="not bold",
        )
        text.append(f"{planned_words(answer)}\n", style="not bold")
    text.append(f"evidence: {answer.evidence.grade}\n", style="not bold")
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
