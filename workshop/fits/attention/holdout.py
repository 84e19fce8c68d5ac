"""Errors of fused attention on shapes, and on accelerators, that were left out of the fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Bools, Floats
from workshop.fits.attention.fit import (
    LONG,
    AttentionFit,
    fit_serving,
    pool_keys,
    serving_pools,
)
from workshop.fits.attention.residual import residual
from workshop.fits.attention.rows import shapes
from workshop.fits.fitting.devices import Device
from workshop.fits.fitting.holdout_errors import LeftOut, left_out
from workshop.fits.fitting.pooled import Pool, deal

_KINDS = ("", "fp8", "varlen")
_GROUPS = {
    "": ("", "fp8"), ", 16 bit": ("",), ", fp8": ("fp8",), ", no mask": ("varlen",),
}  # fmt: skip

_BOTH_TYPES = ("attention, >", "attention, <")


def unseen_attention(pool: Pool, known: Mapping[str, Device]) -> tuple[Pool, dict[str, Floats]]:
    """Predict every fitted row by each method from fits that have not seen its shape.

    A shape is left out on all devices and libraries at once.
    """
    pools = list(serving_pools(pool, known).items())
    whole = joined([rows for _, rows in pools])
    fold = deal(shapes(whole.rows))
    by_fold = _by_fold(pools, fold)
    formula = by_fold[fold, np.arange(len(whole))]
    generation = np.array([key[0] for key in pool_keys(whole, known)])
    corrected = formula.copy()
    for number, seconds in enumerate(by_fold):
        out = fold == number
        left = np.log(whole.rows["seconds"] / seconds)
        corrected[out] *= np.exp(residual(whole, generation, left, ~out, out))
    return whole, {
        "constant": _constant(whole, fold),
        "formula": formula,
        "formula + residual": corrected,
    }


def _by_fold(pools: Sequence[tuple[tuple[str, str], Pool]], fold: NDArray[np.intp]) -> Floats:
    """Seconds of every row by the fits that have not seen one fold; shape (folds, rows)."""
    found, start = np.empty((int(fold.max()) + 1, len(fold))), 0
    for key, rows in pools:
        own = slice(start, start + len(rows))
        for number, seconds in enumerate(found):
            seconds[own] = fit_serving(rows.take(fold[own] != number), key[1]).seconds(rows)
        start += len(rows)
    return found


def joined(pools: Iterable[Pool]) -> Pool:
    """Return the rows of several pools as one."""
    parts = list(pools)
    return Pool(
        rows={name: np.concatenate([p.rows[name] for p in parts]) for name in parts[0].rows},
        device=np.concatenate([part.device for part in parts]),
        variant=np.concatenate([part.variant for part in parts]),
    )


def _constant(pool: Pool, fold: NDArray[np.intp]) -> Floats:
    """One rate for each device and library, the median over the shapes that are not left out."""
    flop = 2.0 * pool.rows["heads"] * pool.rows["queries"] * pool.rows["keys"]
    flop = flop * (pool.rows["score_size"] + pool.rows["value_size"])
    rate, long = flop / pool.rows["seconds"], pool.rows["queries"] >= LONG
    full = np.full(len(pool), np.nan)
    for number in np.unique(fold):
        for key in _series(pool):
            own = (pool.device == key[0]) & (pool.variant == key[1])
            seen = own & (fold != number) & long
            out = own & (fold == number)
            full[out] = flop[out] / np.median(rate[seen]) if seen.any() else np.nan
    return full


def _series(pool: Pool) -> list[tuple[str, str]]:
    return sorted(set(zip(pool.device.tolist(), pool.variant.tolist(), strict=True)))


def attention_lines(
    pool: Pool,
    seconds: Mapping[str, Floats],
    fits: Mapping[tuple[str, str], AttentionFit],
    known: Mapping[str, Device],
) -> list[LeftOut]:
    """Tabulate errors over all devices and libraries, then of each, then of devices left out."""
    kind = np.array([_kind(name) for name in pool.variant.tolist()])
    lines = []
    for name, endings in _GROUPS.items():
        for where, rows in _lengths(pool).items():
            own = rows & np.isin(kind, endings)
            lines += [
                _line(pool, own, second, method, f"attention{name}, {where}")
                for method, second in seconds.items()
                if own.any()
            ]
    lines += list(library_lines(pool, seconds).values())
    away, rows = _accelerator_left_out(pool, fits, known)
    for name, endings in _GROUPS.items():
        own = rows & np.isin(kind, endings) & (pool.rows["queries"] >= LONG)
        kernel = f"attention{name}, >= 1k tokens"
        lines.append(_line(pool, own, away, "one accelerator left out", kernel))
    return lines


def _lengths(pool: Pool) -> dict[str, Bools]:
    long = pool.rows["queries"] >= LONG
    return {">= 1k tokens": long, "< 1k tokens": ~long}


def library_lines(pool: Pool, seconds: Mapping[str, Floats]) -> dict[tuple[str, str], LeftOut]:
    """Errors of the formula on the long calls of each device and library."""
    long = pool.rows["queries"] >= LONG
    found = {}
    for device, library in _series(pool):
        own = (pool.device == device) & (pool.variant == library) & long
        if own.any():
            found[device, library] = _line(
                pool,
                own,
                seconds["formula"],
                "formula",
                "attention, >= 1k tokens",
                device=device,
                library=library,
            )
    return found


def _line(
    pool: Pool,
    rows: Bools,
    seconds: Floats,
    method: str,
    kernel: str,
    *,
    device: str = "all",
    library: str = "all",
) -> LeftOut:
    rows = rows & np.isfinite(seconds)
    dtype = "fp8" if library.endswith("_fp8") or "fp8" in kernel else "16 bit"
    dtype = "all" if library == "all" and kernel.startswith(_BOTH_TYPES) else dtype
    return left_out(
        seconds[rows],
        pool.rows["seconds"][rows],
        kernel=kernel,
        device=device,
        library=library,
        dtype=dtype,
        method=method,
    )


def _kind(library: str) -> str:
    ending = library.rpartition("_")[2]
    return ending if ending in _KINDS else ""


def _accelerator_left_out(
    pool: Pool, fits: Mapping[tuple[str, str], AttentionFit], known: Mapping[str, Device]
) -> tuple[Floats, Bools]:
    """Predict each device from the others of its generation; NaN where it is the only one.

    Rates are shares of the datasheet peak, so that its peak scales them.
    """
    keys = pool_keys(pool, known)
    full = np.full(len(pool), np.nan)
    for key in fits:
        array = np.array([each == key for each in keys])
        devices = np.unique(pool.device[array]).tolist()
        for device in devices if len(devices) > 1 else ():
            away = array & (pool.device == device)
            full[away] = fit_serving(pool.take(array & ~away), key[1]).seconds(pool.take(away))
    return full, np.isfinite(full)
