"""Fitting the formula of a GEMM to timed calls: one device, type and library at a time.

Parameters come back by the names of the accelerator profile. Least squares on log times with a
soft loss, bounds, and a weak prior at what other devices show
(``calibration.least_squares.fit_values``): rates, traffic and prologue trade off against one
another, and only the prior tells them apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.calibration.least_squares import Fit, Prior, Rows, fit_and_score, fit_values
from simulator.cost.kernels.gemm import NO_SPLIT_S, OPERAND_BYTES, DeviceRates, gemm_s
from simulator.errors import InputError, problem
from simulator.hardware.accelerator import Accelerator, GemmKernel
from workshop.facts import facts
from workshop.fits.gemm.series import LIBRARIES, one_series

_LARGE = 512.0

GEMM_PRIORS = {
    "launch_s": Prior(value=2.2e-6, width=0.4, low=0.5e-6, high=40e-6),
    "peak_fraction": Prior(value=0.87, width=0.15, low=0.3, high=1.15),
    "heat": Prior(value=0.06, width=0.06, low=0.0, high=0.4, linear=True),
    "memory_fraction": Prior(value=0.83, width=0.1, low=0.4, high=1.05),
    "prologue_k": Prior(value=155.0, width=0.5, low=20.0, high=1500.0),
    "wave_quantisation": Prior(value=0.5, width=0.4, low=0.0, high=1.0, linear=True),
    "small_tile_penalty": Prior(value=0.16, width=0.2, low=0.0, high=1.0, linear=True),
    "split_k_s": Prior(value=2.2e-6, width=0.4, low=0.2e-6, high=30e-6),
    "l2_refetch": Prior(value=0.2, width=0.6, low=0.0, high=5.0, linear=True),
    "clock_exponent": Prior(value=0.5, width=0.3, low=0.0, high=1.0, linear=True),
}
"""`heat` is c of ``sustained_fraction = 1 / (1 + 2 c)``, zero where the clock never falls. Dynamic
power goes with the clock at the least, and with its third power where the voltage follows: the
exponent is 1/2 for the square, and bounds and width leave the rest to the timings."""

_FACTS = facts(__file__)
_HOST_BOUND: str = _FACTS["host_bound"]

ONE_CLOCK = tuple(
    (series["generation"], series["library"], dtype)
    for series in _FACTS["one_clock"]
    for dtype in series["types"]
)
"""Generation, library and type of series at one clock, of exponent 0 (facts.toml says why)."""

_CAST_PRIORS = {
    "quantise_bytes_per_element": Prior(value=8.0, width=0.3, low=1.0, high=20.0),
    "quantise_refetch": Prior(value=0.5, width=1.0, low=0.0, high=8.0, linear=True),
    "quantise_row_s": Prior(value=0.2e-9, width=1.5, low=0.02e-9, high=20e-9),
}

FP8_PRIORS = (
    GEMM_PRIORS | _CAST_PRIORS | {"launch_s": Prior(value=12e-6, width=0.4, low=0.5e-6, high=40e-6)}
)

_UNSPLIT_PRIORS = {name: prior for name, prior in FP8_PRIORS.items() if name != "split_k_s"}
"""Kernels that do not split the reduction: fits that may split never want to."""

SCALED_PRIORS = _UNSPLIT_PRIORS | {
    "launch_s": Prior(value=5e-6, width=0.4, low=0.5e-6, high=40e-6),
    "prologue_k": Prior(value=300.0, width=0.7, low=20.0, high=3000.0),
    "small_tile_penalty": Prior(value=0.5, width=0.4, low=0.0, high=1.0, linear=True),
    "quantise_row_s": Prior(value=6e-9, width=0.5, low=0.02e-9, high=20e-9),
}
"""CUTLASS in vLLM: the cast is a kernel of one thread block for each row."""

BLOCK_PRIORS = _UNSPLIT_PRIORS | {
    "launch_s": Prior(value=4e-6, width=0.4, low=0.5e-6, high=40e-6),
    "peak_fraction": Prior(value=0.8, width=0.15, low=0.3, high=1.15),
    "prologue_k": Prior(value=700.0, width=0.5, low=20.0, high=3000.0),
    "small_tile_penalty": Prior(value=0.5, width=0.4, low=0.0, high=1.0, linear=True),
}

FP4_PRIORS = BLOCK_PRIORS | {
    "launch_s": Prior(value=6e-6, width=0.4, low=0.5e-6, high=40e-6),
    "peak_fraction": Prior(value=0.5, width=0.25, low=0.2, high=1.15),
    "heat": Prior(value=0.1, width=0.1, low=0.0, high=0.6, linear=True),
    "small_tile_penalty": Prior(value=1.0, width=0.6, low=0.0, high=3.0, linear=True),
    "quantise_bytes_per_element": Prior(value=4.5, width=0.3, low=1.0, high=20.0),
}

_FLOOR_PRIORS = {"host_floor_s": Prior(value=90e-6, width=0.5, low=10e-6, high=300e-6)}


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmType:
    """A type of GEMM: what to expect of it, by library where one differs."""

    priors: Mapping[str, Prior]
    """Without a prior of ``split_k_s``, the library is taken never to split the reduction."""
    own: Mapping[str, Mapping[str, Prior]]


GEMM_TYPES = {
    "bf16": GemmType(priors=GEMM_PRIORS, own={}),
    "fp16": GemmType(priors=GEMM_PRIORS, own={}),
    "fp32": GemmType(priors=GEMM_PRIORS, own={}),
    "fp8": GemmType(priors=FP8_PRIORS, own={_HOST_BOUND: SCALED_PRIORS}),
    "fp8_blockwise": GemmType(priors=BLOCK_PRIORS, own={_HOST_BOUND: BLOCK_PRIORS | _FLOOR_PRIORS}),
    "nvfp4": GemmType(priors=FP4_PRIORS, own={}),
}
"""fp8_blockwise has one scale for 128 x 128 weights (1 x 128 activations), and in vLLM's table the
host of eager mode; nvfp4 has an fp8 scale for every 16 elements of half a byte."""


def gemm_model(values: Mapping[str, float], rows: Rows, device: Accelerator, dtype: str) -> Floats:
    """Seconds of timed calls (`m`, `n`, `k`; a 16-bit result) by the formula, at the burst clock.

    `values` are figures of ``GemmKernel``, or parameters of a fit with ``heat`` in place of
    ``sustained_fraction``.
    """
    own: dict[str, Any] = {name: value for name, value in values.items() if name != "heat"}
    if "heat" in values:
        own["sustained_fraction"] = 1.0 / (1.0 + 2.0 * values["heat"])
    own.setdefault("split_k_s", 2.0 * NO_SPLIT_S)
    own.setdefault("training_fraction", own["sustained_fraction"])
    peaks, memory = device.matrix_flop_per_s, device.memory
    rates = DeviceRates(
        operand_bytes=OPERAND_BYTES.get(dtype, 2.0),
        # scales for 128 x 128 weights run on the fp8 units, also where no training recipe has them
        peak_flop_per_s=float(peaks["fp8" if dtype == "fp8_blockwise" else dtype]),
        bandwidth_bytes_per_s=float(memory.bandwidth_bytes_per_s),
        l2_bytes=float(memory.l2_bytes),
        compute_units=float(device.compute_units),
    )
    sizes = {name: rows[name] for name in "mnk"}
    return gemm_s(rates, GemmKernel(**own), **sizes, result_bytes=2.0, sustained=False)


def read_gemm(path: Path | str, *, gpu: str, dtype: str, library: str = "cublas") -> Rows:
    """Read measured products of an (m, k) by a (k, n) matrix from a table of kernel times.

    Parameters
    ----------
    path : Path
        CSV with at least ``kernel gpu dtype framework M N K time_us``.
    gpu, dtype, library : str
        Device as the table writes it; key of ``GEMM_TYPES``; ``cublas``, ``vllm`` or ``sglang``.

    Raises
    ------
    InputError
        If the type or library is unknown, or the table has no such rows.
    """
    libraries = sorted(set(LIBRARIES.values()))
    if library not in libraries:
        rule = f"must be one of {', '.join(libraries)}"
        raise InputError(problem("fit", "library", rule, library, libraries))
    _type(dtype)
    return one_series(path, gpu=gpu, dtype=dtype, library=library)


def fit_gemm(rows: Rows, accelerator: Accelerator, *, dtype: str, library: str = "cublas") -> Fit:
    """Fit parameters of ``cost.kernels.gemm.gemm_s`` at the burst clock; score M, N, K >= 512."""
    large = np.minimum(np.minimum(rows["m"], rows["n"]), rows["k"]) >= _LARGE

    def predict(values: Mapping[str, float], rows: Rows) -> Floats:
        return gemm_model(values, rows, accelerator, dtype)

    fit = fit_and_score(_priors(dtype, library, accelerator), predict, rows, large)
    fit.values.update(_figures(fit.values))
    fit.values.pop("heat")
    return fit


def fit_parameters(
    rows: Rows, accelerator: Accelerator, *, dtype: str, library: str = "cublas"
) -> dict[str, float]:
    """Fit like :func:`fit_gemm`, without scores: the figures alone."""

    def predict(values: Mapping[str, float], rows: Rows) -> Floats:
        return gemm_model(values, rows, accelerator, dtype)

    return _figures(fit_values(_priors(dtype, library, accelerator), predict, rows))


def _figures(values: Mapping[str, float]) -> dict[str, float]:
    """Figures of the profile from the parameters of a fit, each in the order of the profile."""
    figures = {"sustained_fraction" if name == "heat" else name: x for name, x in values.items()}
    figures["sustained_fraction"] = 1.0 / (1.0 + 2.0 * values["heat"])
    figures.setdefault("split_k_s", 2.0 * NO_SPLIT_S)
    figures.setdefault("clock_exponent", 0.0)
    return figures


def _type(dtype: str) -> GemmType:
    if dtype not in GEMM_TYPES:
        rule = f"must be one of {', '.join(GEMM_TYPES)}"
        raise InputError(problem("fit", "dtype", rule, dtype, GEMM_TYPES))
    return GEMM_TYPES[dtype]


def _priors(dtype: str, library: str, accelerator: Accelerator) -> Mapping[str, Prior]:
    kind = _type(dtype)
    priors = kind.own.get(library, kind.priors)
    alike = has_one_clock(dtype, library, accelerator)
    return {name: x for name, x in priors.items() if name != "clock_exponent" or not alike}


def has_one_clock(dtype: str, library: str, accelerator: Accelerator) -> bool:
    """Whether the fit knows one clock for all long calls (`ONE_CLOCK`)."""
    return (accelerator.generation, library, dtype) in ONE_CLOCK
