"""`foreshard sweep`: files, screen, exit codes."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simulator.cli.main import app

RUNNER = CliRunner(env={"COLUMNS": "160"})
GRID = """
[training]
sequence_length = 2048
global_batch = 64
[layout]
tp = 1
pp = 1
cp = 1
micro_batch = 1
sharding = "zero1"
[cluster]
name = "dgx-h100"
[grid]
"model.name" = ["llama-3.2-1b", "lama-3.2-1b"]
"cluster.gpus" = [8, 16]
"""


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    path = tmp_path / "grid.toml"
    path.write_text(GRID)
    return path


def test_files_and_document(grid: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = ["sweep", str(grid), "--jobs", "1", "--out", str(out)]
    done = RUNNER.invoke(app, [*run, "--json"])
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    assert list(document) == ["schema", "version", "command", "grid", "common", "rows", "caveats"]
    assert [row["feasible"] for row in document["rows"]] == [True, True, False, False]
    assert json.loads((out / "sweep.json").read_text()) == document
    assert len((out / "sweep.csv").read_text().splitlines()) == 5
    page = (out / "sweep.html").read_text()
    assert "Points that could not be searched" in page and "did you mean" in page
    again = RUNNER.invoke(app, run)
    assert again.exit_code == 0
    text = " ".join(again.stdout.split())
    header = next(line for line in again.stdout.splitlines() if "point" in line).split()
    assert header[:3] == ["point", "name", "gpus"]  # fields by their last names, which differ
    assert text.count("points 3 to 4: model.name:") == 1  # one mistake of both is said once
    assert "did you mean 'llama-3.2-1b'" in text
    assert "0 points searched, 4 known before" in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--backend", "dusk"], "did you mean 'dask'"),
        (["--backend", "dask"], "--backend dask and --scheduler ADDRESS must be given together"),
        (["--budget", "-1"], "--budget: must be USD"),
    ],
)
def test_bad_input(grid: Path, options: list[str], words: str) -> None:
    done = RUNNER.invoke(app, ["sweep", str(grid), *options])
    assert done.exit_code == 2 and words in done.stderr


def test_no_point_that_can_run(tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(GRID.replace('"llama-3.2-1b", ', ""))
    done = RUNNER.invoke(app, ["sweep", str(path), "--jobs", "1", "--out", str(tmp_path / "out")])
    assert done.exit_code == 1


@pytest.mark.parametrize(("cluster", "marked"), [("dgx-h100", True), ("aws-p5", False)])
def test_money_at_an_assumed_price_is_marked(cluster: str, marked: bool, tmp_path: Path) -> None:
    """dgx-h100 has a middle of second-hand pages, aws-p5 AWS's own list."""
    path = tmp_path / "grid.toml"
    text = GRID.replace('"dgx-h100"', f'"{cluster}"').replace(', "lama-3.2-1b"', "")
    path.write_text(text.replace("[training]", "[training]\ntokens = 1e9"))
    done = RUNNER.invoke(app, ["sweep", str(path), "--jobs", "1", "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.stderr
    assert ("* at an assumed price" in done.stdout) == marked
    (line,) = (x for x in done.stdout.splitlines() if " 16 " in x and "zero1" in x)
    assert ("*" in line) == marked
