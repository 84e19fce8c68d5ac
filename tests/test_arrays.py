"""Rows of tables by their keys, a column of each row, sums over columns: against plain indexing."""

from functools import reduce
from operator import add

import numpy as np
import pytest

from simulator.arrays import by_key, of_column, over_columns, stacked

RNG = np.random.default_rng(7)


@pytest.mark.parametrize("keys", [1, 3, 40])
@pytest.mark.parametrize(
    ("shape", "axis"), [((5,), 0), ((5, 2), 0), ((5, 4, 3), 0), ((2, 5, 3), 1)]
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_rows_by_key_are_those_of_the_table(
    shape: tuple[int, ...], axis: int, keys: int, order: str
) -> None:
    table = np.array(RNG.random(shape), order=order)  # type: ignore[call-overload]
    key = RNG.integers(0, 5, keys)
    assert np.array_equal(by_key(table, key, axis), table[:, key] if axis else table[key])


@pytest.mark.parametrize("rows", [1, 2, 9])
@pytest.mark.parametrize("parts", [(), (3,)])
def test_a_column_of_each_row(rows: int, parts: tuple[int, ...]) -> None:
    table = RNG.random((rows, 4, *parts))
    column = RNG.integers(0, 4, rows)
    expected = np.stack([table[row, column[row]] for row in range(rows)])
    assert np.array_equal(of_column(table, column), expected)


@pytest.mark.parametrize("rows", [1, 6])
def test_sums_over_columns_run_in_their_order_however_a_table_lies(rows: int) -> None:
    """Of twenty columns numpy adds up eight at a time where they lie one after the other."""
    table = RNG.random((rows, 20))
    expected = [reduce(add, row.tolist()) for row in table]
    for lying in (table, np.asfortranarray(table), stacked([table])[0]):
        assert over_columns(lying).tolist() == expected
