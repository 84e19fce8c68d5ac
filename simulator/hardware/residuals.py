"""What the kernel formulas leave over on shapes that were timed, shipped beside the profiles.

``hardware_profiles/residuals/KERNEL/DEVICE.csv`` holds, for every library and type, timed shapes
of one kind of kernel and one weight for each (``make profiles`` writes them). Lines of the library
``*`` say what all libraries and types of the device share. A device without a file, or one whose
profile the user has replaced, has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulator import catalogue
from simulator.errors import InputError
from simulator.files import check_header, read_csv
from simulator.records import dataclass

SIZES = {
    "gemm": ("m", "n", "k"),
    "attention": ("heads", "queries", "groups", "head_size"),
    "experts": ("tokens", "experts", "hidden", "ffn", "gated", "all_tokens", "top_k"),
    "decode_experts": ("tokens", "experts", "hidden", "ffn", "top_k"),
}
"""Sizes of a timed shape, by kernel. `heads` counts those of all sequences, `groups` the heads that
share a key head; `tokens` are those of each expert, `experts` those of the rank. Of an engine's
layer (``simulator/reinforcement/decode_kernels.py``) `tokens` are those of the iteration."""

SHARED = "*"
"""Library, and type, of what all of them share."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedShapes:
    """Shapes of one device, library and type, and how far each pulls its surroundings."""

    kernel: str
    """``gemm``, ``attention``, ``experts`` or ``decode_experts``."""
    sizes: Mapping[str, NDArray[np.float64]]
    """By name (``SIZES``)."""
    weight: NDArray[np.float64]


def columns(kernel: str) -> tuple[str, ...]:
    """Return the header of a file of residuals."""
    return ("library", "dtype", *SIZES[kernel], "weight")


@lru_cache(maxsize=64)
def load_residuals(device: str, kernel: str = "gemm") -> Mapping[tuple[str, str], TimedShapes]:
    """Read the residuals of an accelerator profile, by (library, type); empty where none are.

    Raises
    ------
    InputError
        If the file has another header, or a size or weight that is no number.
    """
    profile = catalogue.find("accelerators", device)
    path = profile.parent.parent / "residuals" / kernel / f"{profile.stem}.csv"
    if not path.is_file():
        return {}
    columns = _numbers(path, kernel)
    shared = columns.pop((SHARED, SHARED), [])
    return {key: _timed(kernel, [*rows, *shared]) for key, rows in columns.items()}


def _numbers(path: Path, kernel: str) -> dict[tuple[str, str], list[list[float]]]:
    header, names = columns(kernel), SIZES[kernel]
    said = f"{', '.join(names[:-1])} and {names[-1]}"
    # a layer without a gate has `gated` 0; every other size counts something
    least = [0.0 if name == "gated" else 1.0 for name in names]
    rows: dict[tuple[str, str], list[list[float]]] = {}
    every, lines = list[list[float]](), list[int]()
    for line, row in read_csv(path):
        if not lines:
            check_header(path, list(row), required=header, known=header)
        try:
            numbers = [float(row[name]) for name in header[2:]]
        except ValueError:
            wanted = ", ".join(header[2:])
            raise InputError(f"{path}: line {line}: {wanted} must be numbers") from None
        every.append(numbers)
        lines.append(line)
        rows.setdefault((row["library"], row["dtype"]), []).append(numbers)
    table = np.array(every).reshape(-1, len(least) + 1)
    valid = np.isfinite(table).all(axis=1) & (table[:, :-1] >= least).all(axis=1)
    if not valid.all():
        line = lines[int(np.argmin(valid))]
        raise InputError(f"{path}: line {line}: {said} must be at least 1, all finite")
    return rows


def _timed(kernel: str, rows: list[list[float]]) -> TimedShapes:
    *sizes, weight = np.array(rows).T
    return TimedShapes(
        kernel=kernel, sizes=dict(zip(SIZES[kernel], sizes, strict=True)), weight=weight
    )
