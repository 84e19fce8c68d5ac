"""What arrays hold: one name for each width; and how rows of a table are read by their keys.

Tables of layouts have few columns (distinct ranks, parts of the model) and many rows. Their columns
lie one after the other in memory, so that a loop over a column runs along all layouts: sums over
parts and ranks take a third of the time that they take where rows lie one after the other.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Int32s = NDArray[np.int32]
"""Tasks and edges of large graphs: half the memory of 64 bit."""


def by_key(table: NDArray[Any], keys: NDArray[Any], axis: int = 0) -> NDArray[Any]:
    """Rows of a table along an axis, column after column in memory.

    A larger table that lies otherwise is read row after row: few of its rows are asked for.

    Examples
    --------
    >>> by_key(np.array([[1, 2], [3, 4]]), np.array([1, 0, 1])).tolist()
    [[3, 4], [1, 2], [3, 4]]
    """
    columns = table.swapaxes(axis, -1)
    if len(keys) < table.shape[axis] and not columns.flags.c_contiguous:
        return table.take(keys, axis)
    return columns.take(keys, -1).swapaxes(axis, -1)


def of_column(table: NDArray[Any], column: NDArray[Any]) -> NDArray[Any]:
    """One column of each row of a table of shape (rows, columns) or (rows, columns, parts).

    Examples
    --------
    >>> of_column(np.array([[1, 2], [3, 4]]), np.array([1, 0])).tolist()
    [2, 3]
    """
    rows = len(column)
    if rows == 1:
        return np.asarray(table[:, column[0]])
    flat = table.T.reshape(*table.shape[:1:-1], table.shape[1] * rows)
    return np.asarray(flat.take(column * rows + np.arange(rows), -1).T)


def over_columns(table: NDArray[Any]) -> NDArray[Any]:
    """Sum over the columns of a table, (rows, columns, ...), from the first to the last."""
    total = table[:, 0]
    for column in range(1, table.shape[1]):
        total = total + table[:, column]
    return total


def stacked(tables: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Tables of one shape (rows, columns) as one, column after column in memory."""
    return np.array([table.T for table in tables]).swapaxes(1, 2)
