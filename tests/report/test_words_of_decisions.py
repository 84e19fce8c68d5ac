"""Words of the decision page, by hand and on both sides of each step."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.economics.planning_factor import Span
from simulator.evidence.card import GRADES, Card
from simulator.questions.compare.offer import Asked, Offer
from simulator.report.decision import (
    Option,
    badges,
    best_offers,
    brief_chance,
    brief_days,
    brief_usd,
    chance_clause,
    evidence_words,
    goal_clauses,
    memory_words,
    options_words,
    same_money,
    three_options,
    totals_words,
    verdict_sentence,
)


def sure(value: float) -> Span:
    return Span(p50=value, log_spread=0.0)


def an_offer(days: float = 20.0, usd: float | None = 300e3, **more: Any) -> Offer:
    return Offer(**{
        "cluster": "x", "accelerator": "h100-sxm", "gpus": 1024, "feasible": True,
        "days": sure(days), "usd": None if usd is None else sure(usd), "memory_verdict": "FITS",
        "memory_total_bytes": 60 * 2**30, "memory_p90_bytes": 61 * 2**30,
        "usable_bytes": 79 * 2**30, **more,
    })  # fmt: skip


@pytest.mark.parametrize(
    ("days", "words"),
    [
        (0.99, "23.8 hours (23.8 to 23.8)"), (1.0, "1.0 days (1.0 to 1.0)"),
        (9.94, "9.9 days (9.9 to 9.9)"), (10.0, "10 days (10 to 10)"),
        (99.4, "99 days (99 to 99)"), (1234.5, "1,234 days (1,234 to 1,234)"),
        (0.25, "6.0 hours (6.0 to 6.0)"),
    ],
)  # fmt: skip
def test_days_in_brief(days: float, words: str) -> None:
    assert brief_days(sure(days)) == words


@pytest.mark.parametrize(
    ("usd", "words"),
    [
        (950.0, "950 USD (950 to 950)"), (999.4, "999 USD (999 to 999)"),
        (999.6, "1.0 k USD (1.0 to 1.0)"), (1000.0, "1 k USD (1 to 1)"),
        (99_400.0, "99.4 k USD (99.4 to 99.4)"), (99_600.0, "100 k USD (100 to 100)"),
        (999_400.0, "999 k USD (999 to 999)"), (2.5e6, "2.5 M USD (2.5 to 2.5)"),
        (3e9, "3 bn USD (3 to 3)"),
    ],
)  # fmt: skip
def test_money_in_brief(usd: float, words: str) -> None:
    assert brief_usd(sure(usd)) == words


def test_money_over_two_units_says_each() -> None:
    """A spread of a half: 900 k times and over e^(0.5 x 1.2816) = 1.898."""
    assert brief_usd(Span(p50=900e3, log_spread=0.5), "*") == "900 k USD* (474 k to 1.7 M)"


@pytest.mark.parametrize(
    ("chance", "words"),
    [(0.991, "> 99 %"), (0.99, "99 %"), (0.01, "1 %"), (0.0099, "< 1 %"), (0.5, "50 %")],
)
def test_chances_in_brief(chance: float, words: str) -> None:
    assert brief_chance(chance) == words


@pytest.mark.parametrize(
    ("chance", "value", "words"),
    [
        (0.97, 250.0, "very likely before your 240-day deadline"),
        (0.969, 250.0, "likely before your 240-day deadline"),
        (0.2, 249.5, "probably misses your 240-day deadline by 9.5 days (20 % to keep it)"),
        (0.2, 250.5, "probably misses your 240-day deadline by 10 days (20 % to keep it)"),
        (0.199, 240.0, "misses your 240-day deadline by 0.0 days"),
        (0.199, 100.0, "misses your 240-day deadline by 0.0 days"),
    ],
)
def test_how_likely_a_deadline_is_kept(chance: float, value: float, words: str) -> None:
    assert chance_clause(chance, 240.0, value) == words


def test_how_likely_a_budget_is_kept() -> None:
    kept = chance_clause(0.98, 2e6, 1e6, money=True)
    assert kept == "very likely within your 2 M USD"
    assert chance_clause(0.1, 2e6, 2.5e6, money=True) == "misses your 2 M USD by 500 k USD"


def test_totals_of_an_offer() -> None:
    assert totals_words(an_offer()) == "20 days (20 to 20), 300 k USD (300 to 300)"
    assert totals_words(an_offer(usd=None)) == (
        "20 days (20 to 20); no price known for this cluster"
    )
    planned = an_offer(planned_days=sure(30.0), planned_usd=sure(450e3))
    assert totals_words(planned).endswith("; plan for 30 days and 450 k USD")
    step = an_offer(days=1.0, step_time_s=2.5, tokens_per_s_per_gpu=12_345.6)
    object.__setattr__(step, "days", None)
    assert totals_words(step) == "2.50 s a step, 12,346 tokens/s per GPU"


def test_verdicts_of_an_offer() -> None:
    asked, limits = Asked(), Asked(deadline_days=25.0, budget_usd=1e6)
    said = "20 days (20 to 20), 300 k USD (300 to 300)"
    assert verdict_sentence(an_offer(), asked) == f"{said}."
    held = an_offer(deadline_chance=0.98, budget_chance=0.98)
    assert goal_clauses(held, asked) == []
    assert verdict_sentence(held, limits) == (
        f"{said}: very likely before your 25-day deadline; very likely within your 1 M USD."
    )
    tight = an_offer(memory_verdict="TIGHT")
    assert verdict_sentence(tight, asked) == (f"{said}. Memory is tight: make a trial run first.")
    full = an_offer(memory_verdict="OOM", memory_total_bytes=90 * 2**30)
    assert verdict_sentence(full, asked) == (
        f"Does not fit: 11.0 GiB short per GPU (worst rank). If it did: {said}."
    )
    assert verdict_sentence(an_offer(feasible=False, reason="none"), asked) == "None."


@pytest.mark.parametrize(
    ("verdict", "words"),
    [("FITS", "Memory fits: 60.0 GiB of 79.0 GiB, P90 61.0 GiB"),
     ("TIGHT", "Memory is tight: 60.0 GiB of 79.0 GiB, P90 61.0 GiB")],
)  # fmt: skip
def test_how_full_a_rank_is(verdict: str, words: str) -> None:
    assert memory_words(an_offer(memory_verdict=verdict)) == words
    assert memory_words(an_offer(memory_total_bytes=None)) == ""
    assert memory_words(an_offer(usable_bytes=None)) == ""
    assert memory_words(an_offer(memory_p90_bytes=None)) == "Memory fits: 60.0 GiB of 79.0 GiB"


@pytest.mark.parametrize(
    ("chance", "kind", "words"),
    [
        (0.98, "fits", "very likely kept: 98 %"), (0.96, "fits", "likely kept: 96 %"),
        (0.2, "fails", "probably missed: 20 %"), (0.19, "fails", "missed: 19 %"),
    ],
)  # fmt: skip
def test_signs_beside_the_verdict(chance: float, kind: str, words: str) -> None:
    limits = Asked(deadline_days=25.0)
    found = badges(an_offer(deadline_chance=chance, budget_chance=0.5), limits)
    assert [one[0] for one in found] == [kind, "fits", "plain"]
    assert found[0][1].endswith(f" Deadline {words}")
    assert [one[0] for one in badges(an_offer(memory_verdict="TIGHT"), Asked())] == [
        "tight", "plain",
    ]  # fmt: skip


def a_card(error: float | None, grade: str = GRADES[0]) -> Card:
    return Card(grade=grade, runs=3, mean_error=error, nearest_run=None, nearest_error=None,
                nearest_distance="", borrowed=(), assumed=0, widened_by={})  # fmt: skip


def test_soonest_safest_and_cheapest() -> None:
    """Chances above 99 % are the same; then the error in whole percent, then the memory in use."""
    offers = [
        an_offer(10.0, 9e5, deadline_chance=0.995, evidence=a_card(0.11)),
        an_offer(12.0, 4e5, deadline_chance=0.999, evidence=a_card(0.11), memory_p90_bytes=1.0),
        an_offer(11.0, 5e5, deadline_chance=0.98, evidence=a_card(0.01)),
        an_offer(13.0, 4e5, deadline_chance=1.0, evidence=a_card(None)),
    ]
    best = best_offers(offers)
    assert [offers.index(best[name]) for name in ("soonest", "safest", "cheapest")] == [0, 1, 1]
    assert "cheapest" not in best_offers([an_offer(usd=None)])


def roles(found: list[Option], offers: list[Offer]) -> list[tuple[int, tuple[str, ...], bool]]:
    places = [next(i for i, x in enumerate(offers) if x is one.offer) for one in found]
    return [(i, one.roles, one.recommended) for i, one in zip(places, found, strict=True)]


def test_options_keep_what_is_asked() -> None:
    limits = Asked(deadline_days=20.0, budget_usd=5e5)
    offers = [
        an_offer(30.0, 1e5, deadline_chance=0.1),
        an_offer(15.0, 4e5, deadline_chance=1.0),
        an_offer(10.0, 4.5e5, deadline_chance=1.0),
        an_offer(5.0, 9e5, deadline_chance=1.0),
    ]
    found = three_options(offers, limits)
    assert roles(found, offers) == [
        (2, ("soonest",), False), (1, ("safest", "cheapest in time"), True),
    ]  # fmt: skip
    assert found[1].role == "Safest and cheapest in time, recommended"
    assert found[0].facts[0] == "5 days sooner, +12 % money"
    words = options_words(offers, found, limits)
    assert words == "Of 4 offers that can run, 2 keep deadline and budget with 80 % confidence."
    assert options_words(offers, found, Asked()) == "Of 4 offers that can run."
    dear = Asked(deadline_days=20.0, budget_usd=1e5)
    assert options_words(offers, three_options(offers, dear), dear) == (
        "None of 4 offers that can run keeps deadline and budget with 80 % confidence; these keep"
        " the deadline."
    )
    soon = Asked(deadline_days=1.0)
    late = [an_offer(30.0, 1e5, deadline_chance=0.0)]
    assert options_words(late, three_options(late, soon), soon).endswith("these come nearest.")
    assert three_options([], limits) == []


@pytest.mark.parametrize(("usd", "there"), [(3.08e5, True), (3.10e5, False)])
def test_another_gpu_for_the_same_money(usd: float, there: bool) -> None:
    """Within three hundredths."""
    first = an_offer()
    other = an_offer(usd=usd, accelerator="b200-sxm")
    found = same_money(first, [first, an_offer(usd=1.0), other], Asked())
    assert found is (other if there else None)


def test_evidence_in_brief() -> None:
    assert evidence_words(None) == ""
    assert evidence_words(a_card(0.126)).endswith(
        "Benchmarked: this GPU and framework, error to expect 13 %"
    )
    assert evidence_words(a_card(None, GRADES[3])).endswith(" Low confidence")
