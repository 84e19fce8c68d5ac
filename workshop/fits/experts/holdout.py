"""How well layers of experts come out whose shape no fit has seen, and those routed unevenly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.cost.kernels.residual import features
from workshop.fits.experts.fit import fit_layers, layer_s
from workshop.fits.experts.rows import SHAPE, ExpertPool, contradicted, expert_pools
from workshop.fits.fitting.holdout_errors import LeftOut, left_out
from workshop.fits.fitting.pooled import PooledFit, deal
from workshop.fits.fitting.smoothing import Points, Spread, mean_at, pulls

SPREAD = Spread(shared=0.12, library=0.08, own=0.05, noise=0.08, most=0.25, other=0.4)
"""Of a layer of experts, where types stand for libraries."""

EVEN = "grouped expert layer, even load"
_ALL = EVEN + ", contradicted rows too"
_UNEVEN = "grouped expert layer, power-law routing"
_METHODS = ("formula", "formula + residual")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnseenLayers:
    """One pool, fitted, and the seconds that fits without its shape predict for each even row."""

    pool: ExpertPool
    used: NDArray[np.bool_]
    """Rows that fits may see: even, and not contradicted by another."""
    fit: PooledFit
    """To all of them."""
    formula_s: Floats
    """By the fit to all."""
    seconds: dict[str, Floats]
    """By method; NaN where routed unevenly."""


@lru_cache(maxsize=1)
def unseen_layers() -> tuple[UnseenLayers, ...]:
    """Leave a fifth of the shapes out of every fit, on all devices and of all types at once."""
    pools = expert_pools()
    shapes = [_shapes(pool) for pool in pools]
    fold = deal([shape for each in shapes for shape in each])
    parts = np.split(fold, np.cumsum([len(each) for each in shapes])[:-1])
    return tuple(_unseen(pool, part) for pool, part in zip(pools, parts, strict=True))


def _shapes(pool: ExpertPool) -> list[tuple[float, ...]]:
    return list(zip(*(pool.calls.rows[name].tolist() for name in SHAPE), strict=True))


def _unseen(pool: ExpertPool, fold: NDArray[np.intp]) -> UnseenLayers:
    even, calls = pool.even, pool.calls
    used = even & ~contradicted(pool)
    points, measured = layer_points(pool), calls.rows["seconds"]
    seconds = {name: np.full(len(calls), np.nan) for name in _METHODS}
    for number in np.unique(fold):
        seen, out = used & (fold != number), even & (fold == number)
        formula = _predicted(fit_layers(pool, seen), pool)
        known = points.take(seen)
        pull = pulls(known, np.log(measured / formula)[seen], SPREAD)
        left = mean_at(points.take(out), known, pull, SPREAD)
        seconds["formula"][out] = formula[out]
        seconds["formula + residual"][out] = formula[out] * np.exp(left)
    fit = fit_layers(pool, used)
    return UnseenLayers(
        pool=pool, used=used, fit=fit, formula_s=_predicted(fit, pool), seconds=seconds
    )


def _predicted(fit: PooledFit, pool: ExpertPool) -> Floats:
    return layer_s(fit.of(pool.calls), pool.calls.rows)


def layer_points(pool: ExpertPool) -> Points:
    """Return the rows of a pool as points of its residual."""
    calls = pool.calls
    owner = np.char.add(np.char.add(calls.device, "|"), calls.variant)
    return Points(place=features("experts", calls.rows), library=calls.variant, owner=owner)


# --- lines of the table ------------------------------------------------------------------


def grouped_lines(holdout_layers: Sequence[UnseenLayers] | None = None) -> list[LeftOut]:
    """Score layers whose shape was left out on all devices, and those routed unevenly."""
    holdout_layers = unseen_layers() if holdout_layers is None else holdout_layers
    lines = []
    for kernel, rows in (
        (EVEN, [holdout_layer.used for holdout_layer in holdout_layers]),
        (_ALL, [one.pool.even for one in holdout_layers]),
    ):
        for method in _METHODS:
            seconds = [one.seconds[method] for one in holdout_layers]
            lines += _scored(kernel, method, holdout_layers, seconds, rows, single=kernel == EVEN)
    uneven = [
        (one.pool.calls.rows["skew"] > 0.0) & (one.pool.calls.rows["tokens"] >= 1.0)
        for one in holdout_layers
    ]
    seconds = [one.formula_s for one in holdout_layers]
    return lines + _scored(_UNEVEN, "formula", holdout_layers, seconds, uneven, single=True)


def _scored(
    kernel: str,
    method: str,
    holdout_layers: Sequence[UnseenLayers],
    seconds: Sequence[Floats],
    rows: Sequence[NDArray[np.bool_]],
    *,
    single: bool,
) -> list[LeftOut]:
    """Lines over everything, of every type and, where asked for, of every device and type."""
    predicted = np.concatenate([s[row] for s, row in zip(seconds, rows, strict=True)])
    calls = [
        holdout_layer.pool.calls.take(own)
        for holdout_layer, own in zip(holdout_layers, rows, strict=True)
    ]
    measured = np.concatenate([each.rows["seconds"] for each in calls])
    device = np.concatenate([each.device for each in calls])
    dtype = np.concatenate([call.variant for call in calls])
    pairs = sorted(set(zip(device.tolist(), dtype.tolist(), strict=True))) if single else []
    types = [("all", name) for name in sorted(set(dtype.tolist()))]
    lines = []
    for name, kind in [("all", "all"), *types, *pairs]:
        own = np.isin(device, [name]) | (name == "all")
        own &= np.isin(dtype, [kind]) | (kind == "all")
        lines.append(
            left_out(
                predicted[own],
                measured[own],
                kernel=kernel,
                device=name,
                library="cublas",
                dtype=kind,
                method=method,
            )
        )
    return lines
