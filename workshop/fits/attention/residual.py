"""What the formula of fused attention leaves over on timed shapes, smoothed.

The process of :mod:`workshop.fits.fitting.smoothing` over length, heads of all sequences,
heads per key head and head size: devices of one generation share most of what the formula misses, a
library and a series have some of their own. Forward calls alone: on the two devices that timed the
backward pass, what is left over of it has nothing to do with what is left over of the forward pass
of the same shape (correlation 0.09 over 21 shapes on B200, -0.9 over 8 on A100).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Bools, Floats
from simulator.calibration.least_squares import Rows
from simulator.cost.kernels.residual import attention_sizes, features
from simulator.hardware.residuals import SIZES, columns
from workshop.fits.fitting.pooled import Pool
from workshop.fits.fitting.smoothing import Points, Spread, mean_at, pulls, weight_lines

SPREAD = Spread(shared=0.15, library=0.08, own=0.08, noise=0.05, most=0.4)


def residual(
    pool: Pool, generation: NDArray[np.str_], left: Floats, seen: Bools, wanted: Bools
) -> Floats:
    """Expected log(measured / formula) of the wanted rows, from those that were seen."""
    points = _points(pool)
    zeros = np.zeros(len(pool))
    for name in np.unique(generation[wanted]):
        a, b = wanted & (generation == name), seen & (generation == name)
        if b.any():
            known = points.take(b)
            pull = pulls(known, left[b], SPREAD)
            zeros[a] = mean_at(points.take(a), known, pull, SPREAD)
    return zeros[wanted]


def residual_files(pool: Pool, generation: NDArray[np.str_], left: Floats) -> dict[str, str]:
    """Return the files of residuals of every device of a pool, by path under hardware_profiles."""
    found = {}
    for name in np.unique(generation):
        own = generation == name
        rows, points = pool.take(own), _points(pool.take(own))
        pull = pulls(points, left[own], SPREAD)
        sizes = np.stack(list(_sizes(rows.rows).values()), axis=1)
        for device in np.unique(rows.device).tolist():
            lines = weight_lines(points, sizes, pull, SPREAD, _owners(rows, device))
            text = "\n".join([",".join(columns("attention")), *lines, ""])
            found[f"residuals/attention/{device}.csv"] = text
    return found


def _owners(pool: Pool, device: str) -> Iterator[tuple[str, str, str, str]]:
    for library in np.unique(pool.variant[pool.device == device]).tolist():
        dtype = "fp8" if library.endswith("_fp8") else "bf16"
        yield f"{device}|{library}", library, library, dtype


def _sizes(rows: Rows) -> Mapping[str, Floats]:
    found = attention_sizes(rows)
    return {name: np.asarray(found[name], dtype=float) for name in SIZES["attention"]}


def _points(pool: Pool) -> Points:
    owner = np.char.add(np.char.add(pool.device, "|"), pool.variant)
    place = features("attention", _sizes(pool.rows))
    return Points(place=place, library=pool.variant, owner=owner)
