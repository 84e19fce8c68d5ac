"""The Pareto front against its definition, row by row."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simulator.planner.pareto import front

ROWS = st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=1, max_size=30)


@given(rows=ROWS)
def test_front_is_what_nothing_dominates(rows: list[tuple[int, int, int]]) -> None:
    def dominated(row: tuple[int, ...]) -> bool:
        return any(
            all(a <= b for a, b in zip(other, row, strict=True)) and other != row for other in rows
        )

    assert front(np.array(rows, dtype=float)).tolist() == [not dominated(row) for row in rows]


def test_unknown_values_are_no_part_of_it() -> None:
    values = np.array([[np.nan, 0.0], [1.0, 1.0]])
    assert front(values).tolist() == [False, True]
