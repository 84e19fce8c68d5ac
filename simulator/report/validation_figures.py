"""The figures of the page of a validation as plotly documents, without colours (``drawing.py``).

A point's hover note is the index of its row: the page holds one note for each row, and looks it up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from simulator.report.drawing import Document, document, frame, note, plain
from simulator.report.palette import category, symbol
from simulator.report.validation_benchmarks import benchmark_figure
from simulator.report.validation_details import ranking_figure, series_figure, worst_figure
from simulator.report.validation_numbers import (
    BIN,
    OUTER,
    ValidationNumbers,
    cumulative,
    histogram,
    layout_words,
    split_of,
)
from simulator.scoring.scores import SCORED_MEMORY, ScoredRow
from simulator.units import show_percent, show_seconds, show_signed_percent

BAND = 0.10
"""Half width of the band around a perfect prediction."""

_FITTED = "calibrate"
_TICKS = (1, 2, 5)

Rows = Iterable[tuple[int, ScoredRow]]


def validation_figures(numbers: ValidationNumbers) -> list[Document]:
    """Make every figure of the page that there is anything to draw in."""
    scored = [(i, row) for i, row in enumerate(numbers.rows) if row.step_error is not None]
    pooled = [(i, row) for i, row in scored if not row.composed]
    read = [
        (i, row)
        for i, row in enumerate(numbers.rows)
        if row.predicted_memory_gib and row.measured_memory_gib
    ]
    made = []
    if scored:
        made.append(agreement_figure(scored))
    if pooled:
        made += [histogram_figure(pooled), cumulative_figure(pooled), scale_figure(pooled)]
        made.append(worst_figure([numbers.rows[i] for i in numbers.worst]))
    if read:
        made.append(memory_readings_figure(read))
    made += [
        ranking_figure(i, group, numbers.rows)
        for i, group in enumerate(numbers.rankings)
        if not group.score["composed"]
    ]
    made += [series_figure(i, curve) for i, curve in enumerate(numbers.series)]
    made += [
        benchmark_figure(i, table) for i, table in enumerate(numbers.benchmarks) if table.lines
    ]
    return made


# --- notes -------------------------------------------------------------------------------


def row_note(row: ScoredRow) -> str:
    """Say what a row is and how its prediction came out; empty for one that was not predicted."""
    if row.status != "ok":
        return ""
    run = row.run
    return note(
        f"{run.get('run_id')}  ({split_of(row)})",
        f"{run.get('model')}, {run.get('num_gpus')} x {run.get('gpu')},"
        f" {run.get('precision')}, {run.get('software')}",
        f"{layout_words(run)}; sequence {run.get('seq_len')}, batch {run.get('global_batch')}",
        *_time_lines(row),
        *_memory_lines(row),
    )


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


def _traces(
    rows: Rows,
    name_of: Callable[[ScoredRow], str],
    place: Callable[[ScoredRow], tuple[float, float]],
    hollow: Callable[[ScoredRow], bool],
) -> list[Document]:
    """Draw points: one colour for each name, hollow and filled ones apart."""
    parts: dict[str, dict[bool, list[tuple[int, ScoredRow]]]] = {}
    for i, row in rows:
        parts.setdefault(name_of(row), {}).setdefault(hollow(row), []).append((i, row))
    traces = []
    for number, (name, halves) in enumerate(
        sorted(parts.items(), key=lambda part: part[0].casefold())
    ):
        for turn, (is_hollow, some) in enumerate(sorted(halves.items())):
            places = [place(row) for _, row in some]
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": plain(name),
                    "legendgroup": name,
                    "showlegend": turn == 0,
                    "x": [x for x, _ in places],
                    "y": [y for _, y in places],
                    "marker": {
                        "size": 7,
                        "symbol": symbol(number) + ("-open" if is_hollow else ""),
                    },
                    "opacity": 0.8,
                    "customdata": [i for i, _ in some],
                    "hovertemplate": "%{customdata}<extra></extra>",
                    "meaning": category(number),
                }
            )
    return traces


def _fitted(row: ScoredRow) -> bool:
    return split_of(row) == _FITTED


def _band(low: float, high: float) -> list[Document]:
    """Draw where a perfect prediction lies, and the band around it."""
    common = {
        "type": "scatter",
        "mode": "lines",
        "x": [low, high],
        "hoverinfo": "skip",
        "meaning": "ideal",
        "showlegend": False,
    }
    lower, upper = 1.0 - BAND, 1.0 + BAND
    return [
        {**common, "y": [low * lower, high * lower], "line": {"width": 0}},
        {
            **common,
            "y": [low * upper, high * upper],
            "line": {"width": 0},
            "fill": "tonexty",
            "opacity": 0.35,
        },
        {**common, "y": [low, high], "line": {"width": 1.2, "dash": "dash"}},
    ]


def agreement_figure(scored: Rows) -> Document:
    """Predicted against measured seconds; composed times only where the reader asks for them."""
    rows = list(scored)
    measured = [(i, row) for i, row in rows if not row.composed]
    composed = [(i, row) for i, row in rows if row.composed]
    places = _traces(measured, _source, _times, _fitted)
    for trace in _traces(composed, lambda row: f"{_source(row)}, composed", _times, _fitted):
        trace |= {"meaning": "ideal", "visible": "legendonly" if measured else True}
        places.append(trace)
    seconds = [time for _, row in rows for time in _times(row)]
    low, high = min(seconds) / 1.3, 1.3 * max(seconds)
    layout = frame(600)
    layout["legend"] = {"orientation": "v"}
    layout["hovermode"] = "closest"
    ticks = _log_ticks(low, high)
    for axis, title in (("xaxis", "measured seconds per step"), ("yaxis", "predicted seconds")):
        layout[axis] |= {
            "type": "log",
            "title": {"text": title},
            **ticks,
            "showgrid": True,
            "range": [math.log10(low), math.log10(high)],
        }
    return document("agreement-figure", _band(low, high) + places, layout)


def _source(row: ScoredRow) -> str:
    return row.run.get("source") or "not stated"


def _times(row: ScoredRow) -> tuple[float, float]:
    return row.measured_step_s or 0.0, row.predicted_step_s or 0.0


def _log_ticks(low: float, high: float) -> Mapping[str, Any]:
    """Ticks at 1, 2 and 5 of every power of ten; only at the powers where that is too many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = _TICKS if len(powers) <= 4 else (1,)
    values = [step * 10.0**power for power in powers for step in steps]
    kept = [value for value in values if low <= value <= high]
    return {"tickvals": kept, "ticktext": [f"{value:,g}" for value in kept]}


# --- how errors are spread ---------------------------------------------------------------


def _by_split(rows: Rows) -> dict[str, list[tuple[int, ScoredRow]]]:
    parts: dict[str, list[tuple[int, ScoredRow]]] = {}
    for i, row in rows:
        parts.setdefault(split_of(row), []).append((i, row))
    return dict(sorted(parts.items()))


def histogram_figure(pooled: Rows) -> Document:
    """Signed errors in bins, as shares of each split's rows."""
    traces = []
    for number, (split, some) in enumerate(_by_split(pooled).items()):
        edges, counts = histogram([row.step_error or 0.0 for _, row in some])
        notes = [
            note(f"{_bin_words(edge)}: {count} of {len(some)} rows of {split}")
            for edge, count in zip(edges, counts, strict=True)
        ]
        traces.append(
            {
                "type": "bar",
                "name": plain(f"{split}, n = {len(some)}"),
                "x": [100 * (edge + BIN / 2) for edge in edges],
                "y": [100 * count / len(some) for count in counts],
                "marker": {},
                "customdata": notes,
                "hovertemplate": "%{customdata}<extra></extra>",
                "meaning": category(number),
            }
        )
    layout = frame(330)
    layout |= {"barmode": "group", "bargap": 0.1}
    layout["xaxis"] |= {"title": {"text": "predicted / measured - 1, in %"}}
    layout["yaxis"] |= {"title": {"text": "% of the split's rows"}, "showgrid": True}
    layout["shapes"] = [_upright(0.0)]
    return document("histogram-figure", traces, layout)


def _bin_words(edge: float) -> str:
    if edge < -OUTER:
        return f"below {show_signed_percent(-OUTER)}"
    if edge >= OUTER:
        return f"{show_signed_percent(OUTER)} and more"
    return f"{show_signed_percent(edge)} to {show_signed_percent(edge + BIN)}"


def _upright(x: float) -> Document:
    return {
        "type": "line",
        "x0": x,
        "x1": x,
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "line": {"width": 1.2},
        "meaning": "ideal",
    }


def cumulative_figure(pooled: Rows) -> Document:
    """Share of rows that are at most so far off: ours as lines, the baseline's dashed."""
    traces, largest = [], BAND
    for number, (split, some) in enumerate(_by_split(pooled).items()):
        ours = [row.step_error for _, row in some if row.step_error is not None]
        base = [row.baseline_error for _, row in some if row.baseline_error is not None]
        for errors, word, dash in ((ours, split, "solid"), (base, f"baseline, {split}", "dash")):
            if errors:
                sizes, shares = cumulative(errors)
                largest = max(largest, sizes[-1])
                traces.append(_staircase(sizes, shares, word, dash, category(number)))
    layout = frame(330)
    layout["xaxis"] |= {
        "title": {"text": "|predicted / measured - 1| in %"},
        "range": [0, 100 * min(largest, 1.0)],
    }
    layout["yaxis"] |= {
        "title": {"text": "% of the split's rows"},
        "range": [0, 101],
        "showgrid": True,
    }
    layout["shapes"] = [_upright(100 * BAND)]
    return document("cumulative-figure", traces, layout)


def _staircase(
    sizes: Sequence[float], shares: Sequence[float], word: str, dash: str, meaning: str
) -> Document:
    told = f"<b>{plain(word)}</b><br>%{{y:.1f}} % of the rows are within %{{x:.1f}} %"
    return {
        "type": "scatter",
        "mode": "lines",
        "name": plain(word),
        "x": [0.0, *(100 * size for size in sizes)],
        "y": [0.0, *(100 * share for share in shares)],
        "line": {"shape": "hv", "dash": dash, "width": 2 if dash == "solid" else 1.5},
        "hovertemplate": f"{told}<extra></extra>",
        "meaning": meaning,
    }


def scale_figure(pooled: Rows) -> Document:
    """Error against the number of GPUs, by kind of model."""
    rows = list(pooled)
    traces = _traces(rows, lambda row: row.kind, _gpus_and_error, _fitted)
    gpus = [_gpus_and_error(row)[0] for _, row in rows]
    powers = range(math.floor(math.log2(min(gpus))), math.ceil(math.log2(max(gpus))) + 1)
    layout = frame(380)
    layout["hovermode"] = "closest"
    layout["xaxis"] |= {
        "type": "log",
        "title": {"text": "GPUs"},
        "tickvals": [2**power for power in powers],
        "ticktext": [f"{2**power:,}" for power in powers],
    }
    layout["yaxis"] |= {"title": {"text": "predicted / measured - 1, in %"}, "showgrid": True}
    layout["shapes"] = [
        {
            "type": "line",
            "xref": "paper",
            "x0": 0,
            "x1": 1,
            "y0": 100 * y,
            "y1": 100 * y,
            "line": {"width": 1.2, "dash": dash},
            "meaning": "ideal",
        }
        for y, dash in ((0.0, "solid"), (BAND, "dot"), (-BAND, "dot"))
    ]
    return document("scale-figure", traces, layout)


def _gpus_and_error(row: ScoredRow) -> tuple[float, float]:
    return float(row.run.get("num_gpus")), 100 * (row.step_error or 0.0)


def memory_readings_figure(read: Rows) -> Document:
    """Predicted against measured memory by kind of reading; hollow where it is not scored."""
    rows = list(read)
    traces = _traces(
        rows,
        lambda row: row.memory_kind or "not stated",
        lambda row: (row.measured_memory_gib or 0.0, row.predicted_memory_gib or 0.0),
        lambda row: row.memory_kind not in SCORED_MEMORY,
    )
    most = 1.05 * max(
        max(row.measured_memory_gib or 0.0, row.predicted_memory_gib or 0.0) for _, row in rows
    )
    layout = frame(430)
    layout["hovermode"] = "closest"
    for axis, title in (("xaxis", "measured GiB"), ("yaxis", "predicted GiB")):
        layout[axis] |= {"title": {"text": title}, "range": [0, most], "showgrid": True}
    return document("memory-figure", _band(0.0, most) + traces, layout)
