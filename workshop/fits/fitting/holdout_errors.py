"""Errors on shapes that were left out of a fit, as `make profiles` tabulates them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields

import numpy as np

from simulator.arrays import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """One line of ``validation/microbenchmarks/left_out.csv``: how well unseen shapes come out."""

    kernel: str
    """Family and range, ``gemm, all dimensions >= 512`` for instance."""
    device: str
    """Profile, or ``all``."""
    library: str
    """Kernel library, or ``all``."""
    dtype: str
    method: str
    """``constant``, ``formula``, ``formula + residual`` or ``one accelerator left out``, alone or
    with ``one factor`` on its rate."""
    rows: int
    median: float
    """Of |predicted / measured - 1|."""
    p90: float
    spread: float
    """Half the distance between the 16th and 84th percentile of log(predicted / measured)."""


def left_out(
    predicted_s: Floats,
    measured_s: Floats,
    *,
    kernel: str,
    device: str,
    library: str,
    dtype: str,
    method: str,
) -> LeftOut:
    """Score times that were predicted unseen."""
    ratio = np.log(predicted_s / measured_s)
    error = np.abs(np.expm1(ratio))
    low, high = np.percentile(ratio, [16, 84])
    return LeftOut(
        kernel=kernel,
        device=device,
        library=library,
        dtype=dtype,
        method=method,
        rows=len(ratio),
        median=float(np.median(error)),
        p90=float(np.percentile(error, 90)),
        spread=float((high - low) / 2.0),
    )


def written(lines: Iterable[LeftOut]) -> str:
    """Return the lines as a CSV table, four digits each, in the order given."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([field.name for field in fields(LeftOut)])
    for line in lines:
        row = asdict(line).values()
        table.writerow([f"{x:.4g}" if isinstance(x, float) else x for x in row])
    return text.getvalue()
