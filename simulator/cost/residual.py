"""What timed shapes say about a shape near them that the formula of a product does not.

    log(time / formula) = sum over timed shapes i of weight_i (1 + sqrt(3) d_i) exp(-sqrt(3) d_i)

with d the distance in units of two octaves of M, N and K, and one octave of the rows that the
last tile of 128 is padded by. That is the mean of a Gaussian process with a Matern-3/2 kernel: it
passes smoothly near what was measured, and is zero far from every timed shape.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.hardware.residuals import TimedShapes

__all__ = ["features", "matern", "residual_factor"]

Floats = NDArray[np.float64]

_OCTAVES = 2.0
"""Distance in M, N or K over which what a timed shape says fades."""

_TILE_ROWS = 128.0

_CHUNK = 1024


def features(m: Any, n: Any, k: Any) -> Floats:
    """Coordinates of shapes, of shape (shapes, 4), in which residuals fade alike."""
    m, n, k = (np.asarray(x, dtype=float) for x in (m, n, k))
    padded = np.log2(np.ceil(m / _TILE_ROWS) * _TILE_ROWS / m)
    sizes = [np.log2(x) / _OCTAVES for x in (m, n, k)]
    return np.stack([*sizes, padded], axis=-1)


def matern(a: Floats, b: Floats) -> Floats:
    """Matern-3/2 kernel between two lists of coordinates, of shape (len(a), len(b)).

    Sums run over the coordinates in a fixed order, so that a row is the same in any list.
    """
    square = np.zeros((len(a), len(b)))
    for axis in range(a.shape[1]):
        step = a[:, axis][:, None] - b[:, axis][None, :]
        square += step * step
    distance = np.sqrt(3.0 * square)
    return np.asarray((1.0 + distance) * np.exp(-distance))


def residual_factor(timed: TimedShapes, *, m: Any, n: Any, k: Any) -> Floats:
    """Factor on the formula's time of products of (m, k) by (k, n), by what was timed near them."""
    m, n, k = np.broadcast_arrays(*(np.asarray(x, dtype=float) for x in (m, n, k)))
    asked, known = features(m.ravel(), n.ravel(), k.ravel()), features(timed.m, timed.n, timed.k)
    log = np.empty(len(asked))
    for start in range(0, len(asked), _CHUNK):
        part = slice(start, start + _CHUNK)
        log[part] = (matern(asked[part], known) * timed.weight).sum(axis=1)
    return np.asarray(np.exp(log).reshape(m.shape))
