"""Timed GEMMs, one series for each device, type and library; what no fit may use.

A series is what one library did on one device in one type. Rows that say more about the timing
than about the kernel are set apart here, each for a reason that can be read off the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulator import catalogue
from simulator.arrays import Floats
from simulator.calibration.least_squares import Rows
from simulator.errors import InputError, did_you_mean
from simulator.hardware.accelerator import Accelerator
from simulator.hardware.cluster import load_accelerator
from simulator.measured.kernel_calls import GEMM_COLUMNS, framework_name
from simulator.measured.microbenchmarks import Sieve, Table, groups, load_words, read_table
from workshop.facts import facts

LIBRARIES: dict[str, str] = facts(__file__)["libraries"]
"""Library whose series the timings of a framework make up: TRT-LLM and DeepBench call cuBLAS,
vLLM and SGLang choose a kernel of their own for each type."""

LEAST_ROWS = 60
"""A series of fewer rows is not fitted: ten parameters would follow its noise."""

_TYPES = {
    "bfloat16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8_blockwise",
    "nvfp4": "nvfp4",
    "fp16 in / fp32 acc": "fp16",
    "fp32": "fp32",
}
"""Word of the table: type. (int8 has no peak in the profiles.)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Timed products of one device, type and library."""

    device: str
    """Accelerator profile."""
    dtype: str
    library: str
    framework: str
    """Who timed it, with the release: ``trtllm/1.3.0rc20``."""
    accelerator: Accelerator
    rows: Rows
    """Columns m, n, k, seconds."""
    dropped: NDArray[np.bool_]
    """Rows that no fit uses."""
    reason: str
    """Why they are dropped; blank where none are."""

    @property
    def key(self) -> tuple[str, str, str]:
        """Device, type, library."""
        return self.device, self.dtype, self.library

    @property
    def used(self) -> NDArray[np.bool_]:
        """Rows to fit: those not dropped, or all of a series that is noise throughout."""
        return np.asarray(~self.dropped | self.dropped.all())

    @property
    def large(self) -> NDArray[np.bool_]:
        """Rows with M, N and K of at least 512."""
        sides = np.minimum(np.minimum(self.rows["m"], self.rows["n"]), self.rows["k"])
        return np.asarray(sides >= 512.0)

    @property
    def flop(self) -> Floats:
        """FLOPs of each row."""
        return 2.0 * self.rows["m"] * self.rows["n"] * self.rows["k"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Noise:
    """Rows that tell of the timing, not of the kernel: all, or long or large ones alone."""

    devices: tuple[str, ...]
    dtype: str
    library: str
    reason: str
    over_s: float = -np.inf
    over_flop: float = -np.inf

    def rows(self, rows: Rows) -> NDArray[np.bool_]:
        """Which of a series' rows they are."""
        flop = 2.0 * rows["m"] * rows["n"] * rows["k"]
        return np.asarray((rows["seconds"] > self.over_s) & (flop >= self.over_flop))


NOISE = tuple(
    _Noise(**{**noise, "devices": tuple(noise["devices"])}) for noise in facts(__file__)["noise"]
)
"""Found by comparing shapes within a series; measured times alone, no formula, decide."""


def shipped_table() -> Path:
    """Return the table of kernel times in the repository."""
    return catalogue.folder("validation") / "microbenchmarks" / "kernels.csv"


def load_series(
    table: Table | Path | str | None = None, *, accelerators: Mapping[str, str] | None = None
) -> list[Series]:
    """Read every series of a table of kernel times that has enough rows and a profile.

    Parameters
    ----------
    table : Table or Path, optional
        The shipped one unless stated.
    accelerators : mapping, optional
        Profile of each word of the column ``gpu``, in place of ``words.toml``.
    """
    table = table if isinstance(table, Table) else read_table(table or shipped_table(), "kernels")
    words = load_words().accelerators if accelerators is None else accelerators
    known = set(catalogue.names("accelerators"))
    sieve, text = Sieve(table), table.text
    timed = sieve.kept & (text("kernel") == "gemm") & np.isin(text("dtype"), list(_TYPES))
    framework = np.array([framework_name(word) for word in text("framework").tolist()])
    found = []
    for (gpu, dtype, name), at in groups(timed, text("gpu"), text("dtype"), framework):
        device, library = words.get(gpu, gpu), LIBRARIES.get(name, "")
        if device not in known or not library or len(at) < LEAST_ROWS:
            continue
        accelerator = load_accelerator(device)
        if _units(_TYPES[dtype]) in accelerator.matrix_flop_per_s:
            found.append(_series(sieve, at, accelerator, _TYPES[dtype], library))
    if sieve.problems:
        raise InputError(sieve.problems)
    return sorted(found, key=lambda series: series.key)


def _units(dtype: str) -> str:
    """Type whose peak a product has: block scales run on the fp8 units of any device."""
    return "fp8" if dtype == "fp8_blockwise" else dtype


def _series(
    sieve: Sieve, at: NDArray[np.intp], accelerator: Accelerator, dtype: str, library: str
) -> Series:
    mask = sieve.table.at(at)
    names = GEMM_COLUMNS | {"seconds": "time_us"}
    rows = {name: sieve.positive(column, mask)[mask] for name, column in names.items()}
    rows["seconds"] = rows["seconds"] * 1e-6
    dropped, reasons = np.zeros(len(at), dtype=bool), []
    for noise in NOISE:
        if accelerator.name in noise.devices and (dtype, library) == (noise.dtype, noise.library):
            dropped |= noise.rows(rows)
            reasons.append(noise.reason)
    return Series(
        device=accelerator.name,
        dtype=dtype,
        library=library,
        accelerator=accelerator,
        framework=str(sieve.table.text("framework")[at[0]]),
        rows=rows,
        dropped=dropped,
        reason="; ".join(reasons),
    )


def one_series(table: Path | str, *, gpu: str, dtype: str, library: str) -> Rows:
    """Return the rows of one series, whatever profiles there are.

    Raises
    ------
    InputError
        If the table has no such rows, or a row that is no measurement.
    """
    read = read_table(table, "kernels")
    sieve, text = Sieve(read), read.text
    written = [word for word, known in _TYPES.items() if known == dtype]
    frameworks = [word for word, known in LIBRARIES.items() if known == library]
    name = np.array([framework_name(word) for word in text("framework").tolist()])
    match = sieve.kept & (text("kernel") == "gemm") & (text("gpu") == gpu)
    match &= np.isin(text("dtype"), written) & np.isin(name, frameworks)
    if not match.any():
        asked = f"gemm {written[0]} {frameworks[0]}"
        hint = did_you_mean(gpu, _seen(text("gpu").tolist()))
        raise InputError(f"{table}: no {asked} rows of gpu {gpu!r}{hint}")
    names = GEMM_COLUMNS | {"seconds": "time_us"}
    rows = {field: sieve.positive(column, match)[match] for field, column in names.items()}
    if sieve.problems:
        raise InputError(sieve.problems)
    return rows | {"seconds": rows["seconds"] * 1e-6}


def _seen(words: Iterable[str]) -> list[str]:
    return sorted(set(words))
