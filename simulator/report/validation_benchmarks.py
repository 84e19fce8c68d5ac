"""Microbenchmarks on the page of a validation: their errors as a table, then as a figure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from simulator.records import dataclass
from simulator.report.drawing import Document, document, frame, note, plain
from simulator.report.palette import category, symbol
from simulator.scoring.benchmark_score import BenchmarkScore
from simulator.scoring.scores import error_statistics

_SHARES = (10, 50, 90)
_ROW = 19
"""Height of one kernel on one device."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkLine:
    """One kernel or collective on one device or cluster."""

    kernel: str
    device: str
    errors: Mapping[str, Any]
    """See :func:`simulator.scoring.scores.error_statistics`."""
    ratios: tuple[float, float, float]
    """P10, median and P90 of predicted / measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkTable:
    """One table of microbenchmarks."""

    path: str
    kind: str
    rows: int
    predicted: int
    skipped: Mapping[str, int]
    """Rows that were not predicted by reason, most frequent first."""
    errors: Mapping[str, Any]
    """Of all that were predicted."""
    lines: tuple[BenchmarkLine, ...]


def benchmark_tables(scores: Iterable[BenchmarkScore]) -> tuple[BenchmarkTable, ...]:
    """Tabulate every table of microbenchmarks by kernel, and inside each by device."""
    return tuple(
        BenchmarkTable(
            path=score.path,
            kind=score.kind,
            rows=score.rows,
            predicted=len(score.line),
            skipped=score.skipped,
            errors=error_statistics(score.error.tolist()),
            lines=tuple(_line(score, *pair) for pair in _pairs(score)),
        )
        for score in scores
    )


def _pairs(benchmark_score: BenchmarkScore) -> Sequence[tuple[str, str]]:
    return sorted(
        set(zip(benchmark_score.kernel.tolist(), benchmark_score.device.tolist(), strict=True))
    )


def _line(benchmark_score: BenchmarkScore, kernel: str, device: str) -> BenchmarkLine:
    errors = benchmark_score.error[
        (benchmark_score.kernel == kernel) & (benchmark_score.device == device)
    ]
    low, middle, high = np.percentile(1.0 + errors, _SHARES).tolist()
    return BenchmarkLine(
        kernel=kernel,
        device=device,
        errors=error_statistics(errors.tolist()),
        ratios=(low, middle, high),
    )


def benchmark_figure(number: int, table: BenchmarkTable) -> Document:
    """Draw predicted / measured: the median as a point, P10 to P90 as a line; colours by device."""
    traces = [
        _device_trace(place, device, [line for line in table.lines if line.device == device])
        for place, device in enumerate(sorted({line.device for line in table.lines}))
    ]
    names = [_name(line) for line in table.lines]
    layout = frame(150 + _ROW * len(names))
    layout["yaxis"] |= {
        "type": "category",
        "range": [len(names) - 0.3, -0.7],
        "showgrid": True,
        "categoryorder": "array",
        "categoryarray": names,
    }
    ratios = [1.0, *(ratio for line in table.lines for ratio in line.ratios)]
    low, high = min(ratios) / 1.15, max(ratios) * 1.15
    ticks = [2.0**power for power in range(math.floor(math.log2(low)), math.ceil(math.log2(high)))]
    layout["xaxis"] |= {
        "type": "log",
        "title": {"text": "predicted / measured"},
        "range": [math.log10(low), math.log10(high)],
        "tickvals": ticks,
        "ticktext": [f"{tick:g}" for tick in ticks],
    }
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
    return document(f"benchmark-figure-{number}", traces, layout)


def _device_trace(place: int, device: str, lines: list[BenchmarkLine]) -> Document:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": plain(device),
        "x": [line.ratios[1] for line in lines],
        "y": [_name(line) for line in lines],
        "marker": {"size": 8, "symbol": symbol(place)},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "thickness": 2,
            "width": 0,
            "array": [line.ratios[2] - line.ratios[1] for line in lines],
            "arrayminus": [line.ratios[1] - line.ratios[0] for line in lines],
        },
        "customdata": [_line_note(line) for line in lines],
        "hovertemplate": "%{customdata}<extra></extra>",
        "meaning": category(place),
    }


def _name(line: BenchmarkLine) -> str:
    return plain(f"{line.kernel}, {line.device}")


def _line_note(line: BenchmarkLine) -> str:
    low, middle, high = line.ratios
    return note(
        f"{line.kernel}, {line.device}: {line.errors['n']:,} timings",
        f"predicted / measured: median {middle:.2f}, P10 {low:.2f}, P90 {high:.2f}",
        f"mean error {100 * line.errors['mape']:.1f} %, bias {100 * line.errors['bias']:+.1f} %",
    )
