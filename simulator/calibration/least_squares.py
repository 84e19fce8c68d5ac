"""From measurements to profile figures: robust fits of the cost formulas, scored on unseen shapes.

Least squares on log times: a factor of two is as wrong on a 5 us call as on a 5 ms one. A soft
loss keeps a few odd measurements from bending the rest. A weak prior, worth about one row for
each parameter, holds each near what other devices show, so that parameters which the data cannot
tell apart stay plausible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.errors import InputError
from simulator.records import dataclass

Rows = dict[str, Floats]
"""Equal-length columns of a table of measurements; ``seconds`` is the measured one."""
Model = Callable[[Mapping[str, float], Rows], Floats]
"""Predicted seconds of rows from parameters."""

_SOFT_L1 = 0.05
"""Relative error beyond which a row weighs less."""
_FOLDS = 5
_MOST_ROWS = 600
_SEED = 20261121


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """What other devices show of one parameter: a value, a width, hard bounds."""

    value: float
    width: float
    """Standard deviation: of the logarithm, or of the value itself where `linear`."""
    low: float
    high: float
    linear: bool = False

    def encode(self, value: float) -> float:
        """Return the coordinate in which the fit moves."""
        return value if self.linear else float(np.log(value))

    def decode(self, coordinate: float) -> float:
        """Return the parameter at a coordinate of the fit."""
        return float(coordinate if self.linear else np.exp(coordinate))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Fitted parameters, and the errors on shapes that were left out of the fit."""

    values: dict[str, float]
    rows: int
    median_error: float
    """Median of |predicted / measured - 1| over the scored rows."""
    p90_error: float
    spread: float
    """Half the distance between the 16th and 84th percentile of log(predicted / measured)."""


def pick(rows: Rows, which: NDArray[Any]) -> Rows:
    """Return the rows at a boolean mask or at indices."""
    return {name: column[which] for name, column in rows.items()}


def fit_and_score(
    priors: Mapping[str, Prior], predict: Model, rows: Rows, scored: NDArray[np.bool_]
) -> Fit:
    """Fit all rows (at most 600), and score the rows in `scored`, each predicted unseen.

    Rows of one shape stay together: five fits leave out a fifth of the shapes each.

    Raises
    ------
    InputError
        If there are fewer than three rows for each parameter, or none to score.
    """
    least = 3 * len(priors)
    if len(rows["seconds"]) < least or not scored.any():
        raise InputError(
            f"fit: needs at least {least} rows for {len(priors)} parameters, some of them large "
            f"enough to score, got {len(rows['seconds'])} rows and {int(scored.sum())} to score"
        )
    if len(rows["seconds"]) > _MOST_ROWS:
        order = np.random.default_rng(_SEED).permutation(len(rows["seconds"]))[:_MOST_ROWS]
        rows, scored = pick(rows, order), scored[order]
    fold = _folds(rows)
    unseen_s = np.empty(len(fold))
    for number in np.unique(fold):
        out = fold == number
        values = fit_values(priors, predict, pick(rows, ~out))
        unseen_s[out] = predict(values, pick(rows, out))
    ratio = np.log(unseen_s / rows["seconds"])[scored]
    error = np.abs(np.expm1(ratio))
    low, high = np.percentile(ratio, [16, 84])
    return Fit(
        values=fit_values(priors, predict, rows),
        rows=len(fold),
        median_error=float(np.median(error)),
        p90_error=float(np.percentile(error, 90)),
        spread=float((high - low) / 2.0),
    )


def _folds(rows: Rows) -> NDArray[np.intp]:
    """Deal the distinct shapes of the rows, in a fixed random order, to the folds."""
    columns = np.stack([column for name, column in rows.items() if name != "seconds"])
    _, shape = np.unique(columns, axis=1, return_inverse=True)
    dealt = np.random.default_rng(_SEED).permutation(int(shape.max()) + 1) % _FOLDS
    return np.asarray(dealt[shape], dtype=np.intp)


def fit_values(priors: Mapping[str, Prior], predict: Model, rows: Rows) -> dict[str, float]:
    """Fit all rows, and return the parameters alone."""
    return fit_times(
        priors,
        lambda values: predict(values, rows),
        rows["seconds"],
        prior_weight=_SOFT_L1,
        diff_step=1e-3,
    )


def fit_times(
    priors: Mapping[str, Prior],
    seconds: Callable[[Mapping[str, float]], Floats],
    measured_s: Floats,
    *,
    prior_weight: float = 0.1,
    diff_step: float = 1e-4,
    most_steps: int = 60,
) -> dict[str, float]:
    """Bounded least squares on log times, in the coordinates of the priors.

    Parameters
    ----------
    seconds : Callable
        Predicted times of all rows from parameters; those come in the order of `priors`.
    prior_weight : float
        Relative error that a parameter one width away from its prior counts as.
    diff_step : float
        Relative step of the numeric derivatives.
    """
    from scipy.optimize import least_squares  # type: ignore[import-untyped, unused-ignore]

    names, known = list(priors), list(priors.values())
    centre = np.array([prior.encode(prior.value) for prior in known])
    width = np.array([prior.width for prior in known])
    ends = [np.array([p.encode(getattr(p, end)) for p in known]) for end in ("low", "high")]
    measured = np.log(measured_s)

    def decode(at: Floats) -> dict[str, float]:
        return {
            name: prior.decode(x) for name, prior, x in zip(names, known, at.tolist(), strict=True)
        }

    def residuals(at: Floats) -> Floats:
        data = np.log(seconds(decode(at))) - measured
        return np.concatenate([data, prior_weight * (at - centre) / width])

    found = least_squares(
        residuals,
        centre,
        bounds=ends,
        loss="soft_l1",
        f_scale=_SOFT_L1,
        x_scale=width,
        diff_step=diff_step,
        max_nfev=most_steps,
    )
    return decode(found.x)
