"""Layouts of a plan played on discrete events, and ranked again."""

import tracemalloc

import numpy as np
import pytest

from simulator.api import plan
from simulator.planner.plan import Plan
from simulator.planner.simulated import played, refine

COUNT = 6


@pytest.fixture(scope="module")
def before() -> Plan:
    return plan(model="llama-3.1-8b", cluster="dgx-h100", gpus=32, global_batch=64, keep=16)


@pytest.fixture(scope="module")
def after(before: Plan) -> Plan:
    return refine(before, COUNT)


def test_the_first_layouts_are_ranked_by_events(before: Plan, after: Plan) -> None:
    assert after.refined is not None
    assert sorted(after.refined.places.tolist()) == list(range(COUNT))
    assert (np.diff(after.estimate.step_time_s[:COUNT]) >= 0.0).all()
    for i, place in enumerate(after.refined.places.tolist()):
        assert after.estimate.layouts.row(i) == before.estimate.layouts.row(place)
        assert after.refined.closed_form_s[i] == before.estimate.step_time_s[place]
        assert after.estimate.step_time_s[i] == after.refined.steps[i].step_time_s


def test_terms_still_add_up(after: Plan) -> None:
    total = sum(after.estimate.terms_s.values())
    np.testing.assert_allclose(total, after.estimate.step_time_s, rtol=1e-9)


def test_the_others_stay_as_they_were(before: Plan, after: Plan) -> None:
    rest = slice(COUNT, None)
    np.testing.assert_array_equal(
        after.estimate.step_time_s[rest], before.estimate.step_time_s[rest]
    )
    np.testing.assert_array_equal(
        np.sort(after.estimate.memory_total_bytes), np.sort(before.estimate.memory_total_bytes)
    )


def test_days_and_money_follow_the_played_time(after: Plan) -> None:
    tokens = after.scenario.workload.recipe.tokens_per_step / after.estimate.step_time_s
    np.testing.assert_allclose(after.outcome.tokens_per_s, tokens)


def test_more_than_there_are_is_all_of_them(before: Plan) -> None:
    few = refine(plan(model="gpt2-small", cluster="dgx-h100", gpus=1, global_batch=2), 10_000)
    assert few.refined is not None and len(few.refined.steps) == len(few.estimate)


def test_a_step_that_was_played_is_not_played_again(after: Plan) -> None:
    assert after.refined is not None
    assert played(after, 0) is after.refined.steps[0]


def test_numbers_are_kept_and_timelines_played_again() -> None:
    """Thousands of layouts fit into memory: a tenth of what their played steps hold stays."""
    before = plan(model="llama-3.1-8b", cluster="dgx-h100", gpus=32, global_batch=1024, pp=8, tp=1)
    refine(before, 4)  # code that is loaded and runs that are remembered, once
    tracemalloc.start()
    steps = [played(before, i) for i in range(4)]
    whole = tracemalloc.get_traced_memory()[0]
    found = refine(before, 4).refined
    numbers = tracemalloc.get_traced_memory()[0] - whole
    tracemalloc.stop()
    assert found is not None
    assert numbers < 0.1 * whole
    for step, place in zip(found.steps, found.places.tolist(), strict=True):
        assert step.timeline.end_s.tolist() == steps[place].timeline.end_s.tolist()
        assert step.memory.peak(0) == steps[place].memory.peak(0)
