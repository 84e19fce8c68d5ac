"""`foreshard calibrate-here`: the whole loop runs; what it says of bad input."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simulator.cli.main import app
from simulator.questions.calibrate import measure_command as calibrate_here

RUNNER = CliRunner()
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="measuring needs torch"
)
MODES = ["local", "ddp", "fsdp2", "tp", "pp"]


@pytest.mark.evidence
@needs_torch
def test_measures_fits_predicts_runs_and_compares(tmp_path: Path) -> None:
    """A tiny model, once: every step of the loop has run, the figures say nothing."""
    out = tmp_path / "here"
    result = RUNNER.invoke(app, ["calibrate-here", "--quick", "--out", str(out), "--json"])
    assert result.exit_code == 0, (result.stderr, result.exception)
    document = json.loads(result.stdout)
    assert document == json.loads((out / "steps.json").read_text())
    steps = {step["mode"]: step for step in document["steps"]}
    assert list(steps) == MODES
    layouts = {mode: step["layout"] for mode, step in steps.items()}
    assert layouts["fsdp2"].startswith("dp2") and "zero3" in layouts["fsdp2"]
    assert layouts["tp"].startswith("tp2") and layouts["pp"].startswith("pp2")
    measured = json.loads((out / "measurements.json").read_text())
    timed = [one for one in measured["records"] if one["kernel"] == "train_step"]
    for one in timed:
        assert len(one["times_s"]) == len(one["foreign_cores"]) == len(one["cpu_times_s"])
        assert one["operators"]
    for step in steps.values():
        whole = sum(step["measured_by_cause_s"].values())
        assert whole == pytest.approx(step["measured_s"], rel=1e-6)
        assert sum(step["predicted_by_cause_s"].values()) == pytest.approx(step["predicted_s"])
        assert step["error"] == pytest.approx(step["predicted_s"] / step["measured_s"] - 1.0)
    assert steps["tp"]["predicted_by_cause_s"]["communication, waiting"] > 0
    assert steps["local"]["predicted_by_cause_s"]["communication, waiting"] == 0
    assert {fit["name"] for fit in document["kernels"]} >= {"gemm fp32", "memory-bound copy"}
    page = (out / "steps.md").read_text()
    assert all(f"| {mode} |" in page for mode in MODES)
    kinds = ("accelerators", "nodes", "clusters", "collectives", "software")
    profiles = [str(out / "profiles" / kind / "local-cpu.toml") for kind in kinds]
    checked = RUNNER.invoke(
        app, ["profiles", "check", *profiles], env={"FORESHARD_PROFILES": str(out / "profiles")}
    )
    assert checked.exit_code == 0, checked.stderr
    again = RUNNER.invoke(
        app,
        ["calibrate-here", "--measured", str(out / "measurements.json"), "--out", str(tmp_path)],
    )
    assert again.exit_code == 0
    assert (tmp_path / "steps.json").read_text() == (out / "steps.json").read_text()


def test_without_torch_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(calibrate_here, "find_spec", lambda name: None)
    result = RUNNER.invoke(app, ["calibrate-here", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert result.stderr == "calibrate-here: needs torch, which is not here: pip install torch\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--minutes", "0"], "calibrate-here: --minutes: must be positive, got 0\n"),
        (["--wait", "-1"], "calibrate-here: --wait: must be positive, got -1\n"),
    ],
)
def test_times_that_are_none_are_bad_input(
    options: list[str], message: str, tmp_path: Path
) -> None:
    result = RUNNER.invoke(app, ["calibrate-here", *options, "--out", str(tmp_path / "out")])
    assert (result.exit_code, result.stderr) == (2, message)
    assert not (tmp_path / "out").exists()


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    result = RUNNER.invoke(app, ["calibrate-here", "--out", str(tmp_path / "taken")])
    assert result.exit_code == 2
    assert "calibrate-here: --out: must be a folder, got " in result.stderr


def test_another_document_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "gemm.json"
    record = {
        "kernel": "gemm",
        "dtype": "fp32",
        "shape": {"m": 1, "n": 1, "k": 1},
        "times_s": [1.0],
    }
    device = {"kind": "cpu", "name": "some CPU"}
    path.write_text(json.dumps({"schema": 1, "device": device, "records": [record]}))
    result = RUNNER.invoke(app, ["calibrate-here", "--measured", str(path), "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "records: no attention, adamw, host" in result.stderr
