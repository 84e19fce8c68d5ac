"""Seconds of one matrix multiplication.

Pure functions of keyword arrays that broadcast against one another. Parameters come from the
accelerator profile; each function says where its form comes from.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.hardware.accelerator import Accelerator

__all__ = ["gemm_rates", "gemm_s"]


TILES = np.array([(128, 256), (256, 128), (128, 128), (64, 128), (64, 64)], dtype=float)
"""Output tiles (rows, columns) that a matrix-multiplication library chooses from."""

SPLITS = np.array([1, 2, 3, 4, 6, 8, 16], dtype=float)
"""Parts that the reduction may be split into so that few output tiles still fill the device."""

NO_SPLIT_S = 40e-6
"""A `split_k_s` above this says that the library does not split the reduction."""

OPERAND_BYTES = {
    **{"fp32": 4.0, "tf32": 4.0, "fp8": 1.0, "fp8_blockwise": 1.0},
    **{"mxfp8": 1.0 + 1 / 32, "nvfp4": 0.5 + 1 / 16},
}
"""Bytes of an operand's element with its share of the scales; 2 for every other type."""

_WRITTEN_BYTES, _FP32_SUM_BYTES = 2.0, 8.0
"""Traffic of a result element that is written in 16 bit, as timed forward products write it, and of
one that is read, added to and written in fp32."""

_BURST_S = 1.5e-3
"""Length of a call at which the clock has fallen half way from burst to sustained."""


def gemm_s(
    *,
    m: Any,
    n: Any,
    k: Any,
    batch: Any = 1.0,
    operand_bytes: Any,
    result_bytes: Any,
    peak_flop_per_s: Any,
    bandwidth_bytes_per_s: Any,
    l2_bytes: Any,
    compute_units: Any,
    launch_s: Any,
    peak_fraction: Any,
    sustained_fraction: Any,
    training_fraction: Any = None,
    clock_exponent: Any = 0.0,
    memory_fraction: Any,
    prologue_k: Any,
    wave_quantisation: Any,
    small_tile_penalty: Any,
    split_k_s: Any,
    l2_refetch: Any,
    accumulate_exposed: Any = 0.0,
    unaligned_fraction: Any = 1.0,
    quantise_bytes_per_element: Any = 0.0,
    quantise_refetch: Any = 0.0,
    quantise_row_s: Any = 0.0,
    host_floor_s: Any = 0.0,
    sustained: bool = True,
    aligned: Any = True,
) -> Floats:
    """Time of `batch` products of an (m, k) by a (k, n) matrix in one call, in seconds.

    The library picks the fastest of five tiles and seven splits of the reduction. Tiles are dealt
    to compute units in waves; each tile costs its FLOPs plus a prologue; operands and result that
    outgrow the last-level cache move at a share of the memory bandwidth, smaller ones up to
    ``1 + l2_refetch`` times faster; compute and traffic combine as a fourth-power mean. A result
    that adds to fp32 in memory waits for part of what it moves beyond a 16-bit one: the tile that
    has been summed leaves before the next one begins. Under training load the clock is the
    sustained one; a short burst (a microbenchmark) runs at the burst clock. A power cap holds
    activity times a power of the clock, so that a call which leaves units idle in its last wave, or
    waits for memory, keeps more of the burst clock than one that fills them. Where the call itself
    casts its 16-bit operand to fewer bits, a scan of the operand and the time of its rows add up at
    right angles: each hides most of the smaller one.

    Parameters
    ----------
    m, n, k, batch : array_like
        Sizes in elements; `batch` independent products share the device.
    operand_bytes, result_bytes : array_like
        Bytes per element of the operands and of the result; 8 for a result that adds to fp32 in
        memory (read and written).
    peak_flop_per_s, bandwidth_bytes_per_s, l2_bytes, compute_units : array_like
        The device.
    launch_s ... host_floor_s : array_like
        Fields of ``GemmKernel`` with the same names.
    sustained : bool
        Price the call at the rate of a training step (`training_fraction`; without one,
        `sustained_fraction`), or by its own length at a clock that falls from burst to sustained.
    aligned : array_like of bool
        Rows of all operands are multiples of 16 bytes, as tensor cores want them (NVIDIA, "Matrix
        Multiplication Background User's Guide", tensor core requirements).

    Returns
    -------
    ndarray
        Seconds, of the broadcast shape of the arguments.

    Notes
    -----
    The form is the usual tile-and-wave account (NVIDIA, "Matrix Multiplication Background User's
    Guide") with split-K and a memory roofline; its parameters are fitted in
    ``workshop/fits/gemm/fit.py``. Activity is the share of the rate of full waves that a call
    reaches at the burst clock; one off tensor cores counts as busy at the rate that it has there.

    Examples
    --------
    One compute unit of 1 TFLOP/s that reaches all of it takes 2 x 128 x 128 x 640 operations in
    21 us, and twice as long for twice the rows:

    >>> unit = {"peak_flop_per_s": 1e12, "compute_units": 1, "peak_fraction": 1.0}
    >>> memory = {"bandwidth_bytes_per_s": 1e15, "l2_bytes": 1e6, "memory_fraction": 1.0}
    >>> plain = {"prologue_k": 0.0, "wave_quantisation": 1.0, "small_tile_penalty": 0.0}
    >>> whole = {"split_k_s": 1.0, "l2_refetch": 0.0, "launch_s": 0.0, "sustained_fraction": 1.0}
    >>> size = {"n": 128, "k": 640, "operand_bytes": 2.0, "result_bytes": 2.0}
    >>> seconds = gemm_s(m=[128, 256], **size, **unit, **memory, **plain, **whole)
    >>> (seconds * 1e6).round(2).tolist()
    [20.97, 41.94]
    """
    m, n, k, batch, operand, result = _float(m, n, k, batch, operand_bytes, result_bytes)
    shape = np.broadcast_shapes(m.shape, n.shape, k.shape, batch.shape)
    m, n, k, batch = (np.broadcast_to(x, shape)[..., None, None] for x in (m, n, k, batch))
    operand, result = operand[..., None, None], result[..., None, None]
    peak, bandwidth, l2, units = _per_call(
        peak_flop_per_s, bandwidth_bytes_per_s, l2_bytes, compute_units
    )
    share, mem_share, prologue, waves_a = _per_call(
        peak_fraction, memory_fraction, prologue_k, wave_quantisation
    )
    penalty, split_s, refetch = _per_call(small_tile_penalty, split_k_s, l2_refetch)
    rows, cols = TILES[:, 0][:, None], TILES[:, 1][:, None]
    parts = SPLITS[None, :]

    waves = parts * batch * np.ceil(m / rows) * np.ceil(n / cols) / units
    waves = np.where(waves <= 1.0, 1.0, waves_a * np.ceil(waves) + (1.0 - waves_a) * waves)
    slower = np.maximum(1.0 + penalty * (128.0 / rows + 128.0 / cols - 1.5), 1.0)
    depth = 64.0 * np.ceil(k / (64.0 * parts)) + prologue
    reached = np.where(aligned, 1.0, np.asarray(unaligned_fraction, float))[..., None, None]
    rate = reached * share * peak
    compute_s = waves * 2.0 * rows * cols * depth * slower / (rate / units)

    sums = result >= _FP32_SUM_BYTES
    moved = batch * (operand * (m * k + k * n) + np.where(sums, _WRITTEN_BYTES, result) * m * n)
    held = refetch / (1.0 + (2.0 * moved / l2) ** 2)
    memory_s = moved / (mem_share * bandwidth * (1.0 + held))
    joined_s = np.where(
        parts > 1.0, split_s + 8.0 * parts * batch * m * n / (mem_share * bandwidth), 0.0
    )
    allowed = (parts == 1.0) | (split_s < NO_SPLIT_S)
    total_s = _fourth_power_mean(compute_s, memory_s) + joined_s
    best_s = np.where(allowed, total_s, np.inf).min(axis=(-2, -1))

    added_s = np.where(sums, (result - _WRITTEN_BYTES) * batch * m * n / bandwidth, 0.0)[..., 0, 0]
    hot = sustained_fraction if training_fraction is None or not sustained else training_fraction
    activity = (2.0 * batch * m * n * k / rate)[..., 0, 0] / best_s
    capped = _capped(activity, hot, clock_exponent) - 1.0
    heat = 1.0 if sustained else best_s / (best_s + _BURST_S)
    rows_cast, elements = (batch * m)[..., 0, 0], (batch * m * k)[..., 0, 0]
    held = np.asarray(quantise_refetch) / (1.0 + (4.0 * elements / l2[..., 0, 0]) ** 2)
    scan_s = np.asarray(quantise_bytes_per_element) * elements / bandwidth[..., 0, 0] / (1.0 + held)
    cast_s = np.hypot(scan_s, np.asarray(quantise_row_s) * rows_cast)
    best_s = best_s * (1.0 + capped * heat) + np.asarray(accumulate_exposed) * added_s
    least_s = memory_s[..., 0, 0] + added_s / mem_share[..., 0, 0]
    device_s = launch_s + np.where(added_s > 0.0, np.maximum(best_s, least_s), best_s) + cast_s
    return np.asarray(np.where(host_floor_s, _fourth_power_mean(device_s, host_floor_s), device_s))


def _capped(activity: Any, hot: Any, exponent: Any) -> Floats:
    """Burst clock over the one that a power cap leaves a call.

    Dynamic power goes as activity times the clock to the power of 1 / `exponent`: the cap that
    holds a device at the clock `hot` with all units busy lets it run faster with some idle, up to
    the burst clock. Where `hot` is above that, it is the clock of every call.
    """
    most = 1.0 / np.asarray(hot, float)
    return np.asarray(np.maximum(most * activity**exponent, np.minimum(most, 1.0)))


def _fourth_power_mean(a: Any, b: Any) -> Floats:
    """``(a^4 + b^4)^(1/4)``: the larger one, and a fifth more where both are equal."""
    a, b = np.square(a), np.square(b)
    return np.asarray(np.sqrt(np.sqrt(a * a + b * b)))


def gemm_rates(accelerator: Accelerator, dtype: str, held_units: Any = 0.0) -> dict[str, Any]:
    """Arguments of :func:`gemm_s` that device and type settle, whichever library runs.

    A product may have to leave `held_units` of the compute units to others as long as it takes.
    """
    memory, units = accelerator.memory, float(accelerator.compute_units)
    left = units - np.minimum(held_units, units - 1.0)
    return {
        "operand_bytes": OPERAND_BYTES.get(dtype, 2.0),
        "peak_flop_per_s": float(accelerator.matrix_flop_per_s[dtype]) * (left / units),
        "bandwidth_bytes_per_s": float(memory.bandwidth_bytes_per_s),
        "l2_bytes": float(memory.l2_bytes),
        "compute_units": left,
    }


def _per_call(*values: Any) -> list[Floats]:
    """The same with axes for tiles and splits."""
    return [np.asarray(value, float)[..., None, None] for value in values]


def _float(*values: Any) -> list[Floats]:
    return [np.asarray(value, dtype=float) for value in values]
