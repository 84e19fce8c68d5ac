"""The picture of a comparison: speed-up, MFU and money over accelerators, money against days."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulator.report.canvas import (
    NARROW,
    headline,
    legend,
    money_axis,
    new_figure,
    plain_axes,
    plain_log,
)
from simulator.report.palette import CATEGORIES, category, colour
from simulator.report.svg_figure import SvgAxes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from simulator.questions.compare.answer import Comparison, Curve

_DAYS = "days (P50)"


def comparison_picture(answer: Comparison, *, narrow: bool = False, svg: bool = False) -> Any:
    """Draw curves over the number of accelerators, and money against days with the Pareto front."""
    size, shape = ((NARROW, 15.0), (4, 1)) if narrow else ((12.0, 8.0), (2, 2))
    figure = new_figure(*size, svg=svg)
    speed, mfu, money, front = figure.subplots(*shape).flat
    curves = answer.curves()
    scale, unit = _money(answer)
    for axes in (speed, mfu, money, front):
        plain_axes(axes)
        axes.grid(axis="y", color=colour("grid").light, lw=0.7)
    for number, curve in enumerate(curves):
        ink = CATEGORIES[category(number)].light
        _line(speed, curve, curve.speedup, ink, label=curve.cluster)
        _line(mfu, curve, tuple(100.0 * value for value in curve.mfu), ink)
        paid = [(g, usd / scale) for g, usd in zip(curve.gpus, curve.usd, strict=True) if usd]
        if paid:
            money.plot(*zip(*paid, strict=True), color=ink, marker="o", ms=3.5, lw=1.4)
    for axes, words in ((speed, "speed-up over the smallest size"), (mfu, "MFU, %")):
        axes.set_ylabel(words)
    money.set_ylabel(f"{unit} (P50)")
    plain_log(speed, "y", base=2, suffix="x")
    for axes in (speed, mfu, money):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("accelerators")
        sizes = sorted({gpus for curve in curves for gpus in curve.gpus})
        shown = [n for n in sizes if n == sizes[0] or n >= 1.4 * max(m for m in sizes if m < n)]
        axes.set_xticks(shown, [f"{n:,}" for n in shown], minor=False)
        axes.set_xticks([], minor=True)
    draw_front(front, answer)
    arch = answer.scenario.workload.architecture
    knees = "; rings: knee" if any(curve.knee is not None for curve in curves) else ""
    able = f"{len(answer.feasible)} of {len(answer.rows)} offers can run"
    able += f"; Pareto front: of time, money, free memory and energy{knees}"
    able += "; money at assumed prices" * any(row.assumed_price for row in answer.feasible)
    headline(figure, f"{arch.name} on {len(curves)} clusters", able)
    legend(figure, speed)
    return figure


def _money(answer: Comparison) -> tuple[float, str]:
    """What amounts are divided by, and the words of their axis."""
    return money_axis(max((row.usd.p50 for row in answer.feasible if row.usd), default=1.0))


def draw_front(axes: Axes | SvgAxes, answer: Comparison) -> None:
    """Draw money against days of every offer; those on the Pareto front are filled."""
    best = {id(row) for row in answer.pareto()}
    names = [curve.cluster for curve in answer.curves()]
    scale, unit = _money(answer)
    for row in answer.feasible:
        if row.days is None or row.usd is None:
            continue
        ink = CATEGORIES[category(names.index(row.named))].light
        filled = ink if id(row) in best else "white"
        axes.plot(row.days.p50, row.usd.p50 / scale, "o", color=ink, mfc=filled, ms=6.0)
    plain_log(axes, "x")
    axes.set_xlabel(f"{_DAYS}; filled: on the Pareto front")
    axes.set_ylabel(f"{unit} (P50)")


def _line(
    axes: Axes | SvgAxes,
    curve: Curve,
    values: tuple[float, ...],
    ink: str,
    *,
    label: str | None = None,
) -> None:
    """One curve; its knee is a ring."""
    axes.plot(curve.gpus, values, color=ink, marker="o", ms=3.5, lw=1.4, label=label)
    if curve.knee is not None:
        at = curve.gpus.index(curve.knee)
        axes.plot(curve.knee, values[at], "o", color=ink, mfc="none", ms=10.0)
