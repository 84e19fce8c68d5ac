"""Products of the backward pass beside those of the forward pass, on devices that timed both.

A data gradient is a product like any other. A weight gradient adds to an fp32 result in memory and
waits for part of what that moves, so that its share grows as the reduction gets shorter: on the
A100 of the table from next to nothing at 25 thousand tokens to a tenth of the product at four.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.calibration.least_squares import Prior, Rows, fit_values
from simulator.cost.kernels.gemm import device_rates, gemm_s
from simulator.hardware.accelerator import Accelerator, GemmKernel
from simulator.hardware.cluster import load_accelerator
from simulator.measured.kernel_calls import GEMM_COLUMNS
from simulator.measured.microbenchmarks import Sieve, Table, read_table
from workshop.facts import facts
from workshop.fits.gemm.series import shipped_table

_FACTS = facts(__file__)
TIMED: dict[str, str] = _FACTS["timed_back"]
"""Profile: word of the table. The A100 of the table is the card, with the same chip."""

_WAYS: dict[str, dict[str, Any]] = {
    "fwd": {"out": "out=bf16", "added_bytes": 0.0},
    "dgrad": {"out": "out=bf16", "added_bytes": 0.0},
    "wgrad": {"out": "out=fp32", "added_bytes": 6.0},
}
"""Result as the table words it, and what moves per element beyond writing 16 bit."""

_LEAST_FLOP = 1e11

_PRIORS = {
    "machine": Prior(value=1.2, width=0.3, low=0.5, high=3.0),
    "exposed": Prior(value=0.5, width=0.5, low=0.0, high=1.5, linear=True),
}
"""Time of this machine's products over the profile's; `accumulate_exposed`, of which nothing is
known beforehand but that it lies about between 0 and 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backward:
    """How products of the backward pass differ from those of the forward pass."""

    rows: int
    dgrad: float
    """Rate of a data gradient over that of a forward product."""
    exposed: float
    """Share of a weight gradient's fp32 traffic that is not hidden."""


def backward_rates(
    figures: Mapping[str, Mapping[str, float]], table: Table | None = None
) -> dict[str, Backward]:
    """Compare directions by profile, over calls of 1e11 FLOP and more.

    The machine of the table may be slower than the profile's: its own rate is fitted beside the
    exposed share, to all three directions at once.

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
        ways = {name: _calls(*asked, direction=name, **way) for name, way in _WAYS.items()}
        columns = list(ways["fwd"])
        rows = {name: np.concatenate([way[name] for way in ways.values()]) for name in columns}
        fitted = fit_values(_PRIORS, _seconds, rows)
        over = {name: np.median(way["seconds"] / way["formula"]) for name, way in ways.items()}
        found[device] = Backward(
            rows=len(rows["seconds"]),
            dgrad=float(over["fwd"] / over["dgrad"]),
            exposed=fitted["exposed"],
        )
    return found


def _seconds(values: Mapping[str, float], rows: Rows) -> Floats:
    return values["machine"] * rows["formula"] + values["exposed"] * rows["added"]


def _calls(
    table: Table,
    gpu: str,
    device: Accelerator,
    figures: Mapping[str, float],
    *,
    direction: str,
    out: str,
    added_bytes: float,
) -> Rows:
    """Measured seconds, those of a forward product of the shape, and of what is moved beyond it."""
    sieve, text = Sieve(table), table.text
    match = sieve.kept & (text("kernel") == _FACTS["backward_kernel"]) & (text("gpu") == gpu)
    match &= (text("direction") == direction) & (np.char.find(text("impl"), out) >= 0)
    m, n, k = (sieve.positive(column, match)[match] for column in GEMM_COLUMNS.values())
    rates = device_rates(device, "bf16")
    given: dict[str, Any] = {"training_fraction": figures["sustained_fraction"], **figures}
    kernel = GemmKernel(**given)
    rows = {
        "seconds": sieve.positive("time_us", match)[match] * 1e-6,
        "formula": gemm_s(rates, kernel, m=m, n=n, k=k, result_bytes=2.0),
        "added": added_bytes * m * n / rates.bandwidth_bytes_per_s,
    }
    long = 2.0 * m * n * k >= _LEAST_FLOP
    return {name: column[long] for name, column in rows.items()}
