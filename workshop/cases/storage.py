"""How many accelerators a store feeds, beside MLPerf Storage v1.0: `validation/storage/`.

The benchmark emulates accelerators that read a batch and compute for a fixed time; a submission
counts those that compute for a stated share of the time.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from annotated_types import Gt, Le

from simulator import catalogue
from simulator.arrays import Floats
from simulator.data_input.data_section import DataInput, Store
from simulator.data_input.supply import Readers, sample_of, stage_times, waiting_s
from simulator.files import Figure, Number, Whole, build, read_csv, read_toml, record
from simulator.units import GIB
from workshop.facts import facts

Positive = Annotated[Number, Gt(0)]

_MANY_WORKERS = 10_000
"""The benchmark's readers are no limit; its rules let submitters choose them."""


@record
class Emulated:
    """One workload of the benchmark."""

    sample_bytes: Positive
    batch: Annotated[Whole, Gt(0)]
    step_s: dict[str, Positive]
    """Time of a step of each accelerator."""
    utilisation: Annotated[Number, Gt(0), Le(1)]
    """Share of the time that accelerators must compute."""

    def bytes_per_s(self, accelerator: str) -> float:
        """What one accelerator reads that never waits."""
        return self.batch * self.sample_bytes / self.step_s[accelerator]


_FACTS = facts(__file__, "storage")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fed:
    """One submission."""

    workload: str
    accelerator: str
    submitter: str
    system: str
    accelerators: int
    bytes_per_s: float


def read_workloads() -> dict[str, Emulated]:
    """Read the workloads."""
    path = catalogue.folder("validation") / "storage" / "workloads.toml"
    tables = {name: x for name, x in read_toml(path).items() if isinstance(x, dict)}
    return {name: build(Emulated, x, where=str(path), prefix=name) for name, x in tables.items()}


def read_fed(path: Path | None = None) -> list[Fed]:
    """Read the results."""
    path = path or catalogue.folder("validation") / "storage" / _FACTS["table"]
    return [
        Fed(
            workload=row["model"],
            accelerator=row["accelerator"],
            submitter=row["submitter"],
            system=row["system"],
            accelerators=int(row["num_accelerators"]),
            bytes_per_s=float(row["total_GiBps"]) * GIB,
        )
        for _, row in read_csv(path)
    ]


def fed(workload: Emulated, accelerator: str, bytes_per_s: float) -> int:
    """Most accelerators that a store of this rate keeps busy enough.

    Examples
    --------
    A store of 10 GB/s and images of 105 MB/s and accelerator, which may wait a tenth of the time.

    >>> fed(read_workloads()["resnet50"], "a100", 10e9)
    105
    """
    most = max(2, int(2.0 * bytes_per_s / workload.bytes_per_s(accelerator) / workload.utilisation))
    counts = np.arange(1.0, most + 1)
    busy = utilisation(workload, accelerator, bytes_per_s, counts) >= workload.utilisation
    return int(counts[busy].max(initial=0))


def utilisation(workload: Emulated, accelerator: str, bytes_per_s: float, counts: Floats) -> Floats:
    """Share of the time that so many accelerators compute."""
    data = DataInput(
        kind="records",
        sample_bytes=workload.sample_bytes,
        workers=_MANY_WORKERS,
        store=Store(read_bytes_per_s=Figure(bytes_per_s)),
    )
    readers = Readers(
        samples=np.full(len(counts), float(workload.batch)),
        ranks=counts,
        server_ranks=counts,
        fetches=counts,
        server_fetches=counts,
    )
    step_s = np.full(len(counts), workload.step_s[accelerator])
    stages = stage_times(data, sample_of(data, 0.0), readers, np.inf)
    return np.asarray(step_s / (step_s + waiting_s(data, stages, step_s)))


def from_others(rows: list[Fed]) -> Iterator[tuple[Fed, Fed, int]]:
    """Each system's A100 result, its H100 result of the same workload, and what this one predicts.

    A store delivers what it delivers: the total of the one predicts how many of the other it feeds.
    Of several results the largest counts.
    """
    fed_runs: dict[tuple[str, str, str], dict[str, Fed]] = defaultdict(dict)
    for row in rows:
        fed_run = fed_runs[row.submitter, _plain(row.system), row.workload]
        best = fed_run.get(row.accelerator)
        if best is None or row.bytes_per_s > best.bytes_per_s:
            fed_run[row.accelerator] = row
    workloads = read_workloads()
    for (_, _, workload), both in fed_runs.items():
        if len(both) == 2:
            a100, h100 = both[_FACTS["slow"]], both[_FACTS["fast"]]
            yield a100, h100, fed(workloads[workload], _FACTS["slow"], h100.bytes_per_s)


def _plain(system: str) -> str:
    """A system's name without workload and accelerator, which some submitters put into it."""
    return re.sub(r"[-_](resnet50|unet3d|cosmoflow).*|_[AH]100", "", system)
