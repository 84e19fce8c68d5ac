"""The size for a date or a budget: against every size one by one, and monotone in what is asked."""

from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

import pytest

from simulator.economics.scaling_law import load_law
from simulator.errors import InputError
from simulator.questions.compare.gpu_counts import batch_divides
from simulator.questions.compare.offer import Asked, Offer
from simulator.questions.compare.offers import offer_of
from simulator.questions.size.answer import Sized, size_run
from simulator.scenario import Scenario, make_scenario

LARGEST = 96
LAYOUT = {"tp": 1, "pp": 1, "cp": 1, "micro_batch": 1, "sharding": "zero1", "recompute": "none"}


@lru_cache
def scenario(**goal: Any) -> Scenario:
    return make_scenario(
        {
            "model": {"name": "llama-3.2-1b"},
            "training": {"sequence_length": 4096, "global_batch": 480, "tokens": 1e11},
            "cluster": {"name": "dgx-h100", "gpus": 8},
            "layout": LAYOUT,
            "goal": goal,
        }
    )


@lru_cache
def every() -> tuple[Offer, ...]:
    """All whole servers that the batch divides over, and powers of two, one by one."""
    sizes = [
        size
        for size in (*range(1, 8), *range(8, LARGEST + 1, 8))
        if batch_divides(scenario().workload, size, 16) or size & (size - 1) == 0
    ]
    return tuple(searched("dgx-h100", size) for size in sizes)


@cache
def searched(name: str, size: int) -> Offer:
    return offer_of(scenario(), name, size, Asked())


@pytest.fixture(autouse=True)
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every size is searched once: what is asked changes the choice, not the search."""

    def known(_: Scenario, name: str, size: int, __: Asked) -> Offer:
        return searched(name, size)

    monkeypatch.setattr("simulator.questions.size.answer.offer_of", known)


def sized(**asked: Any) -> Sized:
    return size_run(scenario(), largest=LARGEST, jobs=1, **asked)


@pytest.mark.parametrize("days", [0.1, 1.3, 2.6, 5.0, 10.5, 40.0])
def test_the_fewest_is_the_fewest_of_all(days: float) -> None:
    found = sized(deadline_days=days)
    in_time = [r for r in every() if r.planned_days and r.planned_days.p90 <= days]
    if not in_time:
        assert found.answer is None and found.nearest is not None
        return
    assert found.answer is not None
    assert found.answer.gpus == in_time[0].gpus
    assert found.answer.days == in_time[0].days


def test_the_fewest_may_be_a_size_that_the_batch_divides_over_with_uneven_stages_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """32 GPUs were called the fewest for a date that 24, with three stages, keep as well."""
    free = replace(scenario(), pinned={})
    recipe = replace(free.workload.recipe, global_batch=512)
    free = replace(free, workload=replace(free.workload, recipe=recipe))
    monkeypatch.setattr("simulator.questions.size.answer.offer_of", offer_of)
    assert not batch_divides(free.workload, 24, 16)
    planned = offer_of(free, "dgx-h100", 24, Asked()).planned_days
    assert planned is not None
    found = size_run(free, deadline_days=planned.p90 * 1.001, largest=32, jobs=1).answer
    assert found is not None and found.gpus == 24


def test_a_later_date_never_asks_for_more() -> None:
    sizes = [sized(deadline_days=days).answer for days in (1.0, 1.5, 3.0, 5.0, 20.0)]
    gpus = [1 << 20 if answer is None else answer.gpus for answer in sizes]
    assert gpus == sorted(gpus, reverse=True) and gpus[-1] < gpus[0]


def test_more_money_never_ends_later() -> None:
    ends = []
    for usd in (1e3, 5e3, 8e3, 1.2e4, 1e5):
        answer = sized(budget_usd=usd).answer
        planned = None if answer is None else answer.planned_days
        ends.append(1e9 if planned is None else planned.p90)
    assert ends == sorted(ends, reverse=True) and ends[0] == 1e9 and ends[-1] < 1e9


def test_both_limits_hold() -> None:
    found = sized(deadline_days=4.0, budget_usd=1e6).answer
    assert found is not None
    assert found.planned_days is not None and found.planned_usd is not None
    assert found.planned_days.p90 <= 4.0 and found.planned_usd.p90 <= 1e6
    assert sized(deadline_days=4.0, budget_usd=1.0).answer is None


def test_what_the_limits_buy_by_hand() -> None:
    found = sized(gpus=16, deadline_days=30.0, confidence=0.9)
    assert found.answer is not None and found.compute is not None
    row, bought = found.answer, found.compute
    assert row.planned_days is not None and bought.binding == "deadline"
    # the run is planned to take planned_days.p90; 30 days hold that many of its 1e11 tokens
    assert bought.tokens == pytest.approx(1e11 * 30.0 / row.planned_days.p90)
    assert bought.days == pytest.approx(30.0)
    assert bought.optimum == load_law("hoffmann-2022").optimum(bought.flop)
    # half the money binds before the time does
    assert row.planned_usd is not None
    limits = {"deadline_days": row.planned_days.p90, "budget_usd": row.planned_usd.p90 / 2}
    both = sized(gpus=16, **limits)
    assert both.answer is None and both.compute is not None
    assert both.compute.binding == "budget" and both.compute.tokens == pytest.approx(0.5e11)


def test_the_goal_of_the_scenario_counts() -> None:
    goal = replace(scenario(), goal=replace(scenario().goal, deadline_days=4.0))
    found = size_run(goal, largest=LARGEST, jobs=1)
    again = sized(deadline_days=4.0)
    assert found.answer == again.answer


def test_a_budget_that_is_asked_for_is_the_question_and_the_goal_stays_a_limit() -> None:
    """The soonest end for the money, though the scenario asks for the fewest in time."""
    goal = replace(scenario(), goal=replace(scenario().goal, deadline_days=40.0))
    found = size_run(goal, budget_usd=1e6, largest=LARGEST, jobs=1)
    alone = sized(budget_usd=1e6)
    assert found.question == alone.question == "soonest"
    assert found.answer is not None and alone.answer is not None
    assert found.answer.gpus == alone.answer.gpus
    assert found.answer.gpus > sized(deadline_days=40.0, budget_usd=1e6).answer.gpus  # type: ignore[union-attr]
    late = replace(scenario(), goal=replace(scenario().goal, deadline_days=0.01))
    assert size_run(late, budget_usd=1e6, largest=LARGEST, jobs=1).answer is None


def test_wrong_input_is_named_all_at_once() -> None:
    bare = replace(
        scenario(),
        workload=replace(
            scenario().workload, recipe=replace(scenario().workload.recipe, tokens=None)
        ),
    )
    with pytest.raises(InputError) as error:
        size_run(bare, confidence=0.0, prices={"dgx-h101": 1.0})
    text = "\n".join(error.value.problems)
    assert "a deadline, a budget or a number of GPUs must be given" in text
    assert "training.tokens: needed" in text and "confidence: must be between 0 and 1" in text
    assert "did you mean 'dgx-h100'" in text


def test_a_budget_needs_a_price() -> None:
    free = make_scenario({**scenario().document, "cluster": {"name": "mi325x-8", "gpus": 8}})
    with pytest.raises(InputError, match="needs a price, and mi325x-8 has none: give --price USD"):
        size_run(free, budget_usd=1e6)
