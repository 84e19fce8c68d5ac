"""Seconds of the kernels of an engine's iteration that training does not have.

Figures come from ``hardware_profiles/decode_kernels`` (``workshop/fits/decode/fit.py``), shapes
from the layout of a replica. Products are those of :mod:`simulator.cost.kernels.gemm`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.cost.kernels.residual import matern
from simulator.hardware.residuals import TimedShapes

TILE_ROWS = 16.0
"""Rows of the smallest tile of a grouped product: an expert with one token computes as many."""

ROUTING_EXPONENT = 1.2
"""How the popularity of experts falls with their rank: the timed layers with unequal routing."""

_OCTAVES = 3.0
"""Distance in one size over which what a timed layer of experts says fades."""


def decode_attention_s(
    figures: Any, bandwidth_bytes_per_s: Any, *, sequences: Any, heads: Any, kv_heads: Any,
    cache_bytes: Any,
) -> Any:  # fmt: skip
    """Attention of one new token of each sequence to its cache, on one device, in seconds.

    A start; then work for each sequence and head, and keys and values of all contexts read from
    memory, which hide most of one another: ``start + (work^q + traffic^q)^(1/q)``. The cache does
    not stay in the last-level cache from one block to the next.

    Parameters
    ----------
    figures : DecodeKernels
    bandwidth_bytes_per_s : array_like
    sequences, heads, kv_heads : array_like
        Sequences that run; heads of the device.
    cache_bytes : array_like
        Keys and values of all their contexts in this block, on this device.
    """
    by_head = kv_heads * figures.attention_key_head_s + heads * figures.attention_head_s
    read_s = cache_bytes / (figures.attention_memory_fraction * bandwidth_bytes_per_s)
    both_s = _joined(sequences * by_head, read_s, figures.attention_sharpness)
    return figures.attention_launch_s + both_s


def reached_experts(tokens: Any, experts: int, top_k: int, *, exponent: float) -> Floats:
    """Mean number of distinct experts that some tokens reach.

    Popularity falls as rank to the power of minus `exponent`; no token takes an expert twice, so
    that none is chosen more often than always.

    Examples
    --------
    >>> reached_experts([1.0, 64.0], 8, 2, exponent=0.0).round(2).tolist()
    [2.0, 8.0]
    """
    share = np.arange(1.0, experts + 1.0) ** -exponent
    chance = np.minimum(top_k * share / share.sum(), 1.0)
    for _ in range(8):
        free = chance < 1.0
        if not free.any() or top_k - chance.sum() < 1e-9:
            break
        more = 1.0 + (top_k - chance.sum()) / chance[free].sum()
        chance = np.where(free, np.minimum(chance * more, 1.0), chance)
    missed = (1.0 - chance) ** np.asarray(tokens, float)[..., None]
    return np.asarray((1.0 - missed).sum(axis=-1))


def expert_layer_s(
    figures: Any, bandwidth_bytes_per_s: Any, peak_flop_per_s: Any, *, tokens: Any, reached: Any,
    copies: Any, hidden: Any, ffn: Any, matrices: Any = 3.0, weight_bytes: Any = 2.0,
) -> Floats:  # fmt: skip
    """A fused layer of experts of one device, routing and sums included, in seconds.

    Weights of every expert that any token reaches are read once, products run over tiles of 16
    rows, copies of tokens pass the memory; an expert that is reached adds a little of its own.

    Parameters
    ----------
    figures : DecodeKernels
    tokens : array_like
        Tokens of the iteration.
    reached, copies : array_like
        Experts of the device that are reached, and copies of tokens sent to them.
    hidden, ffn : array_like
        Widths of the layer, and of one expert's share on this device.
    matrices, weight_bytes : array_like
        Matrices of an expert; bytes of a weight.
    """
    weights = matrices * hidden * ffn * weight_bytes
    read_s = reached * weights / (figures.expert_memory_fraction * bandwidth_bytes_per_s)
    rows = np.maximum(copies, reached * TILE_ROWS)
    flop_s = 2.0 * matrices * hidden * ffn * rows / (figures.expert_peak_fraction * peak_flop_per_s)
    passed = copies * (4.0 * hidden + 2.0 * matrices * ffn) / bandwidth_bytes_per_s
    both_s = _joined(read_s, flop_s, figures.expert_sharpness)
    start_s = figures.expert_launch_s + figures.expert_s * reached
    return np.asarray(start_s + both_s + figures.expert_row_passes * passed)


def expert_features(*, tokens: Any, experts: Any, hidden: Any, ffn: Any, top_k: Any) -> Floats:
    """Coordinates of layers in which what the formula leaves over fades alike, one row each."""
    sizes = np.broadcast_arrays(*(np.asarray(x, float) for x in
                                  (tokens, experts, hidden, ffn, top_k)))  # fmt: skip
    return np.stack([np.log2(x.ravel()) / _OCTAVES for x in sizes], axis=-1)


def expert_residual(timed: TimedShapes | None, **sizes: Any) -> Floats:
    """Factor on a layer's time by the layers that were timed near it."""
    shape = np.broadcast_shapes(*(np.shape(x) for x in sizes.values()))
    if timed is None:
        return np.ones(shape)
    near = matern(expert_features(**sizes), expert_features(**timed.sizes))
    return np.asarray(np.exp((near * timed.weight).sum(axis=1)).reshape(shape))


def all_reduce_in_domain_s(figures: Any, ranks: Any, size_bytes: Any) -> Floats:
    """An engine's own all-reduce among ranks joined by fast links, in seconds.

    In one step every rank reads all others' data; in two each sums a share and all read the sums.
    The engine takes the faster one.
    """
    ranks, size = np.asarray(ranks, float), np.asarray(size_bytes, float)
    once = figures.one_shot_s + (ranks - 1.0) * size / figures.one_shot_bytes_per_s
    moved = 2.0 * (ranks - 1.0) / ranks * size
    twice = figures.two_shot_s + moved / figures.two_shot_bytes_per_s
    return np.where(ranks > 1.0, np.minimum(once, twice), 0.0)


def _joined(a: Any, b: Any, sharpness: Any) -> Any:
    """Two streams of work that hide most of one another."""
    return (a**sharpness + b**sharpness) ** (1.0 / sharpness)
