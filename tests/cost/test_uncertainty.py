"""Intervals and ties: hand-worked shares and spreads, laws, agreement with drawing and counting."""

import math
from dataclasses import replace

import numpy as np
import pytest

from simulator.cost.estimate import Estimate
from simulator.cost.uncertainty import (
    ERRORS,
    bearing,
    chance_of_beating,
    errors_of,
    interval,
    log_spread,
    probability_fastest,
)
from simulator.planner.predict import predict
from simulator.scenario import make_scenario

NONE = dict.fromkeys(ERRORS, 0.0)


@pytest.fixture(scope="module")
def estimate() -> Estimate:
    """One real layout with a pipeline, so that every kind of term is there."""
    scenario = make_scenario(
        {
            "model": {"name": "llama-3.1-70b"},
            "training": {"sequence_length": 8192, "global_batch": 128},
            "cluster": {"name": "dgx-h100", "gpus": 64},
        }
    )
    return predict(scenario, tp=4, pp=4).estimate


def test_shares_are_those_of_the_terms_with_the_bubble_dealt_out(estimate: Estimate) -> None:
    shares = bearing(estimate, experts=False)
    terms = {name: float(seconds[0]) for name, seconds in estimate.terms_s.items()}
    step_s = float(estimate.step_time_s[0])
    idle_s = terms["bubble_warmup"] + terms["bubble_drain"]
    assert idle_s > 0.0
    # A step of a quarter bubble: a matrix product of 30 % counts as 0.30 / 0.75 = 40 %.
    want = (terms["gemm"] + terms["recompute"]) / (step_s - idle_s)
    assert shares["compute"][0] == pytest.approx(want, rel=1e-12)
    five = ("compute", "attention", "memory_bound", "launch", "links")
    assert sum(float(shares[name][0]) for name in five) == pytest.approx(1.0, rel=1e-12)
    assert float(shares["experts"][0]) == 0.0 and float(shares["software"][0]) == 1.0


def test_spreads_add_as_squares() -> None:
    shares = {"compute": np.array([0.6]), "links": np.array([0.4]), "layout": np.array([1.0])}
    errors = {"compute": 0.05, "links": 0.2, "layout": 0.02}
    want = math.sqrt(0.03**2 + 0.08**2 + 0.02**2)
    assert log_spread(shares, errors)[0] == pytest.approx(want, rel=1e-12)
    low, high = interval(np.array([10.0]), shares, errors)
    # The 90th percentile of a standard normal distribution is 1.2816.
    assert high[0] == pytest.approx(10.0 * math.exp(1.2816 * want), rel=1e-4)
    assert low[0] * high[0] == pytest.approx(100.0, rel=1e-12)


def test_a_shared_error_does_not_reorder_layouts() -> None:
    step_s = np.array([1.0, 1.01])
    shares = {name: np.zeros(2) for name in ERRORS} | {
        "software": np.ones(2),
        "layout": np.ones(2),
    }
    shared = {**NONE, "software": 0.3, "layout": 1e-6}
    assert chance_of_beating(step_s, shares, shared).tolist() == [0.5, 0.0]
    assert probability_fastest(step_s, shares, shared).tolist() == [1.0, 0.0]
    apart = {**NONE, "layout": 0.3}
    assert 0.45 < chance_of_beating(step_s, shares, apart)[1] < 0.5


def test_chances_agree_with_drawing() -> None:
    step_s = np.array([1.0, 1.03, 1.2])
    shares = {name: np.zeros(3) for name in ERRORS} | {
        "compute": np.array([0.9, 0.5, 0.9]),
        "links": np.array([0.1, 0.5, 0.1]),
        "layout": np.ones(3),
    }
    errors = {**NONE, "compute": 0.05, "links": 0.2, "layout": 0.01}
    # By hand: shares of the second differ by 0.4 each: sd^2 = 0.02^2 + 0.08^2 + 2 x 0.01^2.
    deviation = math.sqrt(0.02**2 + 0.08**2 + 2 * 0.01**2)
    want = 0.5 * (1.0 + math.erf(-math.log(1.03) / deviation / math.sqrt(2.0)))
    assert chance_of_beating(step_s, shares, errors)[1] == pytest.approx(want, rel=1e-9)
    fastest = probability_fastest(step_s, shares, errors)
    assert fastest.sum() == pytest.approx(1.0)
    assert fastest[1] == pytest.approx(want, abs=0.025)  # the third hardly ever wins
    assert fastest[2] < 0.01


def test_what_a_figure_states_widens_its_error() -> None:
    scenario = make_scenario(
        {
            "model": {"name": "llama-3.1-8b"},
            "training": {"sequence_length": 8192, "global_batch": 64},
            "cluster": {"name": "dgx-h100", "gpus": 8},
        }
    )
    recipe, cluster, software = scenario.workload.recipe, scenario.cluster, scenario.software
    before = errors_of(cluster, software, recipe)
    assert set(before) == set(ERRORS) and all(value > 0.0 for value in before.values())
    device = cluster.accelerator
    kernel = device.gemm[software.kernels.gemm_library]["bf16"]
    figure = kernel.training_fraction
    wide = type(figure)(float(figure), "assumed", "a test", "", 0.5)
    table = {
        **device.gemm,
        software.kernels.gemm_library: {
            **device.gemm[software.kernels.gemm_library],
            "bf16": replace(kernel, training_fraction=wide),
        },
    }
    group = replace(cluster.groups[0], accelerator=replace(device, gemm=table))
    after = errors_of(replace(cluster, groups=(group,)), software, recipe)
    assert after["compute"] > 5.0 * before["compute"]
    assert {k: v for k, v in after.items() if k != "compute"} == {
        k: v for k, v in before.items() if k != "compute"
    }
