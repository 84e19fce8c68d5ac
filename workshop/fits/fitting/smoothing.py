"""A Gaussian process over what formulas leave over, for any kind of kernel.

Rows of one generation share most of what a formula misses, those of one library (or type) some
more, and each series has some of its own; all fade with the distance of shapes as ``matern`` says.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.cost.kernels.residual import matern
from simulator.hardware.residuals import SHARED

Texts = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Standard deviations of log(time / formula)."""

    shared: float
    """That a generation adds."""
    library: float
    own: float
    noise: float
    """Of one timing about what is smooth."""
    most: float
    """Largest log ratio that is believed: what lies beyond counts as this."""
    other: float = np.inf
    """Log ratio from which a call is another event, of which nothing is learnt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Timed rows of one generation."""

    place: Floats
    """Coordinates (``cost.kernels.residual.features``)."""
    library: Texts
    """Library or type of every row."""
    owner: Texts
    """Series of every row: device and library."""

    def take(self, which: NDArray[Any]) -> Points:
        """Return the rows of a mask."""
        return Points(place=self.place[which], library=self.library[which], owner=self.owner[which])


def shares(a: Points, b: Points, spread: Spread) -> Floats:
    """Variance that two lists of rows have in common where their shapes are the same."""
    share = np.full((len(a.place), len(b.place)), spread.shared**2)
    share += spread.library**2 * (a.library[:, None] == b.library[None, :])
    share += spread.own**2 * (a.owner[:, None] == b.owner[None, :])
    return share


def pulls(points: Points, left: Floats, spread: Spread) -> Floats:
    """How far each row pulls the mean, per unit of variance shared with it."""
    from scipy.linalg import cho_factor, cho_solve  # type: ignore[import-untyped, unused-ignore]

    zeros = np.zeros(len(left))
    used = np.abs(left) < spread.other
    seen = points.take(used)
    learnt = matern(seen.place, seen.place) * shares(seen, seen, spread)
    learnt[np.diag_indices_from(learnt)] += spread.noise**2
    zeros[used] = cho_solve(cho_factor(learnt), np.clip(left[used], -spread.most, spread.most))
    return zeros


def mean_at(asked: Points, points: Points, pull: Floats, spread: Spread) -> Floats:
    """Expected log(time / formula) of rows."""
    return np.asarray((matern(asked.place, points.place) * shares(asked, points, spread)) @ pull)


def weight_lines(
    points: Points, sizes: Floats, pull: Floats, spread: Spread, owners: Iterable[tuple[str, ...]]
) -> list[str]:
    """Lines of a file of residuals of one device: what all share, then what each series adds.

    Parameters
    ----------
    points, pull
        Rows of one generation, and their pulls.
    sizes : ndarray
        Sizes of every row as the file writes them.
    owners : iterable
        Of each series of the device: its key in `points`, its library there, and the library and
        type that the file names.
    """
    lines = _lines((SHARED, SHARED), sizes, spread.shared**2 * pull)
    for owner, library, *names in owners:
        weight = spread.library**2 * (points.library == library)
        weight = weight + spread.own**2 * (points.owner == owner)
        rows = weight > 0.0
        lines += _lines(names, sizes[rows], (weight * pull)[rows])
    return sorted(lines)


def summed(sizes: Floats, weight: Floats) -> tuple[Floats, Floats]:
    """Distinct shapes, and the sum of the weights of each."""
    shapes, which = np.unique(sizes, axis=0, return_inverse=True)
    total = np.bincount(which.ravel(), weights=weight, minlength=len(shapes))
    return shapes, np.asarray(total, dtype=float)


def _lines(names: Iterable[str], sizes: Floats, weight: Floats) -> list[str]:
    """One line for every distinct shape, with the sum of its weights."""
    return shape_lines(names, *summed(sizes, weight))


def shape_lines(names: Iterable[str], shapes: Floats, weight: Floats) -> list[str]:
    """One line for every shape whose weight is not zero."""
    start = ",".join(names)
    return [
        f"{start},{','.join(f'{x:.6g}' for x in shape)},{w:.3g}"
        for shape, w in zip(shapes.tolist(), weight.tolist(), strict=True)
        if f"{w:.3g}" not in ("0", "-0")
    ]
