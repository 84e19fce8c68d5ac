"""Curves of a run's goodput: the plan is a point of each, and the best of those it chose."""

from dataclasses import replace

import numpy as np
import pytest

from simulator.planner.prediction import Prediction, predict
from simulator.planner.simulated_run import RunCurves, SpareChoice, run_curves
from simulator.scenario import make_scenario


@pytest.fixture(scope="module")
def prediction() -> Prediction:
    document = {
        "model": {"name": "llama-3.1-8b"},
        "training": {"sequence_length": 2048, "global_batch": 4096, "tokens": 1e13},
        "cluster": {"name": "dgx-h100", "gpus": 1024},
        "run": {"spares": {"hot": 3, "pool": 6}},
        "economics": {"usd_per_gpu_hour": 2.0},
    }
    return predict(make_scenario(document), tp=2)


@pytest.fixture(scope="module")
def curves(prediction: Prediction) -> RunCurves:
    return run_curves(prediction)


def test_the_plan_is_a_point_of_every_curve(prediction: Prediction, curves: RunCurves) -> None:
    real, outcome = prediction.outcome.real, prediction.outcome
    assert real is not None
    goodput = float(real.goodput[0])
    assert curves.by_gpus[list(curves.gpus).index(1024)] == pytest.approx(goodput, rel=1e-9)
    at = int(np.flatnonzero(curves.interval_s == float(real.interval_s[0]))[0])
    assert curves.by_interval[at] == pytest.approx(goodput, rel=1e-9)
    planned = next(choice for choice in curves.spares if choice.hot == 3)
    assert planned.goodput == pytest.approx(goodput, rel=1e-9)
    assert planned.gpu_hours == pytest.approx(float(outcome.gpu_hours[0]), rel=1e-9)
    assert planned.usd == pytest.approx(2.0 * planned.gpu_hours, rel=1e-12)


def test_more_gpus_fail_more_and_no_other_interval_is_better(curves: RunCurves) -> None:
    """64 to 131,072 GPUs, doubled; a twentieth of the chosen interval to twenty times it."""
    assert curves.gpus.tolist() == [64.0 * 2**k for k in range(12)]
    assert (np.diff(curves.by_gpus) < 0.0).all()
    best = curves.interval_s[curves.by_interval.argmax()]
    ends = curves.interval_s[[0, -1]] / best
    assert ends == pytest.approx([0.05, 20.0])
    rising = np.diff(curves.by_interval) > 0.0
    assert rising.tolist() == sorted(rising.tolist(), reverse=True)  # one peak


def test_paid_hours_of_spares_by_hand(prediction: Prediction, curves: RunCurves) -> None:
    """Ideal days over goodput, of 1,024 GPUs and eight for every server that waits."""
    ideal_hours = 24 * float(prediction.outcome.days_ideal[0])
    for choice in curves.spares:
        paid = ideal_hours / choice.goodput * (1024 + 8 * choice.hot)
        assert choice.gpu_hours == pytest.approx(paid, rel=1e-12)
    hot = [choice.hot for choice in curves.spares]
    # 128 servers: a tenth of them is 13, four times that are tried at most
    assert (hot[0], hot[-1]) == (0, 52) and hot == sorted({*hot})
    assert (np.diff([choice.goodput for choice in curves.spares]) >= -1e-12).all()


def test_the_cheapest_takes_fewest_paid_hours(curves: RunCurves) -> None:
    few, many = (SpareChoice(hot=n, goodput=0.9, gpu_hours=h, usd=h) for n, h in ((4, 7), (1, 9)))
    assert replace(curves, spares=(many, few, many)).cheapest is few
