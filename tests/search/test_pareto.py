"""The Pareto front against its definition, row by row."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simulator.planner.plan import front, plan
from simulator.scenario import make_scenario

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


def test_the_front_of_a_plan_has_the_fastest_and_the_emptiest() -> None:
    document = {
        "model": {"name": "llama-3.2-1b"},
        "training": {"sequence_length": 4096, "global_batch": 64, "tokens": 1e10},
        "cluster": {"name": "dgx-h100", "gpus": 8},
        "layout": {"pp": 1, "cp": 1},
    }
    found = plan(make_scenario(document))
    places, estimate = found.pareto, found.estimate
    needs = estimate.memory_total_bytes
    assert estimate.step_time_s[places[0]] == estimate.step_time_s.min()
    assert needs[places].min() == needs.min()
    assert (np.diff(estimate.step_time_s[places]) >= 0).all()
    # rented: money follows time, so what is slower has less memory in use or needs less energy
    for i, j in pairwise(places):
        assert needs[j] < needs[i] or found.outcome.kwh[j] < found.outcome.kwh[places].max()
