"""Figures of single rows, of groups of layouts and of scaling series, without colours."""

from __future__ import annotations

import math
from collections.abc import Sequence

from simulator.cost.terms import TERMS
from simulator.report.drawing import (
    Document,
    document,
    frame,
    note,
    plain,
    stacked_bar,
    stacked_frame,
)
from simulator.report.validation_numbers import RankingGroup, layout_words
from simulator.scoring.scores import ScoredRow
from simulator.scoring.series import Series
from simulator.units import show_percent, show_seconds, show_signed_percent

_TERMS = {term.name: term for term in TERMS}
_SMALL = 250
"""Height of one of many small figures."""

_NARROW = 36
"""Letters in a line of a note that a small figure has room for."""

_ROOM = 0.25
"""Least share of the axis of a series below its highest point, so that all look alike."""


def worst_figure(rows: Sequence[ScoredRow]) -> Document:
    """Draw one bar per row, stacked by term, over the measured time, which is the line at 1."""
    names = [plain(row.run.get("run_id")) for row in rows]
    terms = dict.fromkeys(name for row in rows for name in row.terms_s or {})
    traces = []
    for term in terms:
        seconds = [(row.terms_s or {}).get(term, 0.0) for row in rows]
        if any(seconds):
            label = _TERMS[term].label if term in _TERMS else term
            notes = [_term_note(label, s, row) for s, row in zip(seconds, rows, strict=True)]
            shares = [s / _measured(row) for s, row in zip(seconds, rows, strict=True)]
            traces.append(stacked_bar(term, plain(label), shares, names, notes))
    layout = stacked_frame("predicted time over the measured time", names, 150 + 30 * len(names))
    ends = [(row.predicted_step_s or 0.0) / _measured(row) for row in rows]
    layout["xaxis"]["range"] = [0, 1.3 * max(*ends, 1.0)]
    layout["annotations"] = [
        {
            "x": max(end, 1.0),
            "y": name,
            "xanchor": "left",
            "showarrow": False,
            "text": f"  {show_signed_percent(end - 1.0)}",
        }
        for end, name in zip(ends, names, strict=True)
    ]
    layout["shapes"] = [
        {
            "type": "line",
            "x0": 1,
            "x1": 1,
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "line": {"width": 2},
            "meaning": "text",
        }
    ]
    return document("worst-figure", traces, layout)


def _measured(row: ScoredRow) -> float:
    return row.measured_step_s or math.inf


def _term_note(label: str, seconds: float, row: ScoredRow) -> str:
    predicted = row.predicted_step_s or math.inf
    hidden = [f"{name} {show_seconds(s)}" for name, s in (row.hidden_s or {}).items() if s > 0.0]
    return note(
        f"{label}: {show_seconds(seconds)}, {show_percent(seconds / predicted)} of the prediction",
        f"{row.run.get('run_id')}: predicted {show_seconds(predicted)}, measured"
        f" {show_seconds(_measured(row))}, error {show_signed_percent(row.step_error or 0.0)}",
        f"{row.run.get('model')}, {row.run.get('num_gpus')} x {row.run.get('gpu')},"
        f" {row.run.get('precision')}, {layout_words(row.run)}",
        f"hidden under compute, not in the bar: {', '.join(hidden)}" if hidden else "",
    )


def ranking_figure(number: int, group: RankingGroup, rows: Sequence[ScoredRow]) -> Document:
    """Draw the predicted over the measured order of one group; on the line, the order is right."""
    count = len(group.places)
    points = []
    for chosen, meaning, size in ((False, "speed", 7), (True, "does not fit", 9)):
        some = [place for place in group.places if (place.predicted_rank == 1) is chosen]
        notes = [
            note(
                layout_words(rows[place.row].run),
                f"predicted {show_seconds(place.predicted_s)} (place {place.predicted_rank}),"
                f" measured {show_seconds(place.measured_s)} (place {place.measured_rank})",
                rows[place.row].run.get("run_id"),
                width=_NARROW,
            )
            for place in some
        ]
        points.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [p.measured_rank for p in some],
                "y": [p.predicted_rank for p in some],
                "marker": {"size": size},
                "meaning": meaning,
                "customdata": notes,
                "hovertemplate": "%{customdata}<extra></extra>",
            }
        )
    line = {
        "type": "scatter",
        "mode": "lines",
        "x": [1, count],
        "y": [1, count],
        "line": {"dash": "dash", "width": 1.2},
        "hoverinfo": "skip",
        "meaning": "ideal",
    }
    layout = _small("measured order", "predicted order")
    step = max(1, -(-count // 5))
    for axis in ("xaxis", "yaxis"):
        layout[axis] |= {"range": [0.3, count + 0.7], "tick0": 1, "dtick": step}
    return document(f"ranking-figure-{number}", [line, *points], layout)


def series_figure(number: int, series: Series) -> Document:
    """Draw tokens/s per GPU over the number of GPUs: predicted as a curve, measured as points."""
    gpus = [int(n) for n in series.gpus]
    notes = [
        note(
            f"{n:,} GPUs: predicted {ours:,.0f}, measured {theirs:,.0f} tokens/s per GPU",
            f"step: predicted {show_seconds(guess)}, measured {show_seconds(time)},"
            f" error {show_signed_percent(guess / time - 1.0)}",
            f"{row.run.get('run_id')}: {layout_words(row.run)}",
            width=_NARROW,
        )
        for n, ours, theirs, guess, time, row in zip(
            gpus,
            series.predicted_tokens_per_s_per_gpu,
            series.tokens_per_s_per_gpu,
            series.predicted_s,
            series.measured_s,
            series.rows,
            strict=True,
        )
    ]
    common = {
        "type": "scatter",
        "x": gpus,
        "customdata": notes,
        "hovertemplate": "%{customdata}<extra></extra>",
    }
    rates = {
        "speed": series.predicted_tokens_per_s_per_gpu.tolist(),
        "text": series.tokens_per_s_per_gpu.tolist(),
    }
    traces = [
        {**common, "mode": "lines", "y": rates["speed"], "line": {"width": 2}, "meaning": "speed"},
        {**common, "mode": "markers", "y": rates["text"], "marker": {"size": 7}, "meaning": "text"},
    ]
    layout = _small("GPUs", "tokens/s per GPU")
    sizes = sorted(set(gpus))
    kept = sizes if len(sizes) <= 5 else sizes[::2]
    layout["xaxis"] |= {
        "type": "log",
        "tickvals": kept,
        "ticktext": [f"{n:,}" for n in kept],
        "tickangle": 0,
    }
    values = [rate for curve in rates.values() for rate in curve]
    top = max(values)
    layout["yaxis"]["range"] = [min((1 - _ROOM) * top, 0.97 * min(values)), 1.04 * top]
    return document(f"series-figure-{number}", traces, layout)


def _small(x: str, y: str) -> Document:
    layout = frame(_SMALL)
    layout |= {"showlegend": False, "hovermode": "closest"}
    layout["margin"] = {"l": 10, "r": 14, "t": 8, "b": 10}
    layout["xaxis"]["title"], layout["yaxis"]["title"] = {"text": x}, {"text": y}
    layout["yaxis"] |= {"showgrid": True, "nticks": 5}
    return layout
