"""One fit of several series of measurements that share what their kernel is.

The same kernel on sister devices, or with another type of cache, has the same tiles and the same
prologue: only rates differ. Each parameter is a common value, moved a little by the device and by
the variant of the kernel as far as its rows ask for it (a hierarchical maximum a posteriori fit).
Loss and scale are those of :mod:`simulator.calibration`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.calibration.least_squares import Prior, Rows, pick

Texts = NDArray[np.str_]
Predict = Callable[[Mapping[str, Floats], Rows], Floats]
"""Predicted seconds of rows from parameters, one value for each row."""

_SOFT_L1 = 0.05
_FOLDS = 5
_SEED = 20261121
_MOST_STEPS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """A parameter of a pool: what is known of it, and how far devices and variants may differ."""

    prior: Prior
    device: float = 0.0
    """Standard deviation between devices, in the unit of the prior's width; 0: all the same."""
    variant: float = 0.0
    """Standard deviation between variants of the kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Rows of one kernel, and which device and which variant each is of."""

    rows: Rows
    device: Texts
    variant: Texts

    def __len__(self) -> int:
        return len(self.device)

    def take(self, which: NDArray[Any]) -> Pool:
        """Return the rows at a boolean mask or at indices."""
        return Pool(
            rows=pick(self.rows, which), device=self.device[which], variant=self.variant[which]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledFit:
    """Fitted coordinates of every parameter: the common one, and the steps away from it."""

    shared: Mapping[str, Shared]
    common: Mapping[str, float]
    by_device: Mapping[tuple[str, str], float]
    """By parameter and device."""
    by_variant: Mapping[tuple[str, str], float]
    cost: float
    """Half the sum of squares that the fit left."""

    def values(self, device: str = "", variant: str = "") -> dict[str, float]:
        """Return the parameters of a device and a variant; one not seen gets the common value."""
        found = {}
        for name, each in self.shared.items():
            prior = each.prior
            at = self.common[name] + self.by_device.get((name, device), 0.0)
            at += self.by_variant.get((name, variant), 0.0)
            found[name] = float(np.clip(prior.decode(at), prior.low, prior.high))
        return found

    def of(self, pool: Pool) -> dict[str, Floats]:
        """Return the parameters of every row of a pool."""
        pairs = list(zip(pool.device.tolist(), pool.variant.tolist(), strict=True))
        known = {pair: self.values(*pair) for pair in dict.fromkeys(pairs)}
        return {name: np.array([known[pair][name] for pair in pairs]) for name in self.shared}


def fit_pooled(
    shared: Mapping[str, Shared], predict: Predict, pool: Pool, weight: Floats | float = 1.0
) -> PooledFit:
    """Fit log(predicted / measured) of all rows, times `weight`, with one row for each prior."""
    from scipy.optimize import least_squares  # type: ignore[import-untyped, unused-ignore]

    moves = _moves(shared, pool)
    widths = np.array([width for *_, width in moves])
    measured = np.log(pool.rows["seconds"])
    columns = {name: np.zeros((len(pool), len(moves))) for name in shared}
    for k, (name, kind, which, width) in enumerate(moves):
        rows = np.ones(len(pool)) if not kind else getattr(pool, kind) == which
        columns[name][:, k] = width * rows

    def residuals(at: Floats) -> Floats:
        values = {
            name: _decode(each.prior, each.prior.encode(each.prior.value) + columns[name] @ at)
            for name, each in shared.items()
        }
        data = (np.log(predict(values, pool.rows)) - measured) * weight
        return np.concatenate([data, _SOFT_L1 * at])

    found = least_squares(
        residuals,
        np.zeros(len(moves)),
        loss="soft_l1",
        f_scale=_SOFT_L1,
        diff_step=1e-3,
        max_nfev=_MOST_STEPS,
    )
    steps = list(zip(moves, (widths * found.x).tolist(), strict=True))
    common = {name: each.prior.encode(each.prior.value) for name, each in shared.items()}
    for (name, kind, _, _), step in steps:
        common[name] += step if not kind else 0.0
    return PooledFit(
        shared=shared,
        common=common,
        cost=float(found.cost),
        by_device={(n, which): step for (n, kind, which, _), step in steps if kind == "device"},
        by_variant={(n, which): step for (n, kind, which, _), step in steps if kind == "variant"},
    )


def _moves(shared: Mapping[str, Shared], pool: Pool) -> list[tuple[str, str, str, float]]:
    """Parameter, "" or "device" or "variant", which one, and the width, of every coordinate.

    A single device or variant has nothing to differ from; the first variant is the common one.
    """
    devices, variants = np.unique(pool.device).tolist(), np.unique(pool.variant).tolist()
    moves = [(name, "", "", each.prior.width) for name, each in shared.items()]
    for name, each in shared.items():
        if each.device and len(devices) > 1:
            moves += [(name, "device", device, each.device) for device in devices]
        if each.variant:
            moves += [(name, "variant", variant, each.variant) for variant in variants[1:]]
    return moves


def _decode(prior: Prior, at: Floats) -> Floats:
    return np.clip(at if prior.linear else np.exp(at), prior.low, prior.high)


def deal(shapes: Sequence[tuple[float, ...]]) -> NDArray[np.intp]:
    """Deal the distinct shapes, in a fixed random order, to five folds; return each row's fold."""
    distinct = sorted(set(shapes))
    order = np.random.default_rng(_SEED).permutation(len(distinct)) % _FOLDS
    fold = dict(zip(distinct, order.tolist(), strict=True))
    return np.array([fold[shape] for shape in shapes], dtype=np.intp)


def unseen(
    fold: NDArray[np.intp],
    fit: Callable[[NDArray[np.bool_]], Callable[[NDArray[np.bool_]], Floats]],
) -> Floats:
    """Predict every row by a fit that has not seen its shape.

    `fit` takes the mask of the rows it may see and returns what predicts the rows of a mask.
    """
    empty = np.empty(len(fold))
    for number in np.unique(fold):
        out = fold == number
        empty[out] = fit(~out)(out)
    return empty
