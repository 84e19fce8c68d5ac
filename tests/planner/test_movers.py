"""What moves the money of a plan against predictions of the same layout with that thing changed."""

import math
from dataclasses import replace

import pytest

from simulator.files import Figure
from simulator.planner.movers import _price, movers
from simulator.planner.plan import plan
from simulator.planner.prediction import predict
from simulator.scenario import make_scenario

LAYOUT = {"tp": 1, "dp": 1024, "micro_batch": 1, "sharding": "zero1", "recompute": "none",
          "shard_group": 128}  # fmt: skip


def scenario(rate_factor=1.0):
    return make_scenario(
        {
            "model": {"name": "llama-3.2-1b"},
            "training": {"sequence_length": 4096, "global_batch": 1024, "tokens": 1e13},
            "cluster": {"name": "dgx-h100", "gpus": 1024, "software": "megatron-core"},
            "economics": {"usd_per_gpu_hour": 2.0},
            "run": {"rate_factor": rate_factor},
            "layout": LAYOUT,
        },
        where="run.toml",
    )


@pytest.fixture(scope="module")
def planned():
    answer = plan(scenario())
    return answer, {mover.name: mover for mover in movers(answer, ())}


def test_failures_cost_what_a_run_with_three_times_as_many_costs_more(planned):
    answer, listed = planned
    often = predict(scenario(rate_factor=3.0)).outcome
    low, high = listed["failures"].usd
    assert (low, high) == (0.0, pytest.approx(often.usd[0] - answer.outcome.usd[0]))
    assert listed["failures"].days == (0.0, pytest.approx(often.days[0] - answer.outcome.days[0]))


def test_the_error_of_the_step_moves_days_by_its_share(planned):
    answer, listed = planned
    fast, slow = answer.interval_s
    low, high = listed["error of the step time"].days
    days = float(answer.outcome.days[0])
    assert low == pytest.approx(days * (fast / answer.step_time_s - 1.0))
    assert high == pytest.approx(days * (slow / answer.step_time_s - 1.0))


def test_the_price_of_an_hour_moves_the_money_that_hours_cost(planned):
    """P10 and P90 of a price of which nobody is sure by a fifth: 2.00 USD, 1.55 to 2.58."""
    answer, _ = planned
    price = answer.outcome.price
    rate = Figure(2.0, "assumed", "by hand", spread=0.2)
    outcome = replace(answer.outcome, price=replace(price, usd_per_gpu_hour=rate))
    unsure = replace(answer, outcome=outcome)
    paid = 2.0 * float(outcome.gpu_hours[0])
    usd = paid + 1_000.0  # electricity and the like, which the price does not move
    (mover,) = _price(unsure, usd)
    low, high = (paid * (math.exp(sign * 1.2815516 * 0.2) - 1.0) for sign in (-1, 1))
    assert mover.usd == pytest.approx((low, high))
    assert mover.days == (0.0, 0.0)
    assert mover.change == "1.55 to 2.58 USD (P10 to P90)"
    assert _price(unsure, None) == _price(answer, usd) == []
