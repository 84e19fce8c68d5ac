"""Seconds of memory-bound kernels.

Pure functions of keyword arrays that broadcast against one another; parameters come from the
accelerator profile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.hardware.accelerator import Accelerator
from simulator.record_cache import for_same_records

_CACHED_SHARE = 0.6
"""Share of the last-level cache at which half of the gain of staying in it is lost."""


def stream_s(
    *,
    moved_bytes: Any,
    bandwidth_bytes_per_s: Any,
    memory_fraction: Any,
    launch_s: Any,
    calls: Any = 1.0,
    row_bytes: Any = 0.0,
    sharpness: Any = 1.0,
    row_s_per_byte: Any = 0.0,
    rows_per_unit: Any = 1.0,
    cached_gain: Any = 0.0,
    l2_bytes: Any = 1.0,
    compute_units: Any = 1.0,
) -> Floats:
    """Time of `calls` memory-bound kernels that move `moved_bytes` in all, in seconds.

    A call takes its start-up, to which rows may add waves: a block of threads walks one row, and a
    compute unit works on a few blocks at a time. Traffic moves at a share of the memory rate,
    faster where it stays in the last-level cache. The two join as a power mean.

    Parameters
    ----------
    moved_bytes, calls : array_like
        Bytes read and written by all calls; no calls means that others pay the start-up.
    bandwidth_bytes_per_s, l2_bytes, compute_units : array_like
        The device.
    row_bytes : array_like, optional
        Bytes that a row (a token) takes of `moved_bytes`; 0: not known, no waves.
    memory_fraction ... cached_gain : array_like
        Fields of ``StreamKernel`` with the same names.

    Returns
    -------
    ndarray
        Seconds.

    Notes
    -----
    Fitted in ``workshop/fits/stream.py``. With `sharpness` 1, no rows and no cache this is
    ``calls launch_s + moved_bytes / (memory_fraction bandwidth_bytes_per_s)``.

    Examples
    --------
    3 GB at 3 TB/s in three calls of 2 us each: 1 ms and 6 us.

    >>> kernel = {"bandwidth_bytes_per_s": 4e12, "memory_fraction": 0.75, "launch_s": 2e-6}
    >>> stream_s(moved_bytes=3e9, calls=3, **kernel).round(9).item()
    0.001006
    """
    moved, calls = np.asarray(moved_bytes, float), np.asarray(calls, float)
    row_bytes = np.asarray(row_bytes, float)
    traffic_s = moved / (memory_fraction * bandwidth_bytes_per_s)
    if _some(cached_gain):
        outgrown = moved / (np.maximum(calls, 1.0) * _CACHED_SHARE * l2_bytes)
        traffic_s = traffic_s / (1.0 + cached_gain / (1.0 + outgrown**3))
    start_s = calls * launch_s
    if _some(row_s_per_byte):
        rows = moved / (np.maximum(calls, 1.0) * np.where(row_bytes > 0.0, row_bytes, np.inf))
        waves = np.ceil(rows / (rows_per_unit * compute_units))
        start_s = start_s + calls * waves * row_bytes * row_s_per_byte
    if not _some(sharpness != 1.0):
        return np.asarray(start_s + traffic_s)
    return np.asarray((start_s**sharpness + traffic_s**sharpness) ** (1.0 / sharpness))


def _some(value: Any) -> bool:
    """Whether anything is not zero; of a number, as a profile has, without an array."""
    return bool(value) if isinstance(value, (float, bool)) else bool(np.any(value))


@for_same_records(256)
def stream_figures(accelerator: Accelerator, kind: str) -> Mapping[str, Any]:
    """Arguments of :func:`stream_s` that device and class settle.

    A class without figures of its own is as any elementwise kernel.
    """
    kernel = accelerator.stream[kind if kind in accelerator.stream else "elementwise"]
    return {
        "bandwidth_bytes_per_s": float(accelerator.memory.bandwidth_bytes_per_s),
        "l2_bytes": float(accelerator.memory.l2_bytes),
        "compute_units": float(accelerator.compute_units),
        **{field.name: float(getattr(kernel, field.name)) for field in fields(kernel)},
    }
