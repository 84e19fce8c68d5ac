"""Measured runs that predictions were held against, and how far off each was unseen.

``hardware_profiles/uncertainty/runs.csv`` is written by
``workshop/fits/training/evidence_table.py``: runs that figures were fitted to are predicted
with their whole source left out of the fit, all others as the shipped profiles predict them.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKind:
    """What counts of a run where others are looked for that are alike."""

    device: str
    """Accelerator profile."""
    generation: str
    stack: str
    """The framework, whatever its release (``Software.stack``)."""
    software: str
    """The profile that stands for its release, or a framework that has no profile of its own."""
    kind: str
    """``Workload.kind``."""
    precision: str
    """Type of its matrix products, as accelerators name it."""
    gpus: int
    parameters: int
    """Of the model, that one token passes."""


NUMBERS = ("gpus", "parameters")
"""Columns that say how large a run was."""

COLUMNS = ("run_id", *RunKind.__dataclass_fields__, "error")
"""Of the table; `error` is predicted over measured step time, less 1."""


@dataclass(frozen=True, slots=True)
class EvidenceRuns:
    """The table, a column each."""

    words: Mapping[str, NDArray[Any]]
    """All columns but the numbers."""
    sizes: Mapping[str, Floats]
    """A column for each of NUMBERS."""
    error: Floats

    def same(self, asked: RunKind, *names: str) -> Flags:
        """Which runs agree in some columns."""
        alike = np.full(len(self.error), True)
        for name in names:
            alike &= self.words[name] == getattr(asked, name)
        return alike

    def doublings(self, asked: RunKind, name: str) -> Floats:
        """How often one of NUMBERS has to be doubled, or halved, to be that of another run."""
        return np.abs(np.log2(self.sizes[name] / getattr(asked, name)))

    def kind_of(self, i: int) -> RunKind:
        """What one run is."""
        values: dict[str, Any] = {name: str(column[i]) for name, column in self.words.items()}
        values |= {name: int(column[i]) for name, column in self.sizes.items()}
        del values["run_id"]
        return RunKind(**values)


@lru_cache(maxsize=1)
def load_evidence_runs() -> EvidenceRuns:
    """Read the table; no rows where a catalogue has none."""
    path = catalogue.folder("hardware_profiles") / "uncertainty" / "runs.csv"
    rows = [row for _, row in read_csv(path)] if path.is_file() else []
    columns = {name: np.array([row[name] for row in rows], dtype=object) for name in COLUMNS}
    error, *sizes = (columns.pop(name).astype(float) for name in ("error", *NUMBERS))
    return EvidenceRuns(columns, dict(zip(NUMBERS, sizes, strict=True)), error)
