"""Documents that the programs of kernels/ really write, of a CPU and of a pretended GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simulator.calibration.classes import accelerator_classes
from simulator.cli.main import app
from simulator.files import read_profile
from simulator.hardware.accelerator import Accelerator
from simulator.hardware.cluster import load_accelerator
from simulator.measured.measurements import read_measurements

ROOT = Path(__file__).resolve().parents[2]
KERNELS, PRETENDED_GPU = ROOT / "kernels", ROOT / "tests" / "kernels" / "pretended_gpu.py"
CPU = """# A processor
base = "h200-sxm"
generation = "cpu"
"""

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="the programs need torch"
)


def measure(program: str, out: Path, *first: str) -> dict[str, Any]:
    """Run a program for seconds; what it wrote."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    options = ["--quick", "--minutes", "0.1", "--out", str(out)]
    subprocess.run(
        [sys.executable, *first, str(KERNELS / f"{program}.py"), *options],
        env=kept | {"OMP_NUM_THREADS": "1"},
        cwd=out.parent,
        check=True,
        capture_output=True,
        timeout=600,
    )
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.mark.evidence
@needs_torch
def test_every_record_of_a_pretended_gpu_has_a_class_or_a_reason(tmp_path: Path) -> None:
    raw = measure("memory_bound", tmp_path / "document.json", str(PRETENDED_GPU))
    document = read_measurements(tmp_path / "document.json")
    assert len(document.calls) == len(raw["records"]) > 0
    assert document.device is not None
    assert (document.device.kind, document.device.compute_units) == ("cuda", 4)
    assert len(document.date) == 10 and "torch" in document.source
    classes, skipped = accelerator_classes(document.calls, load_accelerator("h200-sxm"))
    assert sum(len(one.places) for one in classes) + sum(skipped.values()) == len(document.calls)
    refused = CliRunner().invoke(
        app,
        [
            "calibrate",
            str(tmp_path / "document.json"),
            "--base",
            "h200-sxm",
            "--out",
            str(tmp_path / "mine.toml"),
        ],
    )
    assert refused.exit_code == 2
    assert "pretended GPU has 4 compute units, the base h200-sxm 132" in refused.stderr
    assert not (tmp_path / "mine.toml").exists()


@pytest.mark.evidence
@needs_torch
def test_a_document_of_this_cpu_is_read(tmp_path: Path) -> None:
    raw = measure("gemm", tmp_path / "document.json")
    document = read_measurements(tmp_path / "document.json")
    assert document.device is not None and document.device.kind == "cpu"
    assert [call.seconds > 0 for call in document.calls] == [True] * len(raw["records"])
    for call in document.calls:
        assert call.kernel == "gemm" and {"m", "n", "k"} <= set(call.shape)


def test_a_cpu_is_calibrated_over_the_profile_of_a_cpu(
    kernel_document: dict[str, Any], write: Callable[..., Path], tmp_path: Path
) -> None:
    """Its cores are not compared: the profile of a CPU may count threads or vector units."""
    kernel_document["device"] = {
        "kind": "cpu",
        "name": "EPYC",
        "cores": 2,
        "memory_bytes": 150e9,
        "sms": None,
    }
    kernel_document["records"] = [r for r in kernel_document["records"] if r["kernel"] == "copy"]
    base, out = write(CPU, "cpu.toml"), tmp_path / "my-cpu.toml"
    result = CliRunner().invoke(
        app, ["calibrate", str(write(kernel_document)), "--base", str(base), "--out", str(out)]
    )
    assert result.exit_code == 0, result.stderr
    found = read_profile(Accelerator, out, kind="accelerators")
    assert found.generation == "cpu"
    assert found.stream["copy"].memory_fraction == pytest.approx(0.6, rel=0.02)
    assert found.stream["copy"].memory_fraction.grade == "fitted"
    assert found.gemm == load_accelerator("h200-sxm").gemm
