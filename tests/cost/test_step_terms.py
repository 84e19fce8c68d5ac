"""Terms of a step: what causes return is added by name."""

from __future__ import annotations

import numpy as np

from simulator.cost.tables import StepTerms


def terms(shown: dict[str, float], hidden: dict[str, float]) -> StepTerms:
    return StepTerms(
        shown_s={name: np.array([seconds]) for name, seconds in shown.items()},
        hidden_s={name: np.array([seconds]) for name, seconds in hidden.items()},
    )


def test_terms_of_one_name_add_up_and_others_stand_beside() -> None:
    steady = terms({"gemm": 4.0, "slowdown": 0.5}, {"tp": 1.0})
    tail = terms({"dp": 2.0, "slowdown": 0.25}, {"tp": 0.5, "dp": 3.0})
    both = steady.plus(tail)
    assert {name: float(s[0]) for name, s in both.shown_s.items()} == {
        "gemm": 4.0,
        "slowdown": 0.75,
        "dp": 2.0,
    }
    assert {name: float(s[0]) for name, s in both.hidden_s.items()} == {"tp": 1.5, "dp": 3.0}


def test_adding_leaves_both_as_they_are() -> None:
    steady, tail = terms({"gemm": 4.0}, {}), terms({"gemm": 1.0}, {"dp": 1.0})
    steady.plus(tail)
    assert float(steady.shown_s["gemm"][0]) == 4.0
    assert steady.hidden_s == {}
