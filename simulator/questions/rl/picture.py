"""The picture of a step of reinforcement learning: two lanes, phases, and what each waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulator.reinforcement.timeline import LANES, WORDS, timeline
from simulator.report.canvas import NARROW, headline, ink_on, legend, new_figure, plain_axes
from simulator.report.palette import colour
from simulator.units import show_percent, show_seconds

if TYPE_CHECKING:
    from simulator.questions.rl.answer import Priced, PricedRL

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
