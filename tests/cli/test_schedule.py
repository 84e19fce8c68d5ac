"""`foreshard schedule`: frozen keys of its document, screen, bad input."""

import json
from pathlib import Path

import pytest
import tomli
from typer.testing import CliRunner

from simulator.cli.main import app
from simulator.questions.job_schedule.answer import read_jobs

RUNNER = CliRunner(env={"COLUMNS": "160"})
ROOT = Path(__file__).resolve().parents[2]
PART = '[[parts]]\nname = "a"\ncluster = "dgx-a100"\ngpus = 8\n'
JOB = (
    '[[jobs]]\nname = "{name}"\nmodel = {{ name = "gpt2-small" }}\ngpus = [{gpus}]\n'
    "training = {{ sequence_length = 1024, global_batch = 64, tokens = 1e9 }}\n"
    "layout = {{ tp = 1, pp = 1, cp = 1, micro_batch = 4 }}\n"
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.toml"
    path.write_text(PART + JOB.format(name="x", gpus="4, 8") + JOB.format(name="y", gpus="4"))
    return path


def test_document(file: Path) -> None:
    done = RUNNER.invoke(app, ["schedule", str(file), "--jobs", "1", "--json"])
    assert (done.exit_code, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert list(found) == [
        *("schema", "version", "command", "minimize", "parts", "jobs", "makespan_days"),
        *("least_days", "completion_days", "slowdown", "utilisation", "fairness", "teams"),
        *("idle", "late", "growth", "caveats"),
    ]
    assert list(found["jobs"][0]) == [
        *("name", "team", "part", "gpus", "arrives_days", "start_days", "end_days", "slowdown"),
        *("kind", "after", "start_date", "end_date", "options"),
    ]
    x, y = found["jobs"]
    assert (x["gpus"], x["start_days"], y["start_days"]) == (4, 0.0, 0.0), "side by side"
    assert found["makespan_days"] == max(x["end_days"], y["end_days"])


def test_jobs_are_yaml_as_well(file: Path) -> None:
    (file.parent / "jobs.yaml").write_text(json.dumps(tomli.loads(file.read_text())))
    assert read_jobs(file.parent / "jobs.yaml") == read_jobs(file)


def test_screen(file: Path) -> None:
    done = RUNNER.invoke(app, ["schedule", str(file), "--jobs", "1", "--minimize", "slowdown"])
    assert (done.exit_code, done.stderr) == (0, "")
    for words in ("least slowdown", "all done after", "no schedule is done before", "fairness"):
        assert words in done.stdout


def test_the_example_is_read() -> None:
    found = read_jobs(ROOT / "examples/schedules/a100-l40s.toml")
    assert [part.name for part in found.parts] == ["a100", "l40s"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (PART, "jobs: required field is missing"),
        (PART + PART + JOB.format(name="x", gpus="8"), "parts: names must differ, got 'a'"),
        (PART + JOB.format(name="x", gpus="0"), "jobs.0.gpus.0: must be greater than 0"),
        (PART.replace("dgx-a100", "dgx-a1000") + JOB.format(name="x", gpus="8"),
         "did you mean 'dgx-a100'"),
        (PART + JOB.format(name="x", gpus="8") + 'parts = ["b"]\n',
         "jobs.0.parts: must name parts of the file, got 'b'"),
        (PART + JOB.format(name="x", gpus="8").replace(", tokens = 1e9", ""),
         "jobs.0.training.tokens: required field is missing"),
        ('minimize = "money"\n' + PART + JOB.format(name="x", gpus="8"),
         "minimize: must be 'makespan', 'completion' or 'slowdown'"),
    ],
)  # fmt: skip
def test_bad_files(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(text)
    done = RUNNER.invoke(app, ["schedule", str(path)])
    assert done.exit_code == 2 and words in done.stderr, done.stderr


def test_a_wrong_field_is_the_only_problem(tmp_path: Path) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(PART.replace("gpus = 8", "gpus = 0") + JOB.format(name="x", gpus="8"))
    assert "gpus = 0" in path.read_text()
    result = RUNNER.invoke(app, ["schedule", str(path)])
    assert result.exit_code == 2
    assert result.stderr == f"{path}: parts.0.gpus: must be greater than 0, got 0\n"


def test_a_job_that_fits_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(PART + JOB.format(name="x", gpus="16"))
    done = RUNNER.invoke(app, ["schedule", str(path), "--jobs", "1"])
    assert done.exit_code == 1 and "jobs (x): fits nowhere: no part has as few" in done.stderr
