"""Pictures of the report: memory, time, speed-up; `narrow` ones are for phones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simulator.cost.estimate import VERDICTS
from simulator.cost.terms import LABELS, MEMORY_MEANING, TERMS
from simulator.planner.scaling import CAUSES, ScalingPoint
from simulator.report.canvas import (
    NARROW,
    canvas,
    headline,
    ink_on,
    legend,
    new_figure,
    plain_axes,
    wrapped,
)
from simulator.report.comparison import TimeBar
from simulator.report.inline_svg import noted
from simulator.report.numbers import MemoryReport, PlanNumbers
from simulator.report.palette import colour
from simulator.report.svg_figure import SvgAxes
from simulator.units import (
    GIB,
    show_bytes,
    show_percent,
    show_seconds,
    show_seconds_span,
    show_signed_percent,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from simulator.planner.plan import Plan

_FORMULAS = {term.name: term.formula for term in TERMS}

_BELOW = 0.24
"""How far an interval lies below the middle of its bar, where values stand."""

_SMALL = 0.002
"""Shares of a bar below this are drawn but get no legend entry."""


def memory_picture(numbers: PlanNumbers, *, narrow: bool = False, svg: bool = False) -> Any:
    """Draw memory by kind for every pipeline stage, against usable memory and capacity."""
    report = numbers.memory
    count = len(report.stages)
    room = 3.4 if narrow else 2.7
    figure, axes = canvas(NARROW if narrow else 10.0, min(room + 0.34 * count, 11.0), svg=svg)
    columns = {k: [s.memory_bytes[k] / GIB for s in report.stages] for k in report.kinds}
    notes = {kind: _memory_notes(report, kind) for kind in report.kinds}
    _stack(axes, columns, {k: f"{k} {max(v):.1f}" for k, v in columns.items()}, notes)
    fullest = max(stage.memory_total_bytes for stage in report.stages)
    _intervals(axes, report)
    highest = max(stage.memory_p90_bytes or 0.0 for stage in report.stages)
    limits = (report.usable_bytes, report.capacity_bytes, highest)
    axes.set_xlim(0, (1.3 if narrow else 1.12) * max(fullest, *limits) / GIB)
    _limit_lines(axes, *limits[:2])
    every = -(-count // 24)
    names = [f"stage {i}" for i in range(0, count, every)] if count > 1 else ["every GPU"]
    axes.set_yticks(range(0, count, every), names)
    axes.set_ylim(count - 0.4, -0.85)
    axes.set_xlabel("GiB per GPU at the stage's fullest moment")
    verdict = max((stage.verdict for stage in report.stages), key=VERDICTS.index)
    title = f"{show_bytes(fullest)} of {show_bytes(report.usable_bytes)} usable: {verdict}"
    ink = dict(zip(VERDICTS, ("fits", "tight", "does not fit"), strict=True))[verdict]
    headline(figure, title, f"{numbers.title}\n{numbers.best.described}", ink)
    legend(figure, axes)
    return figure


def _memory_notes(report: MemoryReport, kind: str) -> list[str]:
    """What every stage's part of a kind says of itself."""
    return [
        f"{kind}: {show_bytes(size := stage.memory_bytes[kind])},"
        f" {show_percent(size / stage.memory_total_bytes)} of"
        f" {show_bytes(stage.memory_total_bytes)} on stage {stage.stage},"
        f" peak at: {stage.moment}. {MEMORY_MEANING[kind]}"
        for stage in report.stages
    ]


def time_picture(numbers: PlanNumbers, *, narrow: bool = False, svg: bool = False) -> Any:
    """Draw the step term by term for the best layout, the runner-up and plain data parallelism."""
    bars = numbers.bars
    figure, axes = canvas(
        NARROW if narrow else 10.0, (3.6 if narrow else 2.9) + 0.62 * len(bars), svg=svg
    )
    names = [c.name for c in numbers.changes]
    longest = max(bar.p90_s for bar in bars)
    columns = {name: [bar.terms_s[name] for bar in bars] for name in names}
    shown = {n: LABELS.get(n, n) for n in names if max(columns[n]) > _SMALL * longest}
    notes = {name: [_time_note(name, bar) for bar in bars] for name in names}
    _stack(axes, columns, shown, notes, write=(0.16 if narrow else 0.06) * longest)
    ink = colour("text").light
    axes.hlines(
        [y + _BELOW for y in range(len(bars))],
        [b.p10_s for b in bars],
        [b.p90_s for b in bars],
        color=ink,
        lw=1.4,
        label="P10 to P90",
    )
    for y, bar in enumerate(bars):
        text = f"{show_seconds(bar.step_time_s)}, {bar.verdict}"
        axes.text(bar.p90_s + 0.01 * longest, y, text, va="center", fontsize=9)
    axes.set_xlim(0, (1.42 if narrow else 1.17) * longest)
    axes.set_ylim(len(bars) - 0.5, -0.5)
    width = 16 if narrow else 26
    names = [f"{wrapped(bar.named, width)}\n{wrapped(bar.layout, width)}" for bar in bars]
    axes.set_yticks(range(len(bars)), names, fontsize=8 if narrow else 9)
    axes.set_xlabel("seconds per step")
    span = show_seconds_span(bars[0].p10_s, bars[0].p90_s)
    title = f"{show_seconds(bars[0].step_time_s)} per step (P10 to P90: {span}), term by term"
    headline(figure, title, numbers.title)
    legend(figure, axes)
    return figure


def _time_note(name: str, bar: TimeBar) -> str:
    """What one part of a bar says of itself."""
    seconds = bar.terms_s[name]
    return (
        f"{LABELS.get(name, name)}: {show_seconds(seconds)},"
        f" {show_percent(seconds / bar.step_time_s)} of the step. {bar.named}, {bar.layout}."
        f" {_FORMULAS.get(name, '')}"
    )


def speedup_picture(numbers: PlanNumbers, *, narrow: bool = False, svg: bool = False) -> Any:
    """Draw speed-up over the number of GPUs, and what eats the speed-up ratio at each."""
    figure = new_figure(*((NARROW, 8.6) if narrow else (11.0, 5.2)), svg=svg)
    if narrow:
        left, right = figure.subplots(2, 1)
    else:
        left, right = figure.subplots(1, 2, width_ratios=(1.0, 1.15))
    for axes in (left, right):
        plain_axes(axes)
    points = numbers.scaling.points
    fitting = [p for p in points if p.estimate is not None]
    _speed(left, points, fitting)
    _eaten(right, fitting)
    title = f"{numbers.scaling.single_card_tokens_per_s:,.0f} tokens/s on a single card"
    if fitting:
        last = fitting[-1]
        title += f" x {last.gpus:,} GPUs x {last.ratio:.2f} = {last.tokens_per_s:,.0f} tokens/s"
    base = f"a single card is one of {numbers.scaling.base_gpus}, the fewest GPUs that fit"
    headline(figure, title, f"{numbers.title}; {base}; global batch unchanged")
    legend(figure, right)
    return figure


def _speed(
    axes: Axes | SvgAxes, points: Sequence[ScalingPoint], fitting: Sequence[ScalingPoint]
) -> None:
    """Speed-up on log axes beside the ideal line; sizes that do not fit are crosses at its foot."""
    text, ink, grey = colour("text").light, colour("speed").light, colour("ideal").light
    if not fitting:
        return
    gpus, base = [p.gpus for p in fitting], fitting[0].gpus
    axes.plot(gpus, [n / base for n in gpus], "--", color=grey, label="ideal", zorder=1)
    slow, fast = ([p.speedup_span[end] for p in fitting] for end in (0, 1))
    axes.fill_between(gpus, slow, fast, color=ink, alpha=0.18, lw=0, label="P10 to P90")
    axes.plot(gpus, [p.speedup for p in fitting], "o-", color=ink, label="best layout", zorder=2)
    low = 1.0 / 1.6
    for point in fitting:
        label = f"{point.speedup:.3g}x"
        below = point.ratio < 1.0
        shift = (6, -13) if below else (-6, 7)
        axes.annotate(
            label,
            (point.gpus, point.speedup),
            shift,
            textcoords="offset points",
            ha="left" if below else "right",
            fontsize=8.5,
            color=text,
        )
    missing = [p.gpus for p in points if p.estimate is None]
    if missing:
        red = colour("does not fit").light
        axes.plot(missing, [low * 1.15] * len(missing), "x", color=red, label="nothing fits")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks([p.gpus for p in points], [f"{p.gpus:,}" for p in points], fontsize=8.5)
    axes.set_xticks([], minor=True)
    ceiling = max([p.speedup for p in fitting] + [gpus[-1] / base])
    axes.set_ylim(low, 2.0 * ceiling)
    axes.set_xlim(points[0].gpus / 1.5, points[-1].gpus * 1.3)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.set_xlabel("GPUs"), axes.set_title("speed-up", loc="left", fontsize=10.5)
    axes.legend(frameon=False, fontsize=9, loc="upper left")


def _eaten(axes: Axes | SvgAxes, fitting: Sequence[ScalingPoint]) -> None:
    """By size, the share of GPU time that each cause adds (right) or saves (left)."""
    rows = [p for p in fitting if any(p.eaten.values())]
    if not rows:
        axes.set_axis_off()
        axes.text(0.1, 0.5, "only one number of GPUs fits: nothing to compare", fontsize=9)
        return
    axes.set_title("what eats the ratio: 1 - ratio by cause", loc="left", fontsize=10.5)
    ends = {True: [0.0] * len(rows), False: [0.0] * len(rows)}
    for cause in CAUSES:
        values = [p.eaten.get(cause, 0.0) for p in rows]
        for y, value in enumerate(values):
            if not value:
                continue  # each bar of no length would take as long to draw as any other
            end = ends[value > 0]
            (bar,) = axes.barh(y, value, left=end[y], height=0.62, color=colour(cause).light, lw=0)
            share, gpus = show_signed_percent(value), rows[y].gpus
            bar.set_gid(noted(f"{CAUSES[cause]}: {share} of GPU time at {gpus:,} GPUs"))
            end[y] += value
        if max(abs(value) for value in values) > 0.001:
            axes.barh(0, 0, color=colour(cause).light, label=LABELS.get(cause, CAUSES[cause]))
    room = max(max(ends[True]), -min(ends[False]), 0.02)
    for y, point in enumerate(rows):
        axes.text(
            ends[True][y] + 0.03 * room, y, f"ratio {point.ratio:.2f}", va="center", fontsize=8.5
        )
    axes.axvline(0, color=colour("text").light, lw=0.8)
    axes.set_yticks(range(len(rows)), [f"{p.gpus:,}" for p in rows], fontsize=8.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(1.1 * min(ends[False]), max(ends[True]) + 0.45 * room)
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")
    axes.set_xlabel("saves   <   share of GPU time   >   costs"), axes.set_ylabel("GPUs")


def _stack(
    axes: Axes | SvgAxes,
    columns: Mapping[str, Sequence[float]],
    labels: Mapping[str, str],
    notes: Mapping[str, Sequence[str]],
    write: float = 0.0,
) -> None:
    """Stack one horizontal bar per entry; parts longer than `write` carry their value.

    `notes` are what parts say of themselves on a page.
    """
    count = len(next(iter(columns.values())))
    left = [0.0] * count
    for name, values in columns.items():
        drawn = axes.barh(
            range(count),
            values,
            left=left,
            height=0.66 if count < 25 else 1.0,
            lw=0.4,
            edgecolor="white",
            color=colour(name).light,
            label=labels.get(name, "_"),
        )
        for bar, text in zip(drawn, notes[name], strict=True):
            bar.set_gid(noted(text))
        for y, value in enumerate(values):
            if write and value > write:
                axes.text(
                    left[y] + value / 2,
                    y,
                    f"{value:.3g}",
                    ha="center",
                    va="center",
                    fontsize=8,
                    color=ink_on(colour(name).light),
                )
        left = [start + value for start, value in zip(left, values, strict=True)]


def _intervals(axes: Axes | SvgAxes, report: MemoryReport) -> None:
    """A thin line from P10 to P90 below the middle of every stage that has them."""
    known = [
        (y, stage.memory_p10_bytes / GIB, stage.memory_p90_bytes / GIB)
        for y, stage in enumerate(report.stages)
        if stage.memory_p10_bytes is not None and stage.memory_p90_bytes is not None
    ]
    if known:
        rows, low, high = zip(*known, strict=True)
        lines = [row + _BELOW for row in rows]
        axes.hlines(lines, low, high, color=colour("text").light, lw=1.4, label="P10 to P90")


def _limit_lines(axes: Axes | SvgAxes, usable: float, capacity: float) -> None:
    """The line that decides (usable memory) and the datasheet's, labelled on the outer sides."""
    red, grey = colour("does not fit").light, colour("quiet").light
    first = usable <= capacity
    for size, word, ink, style, right in (
        (usable, "usable", red, "-", not first),
        (capacity, "datasheet", grey, "--", first),
    ):
        axes.axvline(size / GIB, color=ink, ls=style, lw=1.6)
        axes.annotate(
            f"{word} {size / GIB:.1f}",
            (size / GIB, 1.0),
            (5 if right else -5, -3),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="left" if right else "right",
            va="top",
            fontsize=8.5,
            color=ink,
        )


def front_picture(plan: Plan, title: str, *, narrow: bool = False, svg: bool = False) -> Any:
    """Draw time against free memory of a plan's layouts; those on the Pareto front are filled."""
    figure, axes = canvas(NARROW if narrow else 10.0, 4.2 if narrow else 4.6, svg=svg)
    axes.grid(axis="y", color=colour("grid").light, lw=0.7)
    estimate, best = plan.estimate, plan.pareto
    free = 100.0 * (1.0 - estimate.memory_total_bytes / estimate.usable_bytes)
    ink = colour("speed").light
    axes.plot(free, estimate.step_time_s, "o", color=colour("ideal").light, mfc="none", ms=4.0)
    for i in best:
        (dot,) = axes.plot(free[i], estimate.step_time_s[i], "o", color=ink, ms=6.0)
        step = show_seconds(float(estimate.step_time_s[i]))
        dot.set_gid(noted(f"{estimate.layouts.describe(int(i))}: {step}, {free[i]:.1f} % free"))
    axes.set_xlabel("memory free on the fullest accelerator, %")
    axes.set_ylabel("seconds per step")
    words = f"{len(best)} of {len(estimate):,} layouts beaten by no other"
    headline(figure, words, f"{title}; in all of time, money, free memory and energy")
    return figure
