"""Whether intervals hold on tables that were left out whole: by group of runs, and by grade.

Each run of a table of first sight, and of Megatron-LM's small tests, is set against the runs of all
other tables, without its source; the expected error is fitted without its table. Nothing but the
table of measured runs is read (``workshop/cases/interval_fit.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator import catalogue
from simulator.arrays import Bools, Floats
from simulator.evidence.card import GRADES
from simulator.evidence.evidence_runs import EvidenceRuns, load_evidence_runs
from simulator.evidence.likeness import P90_T4, STOOD_IN, load_likeness
from simulator.hardware.cluster import load_accelerator
from simulator.search.certainty import heavy_tailed
from workshop.cases.first_sight import read_first_sight
from workshop.cases.interval_fit import (
    MOST_OFF,
    devices_left_out,
    expected_left_out,
    first_tables,
    fitted_device,
    grades_left_out,
    interval_scores,
    log_errors,
)

OLDER = ("second_memory",)
"""Tables that were never first sight, but that no figure of time was fitted to either."""
DEVICES = "borrowed devices left out"
_HOST_BOUND = 0.1
"""Share of the step that host launches take from which on a run is bound by its host."""
_SMALL = ("fp8", "mxfp8", "fp8_blockwise", "nvfp4")
_THREE_SIGMA = 0.00135
_TENTHS = 10


def intervals_left_out() -> dict[str, Any]:
    """Score the intervals of runs whose table was left out.

    Returns
    -------
    dict
        ``groups``: by group, runs, share inside P10 to P90, stated and true mean error, median
        width (logarithm) and interval score, and share inside and score of what was said at first
        sight; ``grades``: the same by the grade that an answer gives; ``tenths``: share of runs in
        each tenth of the predicted distribution; ``beyond_three_sigma``: share where a normal
        distribution has 0.3 %. Of the last three, tables of first sight alone.
    """
    runs = load_evidence_runs()
    parts = {name: expected_left_out(name) for name in (*first_tables(), *OLDER)}
    rows = np.concatenate([np.array(found, dtype=int) for found, _ in parts.values()])
    expected = np.concatenate([some for _, some in parts.values()])
    off = log_errors(rows.tolist())
    first = ~np.isin(runs.words["table"][rows], OLDER)
    said = _said(runs, rows)
    groups = {
        name: _figures(off[some], expected[some], {k: v[some] for k, v in said.items()})
        for name, some in _groups(runs, rows, first).items()
        if some.any()
    }
    groups[DEVICES] = _devices()
    chance = heavy_tailed(off[first] / expected[first])
    graded = [grades_left_out(some, name, wide) for name, (some, wide) in parts.items()]
    words, grades = np.concatenate(graded), {}
    for grade in GRADES:
        some = first & (words == grade)
        grades[grade] = _figures(off[some], expected[some], {k: v[some] for k, v in said.items()})
    beyond = (chance < _THREE_SIGMA) | (chance > 1.0 - _THREE_SIGMA)
    return {
        "groups": groups,
        "grades": grades,
        "tenths": (np.histogram(chance, _TENTHS, (0.0, 1.0))[0] / first.sum()).tolist(),
        "beyond_three_sigma": float(beyond.mean()),
        "least": float(load_likeness().least),
    }


def _groups(runs: EvidenceRuns, rows: NDArray[Any], first: Bools) -> dict[str, Bools]:
    """Which rows are of each group; those of first sight but for the last."""
    words = {name: column[rows] for name, column in runs.words.items()}
    devices = sorted(set(words["device"].tolist()))
    vendors = {name: load_accelerator(name).vendor for name in devices}
    groups: dict[str, Any] = {"all": np.full(len(rows), True)}
    groups |= {kind: words["kind"] == kind for kind in ("dense", "experts", "adapter")}
    groups["fp8 and fp4"] = np.isin(words["precision"], _SMALL)
    groups["host-bound"] = runs.numbers["launch"][rows] > _HOST_BOUND
    groups["other vendors"] = np.array([vendors[name] != "NVIDIA" for name in words["device"]])
    groups["trainers stood in for"] = words["tuned"] == STOOD_IN
    groups = {name: some & first for name, some in groups.items()}
    return groups | {
        name.replace("_", "-"): words["table"] == name for name in (*first_tables(), *OLDER)
    }


def _devices() -> dict[str, Any]:
    """Runs of devices with the kernels of others: no run of the device near, nor in the fit."""
    parts = [
        (off, np.fmax(usual, fitted_device(name)))
        for name, (usual, off) in devices_left_out().items()
    ]
    off, expected = (np.concatenate(some) for some in zip(*parts, strict=True))
    unsaid = np.full(len(off), np.nan)
    return _figures(off, expected, {"low": unsaid, "high": unsaid})


def _said(runs: EvidenceRuns, rows: NDArray[Any]) -> dict[str, Floats]:
    """P10 and P90 over the prediction (logarithms) as first said; NaN of tables without."""
    folder = catalogue.folder("validation") / "first_seen"
    seen = {name: read_first_sight(folder / f"{name}.csv") for name in first_tables()}
    ends = []
    for i in rows.tolist():
        known = seen.get(runs.words["table"][i], {}).get(runs.words["run_id"][i])
        ends.append(np.log([known[1] / known[0], known[2] / known[0]]) if known else [np.nan] * 2)
    low, high = np.array(ends).T
    return {"low": low, "high": high}


def _figures(off: Floats, expected: Floats, said: Mapping[str, Floats]) -> dict[str, Any]:
    """Figures of one group; `off` and ends are logarithms."""
    reach = P90_T4 * expected
    capped = np.clip(off, -MOST_OFF, MOST_OFF)
    known = np.isfinite(said["low"])
    before = (said["low"] <= off) & (off <= said["high"])
    old = (said["low"] - capped)[known], (said["high"] - capped)[known]
    ours = -reach - capped, reach - capped
    return {
        "n": len(off),
        "inside": _mean((off >= -reach) & (off <= reach)),
        "stated": _mean(expected),
        "true": _mean(np.abs(capped)),
        "width": float(np.median(2.0 * reach)) if len(off) else None,
        "score": _mean(_score(*ours)),
        "inside_before": _mean(before[known]),
        "score_before": _mean(_score(*old)),
    }


def _score(low: Floats, high: Floats) -> Floats:
    """Interval score of ends over the measured value, given as logarithms."""
    return interval_scores(np.exp(low), np.exp(high))


def _mean(values: NDArray[Any]) -> float | None:
    return float(values.mean()) if len(values) else None
