"""0 done, 1 no feasible answer, 2 bad input; bugs keep their trace; a closed pipe is no bug."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simulator._version import __version__
from simulator.cli.main import app
from simulator.events.engine.graph import DeadlockError

RUNNER = CliRunner()
SMALL = ["--model", "llama-3.1-8b", "--cluster", "dgx-h100", "--gpus", "8"]
HUGE = ["--model", "llama-3.1-405b", "--cluster", "dgx-h100", "--gpus", "8"]
ROOT = Path(__file__).resolve().parents[2]


def test_version() -> None:
    result = RUNNER.invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"foreshard {__version__}\n")


@pytest.mark.parametrize("command", [["predict"], ["plan", "--no-report", "--set", "layout.tp=2"]])
def test_done_is_0(command: list[str]) -> None:
    result = RUNNER.invoke(app, [*command, *SMALL])
    assert (result.exit_code, result.stderr) == (0, "")


def test_a_layout_that_does_not_fit_is_an_answer() -> None:
    result = RUNNER.invoke(app, ["predict", *HUGE])
    assert result.exit_code == 0
    assert "OOM" in result.stdout


def test_no_feasible_answer_is_1_and_names_the_nearest_miss(tmp_path: Path) -> None:
    names = ["--model", "llama-3.1-70b", "--cluster", "dgx-h100", "--gpus", "8"]
    result = RUNNER.invoke(app, ["plan", *names, "--out", str(tmp_path / "written")])
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    assert "nearest miss: " in result.stderr
    assert not (tmp_path / "written").exists()


def test_a_pin_that_no_layout_can_have_is_named() -> None:
    result = RUNNER.invoke(app, ["plan", *SMALL, "--set", "layout.tp=7"])
    assert result.exit_code == 2
    assert result.stderr == (
        "command line: layout.tp: must divide 32 attention heads, got 7 (nearest: 8)\n"
    )


@pytest.mark.parametrize("wrong", [["--gpus", "many"], ["--gpu", "8"], ["--top", "0"]])
def test_usage_errors_are_2(wrong: list[str]) -> None:
    assert RUNNER.invoke(app, ["plan", *SMALL, *wrong]).exit_code == 2


def test_whatever_the_input_leads_to_is_2(monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(scenario: object) -> None:
        raise DeadlockError("deadlock: task 0 waits for task 0", (0,))

    monkeypatch.setattr("simulator.planner.prediction.predict", stuck)
    result = RUNNER.invoke(app, ["predict", *SMALL])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "deadlock: task 0 waits for task 0\n"


def test_a_bug_keeps_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(scenario: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("simulator.planner.prediction.predict", broken)
    result = RUNNER.invoke(app, ["predict", *SMALL])
    assert isinstance(result.exception, ZeroDivisionError)


def test_an_interrupt_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(scenario: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("simulator.planner.prediction.predict", interrupted)
    result = RUNNER.invoke(app, ["predict", *SMALL])
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "interrupted\n")


def test_a_closed_pipe_is_quiet() -> None:
    command = [sys.executable, "-m", "simulator.cli.main", "predict", *SMALL]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


@pytest.mark.parametrize("command", [[], ["plan"], ["profiles", "list"]])
def test_a_short_word_for_help(command: list[str]) -> None:
    short, long = (RUNNER.invoke(app, [*command, word]) for word in ("-h", "--help"))
    assert (short.exit_code, short.stdout) == (0, long.stdout)
