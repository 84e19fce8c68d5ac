"""The figures of the page of a validation: predicted against measured, errors, scale, memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simulator.report.canvas import HALF, NARROW, WIDE, legend, plain_axes, plain_log
from simulator.report.inline_svg import inline, noted
from simulator.report.palette import CATEGORIES, Sign, category, colour, gpu_sign, symbol
from simulator.report.svg_figure import SvgAxes, SvgFigure
from simulator.report.validation_numbers import (
    BIN,
    OUTER,
    ValidationNumbers,
    benchmark_figure,
    cumulative,
    histogram,
    layout_words,
    split_of,
)
from simulator.scoring.scores import SCORED_MEMORY, ScoredRow
from simulator.units import show_percent, show_seconds, show_signed_percent

if TYPE_CHECKING:
    from markupsafe import Markup
from simulator.cost.terms import LABELS
from simulator.report.canvas import FULL
from simulator.report.validation_numbers import RankingGroup
from simulator.scoring.series import Series

# --- rows, groups of layouts, scaling series ---------------------------------------------

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


BAND = 0.10
"""Half width of the band around a perfect prediction."""

_FAR = 0.6
"""Errors above this lie outside the picture of how many runs are at most so far off."""

_FITTED = "calibrate"

Draw = Callable[..., SvgFigure]
"""Draws a figure; `narrow` for a phone."""


def validation_figures(numbers: ValidationNumbers) -> dict[str, Markup]:
    """Make every figure of the page that there is anything to draw in, by its name."""
    drawn = {name: (alt, draw) for name, alt, draw in _figures(numbers)}
    return {
        name: inline(draw(narrow=False).svg(), draw(narrow=True).svg(), alt=alt)
        for name, (alt, draw) in drawn.items()
    }


def _figures(numbers: ValidationNumbers) -> Iterable[tuple[str, str, Draw]]:
    scored = [row for row in numbers.rows if row.step_error is not None]
    pooled = [row for row in scored if not row.composed]
    read = [row for row in numbers.rows if row.predicted_memory_gib and row.measured_memory_gib]
    if scored:
        yield "agreement", "Predicted against measured step time", _of(agreement_figure, scored)
    if pooled:
        yield "histogram", "How errors are spread", _of(histogram_figure, pooled)
        yield (
            "cumulative",
            "Share of runs that are at most so far off",
            _of(cumulative_figure, pooled),
        )
        yield "scale", "Error over the number of GPUs", _of(scale_figure, pooled)
        worst = [numbers.rows[i] for i in numbers.worst]
        yield "worst", "Terms of the runs furthest off", _of(worst_figure, worst)
    if read:
        yield "memory", "Predicted against measured memory", _of(memory_readings_figure, read)
    for i, group in enumerate(numbers.rankings):
        if not group.score["composed"]:
            alt = f"Predicted over measured order of {group.score['group']}"
            yield f"ranking-{i}", alt, _of(ranking_figure, group, numbers.rows)
    for i, curve in enumerate(numbers.series):
        yield f"series-{i}", "Tokens/s per GPU over GPUs", _of(series_figure, curve)
    for i, table in enumerate(numbers.benchmarks):
        if table.lines:
            yield f"benchmark-{i}", "Predicted over measured time", _of(benchmark_figure, table)


def _of(draw: Callable[..., SvgFigure], *what: Any) -> Draw:
    return lambda *, narrow: draw(*what, narrow=narrow)


# --- notes -------------------------------------------------------------------------------


def row_note(row: ScoredRow) -> str:
    """Say what a row is and how its prediction came out; empty for one that was not predicted."""
    if row.status != "ok":
        return ""
    run = row.run
    lines = (
        f"{run.get('run_id')} ({split_of(row)})",
        f"{run.get('model')}, {run.get('num_gpus')} x {run.get('gpu')},"
        f" {run.get('precision')}, {run.get('software')}",
        f"{layout_words(run)}; sequence {run.get('seq_len')}, batch {run.get('global_batch')}",
        *_time_lines(row),
        *_memory_lines(row),
    )
    return "\n".join(lines)


def _time_lines(row: ScoredRow) -> Iterable[str]:
    if row.predicted_step_s is None:
        return
    told = f"predicted {show_seconds(row.predicted_step_s)}"
    if row.p10_s is not None and row.p90_s is not None:
        told += f" ({show_seconds(row.p10_s)} to {show_seconds(row.p90_s)})"
    if row.measured_step_s is None or row.step_error is None:
        yield told
        return
    yield (
        f"{told}, measured {show_seconds(row.measured_step_s)}:"
        f" error {show_signed_percent(row.step_error)}"
    )
    if row.baseline_error is not None:
        yield f"baseline: error {show_signed_percent(row.baseline_error)}"
    if row.measured_mfu is not None:
        own = row.measured_mfu_own
        same = own is None or math.isclose(own, row.measured_mfu)
        more = "" if same or own is None else f", of its own type {show_percent(own)}"
        yield f"measured MFU: of the bf16 peak {show_percent(row.measured_mfu)}{more}"


def _memory_lines(row: ScoredRow) -> Iterable[str]:
    if row.predicted_memory_gib is None or row.measured_memory_gib is None:
        return
    error = row.memory_error
    verdict = "not scored" if error is None else f"error {show_signed_percent(error)}"
    yield (
        f"memory ({row.memory_kind}): predicted {row.predicted_memory_gib:.1f} GiB,"
        f" measured {row.measured_memory_gib:.1f} GiB: {verdict}"
    )


# --- points ------------------------------------------------------------------------------


def _frame(narrow: bool, width: float, height: float) -> tuple[SvgFigure, SvgAxes]:
    figure = SvgFigure(NARROW if narrow else width, height)
    axes = figure.subplots()
    plain_axes(axes)
    axes.grid(axis="y")
    return figure, axes


def _points(
    axes: SvgAxes,
    rows: Sequence[ScoredRow],
    name_of: Callable[[ScoredRow], str],
    place: Callable[[ScoredRow], tuple[float, float]],
    hollow: Callable[[ScoredRow], bool],
    signs: Mapping[str, Sign],
    *,
    note: Callable[[ScoredRow], str] | None,
) -> None:
    """Draw a point for each row: a sign for each name, hollow where `hollow` says so."""
    named: set[str] = set()
    for row in sorted(rows, key=lambda row: name_of(row).casefold()):
        name = name_of(row)
        sign, (x, y) = signs[name], place(row)
        ink = sign.ink.light
        fill = "white" if hollow(row) else ink
        label = None if name in named else name
        (dot,) = axes.plot([x], [y], sign.shape, color=ink, mfc=fill, ms=4.5, label=label)
        named.add(name)
        if note is not None:
            dot.set_gid(noted(note(row)))


def _signs(rows: Sequence[ScoredRow], name_of: Callable[[ScoredRow], str]) -> dict[str, Sign]:
    names = sorted({name_of(row) for row in rows}, key=str.casefold)
    return {name: Sign(symbol(i), CATEGORIES[category(i)]) for i, name in enumerate(names)}


def _gpu_signs(rows: Sequence[ScoredRow]) -> dict[str, Sign]:
    names = sorted({_gpu(row) for row in rows}, key=str.casefold)
    return {name: gpu_sign(name.lower(), i) for i, name in enumerate(names)}


def _gpu(row: ScoredRow) -> str:
    name = row.run.get("gpu") or "not stated"
    return f"{name}, composed" if row.composed else name


def _fitted(row: ScoredRow) -> bool:
    return split_of(row) == _FITTED


def _band(axes: SvgAxes, low: float, high: float) -> None:
    """Draw where a perfect prediction lies, and the band around it."""
    ends, ink = [low, high], colour("ideal").light
    lower, upper = ([end * side for end in ends] for side in (1.0 - BAND, 1.0 + BAND))
    axes.fill_between(ends, lower, upper, color=ink, alpha=0.2)
    axes.plot(ends, ends, "--", color=ink, lw=1.2)
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)


def agreement_figure(scored: Sequence[ScoredRow], *, narrow: bool) -> SvgFigure:
    """Predicted against measured seconds, by GPU; hollow where figures may be fitted on a run."""
    figure, axes = _frame(narrow, HALF, 4.2 if narrow else 5.6)
    seconds = [time for row in scored for time in _times(row)]
    for side in ("x", "y"):
        plain_log(axes, "x" if side == "x" else "y")
    _band(axes, min(seconds) / 1.3, 1.3 * max(seconds))
    note = None if narrow else row_note
    _points(axes, scored, _gpu, _times, _fitted, _gpu_signs(scored), note=note)
    axes.set_xlabel("measured seconds a step")
    axes.set_ylabel("predicted seconds a step")
    legend(figure, axes)
    return figure


def _times(row: ScoredRow) -> tuple[float, float]:
    return row.measured_step_s or 0.0, row.predicted_step_s or 0.0


# --- how errors are spread ---------------------------------------------------------------


def _by_split(rows: Iterable[ScoredRow]) -> dict[str, list[ScoredRow]]:
    parts: dict[str, list[ScoredRow]] = {}
    for row in rows:
        parts.setdefault(split_of(row), []).append(row)
    return dict(sorted(parts.items()))


def histogram_figure(pooled: Sequence[ScoredRow], *, narrow: bool) -> SvgFigure:
    """Signed errors in bins, as shares of each split's rows."""
    figure, axes = _frame(narrow, HALF, 3.4)
    splits, top = _by_split(pooled), 1.0
    for number, (split, some) in enumerate(splits.items()):
        edges, counts = histogram([row.step_error or 0.0 for row in some])
        ink, wide = CATEGORIES[category(number)].light, 0.9 * BIN / len(splits)
        for edge, count in zip(edges, counts, strict=True):
            if count:
                start, share = edge + 0.05 * BIN + number * wide, 100.0 * count / len(some)
                spans = [[100 * start], [100 * (start + wide)]]
                bar = axes.boxes(spans, 0.0, share, facecolor=ink)
                bar.set_gid(noted(f"{_bin_words(edge)}: {count} of {len(some)} rows of {split}"))
                top = max(top, share)
        axes.barh([0.0], [0.0], color=ink, label=f"{split}, n = {len(some)}")
    axes.axvline(0.0, color=colour("ideal").light, lw=1.2)
    axes.set_xlim(-100 * (OUTER + BIN), 100 * (OUTER + BIN))
    axes.set_ylim(0.0, 1.08 * top)
    axes.set_xlabel("predicted / measured - 1, %")
    axes.set_ylabel("% of the split's rows")
    legend(figure, axes)
    return figure


def _bin_words(edge: float) -> str:
    if edge < -OUTER:
        return f"below {show_signed_percent(-OUTER)}"
    if edge >= OUTER:
        return f"{show_signed_percent(OUTER)} and more"
    return f"{show_signed_percent(edge)} to {show_signed_percent(edge + BIN)}"


def cumulative_figure(pooled: Sequence[ScoredRow], *, narrow: bool) -> SvgFigure:
    """Share of rows that are at most so far off: ours as lines, the baseline's dashed."""
    figure, axes = _frame(narrow, HALF, 3.4)
    largest = BAND
    for number, (split, some) in enumerate(_by_split(pooled).items()):
        ours = [row.step_error for row in some if row.step_error is not None]
        base = [row.baseline_error for row in some if row.baseline_error is not None]
        ink = CATEGORIES[category(number)].light
        for errors, word, dash in ((ours, split, "-"), (base, f"baseline, {split}", "--")):
            if errors:
                sizes, shares = cumulative(errors)
                largest = max(largest, sizes[-1])
                shown = [(100 * x, 100 * y) for x, y in zip(sizes, shares, strict=True)]
                shown = [point for point in shown if point[0] <= 100 * _FAR]
                x = [0.0, *(x for x, _ in shown for _ in "ab")]
                y = [0.0, 0.0, *(y for _, y in shown for _ in "ab")][: len(x)]
                axes.plot(x, y, dash, color=ink, lw=1.8, label=word)
    axes.axvline(100 * BAND, color=colour("ideal").light, lw=1.2)
    axes.set_xlim(0.0, 100 * min(largest, _FAR))
    axes.set_ylim(0.0, 101.0)
    axes.set_xlabel("|predicted / measured - 1|, %")
    axes.set_ylabel("% of the split's rows")
    legend(figure, axes)
    return figure


def scale_figure(pooled: Sequence[ScoredRow], *, narrow: bool) -> SvgFigure:
    """Error against the number of GPUs, by kind of model."""
    figure, axes = _frame(narrow, HALF, 4.2 if narrow else 5.6)
    axes.set_xscale("log", base=2)
    gpus = [_gpus_and_error(row)[0] for row in pooled]
    axes.set_xlim(min(gpus) / 1.4, max(gpus) * 1.4)
    powers = range(math.floor(math.log2(min(gpus))), math.ceil(math.log2(max(gpus))) + 1)
    kept = [2**power for power in powers][:: 2 if len(powers) > 8 else 1]
    axes.set_xticks(kept, [f"{n:,}" for n in kept])
    ink = colour("ideal").light
    for level, dash in ((0.0, "-"), (100 * BAND, ":"), (-100 * BAND, ":")):
        axes.axhline(level, color=ink, lw=1.2, ls=dash)
    note = None if narrow else _short_note
    signs = _signs(pooled, lambda row: row.kind)
    _points(axes, pooled, lambda row: row.kind, _gpus_and_error, _fitted, signs, note=note)
    axes.set_xlabel("GPUs")
    axes.set_ylabel("predicted / measured - 1, %")
    legend(figure, axes)
    return figure


def _short_note(row: ScoredRow) -> str:
    return f"{row.run.get('run_id')}: {show_signed_percent(row.step_error or 0.0)}"


def _gpus_and_error(row: ScoredRow) -> tuple[float, float]:
    return float(row.run.get("num_gpus")), 100 * (row.step_error or 0.0)


def memory_readings_figure(read: Sequence[ScoredRow], *, narrow: bool) -> SvgFigure:
    """Predicted against measured memory by kind of reading; hollow where it is not scored."""
    figure, axes = _frame(narrow, WIDE, 4.2)

    def kind(row: ScoredRow) -> str:
        return row.memory_kind or "not stated"

    def place(row: ScoredRow) -> tuple[float, float]:
        return row.measured_memory_gib or 0.0, row.predicted_memory_gib or 0.0

    _band(axes, 0.0, 1.05 * max(max(place(row)) for row in read))
    note = None if narrow else row_note
    signs = _signs(read, kind)
    _points(axes, read, kind, place, lambda r: kind(r) not in SCORED_MEMORY, signs, note=note)
    axes.set_xlabel("measured GiB")
    axes.set_ylabel("predicted GiB")
    legend(figure, axes)
    return figure
