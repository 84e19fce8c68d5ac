"""Fitting the kernel formulas to a table of measured times: one device, type, library at a time.

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

from simulator.calibration import Fit, Floats, Prior, Rows, fit_and_score, pick
from simulator.cost.kernels import NO_SPLIT_S, attention_s, gemm_rates, gemm_s, stream_s
from simulator.errors import InputError, did_you_mean, problem
from simulator.hardware.accelerator import Accelerator
from simulator.measured.kernel_calls import (
    ATTENTION_COLUMNS,
    BACKWARD_FLOP,
    GEMM_COLUMNS,
    attention_bytes,
    causal_flop,
)
from simulator.measured.microbenchmarks import Sieve, read_table

__all__ = [
    "GEMM_TYPES",
    "GemmType",
    "backward_fraction",
    "fit_attention",
    "fit_gemm",
    "fit_stream",
    "read_attention",
    "read_gemm",
    "read_stream",
]

T = TypeVar("T")

LIBRARIES = {"cublas": "trtllm", "vllm": "vllm", "sglang": "sglang", "te": "SimuMax"}
"""Kernel library: the framework whose timings stand for it. TRT-LLM calls cuBLAS."""

_LARGE = 512.0
_LONG = 1024.0
_FILL = 2.0

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

ATTENTION_PRIORS = {
    "peak_fraction": Prior(value=0.57, width=0.2, low=0.1, high=1.1),
    "half_length": Prior(value=620.0, width=0.5, low=20.0, high=5000.0),
}

STREAM_PRIORS = {
    "memory_fraction": Prior(value=0.6, width=0.5, low=0.05, high=1.05),
    "launch_s": Prior(value=2e-6, width=0.7, low=0.2e-6, high=30e-6),
}


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


def read_attention(path: Path | str, *, gpu: str, library: str, backward: bool = False) -> Rows:
    """Read fused causal attention calls of one library.

    ``te`` has calls of training in both directions, as rates over the FLOPs without the mask
    (2.5 times those in the backward pass); the others serve, and have seconds.
    """
    names = dict(ATTENTION_COLUMNS)
    framework = _choice("library", library, LIBRARIES)
    if library != "te":
        names["seconds"] = "time_us"
        rows = _read(
            path, "attention_prefill", gpu, framework, names, dtype="bfloat16", without="kv=fp8"
        )
        return rows | {"seconds": rows["seconds"] * 1e-6}
    names["rate"] = "tflops"
    direction = "bwd" if backward else "fwd"
    rows = _read(path, f"simumax_sdp_{direction}", gpu, framework, names, dtype="bf16")
    unmasked = 2.0 * causal_flop(rows) * (BACKWARD_FLOP if backward else 1.0)
    return rows | {"seconds": unmasked / (rows.pop("rate") * 1e12)}


def read_stream(path: Path | str, *, gpu: str, kernel: str) -> Rows:
    """Read memory-bound calls of one kernel of the table (``membound_add``, ...), 1 MB and more."""
    rows = _read(path, kernel, gpu, "", {"moved_bytes": "bytes", "seconds": "time_us"})
    return pick(rows | {"seconds": rows["seconds"] * 1e-6}, rows["moved_bytes"] >= 1e6)


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


def fit_attention(rows: Rows, accelerator: Accelerator) -> Fit:
    """Fit the parameters of ``cost.kernels.attention_s`` on long calls that fill the device.

    Head size 128, 1024 tokens and more, two waves of 128-row tiles and more. The clock is that
    of the calls themselves: those that fill a device at these lengths take milliseconds.
    """
    tiles = rows["batch"] * rows["heads"] * np.ceil(rows["sequence"] / 128.0)
    full = tiles / accelerator.compute_units >= _FILL
    rows = pick(rows, full & (rows["sequence"] >= _LONG) & (rows["head_size"] == 128.0))

    def predict(values: Mapping[str, float], rows: Rows) -> Floats:
        return attention_s(
            flop=causal_flop(rows),
            moved_bytes=attention_bytes(rows),
            sequence=rows["sequence"],
            peak_flop_per_s=float(accelerator.matrix_flop_per_s["bf16"]),
            bandwidth_bytes_per_s=float(accelerator.memory.bandwidth_bytes_per_s),
            **values,
        )

    return fit_and_score(ATTENTION_PRIORS, predict, rows, np.ones(len(rows["seconds"]), bool))


def fit_stream(rows: Rows, accelerator: Accelerator) -> Fit:
    """Fit launch time and share of the memory rate of one class of memory-bound kernels."""

    def predict(values: Mapping[str, float], rows: Rows) -> Floats:
        rate = float(accelerator.memory.bandwidth_bytes_per_s)
        return stream_s(moved_bytes=rows["moved_bytes"], bandwidth_bytes_per_s=rate, **values)

    return fit_and_score(STREAM_PRIORS, predict, rows, rows["moved_bytes"] >= 1e7)


def backward_fraction(forward: Rows, backward: Rows, *, compute_units: int) -> tuple[float, float]:
    """Backward over forward rate, 2.5 times the FLOPs: median and spread over filled shapes."""
    seconds = dict(zip(_shapes(forward), forward["seconds"], strict=True))
    tiles = backward["batch"] * backward["heads"] * np.ceil(backward["sequence"] / 128.0)
    ratios = [
        2.5 * seconds[shape] / taken
        for shape, taken, waves in zip(
            _shapes(backward), backward["seconds"], tiles / compute_units, strict=True
        )
        if shape in seconds and waves >= _FILL
    ]
    if not ratios:
        raise InputError("attention: no shape that fills the device has both directions")
    low, middle, high = np.percentile(ratios, [16, 50, 84])
    return float(middle), float((high - low) / 2.0 / middle)


def _choice(field: str, word: str, known: Mapping[str, T]) -> T:
    if word not in known:
        raise InputError(problem("fit", field, f"must be one of {', '.join(known)}", word, known))
    return known[word]


def _shapes(rows: Rows) -> list[tuple[float, ...]]:
    columns = [column for name, column in rows.items() if name != "seconds"]
    return list(zip(*(column.tolist() for column in columns), strict=True))


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
