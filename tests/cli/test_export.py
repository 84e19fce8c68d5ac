"""`foreshard export`: a framework's words, a job of SLURM, tables; refusals that say why."""

import csv
import io
import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from simulator.cli.main import app

RUN = ["--model", "gpt2-small", "--cluster", "dgx-a100", "--gpus", "16"]
PINNED = [*RUN, "--set", "layout.tp=1", "--set", "layout.pp=1", "--set", "layout.cp=1"]


def export(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["export", *words])
    return done.exit_code, done.stdout, done.stderr


def test_a_job_of_slurm_starts_one_torchrun_on_every_server() -> None:
    code, text, _ = export(*RUN, "--as", "slurm")
    assert code == 0
    lines = text.splitlines()
    assert lines[0] == "#!/bin/bash"
    assert "#SBATCH --nodes=2" in lines
    assert "#SBATCH --gpus-per-node=8" in lines
    (start,) = [line for line in lines if line.startswith("srun torchrun ")]
    assert '--rdzv_endpoint "$HEAD_NODE:29500"' in start


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--as", "torchtitn"], "did you mean 'torchtitan'"),
        (["--as", "deepspeed", "--set", "layout.tp=2"], "cannot say tp = 2"),
        (["--as", "parquet"], "must be written with --out"),
        (["--as", "megatron-lm", "--cluster", "tpu-v5p"], "does not run on"),
        (["--as", "slurm", "--cluster", "tpu-v5p"], "not started by torchrun"),
    ],
)
def test_what_cannot_be_said_is_refused(words: list[str], said: str) -> None:
    code, text, error = export(*RUN, *words)
    assert (code, text) == (2, "")
    assert said in error


def test_a_layout_that_does_not_start_says_so_in_its_file() -> None:
    """70.6 billion parameters in 16 bit are 141 GB, of which two devices of 80 GB hold 71 each."""
    run = ["--model", "llama-3.1-70b", "--cluster", "dgx-h100", "--gpus", "64", "--set"]
    run += ["layout.tp=2", "--set", "layout.pp=1", "--tokens", "1e12", "--set"]
    run += ["goal.deadline_days=1", "--as"]
    for form in ("megatron-lm", "slurm", "trainjob"):
        code, text, error = export(*run, form)
        assert (code, error) == (0, "")
        memory, late = text.splitlines()[-2:] if text.splitlines()[-1] else text.splitlines()[-3:-1]
        assert memory.startswith("# OOM: it needs ") and memory.index("does not start") > 0
        assert late == "# Within 1 day: under 0.1 % chance, missed."
        if form == "trainjob":
            assert yaml.safe_load(text)["spec"]["trainer"]["numNodes"] == 8
    code, text, _ = export(*RUN, "--as", "slurm")
    assert code == 0 and "OOM" not in text and "chance" not in text


@pytest.mark.evidence
def test_tables_hold_the_best_layouts(tmp_path: Path) -> None:
    code, text, _ = export(*PINNED, "--as", "csv", "--top", "3")
    assert code == 0
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 3
    steps = [float(row["step_time_s"]) for row in rows]
    assert steps == sorted(steps)
    _, text, _ = export(*PINNED, "--as", "markdown", "--top", "3")
    assert [line.count("|") for line in text.splitlines() if line] == [17] * 5
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    place = tmp_path / "layouts.parquet"
    assert export(*PINNED, "--as", "parquet", "--top", "3", "--out", str(place))[0] == 0
    assert pandas.read_parquet(place)["step_time_s"].tolist() == pytest.approx(steps)


@pytest.mark.evidence
def test_chakra_traces_are_one_file_a_rank(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    code, text, _ = export(*RUN, "--set", "layout.pp=2", "--as", "chakra", "--out", str(folder))
    assert code == 0, text
    assert sorted(path.name for path in folder.iterdir()) == ["step.0.et", "step.1.et"]


QLORA = [
    *("--model", "llama-3.1-70b", "--cluster", "rtx4090-pcie", "--gpus", "8"),
    *("--set", "training.sequence_length=2048", "--set", "training.global_batch=16"),
    *("--set", "training.lora_rank=16", "--set", "training.quantised_base=true"),
    *("--set", "layout.tp=2", "--set", "layout.micro_batch=1"),
]
"""70.6 B parameters, 141 GB in 16 bit: Megatron-Bridge would hold them on 8 x 24 GB so."""


@pytest.mark.parametrize(
    "form", ["megatron-lm", "megatron-bridge", "slurm", "trainjob", "skypilot"]
)
def test_a_trainer_without_4_bit_weights_is_not_told_to_run_them(form: str) -> None:
    done = CliRunner().invoke(app, ["export", *QLORA, "--as", form])
    assert (done.exit_code, done.stdout) == (2, "")
    said = " ".join(done.stderr.split())
    assert "Megatron-Bridge" in said and "keeps frozen weights in 16 bit, 131" in said


@pytest.mark.evidence
def test_the_verdict_of_a_plan_without_a_command_says_so() -> None:
    done = CliRunner().invoke(app, ["plan", *QLORA, "--no-report"])
    assert "no command: Megatron-Bridge" in " ".join(done.stdout.split())
    done = CliRunner().invoke(app, ["plan", *QLORA, "--no-report", "--json"])
    launch = json.loads(done.stdout)["launch"]
    assert launch.startswith("# No launch command: ") and "torchrun" not in launch
    words = [*QLORA, "--set", "training.quantised_base=false", "--cluster", "dgx-h100"]
    done = CliRunner().invoke(app, ["plan", *words, "--no-report", "--json"])
    assert "torchrun" in json.loads(done.stdout)["launch"]
