"""How well products come out whose shape no fit has seen, and products of a device never timed.

Five fits; each leaves out a fifth of the shapes, on every device and library at once: kernels of
two devices are so alike that a shape seen on one would tell of it on the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.calibration.least_squares import pick
from simulator.cost.kernels.residual import residual_factor
from workshop.fits.fitting.holdout_errors import LeftOut, left_out
from workshop.fits.gemm.fit import fit_parameters, gemm_model
from workshop.fits.gemm.residual import residual_groups, residual_weights
from workshop.fits.gemm.series import Series, load_series
from workshop.fits.gemm.typical import stacked_memory, typical_values

METHODS = ("constant", "formula", "formula + residual")
_FOLDS = 5
_SEED = 20261121
_BY_DECADE = "bf16"
"""The type with shapes of every size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """Seconds that were predicted for each row of one series, from fits without its shape."""

    series: Series
    seconds: dict[str, Floats]
    """By method. A series that is noise throughout has no residual beside its formula."""


def shape_folds(series: Sequence[Series]) -> list[NDArray[np.intp]]:
    """Deal the distinct shapes of all series, in a fixed random order, to five folds."""
    shapes = [np.stack([curve.rows[name] for name in ("m", "n", "k")], axis=1) for curve in series]
    _, which = np.unique(np.concatenate(shapes), axis=0, return_inverse=True)
    dealt = np.random.default_rng(_SEED).permutation(int(which.max()) + 1) % _FOLDS
    ends = np.cumsum([len(rows) for rows in shapes])[:-1]
    return [np.asarray(part, dtype=np.intp) for part in np.split(dealt[which.ravel()], ends)]


def unseen_times(series: Sequence[Series]) -> list[Unseen]:
    """Predict every row of every series from fits that have not seen its shape."""
    folds = shape_folds(series)
    holdouts = [
        Unseen(series=curve, seconds={name: np.full(len(curve.flop), np.nan) for name in METHODS})
        for curve in series
    ]
    for number in range(_FOLDS):
        used = [(fold != number) & one.used for one, fold in zip(series, folds, strict=True)]
        logs = []
        for one, rows, result in zip(series, used, holdouts, strict=True):
            own = one.accelerator, one.dtype
            values = fit_parameters(
                pick(one.rows, rows), own[0], dtype=one.dtype, library=one.library
            )
            formula = gemm_model(values, one.rows, *own)
            rate = np.median((one.flop / one.rows["seconds"])[rows & one.large])
            out = ~rows
            result.seconds["constant"][out] = (one.flop / rate)[out]
            for method in METHODS[1:]:
                result.seconds[method][out] = formula[out]
            logs.append(np.log(one.rows["seconds"] / formula))
        _add_residual(series, folds, number, used, logs, holdouts)
    return holdouts


@lru_cache(maxsize=1)
def shipped_unseen() -> list[Unseen]:
    """Return those of the shipped table: profiles and the table of errors both state them."""
    return unseen_times(load_series())


def _add_residual(
    series: Sequence[Series],
    folds: Sequence[NDArray[np.intp]],
    number: int,
    used: Sequence[NDArray[np.bool_]],
    logs: Sequence[Floats],
    holdouts: Sequence[Unseen],
) -> None:
    for group in residual_groups(series):
        group = [i for i in group if not series[i].dropped.all()]
        near = residual_weights(
            [series[i] for i in group], [logs[i] for i in group], [used[i] for i in group]
        )
        for i, timed in zip(group, near, strict=True):
            rows, result = series[i].rows, holdouts[i].seconds
            out = folds[i] == number
            asked = {name: rows[name][out] for name in ("m", "n", "k")}
            factor = residual_factor(timed, **asked)
            result["formula + residual"][out] = result["formula"][out] * factor


# --- lines of the table ------------------------------------------------------------------


def gemm_lines(series: Sequence[Series] | None = None) -> list[LeftOut]:
    """Return every line on products: unseen shapes, then unseen accelerators."""
    found = shipped_unseen() if series is None else unseen_times(series)
    series = [one.series for one in found]
    lines: list[LeftOut] = []
    for dtype in sorted({one.series.dtype for one in found}):
        of_type = [one for one in found if one.series.dtype == dtype]
        for kernel, rows in _ranges(dtype):
            for method in METHODS:
                lines += _pooled(of_type, kernel, dtype, method, rows)
    for one in found:
        for method in METHODS[1:]:
            device, dtype, library = one.series.key
            lines += _line([one], LARGE, dtype, method, _large, device=device, library=library)
    return lines + _accelerators_left_out(series)


LARGE = "gemm, all dimensions >= 512"
Pick = Callable[[Series], NDArray[np.bool_]]


def _large(series: Series) -> NDArray[np.bool_]:
    return series.large & ~series.dropped


def _ranges(dtype: str) -> Iterator[tuple[str, Pick]]:
    yield LARGE, _large
    yield LARGE + ", noisy rows too", lambda one: one.large
    yield "gemm, a side < 512", lambda one: ~one.large & ~one.dropped
    if dtype == _BY_DECADE:
        for decade in range(8, 14):
            name = f"gemm, all dimensions >= 512, 1e{decade:02d} FLOP"
            yield (
                name,
                lambda one, low=10.0**decade: (  # type: ignore[misc]
                    _large(one) & (one.flop >= low) & (one.flop < 10.0 * low)
                ),
            )


def _pooled(
    holdouts: Sequence[Unseen], kernel: str, dtype: str, method: str, rows: Pick
) -> list[LeftOut]:
    return _line(holdouts, kernel, dtype, method, rows)


def _line(
    holdouts: Sequence[Unseen],
    kernel: str,
    dtype: str,
    method: str,
    rows: Pick,
    *,
    device: str = "all",
    library: str = "all",
) -> list[LeftOut]:
    predicted = np.concatenate(
        [holdout.seconds[method][rows(holdout.series)] for holdout in holdouts]
    )
    measured = np.concatenate([one.series.rows["seconds"][rows(one.series)] for one in holdouts])
    if not len(measured):
        return []
    return [
        left_out(
            predicted,
            measured,
            kernel=kernel,
            device=device,
            library=library,
            dtype=dtype,
            method=method,
        )
    ]


# --- a device that was never timed -------------------------------------------------------


def _accelerators_left_out(series: Sequence[Series]) -> list[LeftOut]:
    """Predict cuBLAS on each device by what the other devices show and its own datasheet.

    Once as it is, once with one factor on the rate, as one timed training run or one large timed
    product would give it: the median over the device's large shapes.
    """
    lines = []
    chosen = [curve for curve in series if curve.library == "cublas"]
    for dtype in ("bf16", "fp8", "nvfp4"):
        ours = [one for one in chosen if one.dtype == dtype]
        fits = [(our, _whole_fit(our)) for our in ours]
        for method in ("one accelerator left out", "one accelerator left out, one factor"):
            pairs = []
            for one in ours if len(ours) > 1 else []:
                rest = [(x.accelerator, fit) for x, fit in fits if x.device != one.device]
                accelerator = one.accelerator
                values = typical_values(rest, accelerator.generation, stacked_memory(accelerator))
                predicted = gemm_model(values, one.rows, one.accelerator, dtype)[one.large]
                measured = one.rows["seconds"][one.large]
                if method.endswith("one factor"):
                    predicted = predicted * np.median(measured / predicted)
                pairs.append((predicted, measured))
                lines.append(
                    left_out(
                        predicted,
                        measured,
                        kernel=LARGE,
                        device=one.device,
                        library="cublas",
                        dtype=dtype,
                        method=method,
                    )
                )
            if pairs:
                both = [np.concatenate(column) for column in zip(*pairs, strict=True)]
                lines.append(
                    left_out(
                        *both,
                        kernel=LARGE,
                        device="all",
                        library="cublas",
                        dtype=dtype,
                        method=method,
                    )
                )
    return lines


def _whole_fit(series: Series) -> dict[str, float]:
    return fit_parameters(
        pick(series.rows, series.used),
        series.accelerator,
        dtype=series.dtype,
        library=series.library,
    )
