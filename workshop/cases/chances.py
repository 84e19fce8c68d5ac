"""Whether chances hold: how often the layout that was predicted slower turned out to be faster.

Within every group of runs that differ in nothing but the layout, each pair is a forecast: the
slower one is the faster one with a chance (`Belief.beats`), and it either was or was not.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.cost.step import evaluate
from simulator.cost.uncertainty import bearing, belief, evidence_spread, same_kernels
from simulator.layout.layouts import Layouts
from simulator.measured.replay import Tables, load_tables, replay
from simulator.scoring.rankings import FEWEST_LAYOUTS
from simulator.scoring.scores import ScoredRow, ranking_group

APART = 0.01
"""Measured times that differ by no more than this say nothing of which layout is faster."""

BINS = (0.0, 0.02, 0.1, 0.2, 0.3, 0.4, 0.5)
"""Edges of the chances that are counted together."""

Forecasts = list[tuple[float, bool]]
"""Chance that the layout predicted slower is the faster one, and whether it was."""


def chances(rows: Sequence[ScoredRow]) -> dict[str, list[dict[str, Any]]]:
    """Count forecasts of pairs by split and by chance.

    Returns
    -------
    dict
        By split, for every bin of `BINS` with a pair: its edges ``low`` and ``high``, the number of
        ``pairs``, the mean chance ``said``, and the share that ``happened``.
    """
    groups: dict[tuple[str, str], list[ScoredRow]] = {}
    for row in rows:
        if row.step_error is not None and not row.composed:
            groups.setdefault((row.run.get("split"), ranking_group(row)), []).append(row)
    tables, found = load_tables(), dict[str, Forecasts]()
    for (split, _), some in groups.items():
        if len(some) >= FEWEST_LAYOUTS:
            found.setdefault(split, []).extend(_forecasts(some, tables))
    return {split: reliability(pairs) for split, pairs in found.items()}


def _forecasts(rows: Sequence[ScoredRow], tables: Tables) -> Forecasts:
    """Forecasts of all pairs of one group."""
    runs = [replay(row.run.fields, tables, where=row.run.where) for row in rows]
    estimates = [evaluate(r.layout, r.workload, r.cluster, r.software) for r in runs]
    first = runs[0]
    setting = first.workload, first.cluster, first.software
    family = rows[0].run.get("source").partition("-")[0]
    wide = float(np.mean([evidence_spread(e, *setting, family)[0] for e in estimates]))
    known = belief(first.cluster, first.software, first.workload, wide=wide)
    experts = first.workload.architecture.is_moe
    shares = np.concatenate([bearing(estimate, experts=experts) for estimate in estimates])
    kernels = same_kernels(Layouts.concatenate([run.layout for run in runs]))
    step_s = np.concatenate([one.step_time_s for one in estimates])
    measured_s = np.array([row.measured_step_s for row in rows], dtype=float)
    beats = np.stack([known.beats(step_s, shares, kernels, best=i) for i in range(len(rows))])
    return pairs_of(beats, step_s, measured_s)


def pairs_of(beats: Floats, step_s: Floats, measured_s: Floats) -> Forecasts:
    """List the forecasts of pairs whose measured times can be told apart.

    Parameters
    ----------
    beats : ndarray, shape (layouts, layouts)
        Chance that the layout of a column is faster than that of a row.
    """
    pairs = []
    order = np.argsort(step_s, kind="stable").tolist()
    for place, faster in enumerate(order):
        for slower in order[place + 1 :]:
            ratio = measured_s[slower] / measured_s[faster]
            if abs(np.log(ratio)) > np.log1p(APART):
                pairs.append((float(beats[faster, slower]), bool(ratio < 1.0)))
    return pairs


def reliability(forecasts: Forecasts) -> list[dict[str, Any]]:
    """Compare what was said with what happened, by chance.

    Examples
    --------
    >>> reliability([(0.25, True), (0.27, False)])[0] | {"said": None}
    {'low': 0.2, 'high': 0.3, 'pairs': 2, 'said': None, 'happened': 0.5}
    """
    found: list[dict[str, Any]] = []
    for low, high in pairwise(BINS):
        some = [
            (said, was) for said, was in forecasts if low <= said < high or said == high == BINS[-1]
        ]
        if some:
            said, happened = np.mean(np.array(some, dtype=float), axis=0).tolist()
            edges = {"low": low, "high": high}
            found.append({**edges, "pairs": len(some), "said": said, "happened": happened})
    return found
