"""Fitting products of matrices to a table of measured times: one device, type, library at a time.

The table is a CSV with one row per measured call: ``kernel gpu dtype impl framework`` say what,
``M N K`` or ``batch seq_q heads_q heads_kv head_dim`` or ``bytes`` say how large, ``time_us`` or
``tflops`` say how fast. Parameters come back by the names of the accelerator profile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from simulator.calibration import Fit, Floats, Prior, Rows, fit_and_score
from simulator.cost.kernels import NO_SPLIT_S, gemm_rates, gemm_s
from simulator.errors import InputError, did_you_mean, problem
from simulator.hardware.accelerator import Accelerator
from simulator.measured.kernel_calls import GEMM_COLUMNS
from simulator.measured.microbenchmarks import Sieve, read_table

__all__ = [
    "GEMM_TYPES",
    "GemmType",
    "fit_gemm",
    "read_gemm",
]

T = TypeVar("T")

LIBRARIES = {"cublas": "trtllm", "vllm": "vllm", "sglang": "sglang", "te": "SimuMax"}
"""Kernel library: the framework whose timings stand for it. TRT-LLM calls cuBLAS."""

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
}
"""`heat` is c of ``sustained_fraction = 1 / (1 + 2 c)``, zero where the clock never falls."""

FP8_PRIORS = GEMM_PRIORS | {
    "launch_s": Prior(value=12e-6, width=0.4, low=0.5e-6, high=40e-6),
    "quantise_bytes_per_element": Prior(value=8.0, width=0.3, low=1.0, high=20.0),
}

_UNSPLIT_PRIORS = {name: prior for name, prior in FP8_PRIORS.items() if name != "split_k_s"}
"""Block-scaled kernels do not split the reduction: fits that may split never want to."""

BLOCK_PRIORS = _UNSPLIT_PRIORS | {
    "launch_s": Prior(value=4e-6, width=0.4, low=0.5e-6, high=40e-6),
    "peak_fraction": Prior(value=0.8, width=0.15, low=0.3, high=1.15),
    "prologue_k": Prior(value=700.0, width=0.5, low=20.0, high=3000.0),
    "quantise_bytes_per_element": Prior(value=5.0, width=0.3, low=1.0, high=20.0),
}

FP4_PRIORS = BLOCK_PRIORS | {
    "launch_s": Prior(value=6e-6, width=0.4, low=0.5e-6, high=40e-6),
    "peak_fraction": Prior(value=0.5, width=0.25, low=0.2, high=1.15),
    "heat": Prior(value=0.1, width=0.1, low=0.0, high=0.6, linear=True),
    "small_tile_penalty": Prior(value=1.0, width=0.6, low=0.0, high=3.0, linear=True),
    "quantise_bytes_per_element": Prior(value=4.5, width=0.3, low=1.0, high=20.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmType:
    """A type of matrix product: its word in the table and what to expect."""

    written: str
    priors: Mapping[str, Prior]
    """Without a prior of ``split_k_s``, the library is taken never to split the reduction."""


GEMM_TYPES = {
    "bf16": GemmType(written="bfloat16", priors=GEMM_PRIORS),
    "fp8": GemmType(written="fp8", priors=FP8_PRIORS),
    "fp8_blockwise": GemmType(written="fp8_block", priors=BLOCK_PRIORS),
    "nvfp4": GemmType(written="nvfp4", priors=FP4_PRIORS),
}
"""fp8_blockwise has one scale for 128 x 128 weights (1 x 128 activations); nvfp4 has an fp8 scale
for every 16 elements of half a byte."""


def read_gemm(path: Path | str, *, gpu: str, dtype: str, library: str = "cublas") -> Rows:
    """Read measured products of an (m, k) by a (k, n) matrix from a table of kernel times.

    Parameters
    ----------
    path : Path
        CSV with at least ``kernel gpu dtype framework M N K time_us``.
    gpu, dtype, library : str
        Device as the table writes it; key of ``GEMM_TYPES``; key of ``LIBRARIES``.

    Raises
    ------
    InputError
        If the type or library is unknown, or the table has no such rows.
    """
    names = GEMM_COLUMNS | {"seconds": "time_us"}
    framework = _choice("library", library, LIBRARIES)
    written = _choice("dtype", dtype, GEMM_TYPES).written
    rows = _read(path, "gemm", gpu, framework, names, dtype=written)
    return rows | {"seconds": rows["seconds"] * 1e-6}


def fit_gemm(rows: Rows, accelerator: Accelerator, *, dtype: str) -> Fit:
    """Fit the parameters of ``cost.kernels.gemm_s`` at the burst clock; score M, N, K >= 512."""
    kind = _choice("dtype", dtype, GEMM_TYPES)
    fixed = {} if "split_k_s" in kind.priors else {"split_k_s": 2.0 * NO_SPLIT_S}

    def predict(values: Mapping[str, float], rows: Rows) -> Floats:
        own = {name: value for name, value in values.items() if name != "heat"} | fixed
        return gemm_s(
            m=rows["m"],
            n=rows["n"],
            k=rows["k"],
            result_bytes=2.0,
            sustained_fraction=1.0 / (1.0 + 2.0 * values["heat"]),
            sustained=False,
            **gemm_rates(accelerator, dtype),
            **own,
        )

    large = np.minimum(np.minimum(rows["m"], rows["n"]), rows["k"]) >= _LARGE
    fit = fit_and_score(kind.priors, predict, rows, large)
    fit.values["sustained_fraction"] = 1.0 / (1.0 + 2.0 * fit.values.pop("heat"))
    fit.values.update(fixed)
    return fit


def _choice(field: str, word: str, known: Mapping[str, T]) -> T:
    if word not in known:
        raise InputError(problem("fit", field, f"must be one of {', '.join(known)}", word, known))
    return known[word]


def _read(
    path: Path | str,
    kernel: str,
    gpu: str,
    framework: str,
    names: Mapping[str, str],
    *,
    dtype: str = "",
    without: str = "",
) -> Rows:
    """Read the columns `names` of the matching rows; `dtype` "" matches every type."""
    table = read_table(path, "kernels")
    sieve, text = Sieve(table), table.text
    match = sieve.kept & (text("kernel") == kernel) & (text("gpu") == gpu)
    match &= np.char.startswith(text("framework"), framework)
    if dtype:
        match &= text("dtype") == dtype
    if without:
        match &= np.char.find(text("impl"), without) < 0
    if not match.any():
        asked = " ".join(part for part in (kernel, dtype, framework) if part)
        seen = np.unique(text("gpu")).tolist()
        raise InputError(f"{path}: no {asked} rows of gpu {gpu!r}{did_you_mean(gpu, seen)}")
    rows = {name: sieve.positive(column, match)[match] for name, column in names.items()}
    if sieve.problems:
        raise InputError(sieve.problems)
    return rows
