"""Scaling series with their large end hidden: the smallest run anchors the prediction of others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.cost.step import evaluate
from simulator.measured.replay import Tables, load_tables, replay
from simulator.scoring.anchor import Anchor, anchor_of_row, correction
from simulator.scoring.scores import ScoredRow
from simulator.scoring.series import Series
from simulator.search.certainty import Certainty, certainty

MOST_KNOWN = 64
"""Most accelerators of the run that is known: what a team may try before it buys."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HiddenRun:
    """One larger run of a series; each pair is without and with the smallest run known."""

    split: str
    error: tuple[float, float]
    """``predicted / measured - 1``."""
    inside: tuple[bool, bool]
    """Whether P10 to P90 holds the measured time."""
    width: tuple[float, float]
    """P90 over P10, less 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HiddenEnd:
    """The larger runs of all series of one split, together; pairs as in `HiddenRun`."""

    runs: int
    mape: tuple[float, float]
    coverage: tuple[float, float]
    width: tuple[float, float]
    """Median."""


def hidden_runs(all_series: Iterable[Series]) -> tuple[HiddenRun, ...]:
    """Predict the larger runs of every series whose smallest one is small enough to be tried."""
    tables = load_tables()
    hidden: list[HiddenRun] = []
    for one in all_series:
        if one.gpus[0] <= MOST_KNOWN:
            known = one.rows[0].run
            anchor = anchor_of_row(known, replay(known.fields, tables, where=known.where))
            larger = [r for r, n in zip(one.rows, one.gpus, strict=True) if n > one.gpus[0]]
            hidden += [_hidden(row, anchor, tables) for row in larger]
    return tuple(hidden)


def hidden_end(runs: Sequence[HiddenRun], split: str) -> HiddenEnd | None:
    """Sum up the runs of one split; None without one."""
    some = [run for run in runs if run.split == split]
    if not some:
        return None
    error, inside, width = (
        np.array([getattr(run, name) for run in some], dtype=float)
        for name in ("error", "inside", "width")
    )
    pairs = (np.mean(np.abs(error), 0), np.mean(inside, 0), np.median(width, 0))
    mape, coverage, middle = ((float(pair[0]), float(pair[1])) for pair in pairs)
    return HiddenEnd(runs=len(some), mape=mape, coverage=coverage, width=middle)


def _hidden(row: ScoredRow, anchor: Anchor, tables: Tables) -> HiddenRun:
    assert row.measured_step_s is not None  # a series has no other rows
    run = replay(row.run.fields, tables, where=row.run.where)
    estimate = evaluate(run.layout, run.workload, run.cluster, run.software)
    alone = certainty(estimate, run.workload, run.cluster, run.software)
    found = correction(estimate, run, [anchor])
    measured_s, both = row.measured_step_s, (alone, found.certainty)
    steps = (float(estimate.step_time_s[0]), float(found.estimate.step_time_s[0]))
    return HiddenRun(
        split=row.run.get("split"),
        error=(steps[0] / measured_s - 1.0, steps[1] / measured_s - 1.0),
        inside=(_holds(both[0], measured_s), _holds(both[1], measured_s)),
        width=(_width(both[0]), _width(both[1])),
    )


def _holds(sure: Certainty, measured_s: float) -> bool:
    return bool(sure.p10_s[0] <= measured_s <= sure.p90_s[0])


def _width(sure: Certainty) -> float:
    return float(sure.p90_s[0] / sure.p10_s[0] - 1.0)
