"""`foreshard validate`: the shipped runs, a frozen document, exit codes."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simulator import catalogue
from simulator.cli.main import app
from simulator.cli.screen import print_screen
from simulator.measured.rows import MeasuredRun
from simulator.questions.validate.command import screen
from simulator.scoring.scores import ScoredRow
from simulator.scoring.validation import Validation

RUNNER = CliRunner()
RUNS = catalogue.folder("validation") / "runs"

ROW = [
    "run_id", "status", "reason", "predicted_step_s", "measured_step_s", "step_error", "p10_s",
    "p90_s", "predicted_memory_gib", "measured_memory_gib", "memory_kind", "memory_error",
    "evidence", "measured_mfu", "measured_mfu_own", "replayable", "assumed_software",
]  # fmt: skip
SUMMARY = [
    "step", "memory", "ranking", "by_source", "by_gpu", "by_split", "baseline", "skipped",
    "assumed_fields", "by_kind", "by_framework", "by_precision", "by_scale", "ranking_by_split",
    "kernels", "collectives", "rl",
]  # fmt: skip
ERRORS = ["n", "mape", "median_ape", "bias", "p90_ape", "max_ape", "coverage_80"]
INTERVALS = ["coverage_80", "interval_width", "interval_score"]
STEP = [*ERRORS, "interval_width", "interval_score", "constant_interval"]
PART = [*STEP, "rows", "skipped", "baseline", "replayable", "coverage"]
BENCHMARKS = ["rows", "skipped", "by_device", "by_library", "by_dtype", "by_kernel", "by_size"]
KINDS = ("allocated", "reserved", "nvidia_smi")
PARTS = ["by_source", "by_gpu", "by_kind", "by_framework", "by_precision", "by_scale"]

WORST_SOURCE = 0.085
"""The eight runs of Korthikanti et al. may be this far off: NVIDIA's own A100s are faster than the
rate that all A100s share (SimuMax, unfitted, reaches 7.4 %; Calculon's 3.7 % was set on them)."""


def rows_of(name: str) -> list[dict[str, str]]:
    with (RUNS / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def document(*arguments: str) -> dict[str, Any]:
    """Run with --json and parse the output as strictly as JSON is."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    result = RUNNER.invoke(app, ["validate", *arguments, "--json"])
    assert (result.exit_code, result.stderr) == (0, "")
    found: dict[str, Any] = json.loads(result.stdout, parse_constant=refuse)
    return found


@pytest.fixture(scope="module")
def shipped() -> dict[str, Any]:
    return document()


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A few of the shipped runs, some with memory."""
    rows = rows_of("calibrate") + rows_of("test")
    read = {kind: [row for row in rows if row["memory_kind"] == kind][:2] for kind in KINDS}
    path = tmp_path_factory.mktemp("some") / "runs.csv"
    return document(str(write(path, [*rows[::29], *(row for two in read.values() for row in two)])))


def test_keys_of_some_runs_are_frozen(some: dict[str, Any]) -> None:
    assert_keys_of_runs(some)


@pytest.mark.evidence
def test_keys_are_frozen(shipped: dict[str, Any]) -> None:
    assert_keys_of_runs(shipped)
    summary = shipped["summary"]
    for kind in ("kernels", "collectives"):
        assert list(summary[kind]) == [*ERRORS, *BENCHMARKS]
        for by in BENCHMARKS[2:]:
            assert all(list(errors) == ERRORS for errors in summary[kind][by].values())


def assert_keys_of_runs(found: dict[str, Any]) -> None:
    assert list(found) == ["rows", "summary", "problems"]
    assert {tuple(row) for row in found["rows"]} == {tuple(ROW)}
    summary = found["summary"]
    assert list(summary) == SUMMARY
    assert list(summary["step"]) == STEP
    assert list(summary["step"]["constant_interval"]) == ["half_width", *INTERVALS]
    assert {kind: list(errors) for kind, errors in summary["memory"].items()} == dict.fromkeys(
        KINDS, ERRORS
    )
    assert list(summary["baseline"]) == ERRORS
    for by in PARTS:
        for errors in summary[by].values():
            assert list(errors) == [*PART, "by_split"]
            assert all(list(split) == PART for split in errors["by_split"].values())
    assert all(list(errors) == PART for errors in summary["by_split"].values())
    for group in summary["ranking"]:
        assert list(group) == [
            "group",
            "n",
            "pairs",
            "kendall_tau",
            "regret",
            "split",
            "composed",
        ]
    for ranking in summary["ranking_by_split"].values():
        assert list(ranking) == ["groups", "median_tau", "median_regret", "worst_regret"]


@pytest.mark.evidence
def test_every_shipped_row_is_there_once(shipped: dict[str, Any]) -> None:
    expected = [row["run_id"] for row in rows_of("calibrate") + rows_of("test")]
    assert [row["run_id"] for row in shipped["rows"]] == expected
    assert len(expected) == 720
    for row in shipped["rows"]:
        ok = row["status"] == "ok"
        assert (row["status"], row["reason"] is None) == ("ok" if ok else "skipped", ok)
        assert (row["predicted_step_s"] is None) == (not ok)
        assert not ok or row["p10_s"] < row["predicted_step_s"] < row["p90_s"]
        assert row["measured_step_s"] > 0


@pytest.mark.evidence
def test_counts_agree(shipped: dict[str, Any]) -> None:
    rows, summary = shipped["rows"], shipped["summary"]
    skipped = sum(row["status"] == "skipped" for row in rows)
    assert sum(summary["skipped"].values()) == skipped
    assert summary["step"]["n"] == len(rows) - skipped
    assert not any(row["replayable"] is False for row in rows)
    for by in (*PARTS, "by_split"):
        assert sum(errors["n"] for errors in summary[by].values()) == summary["step"]["n"]
        assert sum(errors["skipped"] for errors in summary[by].values()) == skipped
        for errors in summary[by].values():
            assert errors["coverage"] == (errors["rows"] - errors["skipped"]) / errors["rows"]


@pytest.mark.evidence
def test_korthikanti_is_predicted_far_better_than_by_one_rate(shipped: dict[str, Any]) -> None:
    errors = shipped["summary"]["by_source"]["korthikanti22-t5"]
    assert (errors["rows"], errors["n"], errors["skipped"]) == (8, 8, 0)
    assert errors["mape"] < WORST_SOURCE
    assert errors["baseline"]["mape"] == pytest.approx(0.240, abs=0.0005)
    assert list(errors["by_split"]) == ["test"]


def test_calibrate_and_test_have_nothing_in_common() -> None:
    calibrate, test = rows_of("calibrate"), rows_of("test")
    assert {row["split"] for row in calibrate} == {"calibrate"}
    assert {row["split"] for row in test} == {"test"}
    assert not {row["run_id"] for row in calibrate} & {row["run_id"] for row in test}
    own = (
        "run_id",
        "source",
        "split",
        "step_time_s",
        "tokens_per_s_per_gpu",
        "assumed",
        "notes",
        "model_tflops_per_gpu",
        "peak_memory_gib",
        "memory_kind",
    )
    described = [
        {tuple(v for k, v in row.items() if k not in own) for row in rows}
        for rows in (calibrate, test)
    ]
    assert not described[0] & described[1]


def test_composed_runs_are_a_line_of_their_own(tmp_path: Path, extent: str) -> None:
    every = {"sample": 12, "whole": 1}[extent]
    names = ("vtrain_single", "analytic_memory")
    tables = [write(tmp_path / f"{name}.csv", rows_of(name)[::every]) for name in names]
    found = document(*map(str, tables))
    assert found["summary"]["step"]["n"] == 0
    assert set(found["summary"]["by_source"]) == {"vtrain-single", "korthikanti22-fig1"}
    assert {row["memory_error"] for row in found["rows"]} == {None}


@pytest.mark.evidence
def test_the_screen_says_it_all() -> None:
    wide = CliRunner(env={"COLUMNS": "140"})
    result = wide.invoke(app, ["validate", str(RUNS / "test.csv")])
    assert (result.exit_code, result.stderr) == (0, "")
    for word in (
        "270 measured runs",
        "test (nothing is fitted on these)",
        "korthikanti22-t5",
        "all test",
        "kind",
        "dense",
        "MoE",
        "framework",
        "megatron-bridge",
        "precision",
        "fp8_current",
        "scale",
        "more than 512 GPUs",
        "baseline, constant efficiency per GPU and precision",
        "memory, allocated",
        "ranking of layouts",
        "ranking, test,",
        "median tau",
        "furthest off (5 rows)",
        "assumed",
    ):
        assert word in result.stdout, word


def test_a_rate_above_the_bf16_peak_is_shown_over_both(tmp_path: Path) -> None:
    fp8 = next(row for row in rows_of("test") if row["precision"] == "fp8_delayed")
    (before,) = document(str(write(tmp_path / "a.csv", [fp8])))["rows"]
    faster = 1.2 / before["measured_mfu"]
    fast = fp8 | {
        "step_time_s": str(float(fp8["step_time_s"]) / faster),
        "tokens_per_s_per_gpu": "",
    }
    path = write(tmp_path / "b.csv", [fast])
    (row,) = document(str(path))["rows"]
    assert row["measured_mfu"] == pytest.approx(1.2)
    assert row["measured_mfu_own"] == pytest.approx(0.6, rel=1e-3)
    result = RUNNER.invoke(app, ["validate", str(path)])
    shown = f"{fp8['run_id']}: measured MFU 1.20 of the bf16 peak, 0.60 of the fp8_delayed peak"
    assert shown in " ".join(result.stdout.split())


def hand_made(predicted: float, p10: float, p90: float, split: str = "test") -> ScoredRow:
    fields = {"source": "lab", "split": split, "model": "m", "gpu": "G", "run_id": "one"}
    return ScoredRow(
        run=MeasuredRun(where="runs.csv: line 2", fields=fields),
        status="ok",
        measured_step_s=10.0,
        predicted_step_s=predicted,
        p10_s=p10,
        p90_s=p90,
    )


def test_intervals_are_shown_beside_the_constant_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Worked by hand in tests/scoring/test_scores.py."""
    rows = (hand_made(10, 9, 11), hand_made(8, 6, 9.5), hand_made(12, 11, 13, "calibrate"))
    print_screen(screen(Validation(rows=rows)))
    assert (
        "intervals, test: 50.0 % inside, median width 27.5 %, score 0.525"
        " (constant width: 50.0 % inside, median width 30.0 %, score 0.633)"
    ) in " ".join(capsys.readouterr().out.split())


def test_many_splits_are_pooled_on_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    print_screen(screen(Validation(rows=tuple(hand_made(11, 9, 12, name) for name in "abcd"))))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["by", "all", "splits", "mean", "bias"] in lines
    assert ["G", "4", "10.0", "%", "+10.0", "%"] in lines


# --- bad input ---------------------------------------------------------------------------

GOOD = next(row for row in rows_of("test") if row["source"] == "korthikanti22-t5")


def test_one_good_row_is_enough_for_0(tmp_path: Path) -> None:
    rows = [GOOD, GOOD | {"layers": "many", "run_id": "second"}, GOOD]
    path = write(tmp_path / "runs.csv", rows)
    result = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["validate", str(path)])
    assert (result.exit_code, result.stderr) == (0, "")
    assert "3 measured runs: 1 predicted, 2 skipped" in result.stdout
    assert f"{path}: line 3: layers: must be a whole number, got 'many'" in result.stdout
    taken = f"run_id: {GOOD['run_id']!r} is already the id of {path}: line 2"
    assert f"{path}: line 4: {taken}" in result.stdout


@pytest.mark.parametrize("flag", [[], ["--json"]])
def test_nothing_usable_is_2_and_still_says_why(tmp_path: Path, flag: list[str]) -> None:
    path = write(tmp_path / "runs.csv", [GOOD | {"gpu": "abacus"}])
    result = RUNNER.invoke(app, ["validate", str(path), *flag])
    assert result.exit_code == 2
    assert "no hardware profile for abacus" in result.stdout
    assert result.stderr == (
        f"{path}: no row could be predicted; the answer has the reason of each\n"
    )


def header(*names: str) -> bytes:
    return (",".join(names) + "\n").encode()


BAD_FILES = {
    "the file is empty": b"",
    "the table has a header and no rows": header(*GOOD),
    "not a text file": header(*GOOD) + b"\xff\xfe\n",
    "column run_id stands twice": header("run_id", *GOOD) + b"a,b\n",
    "not a table of measured runs": header("mood", "hue") + b"good,red\n",
    "micro_bach: unknown column (did you mean 'micro_batch'?)": header(
        *("micro_bach" if name == "micro_batch" else name for name in GOOD)
    )
    + b"a,b\n",
    "cells must be separated by commas": header(";".join(GOOD)),
    "cannot be read": None,
}


@pytest.mark.parametrize("said", BAD_FILES)
@pytest.mark.parametrize("flag", [[], ["--json"]])
def test_a_file_that_is_no_table_is_2(tmp_path: Path, said: str, flag: list[str]) -> None:
    path, content = tmp_path / "runs.csv", BAD_FILES[said]
    if content is None:
        path.mkdir()
        said = "is a folder"
    else:
        path.write_bytes(content)
    result = RUNNER.invoke(app, ["validate", str(path), *flag])
    assert result.exit_code == 2
    assert f"{path}: " in result.stderr and said in result.stderr
    if not flag:
        assert result.stdout == ""
        return
    found = json.loads(result.stdout)
    assert found["rows"] == []
    assert list(found["summary"]) == SUMMARY
    assert "\n".join(found["problems"]) == result.stderr.strip()


def test_a_gigantic_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    with path.open("wb") as file:
        file.write(header(*GOOD))
        file.truncate(2**30)  # sparse: it takes no room
    result = RUNNER.invoke(app, ["validate", str(path)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"{path}: larger than 256 MiB, got {2**30} bytes\n"


def test_one_bad_file_of_two_is_told_on_stderr(tmp_path: Path) -> None:
    good, empty = write(tmp_path / "runs.csv", [GOOD]), tmp_path / "empty.csv"
    empty.touch()
    result = RUNNER.invoke(app, ["validate", str(good), str(empty), "--json"])
    assert (result.exit_code, result.stderr) == (0, f"{empty}: the file is empty\n")
    found = json.loads(result.stdout)
    assert [row["status"] for row in found["rows"]] == ["ok"]
    assert found["problems"] == [f"{empty}: the file is empty"]


# --- microbenchmarks ---------------------------------------------------------------------

GEMM = {
    "kernel": "gemm",
    "gpu": "h100_sxm",
    "dtype": "bfloat16",
    "M": "4096",
    "N": "4096",
    "K": "4096",
    "impl": "cublas",
    "framework": "trtllm/1.0",
    "time_us": "200",
}


def test_tables_of_runs_and_kernels_may_come_together(tmp_path: Path) -> None:
    runs, kernels = write(tmp_path / "a.csv", [GOOD]), write(tmp_path / "b.csv", [GEMM, GEMM])
    found = document(str(kernels), str(runs))
    assert [row["run_id"] for row in found["rows"]] == [GOOD["run_id"]]
    summary = found["summary"]
    assert (summary["kernels"]["rows"], summary["kernels"]["n"]) == (2, 2)
    assert list(summary["kernels"]["by_device"]) == ["h100-sxm"]
    assert summary["collectives"] is None
    assert document(str(runs))["summary"]["kernels"] is None


def test_kernels_alone_are_a_good_answer(tmp_path: Path) -> None:
    """2 x 4096^3 FLOP at 989.4 TFLOP/s are 139 us: nothing between that and twice it is far off."""
    path = write(tmp_path / "kernels.csv", [GEMM | {"time_us": "190"}])
    result = RUNNER.invoke(app, ["validate", str(path)])
    assert (result.exit_code, result.stderr) == (0, "")
    assert "measured runs" not in result.stdout
    lines = [line.split() for line in result.stdout.splitlines()]
    (shown,) = [line for line in lines if line[:1] == ["h100-sxm"]]
    assert shown[1] == "1" and float(shown[2]) < 40.0


def test_a_kernel_that_cannot_be_right_is_told_by_line(tmp_path: Path) -> None:
    wrong = {"time_us": "1"}  # 1000 times the peak
    path = write(tmp_path / "kernels.csv", [GEMM, GEMM | wrong])
    result = RUNNER.invoke(app, ["validate", str(path), "--json"])
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert (found["summary"]["kernels"]["rows"], found["summary"]["kernels"]["n"]) == (2, 1)
    (problem,) = found["problems"]
    assert problem.startswith(f"{path}: line 3: time_us: ")
    assert result.stderr == f"{problem}\n"
    alone = RUNNER.invoke(app, ["validate", str(write(path, [GEMM | wrong])), "--json"])
    assert alone.exit_code == 2
    assert json.loads(alone.stdout)["summary"]["kernels"]["n"] == 0


def test_many_problems_are_cut_short_on_stderr_only(tmp_path: Path) -> None:
    path = write(tmp_path / "kernels.csv", [GEMM, *[GEMM | {"time_us": "x"}] * 30])
    result = RUNNER.invoke(app, ["validate", str(path), "--json"])
    lines = result.stderr.splitlines()
    assert (len(lines), lines[-1]) == (21, "and 10 more problems, see --json")
    assert len(json.loads(result.stdout)["problems"]) == 30


# --- the page ----------------------------------------------------------------------------


def test_a_page_is_written_beside_the_document(tmp_path: Path) -> None:
    runs, page = write(tmp_path / "runs.csv", [GOOD]), tmp_path / "page.html"
    result = RUNNER.invoke(app, ["validate", str(runs), "--json", "--html", str(page)])
    assert (result.exit_code, result.stderr) == (0, f"Page: {page}\n")
    assert [row["run_id"] for row in json.loads(result.stdout)["rows"]] == [GOOD["run_id"]]
    assert GOOD["run_id"] in page.read_text(encoding="utf-8")
    assert {path.name for path in tmp_path.iterdir()} == {"runs.csv", "page.html"}


def test_a_page_that_cannot_be_written_is_2_and_leaves_nothing(tmp_path: Path) -> None:
    runs = write(tmp_path / "runs.csv", [GOOD])
    for place, said in ((tmp_path, "must be a file"), (runs / "page.html", "cannot be written")):
        result = RUNNER.invoke(app, ["validate", str(runs), "--html", str(place)])
        assert result.exit_code == 2
        assert result.stderr.startswith("--html: ") and said in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["runs.csv"]
