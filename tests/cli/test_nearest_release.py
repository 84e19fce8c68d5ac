"""An unknown release of a known framework: answered, and said."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simulator.cli.main import app
from simulator.measured.rows import REQUIRED

RUNNER = CliRunner()
NAMES = ["--model", "llama-3.1-8b", "--cluster", "dgx-h100", "--gpus", "8"]
ROW = {
    "run_id": "mine", "model": "llama-3.1-8b", "family": "llama", "layers": "32",
    "hidden": "4096", "ffn_hidden": "14336", "heads": "32", "kv_heads": "8", "head_dim": "128",
    "gated_mlp": "true", "vocab": "128256", "tied_embeddings": "false", "seq_len": "8192",
    "gpu": "H100-SXM5-80GB", "num_gpus": "8", "precision": "bf16", "optimizer": "adamw",
    "sharding": "zero1", "global_batch": "32", "micro_batch": "1", "dp": "4", "tp": "2", "pp": "1",
    "recompute": "none", "software": "megatron-bridge-27.02", "step_time_s": "5.5",
}  # fmt: skip


def validated(path: Path, *options: str, **changed: str) -> dict[str, object]:
    row = {**ROW, **changed}
    path.write_text(f"{','.join(REQUIRED)}\n{','.join(row[name] for name in REQUIRED)}\n")
    result = RUNNER.invoke(app, ["validate", str(path), *options, "--json"])
    found: dict[str, object] = json.loads(result.stdout)["rows"][0]
    return found


def test_a_prediction_says_which_release_stands_for_it() -> None:
    names = [*NAMES, "--software", "megatron-bridge-27.02"]
    found = json.loads(RUNNER.invoke(app, ["predict", *names, "--json"]).stdout)
    assert found["assumed_software"].endswith(" for megatron-bridge-27.02")
    screen = RUNNER.invoke(app, ["predict", *names]).stdout
    assert f"nearest known release: {found['assumed_software']}" in screen
    known = json.loads(RUNNER.invoke(app, ["predict", *NAMES, "--json"]).stdout)
    assert known["assumed_software"] is None


def test_a_row_of_an_unknown_release_is_predicted_and_says_so(tmp_path: Path) -> None:
    row = validated(tmp_path / "runs.csv")
    assert (row["status"], row["reason"]) == ("ok", None)
    assert str(row["assumed_software"]).endswith(" for megatron-bridge-27.02")
    assert validated(tmp_path / "runs.csv", software="megatron-core")["assumed_software"] is None


@pytest.mark.parametrize("gpu", ["MI355X", "mi355x-8", "h100-sxm", "dgx-h100"])
def test_any_accelerator_or_cluster_that_ships_may_be_named(gpu: str, tmp_path: Path) -> None:
    assert validated(tmp_path / "runs.csv", gpu=gpu)["status"] == "ok"


def test_an_unknown_family_is_refused_unless_a_profile_is_chosen(tmp_path: Path) -> None:
    row = validated(tmp_path / "runs.csv", software="colossal-0.4")
    assert row["status"] == "skipped" and "--software NAME" in str(row["reason"])
    chosen = validated(tmp_path / "runs.csv", "--software", "deepspeed", software="colossal-0.4",
                       tp="1", dp="8")  # fmt: skip
    assert (chosen["status"], chosen["assumed_software"]) == ("ok", "deepspeed for colossal-0.4")
    path = str(tmp_path / "runs.csv")
    wrong = RUNNER.invoke(app, ["validate", path, "--software", "deepspead"])
    assert wrong.exit_code == 2
    assert "--software: name: unknown software 'deepspead' (did you mean 'deepspeed'?)" in (
        wrong.stderr
    )
