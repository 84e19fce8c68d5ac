"""Answers of which none is better in everything: the Pareto front.

An answer is dropped if another one is at least as good in every objective and better in one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats

OBJECTIVES = ("time", "money", "memory headroom", "energy")
"""What answers are compared by; less is better but for headroom, of which more is."""

_PIECE = 256


def front(values: Floats) -> NDArray[np.bool_]:
    """Say which rows no other row dominates.

    Parameters
    ----------
    values : ndarray, shape (answers, objectives)
        Less is better; rows with NaN are not on the front and dominate nothing.

    Returns
    -------
    ndarray of bool, shape (answers,)
        Equal rows are all on it or all off it.

    Examples
    --------
    Fast and dear, slow and cheap, slow and dear, and the first once more:

    >>> front(np.array([[1.0, 9.0], [5.0, 2.0], [5.0, 9.0], [1.0, 9.0]])).tolist()
    [True, True, False, True]
    """
    values = np.asarray(values, dtype=float)
    known = np.asarray(~np.isnan(values).any(axis=1))
    kept = known.copy()
    for start in range(0, len(values), _PIECE):
        rows = values[start : start + _PIECE, None, :]
        others = values[None, known, :]
        pairs = rows.shape[0], others.shape[1]
        no_worse, better = np.full(pairs, True), np.full(pairs, False)
        for k in range(values.shape[1]):  # not reduced over the few objectives: that is slow
            no_worse &= others[..., k] <= rows[..., k]
            better |= others[..., k] < rows[..., k]
        kept[start : start + _PIECE] &= ~(no_worse & better).any(axis=1)
    return kept
