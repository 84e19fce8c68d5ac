"""How good the intervals are, by source, and what one small measured run adds: plain numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from simulator.frames import frame
from simulator.scoring.scores import ScoredRow, interval_statistics
from simulator.scoring.series import series
from workshop.cases.chances import chances
from workshop.cases.extrapolation import hidden_end, hidden_runs

UNFITTED = (
    "test",
    "second-test",
    "vendor-test",
    "fresh-test",
    "fresh-test-2",
    "third-open",
    "fourth-open",
)
"""Tables of published runs that no step time is fitted to."""
_FEWEST = 10
_KEYS = ("coverage_80", "interval_width", "interval_score", "constant_interval")


def certainty_scores(rows: Sequence[ScoredRow], summary: Mapping[str, Any]) -> dict[str, Any]:
    """Score the intervals of measured steps.

    Parameters
    ----------
    rows : sequence of ScoredRow
        Every row.
    summary : mapping
        Of the same rows, see :func:`simulator.scoring.scores.summary`.

    Returns
    -------
    dict
        ``by_split``: coverage, median width and mean score, and those of intervals of one width;
        ``by_source``: coverage and width by source and split; ``by_group``: by kind, precision and
        GPU of all runs that nothing was fitted to, where there are ten or more; ``chances``: by
        split, how often the layout predicted slower was the faster one
        (:mod:`workshop.cases.chances`);
        ``hidden_end``: by split, scaling series whose larger runs are predicted without and with
        the smallest one.
    """
    measured = [row for row in rows if not row.composed]
    hidden = hidden_runs(series(measured))
    splits = list(dict.fromkeys(row.run.get("split") for row in measured))
    return {
        "by_split": {
            split: {key: found[key] for key in _KEYS}
            for split, found in summary["by_split"].items()
            if split in splits
        },
        "by_source": _by_source(measured),
        "by_group": _by_group(measured, summary["by_split"]),
        "chances": chances(measured),
        "hidden_end": {
            split: None if (found := hidden_end(hidden, split)) is None else asdict(found)
            for split in splits
        },
    }


def _by_group(rows: Sequence[ScoredRow], by_split: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Intervals of the runs that nothing was fitted to, by what they are."""
    constant = (by_split.get("calibrate") or {}).get("constant_interval", {})
    kept = [row for row in rows if row.run.get("split") in UNFITTED and row.interval is not None]
    groups: dict[str, list[ScoredRow]] = {"all": kept}
    for row in kept:
        for name in (row.kind, row.run.get("precision"), row.run.get("gpu")):
            groups.setdefault(name, []).append(row)
    return {
        name: {"n": len(some), **_interval_figures(some, constant.get("half_width"))}
        for name, some in groups.items()
        if len(some) >= _FEWEST
    }


def _interval_figures(rows: Sequence[ScoredRow], half_width: float | None) -> dict[str, Any]:
    intervals = [row.interval for row in rows if row.interval is not None]
    errors = [row.step_error for row in rows if row.step_error is not None]
    found = interval_statistics(intervals, errors, half_width)
    return {key: found[key] for key in _KEYS}


def _by_source(rows: Sequence[ScoredRow]) -> dict[str, dict[str, Any]]:
    """Share of measured steps inside P10 to P90, and the median of P90 over P10 less 1."""
    intervals = frame(
        [
            (row.run.get("source"), row.run.get("split"), low <= time <= high, high / low - 1.0)
            for row in rows
            if (low := row.p10_s) is not None
            and (high := row.p90_s) is not None
            and (time := row.measured_step_s) is not None
        ],
        columns=("source", "split", "inside", "width"),
    )
    scores: dict[str, dict[str, Any]] = {}
    for (source, split), some in intervals.groupby(["source", "split"], sort=False):
        scores.setdefault(source, {})[split] = {
            "n": len(some),
            "coverage": int(some["inside"].sum()) / len(some),
            "width": sorted(some["width"].tolist())[len(some) // 2],
        }
    return scores
