"""`foreshard measure` hands over to kernels/run_all.py; without torch it says what to install."""

import importlib.util
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simulator.cli.main import app
from simulator.questions.calibrate import measure_command as measure

RUNNER = CliRunner()
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="measuring needs torch"
)


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "find_spec", lambda name: None)
    result = RUNNER.invoke(app, ["measure", "gemm"])
    assert result.exit_code == 2
    assert result.stderr == "measure: needs torch, which is not here: pip install torch\n"


def test_a_plan_runs_no_program() -> None:
    result = RUNNER.invoke(app, ["measure", "gemm", "--plan", "examples/llama-3.1-8b.toml"])
    assert result.exit_code == 2
    assert "PROGRAM: must be left out with --plan" in result.stderr and "'gemm'" in result.stderr


def test_options_reach_the_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: list[str] = []

    def run(arguments: list[str]) -> int:
        given.extend(arguments)
        return 130

    monkeypatch.setattr(measure, "find_spec", lambda name: object())
    monkeypatch.setattr(measure, "_run", run)
    out = str(tmp_path / "out.json")
    options = ["--out", out, "--minutes", "2", "--device", "cpu", "--quick"]
    result = RUNNER.invoke(app, ["measure", *options, "gemm", "copies"])
    assert result.exit_code == 130
    assert Path(given[1]).name == "run_all.py"
    assert given[2:] == [
        *("--out", out, "--minutes", "2.0", "--device", "cpu", "--quick", "gemm", "copies")
    ]


@needs_torch
def test_it_writes_and_prints_the_document(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # other tests run beside it
    out = tmp_path / "out.json"
    options = ["--quick", "--device", "cpu", "--minutes", "0.03", "--out", str(out), "--json"]
    result = RUNNER.invoke(app, ["measure", *options, "copies"])
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document == json.loads(out.read_text())
    assert document["complete"] is True
    assert document["records"]


@needs_torch
def test_a_wrong_program_is_bad_input(tmp_path: Path) -> None:
    result = RUNNER.invoke(app, ["measure", "--out", str(tmp_path / "out.json"), "lunch"])
    assert result.exit_code == 2
    assert list(tmp_path.iterdir()) == []
