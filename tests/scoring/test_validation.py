"""Scores: statistics worked by hand, rows skipped with a reason, what is pooled and what is not."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import simulator
from simulator import catalogue
from simulator.errors import InputError
from simulator.files import read_csv
from simulator.scoring.scores import error_statistics, kendall_tau, ranking, regret
from simulator.scoring.validation import Validation, validate

RUNS = catalogue.folder("validation") / "runs"
ROWS = {row["run_id"]: row for _, row in read_csv(RUNS / "test.csv")}
GPT = ROWS["korthikanti22-t5-003"] | {"tokens_per_s_per_gpu": ""}


def write(path: Path, *rows: Mapping[str, str]) -> Path:
    lines = [",".join(rows[0]), *(",".join(f'"{v}"' for v in row.values()) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def scored(folder: Path, *rows: Mapping[str, str]) -> Validation:
    named = [{**row, "run_id": f"run-{i}"} for i, row in enumerate(rows)]
    return validate(write(folder / "runs.csv", *named))


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


def test_tau_counts_pairs_that_differ_by_more_than_3_percent() -> None:
    measured = [1.0, 1.02, 1.5, 2.0]  # five pairs of six; 1.0 and 1.02 are a tie
    assert kendall_tau(measured, measured) == (5, 1.0)
    assert kendall_tau([-x for x in measured], measured) == (5, -1.0)
    assert kendall_tau([1.0, 1.0, 1.0, 1.0], measured) == (5, 0.0)
    assert kendall_tau([1.0, 1.6, 1.5, 2.0], measured) == (5, 0.6)  # 1.02 and 1.5 are swapped


def test_the_bound_of_3_percent_is_itself_a_tie() -> None:
    assert kendall_tau([1.0, 2.0], [100.0, 103.0]) == (0, None)
    assert kendall_tau([1.0, 2.0], [100.0, 103.1]) == (1, 1.0)


def test_regret_by_hand() -> None:
    assert regret([1.0, 2.0, 3.0], [5.0, 4.0, 6.0]) == pytest.approx(0.25)
    assert regret([2.0, 1.0, 3.0], [5.0, 4.0, 6.0]) == 0.0
    assert regret([1.0, 1.0, 1.0], [4.0, 5.0, 6.0]) == pytest.approx(0.25)  # blind: the mean


def test_repeats_of_a_layout_count_once_and_five_layouts_are_needed() -> None:
    measured = [1.0, 2.0, 3.0, 4.0, 5.0, 7.0]
    found = ranking("g", list("abcdee"), [1.0, 2.0, 3.0, 4.0, 0.5, 0.5], measured)
    assert found is not None
    assert (found["group"], found["n"], found["pairs"]) == ("g", 5, 10)
    assert found["kendall_tau"] == pytest.approx((6 - 4) / 10)
    assert found["regret"] == pytest.approx(5.0)  # picks e: 6.0 on average, best is 1.0
    assert ranking("g", list("abcddd"), measured, measured) is None


# --- rows --------------------------------------------------------------------------------


def test_a_row_is_scored_against_its_measured_time(tmp_path: Path) -> None:
    (row,) = scored(tmp_path, GPT).rows
    assert (row.status, row.reason, row.measured_step_s) == ("ok", None, 18.13)
    assert row.predicted_step_s is not None
    assert row.step_error == pytest.approx(row.predicted_step_s / 18.13 - 1.0)
    assert row.evidence in ("measured", "fitted", "datasheet", "assumed")


def test_rows_predicted_together_are_as_alone(tmp_path: Path) -> None:
    other = GPT | {"recompute": "selective", "tp": "4", "dp": "2"}
    together = scored(tmp_path, GPT, other).rows
    for row, source in zip(together, (GPT, other), strict=True):
        (alone,) = scored(tmp_path, source).rows
        assert row.predicted_step_s == pytest.approx(alone.predicted_step_s, rel=1e-12)
        assert row.predicted_memory_gib == pytest.approx(alone.predicted_memory_gib, rel=1e-12)


def test_skipped_rows_keep_their_place_and_reason(tmp_path: Path) -> None:
    rows = (GPT | {"precision": "nvfp4"}, GPT, GPT | {"layers": "many"}, GPT | {"layers": "few"})
    found = scored(tmp_path, *rows)
    assert [row.status for row in found.rows] == ["skipped", "ok", "skipped", "skipped"]
    assert found.rows[0].reason == "nvfp4 is not modelled yet"
    where = f"{tmp_path / 'runs.csv'}: line 4: "
    assert found.rows[2].reason == f"{where}layers: must be a whole number, got 'many'"
    assert found.rows[2].measured_step_s == 18.13
    assert found.summary()["skipped"] == {
        "nvfp4 is not modelled yet": 1,
        "layers: must be a whole number, got 'many'": 1,
        "layers: must be a whole number, got 'few'": 1,
    }


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("step_time_s", "nan", "step_time_s: must be a positive number, got 'nan'"),
        ("step_time_s", "-3", "step_time_s: must be a positive number, got '-3'"),
        ("peak_memory_gib", "lots", "peak_memory_gib: must be a positive number, got 'lots'"),
        ("tokens_per_s_per_gpu", "200", "step_time_s: must agree with tokens_per_s_per_gpu"),
    ],
)
def test_measured_values_are_checked(tmp_path: Path, field: str, value: str, said: str) -> None:
    (row,) = scored(tmp_path, GPT | {field: value}).rows
    assert row.status == "skipped"
    assert said in str(row.reason)


def test_a_run_without_a_time_is_predicted_and_not_scored(tmp_path: Path) -> None:
    found = scored(tmp_path, GPT | {"step_time_s": ""})
    assert found.rows[0].predicted_step_s is not None
    assert found.rows[0].step_error is None
    assert found.summary()["step"]["n"] == 0


def test_memory_is_scored_against_the_same_kind_only(tmp_path: Path) -> None:
    kinds = ("allocated", "reserved", "nvidia_smi", "unknown", "")
    rows = [GPT | {"peak_memory_gib": "70", "memory_kind": kind} for kind in kinds]
    allocated, reserved, smi, unknown, blank = found = scored(tmp_path, *rows).rows
    assert allocated.predicted_memory_gib and reserved.predicted_memory_gib
    assert smi.predicted_memory_gib == unknown.predicted_memory_gib == blank.predicted_memory_gib
    sizes = [row.predicted_memory_gib or 0.0 for row in (allocated, reserved, smi)]
    assert sizes == sorted(sizes)
    assert sizes[1] < sizes[2]  # communicators are in neither count of torch
    assert reserved.memory_error == pytest.approx(sizes[1] / 70 - 1)
    assert [row.memory_error is None for row in found] == [False, False, True, True, True]
    memory = scored(tmp_path, *rows).summary()["memory"]
    assert (memory["allocated"]["n"], memory["reserved"]["n"]) == (1, 1)


def test_the_baseline_runs_the_same_flops_at_half_of_the_peak(tmp_path: Path) -> None:
    (row,) = scored(tmp_path, GPT | {"recompute": "none"}).rows
    layers, hidden, length, batch, vocabulary = 96, 12288, 2048, 64, 51200
    tokens = length * batch
    forward = 24 * hidden**2 * layers + 2 * layers * length * hidden  # causal: half the scores
    flop = 3 * tokens * (forward + 2 * hidden * vocabulary)
    assert row.baseline_step_s == pytest.approx(flop / (64 * 0.5 * 312e12), rel=1e-9)
    (again,) = scored(tmp_path, GPT).rows
    assert again.baseline_step_s == pytest.approx(4 / 3 * flop / (64 * 0.5 * 312e12), rel=0.01)


# --- many rows ---------------------------------------------------------------------------


def test_a_ranking_group_differs_in_the_layout_only(tmp_path: Path) -> None:
    splits = [("8", "8", "1"), ("4", "8", "2"), ("2", "8", "4"), ("8", "4", "2"), ("4", "4", "4")]
    rows = [
        GPT | {"tp": tp, "pp": pp, "dp": dp, "vpp": "1", "step_time_s": str(18 + i)}
        for i, (tp, pp, dp) in enumerate(splits)
    ]
    stranger = GPT | {"global_batch": "128"}
    (group,) = scored(tmp_path, *rows, stranger).summary()["ranking"]
    assert (group["n"], group["pairs"]) == (5, 10)
    assert group["group"] == (
        "gpt-175b, 64 x A100-SXM4-80GB, sequence 2048, batch 64, fp16, megatron-lm-2022"
    )
    assert -1.0 <= group["kendall_tau"] <= 1.0
    assert group["regret"] >= 0.0
    assert scored(tmp_path, *rows[:4]).summary()["ranking"] == []


def test_composed_runs_stay_out_of_pooled_figures(tmp_path: Path) -> None:
    composed = GPT | {"source": "parts", "notes": "COMPOSED: of layers", "step_time_s": "1"}
    summary = scored(tmp_path, GPT, composed).summary()
    assert summary["step"]["n"] == summary["baseline"]["n"] == 1
    assert summary["step"]["max_ape"] < 0.5
    assert summary["by_split"]["test"]["n"] == summary["by_gpu"]["A100-SXM4-80GB"]["n"] == 1
    assert summary["by_source"]["parts"]["by_split"]["test"]["n"] == 1


def test_sources_and_splits_are_told_apart(tmp_path: Path) -> None:
    rows = (GPT, GPT | {"split": "calibrate"}, GPT | {"split": "", "source": "", "layers": "x"})
    summary = scored(tmp_path, *rows).summary()
    assert set(summary["by_split"]) == {"test", "calibrate", "not stated"}
    source = summary["by_source"]["korthikanti22-t5"]
    assert (source["rows"], source["n"], source["by_split"]["calibrate"]["n"]) == (2, 2, 1)
    assert summary["by_source"]["not stated"]["skipped"] == 1


def test_the_document_has_null_and_never_nan(tmp_path: Path) -> None:
    def finite(value: Any) -> bool:
        if isinstance(value, dict):
            return all(finite(item) for item in value.values())
        if isinstance(value, list):
            return all(finite(item) for item in value)
        return not isinstance(value, float) or math.isfinite(value)

    for rows in ((GPT,), (GPT | {"layers": "x"},), (GPT, GPT | {"step_time_s": ""})):
        document = scored(tmp_path, *rows).document()
        assert finite(document)
        json.dumps(document, allow_nan=False)


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    path = write(tmp_path / "runs.csv", GPT)
    validate([path], progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 1)]


def test_a_bad_table_is_an_error_of_the_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        validate(tmp_path / "absent.csv")


def test_the_package_offers_it() -> None:
    assert simulator.validate is validate
