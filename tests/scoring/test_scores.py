"""The summary of hand-made rows: every number worked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.measured.rows import MeasuredRun
from simulator.scoring.scores import ScoredRow, error_statistics, summary

WORDS = {"source": "lab", "split": "test", "model": "tiny", "gpu": "H100", "num_gpus": "8",
         "software": "stack-1.0", "precision": "bf16", "seq_len": "1000",
         "global_batch": "8"}  # fmt: skip


def row(predicted: float | None = 10.0, measured: float = 10.0, /, **given: Any) -> ScoredRow:
    """Make one row; words of the table, and fields of the scored row by their own names."""
    own = {
        name: given.pop(name)
        for name in ("p10_s", "p90_s", "reason", "replayable")
        if name in given
    }
    run = MeasuredRun(where="runs.csv: line 2", fields={**WORDS, **given})
    status: Any = "skipped" if predicted is None else "ok"
    return ScoredRow(
        run=run, status=status, predicted_step_s=predicted, measured_step_s=measured, **own
    )


# --- statistics --------------------------------------------------------------------------


def test_statistics_by_hand() -> None:
    found = error_statistics([0.1, -0.2, 0.3, 0.0])
    assert (found["n"], found["coverage_80"]) == (4, None)
    expected = {"mape": 0.15, "median_ape": 0.15, "bias": 0.05, "p90_ape": 0.27, "max_ape": 0.3}
    for name, value in expected.items():
        assert found[name] == pytest.approx(value), name


def test_no_row_is_no_number() -> None:
    found = error_statistics([])
    assert found.pop("n") == 0
    assert set(found.values()) == {None}


# --- by what the rows say ----------------------------------------------------------------


def test_rows_are_told_apart_by_every_word() -> None:
    found = summary(
        [
            row(11.0),
            row(12.0, num_experts="8", gpu="B200", precision="fp8_current", num_gpus="64"),
            row(9.0, split="calibrate", software="stack-2.0-rc1", num_gpus="1", num_experts="0"),
            row(14.0, software="", num_gpus="4096", precision=""),
        ]
    )
    expected = {
        "by_kind": {"dense": 0.2, "MoE": 0.2},
        "by_gpu": {"B200": 0.2, "H100": 0.2},
        "by_framework": {"not stated": 0.4, "stack": 0.4 / 3},
        "by_precision": {"bf16": 0.1, "fp8_current": 0.2, "not stated": 0.4},
        "by_scale": {"1 GPU": 0.1, "2-8 GPUs": 0.1, "9-64 GPUs": 0.2, "more than 512 GPUs": 0.4},
        "by_split": {"calibrate": 0.1, "test": 0.7 / 3},
    }
    for by, parts in expected.items():
        assert list(found[by]) == list(parts), by
        for name, mape in parts.items():
            assert found[by][name]["mape"] == pytest.approx(mape), (by, name)
    dense = found["by_kind"]["dense"]["by_split"]
    assert dense["calibrate"]["bias"] == pytest.approx(-0.1)
    assert (dense["test"]["n"], dense["test"]["bias"]) == (2, pytest.approx(0.25))


def test_coverage_counts_what_could_have_been_predicted() -> None:
    found = summary(
        [
            row(),
            row(),
            row(None, reason="no profile"),
            row(composed="true"),
            row(None, reason="layers: must be a number", replayable=False),
            row(None, source="other", reason="excluded: slow clock", replayable=False),
        ]
    )["by_source"]
    lab, other = found["lab"], found["other"]
    assert (lab["rows"], lab["skipped"], lab["replayable"], lab["coverage"]) == (5, 2, 4, 0.75)
    assert (other["rows"], other["replayable"], other["coverage"]) == (1, 0, None)
    assert lab["by_split"]["test"]["coverage"] == 0.75


# --- intervals ---------------------------------------------------------------------------


def test_without_intervals_there_is_no_coverage() -> None:
    found = summary([row(), row(11.0, split="calibrate")])["step"]
    assert (found["coverage_80"], found["interval_width"], found["interval_score"]) == (None,) * 3
    assert found["constant_interval"]["coverage_80"] is None


def test_intervals_are_scored_beside_the_constant_one_of_the_calibration_rows() -> None:
    inside = row(10.0, p10_s=9.0, p90_s=11.0)
    missed = row(8.0, p10_s=6.0, p90_s=9.5)
    fitted = row(12.0, p10_s=11.0, p90_s=13.0, split="calibrate")
    composed = row(1.0, p10_s=0.9, p90_s=1.1, split="calibrate", composed="true")
    found = summary([inside, missed, fitted, composed, row(20.0, split="test")])
    step, test = found["step"], found["by_split"]["test"]
    assert step["coverage_80"] == pytest.approx(1 / 3)  # of the rows that have an interval
    assert step["interval_width"] == pytest.approx(0.2)
    assert step["interval_score"] == pytest.approx((0.2 + 0.85 + 1.2) / 3)
    assert (test["n"], test["coverage_80"]) == (3, 0.5)
    # fitted on one row: predicted 12, measured 10, so 1/6 of the prediction
    constant = test["constant_interval"]
    assert constant["half_width"] == pytest.approx(1 / 6)
    assert constant["coverage_80"] == 0.5
    assert constant["interval_width"] == pytest.approx((2 / 6 + 1.6 / 6) / 2)
    assert constant["interval_score"] == pytest.approx((2 / 6 + 1.6 / 6 + 2 / 3) / 2)


# --- rankings ----------------------------------------------------------------------------


def group(predicted: list[float], **words: str) -> list[ScoredRow]:
    """Five layouts that were measured at 10, 11, 12, 13 and 14 s."""
    return [row(guess, 10.0 + i, tp=str(2**i), **words) for i, guess in enumerate(predicted)]


def test_rankings_are_summed_up_by_split_and_composed_ones_apart() -> None:
    found = summary(
        [
            *group([1, 2, 3, 4, 5]),  # tau 1, regret 0
            *group([2, 1, 3, 4, 5], model="other"),  # one pair of ten: tau 0.8, regret 0.1
            *group([5, 4, 3, 2, 1], split="calibrate"),  # reversed; the same model, so one group
            *group([5, 4, 3, 2, 1], composed="true", split="test"),
            *group([3, 2, 1, 4, 5], model="third", split="calibrate"),  # tau 0.4, regret 0.2
        ]
    )
    names = {g["group"].partition(",")[0]: g for g in found["ranking"] if not g["composed"]}
    assert [g["composed"] for g in found["ranking"]].count(True) == 1
    assert {name: g["split"] for name, g in names.items()} == {
        "tiny": "calibrate + test",
        "other": "test",
        "third": "calibrate",
    }
    by_split = found["ranking_by_split"]
    assert set(by_split) == {"calibrate", "calibrate + test", "composed", "test"}
    assert by_split["composed"]["median_tau"] == -1.0
    assert by_split["composed"]["worst_regret"] == pytest.approx(0.4)
    assert by_split["test"]["median_tau"] == pytest.approx(0.8)
    assert by_split["test"]["median_regret"] == pytest.approx(0.1)
    assert by_split["calibrate"]["worst_regret"] == pytest.approx(0.2)


def test_two_groups_of_a_split_by_their_medians() -> None:
    rows = [*group([1, 2, 3, 4, 5]), *group([2, 1, 3, 4, 5], model="other")]
    assert summary(rows)["ranking_by_split"] == {
        "test": {
            "groups": 2,
            "median_tau": pytest.approx(0.9),
            "median_regret": pytest.approx(0.05),
            "worst_regret": pytest.approx(0.1),
        }
    }
