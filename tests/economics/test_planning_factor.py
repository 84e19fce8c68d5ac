"""The planning factor: what it is learnt of, what it does to a run, and where it is left out."""

from math import exp, log

import pytest

import simulator
from simulator.economics.planning_factor import interval, planning_factor
from simulator.planner.plan import Plan
from workshop.cases.gpu_hours import (
    Hours,
    hours_errors,
    hours_of,
    on_top,
    planned_by_others,
    read_hour_cases,
)

WHOLE = {
    **{"model": "llama-3.1-70b", "cluster": "dgx-h100", "gpus": 1024, "tokens": 15e12},
    **{"global_batch": 2048, "sequence_length": 8192, "tp": 4, "pp": 4, "cp": 1, "micro_batch": 1},
}


@pytest.fixture(scope="module")
def hours() -> list[Hours]:
    return [hours_of(case) for case in read_hour_cases()]


@pytest.fixture(scope="module")
def flagship() -> Plan:
    return simulator.plan(**WHOLE, deadline_days=240, budget_usd=20e6)


def test_the_quantiles_are_those_of_students_t() -> None:
    """t at 0.9: 1.397 with 8 degrees of freedom, 1.310 with 30 (tables)."""
    for runs, t in ((9, 1.397), (31, 1.310)):
        low, high = interval(2.0, 0.3, runs)
        assert log(high / 2.0) == pytest.approx(0.3 * t, rel=3e-3)
        assert low * high == pytest.approx(4.0)


def test_the_shipped_factor_is_that_of_the_published_runs(hours: list[Hours]) -> None:
    """Geometric mean of reported over predicted hours of whole runs, and its spread."""
    whole = [one for one in hours if one.case.kind == "whole"]
    shipped, found = planning_factor(), on_top(whole)
    product = 1.0
    for one in whole:
        product *= one.case.gpu_hours / one.real
    assert found.factor == pytest.approx(product ** (1.0 / len(whole)))
    assert shipped.value == pytest.approx(found.factor, rel=0.03)
    assert shipped.runs == found.runs == len(whole)
    low, high = interval(found.factor, found.log_spread, found.runs)
    assert (shipped.p10, shipped.p90) == pytest.approx((low, high), rel=0.06)


def test_46_published_trainings_each_with_its_source() -> None:
    cases = read_hour_cases(compared=False)
    assert len(cases) == 46 == len({case.name for case in cases})
    assert all(case.source for case in cases)
    recalled = [case.name for case in cases if case.reading == "recalled"]
    assert all("recalled" in case.source for case in cases if case.name in recalled)
    assert len(recalled) < 10
    steady = {case.name for case in cases if case.kind == "steady"}
    assert {"LLaMA 65B", "DeepSeek-V3"} <= steady, "tokens over a measured rate are told apart"
    assert "Llama 3 70B" not in steady


def test_steady_rates_are_not_scored_against_lost_months(hours: list[Hours]) -> None:
    """A steady rate takes what is predicted; a whole run takes a third more."""
    found = hours_errors(hours)["kinds"]
    assert 0.85 < found["steady"]["factor"] < 1.1 < 1.2 < found["whole"]["factor"] < 1.6


def test_runs_left_out_lie_between_the_others_p10_and_p90(hours: list[Hours]) -> None:
    plans = planned_by_others(hours)
    inside = sum(one.inside for one in plans) / len(plans)
    assert 0.7 <= inside <= 0.88, "four fifths are wanted"
    one = next(one for one in plans if one.hours.case.name == "Llama 3 70B")
    assert one.p10 < 6.4e6 < one.p90, "6.4 M hours were reported"


@pytest.mark.evidence
def test_days_and_money_are_planned_with_it(flagship: Plan) -> None:
    factor = planning_factor()
    row = flagship.document()["layouts"][0]
    assert row["planning_factor"]["from"] == factor.runs
    assert row["planning_factor"]["kind"] == "whole run"
    for name in ("days", "usd", "kwh"):
        planned = row[f"planned_{name}"]
        assert planned["p50"] == pytest.approx(factor.value * row[name])
        assert planned["p10"] <= factor.p10 * row[name] * 1.001
        assert planned["p90"] >= factor.p90 * row[name] * 0.999
    # hours that Meta reported for 15 T tokens of this model lie inside
    assert row["planned_days"]["p10"] < 6.4e6 / 1024 / 24 < row["planned_days"]["p90"]


def test_chances_hold_it_and_stand_beside_those_without(flagship: Plan) -> None:
    """240 days lie inside the factor's own interval: never over 99.9 %."""
    row = flagship.document()["layouts"][0]
    assert row["deadline_chance_without_factor"] > 0.99
    assert 0.1 < row["deadline_chance"] < 0.9
    assert row["deadline_chance"] == pytest.approx(
        float(flagship.goal_chances.deadline[0]), abs=1e-12
    )
    assert row["budget_chance"] < row["budget_chance_without_factor"]


def test_ideal_leaves_failures_and_the_factor_out() -> None:
    found = simulator.plan(**WHOLE, ideal=True, deadline_days=240)
    row = found.document()["layouts"][0]
    assert row["goodput"] == 1.0 and row["days"] == pytest.approx(row["days_ideal"])
    assert (row["planning_factor"], row["planned_days"], row["planned_usd"]) == (None,) * 3
    assert row["deadline_chance"] == row["deadline_chance_without_factor"]
    assert row["gpu_hours"] == pytest.approx(1024 * 24 * row["days"])


def test_a_step_less_sure_than_those_it_was_learnt_of_widens_it(flagship: Plan) -> None:
    factor, sure = planning_factor(), flagship.certainty
    step_s = flagship.estimate.step_time_s[:1]
    sharp = type(sure)(
        p10_s=step_s / exp(0.01), p90_s=step_s * exp(0.01), fastest=step_s, beats_best=step_s
    )
    wide = type(sure)(p10_s=step_s / 2.0, p90_s=2.0 * step_s, fastest=step_s, beats_best=step_s)
    known = sharp.planned(step_s, factor).p90_s / step_s
    assert known == pytest.approx(factor.p90 / factor.value), "the factor holds such an error"
    assert wide.planned(step_s, factor).p90_s > 2.0 * step_s
