"""Rows become scores: predicted or skipped with a reason, pooled or not, all of them kept."""

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
from simulator.evidence.card import GRADES
from simulator.files import read_csv
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


# --- rows --------------------------------------------------------------------------------


def test_a_row_is_scored_against_its_measured_time(tmp_path: Path) -> None:
    (row,) = scored(tmp_path, GPT).rows
    assert (row.status, row.reason, row.measured_step_s) == ("ok", None, 18.13)
    assert row.predicted_step_s is not None
    assert row.step_error == pytest.approx(row.predicted_step_s / 18.13 - 1.0)
    assert row.evidence is not None and row.evidence.grade in GRADES


def test_rows_predicted_together_are_as_alone(tmp_path: Path) -> None:
    other = GPT | {"recompute": "selective", "tp": "4", "dp": "2"}
    together = scored(tmp_path, GPT, other).rows
    for row, source in zip(together, (GPT, other), strict=True):
        (alone,) = scored(tmp_path, source).rows
        assert row.predicted_step_s == pytest.approx(alone.predicted_step_s, rel=1e-12)
        assert row.predicted_memory_gib == pytest.approx(alone.predicted_memory_gib, rel=1e-12)


def test_rows_of_other_sizes_predicted_together_are_as_alone(tmp_path: Path) -> None:
    rows = [
        GPT | {"dp": str(dp), "num_gpus": str(64 * dp), "global_batch": str(batch)}
        for dp, batch in ((4, 512), (1, 64), (1, 128), (2, 64), (12, 384))
    ]
    together = scored(tmp_path, *rows).rows
    for row, source in zip(together, rows, strict=True):
        (alone,) = scored(tmp_path, source).rows
        for name in (
            "predicted_step_s",
            "predicted_memory_gib",
            "baseline_step_s",
            "measured_mfu",
            "measured_mfu_own",
        ):
            assert getattr(row, name) == pytest.approx(getattr(alone, name), rel=1e-12), name
        assert row.evidence is not None and alone.evidence is not None
        assert row.evidence.mean_error == pytest.approx(alone.evidence.mean_error, rel=1e-9)
        assert row.evidence.remarks == alone.evidence.remarks


def test_skipped_rows_keep_their_place_and_reason(tmp_path: Path) -> None:
    rows = (GPT | {"gpu": "abacus"}, GPT, GPT | {"layers": "many"}, GPT | {"layers": "few"})
    found = scored(tmp_path, *rows)
    assert [row.status for row in found.rows] == ["skipped", "ok", "skipped", "skipped"]
    assert [row.replayable for row in found.rows] == [True, True, False, False]
    assert str(found.rows[0].reason).startswith("no hardware profile for abacus")
    where = f"{tmp_path / 'runs.csv'}: line 4: "
    assert found.rows[2].reason == f"{where}layers: must be a whole number, got 'many'"
    assert found.rows[2].measured_step_s == 18.13
    assert found.summary()["skipped"] == {
        "no hardware profile for abacus": 1,
        "layers: must be a whole number, got 'many'": 1,
        "layers: must be a whole number, got 'few'": 1,
    }
    source = found.summary()["by_source"]["korthikanti22-t5"]
    assert (source["rows"], source["replayable"], source["coverage"]) == (4, 2, 0.5)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"step_time_s": "nan"}, "step_time_s: must be a positive number, got 'nan'"),
        ({"step_time_s": "-3"}, "step_time_s: must be a positive number, got '-3'"),
        ({"step_time_s": "1e999"}, "step_time_s: must be a positive number, got '1e999'"),
        ({"peak_memory_gib": "lots"}, "peak_memory_gib: must be a positive number, got 'lots'"),
        ({"tokens_per_s_per_gpu": "200"}, "step_time_s: must agree with tokens_per_s_per_gpu"),
        ({"step_time_s": "18130"}, "step_time_s: implies 0.0"),
        ({"step_time_s": "0.01813"}, "step_time_s: implies 3"),
        ({"model_tflops_per_gpu": "140e12"}, "model_tflops_per_gpu: is 4.49e+11 x the dense fp16"),
        ({"peak_memory_gib": "70000"}, "peak_memory_gib: is above the 85.9 GB of a100-sxm-80"),
        ({"dp": "2"}, "num_gpus: must be dp x tp x pp x cp = 128, got 64"),
    ],
)
def test_a_row_that_cannot_be_right_is_left_out_alone(
    tmp_path: Path, given: dict[str, str], said: str
) -> None:
    wrong, good = scored(tmp_path, GPT | given, GPT).rows
    assert (wrong.status, wrong.replayable, good.status) == ("skipped", False, "ok")
    assert str(wrong.reason).startswith(f"{tmp_path / 'runs.csv'}: line 2: {said}")


def test_excluded_rows_are_in_no_figure(tmp_path: Path) -> None:
    summary = scored(tmp_path, GPT | {"excluded": "twice", "step_time_s": "17"}).summary()
    assert (summary["step"]["n"], summary["baseline"]["n"]) == (0, 0)
    assert summary["skipped"] == {"excluded: twice": 1}
    assert summary["by_source"]["korthikanti22-t5"]["coverage"] is None


def test_a_repeated_run_id_leaves_the_first(tmp_path: Path) -> None:
    rows = [GPT | {"run_id": name} for name in ("a", "b", "a", "")]
    path = write(tmp_path / "runs.csv", *rows)
    found = validate(path)
    assert [row.status for row in found.rows] == ["ok", "ok", "skipped", "skipped"]
    first = f"run_id: 'a' is already the id of {path}: line 2"
    assert found.rows[2].reason == f"{path}: line 4: {first}"
    assert found.rows[3].reason == f"{path}: line 5: run_id: required field is blank"


def test_a_row_with_other_cells_than_the_header_is_left_out(tmp_path: Path) -> None:
    path, cells = tmp_path / "runs.csv", len(GPT)
    rows = [[*(GPT | {"run_id": name, "notes": ""}).values()] for name in "abc"]
    lines = [[*GPT], [*rows[0], "x"], rows[1], rows[2][:-1]]
    path.write_text("\n".join(",".join(line) for line in lines))
    long, good, short = validate(path).rows
    assert (long.status, good.status, short.status) == ("skipped", "ok", "skipped")
    rule = f"must have {cells} cells as the header has"
    assert long.reason == f"{path}: line 2: {rule}, got {cells + 1}"
    assert short.reason == f"{path}: line 4: {rule}, got {cells - 1}"


def test_one_bad_file_does_not_stop_the_others(tmp_path: Path) -> None:
    good, bare = write(tmp_path / "good.csv", GPT), tmp_path / "bare.csv"
    bare.write_text(",".join(GPT) + "\n")
    found = validate([tmp_path / "nowhere", good, bare])
    assert [row.status for row in found.rows] == ["ok"]
    assert found.problems == (
        f"{tmp_path / 'nowhere'}: no such file",
        f"{bare}: the table has a header and no rows",
    )
    assert found.document()["problems"] == list(found.problems)


def test_both_mfus_of_an_fp8_run_are_kept(tmp_path: Path) -> None:
    fp8 = next(row for row in ROWS.values() if row["precision"] == "fp8_delayed")
    (row,) = scored(tmp_path, fp8).rows
    assert row.measured_mfu is not None and row.measured_mfu_own is not None
    assert row.measured_mfu == pytest.approx(2 * row.measured_mfu_own, rel=1e-3)


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
    assert sizes[1] < sizes[2]  # communicators and the context are in neither count of torch
    assert reserved.memory_error == pytest.approx(sizes[1] / 70 - 1)
    assert smi.memory_error == pytest.approx(sizes[2] / 70 - 1)
    assert [row.memory_error is None for row in found] == [False, False, False, True, True]
    memory = scored(tmp_path, *rows).summary()["memory"]
    assert [memory[kind]["n"] for kind in ("allocated", "reserved", "nvidia_smi")] == [1, 1, 1]


def test_the_baseline_runs_its_flops_at_the_median_rate_of_the_gpu(tmp_path: Path) -> None:
    (row,) = scored(tmp_path, GPT | {"recompute": "none"}).rows
    layers, hidden, length, batch, vocabulary = 96, 12288, 2048, 64, 51200
    tokens = length * batch
    forward = 24 * hidden**2 * layers + 2 * layers * length * hidden  # causal: half the scores
    flop = 3 * tokens * (forward + 2 * hidden * vocabulary)
    rate = 129e12  # A100-80GB at 16 bit, as the collectors of the runs printed it
    assert row.baseline_step_s == pytest.approx(flop / (64 * rate), rel=0.5 / 129)
    (again,) = scored(tmp_path, GPT).rows
    assert again.baseline_step_s == pytest.approx(4 / 3 * row.baseline_step_s, rel=1e-9)


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
    composed = GPT | {"source": "parts", "composed": "true", "step_time_s": "12"}
    summary = scored(tmp_path, GPT, composed).summary()
    assert summary["step"]["n"] == summary["baseline"]["n"] == 1
    assert summary["step"]["max_ape"] < 0.2
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
