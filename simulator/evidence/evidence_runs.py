"""Measured runs that predictions were held against, and how far off each was unseen.

``hardware_profiles/uncertainty/runs.csv`` is written by ``workshop/fits/training/ledger.py``: runs
that figures were fitted to are predicted with their whole source left out of the fit, runs of new
tables as they were at first sight (``validation/first_seen``), all others as the shipped profiles
predict them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator import catalogue
from simulator.arrays import Bools, Floats
from simulator.files import read_columns
from simulator.records import dataclass

AXES = ("tp", "cp", "pp", "ep")
"""Axes of a layout that a run uses or not, and whose groups leave a fast domain or not."""

WORDS = (
    *("device", "generation", "stack", "software", "kind", "precision"),
    *("routing", "tuned"),
)
"""Columns of words: accelerator profile and its generation; framework, whatever its release; the
profile of its release; kind of work (``Workload.kind``, encoder); type of GEMMs; whether
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
    axes: Mapping[str, Bools]
    """``uses`` and ``leaves``: a row a run, a column for each of AXES."""
    error: Floats
    weight: Floats
    """Of a run at distance 0: a source of n runs weighs as the root of n."""

    def some(self, wanted: Bools) -> EvidenceRuns:
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
    return runs_of(read_columns(path) if path.is_file() else dict.fromkeys(COLUMNS, ()))


def runs_of(columns: Mapping[str, Sequence[str]]) -> EvidenceRuns:
    """Make arrays of the columns of the table."""
    names = ("run_id", "source", "table", *WORDS)
    words = {name: np.array(columns[name], dtype=object) for name in names}
    sources = columns["source"]
    words["family"] = np.array([name.partition("-")[0] for name in sources], dtype=object)
    numbers = {name: np.array(columns[name], dtype=float) for name in NUMBERS}
    counts = Counter(sources)
    flags = {name: _flags(columns[name]) for name in ("uses", "leaves")}
    return EvidenceRuns(
        words=words,
        months=np.array([text or "nan" for text in columns["months"]], dtype=float),
        numbers=numbers,
        doublings={name: np.log2(numbers[name]) for name in NUMBERS[:5]},
        axes=flags,
        error=np.array(columns["error"], dtype=float),
        weight=np.array([counts[name] ** -0.5 for name in sources]),
    )


def _flags(joined: Sequence[str]) -> Bools:
    """Which of AXES each text names, of names joined by +: a row a text."""
    named = [text.split("+") for text in joined]  # np.char takes as long to load as all of this
    columns = [[axis in names for names in named] for axis in AXES]
    return np.array(columns, dtype=bool).reshape(len(AXES), -1).T
