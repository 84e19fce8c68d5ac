"""What the formula of fused attention leaves over on timed shapes, smoothed.

A Gaussian process over the logarithms of length, heads, heads per key head and head size, with a
Matern-3/2 kernel: devices of one generation share most of what the formula misses, a library and a
series have some of their own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.calibration import Floats, Rows
from simulator.calibration.pooled import Pool

__all__ = ["residual"]

Masks = NDArray[np.bool_]

_OCTAVES = 3.0
"""Distance in the logarithms to base 2 over which the residual changes."""

_SHARED, _LIBRARY, _OWN = 0.06, 0.04, 0.05
"""Standard deviation of log(measured / formula) that a generation, a library, a series adds."""

_NOISE = 0.05
_MOST = 0.4
"""Largest log ratio that is believed."""


def residual(
    pool: Pool, generation: NDArray[np.str_], left: Floats, seen: Masks, wanted: Masks
) -> Floats:
    """Expected log(measured / formula) of the wanted rows, from those that were seen."""
    place = _place(pool.rows)
    found = np.zeros(int(wanted.sum()))
    for name in np.unique(generation[wanted]):
        a = np.flatnonzero(wanted & (generation == name))
        b = np.flatnonzero(seen & (generation == name))
        if len(b):
            pull = np.linalg.solve(
                _shared(pool, place, b, b) + _NOISE**2 * np.eye(len(b)),
                np.clip(left[b], -_MOST, _MOST),
            )
            found[generation[wanted] == name] = _shared(pool, place, a, b) @ pull
    return found


def _place(rows: Rows) -> Floats:
    grouped = rows["query_bytes"] / rows["key_bytes"]
    size = (rows["score_size"] + rows["value_size"]) / 2.0
    sides = np.stack([rows["queries"], rows["heads"], grouped, size], axis=1)
    return np.asarray(np.log2(sides) / _OCTAVES)


def _shared(pool: Pool, place: Floats, a: NDArray[np.intp], b: NDArray[np.intp]) -> Floats:
    """Covariance of the residual at two sets of rows."""
    apart = np.sqrt(3.0) * np.sqrt(((place[a][:, None] - place[b][None]) ** 2).sum(axis=2))
    library = pool.variant[a][:, None] == pool.variant[b][None]
    own = library & (pool.device[a][:, None] == pool.device[b][None])
    amount = _SHARED**2 + _LIBRARY**2 * library + _OWN**2 * own
    return np.asarray(amount * (1.0 + apart) * np.exp(-apart))
