"""A step of reinforcement learning on a page of all splits, and as a picture of both sides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulator.glossary import CAVEATS
from simulator.questions.compare.offers_page import Cell, offers_page
from simulator.questions.rl.answer import LANES, WORDS, timeline
from simulator.report.canvas import NARROW, headline, ink_on, legend, new_figure, plain_axes
from simulator.report.inline_svg import inline
from simulator.report.palette import colour
from simulator.units import show_bytes, show_percent, show_seconds, show_usd

if TYPE_CHECKING:
    from simulator.questions.rl.answer import Priced, PricedRL
    from simulator.reinforcement.remedies import Remedy


_COLOURS = {
    "generation": "gemm",
    "reward": "input",
    "driver": "launch",
    "log_probabilities": "attention",
    "training": "optimizer",
    "refit": "tp",
    "phase_change": "offload",
    "waiting": "bubble_drain",
}
INKS = {phase: (ink, WORDS[phase]) for phase, ink in _COLOURS.items()}
"""Colour and word of each phase."""

_WIDE_ENOUGH = 0.06
"""Share of the picture from which on a phase carries its time."""


def draw_lanes(axes: Any, shown: Priced) -> None:
    """Draw two steps: what the generator and the trainer do, and when they wait."""
    spans = timeline(shown.step)
    whole = 2.0 * shown.step.step_time_s
    told = set()
    for span in spans:
        ink, word = INKS[span.phase]
        if span.phase == "waiting" and shown.step.alone_gpus == 0:
            word = "the same devices on the other side"
        length = span.end_s - span.start_s
        row = LANES[::-1].index(span.lane)
        axes.barh(
            row, length, left=span.start_s, height=0.6, color=colour(ink).light,
            label=None if word in told else word,
        )  # fmt: skip
        told.add(word)
        if length >= _WIDE_ENOUGH * whole and span.phase != "waiting":
            axes.text(
                span.start_s + length / 2.0, row, show_seconds(length), ha="center", va="center",
                fontsize=7.5, color=ink_on(colour(ink).light),
            )  # fmt: skip
    axes.set_yticks(range(len(LANES)), LANES[::-1])
    axes.set_xlim(0.0, whole)
    axes.set_xlabel("seconds, two steps")


def rl_picture(answer: PricedRL, *, narrow: bool = False, svg: bool = False) -> Any:
    """Draw the step of an answer; with `svg`, as the inline drawing of a page."""
    shown = answer.shown
    assert shown is not None
    size = (NARROW, 4.4) if narrow else (12.0, 3.6)
    figure = new_figure(*size, svg=svg)
    axes = figure.subplots()
    plain_axes(axes)
    draw_lanes(axes, shown)
    step, name = shown.step, answer.scenario.workload.architecture.name
    waits = ", ".join(f"{side} waits {show_percent(x)}" for side, x in step.waiting.items())
    if step.alone_gpus == 0:
        waits = "all generate, then all train"
    title = f"{name}: {show_seconds(step.step_time_s)} a step, {step.rl.mode}"
    headline(figure, title, f"{step.all_gpus:,} accelerators; {waits}")
    legend(figure, axes)
    return figure


_COLUMNS = {
    "mode": True,
    "train": False,
    "generate": False,
    "engine": True,
    "step": False,
    "trainer waits": False,
    "generator waits": False,
    "1,000 updates": False,
    "memory": False,
    "trainer's layout": True,
}
"""Columns, and whether they hold words."""


def rl_page(answer: PricedRL) -> str:
    """Write an answer as one page that needs nothing else."""
    shown, rows = answer.shown, answer.rows
    assert shown is not None
    shapes = (rl_picture(answer, narrow=phone, svg=True) for phone in (False, True))
    wide, narrow = (shape.svg(head=False) for shape in shapes)
    name = answer.scenario.workload.architecture.name
    alt = "What generator and trainer do in two steps, and when each waits"
    return offers_page(
        "rl",
        f"{name}: {answer.line}",
        f"{shown.step.rl.algorithm.upper()}, {shown.step.rl.answers:,} answers a step on"
        f" {shown.step.all_gpus:,} accelerators; {shown.card.grade}",
        list(_COLUMNS.items()),
        [_cells(row) for row in rows],
        table="Splits",
        naming=3,
        picture=("Two steps", inline(wide, narrow, alt=alt)),
        parts=[
            ("Time of a step", ["phase", "time", "of the step"], _phases(shown)),
            ("Memory", ["phase", "memory", "usable", "", "holds"], _memory(shown)),
        ],
        views=[
            ("Would help", [_told(remedy) for remedy in answer.told]),
            (CAVEATS, list(answer.caveats)),
        ],
    )  # fmt: skip


def _phases(shown: Priced) -> list[list[str]]:
    whole = shown.step.step_time_s
    rows = [
        [word, show_seconds(seconds), show_percent(seconds / whole)]
        for word, seconds in shown.phases
    ]
    return [*rows, ["a step", show_seconds(whole), ""]]


def _memory(shown: Priced) -> list[list[str]]:
    return [
        [
            *(name, show_bytes(side.total_bytes), show_bytes(side.usable_bytes), side.verdict),
            ", ".join(f"{kind} {show_bytes(size)}" for kind, size in side.largest),
        ]
        for name, side in shown.step.memory.items()
    ]


def _told(remedy: Remedy) -> str:
    step = show_seconds(remedy.step_time_s)
    return f"{remedy.setting}: {step} a step ({remedy.why})"


def _cells(row: dict[str, Any]) -> list[Cell]:
    lag = f", {row['staleness']} off" if row["staleness"] else ""
    naming: list[Cell] = [
        (row["mode"], row["mode"] + lag, ""),
        *((row[key], f"{row[key]:,}", "") for key in ("training_gpus", "generation_gpus")),
        (row["generation_layout"], row["generation_layout"], ""),
    ]
    if row["step_time_s"] is None:
        blank: Cell = (None, "-", "")
        return [*naming, *[blank] * 5, (row["reason"], row["reason"], "")]
    return [
        *naming,
        (row["step_time_s"], show_seconds(row["step_time_s"]), ""),
        (row["trainer_waits"], show_percent(row["trainer_waits"]), ""),
        (row["generator_waits"], show_percent(row["generator_waits"]), ""),
        (row["usd"], show_usd(row["usd"]), ""),
        (row["verdict"], row["verdict"], ""),
        (row["layout"], row["layout"], ""),
    ]
