"""Products of the backward pass beside those of the forward pass, on devices that timed both.

A data gradient is a product like any other. A weight gradient adds to an fp32 result in memory:
beyond the traffic of that result, which the formula has, its epilogue waits for what it reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.calibration import Floats
from simulator.calibration.gemm_series import shipped_table
from simulator.cost.kernels import gemm_rates, gemm_s
from simulator.hardware.accelerator import Accelerator
from simulator.hardware.cluster import load_accelerator
from simulator.measured.kernel_calls import GEMM_COLUMNS
from simulator.measured.microbenchmarks import Sieve, Table, read_table

__all__ = ["Backward", "backward_rates"]

TIMED = {"a100-sxm-80": "a100_pcie", "b200-sxm": "b200_sxm"}
"""Profile: word of the table. The A100 of the table is the card, with the same chip."""

_WAYS = {"dgrad": ("dgrad", "out=bf16", 2.0), "wgrad": ("wgrad", "out=fp32", 8.0)}
_LEAST_FLOP = 1e11


@dataclass(frozen=True, slots=True, kw_only=True)
class Backward:
    """Rates of the products of the backward pass over that of the forward pass."""

    rows: int
    dgrad: float
    """Rate of a data gradient."""
    wgrad: float
    """Rate of a weight gradient that adds to fp32, beyond its traffic."""


def backward_rates(
    figures: Mapping[str, Mapping[str, float]], table: Table | None = None
) -> dict[str, Backward]:
    """Compare directions by profile: medians over calls of 1e11 FLOP and more.

    Every call is first divided by what the formula says of a forward product of its shape and
    traffic, so that the two directions need not have been timed on the same shapes.

    Parameters
    ----------
    figures : mapping
        Figures of cuBLAS in bf16, by profile; devices that are missing are left out.
    table : Table, optional
        The shipped table of kernel times unless stated.
    """
    table = table or read_table(shipped_table(), "kernels")
    found = {}
    for device, gpu in TIMED.items():
        if device not in figures:
            continue
        asked = table, gpu, load_accelerator(device), figures[device]
        forward = _over_formula(*asked, "fwd", "out=bf16", 2.0)
        middle = float(np.median(forward))
        ways = {name: _over_formula(*asked, *way) for name, way in _WAYS.items()}
        found[device] = Backward(
            rows=len(forward) + sum(len(ratio) for ratio in ways.values()),
            dgrad=middle / float(np.median(ways["dgrad"])),
            wgrad=middle / float(np.median(ways["wgrad"])),
        )
    return found


def _over_formula(
    table: Table,
    gpu: str,
    device: Accelerator,
    figures: Mapping[str, float],
    direction: str,
    out: str,
    result_bytes: float,
) -> Floats:
    """Measured time over that of a forward product with this result, of each long call."""
    sieve, text = Sieve(table), table.text
    match = sieve.kept & (text("kernel") == "simumax_matmul") & (text("gpu") == gpu)
    match &= (text("direction") == direction) & (np.char.find(text("impl"), out) >= 0)
    m, n, k = (sieve.positive(column, match)[match] for column in GEMM_COLUMNS.values())
    seconds = sieve.positive("time_us", match)[match] * 1e-6
    rates: dict[str, Any] = dict(gemm_rates(device, "bf16")) | dict(figures)
    formula = gemm_s(m=m, n=n, k=k, result_bytes=result_bytes, **rates)
    return (seconds / formula)[2.0 * m * n * k >= _LEAST_FLOP]
