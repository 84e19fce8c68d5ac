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

RUNNER = CliRunner()
RUNS = catalogue.folder("validation") / "runs"

ROW = [
    "run_id", "status", "reason", "predicted_step_s", "measured_step_s", "step_error", "p10_s",
    "p90_s", "predicted_memory_gib", "measured_memory_gib", "memory_kind", "memory_error",
    "evidence",
]  # fmt: skip
SUMMARY = [
    "step", "memory", "ranking", "kernels", "collectives", "by_source", "by_gpu", "by_split",
    "baseline", "skipped", "assumed_fields",
]  # fmt: skip
ERRORS = ["n", "mape", "median_ape", "bias", "p90_ape", "max_ape", "coverage_80"]

BEST_PEER = 0.0365
"""Mean absolute error of the best published peer on the eight runs of Korthikanti et al."""


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


def test_keys_are_frozen(shipped: dict[str, Any]) -> None:
    assert list(shipped) == ["rows", "summary"]
    assert {tuple(row) for row in shipped["rows"]} == {tuple(ROW)}
    summary = shipped["summary"]
    assert list(summary) == SUMMARY
    assert list(summary["step"]) == ERRORS
    assert {kind: list(errors) for kind, errors in summary["memory"].items()} == {
        "allocated": ERRORS,
        "reserved": ERRORS,
    }
    assert (summary["kernels"], summary["collectives"]) == (None, None)
    assert list(summary["baseline"]) == ["efficiency", *ERRORS]
    for by in ("by_source", "by_gpu", "by_split"):
        for errors in summary[by].values():
            assert list(errors)[:10] == [*ERRORS, "rows", "skipped", "baseline"]
    for group in summary["ranking"]:
        assert list(group) == ["group", "n", "pairs", "kendall_tau", "regret"]


def test_every_shipped_row_is_there_once(shipped: dict[str, Any]) -> None:
    expected = [row["run_id"] for row in rows_of("calibrate") + rows_of("test")]
    assert [row["run_id"] for row in shipped["rows"]] == expected
    assert len(expected) == 720
    for row in shipped["rows"]:
        ok = row["status"] == "ok"
        assert (row["status"], row["reason"] is None) == ("ok" if ok else "skipped", ok)
        assert (row["predicted_step_s"] is None) == (not ok)
        assert (row["p10_s"], row["p90_s"]) == (None, None)
        assert row["measured_step_s"] > 0


def test_counts_agree(shipped: dict[str, Any]) -> None:
    rows, summary = shipped["rows"], shipped["summary"]
    skipped = sum(row["status"] == "skipped" for row in rows)
    assert sum(summary["skipped"].values()) == skipped
    assert summary["step"]["n"] == len(rows) - skipped
    for by in ("by_source", "by_gpu", "by_split"):
        assert sum(errors["n"] for errors in summary[by].values()) == summary["step"]["n"]
        assert sum(errors["skipped"] for errors in summary[by].values()) == skipped


def test_korthikanti_is_predicted_better_than_by_any_peer(shipped: dict[str, Any]) -> None:
    errors = shipped["summary"]["by_source"]["korthikanti22-t5"]
    assert (errors["rows"], errors["n"], errors["skipped"]) == (8, 8, 0)
    assert errors["mape"] < BEST_PEER
    assert errors["baseline"]["mape"] == pytest.approx(0.114, abs=0.005)
    assert list(errors["by_split"]) == ["test"]


def test_calibrate_and_test_have_nothing_in_common() -> None:
    calibrate, test = rows_of("calibrate"), rows_of("test")
    assert {row["split"] for row in calibrate} == {"calibrate"}
    assert {row["split"] for row in test} == {"test"}
    assert not {row["run_id"] for row in calibrate} & {row["run_id"] for row in test}
    own = ("run_id", "source", "split", "step_time_s", "tokens_per_s_per_gpu", "assumed", "notes",
           "model_tflops_per_gpu", "peak_memory_gib", "memory_kind")  # fmt: skip
    described = [
        {tuple(v for k, v in row.items() if k not in own) for row in rows}
        for rows in (calibrate, test)
    ]
    assert not described[0] & described[1]


def test_composed_runs_are_a_line_of_their_own() -> None:
    found = document(str(RUNS / "vtrain_single.csv"), str(RUNS / "analytic_memory.csv"))
    assert found["summary"]["step"]["n"] == 0
    assert set(found["summary"]["by_source"]) == {"vtrain-single", "korthikanti22-fig1"}
    assert {row["memory_error"] for row in found["rows"]} == {None}


def test_the_screen_says_it_all() -> None:
    wide = CliRunner(env={"COLUMNS": "140"})
    result = wide.invoke(app, ["validate", str(RUNS / "test.csv")])
    assert (result.exit_code, result.stderr) == (0, "")
    for word in (
        "270 measured runs", "test (nothing is fitted on these)", "korthikanti22-t5", "all test",
        "baseline, constant efficiency 0.5 of the dense peak", "memory, allocated", "ranking",
        "furthest off (5 rows)", "skipped", "not modelled yet", "assumed",
    ):  # fmt: skip
        assert word in result.stdout, word


def test_one_good_row_is_enough_for_0(tmp_path: Path) -> None:
    rows = [row for row in rows_of("test") if row["source"] == "korthikanti22-t5"][:2]
    path = write(tmp_path / "runs.csv", [rows[0], rows[1] | {"layers": "many"}])
    result = RUNNER.invoke(app, ["validate", str(path)])
    assert (result.exit_code, result.stderr) == (0, "")
    assert "2 measured runs: 1 predicted, 1 skipped" in result.stdout
    assert "1  layers: must be a whole number, got 'many'" in result.stdout


@pytest.mark.parametrize("flag", [[], ["--json"]])
def test_nothing_usable_is_2_and_still_says_why(tmp_path: Path, flag: list[str]) -> None:
    row = next(row for row in rows_of("test") if row["source"] == "korthikanti22-t5")
    path = write(tmp_path / "runs.csv", [row | {"gpu": "abacus"}])
    result = RUNNER.invoke(app, ["validate", str(path), *flag])
    assert result.exit_code == 2
    assert "no hardware profile for abacus" in result.stdout
    assert result.stderr == "no row could be predicted; the reason of each is in the answer\n"


def test_a_table_of_something_else_is_2(tmp_path: Path) -> None:
    path = tmp_path / "kernels.csv"
    path.write_text("kernel,gpu,time_us\ngemm,h100_sxm,3\n")
    result = RUNNER.invoke(app, ["validate", str(path), "--json"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "not a table of measured runs" in result.stderr
