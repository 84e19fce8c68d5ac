"""Unique keys: many layouts share few distinct operators, so price each once and gather back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["UniqueRows", "unique_rows"]

_DENSE_LIMIT = 1 << 24
"""Up to this many possible keys a lookup table beats sorting."""


@dataclass(frozen=True, slots=True)
class UniqueRows:
    """Distinct rows of a set of columns."""

    first: NDArray[np.intp]
    """Index of one row for each distinct key."""
    inverse: NDArray[np.intp]
    """For every row, the position of its key in `first`."""


def unique_rows(*columns: NDArray[Any]) -> UniqueRows:
    """Find the distinct rows of non-negative integer columns, in linear time where possible.

    Examples
    --------
    >>> keys = unique_rows(np.array([4, 8, 4]), np.array([1, 1, 1]))
    >>> keys.first.tolist(), keys.inverse.tolist()
    ([0, 1], [0, 1, 0])
    """
    code, size = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        compact, count = _compact(column)
        if size * count > 2**62:
            code, size = _compact(code)
        code, size = code * count + compact, size * count
    inverse, count = _compact(code, size)
    first = np.empty(count, dtype=np.intp)
    first[inverse[::-1]] = np.arange(len(code) - 1, -1, -1)
    return UniqueRows(first, inverse)


def _compact(column: NDArray[Any], size: int | None = None) -> tuple[NDArray[Any], int]:
    """Replace values by their rank among the distinct values; return them and their number."""
    if len(column) == 0:
        return column.astype(np.int64), 0
    size = int(column.max()) + 1 if size is None else size
    if size <= max(_DENSE_LIMIT, 4 * len(column)) and int(column.min()) >= 0:
        present = np.zeros(size, dtype=bool)
        present[column] = True
        rank = np.cumsum(present) - 1
        return rank[column], int(rank[-1]) + 1
    values, inverse = np.unique(column, return_inverse=True)
    return inverse, len(values)
