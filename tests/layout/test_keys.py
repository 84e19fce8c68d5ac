"""Unique keys against ``np.unique`` over rows."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from simulator.layout.keys import distinct_rows, unique_rows

SMALL = st.integers(min_value=0, max_value=5)
ANY = st.integers(min_value=0, max_value=2**40)


@st.composite
def tables(draw: st.DrawFn) -> list[NDArray[Any]]:
    """Up to five columns of equal length, narrow or up to 2**40 wide; few rows or many."""
    rows = draw(st.integers(min_value=1, max_value=60))
    kinds = draw(st.lists(st.sampled_from((SMALL, ANY)), min_size=1, max_size=5))
    times = draw(st.sampled_from((1, 80)))
    return [
        np.tile(np.array(draw(st.lists(kind, min_size=rows, max_size=rows)), dtype=np.int64), times)
        for kind in kinds
    ]


@given(tables())
@example([np.array([2**62, 0, 2**62]), np.array([0, 2**62, 0]), np.array([7, 7, 7])])
def test_as_many_keys_as_numpy_finds_and_every_row_finds_its_own(table: list[Any]) -> None:
    rows = np.stack(table, axis=1)
    keys = unique_rows(*table)
    assert len(keys.first) == len(np.unique(rows, axis=0))
    assert np.array_equal(rows[keys.first][keys.inverse], rows)


@given(tables())
def test_keys_stand_in_the_order_of_sorted_rows_and_point_at_the_first_of_each(
    table: list[Any],
) -> None:
    keys = unique_rows(*table)
    values, first, inverse = np.unique(
        np.stack(table, axis=1), axis=0, return_index=True, return_inverse=True
    )
    assert np.array_equal(np.stack(table, axis=1)[keys.first], values)
    assert keys.first.tolist() == first.tolist()
    assert keys.inverse.tolist() == inverse.ravel().tolist()


@given(st.integers(min_value=1, max_value=6))
def test_columns_too_wide_for_one_integer_stay_distinct(columns: int) -> None:
    # with 2**40 values each, two columns no longer fit 62 bits without compaction
    step = np.arange(500, dtype=np.int64) * (2**40 // 500)
    table = [np.roll(step, shift) for shift in range(columns)]
    assert len(unique_rows(*table).first) == 500


def test_small_integer_types_do_not_overflow() -> None:
    column = np.array([126, 127, 127, 0] * 25, dtype=np.int8)
    keys = unique_rows(column, column, column, column, column)
    assert keys.inverse.tolist() == [1, 2, 2, 0] * 25


def test_no_rows_have_no_keys() -> None:
    empty = np.array([], dtype=np.int64)
    keys = unique_rows(empty, empty)
    assert (len(keys.first), len(keys.inverse)) == (0, 0)


@pytest.mark.parametrize("distinct", [1, 300, 30_000])
def test_distinct_rows_of_numbers_are_found_whether_or_not_they_share_slots(distinct: int) -> None:
    draw = np.random.default_rng(0)
    values = draw.standard_normal(distinct)[draw.integers(distinct, size=50_000)]
    columns = values, values > 0.0
    keys = distinct_rows(*columns)
    assert len(keys.first) == len(np.unique(values))
    assert all(np.array_equal(x[keys.first][keys.inverse], x) for x in columns)


def test_columns_that_need_more_than_64_bits_together_are_told_apart() -> None:
    """Five of 16 bits: rows that differ in the first alone would be one where numbers wrap."""
    values = np.arange(2**16)
    rest = np.concatenate([values, values])
    first = np.concatenate([values, values[::-1]])
    found = unique_rows(first, rest, rest, rest, rest)
    assert len(found.first) == 2**17
    assert (found.first[found.inverse] == np.arange(2**17)).all()
