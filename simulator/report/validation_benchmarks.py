"""Microbenchmarks on the page of a validation: their errors as a table, then as a figure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from simulator.records import dataclass
from simulator.report.canvas import FULL, NARROW, legend, plain_axes, plain_log
from simulator.report.inline_svg import noted
from simulator.report.palette import colour, gpu_sign
from simulator.report.svg_figure import SvgFigure
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


def benchmark_figure(table: BenchmarkTable, *, narrow: bool) -> SvgFigure:
    """Draw predicted / measured: the median as a point, P10 to P90 as a line; signs by device."""
    lines = table.lines
    figure = SvgFigure(NARROW if narrow else FULL, 1.3 + _ROW * len(lines))
    axes = figure.subplots()
    plain_axes(axes)
    axes.grid(axis="y")
    devices = sorted({line.device for line in lines})
    seen: set[str] = set()
    for y, line in enumerate(lines):
        sign = gpu_sign(line.device, devices.index(line.device))
        low, middle, high = line.ratios
        axes.hlines([y], [low], [high], color=sign.ink.light, lw=2.0)
        label = None if line.device in seen else line.device
        (dot,) = axes.plot([middle], [y], sign.shape, color=sign.ink.light, ms=7.0, label=label)
        dot.set_gid(noted(_line_note(line)))
        seen.add(line.device)
    axes.axvline(1.0, color=colour("text").light, lw=1.6)
    ratios = [1.0, *(ratio for line in lines for ratio in line.ratios)]
    plain_log(axes, "x", base=2)
    axes.set_xlim(min(ratios) / 1.15, max(ratios) * 1.15)
    axes.set_yticks(range(len(lines)), [_name(line) for line in lines])
    axes.set_ylim(len(lines) - 0.3, -0.7)
    axes.set_xlabel("predicted / measured")
    legend(figure, axes)
    return figure


def _name(line: BenchmarkLine) -> str:
    return f"{line.kernel}, {line.device}"


def _line_note(line: BenchmarkLine) -> str:
    low, middle, high = line.ratios
    lines = (
        f"{line.kernel}, {line.device}: {line.errors['n']:,} timings",
        f"predicted / measured: median {middle:.2f}, P10 {low:.2f}, P90 {high:.2f}",
        f"mean error {100 * line.errors['mape']:.1f} %, bias {100 * line.errors['bias']:+.1f} %",
    )
    return "\n".join(lines)
