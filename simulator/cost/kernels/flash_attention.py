"""Seconds of one fused (flash) attention call.

A pure function of a device, a library and sizes; parameters come from the accelerator profile.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.cost.kernels.gemm import DeviceRates
from simulator.hardware.accelerator import BACKWARD_FLOP, AttentionKernel

_REFERENCE = 128.0
"""Head size at which `peak_fraction` is stated."""

_LEAST_ROWS = 64.0
"""Smallest tile."""

_BACKWARD_BYTES = 2.0
"""Memory traffic of the backward pass over that of the forward pass: queries, keys, values, result
and its gradient are read, three gradients written."""

_BURST_S = 1.5e-3
"""Length of a call at which the clock has fallen half way from burst to sustained."""


def attention_s(
    device: DeviceRates,
    kernel: AttentionKernel,
    *,
    heads: Any,
    queries: Any,
    keys: Any,
    span: Any,
    score_size: Any,
    value_size: Any,
    query_bytes: Any,
    key_bytes: Any,
    backward: bool = False,
    sustained: bool = True,
) -> Floats:
    """Time of one fused attention call, in seconds.

    Tiles of queries are dealt to compute units. A tile passes over the keys that its queries see,
    half a tile more where a mask cuts through it, and a prologue; each key costs the products with
    the head (padded to a size that the library has) and the softmax of its scores. The device is
    done when the last unit is: after a share of the longest tile, and no sooner than after one
    whole. Queries, keys, values and result pass the memory in between.

    Parameters
    ----------
    device : DeviceRates
        The device, for the type of the products.
    kernel : AttentionKernel
        The library on it. Fields of both may be arrays that broadcast against the sizes.
    heads : array_like
        Heads times sequences of the call.
    queries, keys, span : array_like
        Queries of one sequence; keys that one of them sees on average, and at most.
    score_size, value_size : array_like
        Elements of a head of queries and keys, of a head of values.
    query_bytes, key_bytes : array_like
        Bytes of queries and result; of keys and values.
    backward : bool
        The backward pass: tiles are of keys, and there are 2.5 times the FLOPs.
    sustained : bool
        Price the call at the rate of a training step, or by its own length at a clock that falls
        from burst to sustained.

    Returns
    -------
    ndarray
        Seconds, of the broadcast shape of the arguments.

    Notes
    -----
    The tiling is that of flash-attention 2 (Dao 2023, arXiv 2307.08691, section 3); parameters are
    fitted by `make profiles`. With many tiles the rate rises with the length of a causal sequence
    as ``s / (s + tile_rows + 2 prologue_keys)``.

    Examples
    --------
    One tile of 128 queries by 1,024 keys with heads of 128 elements on one unit of 1 TFLOP/s, no
    softmax, prologue, tail or traffic: 4 x 128 x 1,024 x 128 operations in 67.11 us.

    >>> unit = DeviceRates(peak_flop_per_s=1e12, bandwidth_bytes_per_s=1e12, compute_units=1)
    >>> zero = "launch_s softmax_width prologue_keys tail_fraction backward_tail_fraction"
    >>> ones = "peak_fraction sustained_fraction training_fraction backward_fraction"
    >>> figures = dict.fromkeys(f"{zero} query_traffic key_traffic".split(), 0.0)
    >>> figures |= dict.fromkeys(f"{ones} narrow_head_factor wide_head_factor".split(), 1.0)
    >>> kernel = AttentionKernel(tile_rows=128.0, wide_head_step=64.0, **figures)
    >>> sizes = {"heads": 1, "queries": 128, "keys": 1024, "span": 1024, "score_size": 128}
    >>> seconds = attention_s(unit, kernel, **sizes, value_size=128, query_bytes=0.0, key_bytes=0.0)
    >>> float((seconds * 1e6).round(2))
    67.11
    """
    queries, keys, span = _floats(queries, keys, span)
    score_size, value_size = _floats(score_size, value_size)
    tail, traffic = kernel.tail_fraction, 1.0
    if backward:
        tail, traffic = kernel.backward_tail_fraction, _BACKWARD_BYTES
        whole = (span < queries) & (np.asarray(kernel.backward_ignores_window) > 0.0)
        span, keys = np.where(whole, queries, span), np.where(whole, queries / 2.0, keys)
    rows, key_s = _tile(device, kernel, score_size, value_size, backward=backward)

    tiles = heads * np.ceil(queries / rows) / device.compute_units
    if kernel.window_block:
        cut = span < queries
        span = np.where(cut, _touched(queries, span, kernel.window_block), span)
        keys = np.where(cut, span, keys)
    seen = np.minimum(keys + rows / 2.0, span) + kernel.prologue_keys
    longest = span + kernel.prologue_keys
    tiled_s = key_s * np.maximum(tiles * seen + tail * longest, longest)
    if sustained:
        tiled_s = tiled_s / kernel.training_fraction
    else:
        capped = 1.0 / np.asarray(kernel.sustained_fraction, float) - 1.0
        tiled_s = tiled_s * (1.0 + capped * tiled_s / (tiled_s + _BURST_S))
    moved = traffic * (kernel.query_traffic * query_bytes + kernel.key_traffic * key_bytes)
    return np.asarray(kernel.launch_s + tiled_s + moved / device.bandwidth_bytes_per_s)


def _tile(
    device: DeviceRates, kernel: AttentionKernel, score: Floats, value: Floats, *, backward: bool
) -> tuple[Floats, Floats]:
    """Rows of a tile, and seconds of one key that it passes over."""
    tile = kernel.tile_rows
    rows = np.where(value > _REFERENCE, np.maximum(tile / 2.0, _LEAST_ROWS), tile)
    products: Any = 1.0
    if backward:
        rows = np.full_like(rows, kernel.backward_tile_rows)
        products = BACKWARD_FLOP / kernel.backward_fraction
    softmax = kernel.softmax_width
    work = _elements(score, value, kernel.wide_head_step) + softmax
    wide = np.log2((score + value) / (2.0 * _REFERENCE))
    narrow, factor = kernel.narrow_head_factor, kernel.wide_head_factor
    slower = np.where(wide < 0.0, narrow**-wide, factor**wide)
    full = _REFERENCE * work / (_REFERENCE + softmax) * slower
    reached = kernel.peak_fraction * device.peak_flop_per_s
    return rows, np.asarray(products * 4.0 * rows * full * device.compute_units / reached)


def _touched(queries: Floats, window: Floats, block: Any) -> Floats:
    """Keys in the blocks that a window leaves any of, for a block of queries as long as they."""
    blocks = 1.0 + np.ceil((window - 1.0) / block)
    return np.asarray(np.minimum(blocks * block, queries))


def _elements(score_size: Floats, value_size: Floats, wide_step: Any) -> Floats:
    """Elements of a head after padding, mean of scores and values."""
    padded = (
        np.where(size <= _REFERENCE, 32.0, wide_step)
        * np.ceil(size / np.where(size <= _REFERENCE, 32.0, wide_step))
        for size in (score_size, value_size)
    )
    return np.asarray(sum(padded) / 2.0)


def _floats(*values: Any) -> list[Floats]:
    return [np.asarray(value, dtype=float) for value in values]
