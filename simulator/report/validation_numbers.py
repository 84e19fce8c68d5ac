"""Numbers first: every table of the page of a validation as plain records.

Times are in seconds, sizes in GiB, errors are ``predicted / measured - 1``. Splits are never
pooled, and composed times never stand beside measured ones.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from simulator.evidence.card import GRADES
from simulator.measured.rows import MeasuredRun
from simulator.records import dataclass
from simulator.report.canvas import FULL, NARROW, legend, plain_axes, plain_log
from simulator.report.inline_svg import noted
from simulator.report.palette import colour, gpu_sign
from simulator.report.svg_figure import SvgFigure
from simulator.scoring.benchmark_score import BenchmarkScore
from simulator.scoring.scores import (
    ScoredRow,
    error_statistics,
    layout_of,
    ranking_group,
    skipped_reason,
)
from simulator.scoring.series import Series, series
from simulator.scoring.validation import Validation

WORST = 15
"""Rows whose breakdown is shown."""

BIN = 0.025
"""Width of a bin of errors."""

OUTER = 0.5
"""Errors beyond this share one bin on either side."""

_TABLES = {
    "source": "by_source",
    "kind": "by_kind",
    "GPU": "by_gpu",
    "framework": "by_framework",
    "precision": "by_precision",
    "scale": "by_scale",
}
"""What errors are tabulated by, and the key of the summary."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorLine:
    """Errors of some rows of one split."""

    name: str
    split: str
    composed: bool
    errors: Mapping[str, Any]
    """As the summary has them; ``rows`` and ``skipped`` beside the statistics."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """One layout in the order of its group; 1 is the fastest, equal times share a place."""

    row: int
    """Index of its row, of the first one if it was measured more than once."""
    predicted_s: float
    measured_s: float
    """Means, if it was measured more than once."""
    predicted_rank: int
    measured_rank: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RankingGroup:
    """Runs that differ in nothing but the layout, and how they were ordered."""

    score: Mapping[str, Any]
    """As the summary has it: ``group, n, pairs, kendall_tau, regret, split, composed``."""
    places: tuple[Place, ...]
    """Fastest measured first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidationNumbers:
    """Everything that the page of a validation shows."""

    rows: tuple[ScoredRow, ...]
    splits: tuple[ErrorLine, ...]
    """All measured rows of each split, test first."""
    tables: Mapping[str, tuple[ErrorLine, ...]]
    """By source, kind, ...; composed rows are in the table of sources only."""
    memory: tuple[ErrorLine, ...]
    """By kind of reading."""
    rankings: tuple[RankingGroup, ...]
    ranking_by_split: Mapping[str, Mapping[str, Any]]
    """Median tau and regret of the groups of each split, of composed ones apart."""
    series: tuple[Series, ...]
    worst: tuple[int, ...]
    """Indices of the rows that are furthest off, worst first."""
    benchmarks: tuple[BenchmarkTable, ...]
    skipped: Mapping[str, tuple[ScoredRow, ...]]
    """By reason, most frequent first."""
    assumed: Mapping[str, int]
    """Predicted rows whose source does not state a field, by field."""
    evidence: Mapping[str, int]
    """Predictions by what stands behind them, strongest grade first."""
    problems: tuple[str, ...]
    """What is wrong with the files that were given."""

    @property
    def predicted(self) -> int:
        """How many rows were predicted."""
        return sum(row.status == "ok" for row in self.rows)

    @property
    def composed(self) -> int:
        """How many rows were put together from parts."""
        return sum(row.composed for row in self.rows)


def collect_validation(validation: Validation) -> ValidationNumbers:
    """Gather every number of the page."""
    rows, summary = validation.rows, validation.summary()
    grades = [row.evidence.grade for row in rows if row.evidence is not None]
    composed = {row.run.get("source") or "not stated" for row in rows if row.composed}
    return ValidationNumbers(
        rows=rows,
        splits=tuple(
            ErrorLine(name=split, split=split, composed=False, errors=errors)
            for split, errors in sorted(summary["by_split"].items(), key=_test_first)
        ),
        tables={
            title: tuple(_lines(summary[key], composed if key == "by_source" else ()))
            for title, key in _TABLES.items()
        },
        memory=_memory(rows),
        rankings=_rankings(rows, summary["ranking"]),
        ranking_by_split=summary["ranking_by_split"],
        series=series(rows),
        worst=_worst(rows),
        benchmarks=benchmark_tables(validation.benchmarks),
        skipped=_skipped(rows),
        assumed=summary["assumed_fields"],
        evidence={grade: grades.count(grade) for grade in GRADES if grade in grades},
        problems=validation.problems,
    )


def _test_first(item: tuple[str, Any]) -> tuple[bool, str]:
    return item[0] != "test", item[0]


# --- errors ------------------------------------------------------------------------------


def split_of(row: ScoredRow) -> str:
    """Return the split of a row, with a word where its table has none."""
    return row.run.get("split") or "not stated"


def _lines(parts: Mapping[str, Any], composed: Iterable[str]) -> Iterator[ErrorLine]:
    """One line for each word and split of a part of the summary."""
    apart = set(composed)
    for name, all_splits in parts.items():
        for split, errors in all_splits["by_split"].items():
            yield ErrorLine(name=name, split=split, composed=name in apart, errors=errors)


def _memory(rows: Iterable[ScoredRow]) -> tuple[ErrorLine, ...]:
    parts: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if row.memory_error is not None and not row.composed:
            key = (row.memory_kind or "", split_of(row))
            parts.setdefault(key, []).append(row.memory_error)
    return tuple(
        ErrorLine(name=kind, split=split, composed=False, errors=error_statistics(errors))
        for (kind, split), errors in sorted(parts.items())
    )


def histogram(errors: Sequence[float]) -> tuple[list[float], list[int]]:
    """Count errors in bins of `BIN`; those beyond `OUTER` are in the first and the last bin.

    Returns
    -------
    edges : list of float
        Lower edges of the bins; the first bin has no lower end and the last no upper one.
    counts : list of int

    Examples
    --------
    >>> edges, counts = histogram([-0.9, -0.51, 0.01, 0.024, 0.7])
    >>> [(round(edge, 3), n) for edge, n in zip(edges, counts) if n]
    [(-0.525, 2), (0.0, 2), (0.5, 1)]
    """
    bins = round(OUTER / BIN)
    places = np.clip(np.floor(np.asarray(errors, dtype=float) / BIN), -bins - 1, bins).astype(int)
    counts = np.bincount(places + bins + 1, minlength=2 * bins + 2)
    return [i * BIN for i in range(-bins - 1, bins + 1)], counts.tolist()


def cumulative(errors: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return absolute errors in order, and the share of rows that is at most that far off.

    >>> cumulative([0.2, -0.1, 0.4, -0.1])
    ([0.1, 0.1, 0.2, 0.4], [0.25, 0.5, 0.75, 1.0])
    """
    sizes = sorted(abs(error) for error in errors)
    return sizes, [(i + 1) / len(sizes) for i in range(len(sizes))]


def _worst(rows: Sequence[ScoredRow]) -> tuple[int, ...]:
    errors = {
        i: abs(row.step_error)
        for i, row in enumerate(rows)
        if row.step_error is not None and not row.composed
    }
    return tuple(sorted(errors, key=lambda i: -errors[i])[:WORST])


# --- rankings and skipped rows -----------------------------------------------------------


def _rankings(
    rows: Sequence[ScoredRow], scores: Iterable[Mapping[str, Any]]
) -> tuple[RankingGroup, ...]:
    groups: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        if row.step_error is not None:
            groups.setdefault(ranking_group(row), []).append(i)
    return tuple(
        RankingGroup(score=score, places=_places(rows, groups[score["group"]])) for score in scores
    )


def _places(rows: Sequence[ScoredRow], members: Iterable[int]) -> tuple[Place, ...]:
    """Order one group; repeats of a layout count once, with the mean of their times."""
    layouts: dict[Hashable, list[int]] = {}
    for i in members:
        layouts.setdefault(layout_of(rows[i]), []).append(i)
    predicted = [_mean(rows[i].predicted_step_s for i in some) for some in layouts.values()]
    measured = [_mean(rows[i].measured_step_s for i in some) for some in layouts.values()]
    places = [
        Place(
            row=some[0],
            predicted_s=guess,
            measured_s=time,
            predicted_rank=1 + sum(other < guess for other in predicted),
            measured_rank=1 + sum(other < time for other in measured),
        )
        for some, guess, time in zip(layouts.values(), predicted, measured, strict=True)
    ]
    return tuple(sorted(places, key=lambda place: place.measured_rank))


def _mean(times: Iterable[float | None]) -> float:
    return float(np.mean([time for time in times if time is not None]))


def _skipped(rows: Iterable[ScoredRow]) -> dict[str, tuple[ScoredRow, ...]]:
    parts: dict[str, list[ScoredRow]] = {}
    for row in rows:
        if row.status == "skipped":
            parts.setdefault(skipped_reason(row), []).append(row)
    return {reason: tuple(some) for reason, some in sorted(parts.items(), key=lambda p: -len(p[1]))}


def layout_words(run: MeasuredRun) -> str:
    """Name the layout of a row in a few words, in the manner of ``Layouts.describe``.

    Taken from the text, so that a row whose layout cannot be read has a name too.

    >>> fields = {"tp": "2", "pp": "1", "dp": "4", "micro_batch": "1", "sharding": "zero1"}
    >>> layout_words(MeasuredRun(where="", fields=fields | {"recompute": "full"}))
    'tp2 dp4 mb1 zero1 full'
    """
    degrees = ("tp", "cp", "pp", "vpp", "dp", "ep", "etp")
    words = [f"{name}{run.get(name)}" for name in degrees if run.get(name) not in ("", "1")]
    words.append(f"mb{run.get('micro_batch') or 1}")
    words += ["sp"] if run.get("sequence_parallel").lower() == "true" else []
    group = run.get("shard_group")
    words.append(run.get("sharding") + (f":{group}" if group else ""))
    words += [run.get("recompute")] if run.get("recompute") != "none" else []
    return " ".join(word for word in words if word)


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
