"""Terms of a step on the screen: those below a two-thousandth are one line, one alone is itself."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from simulator.cli.screen import term_table
from simulator.cost.terms import TERMS
from simulator.planner.prediction import Prediction, predict
from simulator.scenario import make_scenario


@cache
def predicted() -> Prediction:
    return predict(make_scenario({
        "model": {"name": "llama-3.2-1b"},
        "training": {"sequence_length": 2048, "global_batch": 8},
        "cluster": {"name": "dgx-h100", "gpus": 8},
    }))  # fmt: skip


def labels(table: Any) -> list[str]:
    return [str(cell) for cell in table.columns[0]._cells]


@pytest.mark.parametrize("count", [0, 1, 2, 3])
@pytest.mark.parametrize(("share", "small"), [(4.9e-4, True), (5.1e-4, False)])
def test_small_terms_are_one_line(count: int, share: float, *, small: bool) -> None:
    """Of so many small terms beside a large one; all of them where formulas are asked for."""
    estimate = predicted().estimate
    names = [term.name for term in TERMS]
    terms = dict.fromkeys(names, np.zeros(1))
    terms[names[0]] = 2.0 * np.ones(1)
    for name in names[1 : 1 + count]:
        terms[name] = share * 2.0 * np.ones(1)
    made = replace(estimate, terms_s=terms, step_time_s=2.0 * np.ones(1))
    own = [term.label for term in TERMS[1 : 1 + count]]
    shown = own if not small or count < 2 else [f"{count} smaller terms"]
    assert labels(term_table({"a": (made, 0)}, share=True)) == [
        TERMS[0].label, *shown, "sum = step time",
    ]  # fmt: skip
    whole = [TERMS[0].label, *own, "sum = step time"]
    assert labels(term_table({"a": (made, 0)}, share=True, formula=True)) == whole
    assert labels(term_table({"a": (made, 0)})) == whole


def test_columns_of_two_layouts_stand_side_by_side() -> None:
    estimate = predicted().estimate
    names = [term.name for term in TERMS]
    tables = []
    for first, second in ((1.0, 3.0), (5.0, 0.0)):
        terms = dict.fromkeys(names, np.zeros(1))
        terms |= {names[0]: first * np.ones(1), names[1]: second * np.ones(1)}
        step = (first + second) * np.ones(1)
        tables.append(replace(estimate, terms_s=terms, step_time_s=step))
    table = term_table({"a": (tables[0], 0), "b": (tables[1], 0)}, share=True)
    cells = [[str(cell) for cell in column._cells] for column in table.columns]
    assert [str(column.header) for column in table.columns] == [
        "time of a step", "a (s)", "b (s)", "share",
    ]  # fmt: skip
    assert [[float(x) for x in column] for column in cells[1:3]] == [[1, 3, 4], [5, 0, 5]]
    assert cells[3] == ["25.0 %", "75.0 %", "100.0 %"]
