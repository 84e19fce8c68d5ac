"""Trainers as they are started today: Primus' experiments, Megatron-Bridge's performance recipes.

Degrees and batches are those of the trainers' own files (named in each test), worked out by hand.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simulator.cli.main import app
from simulator.errors import InputError
from simulator.interop.dialects.megatron_bridge import performance_recipes
from simulator.interop.launch_files.imported import Imported
from simulator.interop.launch_files.merging import import_launch
from simulator.interop.launch_files.recognising import read_launch_file
from tests.interop import launch_samples

PRIMUS = launch_samples.PRIMUS.replace("recompute_num_layers: 12", "recompute_num_layers: LAYERS")


def read(folder: Path, text: str, name: str = "run.sh", **names: Any) -> Imported:
    (folder / name).write_text(text)
    return import_launch([folder / name], {"cluster": "mi300x-8", "gpus": 8, **names})


@pytest.mark.parametrize(("layers", "recompute"), [("0", "none"), ("12", "full")])
def test_an_experiment_of_primus_with_defaults(tmp_path: Path, layers: str, recompute: str) -> None:
    found = read(tmp_path, PRIMUS.replace("LAYERS", layers), "exp.yaml")
    pinned = found.scenario.pinned
    assert (pinned["tp"], pinned["micro_batch"]) == (2, 4)
    assert pinned["recompute"] == recompute
    assert pinned.get("recompute_layers", 0) == int(layers)
    assert found.scenario.workload.recipe.sequence_length == 4096
    assert found.scenario.workload.architecture.name == "llama-3.1-8b"
    assert found.scenario.software.name == "primus"


@pytest.mark.parametrize(
    ("file", "model"),
    [
        ("llama3.1_70B.yaml", "llama-3.1-70b"), ("llama2_7B.yaml", "llama-2-7b"),
        ("mixtral_8x7B_v0.1.yaml", "mixtral-8x7b"), ("deepseek_v3.yaml", "deepseek-v3"),
        ("qwen3_8B.yaml", "qwen3-8b"), ("llama3.3_70B.yaml", "llama-3.1-70b"),
        ("gpt_oss_20B.yaml", "gpt-oss-20b"),
    ],
)  # fmt: skip
def test_model_files_of_primus_are_named_after_the_model(
    tmp_path: Path, file: str, model: str
) -> None:
    """AMD-AGI/Primus@fd1eeabb, primus/configs/models/megatron; Llama 3.3 has the sizes of 3.1."""
    text = PRIMUS.replace("llama3.1_8B.yaml", file).replace("LAYERS", "0")
    assert read(tmp_path, text, "exp.yaml").scenario.workload.architecture.name == model


def test_primus_starts_torchtitan_and_what_is_not_read(tmp_path: Path) -> None:
    text = """\
modules:
  pre_trainer:
    framework: torchtitan
    model: llama3.1_8B.yaml
    overrides:
      training:
        local_batch_size: 4
        seq_len: ${SEQ:8192}
      activation_checkpoint:
        mode: full
"""
    found = read(tmp_path, text, "exp.yaml")
    assert found.scenario.pinned["micro_batch"] == 4
    assert found.scenario.pinned["recompute"] == "full"
    assert found.scenario.workload.recipe.sequence_length == 8192
    with pytest.raises(InputError, match="an experiment of Primus by maxdiffusion, which is not"):
        read(tmp_path, text.replace("torchtitan", "maxdiffusion"), "other.yaml")


EXPERIMENT = (
    "uv run python scripts/performance/setup_experiment.py --account a -p batch -m llama"
    " -mr llama31_405b -ng 1024 -gn 8 -g h100 -c fp8_cs {more}-hf TOKEN\n"
)


def test_a_performance_recipe_says_what_its_options_do_not(tmp_path: Path) -> None:
    """perf_recipes/llama/h100/llama31.py: llama31_405b_pretrain_1024gpu_h100_fp8cs_config."""
    row = performance_recipes()["llama31_405b_pretrain_1024gpu_h100_fp8cs_config"]
    cluster = {"cluster": "dgx-h100", "gpus": None}
    found = read(tmp_path, EXPERIMENT.format(more=""), **cluster)
    pinned = found.scenario.pinned
    assert [str(pinned[name]) for name in ("tp", "pp", "cp", "vpp")] == [
        row["tp"], row["pp"], row["cp"], row["vpp"],
    ]  # fmt: skip
    assert found.scenario.cluster.gpus == 1024
    assert found.scenario.workload.recipe.precision == "fp8_current"
    assert str(found.scenario.workload.recipe.global_batch) == row["global_batch"]
    assert any("said by Megatron-Bridge's recipe llama31_405b_pre" in note for note in found.notes)
    more = read(tmp_path, EXPERIMENT.format(more="-tp 4 -pp 8 -gb 512 "), **cluster)
    assert (more.scenario.pinned["tp"], more.scenario.workload.recipe.global_batch) == (4, 512)


def test_a_recipe_that_is_not_known_is_asked_for(tmp_path: Path) -> None:
    text = EXPERIMENT.format(more="").replace("-ng 1024", "-ng 24")
    with pytest.raises(InputError, match="'llama31_405b_pretrain_24gpu_h100_fp8cs_config' is a"):
        read(tmp_path, text, cluster="dgx-h100", gpus=None)


def test_a_launcher_of_ones_own_with_the_options_of_performance_recipes(tmp_path: Path) -> None:
    """Recipes of clouds start the inner program themselves; overrides.py says what options set."""
    text = (
        "torchrun --nnodes 16 --nproc_per_node 8 {program} --gpu h100 --model_family_name qwen"
        " --model_recipe_name qwen3_235b_a22b --gpus_per_node 8 --num_gpus 128 --seq_length 4096"
        " --compute_dtype bf16 --global_batch_size 1024 --micro_batch_size 1"
        " --tensor_model_parallel_size 2 --pipeline_model_parallel_size 8"
        " --expert_model_parallel_size 8 --moe_a2a_overlap True --recompute_modules moe_act\n"
    )
    for program in ("scripts/performance/custom_setup_experiment.py", "performance/run_script.py"):
        found = read(tmp_path, text.format(program=program), cluster="dgx-h100", gpus=None)
        assert found.readings[-1].kind == "Megatron-Bridge command"
        assert found.scenario.workload.recipe.precision == "bf16"
        said = {item.field: item.value for item in found.origins}
        assert said["software.expert_overlap"] is True
        pinned = found.scenario.pinned
        assert (pinned["recompute"], pinned["recompute_modules"]) == ("selective", "moe_act")
        assert pinned.get("sharding") != "ddp"
        assert any("what no option says is not counted" in note for note in found.notes)


def test_a_recipe_named_in_full(tmp_path: Path) -> None:
    text = "scripts/training/train.sh\ntorchrun run_recipe.py --recipe"
    text += " llama3_70b_pretrain_64gpu_h100_bf16_config train.global_batch_size=128\n"
    found = read(tmp_path, text, cluster="dgx-h100", gpus=None)
    assert (found.scenario.pinned["tp"], found.scenario.pinned["pp"]) == (4, 4)
    assert found.scenario.workload.recipe.global_batch == 128
    assert found.scenario.cluster.gpus == 64


def test_every_performance_recipe_divides_its_accelerators() -> None:
    """Megatron's laws: tp x cp x pp divides the ranks, and the batch a micro-batch of all."""
    for name, row in performance_recipes().items():
        gpus = int(name.partition("_pretrain_")[2].partition("gpu_")[0])
        tp, pp, cp, batch, micro = (
            int(row[key]) for key in ("tp", "pp", "cp", "global_batch", "micro_batch")
        )
        assert gpus % (tp * pp * cp) == 0, name
        assert batch % (micro * (gpus // (tp * pp * cp))) == 0, name


def test_predict_says_in_its_document_what_it_read(tmp_path: Path) -> None:
    path = tmp_path / "exp.yaml"
    path.write_text(PRIMUS.replace("LAYERS", "0") + "      my_own: 3\n")
    words = ["predict", "--from", str(path), "--cluster", "mi300x-8", "--gpus", "8", "--json"]
    done = CliRunner().invoke(app, words)
    document = json.loads(done.stdout)["from"]
    planned = json.loads(CliRunner().invoke(app, ["plan", *words[1:]]).stdout)["from"]
    assert document == planned
    assert [text for text in document["unknown"] if text.endswith("my_own")]
    assert {"files", "fields", "unknown", "no_bearing", "notes"} <= set(document)


def test_selective_checkpointing_of_a_registered_job_is_that_of_operators(tmp_path: Path) -> None:
    """torchtitan/config/configs.py: ActivationCheckpointConfig has no blocks to choose among."""
    job = "torchrun --nnodes 2 --nproc_per_node 8 -m torchtitan.train --module llama3"
    words = "--config llama3_70b --activation_checkpoint.mode selective"
    found = read(tmp_path, f"{job} {words}\n", cluster="dgx-h100", gpus=16)
    assert found.scenario.pinned["recompute"] == "selective"
    assert not any("every second block" in note for note in found.notes)
    found = read(tmp_path, f"{job} --config llama3_70b\n", cluster="dgx-h100", gpus=16)
    assert found.scenario.pinned["recompute"] == "full"


POD = """
    spec:
      containers:
      - name: pytorch
        resources: {limits: {nvidia.com/gpu: 8}}
        command: [torchrun, --nproc_per_node=8, train.py]
"""
SERVICE = "apiVersion: v1\nkind: Service\nmetadata: {name: s}\n"
JOB = "apiVersion: batch/v1\nkind: Job\nspec:\n  completions: 4\n  template:" + POD


def test_a_job_beside_other_documents_of_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(f"---\n# head\n---\n{SERVICE}---\n{JOB}")
    (found, *_) = read_launch_file(tmp_path / "job.yaml")
    assert found.kind == "a Job of Kubernetes"
    assert next((item.field, item.value) for item in found.stated) == ("run.nodes", 4)
    (tmp_path / "jobs.yaml").write_text(f"{JOB}---\n{JOB}")
    notes = [note for x in read_launch_file(tmp_path / "jobs.yaml") for note in x.notes]
    assert any("of 2 jobs the first was read" in note for note in notes)


def test_servers_that_a_variable_says_are_asked_for(tmp_path: Path) -> None:
    """envsubst fills them in; what stands beside them says nothing of their number."""
    roles = "\n".join(
        f"    {name}:\n      replicas: {count}\n      template:"
        + POD.replace("\n    ", "\n        ")
        for name, count in (("Master", 1), ("Worker", "$NUM_NODES"))
    )
    text = f"kind: PyTorchJob\nspec:\n  pytorchReplicaSpecs:\n{roles}\n"
    (tmp_path / "job.yaml").write_text(text)
    (found, *_) = read_launch_file(tmp_path / "job.yaml")
    assert [item.field for item in found.stated] == ["run.per_node"]


def test_a_trainer_of_no_steps_counts_epochs(tmp_path: Path) -> None:
    """transformers/training_args.py: steps of 0 and below leave num_train_epochs to decide."""
    text = "torchrun --nproc_per_node 8 train.py --per_device_train_batch_size 1 --bf16 True"
    text += " --model_name_or_path meta-llama/Meta-Llama-3-8B --max_steps 0 --max_seq_length 4096\n"
    (tmp_path / "run.sh").write_text(text)
    readings = read_launch_file(tmp_path / "run.sh")
    assert not any(reading.problems for reading in readings)
    assert "run.steps" not in {item.field for reading in readings for item in reading.stated}


JOB_FILE = """
[model]
name = "llama3"
flavor = "8B"
[training]
batch_size = 2
seq_len = 4096
steps = 100
tensor_parallel_degree = 2
[float8]
enable_float8_linear = {float8}
"""


def test_a_job_of_torchtitan_is_read_with_the_command_that_names_it(tmp_path: Path) -> None:
    """torchtitan/config_manager.py: options of the command stand above the job's file."""
    command = "torchrun --nproc_per_node 8 --nnodes 2 train.py --job.config_file jobs/mine.toml"
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "mine.toml").write_text(JOB_FILE.format(float8="true"))
    found = read(tmp_path, f"{command} --training.seq_len 8192\n", cluster="dgx-h100", gpus=None)
    recipe = found.scenario.workload.recipe
    assert (recipe.sequence_length, recipe.precision) == (8192, "fp8_current")
    assert found.scenario.pinned["micro_batch"] == 2
    assert found.scenario.cluster.gpus == 16
    (tmp_path / "jobs" / "mine.toml").write_text(JOB_FILE.format(float8="false"))
    plain = read(tmp_path, f"{command}\n", cluster="dgx-h100", gpus=None)
    assert plain.scenario.workload.recipe.precision == "bf16"


def test_a_job_of_torchtitan_that_is_not_there_is_asked_for(tmp_path: Path) -> None:
    command = "torchrun --nproc_per_node 8 --nnodes 2 train.py --job.config_file away.toml\n"
    with pytest.raises(InputError, match=r"'away.toml' says more: give it with --from too"):
        read(tmp_path, command, cluster="dgx-h100", gpus=None)


def test_settings_under_training_that_torchtitan_has_not_are_not_its_own(tmp_path: Path) -> None:
    text = "training:\n" + "".join(f"  {k}: 8\n" for k in ("num_layers", "tune_steps", "tp", "lr"))
    (tmp_path / "x.yaml").write_text(text)
    problems = [problem for r in read_launch_file(tmp_path / "x.yaml") for problem in r.problems]
    assert any("are known as those of a torchtitan job" in problem for problem in problems)


def test_a_script_of_ones_own_is_no_command_of_megatron(tmp_path: Path) -> None:
    """Two names in common are no claim: fp32 and unshared states are Megatron-LM's defaults."""
    own = "--seq_length 4096 --micro_batch_size 2 --my_a 1 --my_b 2 --my_c 3"
    (tmp_path / "run.sh").write_text(f"torchrun --nproc_per_node 8 train.py {own}\n")
    problems = [text for r in read_launch_file(tmp_path / "run.sh") for text in r.problems]
    assert any("are known as those of a Megatron-LM command" in text for text in problems)
