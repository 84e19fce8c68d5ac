"""Seconds of one fused (flash) attention call.

Pure functions of keyword arrays that broadcast against one another; parameters come from the
accelerator profile.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.hardware.accelerator import BACKWARD_FLOP, Accelerator

__all__ = ["attention_figures", "attention_s"]


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
    *,
    heads: Any,
    queries: Any,
    keys: Any,
    span: Any,
    score_size: Any,
    value_size: Any,
    query_bytes: Any,
    key_bytes: Any,
    peak_flop_per_s: Any,
    bandwidth_bytes_per_s: Any,
    compute_units: Any,
    launch_s: Any,
    peak_fraction: Any,
    sustained_fraction: Any,
    training_fraction: Any,
    backward_fraction: Any,
    tile_rows: Any,
    softmax_width: Any,
    prologue_keys: Any,
    tail_fraction: Any,
    backward_tail_fraction: Any,
    narrow_head_factor: Any,
    wide_head_factor: Any,
    wide_head_step: Any,
    query_traffic: Any,
    key_traffic: Any,
    backward_tile_rows: Any = 128.0,
    window_block: Any = 0.0,
    backward_ignores_window: Any = 0.0,
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
    heads : array_like
        Heads times sequences of the call.
    queries, keys, span : array_like
        Queries of one sequence; keys that one of them sees on average, and at most.
    score_size, value_size : array_like
        Elements of a head of queries and keys, of a head of values.
    query_bytes, key_bytes : array_like
        Bytes of queries and result; of keys and values.
    peak_flop_per_s, bandwidth_bytes_per_s, compute_units : array_like
        The device.
    launch_s ... backward_ignores_window : array_like
        Fields of ``AttentionKernel`` with the same names.
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
    fitted in ``workshop/fits/attention/profiles.py``. With many tiles the rate rises with
    the length of a causal sequence as ``s / (s + tile_rows + 2 prologue_keys)``.

    Examples
    --------
    One tile of 128 queries by 1,024 keys with heads of 128 elements on one unit of 1 TFLOP/s, no
    softmax, prologue, tail or traffic: 4 x 128 x 1,024 x 128 operations in 67.11 us.

    >>> sizes = {"heads": 1, "queries": 128, "keys": 1024, "span": 1024, "score_size": 128}
    >>> moved = {"value_size": 128, "query_bytes": 0.0, "key_bytes": 0.0}
    >>> unit = {"peak_flop_per_s": 1e12, "bandwidth_bytes_per_s": 1e12, "compute_units": 1}
    >>> full = {"launch_s": 0.0, "peak_fraction": 1.0, "sustained_fraction": 1.0}
    >>> training = {"training_fraction": 1.0, "backward_fraction": 1.0, "tile_rows": 128.0}
    >>> none = {"softmax_width": 0.0, "prologue_keys": 0.0, "tail_fraction": 0.0}
    >>> tails = {"backward_tail_fraction": 0.0, "query_traffic": 0.0, "key_traffic": 0.0}
    >>> heads = {"narrow_head_factor": 1.0, "wide_head_factor": 1.0, "wide_head_step": 64.0}
    >>> figures = unit | full | training | none | tails | heads
    >>> float((attention_s(**sizes, **moved, **figures) * 1e6).round(2))
    67.11
    """
    queries, keys, span = _floats(queries, keys, span)
    score_size, value_size = _floats(score_size, value_size)
    rows = np.where(value_size > _REFERENCE, np.maximum(tile_rows / 2.0, _LEAST_ROWS), tile_rows)
    products, tail, traffic = 1.0, tail_fraction, 1.0
    if backward:
        rows = np.full_like(rows, backward_tile_rows)
        products, tail = BACKWARD_FLOP / backward_fraction, backward_tail_fraction
        traffic = _BACKWARD_BYTES
        whole = (span < queries) & (np.asarray(backward_ignores_window) > 0.0)
        span, keys = np.where(whole, queries, span), np.where(whole, queries / 2.0, keys)
    work = _elements(score_size, value_size, wide_head_step) + softmax_width
    wide = np.log2((score_size + value_size) / (2.0 * _REFERENCE))
    slower = np.where(wide < 0.0, narrow_head_factor**-wide, wide_head_factor**wide)
    full = _REFERENCE * work / (_REFERENCE + softmax_width) * slower
    key_s = products * 4.0 * rows * full * compute_units / (peak_fraction * peak_flop_per_s)

    tiles = heads * np.ceil(queries / rows) / compute_units
    if window_block:
        cut = span < queries
        span = np.where(cut, _touched(queries, span, window_block), span)
        keys = np.where(cut, span, keys)
    seen = np.minimum(keys + rows / 2.0, span) + prologue_keys
    longest = span + prologue_keys
    tiled_s = key_s * np.maximum(tiles * seen + tail * longest, longest)
    if sustained:
        tiled_s = tiled_s / training_fraction
    else:
        capped = 1.0 / np.asarray(sustained_fraction, float) - 1.0
        tiled_s = tiled_s * (1.0 + capped * tiled_s / (tiled_s + _BURST_S))
    moved = traffic * (query_traffic * query_bytes + key_traffic * key_bytes)
    return np.asarray(launch_s + tiled_s + moved / bandwidth_bytes_per_s)


def attention_figures(accelerator: Accelerator, library: str, dtype: str) -> dict[str, Any]:
    """Arguments of :func:`attention_s` that device, library and type settle."""
    kernel = accelerator.attention[library]
    return {
        "peak_flop_per_s": float(accelerator.matrix_flop_per_s[dtype]),
        "bandwidth_bytes_per_s": float(accelerator.memory.bandwidth_bytes_per_s),
        "compute_units": float(accelerator.compute_units),
        **{field.name: float(getattr(kernel, field.name)) for field in fields(kernel)},
    }


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
