"""What the kernel formulas leave over on shapes that were timed, shipped beside the profiles.

``hardware_profiles/residuals/KERNEL/DEVICE.csv`` holds, for every library and type, timed shapes
of one kind of kernel and one weight for each (``make profiles`` writes them). Lines of the library
``*`` say what all libraries and types of the device share. A device without a file, or one whose
profile the user has replaced, has none.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulator import catalogue
from simulator.arrays import Floats
from simulator.errors import InputError
from simulator.files import check_header, read_columns, read_csv, says_number
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


def load_residuals(device: str, kernel: str = "gemm") -> Mapping[tuple[str, str], TimedShapes]:
    """Read the residuals of an accelerator profile, by (library, type); empty where none are.

    Raises
    ------
    InputError
        If the file has another header, or a size or weight that is no number.
    """
    profile = catalogue.find("accelerators", device)
    path = profile.parent.parent / "residuals" / kernel / f"{profile.stem}.csv"
    try:
        stamp = path.stat()
    except FileNotFoundError:
        return {}
    return _of_file(path, kernel, (stamp.st_mtime_ns, stamp.st_size))


@lru_cache(maxsize=64)
def _of_file(
    path: Path, kernel: str, stamp: tuple[int, int]
) -> Mapping[tuple[str, str], TimedShapes]:
    """Read a table once for every state of its file: a session may measure again."""
    header, text = columns(kernel), read_columns(path)
    check_header(path, text, required=header, known=header)
    table = _numbers(path, kernel, [text[name] for name in header[2:]])
    rows: dict[tuple[str, str], list[int]] = {}
    for row, key in enumerate(zip(text["library"], text["dtype"], strict=True)):
        rows.setdefault(key, []).append(row)
    shared = rows.pop((SHARED, SHARED), [])
    return {key: _timed(kernel, table[:, [*places, *shared]]) for key, places in rows.items()}


def _numbers(path: Path, kernel: str, text: Sequence[Sequence[str]]) -> Floats:
    """Sizes and weight, a row each."""
    names = SIZES[kernel]
    # a layer without a gate has `gated` 0; every other size counts something
    least = np.array([0.0 if name == "gated" else 1.0 for name in names])
    try:
        table = np.array([[*map(float, column)] for column in text])
    except ValueError:
        wanted = ", ".join((*names, "weight"))
        rows = enumerate(zip(*text, strict=True))
        wrong = (i for i, row in rows if not all(map(says_number, row)))
        raise InputError(
            f"{path}: line {_line(path, next(wrong))}: {wanted} must be numbers"
        ) from None
    valid = np.isfinite(table).all(axis=0) & (table[:-1] >= least[:, None]).all(axis=0)
    if not valid.all():
        said = f"{', '.join(names[:-1])} and {names[-1]}"
        line = _line(path, int(np.argmin(valid)))
        raise InputError(f"{path}: line {line}: {said} must be at least 1, all finite")
    return table


def _line(path: Path, row: int) -> int:
    """Line of a row in the file."""
    return next(itertools.islice(read_csv(path), row, None))[0]


def _timed(kernel: str, rows: Floats) -> TimedShapes:
    *sizes, weight = rows
    return TimedShapes(
        kernel=kernel, sizes=dict(zip(SIZES[kernel], sizes, strict=True)), weight=weight
    )
