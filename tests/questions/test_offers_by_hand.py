"""Offers by hand: what they miss, what they would take, what is said of them, both sides each."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from simulator.economics.planning_factor import Span
from simulator.economics.price import Price
from simulator.economics.quotes import Quote
from simulator.evidence.card import GRADES, Card
from simulator.files import Figure
from simulator.questions.compare.offer import Asked, Offer, excesses, nearest
from simulator.questions.compare.offer_sentences import (
    in_words,
    limit_words,
    missed,
    on_top_words,
    price_words,
    tight_words,
)


def sure(value: float) -> Span:
    return Span(p50=value, log_spread=0.0)


def an_offer(days: float | None = 10.0, usd: float | None = 300.0, **more: Any) -> Offer:
    return Offer(**{
        "cluster": "dgx-h100", "gpus": 1024, "feasible": True, "memory_headroom": 0.25,
        "days": None if days is None else sure(days), "usd": None if usd is None else sure(usd),
        **more,
    })  # fmt: skip


@pytest.mark.parametrize(
    ("limits", "over"),
    [
        ({}, {}), ({"deadline_days": 10.0}, {"time": 1.0}), ({"deadline_days": 4.0}, {"time": 2.5}),
        ({"budget_usd": 300.0}, {"money": 1.0}), ({"budget_usd": 200.0}, {"money": 1.5}),
        ({"deadline_days": 20.0, "budget_usd": 240.0}, {"time": 0.5, "money": 1.25}),
    ],
)  # fmt: skip
def test_by_how_much_an_offer_misses(limits: dict[str, Any], over: dict[str, float]) -> None:
    """An offer that takes just what is asked for meets it; what is planned counts where it is."""
    asked = Asked(**limits)
    assert excesses(an_offer(), asked) == pytest.approx(over)
    assert an_offer().meets(asked) is (max(over.values(), default=0.0) <= 1.0)
    assert not an_offer(feasible=False).meets(asked)
    planned = an_offer(planned_days=sure(20.0), planned_usd=sure(900.0))
    twice = {"time": 2.0, "money": 3.0}
    assert excesses(planned, asked) == pytest.approx({k: twice[k] * v for k, v in over.items()})
    unknown = excesses(an_offer(None, None), asked)
    assert unknown == dict.fromkeys(over, float("inf"))


def test_limits_are_held_with_the_chance_that_is_asked() -> None:
    """A spread of a tenth: 84.13 % lie below one standard deviation above the middle."""
    wide = an_offer(days=None, planned_days=Span(p50=10.0, log_spread=0.1))
    for chance, factor in ((0.5, 1.0), (0.841344746, 1.105170918)):
        over = excesses(wide, Asked(deadline_days=10.0, confidence=chance))
        assert over["time"] == pytest.approx(factor, rel=1e-6)


def test_the_nearest_misses_by_least_or_meets_by_most() -> None:
    rows = [an_offer(30.0, 100.0), an_offer(12.0, 500.0), an_offer(8.0, 250.0, feasible=False)]
    asked = Asked(deadline_days=10.0, budget_usd=200.0)
    assert nearest(rows, asked) is rows[1]  # 2.5 times the money against three times the days
    assert nearest(rows, replace(asked, deadline_days=40.0)) is rows[0]
    assert nearest(rows[2:], asked) is None


@pytest.mark.parametrize(
    ("limits", "tokens", "words"),
    [
        ({"deadline_days": 8.0}, None,
         "the soonest with a chance of 50.0 % is dgx-h100 x 1,024 in 10.0 days, 8.0 days asked."
         " Nearest is dgx-h100 x 1,024: it would take 1.25 times the speed."),
        ({"deadline_days": 9.5}, 19e9,
         "the soonest with a chance of 50.0 % is dgx-h100 x 1,024 in 10.0 days, 9.5 days asked."
         " Nearest is dgx-h100 x 1,024: it would take 5.3 % more speed, or 18.1B tokens in place"
         " of 19B."),
        ({"budget_usd": 240.0}, 10e9,
         "the cheapest with a chance of 50.0 % is dgx-h100 x 1,024 for 300 USD, 240 USD asked."
         " Nearest is dgx-h100 x 1,024: it would take prices 20 % lower, or 8B tokens in place"
         " of 10B."),
        # a run 1.25 times as fast is cheaper by as much: of 2 times, 1.6 is left
        ({"budget_usd": 150.0, "deadline_days": 8.0}, None,
         "the soonest with a chance of 50.0 % is dgx-h100 x 1,024 in 10.0 days, 8.0 days asked;"
         " the cheapest with a chance of 50.0 % is dgx-h100 x 1,024 for 300 USD, 150 USD asked."
         " Nearest is dgx-h100 x 1,024: it would take 1.25 times the speed and prices 37.5 %"
         " lower."),
        ({"budget_usd": 240.0, "deadline_days": 8.0}, None,
         "the soonest with a chance of 50.0 % is dgx-h100 x 1,024 in 10.0 days, 8.0 days asked;"
         " the cheapest with a chance of 50.0 % is dgx-h100 x 1,024 for 300 USD, 240 USD asked."
         " Nearest is dgx-h100 x 1,024: it would take 1.25 times the speed."),
    ],
)  # fmt: skip
def test_what_the_nearest_would_take(
    limits: dict[str, Any], tokens: float | None, words: str
) -> None:
    asked = Asked(**limits, confidence=0.5)
    said = missed(asked, [an_offer(), an_offer(99.0, 999.0)], tokens)
    assert said == f"MISSED: no offer meets what is asked; {words}"


def test_nothing_is_missed_where_an_offer_meets_it() -> None:
    asked = Asked(deadline_days=10.0, budget_usd=300.0)
    assert missed(asked, [an_offer(99.0), an_offer()]) == ""
    assert missed(asked, [an_offer(feasible=False)]) == (
        "MISSED: the run fits on none of these clusters and sizes."
    )
    unpriced = missed(Asked(budget_usd=300.0), [an_offer(usd=None)])
    assert unpriced == "MISSED: no offer meets what is asked; no price is known."
    assert limit_words(Asked()) == ""
    assert limit_words(asked) == "10.0 days and 300 USD"


def test_what_an_offer_asks_beside_its_hours() -> None:
    """A checkpoint of 70 GB, kept for 61 days of 30.4 each month, taken away once."""
    quote = Quote(
        provider="Core", gpu="H100", gpus=8, term="spot", usd_per_gpu_hour=2.0, date="2026-10-01",
        source="q", cluster="dgx-h100", egress_usd_per_gb=0.09, storage_usd_per_gb_month=0.02,
    )  # fmt: skip
    saved: Any = SimpleNamespace(bytes=70e9)
    kept = an_offer(days=60.875, quote=quote, checkpoint=saved)
    assert kept.beside_usd == pytest.approx({"storage": 0.02 * 70 * 2.0, "egress": 0.09 * 70})
    assert replace(kept, planned_days=sure(91.3125)).beside_usd == pytest.approx(
        {"storage": 0.02 * 70 * 3.0, "egress": 0.09 * 70}
    )
    free = replace(quote, egress_usd_per_gb=None, storage_usd_per_gb_month=None)
    nothing: list[dict[str, Any]] = [
        {"quote": None}, {"checkpoint": None}, {"days": None}, {"quote": free},
    ]  # fmt: skip
    for change in nothing:
        assert replace(kept, **change).beside_usd is None
    zero = replace(quote, egress_usd_per_gb=0.0, storage_usd_per_gb_month=None)
    assert replace(kept, quote=zero).beside_usd == {"egress": 0.0}


@pytest.mark.parametrize(
    ("chances", "least"),
    [((None, None), None), ((0.4, None), 0.4), ((None, 0.3), 0.3), ((0.4, 0.3), 0.3),
     ((0.2, 0.3), 0.2)],
)  # fmt: skip
def test_the_lesser_chance_counts(chances: tuple[Any, Any], least: float | None) -> None:
    row = an_offer(deadline_chance=chances[0], budget_chance=chances[1])
    assert row.chance == least


def test_racks_tight_memory_and_uneven_batches() -> None:
    assert [an_offer(rented_together=n).of_racks for n in (1, 2, 72)] == [False, True, True]
    tight = an_offer(memory_verdict="TIGHT")
    assert tight.risky(Asked()) and not tight.risky(Asked(allow_tight=True))
    assert not an_offer(memory_verdict="FITS").risky(Asked())
    assert an_offer().note == "" and an_offer(feasible=False, reason="no").note == "no"
    uneven = an_offer(batch_divides=False)
    assert uneven.note == "the batch divides only with uneven stages or context parallelism"
    assert replace(uneven, next_good=1088).note.endswith("; over 1,088 GPUs it divides without")


def a_price(grade: str = "assumed", **more: Any) -> dict[str, Any]:
    figure = Figure(2.5, grade, "a page", "2026-05-01")
    price = Price(name="p", provider="lender", usd_per_gpu_hour=figure, included_power=True, **more)
    return price.origin


@pytest.mark.parametrize(
    ("price", "words"),
    [
        (a_price(), "2.50 (on demand, lender, 2026-05-01, assumed)"),
        (a_price("datasheet"), "2.50 (on demand, lender, 2026-05-01)"),
        (a_price("datasheet", base="typed"), "2.50 (yours)"),
        (None, "2.50 (h100-list)"),
    ],
)
def test_the_price_of_an_hour_in_words(price: Any, words: str) -> None:
    row = an_offer(price=price, usd_per_gpu_hour=2.5, price_name="h100-list")
    assert price_words(row) == words
    assert row.assumed_price is ("assumed" in words)


def test_an_offer_in_a_few_words() -> None:
    row = an_offer(price=a_price(), deadline_chance=0.97, deadline_chance_without_factor=0.97)
    assert in_words([row]) == [
        "dgx-h100 x 1,024: 10.0 days (10.0 to 10.0), 300 USD* (300 to 300 USD), 25.0 % of memory"
        " free, 97.0 % chance in time"
    ]
    step = an_offer(None, None, step_time_s=3.0, memory_verdict="TIGHT", memory_headroom=0.04)
    assert in_words([step]) == ["dgx-h100 x 1,024: 3.00 s a step, 4.0 % of memory free (TIGHT)"]
    assert "no price, 25.0 %" in in_words([an_offer(usd=None)])[0]
    for count in (8, 9):
        lines = in_words([an_offer()] * count)
        assert len(lines) == count
        assert (lines[-1] == "and 1 more, in --json and --out") is (count == 9)
    planned = an_offer(planned_days=sure(20.0), planned_usd=sure(900.0))
    assert on_top_words(planned) == (
        "; plan for 20.0 days (20.0 to 20.0), 900 USD (900 to 900 USD)"
    )
    assert on_top_words(an_offer()) == ""
    assert on_top_words(an_offer(ideal=True)).startswith("; nothing on top")


@pytest.mark.parametrize(
    ("faster", "words"), [(0.034, "3.4 % faster"), (0.0, "less of what the goal makes least")]
)
def test_a_layout_that_needs_a_trial(faster: float, words: str) -> None:
    row = an_offer(tight_alternative={"layout": "tp2", "faster": faster})
    assert tight_words(row).startswith(f"TIGHT tp2: {words}, ")
    assert tight_words(an_offer()) == ""


def a_card(**fields: Any) -> Card:
    given: dict[str, Any] = {
        "grade": GRADES[0], "runs": 3, "mean_error": 0.074, "nearest_run": "run-7",
        "nearest_error": -0.031, "nearest_distance": "alike; 8 GPUs", "borrowed": (), "assumed": 0,
        "widened_by": {},
    }  # fmt: skip
    return Card(**{**given, **fields})


@pytest.mark.parametrize(
    ("fields", "sentences"),
    [
        ({}, ["Evidence: measured here; error to expect 7 %",
              "Nearest run: run-7 (alike; 8 GPUs), predicted 3.1 % too short"]),
        ({"nearest_error": 0.0, "runs_error": 0.126, "runs": 1},
         ["Evidence: measured here; error to expect 7 % (1 run near it 13 % off)",
          "Nearest run: run-7 (alike; 8 GPUs), predicted 0.0 % too long"]),
        ({"nearest_run": None, "runs_error": 0.126, "runs": 2, "mean_error": None},
         ["Evidence: measured here (2 runs near it 13 % off)"]),
        ({"nearest_run": None, "grade": GRADES[-1], "runs": 0,
          "widened_by": {"device": 1.049, "work": 1.05, "release": 2.0}},
         ["Evidence: no comparable benchmark, low confidence; error to expect 7 %",
          "Range widened, no benchmark like it: work x 1.05, release x 2"]),
        ({"nearest_run": None, "grade": GRADES[-1], "widened_by": {"work": 1.3}},
         ["Evidence: low confidence; error to expect 7 %", "Range widened: work x 1.3"]),
        ({"nearest_run": None, "borrowed": (("gemm", "l40s"), ("stream", "a10"), ("x", "l40s"))},
         ["Evidence: measured here; error to expect 7 %",
          "Kernel efficiency taken from a10, l40s"]),
    ],
)  # fmt: skip
def test_evidence_in_sentences(fields: dict[str, Any], sentences: list[str]) -> None:
    card = a_card(**fields)
    assert card.sentences() == [*sentences, *card.remarks]
    assert bool(card.low_confidence) is (card.grade == GRADES[-1])
