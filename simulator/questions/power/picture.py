"""The picture of a cap: time and energy of the fastest choice over caps, by accelerators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulator.report.canvas import headline, legend, new_figure, plain_axes
from simulator.report.palette import CATEGORIES, category, colour

if TYPE_CHECKING:
    from simulator.questions.power.answer import PowerChoices


def draw_power(axes: Any, answer: PowerChoices, *, energy: bool = False) -> None:
    """Draw the frontier: the step, or tokens for a kilowatt-hour, over the cap."""
    caps = [point.cap_kw for point in answer.frontier]
    heights = [_height(point.choice, energy) for point in answer.frontier]
    axes.plot(caps, heights, color=colour("grid").light, lw=1.4)
    counts = sorted({point.choice.gpus for point in answer.frontier}, reverse=True)
    for number, gpus in enumerate(counts):
        points = [point for point in answer.frontier if point.choice.gpus == gpus]
        axes.plot(
            [point.cap_kw for point in points],
            [_height(point.choice, energy) for point in points],
            "o",
            color=CATEGORIES[category(number)].light,
            ms=5.0,
            label=f"{gpus:,} run",
        )
    axes.plot(answer.best.kw, _height(answer.best, energy), "D", color="black", mfc="none", ms=9.0)
    axes.set_xlabel("cap of the hall, kW; diamond: the cap that is asked for")
    axes.set_ylabel("tokens a kWh" if energy else "seconds a step")


def _height(choice: Any, energy: bool) -> float:
    return float(choice.tokens_per_kwh if energy else choice.step_time_s)


def power_picture(answer: PowerChoices, *, svg: bool = False) -> Any:
    """Draw time and energy side by side."""
    figure = new_figure(12.0, 4.4, svg=svg)
    left, right = figure.subplots(1, 2)
    for axes, energy in ((left, False), (right, True)):
        plain_axes(axes)
        axes.grid(axis="y", color=colour("grid").light, lw=0.7)
        draw_power(axes, answer, energy=energy)
    name = answer.scenario.workload.architecture.name
    headline(figure, f"{name} under {answer.cap_kw:,.0f} kW", answer.line)
    legend(figure, left)
    return figure
