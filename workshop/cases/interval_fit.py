"""Fitting how an expected error follows from those of runs near.

All from the table of runs alone (``hardware_profiles/uncertainty/runs.csv``): a run is compared
with the others, never with its own source; where a table is left out, with none of that table
either, and ``spread`` is fitted without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from simulator.arrays import Floats
from simulator.cost.uncertainty import OUTSIDE
from simulator.evidence.evidence_runs import AXES, NUMBERS, WORDS, EvidenceRuns, load_evidence_runs
from simulator.evidence.likeness import P90_T4, Traits, load_likeness, nearness
from simulator.files import Figure
from simulator.scoring.first_sight import AS_WRITTEN, written_tables

MOST_OFF = 1.2
"""Errors (logarithms) beyond this count as this where intervals are scored."""
_SPREADS = np.linspace(0.2, 0.8, 121)


def first_tables() -> list[str]:
    """Tables that were kept at first sight, by name."""
    return [path.name.removesuffix(AS_WRITTEN) for path in written_tables()]


def traits_of(runs: EvidenceRuns, i: int) -> Traits:
    """What sets the time of a measured run."""
    return Traits(
        words={name: str(runs.words[name][i]) for name in WORDS},
        months=float(runs.months[i]),
        known=True,
        numbers={name: runs.numbers[name][i : i + 1] for name in NUMBERS},
        axes={name: runs.axes[name][i : i + 1].reshape(1, len(AXES)) for name in runs.axes},
    )


def weighted_errors(rows: Sequence[int], neighbours: EvidenceRuns) -> tuple[Floats, Floats]:
    """Of some runs: the weighted error of those near, and the error of those within reach."""
    runs = load_evidence_runs()
    near = [nearness(traits_of(runs, i), runs.words["family"][i], neighbours) for i in rows]
    return np.array([n.error[0] for n in near]), np.array([n.own[0] for n in near])


def log_errors(rows: Sequence[int]) -> Floats:
    """Logarithm of measured over predicted step time."""
    return np.asarray(-np.log1p(load_evidence_runs().error[list(rows)]))


def fitted_spread(without: str = "") -> float:
    """Fit ``spread``: the least with which P10 to P90 holds four of five runs at first sight.

    The runs of the table `without` are left out, of the neighbours too.
    """
    runs, rules = load_evidence_runs(), load_likeness()
    tables = [name for name in first_tables() if name != without]
    rows = np.flatnonzero(np.isin(runs.words["table"], tables)).tolist()
    error, own = weighted_errors(rows, runs.some(runs.words["table"] != without))
    off = np.abs(log_errors(rows))

    def inside(spread: float) -> float:
        expected = np.fmax(replace(rules, spread=_figure(spread)).expected(error), own / P90_T4)
        return float(np.mean(off <= P90_T4 * expected))

    return next((x for x in _SPREADS.tolist() if inside(x) >= 1.0 - OUTSIDE), float(_SPREADS[-1]))


def expected_left_out(table: str) -> tuple[list[int], Floats]:
    """Rows of a table, and the error to expect of each with the whole table left out."""
    runs, rules = load_evidence_runs(), load_likeness()
    rows = np.flatnonzero(runs.words["table"] == table).tolist()
    others = runs.some(runs.words["table"] != table)
    error, own = weighted_errors(rows, others)
    spread = fitted_spread(without=table)
    expected = replace(rules, spread=_figure(spread)).expected(error)
    return rows, np.fmax(expected, own / P90_T4)


def _figure(value: float) -> Figure:
    return Figure(value, "fitted", "fit")
