"""What timed shapes say about a shape near them that the formula of a kernel does not.

    log(time / formula) = sum over timed shapes i of weight_i (1 + sqrt(3) d_i) exp(-sqrt(3) d_i)

with d the distance between shapes, in units of two octaves of each size of a product, of four of
attention, of three of an expert layer. That is the mean of a Gaussian process with a Matern-3/2
kernel: it passes smoothly near what was measured, and is zero far from every timed shape, so that
there the formula stands alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.hardware.residuals import SIZES, TimedShapes

_OCTAVES = {"gemm": 2.0, "attention": 4.0, "experts": 3.0}
"""Distance in one size over which what a timed shape says fades."""

_TILE_ROWS = 128.0
_ALIGNED_ROWS = 16.0
_UNALIGNED = 0.5
"""Distance of rows that 16 does not divide from those that it does."""

_CHUNK = 16
"""Shapes that are set against all timed ones together: what they need stays in a cache."""


def features(kernel: str, sizes: Mapping[str, Any]) -> Floats:
    """Coordinates of shapes, one row each, in which residuals fade alike.

    A product has two more than sizes. One octave of the rows that the last tile of 128 is padded
    by is as far as two octaves of a size. Rows that 16 does not divide are half a unit from those
    that it does: vLLM's fp8 products on Hopper take a quarter longer with them. With a gate and
    without are one unit apart.
    """
    given = {name: np.asarray(sizes[name], dtype=float) for name in SIZES[kernel]}
    axes = [x if name == "gated" else np.log2(x) / _OCTAVES[kernel] for name, x in given.items()]
    if kernel == "gemm":
        m = given["m"]
        axes.append(np.log2(np.ceil(m / _TILE_ROWS) * _TILE_ROWS / m))
        axes.append(_UNALIGNED * (m % _ALIGNED_ROWS != 0.0))
    return np.stack(axes, axis=-1)


def attention_sizes(shape: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes of a timed call from the arguments of ``attention_s``."""
    return {
        "heads": shape["heads"],
        "queries": shape["queries"],
        "groups": shape["query_bytes"] / shape["key_bytes"],
        "head_size": (shape["score_size"] + shape["value_size"]) / 2.0,
    }


def matern(a: Floats, b: Floats) -> Floats:
    """Matern-3/2 kernel between two lists of coordinates, of shape (len(a), len(b)).

    Sums run over the coordinates in a fixed order, so that a row is the same in any list.
    """
    square = np.zeros((len(a), len(b)))
    step = np.empty_like(square)
    for here, there in zip(a.T, np.ascontiguousarray(b.T), strict=True):
        np.subtract(here[:, None], there, out=step)
        square += np.multiply(step, step, out=step)
    square *= 3.0
    distance = np.sqrt(square, out=square)
    fades = np.exp(np.negative(distance, out=step), out=step)
    distance += 1.0
    return np.multiply(distance, fades, out=distance)


def residual_factor(timed: TimedShapes, **sizes: Any) -> Floats:
    """Factor on the formula's time of shapes, by what was timed near them.

    `sizes` are those of the kernel (``SIZES``), arrays that broadcast against one another.
    """
    names = SIZES[timed.kernel]
    asked = dict(zip(names, np.broadcast_arrays(*(sizes[name] for name in names)), strict=True))
    shape = asked[names[0]].shape
    at = features(timed.kernel, {name: size.ravel() for name, size in asked.items()})
    known = features(timed.kernel, timed.sizes)
    log = np.empty(len(at))
    for start in range(0, len(at), _CHUNK):
        part = slice(start, start + _CHUNK)
        log[part] = (matern(at[part], known) * timed.weight).sum(axis=1)
    return np.asarray(np.exp(log).reshape(shape))
