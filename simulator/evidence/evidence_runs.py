"""Measured runs that predictions were held against, and how far off each was unseen.

``hardware_profiles/uncertainty/runs.csv`` is written by ``workshop/fits/training/ledger.py``: runs
that figures were fitted to are predicted with their whole source left out of the fit, runs of new
tables as they were at first sight (``validation/first_seen``), all others as the shipped profiles
predict them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator import catalogue
from simulator.arrays import Floats
from simulator.files import read_csv

Flags = NDArray[np.bool_]

AXES = ("tp", "cp", "pp", "ep")
"""Axes of a layout that a run uses or not, and whose groups leave a fast domain or not."""

WORDS = (
    *("device", "generation", "stack", "software", "kind", "precision"),
    *("routing", "tuned"),
)
"""Columns of words: accelerator profile and its generation; framework, whatever its release; the
profile of its release; kind of work (``Workload.kind``, encoder); type of matrix products; whether
routing of tokens to experts is forced to be even; whether the vendor of the device tunes the
software (``vendor``, ``plain``), or its figures are another's."""

NUMBERS = (
    *("gpus", "parameters", "expert_share", "sequence", "tokens"),
    *("launch", "communication", "attention", "memory_bound", "fullness"),
    "mfu",
)
"""Columns of numbers: accelerators; parameters that one token passes; all parameters over these;
tokens of a sample; tokens of a micro-batch of a rank; shares of the predicted step that are host
launches, exposed communication, attention, memory-bound kernels and the optimizer; predicted memory
over what is usable; MFU as measured, of a question as predicted."""

COLUMNS = ("run_id", "source", "table", *WORDS, "months", *NUMBERS, "uses", "leaves", "error")
"""Of the table; `table` of ``validation`` that it stands in; `months` of the release since the year
0, blank without a date; `uses`, `leaves`: AXES joined by +; `error` is predicted over measured step
time, less 1."""


@dataclass(frozen=True, slots=True)
class EvidenceRuns:
    """The table, a column each."""

    words: Mapping[str, NDArray[Any]]
    """``run_id``, ``source``, ``table``, ``family`` (a source up to its first
    hyphen) and those of WORDS."""
    months: Floats
    numbers: Mapping[str, Floats]
    doublings: Mapping[str, Floats]
    """Their logarithms to base 2, of the first five."""
    axes: Mapping[str, Flags]
    """``uses`` and ``leaves``: a row a run, a column for each of AXES."""
    error: Floats
    weight: Floats
    """Of a run at distance 0: a source of n runs weighs as the root of n."""

    def some(self, wanted: Flags) -> EvidenceRuns:
        """Some of the runs, each with its weight among all."""

        def pick(columns: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
            return {name: column[wanted] for name, column in columns.items()}

        return EvidenceRuns(
            words=pick(self.words),
            months=self.months[wanted],
            numbers=pick(self.numbers),
            doublings=pick(self.doublings),
            axes=pick(self.axes),
            error=self.error[wanted],
            weight=self.weight[wanted],
        )


@lru_cache(maxsize=1)
def load_evidence_runs() -> EvidenceRuns:
    """Read the table; no rows where a catalogue has none."""
    path = catalogue.folder("hardware_profiles") / "uncertainty" / "runs.csv"
    rows = [row for _, row in read_csv(path)] if path.is_file() else []
    return runs_of(rows)


def runs_of(rows: list[dict[str, str]]) -> EvidenceRuns:
    """Make the columns of rows."""
    names = ("run_id", "source", "table", *WORDS)
    words = {name: np.array([row[name] for row in rows], dtype=object) for name in names}
    words["family"] = np.array([row["source"].partition("-")[0] for row in rows], dtype=object)
    numbers = {name: np.array([float(row[name]) for row in rows]) for name in NUMBERS}
    sources = [row["source"] for row in rows]
    counts = {name: sources.count(name) for name in set(sources)}
    axes = {name: [row[name].split("+") for row in rows] for name in ("uses", "leaves")}
    flags = {
        name: np.array([[axis in used for axis in AXES] for used in some], dtype=bool)
        for name, some in axes.items()
    }
    return EvidenceRuns(
        words=words,
        months=np.array([float(row["months"] or "nan") for row in rows]),
        numbers=numbers,
        doublings={name: np.log2(numbers[name]) for name in NUMBERS[:5]},
        axes={name: some.reshape(len(rows), len(AXES)) for name, some in flags.items()},
        error=np.array([float(row["error"]) for row in rows]),
        weight=np.array([counts[name] ** -0.5 for name in sources]),
    )
