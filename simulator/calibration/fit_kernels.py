"""Fitting the kernel formulas to a table of measured times: one device, type, library at a time.

The table is a CSV with one row per measured call: ``kernel gpu dtype impl framework`` say what,
``M N K`` or ``batch seq_q heads_q heads_kv head_dim`` or ``bytes`` say how large, ``time_us`` or
``tflops`` say how fast. Parameters come back by the names of the accelerator profile.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np

from simulator.calibration import Fit, Floats, Prior, Rows, fit_and_score, pick
from simulator.cost.kernels import attention_s, stream_s
from simulator.errors import InputError, did_you_mean, problem
from simulator.hardware.accelerator import Accelerator
from simulator.measured.kernel_calls import (
    ATTENTION_COLUMNS,
    BACKWARD_FLOP,
    attention_bytes,
    causal_flop,
)
from simulator.measured.microbenchmarks import Sieve, read_table

__all__ = [
    "backward_fraction",
    "fit_attention",
    "fit_stream",
    "read_attention",
    "read_stream",
]

T = TypeVar("T")

LIBRARIES = {"cublas": "trtllm", "vllm": "vllm", "sglang": "sglang", "te": "SimuMax"}
"""Kernel library: the framework whose timings stand for it. TRT-LLM calls cuBLAS."""

_LONG = 1024.0
_FILL = 2.0

ATTENTION_PRIORS = {
    "peak_fraction": Prior(value=0.57, width=0.2, low=0.1, high=1.1),
    "half_length": Prior(value=620.0, width=0.5, low=20.0, high=5000.0),
}

STREAM_PRIORS = {
    "memory_fraction": Prior(value=0.6, width=0.5, low=0.05, high=1.05),
    "launch_s": Prior(value=2e-6, width=0.7, low=0.2e-6, high=30e-6),
}


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
