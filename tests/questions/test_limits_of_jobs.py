"""Times and limits of jobs and sizes on both sides, by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from simulator.economics.planning_factor import Span
from simulator.economics.scaling_law import load_law
from simulator.errors import InputError
from simulator.questions.admit.answer import _held, slurm_seconds, would_be_allowed
from simulator.questions.compare.offer import Asked, Offer
from simulator.questions.size.answer import _bought, _check, _least, _thinned
from simulator.scenario import Scenario, make_scenario
from simulator.units import show_usd


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 420), ("7:05", 425), ("3:07:05", 11_225), ("2-3", 183_600), ("2-3:07", 184_020),
        ("2-3:07:05", 184_025), ("0", 0), ("infinite", None), ("UNLIMITED", None),
    ],
)  # fmt: skip
def test_times_as_slurm_writes_them(text: str, seconds: float | None) -> None:
    """Its manual, --time: minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S."""
    assert slurm_seconds(text, "x") == seconds


@pytest.mark.parametrize("text", ["", "1:2:3:4", "1-", "-1", "1-2:3:4:5", "a", "1:b", "1.5"])
def test_what_is_no_time_of_slurm(text: str) -> None:
    with pytest.raises(InputError, match=r"^x: must be a time as D-HH:MM:SS"):
        slurm_seconds(text, "x")


@pytest.mark.parametrize(
    ("limit", "decision"),
    [(99.0, "refuse"), (100.0, "warn"), (299.0, "warn"), (300.0, "allow"), (301.0, "allow")],
)
def test_a_limit_between_p10_and_p90_is_a_warning(limit: float, decision: str) -> None:
    span = {"p10": 100.0, "p50": 200.0, "p90": 300.0}
    held = _held(span, limit, "cost", show_usd, "for the run", "the cap is")
    assert held.decision == decision
    assert held.text == f"200 USD (100 USD to 300 USD) for the run, the cap is {limit:.0f} USD" or (
        limit < 100.0 and held.text.endswith("the cap is 99.0 USD")
    )


def an_offer(**fields: Any) -> Offer:
    given: dict[str, Any] = {
        "cluster": "x", "gpus": 8, "feasible": True, "memory_verdict": "FITS",
        "days": Span(p50=10.0, log_spread=0.0), "usd": Span(p50=300.0, log_spread=0.0),
    }  # fmt: skip
    return Offer(**{**given, **fields})


@pytest.mark.parametrize(
    ("fields", "asked", "allowed"),
    [
        ({}, {}, True), ({"feasible": False}, {}, False), ({"memory_verdict": "TIGHT"}, {}, False),
        ({}, {"deadline_days": 10.0}, True), ({}, {"deadline_days": 9.9}, False),
        ({}, {"budget_usd": 300.0}, True), ({}, {"budget_usd": 299.0}, False),
        ({"usd": None}, {"budget_usd": 300.0}, False), ({"usd": None}, {}, True),
        ({"days": None}, {"deadline_days": 99.0}, False),
        ({}, {"deadline_days": 10.0, "budget_usd": 299.0}, False),
    ],
)  # fmt: skip
def test_a_request_that_would_be_let_in(
    fields: dict[str, Any], asked: dict[str, Any], allowed: bool
) -> None:
    assert would_be_allowed(an_offer(**fields), Asked(**asked)) is allowed


@pytest.mark.parametrize("count", [1, 7, 8, 9, 50, 1000])
def test_sizes_between_are_thinned_evenly(count: int) -> None:
    """All where they are few; else as many, the first among them, about equally far apart."""
    sizes = list(range(8, 8 * count + 1, 8))
    found = _thinned(sizes)
    most = len(_thinned([*range(10_000)]))
    assert len(found) == min(count, most)
    assert found[0] == 8 and found == sorted(set(found)) and set(found) <= set(sizes)
    gaps = {b - a for a, b in pairwise(found)}
    assert not gaps or max(gaps) - min(gaps) <= 8


@pytest.fixture(scope="module")
def made() -> Scenario:
    return make_scenario(
        {
            "model": {"name": "llama-3.1-8b"},
            "training": {"sequence_length": 4096, "global_batch": 64, "tokens": 1e12},
            "cluster": {"name": "dgx-h100", "gpus": 64},
        }
    )


def test_fewer_accelerators_than_the_peak_allows_are_not_tried(made: Scenario) -> None:
    """6 FLOPs a token and weight, and causal attention over 4,096 tokens in 32 layers of 4,096."""
    flop = 6.0 * (8.03e9 - 128_256 * 4096) + 3 * 32 * 4096 * 2 * 4096
    least = flop * 1e12 / (30 * 86_400 * 989.4e12)
    assert _least(made, Asked(deadline_days=30.0)) == pytest.approx(least, rel=2e-3)
    half = _least(made, Asked(deadline_days=60.0))
    assert half == pytest.approx(_least(made, Asked(deadline_days=30.0)) / 2)
    assert _least(made, Asked(deadline_days=30.0, confidence=0.49)) == 0.0
    assert _least(made, Asked(deadline_days=30.0, confidence=0.5)) > 0.0
    assert _least(made, Asked()) == 0.0


@pytest.mark.parametrize(
    ("limits", "binding", "share"),
    [
        ({"deadline_days": 4.0}, "deadline", 0.4), ({"budget_usd": 60.0}, "budget", 0.2),
        ({"deadline_days": 4.0, "budget_usd": 60.0}, "budget", 0.2),
        ({"deadline_days": 1.0, "budget_usd": 60.0}, "deadline", 0.1),
    ],
)  # fmt: skip
def test_what_limits_buy(
    made: Scenario, limits: dict[str, Any], binding: str, share: float
) -> None:
    """Ten days and 300 USD for 1 T tokens: what is used up first is what binds."""
    law = load_law("besiroglu-2024")
    found = _bought(made, an_offer(), Asked(**limits), law)
    assert found is not None
    assert found.binding == binding and found.days == pytest.approx(10.0 * share)
    assert found.tokens == pytest.approx(share * 1e12)
    flop = 6.0 * (8.03e9 - 128_256 * 4096) + 3 * 32 * 4096 * 2 * 4096
    assert found.flop == pytest.approx(flop * share * 1e12, rel=2e-3)
    assert _bought(made, an_offer(days=None), Asked(**limits), law) is None
    assert _bought(made, an_offer(), Asked(), law) is None


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"deadline_days": 0.0}, "deadline"),
        ({"budget_usd": -1.0}, "budget"),
        ({"deadline_days": float("inf")}, "deadline"),
        ({"deadline_days": 1.0, "confidence": 1.0}, "confidence"),
        ({"deadline_days": 1.0, "confidence": 0.0}, "confidence"),
        ({"deadline_days": 1.0, "region": "nowhere"}, "region"),
        ({"deadline_days": 1.0, "prices": {"dgx-a100": 1.0}}, "price"),
    ],
)
def test_questions_that_make_no_sense(made: Scenario, asked: dict[str, Any], said: str) -> None:
    _check(made, Asked(deadline_days=1.0, budget_usd=1.0, prices={"*": 1.0}), None)
    _check(made, Asked(), 8)
    with pytest.raises(InputError, match="a deadline, a budget or a number of GPUs must be given"):
        _check(made, Asked(), None)
    with pytest.raises(InputError) as caught:
        _check(made, Asked(**asked), None)
    assert [line.split(": ")[1] for line in caught.value.problems] == [said]
    recipe = replace(made.workload.recipe, tokens=None)
    open_ended = replace(made, workload=replace(made.workload, recipe=recipe))
    with pytest.raises(InputError, match=r"training\.tokens: needed"):
        _check(open_ended, Asked(deadline_days=1.0), None)
