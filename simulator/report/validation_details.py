"""Figures of single rows, of groups of layouts and of scaling series."""

from __future__ import annotations

import math
from collections.abc import Sequence

from simulator.cost.terms import LABELS
from simulator.report.canvas import FULL, NARROW, legend, plain_axes, plain_log
from simulator.report.inline_svg import noted
from simulator.report.palette import colour
from simulator.report.svg_figure import SvgFigure
from simulator.report.validation_numbers import RankingGroup, layout_words
from simulator.scoring.scores import ScoredRow
from simulator.scoring.series import Series
from simulator.units import show_percent, show_seconds, show_signed_percent

_ROOM = 0.25
"""Least share of the axis of a series below its highest point, so that all look alike."""


def worst_figure(rows: Sequence[ScoredRow], *, narrow: bool) -> SvgFigure:
    """Draw one bar per row, stacked by term, over the measured time, which is the line at 1."""
    figure = SvgFigure(NARROW if narrow else FULL, (1.8 if narrow else 1.2) + 0.3 * len(rows))
    axes = figure.subplots()
    plain_axes(axes)
    left = [0.0] * len(rows)
    for term in dict.fromkeys(name for row in rows for name in row.terms_s or {}):
        seconds = [(row.terms_s or {}).get(term, 0.0) for row in rows]
        if not any(seconds):
            continue
        shares = [s / _measured(row) for s, row in zip(seconds, rows, strict=True)]
        label, ink = LABELS.get(term, term), colour(term).light
        bars = axes.barh(range(len(rows)), shares, left=left, height=0.7, color=ink, label=label)
        for bar, value, row in zip(bars, seconds, rows, strict=True):
            bar.set_gid(noted(_term_note(label, value, row)))
        left = [start + share for start, share in zip(left, shares, strict=True)]
    ends = [(row.predicted_step_s or 0.0) / _measured(row) for row in rows]
    for y, end in enumerate(ends):
        axes.text(
            max(end, 1.0) + 0.02, y, show_signed_percent(end - 1.0), va="center", fontsize=8.5
        )
    axes.axvline(1.0, color=colour("text").light, lw=1.6)
    axes.set_xlim(0.0, (1.5 if narrow else 1.15) * max(*ends, 1.0))
    names = [str(row.run.get("run_id")) for row in rows]
    axes.set_yticks(range(len(rows)), [n[-18:] if narrow else n for n in names])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel("predicted time over the measured time")
    legend(figure, axes)
    return figure


def _measured(row: ScoredRow) -> float:
    return row.measured_step_s or math.inf


def _term_note(label: str, seconds: float, row: ScoredRow) -> str:
    predicted = row.predicted_step_s or math.inf
    hidden = [f"{name} {show_seconds(s)}" for name, s in (row.hidden_s or {}).items() if s > 0.0]
    lines = [
        f"{label}: {show_seconds(seconds)}, {show_percent(seconds / predicted)} of the prediction",
        f"{row.run.get('run_id')}: predicted {show_seconds(predicted)}, measured"
        f" {show_seconds(_measured(row))}, error {show_signed_percent(row.step_error or 0.0)}",
        f"{row.run.get('model')}, {row.run.get('num_gpus')} x {row.run.get('gpu')},"
        f" {row.run.get('precision')}, {layout_words(row.run)}",
        *([f"hidden under compute, not in the bar: {', '.join(hidden)}"] if hidden else []),
    ]
    return "\n".join(lines)


def ranking_figure(group: RankingGroup, rows: Sequence[ScoredRow], *, narrow: bool) -> SvgFigure:
    """Draw the predicted over the measured order of one group; on the line, the order is right."""
    figure = SvgFigure(NARROW, 2.6)
    axes = figure.subplots()
    plain_axes(axes)
    count = len(group.places)
    axes.plot([1, count], [1, count], "--", color=colour("ideal").light, lw=1.2)
    for place in group.places:
        chosen = place.predicted_rank == 1
        ink = colour("does not fit" if chosen else "speed").light
        point = [place.measured_rank], [place.predicted_rank]
        (dot,) = axes.plot(*point, "o", color=ink, ms=7.0 if chosen else 5.0)
        said = (
            layout_words(rows[place.row].run),
            f"predicted {show_seconds(place.predicted_s)} (place {place.predicted_rank}),"
            f" measured {show_seconds(place.measured_s)} (place {place.measured_rank})",
            str(rows[place.row].run.get("run_id")),
        )
        dot.set_gid(noted("\n".join(said)))
    ticks = list(range(1, count + 1, max(1, -(-count // 5))))
    axes.set_xticks(ticks)
    axes.set_yticks(ticks)
    axes.set_xlim(0.3, count + 0.7)
    axes.set_ylim(0.3, count + 0.7)
    axes.set_xlabel("measured order")
    axes.set_ylabel("predicted order")
    return figure


def series_figure(series: Series, *, narrow: bool) -> SvgFigure:
    """Draw tokens/s per GPU over the number of GPUs: predicted as a curve, measured as points."""
    figure = SvgFigure(NARROW, 2.6)
    axes = figure.subplots()
    plain_axes(axes)
    axes.grid(axis="y")
    gpus = [int(n) for n in series.gpus]
    ours = series.predicted_tokens_per_s_per_gpu.tolist()
    theirs = series.tokens_per_s_per_gpu.tolist()
    axes.plot(gpus, ours, "-", color=colour("speed").light, lw=2.0)
    for i, (n, row) in enumerate(zip(gpus, series.rows, strict=True)):
        guess, time = float(series.predicted_s[i]), float(series.measured_s[i])
        (dot,) = axes.plot([n], [theirs[i]], "o", color=colour("text").light, ms=5.5)
        said = (
            f"{n:,} GPUs: predicted {ours[i]:,.0f}, measured {theirs[i]:,.0f} tokens/s per GPU",
            f"step: predicted {show_seconds(guess)}, measured {show_seconds(time)},"
            f" error {show_signed_percent(guess / time - 1.0)}",
            f"{row.run.get('run_id')}: {layout_words(row.run)}",
        )
        dot.set_gid(noted("\n".join(said)))
    sizes = sorted(set(gpus))
    kept = sizes if len(sizes) <= 5 else sizes[::2]
    plain_log(axes, "x")
    axes.set_xlim(0.85 * sizes[0], 1.2 * sizes[-1])
    axes.set_xticks(kept, [f"{n:,}" for n in kept])
    values, top = [*ours, *theirs], max(*ours, *theirs)
    axes.set_ylim(min((1 - _ROOM) * top, 0.97 * min(values)), 1.04 * top)
    axes.set_xlabel("GPUs")
    axes.set_ylabel("tokens/s per GPU")
    return figure
