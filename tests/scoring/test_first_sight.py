"""First sight: predictions are kept once, with the table as it was, and never written again."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from simulator import catalogue
from simulator.cli.main import app
from simulator.scoring.first_sight import COLUMNS, as_written
from workshop.cases.first_sight import first_sight, read_first_sight

RUNS = catalogue.folder("validation") / "runs" / "analytic_memory.csv"
SEEN = catalogue.folder("validation") / "first_seen"


def run(*words: str) -> Result:
    return CliRunner().invoke(app, words)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_predictions_are_written_once_with_their_table(tmp_path: Path) -> None:
    out = tmp_path / "new" / "seen.csv"
    words = ["validate", str(RUNS), "--first-seen", str(out)]
    assert run(*words).exit_code == 0
    rows = rows_of(out)
    assert tuple(rows[0]) == COLUMNS and len(rows) == len(rows_of(RUNS)) == 8
    assert all(float(r["p10_s"]) < float(r["predicted_step_s"]) < float(r["p90_s"]) for r in rows)
    assert as_written(out).read_bytes() == RUNS.read_bytes()
    before = out.read_bytes()
    again = run(*words)
    assert again.exit_code == 2 and out.read_bytes() == before
    assert "--first-seen" in again.output and "never written again" in again.output.replace(
        "\n", " "
    )


def test_a_row_that_is_refused_has_its_reason_and_no_prediction(tmp_path: Path) -> None:
    table, out = tmp_path / "runs.csv", tmp_path / "seen.csv"
    rows = rows_of(RUNS)
    rows[0]["gpu"] = "no such card"
    with table.open("w", newline="", encoding="utf-8") as file:
        lines = csv.DictWriter(file, rows[0])
        lines.writeheader()
        lines.writerows(rows)
    assert (
        CliRunner().invoke(app, ["validate", str(table), "--first-seen", str(out)]).exit_code == 0
    )
    first, *others = rows_of(out)
    assert first["predicted_step_s"] == first["grade"] == "" and "no such card" in first["reason"]
    assert set(read_first_sight(out)) == {row["run_id"] for row in others}


@pytest.mark.parametrize("words", [[], [str(RUNS), str(RUNS.with_name("test.csv"))]])
def test_it_takes_exactly_one_table(words: list[str], tmp_path: Path) -> None:
    found = run("validate", *words, "--first-seen", str(tmp_path / "a.csv"))
    assert found.exit_code == 2 and "exactly one table" in found.output.replace("\n", " ")


def test_every_table_of_first_sight_has_its_rows_as_first_written() -> None:
    for path in SEEN.glob("*.csv"):
        if not path.name.endswith(".as_first_written.csv"):
            rows, written = rows_of(path), rows_of(as_written(path))
            assert tuple(rows[0]) == COLUMNS
            assert [row["run_id"] for row in rows] == [row["run_id"] for row in written]
            assert all(bool(row["predicted_step_s"]) or row["reason"] for row in rows)


@pytest.mark.evidence
def test_errors_at_first_sight_are_what_was_said_then() -> None:
    known = {line["table"]: line for line in first_sight()}
    fresh, second = known["fresh_test"], known["fresh_test_2"]
    assert (fresh["first"]["n"], second["first"]["n"]) == (214, 124)
    assert fresh["first"]["mape"] == pytest.approx(0.125, abs=5e-4)
    assert second["first"]["mape"] == pytest.approx(0.188, abs=1e-3)
    edits = {line["change"]: line for line in fresh["changes"]}
    assert edits["cp_kind blank -> all_to_all"]["runs"] == 5
    assert any(line["change"].startswith("excluded: ") for line in second["changes"])
