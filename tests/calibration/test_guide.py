"""docs/calibration.md: every command of ours that can run here runs, in order, as it stands."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simulator.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
SCENARIO = """
[model]
model_type = "llama"
name = "llama-tiny"
hidden_size = 64
intermediate_size = 128
num_hidden_layers = 4
num_attention_heads = 4
num_key_value_heads = 2
vocab_size = 256
max_position_embeddings = 128
[training]
sequence_length = 64
global_batch = 8
[cluster]
name = "my-cluster"
gpus = 2
"""
NEEDS_MORE = ("foreshard measure", "foreshard calibrate-here", "all_reduce_perf", "all_gather_perf")
"""What needs a GPU, torch or another program."""


def commands() -> list[str]:
    text = (ROOT / "docs" / "calibration.md").read_text()
    return [
        line for block in re.findall(r"```sh\n(.*?)```", text, re.S) for line in block.splitlines()
    ]


@pytest.mark.evidence
def test_the_guide_runs(
    kernel_document: dict[str, Any],
    collective_document: dict[str, Any],
    log_text: Callable[..., str],
    write: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write(kernel_document)
    for kernel in ("all_reduce", "all_gather"):
        tables = [log_text(collective_document, kernel, *of) for of in ((2, 1), (8, 1), (16, 2))]
        write("\n".join(tables), f"{kernel}.log")
    shutil.copy(ROOT / "tests" / "data" / "logs" / "megatron_2025.log", tmp_path / "train.log")
    write(SCENARIO, "run.toml")
    monkeypatch.chdir(tmp_path)
    ran = []
    for line in commands():
        if line.startswith(NEEDS_MORE):
            continue
        first, *words = shlex.split(line)
        if first == "export":
            monkeypatch.setenv(*words[0].split("=", 1))
            continue
        assert first == "foreshard", line
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, (line, result.stderr, result.exception)
        ran.append((words[0], result.stdout))
    assert [name for name, _ in ran] == [
        "calibrate",
        "calibrate",
        "profiles",
        "profiles",
        "predict",
        "validate",
        "predict",
        "predict",
    ]
    assert "3 profiles read, nothing wrong" in ran[2][1]
    assert "calibrate: " not in ran[1][1] and "my-cluster.toml" in ran[1][1]
    assert "8 x my-h200 (my-cluster)" in ran[4][1]
    assert "2 x my-h200 (my-cluster)" in ran[5][1]
    assert "dp2" in ran[6][1] and "zero3" in ran[6][1] and "tp2" in ran[7][1]
