"""The figures of the page as plotly documents: plain dictionaries, no plotly needed to make them.

Colours are not in them: every trace and line names its meaning, and the page fills in the colour
of its light or dark side (``palette.py``), also when the reader switches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simulator.cost.terms import TERMS
from simulator.planner.scaling import CAUSES
from simulator.report.drawing import Document, document, frame, note, stacked_bar, stacked_frame
from simulator.report.evidence import memory_meaning
from simulator.report.numbers import MemoryReport, PlanNumbers
from simulator.units import (
    GIB,
    show_bytes,
    show_percent,
    show_seconds,
    show_seconds_span,
    show_signed_percent,
)

__all__ = ["figures", "memory_figure", "ratio_figure", "speedup_figure", "time_figure"]

_TERMS = {term.name: term for term in TERMS}


def figures(numbers: PlanNumbers) -> list[Document]:
    """Make every figure of the page; each has an id, data, layout, and meanings for its colours."""
    made = [time_figure(numbers), memory_figure(numbers)]
    if sum(point.estimate is not None for point in numbers.scaling.points) > 1:
        pair = [speedup_figure(numbers), ratio_figure(numbers)]
        height = max(figure["layout"]["height"] for figure in pair)
        for figure in pair:
            figure["layout"]["height"] = height
        made += pair
    return made


def time_figure(numbers: PlanNumbers) -> Document:
    """One bar per compared layout, stacked by time term."""
    bars = numbers.bars
    names = [f"{bar.role}{'' if bar.verdict == 'FITS' else f' ({bar.verdict})'}" for bar in bars]
    traces = []
    for change in numbers.changes:
        term = _TERMS.get(change.name)
        label = term.label if term else change.name
        values = [change.seconds[bar.role] for bar in bars]
        notes = [
            note(
                f"{label}: {show_seconds(value)}, {show_percent(value / bar.step_time_s)} of step",
                f"{bar.role}, {bar.layout}",
                f"formula: {term.formula}" if term else "",
                f"source: {term.source}" if term else "",
            )
            for value, bar in zip(values, bars, strict=True)
        ]
        traces.append(stacked_bar(change.name, label, values, names, notes))
    told = [
        note(
            f"{bar.role}: {show_seconds(bar.step_time_s)}",
            f"P10 to P90: {show_seconds_span(bar.p10_s, bar.p90_s)}",
        )
        for bar in bars
    ]
    ends = [(bar.p10_s, bar.p90_s) for bar in bars]
    traces.append(_interval_lines([bar.step_time_s for bar in bars], ends, names, told))
    totals = [
        _text(bar.p90_s, name, show_seconds(bar.step_time_s))
        for name, bar in zip(names, bars, strict=True)
    ]
    layout = stacked_frame("seconds per step", names, 150 + 58 * len(bars))
    layout["annotations"] = totals
    layout["xaxis"]["range"] = [0, 1.12 * max(bar.p90_s for bar in bars)]
    return document("time-figure", traces, layout)


def memory_figure(numbers: PlanNumbers) -> Document:
    """One bar per pipeline stage, stacked by kind, with the usable line and the datasheet's."""
    report = numbers.memory
    several = len(report.stages) > 1
    names = [f"stage {stage.rank}" if several else "every GPU" for stage in report.stages]
    traces = [_kind_bars(report, kind, names) for kind in report.kinds]
    traces += _intervals(report, names)
    thick = 24 if len(names) <= 32 else 14
    layout = stacked_frame("GiB per GPU at the fullest moment", names, 190 + thick * len(names))
    layout["yaxis"]["dtick"] = 1  # a label for every stage
    lines = (
        ("does not fit", "usable", report.usable_bytes),
        ("ideal", "datasheet", report.capacity_bytes),
    )
    lower = min(report.usable_bytes, report.capacity_bytes)
    for meaning, word, size in lines:
        side = "right" if size == lower else "left"
        dash = "solid" if word == "usable" else "dash"
        layout["shapes"].append(
            {
                "type": "line",
                "x0": size / GIB,
                "x1": size / GIB,
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "line": {"width": 2, "dash": dash},
                "meaning": meaning,
            }
        )
        layout["annotations"].append(
            {
                "x": size / GIB,
                "yref": "paper",
                "y": 1,
                "yanchor": "bottom",
                "xanchor": side,
                "showarrow": False,
                "text": f"{word} {show_bytes(size)}",
            }
        )
    fullest = max(stage.p90_bytes or stage.total_bytes for stage in report.stages)
    layout["xaxis"]["range"] = [0, 1.15 * max(fullest, *(size for _, _, size in lines)) / GIB]
    return document("memory-figure", traces, layout)


def _kind_bars(report: MemoryReport, kind: str, names: list[str]) -> Document:
    values = [stage.kinds_bytes[kind] for stage in report.stages]
    notes = [
        note(
            f"{kind}: {show_bytes(value)}, {show_percent(value / stage.total_bytes)}"
            f" of {show_bytes(stage.total_bytes)}",
            f"{name}, peak at: {stage.moment}",
            f"formula: {memory_meaning(kind)}" if memory_meaning(kind) else "",
        )
        for value, stage, name in zip(values, report.stages, names, strict=True)
    ]
    return stacked_bar(kind, kind, [value / GIB for value in values], names, notes)


def _intervals(report: MemoryReport, names: list[str]) -> list[Document]:
    """P10 to P90 of every stage as thin lines; nothing where the software has no spread."""
    stages = report.stages
    if any(stage.p10_bytes is None or stage.p90_bytes is None for stage in stages):
        return []
    total = [stage.total_bytes / GIB for stage in stages]
    ends = [((stage.p10_bytes or 0.0) / GIB, (stage.p90_bytes or 0.0) / GIB) for stage in stages]
    notes = [
        note(
            f"{name}: {stage.verdict}",
            f"P10 {low:.1f} GiB, P50 {x:.1f} GiB, P90 {high:.1f} GiB",
        )
        for name, stage, x, (low, high) in zip(names, stages, total, ends, strict=True)
    ]
    return [_interval_lines(total, ends, names, notes)]


def _interval_lines(
    at: Sequence[float], ends: Sequence[tuple[float, float]], names: list[str], notes: list[str]
) -> Document:
    """Thin lines over bars from the first to the second of every pair of ends."""
    spread = {
        "type": "data",
        "symmetric": False,
        "thickness": 1.5,
        "width": 5,
        "array": [high - x for x, (_, high) in zip(at, ends, strict=True)],
        "arrayminus": [x - low for x, (low, _) in zip(at, ends, strict=True)],
    }
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "P10 to P90",
        "x": list(at),
        "y": names,
        "error_x": spread,
        "marker": {"size": 4},
        "customdata": notes,
        "hovertemplate": "%{customdata}<extra></extra>",
        "meaning": "text",
    }


def speedup_figure(numbers: PlanNumbers) -> Document:
    """Speed-up over the number of GPUs beside the ideal line, both axes logarithmic."""
    points = [p for p in numbers.scaling.points if p.estimate is not None]
    gpus, base = [p.gpus for p in points], points[0].gpus
    notes = [
        note(
            f"{p.gpus:,} GPUs: {p.speedup:.3g}x, ratio {p.ratio:.3f}",
            f"{p.tokens_per_s:,.0f} tokens/s, {p.tokens_per_s_per_gpu:,.0f} per GPU,"
            f" MFU {show_percent(p.mfu)}",
            p.layout,
        )
        for p in points
    ]
    common = {"type": "scatter", "x": gpus}
    ideal = {
        **common,
        "name": "ideal",
        "mode": "lines",
        "y": [n / base for n in gpus],
        "line": {"dash": "dash"},
        "hoverinfo": "skip",
        "meaning": "ideal",
    }
    best = {
        **common,
        "name": "best layout",
        "mode": "lines+markers",
        "meaning": "speed",
        "y": [p.speedup for p in points],
        "customdata": notes,
        "hovertemplate": "%{customdata}<extra></extra>",
        "marker": {"size": 9},
    }
    layout = frame(340)
    ticks = [p.gpus for p in numbers.scaling.points]
    layout["xaxis"] |= {
        "type": "log",
        "title": {"text": "GPUs"},
        "tickvals": ticks,
        "ticktext": [f"{n:,}" for n in ticks],
    }
    powers = [2.0**n for n in range(-1, 16)]
    layout["yaxis"] |= {
        "type": "log",
        "title": {"text": "speed-up"},
        "tickvals": powers,
        "ticktext": [f"{n:g}x" for n in powers],
        "showgrid": True,
    }
    return document("speedup-figure", [ideal, best], layout)


def ratio_figure(numbers: PlanNumbers) -> Document:
    """What eats the speed-up ratio at each number of GPUs, by cause; savings point left."""
    points = [p for p in numbers.scaling.points if p.estimate is not None][1:]
    names = [f"{p.gpus:,}" for p in points]
    traces = []
    for cause, label in CAUSES.items():
        values = [p.eaten.get(cause, 0.0) for p in points]
        if not any(abs(value) > 5e-4 for value in values):
            continue
        notes = [
            note(
                f"{label}: {show_signed_percent(value)} of GPU time at {p.gpus:,} GPUs",
                f"GPU-seconds per token, less those at {numbers.scaling.base_gpus:,} GPUs",
            )
            for value, p in zip(values, points, strict=True)
        ]
        traces.append(stacked_bar(cause, label, [100 * value for value in values], names, notes))
    layout = stacked_frame("saves  <  % of GPU time  >  costs", names, 150 + 30 * len(names))
    layout["height"] += 18 * len(traces)
    layout["barmode"] = "relative"
    layout["yaxis"]["title"] = {"text": "GPUs"}
    return document("ratio-figure", traces, layout)


def _text(x: float, y: str, text: str) -> Mapping[str, Any]:
    return {"x": x, "y": y, "text": f" {text}", "xanchor": "left", "showarrow": False}
