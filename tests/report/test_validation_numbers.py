"""The tables of the page of a validation, worked by hand from a few hand-made rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from simulator.evidence.card import Card
from simulator.measured.rows import MeasuredRun
from simulator.report.validation_numbers import (
    ErrorLine,
    collect_validation,
    cumulative,
    histogram,
    layout_words,
)
from simulator.scoring.scores import ScoredRow
from simulator.scoring.validation import Validation

WORDS = {
    "source": "lab", "split": "test", "model": "tiny", "gpu": "H100", "software": "stack-1",
    "precision": "bf16", "optimizer": "adamw", "seq_len": "1000", "num_gpus": "8", "dp": "8",
    "tp": "1", "pp": "1", "micro_batch": "1", "global_batch": "64", "sharding": "zero1",
    "recompute": "none",
}  # fmt: skip


def row(
    run_id: str,
    predicted_s: float | None = None,
    measured_s: float | None = None,
    values: Mapping[str, Any] | None = None,
    /,
    **fields: str,
) -> ScoredRow:
    run = MeasuredRun(where="runs.csv: line 2", fields={**WORDS, "run_id": run_id, **fields})
    known: dict[str, Any] = {
        "status": "skipped" if predicted_s is None else "ok",
        "predicted_step_s": predicted_s,
        "measured_step_s": measured_s,
        **(values or {}),
    }
    return ScoredRow(run=run, **known)


def named(lines: tuple[ErrorLine, ...]) -> dict[tuple[str, str], ErrorLine]:
    found = {(line.name, line.split): line for line in lines}
    assert len(found) == len(lines)
    return found


def test_errors_are_tabulated_by_every_word_and_never_over_splits() -> None:
    rows = (
        row("a", 1.1, 1.0, {"baseline_step_s": 1.5}),
        row("b", 0.8, 1.0, {"baseline_step_s": 0.5}, num_gpus="16", num_experts="8"),
        row("c", 1.3, 1.0, split="calibrate", gpu="A100"),
        row("d", None, 1.0, {"reason": "no profile"}, precision="fp8"),
    )
    numbers = collect_validation(Validation(rows=rows))
    test, calibrate = (named(numbers.splits)[name, name].errors for name in ("test", "calibrate"))
    assert (test["rows"], test["skipped"], test["n"]) == (3, 1, 2)
    assert (test["mape"], test["bias"]) == pytest.approx((0.15, -0.05))
    assert test["baseline"]["mape"] == pytest.approx(0.5)
    assert (calibrate["n"], calibrate["mape"]) == (1, pytest.approx(0.3))
    by_kind = named(numbers.tables["kind"])
    assert set(by_kind) == {("MoE", "test"), ("dense", "calibrate"), ("dense", "test")}
    assert by_kind["MoE", "test"].errors["mape"] == pytest.approx(0.2)
    assert by_kind["dense", "test"].errors["mape"] == pytest.approx(0.1)
    assert set(named(numbers.tables["GPU"])) == {("A100", "calibrate"), ("H100", "test")}
    assert set(named(numbers.tables["framework"])) == {("stack", "calibrate"), ("stack", "test")}
    fp8 = named(numbers.tables["precision"])["fp8", "test"].errors
    assert (fp8["rows"], fp8["skipped"], fp8["n"], fp8["mape"]) == (1, 1, 0, None)
    scales = [(line.name, line.split) for line in numbers.tables["scale"]]
    assert scales == [
        ("2-8 GPUs", "calibrate"),
        ("2-8 GPUs", "test"),
        ("9-64 GPUs", "test"),
    ]
    assert numbers.predicted == 3 and numbers.composed == 0


def test_composed_rows_are_in_the_table_of_sources_only() -> None:
    rows = (
        row("a", 1.1, 1.0),
        row("b", 3.0, 1.0, source="parts", composed="true"),
    )
    numbers = collect_validation(Validation(rows=rows))
    sources = named(numbers.tables["source"])
    assert [sources[name, "test"].composed for name in ("lab", "parts")] == [False, True]
    assert sources["parts", "test"].errors["mape"] == pytest.approx(2.0)
    others = [
        line for title, lines in numbers.tables.items() if title != "source" for line in lines
    ]
    for line in (*numbers.splits, *others):
        assert line.errors["n"] == 1 and line.errors["mape"] == pytest.approx(0.1)
    assert numbers.worst == (0,) and numbers.composed == 1


def test_bins_hold_their_lower_edge_and_the_outermost_all_beyond() -> None:
    edges, counts = histogram([-3.0, -0.5001, -0.5, -0.01, 0.0, 0.0249, 0.4999, 0.5, 9.0])
    found = {round(edge, 3): n for edge, n in zip(edges, counts, strict=True) if n}
    assert found == {-0.525: 2, -0.5: 1, -0.025: 1, 0.0: 2, 0.475: 1, 0.5: 2}
    assert len(edges) == 42 and sum(counts) == 9


def test_cumulative_shares_by_hand() -> None:
    assert cumulative([-0.3, 0.1]) == ([0.1, 0.3], [0.5, 1.0])
    assert cumulative([]) == ([], [])


def test_the_worst_rows_come_first_and_are_fifteen() -> None:
    errors = [0.01 * i * (-1) ** i for i in range(20)]  # row 19 is 19 % too fast
    rows = tuple(row(f"r{i}", 1.0 + error, 1.0) for i, error in enumerate(errors))
    worst = collect_validation(Validation(rows=rows)).worst
    assert worst == tuple(range(19, 4, -1))


def test_memory_by_kind_and_split() -> None:
    def read(kind: str, predicted: float, measured: float) -> dict[str, Any]:
        return {
            "memory_kind": kind,
            "predicted_memory_gib": predicted,
            "measured_memory_gib": measured,
        }

    rows = (
        row("a", 1.0, 1.0, read("allocated", 55.0, 50.0)),
        row("b", 1.0, 1.0, read("allocated", 45.0, 50.0)),
        row("c", 1.0, 1.0, read("allocated", 60.0, 50.0), split="calibrate"),
        row("d", 1.0, 1.0, read("reserved", 65.0, 50.0)),
        row("e", 1.0, 1.0, read("nvidia_smi", 55.0, 50.0)),
        row("f", 1.0, 1.0, read("unknown", 99.0, 50.0)),
    )
    lines = named(collect_validation(Validation(rows=rows)).memory)
    found = {
        key: (line.errors["n"], round(line.errors["mape"], 6), round(line.errors["bias"], 6))
        for key, line in lines.items()
    }
    assert found == {
        ("allocated", "test"): (2, 0.1, 0.0),
        ("allocated", "calibrate"): (1, 0.2, 0.2),
        ("reserved", "test"): (1, 0.3, 0.3),
        ("nvidia_smi", "test"): (1, 0.1, 0.1),
    }


def test_places_of_a_ranking_by_hand() -> None:
    # by tp: predicted (2, 1, 4, 3, 5), measured (1, 2, 3, 4, 5); tp 16 was measured twice
    predicted = {1: 2.0, 2: 1.0, 4: 4.0, 8: 3.0, 16: 5.0}
    measured = {1: 1.0, 2: 2.0, 4: 3.0, 8: 4.0, 16: 5.5}
    rows = [row(f"tp{tp}", predicted[tp], measured[tp], tp=str(tp)) for tp in predicted]
    again = row("again", 5.0, 4.5, tp="16")
    other = row("other", 1.0, 1.0, num_gpus="16")
    numbers = collect_validation(Validation(rows=(other, *rows, again)))
    (group,) = numbers.rankings
    assert (group.score["n"], group.score["pairs"], group.score["split"]) == (5, 10, "test")
    assert group.score["kendall_tau"] == pytest.approx((8 - 2) / 10)
    assert group.score["regret"] == pytest.approx(1.0)  # takes tp 2: 2 s where 1 s was possible
    found = [(p.row, p.predicted_rank, p.measured_rank, p.measured_s) for p in group.places]
    assert found == [
        (1, 2, 1, 1.0),
        (2, 1, 2, 2.0),
        (3, 4, 3, 3.0),
        (4, 3, 4, 4.0),
        (5, 5, 5, 5.0),
    ]
    assert numbers.ranking_by_split["test"]["groups"] == 1


def test_equal_times_share_a_place() -> None:
    rows = [row(f"tp{tp}", 1.0, float(tp), tp=str(tp)) for tp in (1, 2, 4, 8, 16)]
    (group,) = collect_validation(Validation(rows=tuple(rows))).rankings
    assert [place.predicted_rank for place in group.places] == [1] * 5
    assert [place.measured_rank for place in group.places] == [1, 2, 3, 4, 5]


def test_every_skipped_row_is_under_its_reason_most_frequent_first() -> None:
    rows = (
        row("a", None, None, {"reason": "no profile for Z9 (known: H100)"}),
        row("b", 1.0, 1.0),
        row("c", None, None, {"reason": "runs.csv: line 2: dp: must be a number\nand more"}),
        row("d", None, None, {"reason": "runs.csv: line 2: dp: must be a number"}),
    )
    skipped = collect_validation(Validation(rows=rows)).skipped
    ids = {reason: [row.run.get("run_id") for row in some] for reason, some in skipped.items()}
    assert list(ids.items()) == [
        ("dp: must be a number", ["c", "d"]),
        ("no profile for Z9", ["a"]),
    ]


def card(grade: str) -> Card:
    return Card(
        grade=grade,
        runs=0,
        mean_error=None,
        nearest_run=None,
        nearest_error=None,
        nearest_distance="",
        borrowed=(),
        assumed=0,
        widened_by={},
    )


def test_predictions_are_counted_by_their_evidence() -> None:
    grades = ("extrapolated", "measured here", "extrapolated")
    rows = tuple(row(f"run-{i}", 1.0, 1.0, {"evidence": card(g)}) for i, g in enumerate(grades))
    counted = collect_validation(Validation(rows=rows)).evidence
    assert list(counted.items()) == [("measured here", 1), ("extrapolated", 2)]


def test_nothing_predicted_is_no_number() -> None:
    numbers = collect_validation(Validation(rows=(row("a", None, 1.0, {"reason": "not yet"}),)))
    assert (numbers.predicted, numbers.worst, numbers.rankings, numbers.memory) == (0, (), (), ())
    assert numbers.evidence == {} and numbers.series == ()
    assert [line.errors["mape"] for line in numbers.splits] == [None]


def test_words_of_a_layout() -> None:
    fields = {
        **WORDS,
        "tp": "4",
        "pp": "2",
        "vpp": "3",
        "sequence_parallel": "true",
        "shard_group": "4",
        "recompute": "selective",
        "micro_batch": "2",
    }
    told = layout_words(MeasuredRun(where="", fields=fields))
    assert told == "tp4 pp2 vpp3 dp8 mb2 sp zero1:4 selective"
    assert layout_words(MeasuredRun(where="", fields={"tp": "many"})) == "tpmany mb1"
