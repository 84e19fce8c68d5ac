"""What the formula of a product leaves over on timed shapes, smoothed, as weights of those shapes.

The process of :mod:`workshop.fits.fitting.smoothing` over all series of one generation and
type together. A device ships, for each series, the sum of what every timed shape of its generation
tells: the mean of the process itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.cost.kernels.residual import features
from simulator.hardware.residuals import SIZES, TimedShapes
from workshop.fits.fitting.smoothing import Points, Spread, pulls, summed
from workshop.fits.gemm.series import Series

_SPREAD = Spread(shared=0.06, library=0.1, own=0.035, noise=0.05, most=0.4)
"""The same shape on two alike devices differs by `noise`; a call timed at half the rate is another
event. What a library and a series add was chosen by the marginal likelihood of fp8 rows on Hopper,
Ada and GB20x, four fifths of the shapes: kernels of two libraries have less in common than those of
one library on two devices.
"""


def residual_groups(series: Sequence[Series]) -> list[list[int]]:
    """Positions of the series that share a residual: one generation, one type."""
    keys = [(curve.accelerator.generation, curve.dtype) for curve in series]
    return [[i for i, key in enumerate(keys) if key == group] for group in sorted(set(keys))]


def residual_weights(
    series: Sequence[Series], logs: Sequence[Floats], used: Sequence[NDArray[np.bool_]]
) -> list[TimedShapes]:
    """Timed shapes of one group, with the weights that they have for each of its series.

    Parameters
    ----------
    series, logs, used : sequence
        Series of one generation and type; log(measured / formula) of their rows; rows to learn
        from.

    Returns
    -------
    list of TimedShapes
        For each series, every distinct shape that was used of any.
    """
    if not series:
        return []
    rows = {
        name: np.concatenate([one.rows[name][own] for one, own in zip(series, used, strict=True)])
        for name in SIZES["gemm"]
    }
    owner = np.repeat(np.arange(len(series)), [int(own.sum()) for own in used])
    library = np.array([one.library for one in series])
    points = Points(place=features("gemm", rows), library=library[owner], owner=owner)
    left = np.concatenate([log[own] for log, own in zip(logs, used, strict=True)])
    pull, sizes = pulls(points, left, _SPREAD), np.stack(list(rows.values()), axis=1)
    found = []
    for number, curve in enumerate(series):
        share = _SPREAD.shared**2 + _SPREAD.library**2 * (points.library == curve.library)
        shapes, weight = summed(sizes, (share + _SPREAD.own**2 * (owner == number)) * pull)
        named = dict(zip(SIZES["gemm"], shapes.T, strict=True))
        found.append(TimedShapes(kernel="gemm", sizes=named, weight=weight))
    return found
