"""Intervals, ties and corrections: hand-worked shares and spreads, laws, agreement with drawing."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.cost.estimate import Estimate
from simulator.cost.uncertainty import (
    SHARED,
    Belief,
    bearing,
    belief,
    evidence_spread,
    expected_order,
    load_step_errors,
    same_kernels,
    shrunk,
    traits,
)
from simulator.evidence.evidence_runs import load_evidence_runs
from simulator.layout.layouts import Layouts
from simulator.planner.prediction import predict
from simulator.scenario import Scenario, make_scenario
from simulator.scoring.anchor import correct
from simulator.software.profile import load_software
from simulator.software.releases import load_releases


def believed(
    layout: float = 0.0, run: float = 0.0, kernels: float = 0.0, **spreads: float
) -> Belief:
    """Errors of these standard deviations, the others exact."""
    every = {**spreads, "layout": layout, "kernels": kernels}
    variances = [every.get(name, 0.0) ** 2 for name in SHARED]
    return Belief(
        mean=np.zeros(len(SHARED)),
        covariance=np.diag(variances),
        kernels=kernels,
        layout=layout,
        run=run,
    )


def numbers(*kernels: int) -> NDArray[np.intp]:
    return np.array(kernels, dtype=np.intp)


def shares(*rows: dict[str, float]) -> Floats:
    return np.array([[row.get(name, 0.0) for name in SHARED] for row in rows])


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return make_scenario(
        {
            "model": {"name": "llama-3.1-70b"},
            "training": {"sequence_length": 8192, "global_batch": 128},
            "cluster": {"name": "dgx-h100", "gpus": 64},
        }
    )


@pytest.fixture(scope="module")
def estimate(scenario: Scenario) -> Estimate:
    """One real layout with a pipeline, so that every kind of term is there."""
    return predict(scenario, tp=4, pp=4).estimate


def test_shares_are_those_of_the_terms_with_the_bubble_dealt_out(estimate: Estimate) -> None:
    found = dict(zip(SHARED, bearing(estimate, experts=False)[0].tolist(), strict=True))
    terms = {name: float(seconds[0]) for name, seconds in estimate.terms_s.items()}
    idle_s = terms["bubble_warmup"] + terms["bubble_drain"]
    assert idle_s > 0.0
    # A step of a quarter bubble: a GEMM of 30 % counts as 0.30 / 0.75 = 40 %.
    computed_s = terms["gemm"] + terms["recompute"] + terms["stragglers"]
    want = computed_s / (float(estimate.step_time_s[0]) - idle_s)
    assert found["compute"] == pytest.approx(want, rel=1e-12)
    five = ("compute", "attention", "memory_bound", "launch", "links")
    assert sum(found[name] for name in five) == pytest.approx(1.0, rel=1e-12)
    assert (found["experts"], found["software"]) == (0.0, 1.0)
    assert (found["kernels"], found["layout"]) == (0.0, 0.0)
    assert found["scale"] == 6.0  # 64 GPUs are six doublings


def test_spreads_add_as_squares() -> None:
    known = believed(compute=0.05, links=0.2, layout=0.02)
    row = shares({"compute": 0.6, "links": 0.4})
    want = math.sqrt(0.03**2 + 0.08**2 + 0.02**2)
    assert known.log_spread(row)[0] == pytest.approx(want, rel=1e-12)
    low, high = known.interval(np.array([10.0]), row)
    # The 90th percentile of a standard normal distribution is 1.2816.
    assert high[0] == pytest.approx(10.0 * math.exp(1.2816 * want), rel=1e-4)
    assert low[0] * high[0] == pytest.approx(100.0, rel=1e-12)


def test_a_shared_error_does_not_reorder_layouts() -> None:
    step_s, rows = np.array([1.0, 1.01]), shares({"software": 1.0}, {"software": 1.0})
    shared = believed(software=0.3, layout=1e-6, run=0.5)  # a run's own error is no layout's
    apart = numbers(0, 1)
    assert shared.beats(step_s, rows, apart).tolist() == [0.5, 0.0]
    assert shared.fastest(step_s, rows, apart).tolist() == [1.0, 0.0]
    assert 0.45 < believed(layout=0.3).beats(step_s, rows, apart)[1] < 0.5


def test_layouts_with_the_same_kernels_share_their_error() -> None:
    """A layout 3 % slower ties with the best only if other kernels run in it."""
    step_s, rows = np.array([1.0, 1.03, 1.03]), shares({}, {}, {})
    known = believed(kernels=0.05, layout=0.01)
    chances = known.beats(step_s, rows, numbers(0, 0, 1))
    # By hand: ln 1.03 = 0.02956 over sqrt(2) x 0.01 is 2.090 deviations; the third is
    # sqrt(2 x (0.05^2 + 0.01^2)) = 0.07211 off: 0.410 deviations.
    assert chances[1] == pytest.approx(0.0183, abs=2e-4)
    assert chances[2] == pytest.approx(0.3409, abs=2e-4)
    fastest = known.fastest(step_s, rows, numbers(0, 0, 1))
    assert fastest.sum() == pytest.approx(1.0)
    assert fastest[2] == pytest.approx(0.33, abs=0.03) and fastest[1] < 0.03
    assert known.log_spread(rows)[0] == pytest.approx(math.hypot(0.05, 0.01), rel=1e-12)


def test_the_same_kernels_are_the_same_shapes(scenario: Scenario) -> None:
    rows = [
        predict(scenario, **fields).estimate.layouts
        for fields in (
            {"tp": 4, "pp": 4},
            {"tp": 4, "pp": 2},
            {"tp": 2, "pp": 4},
            {"tp": 4, "micro_batch": 2},
        )
    ]
    found = same_kernels(Layouts.concatenate(rows)).tolist()
    assert found[0] == found[1] and len(set(found)) == 3


def test_chances_agree_with_drawing() -> None:
    step_s = np.array([1.0, 1.03, 1.2])
    rows = shares(
        {"compute": 0.9, "links": 0.1},
        {"compute": 0.5, "links": 0.5},
        {"compute": 0.9, "links": 0.1},
    )
    known = believed(compute=0.05, links=0.2, layout=0.01)
    # By hand: shares of the second differ by 0.4 each: sd^2 = 0.02^2 + 0.08^2 + 2 x 0.01^2.
    deviation = math.sqrt(0.02**2 + 0.08**2 + 2 * 0.01**2)
    want = 0.5 * (1.0 + math.erf(-math.log(1.03) / deviation / math.sqrt(2.0)))
    apart = numbers(0, 1, 2)
    assert known.beats(step_s, rows, apart)[1] == pytest.approx(want, rel=1e-9)
    fastest = known.fastest(step_s, rows, apart)
    assert fastest.sum() == pytest.approx(1.0)
    assert fastest[1] == pytest.approx(want, abs=0.025)  # the third hardly ever wins
    assert fastest[2] < 0.01


def test_alone_equals_stacked() -> None:
    draw = np.random.default_rng(3)
    rows = draw.uniform(size=(50, len(SHARED)))
    root = draw.normal(size=(len(SHARED), len(SHARED))) * 0.05
    known = Belief(mean=root[0], covariance=root @ root.T, kernels=0.02, layout=0.03, run=0.01)
    whole = (known.log_spread(rows), known.shift(rows))
    for i in range(len(rows)):
        assert known.log_spread(rows[i : i + 1])[0] == pytest.approx(whole[0][i], rel=1e-12)
        assert known.shift(rows[i : i + 1])[0] == pytest.approx(whole[1][i], rel=1e-12)


def test_what_a_figure_states_widens_its_error_on_a_device_without_steps(
    scenario: Scenario,
) -> None:
    workload, cluster, software = scenario.workload, scenario.cluster, scenario.software
    before = belief(cluster, software, workload)
    device, library = cluster.accelerator, software.kernels.gemm_library
    kernel = device.gemm[library]["bf16"]
    figure = kernel.training_fraction
    wide = type(figure)(float(figure), "assumed", "a test", "", 0.5)
    of_library = {**device.gemm[library], "bf16": replace(kernel, training_fraction=wide)}
    changed = replace(device, gemm={**device.gemm, library: of_library})
    group = replace(cluster.groups[0], accelerator=changed)
    known = belief(replace(cluster, groups=(group,)), software, workload)
    assert np.array_equal(known.covariance, before.covariance)  # steps of this device were measured
    unheard = replace(group, accelerator=replace(changed, name="a device of tomorrow"))
    after = belief(replace(cluster, groups=(unheard,)), software, workload)
    spreads = [np.sqrt(np.diag(one.covariance)) for one in (before, after)]
    place, steps, links = SHARED.index("compute"), load_step_errors(), SHARED.index("links")
    of_figure = math.hypot(spreads[0][place], 0.5 * float(steps.tail))
    assert spreads[1][place] == pytest.approx(of_figure)
    assert spreads[1][links] == pytest.approx(spreads[0][links])


def test_what_terms_do_not_explain_is_shared_and_each_runs_own(scenario: Scenario) -> None:
    """A spread of 0.1, four fifths of its variance shared."""
    machine = scenario.cluster, scenario.software, scenario.workload
    known, wide = belief(*machine), belief(*machine, spread=0.1)
    place, part = SHARED.index("software"), float(load_step_errors().shared)
    grown = wide.covariance - known.covariance
    assert grown[place, place] == pytest.approx(part * 0.01)
    assert wide.run**2 - known.run**2 == pytest.approx((1.0 - part) * 0.01)
    grown[place, place] = 0.0
    assert not grown.any()


def test_traits_are_those_of_the_step(scenario: Scenario, estimate: Estimate) -> None:
    known = traits(estimate, scenario.workload, scenario.cluster, scenario.software)
    assert known.words["kind"] == "dense" and known.words["tuned"] == "vendor"
    assert known.numbers["gpus"].tolist() == [64.0]
    assert known.numbers["tokens"].tolist() == [8192.0]
    # tp4 pp4 dp4: tensor groups stay in a server of eight, pipelines leave it.
    assert known.axes["uses"].tolist() == [[True, False, True, False]]
    assert known.axes["leaves"].tolist() == [[False, False, True, False]]
    shares = ("launch", "communication", "attention", "memory_bound")
    assert 0.0 < sum(float(known.numbers[name][0]) for name in shares) < 1.0


def on_cuda() -> list[str]:
    """Frameworks without a profile that run on the scenario's devices."""
    releases = load_releases()
    standing = {word: releases.nearest(word, where="").profile for word in releases.stand_ins}
    return sorted(x for x, name in standing.items() if "cuda" in load_software(name).platforms)


@pytest.mark.parametrize("word", on_cuda())
def test_what_only_stands_in_is_less_sure_than_the_framework_itself(
    scenario: Scenario, word: str
) -> None:
    document = {**scenario.document, "cluster": {"name": "dgx-h100", "gpus": 64, "software": word}}
    lent = make_scenario(document)
    assert lent.assumed_software is not None and word in lent.assumed_software
    own = load_software(lent.software.name)
    estimate = predict(lent, tp=1, sharding=own.supports.sharding[-1]).estimate
    workload, cluster = scenario.workload, scenario.cluster
    here, there = (
        traits(estimate, workload, cluster, software) for software in (own, lent.software)
    )
    assert there.words["tuned"] == "another's" != here.words["tuned"]
    assert there.words["stack"] != here.words["stack"]
    sure, guessed = (
        evidence_spread(estimate, workload, cluster, software)[0]
        for software in (own, lent.software)
    )
    measured = set(load_evidence_runs().words["stack"])  # some have runs of their own
    assert guessed > sure or word in measured


def test_a_kind_of_work_that_few_runs_had_is_less_sure(scenario: Scenario) -> None:
    workload, cluster, software = scenario.workload, scenario.cluster, scenario.software
    recipe = replace(workload.recipe, lora_rank=16, lora_targets=("q", "v"))
    adapters = replace(workload, recipe=recipe)
    assert (workload.kind, adapters.kind) == ("dense", "adapter")
    step = predict(scenario, tp=4, pp=4).estimate
    sure, guessed = (
        evidence_spread(step, work, cluster, software)[0] for work in (workload, adapters)
    )
    assert guessed > sure


# --- what a measured run corrects --------------------------------------------------------


def test_one_run_corrects_each_error_as_far_as_it_may_be_off() -> None:
    known = believed(compute=0.03, links=0.04, run=0.0)
    row = shares({"compute": 1.0, "links": 1.0})
    # Normal variables of variance 9 and 16 whose sum is 0.05: they share it as 9 to 16.
    after = known.corrected(row, np.array([0.05]))
    expected = dict(zip(SHARED, after.mean.tolist(), strict=True))
    assert expected["compute"] == pytest.approx(0.05 * 9 / 25)
    assert expected["links"] == pytest.approx(0.05 * 16 / 25)
    left = np.sqrt(np.diag(after.covariance))
    assert left[SHARED.index("compute")] == pytest.approx(0.03 * math.sqrt(1 - 9 / 25))
    assert after.log_spread(row)[0] == pytest.approx(0.0, abs=1e-9)  # their sum is known


def test_what_a_run_does_not_exercise_stays_as_it_was() -> None:
    known = believed(compute=0.03, links=0.1, run=0.01)
    after = known.corrected(shares({"compute": 1.0}), np.array([0.05]))
    assert after.mean[SHARED.index("links")] == 0.0
    far = shares({"compute": 0.5, "links": 0.5})
    assert 0.05 < after.log_spread(far)[0] < known.log_spread(far)[0]


def test_many_runs_leave_less_doubt_than_one() -> None:
    known = believed(compute=0.1, run=0.05)
    row = {"compute": 1.0}
    spreads = [
        known.corrected(shares(*[row] * n), np.full(n, 0.1)).log_spread(shares(row))[0]
        for n in (1, 4, 100)
    ]
    assert spreads == sorted(spreads, reverse=True)
    assert spreads[-1] == pytest.approx(0.05, rel=0.02)  # a run's own error is left


def test_corrected_terms_still_add_up(estimate: Estimate) -> None:
    rows = bearing(estimate, experts=False)
    heard = believed(compute=0.1, links=0.2, software=0.05, run=0.01).corrected(
        rows, np.array([math.log(1.1)])
    )
    found = correct(estimate, heard, rows)
    total = sum(float(seconds[0]) for seconds in found.terms_s.values())
    assert float(found.step_time_s[0]) == pytest.approx(total, rel=1e-12)
    # Nearly all of the ten percent is believed, since a run's own error is small beside the rest.
    assert float(found.step_time_s[0] / estimate.step_time_s[0]) == pytest.approx(1.1, rel=0.01)
    assert np.exp(heard.shift(rows))[0] == pytest.approx(1.1, rel=0.01)


def test_a_gain_is_shrunk_by_its_error_and_never_turned() -> None:
    gains = np.array([0.02, 0.1, 0.3, 0.0])
    sure, half, never = (shrunk(gains, np.full(4, error**2)) for error in (0.0, 0.1, 1e6))
    assert sure.tolist() == gains.tolist()
    assert half == pytest.approx(0.5 * gains), "an error as large as gains are halves them"
    assert never == pytest.approx(np.zeros(4), abs=1e-9)


@given(seed=st.integers(0, 2**32 - 1), error=st.floats(0.0, 0.5), least=st.floats(0.0, 0.4))
def test_layouts_that_are_equally_sure_stay_in_the_order_of_their_times(
    seed: int, error: float, least: float
) -> None:
    value = np.random.default_rng(seed).uniform(1.0, 1.5, 20)
    assert expected_order(value, np.full(20, error)).tolist() == np.argsort(value).tolist()
    mixed = np.where(np.arange(20) % 2, error, least)
    order = expected_order(value, mixed)
    assert sorted(order.tolist()) == list(range(20))
    sures = [i for i in order if mixed[i] == least and least == min(error, least)]
    assert sures == sorted(sures, key=lambda i: value[i])
    slow = value > value.min() * np.exp(0.1)
    assert set(order[-slow.sum() :] if slow.any() else []) == set(np.flatnonzero(slow))
