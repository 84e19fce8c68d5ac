"""What the kernel formulas leave over on shapes that were timed, shipped beside the profiles.

``hardware_profiles/residuals/DEVICE.csv`` holds, for every library and type, the timed shapes of
a matrix product and one weight for each (``calibration/fit_residual.py`` writes them). A device
without a file, or one whose profile the user has replaced, has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from simulator import catalogue
from simulator.errors import InputError
from simulator.files import check_header, read_csv

__all__ = ["COLUMNS", "TimedShapes", "load_residuals"]

COLUMNS = ("library", "dtype", "m", "n", "k", "weight")
"""Header of a file of residuals."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedShapes:
    """Shapes of one device, library and type, and how far each pulls its surroundings."""

    m: NDArray[np.float64]
    n: NDArray[np.float64]
    k: NDArray[np.float64]
    weight: NDArray[np.float64]


@lru_cache(maxsize=64)
def load_residuals(device: str) -> Mapping[tuple[str, str], TimedShapes]:
    """Read the residuals of an accelerator profile, by (library, type); empty where none are.

    Raises
    ------
    InputError
        If the file has another header, or a size or weight that is no number.
    """
    profile = catalogue.find("accelerators", device)
    path = profile.parent.parent / "residuals" / f"{profile.stem}.csv"
    if not path.is_file():
        return {}
    found: dict[tuple[str, str], list[list[float]]] = {}
    for line, row in read_csv(path):
        check_header(path, list(row), required=COLUMNS, known=COLUMNS)
        try:
            numbers = [float(row[name]) for name in COLUMNS[2:]]
        except ValueError:
            raise InputError(f"{path}: line {line}: m, n, k and weight must be numbers") from None
        if not (np.isfinite(numbers).all() and min(numbers[:3]) >= 1.0):
            raise InputError(f"{path}: line {line}: m, n and k must be at least 1, all finite")
        found.setdefault((row["library"], row["dtype"]), []).append(numbers)
    return {
        key: TimedShapes(**dict(zip(COLUMNS[2:], np.array(rows).T, strict=True)))
        for key, rows in found.items()
    }
