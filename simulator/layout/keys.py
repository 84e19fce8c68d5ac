"""Unique keys: many layouts share few distinct operators, so price each once and gather back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.records import dataclass

_DENSE_LIMIT, _DENSE_TIMES = 1 << 12, 16
"""Up to this many possible keys, or so many times the rows, a lookup table beats sorting."""

_FEW = 64
"""Up to so many rows are told apart as tuples."""


@dataclass(frozen=True, slots=True)
class UniqueRows:
    """Distinct rows of a set of columns."""

    first: NDArray[np.intp]
    """Index of one row for each distinct key."""
    inverse: NDArray[np.intp]
    """For every row, the position of its key in `first`."""


def distinct_codes(column: NDArray[Any]) -> list[int]:
    """List which small numbers from 0 a column has, in order.

    ``np.unique`` loads all of ``numpy.ma`` for it, a fiftieth of a prediction.

    Examples
    --------
    >>> distinct_codes(np.array([3, 0, 3]))
    [0, 3]
    """
    codes: list[int] = np.flatnonzero(np.bincount(column)).tolist()
    return codes


def unique_rows(*columns: NDArray[Any]) -> UniqueRows:
    """Find the distinct rows of non-negative integer columns, in linear time where possible.

    Examples
    --------
    >>> keys = unique_rows(np.array([4, 8, 4]), np.array([1, 1, 1]))
    >>> keys.first.tolist(), keys.inverse.tolist()
    ([0, 1], [0, 1, 0])
    """
    code, size = np.zeros(len(columns[0]), dtype=np.int64), 1
    if len(code) == 1:
        return UniqueRows(code, code)
    if 0 < len(code) <= _FEW:
        return _of_few(list(zip(*(column.tolist() for column in columns), strict=True)))
    for column in columns:
        if column.strides == (0,):  # one value for all rows
            continue
        compact, count = _compact(column)
        if count == 1:
            continue
        if size * count > 2**62:
            code, size = _compact(code)
        code, size = code * count + compact, size * count
    inverse, count = _compact(code, size)
    first = np.empty(count, dtype=np.intp)
    first[inverse[::-1]] = np.arange(len(code) - 1, -1, -1)
    return UniqueRows(first, inverse)


def _of_few(rows: list[tuple[int, ...]]) -> UniqueRows:
    """The same of a few rows, in the same order: arrays take ten times as long."""
    first = dict(zip(reversed(rows), range(len(rows) - 1, -1, -1), strict=True))
    distinct = sorted(first)
    rank = dict(zip(distinct, range(len(distinct)), strict=True))
    return UniqueRows(
        np.array([first[row] for row in distinct]), np.array([rank[row] for row in rows])
    )


def _compact(column: NDArray[Any], size: int | None = None) -> tuple[NDArray[Any], int]:
    """Replace values by their rank among the distinct values; return them and their number."""
    if len(column) == 0:
        return column.astype(np.int64), 0
    least = int(column.min())
    if size is None:
        size = int(column.max()) + 1
        if size == least + 1:
            return column, 1  # one value, whose rank nobody asks for
    if size <= max(_DENSE_LIMIT, _DENSE_TIMES * len(column)) and least >= 0:
        present = np.zeros(size, dtype=bool)
        present[column] = True
        rank = np.cumsum(present) - 1
        return rank[column], int(rank[-1]) + 1
    values, inverse = np.unique(column, return_inverse=True)
    return inverse, len(values)


_SLOT_BITS, _SPARSE_BITS = 18, 6
"""Most bits of a slot's number, and by how many slots outnumber rows where they are few."""
_MULTIPLIERS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)
"""Odd numbers that scatter bits well (golden ratio, and two of xxHash's primes)."""


def distinct_rows(*columns: NDArray[Any]) -> UniqueRows:
    """Find the distinct rows of columns of any numbers in which few rows differ, without sorting.

    Rows fall into slots by a hash of their bits, and each slot speaks for the row that was written
    last; of rows of which another one speaks another hash is tried, and at last a sort.

    Examples
    --------
    >>> rows = distinct_rows(np.array([0.5, 0.25, 0.5]), np.array([1, 1, 1]))
    >>> bool(rows.inverse[0] == rows.inverse[2] != rows.inverse[1]), len(rows.first)
    (True, 2)
    """
    wide = [np.ascontiguousarray(column, dtype=np.float64) for column in columns]
    code = np.zeros(len(wide[0]), dtype=np.uint64)
    for column in wide:
        code = (code ^ column.view(np.uint64)) * np.uint64(_MULTIPLIERS[0])
        code ^= code >> np.uint64(29)
    left = speaker = np.arange(len(code))
    bits = min(len(code).bit_length() + _SPARSE_BITS, _SLOT_BITS)
    for multiplier in _MULTIPLIERS:
        slot = ((code[left] * np.uint64(multiplier)) >> np.uint64(64 - bits)).astype(np.intp)
        table = np.empty(1 << bits, dtype=np.intp)
        table[slot] = left
        spoken = table[slot]
        same = np.all([column[spoken] == column[left] for column in wide], axis=0)
        speaker[left[same]] = spoken[same]
        left = left[~same]
    if len(left):
        rows = np.stack([column[left] for column in wide])
        _, first, inverse = np.unique(rows, axis=1, return_index=True, return_inverse=True)
        speaker[left] = left[first[inverse.reshape(-1)]]
    present = np.zeros(len(code), dtype=bool)
    present[speaker] = True
    return UniqueRows(np.flatnonzero(present), (np.cumsum(present) - 1)[speaker])
