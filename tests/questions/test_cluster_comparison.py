"""Clusters compared: each offer is what `plan` finds there, views and fronts are consistent."""

from dataclasses import replace

import pytest

from simulator.economics.planning_factor import Span
from simulator.economics.quotes import Quote
from simulator.errors import InputError
from simulator.planner.assumptions import assumptions
from simulator.planner.plan import plan
from simulator.questions.compare.answer import Comparison, compare_clusters, default_counts
from simulator.questions.compare.offer import Asked, Offer
from simulator.scenario import Scenario, make_scenario
from simulator.search.defaults import layout_fields

PINNED = {"tp": 2, "pp": 1, "cp": 1, "sharding": "zero1", "micro_batch": 1, "recompute": "none"}


def scenario(cluster: str = "dgx-h100", gpus: int = 16, **goal: object) -> Scenario:
    return make_scenario(
        {
            "model": {"name": "llama-3.1-8b"},
            "training": {"sequence_length": 4096, "global_batch": 256, "tokens": 1e11},
            "cluster": {"name": cluster, "gpus": gpus},
            "layout": PINNED,
            "goal": goal,
        }
    )


@pytest.fixture(scope="module")
def found() -> Comparison:
    return compare_clusters(
        scenario(), ["dgx-h100", "dgx-a100", "mi325x-8"], [8, 16, 24, 32], jobs=1
    )


@pytest.mark.evidence
def test_every_offer_is_what_plan_finds(found: Comparison) -> None:
    (row,) = [r for r in found.rows if (r.cluster, r.gpus) == ("dgx-a100", 16)]
    best = plan(scenario("dgx-a100"))
    assert row.layout == layout_fields(best.scenario, best.estimate.layouts)
    assert row.step_time_s == float(best.estimate.step_time_s[0])
    assert row.days is not None and row.usd is not None and row.kwh is not None
    assert row.days.p50 == pytest.approx(float(best.outcome.days[0]))
    assert row.usd.p50 == pytest.approx(float(best.outcome.usd[0]))
    assert row.kwh.p50 == pytest.approx(float(best.outcome.kwh[0]))
    low, high = best.certainty.span(
        best.outcome.days, best.estimate.step_time_s, best.outcome.run_spread
    )
    assert (row.days.p10, row.days.p90) == pytest.approx((low[0], high[0]))


def test_money_is_less_sure_than_time(found: Comparison) -> None:
    # neocloud-h100 states a spread of 20 %: with a time within s, sqrt(s^2 + 0.2^2).
    row = found.rows[0]
    assert row.days is not None and row.usd is not None and row.kwh is not None
    assert row.usd.log_spread == pytest.approx((row.days.log_spread**2 + 0.04) ** 0.5)
    assert row.kwh.log_spread > row.days.log_spread


def test_views_hold_what_they_say(found: Comparison) -> None:
    for gpus, rows in found.at_equal_gpus().items():
        steps = [row.step_time_s or 0.0 for row in rows]
        assert {row.gpus for row in rows} == {gpus} and steps == sorted(steps)
    own = next(row for row in found.rows if (row.cluster, row.gpus) == ("dgx-h100", 16))
    assert found.reference is own
    assert own.days is not None and own.usd is not None and own.planned_days is not None
    assert found.deadline_days == own.planned_days.p50
    for row in found.at_deadline():
        assert row.days is not None and row.days.p50 <= own.days.p50 * (1 + 1e-8)
    for row in found.at_equal_budget():
        assert row.usd is not None and row.usd.p50 <= own.usd.p50 * (1 + 1e-8)


def test_without_a_price_there_is_no_money(found: Comparison) -> None:
    rows = [row for row in found.feasible if row.cluster == "mi325x-8"]
    assert rows and all(row.usd is None and row.usd_per_gpu_hour is None for row in rows)
    assert not any(row.cluster == "mi325x-8" for row in found.pareto())
    priced = compare_clusters(scenario(), ["mi325x-8"], [8], prices={"mi325x-8": 2.0}, jobs=1)
    (row,) = priced.rows
    assert row.days is not None and row.usd is not None
    # 8 accelerators at 2 USD, power included: 16 USD an hour
    assert row.usd.p50 == pytest.approx(row.days.p50 * 24 * 16)


def test_equal_clusters_compare_equal() -> None:
    found = compare_clusters(scenario(), ["aws-p4de", "dgx-a100"], [8], jobs=1)
    same = [replace(row, cluster="") for row in found.rows]
    twice = compare_clusters(scenario(), ["dgx-a100"], [8], jobs=1)
    assert replace(twice.rows[0], cluster="") == same[1]


def test_the_number_of_processes_changes_nothing(found: Comparison) -> None:
    again = compare_clusters(scenario(), ["dgx-h100", "dgx-a100"], [8, 16], jobs=2)
    kept = [r for r in found.rows if r.cluster != "mi325x-8" and r.gpus <= 16]
    assert list(again.rows) == kept


def test_sizes_that_the_batch_does_not_divide_are_named(found: Comparison) -> None:
    # 24 = 3 x 8: neither heads, nor 32 layers, nor the batch take the factor 3.
    (row,) = [r for r in found.rows if (r.cluster, r.gpus) == ("dgx-h100", 24)]
    assert not row.feasible and not row.batch_divides and row.next_good == 32


def made(cluster: str, gpus: int, speed: float, *, days: float, usd: float, free: float) -> Offer:
    return Offer(
        cluster=cluster,
        gpus=gpus,
        feasible=True,
        step_time_s=1.0 / speed,
        tokens_per_s=speed,
        mfu=0.4,
        days=Span(p50=days, log_spread=0.1),
        usd=Span(p50=usd, log_spread=0.1),
        kwh=Span(p50=usd, log_spread=0.1),
        memory_headroom=free,
    )


def test_knee_and_front_by_hand() -> None:
    rows = (
        made("x", 8, 8.0, days=100.0, usd=1.0, free=0.1),
        made("x", 16, 15.0, days=60.0, usd=1.2, free=0.2),
        made("x", 32, 20.0, days=50.0, usd=2.0, free=0.1),
        made("y", 16, 12.0, days=70.0, usd=1.3, free=0.1),
    )
    found = Comparison(scenario=scenario(), asked=Asked(), rows=rows)
    curve = found.curves()[0]
    # 8 more bring 7 of 8, 16 more bring 5 of 16
    assert curve.marginal == pytest.approx((1.0, 7 / 8, 5 / 16))
    assert curve.speedup == pytest.approx((1.0, 15 / 8, 20 / 8)) and curve.knee == 16
    # y is dearer, slower and fuller than x with 16
    assert found.pareto() == list(rows[:3])


@pytest.mark.parametrize("confidence", [0.1, 0.5, 0.9])
def test_limits_are_met_with_confidence(confidence: float) -> None:
    row = made("x", 8, 8.0, days=100.0, usd=1.0, free=0.1)
    assert row.days is not None
    edge = row.days.at(confidence)
    asked = Asked(deadline_days=edge * 1.001, confidence=confidence)
    assert row.meets(asked) and not row.meets(replace(asked, deadline_days=edge * 0.999))
    assert row.days.chance_within(edge) == pytest.approx(confidence)


def test_wrong_input_is_named_all_at_once() -> None:
    with pytest.raises(InputError) as error:
        compare_clusters(
            scenario(),
            ["dgx-h101", "dgx-a100"],
            [8],
            deadline_days=-1.0,
            confidence=1.0,
            prices={"dgx-h100": 1.0},
        )
    text = "\n".join(error.value.problems)
    assert "did you mean 'dgx-h100'" in text and "deadline: must be a positive number" in text
    assert "confidence: must be between 0 and 1" in text and "price: must name a cluster" in text


def test_what_a_cluster_cannot_do_is_a_row() -> None:
    rows = compare_clusters(scenario(), ["dgx-h100"], [12, 8], jobs=1).rows
    assert [row.gpus for row in rows] == [8, 12] and rows[0].feasible
    assert "must be at most 8 or a multiple of 8" in rows[1].reason


def test_default_sizes() -> None:
    assert default_counts(64) == [16, 32, 64, 128, 256]


def test_what_an_offer_assumes_is_priced_as_in_its_plan_at_its_own_price() -> None:
    """Gradients in fp32 do not fit the best layout: both answers take one in which they do."""
    asked = replace(scenario(gpus=64), pinned={})
    quote = Quote(
        provider="one", gpu="H100", gpus=8, cluster="dgx-h100", term="on demand",
        usd_per_gpu_hour=2.0, date="2026-01-01", source="a page", grade="assumed",
    )  # fmt: skip
    compared = compare_clusters(asked, ["dgx-h100"], [64], jobs=1, quotes=[quote]).assumptions
    planned = {choice.change: choice for choice in assumptions(plan(asked))}
    both = [(choice, planned[choice.change]) for choice in compared if choice.change in planned]
    assert any(choice.layout is not None for choice, _ in both)
    for choice, same in both:
        assert choice.memory_verdict == same.memory_verdict == "FITS"
        assert choice.relative == pytest.approx(same.relative, abs=0.01)
        assert choice.words().count("USD*") == 1, "the offer's price is assumed"


def test_where_nothing_meets_what_is_asked_the_nearest_says_what_it_assumes() -> None:
    missed = compare_clusters(scenario(), ["dgx-h100"], [8, 16], deadline_days=0.1, jobs=1)
    assert missed.recommended is None and missed.assumptions
