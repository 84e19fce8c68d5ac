"""Terms of a step: what causes return is added by name."""

from __future__ import annotations

import numpy as np

from simulator.cost.pricing import price_keys, with_paths
from simulator.cost.step import Unfilled, evaluate
from simulator.cost.tables import StepTerms
from simulator.cost.terms import HIDDEN, TERMS
from simulator.layout.rules.feasibility import FEASIBLE, reasons
from simulator.scenario import make_scenario
from simulator.search.candidates import candidates


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


def test_steps_whose_paths_are_added_later_are_those_priced_at_once() -> None:
    """Some of a table evaluated without fill and drain, then with their paths: the same bits."""
    made = make_scenario(
        {
            "model": {"name": "mixtral-8x7b"},
            "cluster": {"name": "dgx-h100", "gpus": 64},
            "training": {"tokens": 1e12, "global_batch": 256, "sequence_length": 4096},
        }
    )
    setting = made.workload, made.cluster, made.software
    table = candidates(*setting)
    able = np.flatnonzero(reasons(table, *setting) == FEASIBLE)
    table = table[able[:: max(len(able) // 300, 1)]]
    known = price_keys(table, *setting)
    unfilled = Unfilled.of(table, known)
    some = np.arange(0, len(table), 3)
    paths = with_paths(known.of(some), table[some], coarse=False).paths
    added, whole = unfilled.filled(some, paths), evaluate(table, *setting).take(some)
    assert (table.pp[some] > 1).sum() > 20
    for term in TERMS:
        assert added.terms_s[term.name].tolist() == whole.terms_s[term.name].tolist(), term.name
    for name in HIDDEN:
        assert added.hidden_s[name].tolist() == whole.hidden_s[name].tolist(), name
    for name in ("step_time_s", "memory_total_bytes", "waiting_s", "executed_flop"):
        assert getattr(added, name).tolist() == getattr(whole, name).tolist(), name
    shorter = unfilled.estimate.step_time_s[some] < whole.step_time_s
    assert shorter[table.pp[some] > 1].any()
