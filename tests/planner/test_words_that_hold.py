"""What is said of a batch holds when it is tried; ends of movers by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from math import gcd

import pytest

from simulator.planner.movers import Mover, _scaled, _side, _size, _usd_words
from simulator.planner.prediction import predict
from simulator.planner.remedies import batch_binds
from simulator.planner.simulated import predict_played
from simulator.scenario import Scenario, make_scenario


@pytest.fixture(scope="module")
def made() -> Scenario:
    return make_scenario(
        {
            "model": {"name": "llama-3.1-8b"},
            "training": {"sequence_length": 8192, "global_batch": 64},
            "cluster": {"name": "dgx-h100", "gpus": 64},
        }
    )


def odd(number: int) -> int:
    while number % 2 == 0:
        number //= 2
    return number


def words(made: Scenario, gpus: int, batch: int) -> str:
    recipe = replace(made.workload.recipe, global_batch=batch)
    workload = replace(made.workload, recipe=recipe)
    return batch_binds(replace(made, workload=workload, cluster=made.cluster.with_gpus(gpus)))


def test_batches_and_sizes_that_are_named_leave_the_degrees_free(made: Scenario) -> None:
    """Of 500 pairs: the odd factor that is forced is named, and each way out of it is one."""
    bound = 0
    for gpus, batch in product(
        (8, 24, 40, 64, 72, 96, 136, 200, 256, 384), (*range(1, 49), 61, 96)
    ):
        said = words(made, gpus, batch)
        replicas = gcd(gpus, batch)
        forced = gpus // replicas
        if odd(forced) > 1:
            bound += 1
            assert f"divide among at most {replicas} replica" in said
            assert f"on {gpus} GPUs, so that" in said
            assert f"is a multiple of {odd(forced)};" in said
            found = re.search(r"; ([\d,]+) sequences(?:, or ([\d,]+) GPUs,)? leave them", said)
            assert found is not None
            near = int(found[1].replace(",", ""))
            assert near % gpus == 0 and abs(near - batch) <= max(gpus / 2, gpus - batch)
            if found[2]:
                fewer = int(found[2].replace(",", ""))
                assert fewer < gpus and fewer % 8 == 0 and odd(fewer // gcd(fewer, batch)) == 1
                between = range(fewer + 8, gpus, 8)
                assert all(odd(n // gcd(n, batch)) > 1 for n in between), "the nearest is named"
            else:
                assert all(odd(n // gcd(n, batch)) > 1 for n in range(8, gpus, 8))
        elif said:
            assert f"is a multiple of {forced}; " in said and (forced > 8 or replicas == 1)
            below, above = (int(n) for n in re.findall(r"; (\d+) or (\d+) sequences", said)[0])
            assert below <= batch < above and gcd(gpus, above) > replicas
        else:
            most = max(d for d in range(1, gpus + 1) if gpus % d == 0 and d <= batch)
            assert replicas == most or (forced <= 8 and replicas > 1)
    assert bound > 200


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        ((-15e3, 16e3), "-15.0 / +16.0 k"), ((-1.5e6, 16e3), "-1.50 M / +16.0 k"),
        ((0.0, 700.0), "+700"), ((-700.0, 0.0), "-700"), ((-2e9, -1e9), "-2.00 / -1.00 bn"),
    ],
)  # fmt: skip
def test_money_of_a_mover(pair: tuple[float, float], said: str) -> None:
    assert _usd_words(pair) == said


@pytest.mark.parametrize(
    ("days", "said"),
    [
        ((-9.94, 10.0), ["-9.9 / +10 days"]), ((0.0, 0.25), ["+0.2 days"]), ((0.0, 0.0), []),
        ((-1234.0, 9.96), ["-1,234 / +10.0 days"]),
    ],
)  # fmt: skip
def test_days_of_a_mover(days: tuple[float, float], said: list[str]) -> None:
    mover = Mover(name="", change="", days=days, usd=(-3e3, 5e3))
    assert mover.words(money=False) == said
    assert mover.words(money=True) == ["-3.00 / +5.00 k", *said]
    assert replace(mover, usd=None).words(money=True) == said


def test_movers_by_their_size() -> None:
    mover = _scaled("x", "y", (-0.25, 0.5), 40.0, 600.0)
    assert (mover.days, mover.usd) == ((-10.0, 20.0), (-150.0, 300.0))
    assert _size(mover) == 300.0
    plain = _scaled("x", "y", (-0.75, 0.5), 40.0, None)
    assert plain.usd is None and _size(plain) == 30.0
    assert (_side(-3.0), _side(0.0), _side(4.0)) == ((-3.0, 0.0), (0.0, 0.0), (0.0, 4.0))


def test_a_step_is_played_with_the_layout_that_is_stated_unless_one_is_searched() -> None:
    """`predict` says what the defaults of a scenario without a layout are."""
    small = make_scenario(
        {
            "model": {"name": "llama-3.1-8b"},
            "training": {"sequence_length": 4096, "global_batch": 64},
            "cluster": {"name": "dgx-h100", "gpus": 16},
        }
    )
    stated, best = predict_played(small, search=False), predict_played(small)
    assert stated.estimate.layouts.describe() == predict(small).estimate.layouts.describe()
    assert best.step_time_s < stated.step_time_s
