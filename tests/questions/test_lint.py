"""Lints of a launch: what is read, what is proposed, and prices against flags that do the same."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simulator.cli.main import app
from simulator.interop.launch_files.merging import import_launch
from simulator.questions.lint.answer import Lint, Lints, lint, rules, value_in

RUNNER = CliRunner()
ON = {"cluster": "dgx-h100"}
EXAMPLE = Path(__file__).resolve().parents[2] / "examples/admission/trainjob.yaml"
HEAD = "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\n"
COMMAND = (
    "srun torchrun pretrain_gpt.py --tensor-model-parallel-size 4 --sequence-parallel"
    " --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32"
    " --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm"
    " --untie-embeddings-and-output-weights --disable-bias-linear --position-embedding-type rope"
    " --seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 1"
    " --global-batch-size 256 --train-iters 10000 --bf16 --use-distributed-optimizer"
    " --vocab-size 128256 --make-vocab-size-divisible-by 128"
)
TITAN = (
    '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\nseq_len = 8192\n'
    "steps = 1000\n[parallelism]\ndata_parallel_shard_degree = -1\n[compile]\nenable = {}\n"
    '[activation_checkpoint]\nmode = "{}"\n'
)


def linted(folder: Path, more: str = "", head: str = "", name: str = "job.sh") -> Lints:
    path = folder / name
    path.write_text(f"{HEAD}{head}\n{COMMAND} {more}\n")
    return lint([path], ON)


def named(answer: Lints, name: str) -> Lint:
    (lint_of_name,) = [x for x in answer.lints if x.name == name]
    return lint_of_name


def names(answer: Lints) -> list[str]:
    return [x.name for x in answer.lints]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("export CUDA_DEVICE_MAX_CONNECTIONS=1\n", "1"),
        ("CUDA_DEVICE_MAX_CONNECTIONS=1 python train.py", "1"),
        ("export A=1; export CUDA_DEVICE_MAX_CONNECTIONS='8'", "8"),
        ('os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"', "1"),
        ("env:\n  - name: CUDA_DEVICE_MAX_CONNECTIONS\n    value: '1'\n", "1"),
        ("envs:\n  CUDA_DEVICE_MAX_CONNECTIONS: 1\n", "1"),
        ("export CUDA_DEVICE_MAX_CONNECTIONS=1\nunset CUDA_DEVICE_MAX_CONNECTIONS", None),
        ("export MY_CUDA_DEVICE_MAX_CONNECTIONS=1", None),
        ("export CUDA_DEVICE_MAX_CONNECTIONS=1\nexport CUDA_DEVICE_MAX_CONNECTIONS=32\n", "32"),
    ],
)
def test_variables_are_read_as_shells_and_containers_write_them(
    text: str, value: str | None
) -> None:
    assert value_in(text, "CUDA_DEVICE_MAX_CONNECTIONS") == value


@pytest.mark.parametrize(
    ("flags", "rule"),
    [
        ("--overlap-param-gather", "gather_beside_compute"),
        ("--tp-comm-overlap", "tensor_beside_compute"),
        ("", "recomputation"),  # memory has room for all: the flag goes
    ],
)
def test_a_price_is_what_the_flag_brings(flags: str, rule: str, tmp_path: Path) -> None:
    """The advice, written into the script and read by the reader of Megatron's flags."""
    full = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    plain = "--overlap-grad-reduce"
    before = linted(tmp_path, f"{plain} {full if rule == 'recomputation' else ''}")
    path = tmp_path / "changed.sh"
    path.write_text(f"{HEAD}{COMMAND} {plain} {flags}\n")
    after = import_launch([path], ON).predicted()
    priced, now = named(before, rule), before.prediction
    assert priced.step_s == pytest.approx(
        now.step_time_s / now.outcome.goodput[0] - after.step_time_s / after.outcome.goodput[0],
        abs=1e-9,
    )
    assert priced.memory_bytes == pytest.approx(now.memory_bytes - after.memory_bytes, abs=1.0)
    assert priced.usd == pytest.approx(now.usd - after.usd)  # type: ignore[operator]
    changed = lint([path], ON)
    assert rule not in names(changed)


def test_reductions_beside_compute_gain_no_more_than_what_is_exposed(tmp_path: Path) -> None:
    answer = linted(tmp_path)
    priced = named(answer, "reduce_beside_compute")
    exposed = float(answer.prediction.estimate.terms_s["dp"][0])
    assert 0.0 < priced.step_s <= exposed  # type: ignore[operator]


def test_growing_segments_save_at_most_the_fragmentation(tmp_path: Path) -> None:
    """Reserved over allocated memory, less one, is what there is to save."""
    answer = linted(tmp_path)
    priced = named(answer, "expandable_segments")
    kinds = answer.prediction.estimate.memory_bytes
    assert priced.bound == "at most" and priced.step_s == pytest.approx(0.0, abs=1e-9)
    assert priced.memory_bytes == pytest.approx(float(kinds["fragmentation"][0]))
    done = linted(tmp_path, head="export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
    assert "expandable_segments" not in names(done)
    assert "expandable_segments" in done.as_they_should_be


def test_half_of_the_adapters_are_half_of_the_network(tmp_path: Path) -> None:
    """A DGX H100 has eight; what leaves a server takes about twice as long through four."""
    four = "export NCCL_IB_HCA=mlx5_0,mlx5_1,mlx5_2,mlx5_3"
    answer = linted(tmp_path, head=four)
    priced = named(answer, "adapters_left_out")
    exposed = float(answer.prediction.estimate.terms_s["dp"][0])
    assert 0.6 * exposed < priced.step_s < 1.4 * exposed  # type: ignore[operator]
    for all_of_them in ("mlx5", ",".join(f"mlx5_{i}" for i in range(8))):
        more = linted(tmp_path, head=f"export NCCL_IB_HCA={all_of_them}")
        assert "adapters_left_out" not in names(more)
    assert named(linted(tmp_path, head="export NCCL_IB_HCA=^mlx5_2"), "adapters_left_out").step_s


def test_queues_are_one_for_tensor_parallelism_and_many_for_sharded_weights(
    tmp_path: Path,
) -> None:
    """As Megatron-LM's arguments.py asks: 1 with tp, not 1 with FSDP, either on Blackwell."""
    one, reduced = "export CUDA_DEVICE_MAX_CONNECTIONS=1", "--overlap-grad-reduce"
    assert named(linted(tmp_path, reduced), "max_connections").step_s > 0.0  # type: ignore[operator]
    assert "max_connections" in linted(tmp_path, head=one).as_they_should_be
    path = tmp_path / "on_b200.sh"
    path.write_text(f"{HEAD}{COMMAND} {reduced}\n")
    assert "max_connections" not in names(lint([path], {"cluster": "dgx-b200"}))
    sharded = COMMAND.replace("--tensor-model-parallel-size 4 --sequence-parallel", "").replace(
        "--use-distributed-optimizer",
        "--use-distributed-optimizer --use-megatron-fsdp"
        " --data-parallel-sharding-strategy optim_grads_params",
    )
    path.write_text(f"{HEAD}{one}\n{sharded} {reduced} --overlap-param-gather\n")
    assert "max_connections_sharded" in names(lint([path], ON))


def test_what_is_turned_off_has_a_price_or_says_why_it_has_none(tmp_path: Path) -> None:
    head = "export NCCL_NET_GDR_LEVEL=0 NCCL_P2P_DISABLE=1 CUDA_LAUNCH_BLOCKING=1 NCCL_IB_DISABLE=1"
    answer = linted(tmp_path, head=head)
    assert named(answer, "gpudirect_off").step_s == named(answer, "infiniband_off").step_s
    assert named(answer, "infiniband_off").bound == "at least"
    for name in ("peer_to_peer_off", "launch_blocking"):
        assert named(answer, name).step_s is None and named(answer, name).unpriced
    assert answer.lints[-1].step_s is None  # what has no price comes last


def test_checkpoints_of_a_script_against_the_best(tmp_path: Path) -> None:
    far = named(linted(tmp_path, "--save-interval 5000"), "checkpoint_interval")
    assert far.stands == "5000" and far.usd > 0.0  # type: ignore[operator]
    best = far.change["run.checkpoints.every_steps"]
    assert "checkpoint_interval" not in names(linted(tmp_path, f"--save-interval {best}"))


def test_header_and_table_have_the_interval_of_the_launch(tmp_path: Path) -> None:
    answer = linted(tmp_path, "--save-interval 10")
    assert answer.prediction.checkpoint.every_steps == pytest.approx(10.0)
    near = named(answer, "checkpoint_interval")
    assert near.stands == "10" and near.step_s is not None and near.step_s > 0.0
    stall_s = answer.prediction.checkpoint.stall_s  # each step bears a tenth of it, now
    assert near.step_s == pytest.approx(stall_s / 10.0, rel=0.25)


def test_checkpoints_of_torchtitan(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    table = "[checkpoint]\nenable = {}\ninterval = {}\n"
    for enable, interval, listed in (
        ("true", 20, True),
        ("true", 500, True),
        ("false", 10, False),
    ):
        text = TITAN.format("true", "selective") + table.format(enable, interval)
        path.write_text(text.replace("steps = 1000", "steps = 10000"))
        answer = lint([path], {**ON, "gpus": 8})
        assert ("checkpoint_interval" in names(answer)) == listed
        if enable == "true":
            assert answer.prediction.checkpoint.every_steps == pytest.approx(interval)


def test_problems_name_the_file_and_no_option_that_there_is_not(tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    path.write_text(f"{HEAD}\n{COMMAND}\n")
    for command in ("lint", "admit"):
        result = RUNNER.invoke(app, [command, str(path)])
        assert result.exit_code == 2 and "--from" not in result.stderr
        assert f"{path}: cluster.name: not said by these files" in " ".join(result.stderr.split())


def test_compile_and_recomputation_of_torchtitan(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(TITAN.format("false", "full"))
    answer = lint([path], {**ON, "gpus": 8})
    assert named(answer, "compile").change == {"cluster.software": "torchtitan"}
    assert named(answer, "recomputation").change["layout.recompute"] in ("none", "selective")
    path.write_text(TITAN.format("true", "none"))
    assert "compile" not in names(lint([path], {**ON, "gpus": 8}))


def test_every_rule_is_whole() -> None:
    for name, rule in rules().items():
        for pattern in (rule.files, rule.wants, rule.unwanted, rule.looks_for):
            re.compile(pattern)
        assert rule.source and rule.advice, name
        assert bool(rule.looks_for) == bool(rule.wants or rule.unwanted), name


def test_screen_and_document(tmp_path: Path) -> None:
    result = RUNNER.invoke(app, ["lint", str(EXAMPLE), "--cluster", "dgx-h100"])
    assert result.exit_code == 0, result.output
    assert "expandable_segments" in result.stdout and "reduce_beside_compute" in result.stdout
    result = RUNNER.invoke(app, ["lint", str(EXAMPLE), "--cluster", "dgx-h100", "--json"])
    document: dict[str, Any] = json.loads(result.stdout)
    assert {"lints", "as_they_should_be", "from", "step_time_s"} <= set(document)
    assert all(x["source"] for x in document["lints"])


def test_bad_input_names_file_and_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    path.write_text("echo hello\n")
    result = RUNNER.invoke(app, ["lint", str(path), "--cluster", "dgx-h100"])
    assert result.exit_code == 2 and "job.sh: not recognised" in result.stderr
    result = RUNNER.invoke(app, ["lint", str(tmp_path / "none.sh"), "--cluster", "dgx-h100"])
    assert result.exit_code == 2 and "no such file" in result.stderr


SAVES = "[training]\nsteps = 1000\n[checkpoint]\nenable = true\ninterval = 100\n"


@pytest.mark.parametrize(
    ("launch", "mode"),
    [
        ("torchrun pretrain_gpt.py {} --save-interval 100", "sync"),
        ("torchrun pretrain_gpt.py {} --save-interval 100 --async-save", "async"),
        (f"{SAVES}{{}}", "sync"),
        (f'{SAVES}async_mode = "async"\n{{}}', "async"),
    ],
)
def test_training_waits_for_checkpoints_as_the_trainer_does(
    launch: str, mode: str, tmp_path: Path
) -> None:
    """--async-save is off unless given (megatron/training/arguments.py); so is torchtitan's
    async_mode ("disabled", torchtitan/config/job_config.py)."""
    sizes = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096"
    sizes += " --global-batch-size 64 --micro-batch-size 1 --bf16 --vocab-size 32000"
    titan = '[model]\nname = "llama3"\nflavor = "8B"\n'
    path = tmp_path / ("job.toml" if launch.startswith("[") else "job.sh")
    path.write_text(launch.format(titan if launch.startswith("[") else sizes))
    given = {"training.global_batch": 64, "training.sequence_length": 4096}
    sets = [f"{name}={value}" for name, value in given.items()] if path.suffix == ".toml" else []
    imported = import_launch([path], {"cluster": "dgx-h100", "gpus": 16}, sets)
    saved = imported.predicted().checkpoint
    assert saved.mode == mode and saved.every_steps == pytest.approx(100)
    assert (saved.stall_s == saved.write_s) is (mode == "sync")
