"""Seconds of one matrix multiplication.

Pure functions of a device, a library and sizes. Parameters come from the accelerator profile; each
function says where its form comes from.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.hardware.accelerator import Accelerator, GemmKernel
from simulator.records import dataclass

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


@dataclass(frozen=True, kw_only=True)
class DeviceRates:
    """What device and type settle of a call, whichever library runs it; arrays broadcast."""

    peak_flop_per_s: Any
    bandwidth_bytes_per_s: Any
    compute_units: Any
    l2_bytes: Any = np.inf
    operand_bytes: Any = 2.0
    """Bytes of an operand's element with its share of the scales."""


def device_rates(accelerator: Accelerator, dtype: str, held_units: Any = 0.0) -> DeviceRates:
    """Rates of one type on a device.

    A product may have to leave `held_units` of the compute units to others as long as it takes.
    """
    memory, units = accelerator.memory, float(accelerator.compute_units)
    left = units - np.minimum(held_units, units - 1.0)
    return DeviceRates(
        operand_bytes=OPERAND_BYTES.get(dtype, 2.0),
        peak_flop_per_s=float(accelerator.matrix_flop_per_s[dtype]) * (left / units),
        bandwidth_bytes_per_s=float(memory.bandwidth_bytes_per_s),
        l2_bytes=float(memory.l2_bytes),
        compute_units=left,
    )


def gemm_s(
    device: DeviceRates,
    kernel: GemmKernel,
    *,
    m: Any,
    n: Any,
    k: Any,
    batch: Any = 1.0,
    result_bytes: Any,
    aligned: Any = True,
    sustained: bool = True,
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
    device : DeviceRates
        The device, for the type of the product.
    kernel : GemmKernel
        The library on it. Fields of both may be arrays that broadcast against the sizes.
    m, n, k, batch : array_like
        Sizes in elements; `batch` independent products share the device.
    result_bytes : array_like
        Bytes per element of the result; 8 for one that adds to fp32 in memory (read and written).
    aligned : array_like of bool
        Rows of all operands are multiples of 16 bytes, as tensor cores want them (NVIDIA, "Matrix
        Multiplication Background User's Guide", tensor core requirements).
    sustained : bool
        Price the call at the rate of a training step (`training_fraction`), or by its own length at
        a clock that falls from burst to sustained (`sustained_fraction`).

    Returns
    -------
    ndarray
        Seconds, of the broadcast shape of the arguments.

    Notes
    -----
    The form is the usual tile-and-wave account (NVIDIA, "Matrix Multiplication Background User's
    Guide") with split-K and a memory roofline; its parameters are fitted by `make profiles`.
    Activity is the share of the rate of full waves that a call reaches at the burst clock; one off
    tensor cores counts as busy at the rate that it has there.

    Examples
    --------
    One compute unit of 1 TFLOP/s that reaches all of it takes 2 x 128 x 128 x 640 operations in
    21 us, and twice as long for twice the rows:

    >>> unit = DeviceRates(peak_flop_per_s=1e12, bandwidth_bytes_per_s=1e15, compute_units=1)
    >>> clock = {"peak_fraction": 1.0, "sustained_fraction": 1.0, "training_fraction": 1.0}
    >>> tiles = {"prologue_k": 0.0, "wave_quantisation": 1.0, "small_tile_penalty": 0.0}
    >>> whole = {"split_k_s": 1.0, "l2_refetch": 0.0, "launch_s": 0.0, "memory_fraction": 1.0}
    >>> plain = GemmKernel(**clock, **tiles, **whole)
    >>> seconds = gemm_s(unit, plain, m=[128, 256], n=128, k=640, result_bytes=2.0)
    >>> (seconds * 1e6).round(2).tolist()
    [20.97, 41.94]
    """
    m, n, k, batch, result = _float(m, n, k, batch, result_bytes)
    shape = np.broadcast_shapes(m.shape, n.shape, k.shape, batch.shape)
    m, n, k, batch = (np.broadcast_to(x, shape) for x in (m, n, k, batch))
    reached = np.where(aligned, 1.0, np.asarray(kernel.unaligned_fraction, float))
    rate = reached * kernel.peak_fraction * device.peak_flop_per_s

    sums = result >= _FP32_SUM_BYTES
    moved = batch * (
        device.operand_bytes * (m * k + k * n) + np.where(sums, _WRITTEN_BYTES, result) * m * n
    )
    held = kernel.l2_refetch / (1.0 + (2.0 * moved / device.l2_bytes) ** 2)
    bandwidth = kernel.memory_fraction * device.bandwidth_bytes_per_s
    memory_s = moved / (bandwidth * (1.0 + held))
    best_s = _fastest_tiles_s(device, kernel, (m, n, k, batch), rate, memory_s)

    written = (result - _WRITTEN_BYTES) * batch * m * n / device.bandwidth_bytes_per_s
    added_s = np.where(sums, written, 0.0)
    hot = kernel.training_fraction if sustained else kernel.sustained_fraction
    activity = (2.0 * batch * m * n * k / rate) / best_s
    capped = _capped(activity, hot, kernel.clock_exponent) - 1.0
    heat = 1.0 if sustained else best_s / (best_s + _BURST_S)
    best_s = best_s * (1.0 + capped * heat) + np.asarray(kernel.accumulate_exposed) * added_s
    least_s = memory_s + added_s / kernel.memory_fraction
    run_s = np.where(added_s > 0.0, np.maximum(best_s, least_s), best_s)
    device_s = kernel.launch_s + run_s + _cast_s(device, kernel, batch * m, batch * m * k)
    floor_s = kernel.host_floor_s
    return np.asarray(np.where(floor_s, _fourth_power_mean(device_s, floor_s), device_s))


def _fastest_tiles_s(
    device: DeviceRates, kernel: GemmKernel, sizes: tuple[Floats, ...], rate: Any, memory_s: Any
) -> Floats:
    """Time with the best tile and split of the reduction, at the burst clock."""
    m, n, k, batch, rate, memory_s = _per_choice(*sizes, rate, memory_s)
    units, bandwidth = _per_choice(device.compute_units, device.bandwidth_bytes_per_s)
    prologue, waves_a, penalty, split_s, mem_share = _per_choice(
        kernel.prologue_k,
        kernel.wave_quantisation,
        kernel.small_tile_penalty,
        kernel.split_k_s,
        kernel.memory_fraction,
    )
    rows, cols = TILES[:, 0][:, None], TILES[:, 1][:, None]
    parts = SPLITS[None, :]

    waves = parts * batch * np.ceil(m / rows) * np.ceil(n / cols) / units
    waves = np.where(waves <= 1.0, 1.0, waves_a * np.ceil(waves) + (1.0 - waves_a) * waves)
    slower = np.maximum(1.0 + penalty * (128.0 / rows + 128.0 / cols - 1.5), 1.0)
    depth = 64.0 * np.ceil(k / (64.0 * parts)) + prologue
    compute_s = waves * 2.0 * rows * cols * depth * slower / (rate / units)
    joined_s = np.where(
        parts > 1.0, split_s + 8.0 * parts * batch * m * n / (mem_share * bandwidth), 0.0
    )
    allowed = (parts == 1.0) | (split_s < NO_SPLIT_S)
    total_s = _fourth_power_mean(compute_s, memory_s) + joined_s
    return np.asarray(np.where(allowed, total_s, np.inf).min(axis=(-2, -1)))


def _cast_s(device: DeviceRates, kernel: GemmKernel, rows: Floats, elements: Floats) -> Floats:
    """Time in which a call casts its 16-bit operand: a scan and its rows, at right angles."""
    held = np.asarray(kernel.quantise_refetch) / (1.0 + (4.0 * elements / device.l2_bytes) ** 2)
    moved = np.asarray(kernel.quantise_bytes_per_element) * elements
    scan_s = moved / device.bandwidth_bytes_per_s / (1.0 + held)
    return np.asarray(np.hypot(scan_s, np.asarray(kernel.quantise_row_s) * rows))


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


def _per_choice(*values: Any) -> list[Floats]:
    """The same with axes for tiles and splits."""
    return [np.asarray(value, float)[..., None, None] for value in values]


def _float(*values: Any) -> list[Floats]:
    return [np.asarray(value, dtype=float) for value in values]
