"""torchtune's recipes become scenarios: their YAML, alone or with the command that runs it."""

import re
from pathlib import Path

import pytest

from simulator.distillation import Distillation
from simulator.errors import InputError
from simulator.interop.launch_files.imported import Imported
from simulator.interop.launch_files.merging import import_launch
from simulator.report.evidence import untimed
from simulator.workload import presets

FULL = """\
output_dir: /tmp/out
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  max_seq_len: 2048
dataset:
  _component_: torchtune.datasets.alpaca_cleaned_dataset
  packed: True
seed: null
batch_size_val: ${batch_size}
model:
  _component_: torchtune.models.llama3_1.llama3_1_8b
batch_size: 2
epochs: 1
max_steps_per_epoch: 100
gradient_accumulation_steps: ${steps_added}
steps_added: 1
optimizer:
  _component_: torch.optim.AdamW
  lr: 2e-5
  fused: True
loss:
  _component_: torchtune.modules.loss.LinearCrossEntropyLoss
clip_grad_norm: null
compile: True
optimizer_in_bwd: False
device: cuda
enable_activation_checkpointing: True
enable_activation_offloading: False
custom_sharded_layers: ['tok_embeddings', 'output']
data_parallel_shard_dim: -1
dtype: bf16
"""

ADAPTERS = FULL.replace("custom_sharded_layers: ['tok_embeddings', 'output']\n", "").replace(
    "data_parallel_shard_dim: -1\n", ""
).replace(
    "llama3_1.llama3_1_8b",
    "llama3_1.qlora_llama3_1_8b\n  lora_attn_modules: ['q_proj', 'output_proj']"
    "\n  apply_lora_to_mlp: True\n  lora_rank: 16\n  lora_alpha: 32",
)  # fmt: skip


def read(
    folder: Path, text: str, command: str = "", name: str = "own.yaml", gpus: int = 8
) -> Imported:
    """What a configuration says on one server, with the command where there is one."""
    (folder / name).write_text(text)
    script = folder / "run.sh"
    script.write_text(f"#!/bin/bash\n{command}\n")
    files = [script, folder / name] if command else [folder / name]
    return import_launch(files, {"cluster": "dgx-h100", **({"gpus": gpus} if gpus else {})})


def problems(folder: Path, text: str, command: str = "") -> str:
    with pytest.raises(InputError) as caught:
        read(folder, text, command, gpus=0 if command else 8)
    return str(caught.value)


def test_a_distributed_recipe_in_16_bit(tmp_path: Path) -> None:
    found = read(tmp_path, FULL)
    recipe = found.scenario.workload.recipe
    assert found.scenario.workload.architecture.name == "llama-3.1-8b"
    assert (recipe.sequence_length, recipe.global_batch, recipe.loss_chunks) == (2048, 16, 8)
    assert recipe.tokens == 100 * 16 * 2048
    types = (recipe.precision, recipe.gradient_dtype, recipe.reduce_dtype, recipe.moment_dtype)
    assert types == ("bf16",) * 4
    assert recipe.master_weights is False
    assert found.scenario.software.name == "torchtitan"  # FSDP2, compiled
    assert found.scenario.pinned == {
        "tp": 1, "cp": 1, "pp": 1, "ep": 1, "micro_batch": 2, "sharding": "zero3",
        "recompute": "full",
    }  # fmt: skip
    # 8.03e9 weights of 2 B, each with two moments of 2 B, on 8 GPUs
    held = found.predicted().estimate.memory_bytes["optimizer"][0]
    assert held == pytest.approx(6 * 8.03e9 / 8, rel=0.01)
    assert [place.key for place in found.unknown] == ["steps_added"]


def test_a_command_decides_the_recipe_and_stands_above_its_file(tmp_path: Path) -> None:
    words = "tune run --nproc_per_node 4 lora_finetune_distributed --config own.yaml batch_size=1"
    found = read(tmp_path, ADAPTERS, words, gpus=0)
    recipe = found.scenario.workload.recipe
    assert (found.scenario.cluster.gpus, recipe.global_batch) == (4, 4)
    assert (recipe.lora_rank, recipe.quantised_base) == (16, True)
    assert recipe.lora_targets == ("q", "o", "gate", "up", "down")
    assert found.scenario.pinned["sharding"] == "zero3"
    alone = read(
        tmp_path, ADAPTERS, "tune run lora_finetune_single_device --config own.yaml", gpus=0
    )
    assert (alone.scenario.cluster.gpus, alone.scenario.software.name) == (1, "torchtune-2024")
    assert alone.predicted().estimate.memory_total_bytes[0] > 0


def test_a_name_tells_recipes_of_one_device(tmp_path: Path) -> None:
    text = ADAPTERS.replace("compile: True", "compile:\n  model: False\n  loss: True")
    found = read(tmp_path, text, name="8B_qlora_single_device.yaml", gpus=0)
    assert found.scenario.software.name == "torchtune-2024-eager"
    assert found.scenario.pinned["sharding"] == "ddp"
    with pytest.raises(InputError, match=r"layout\.dp: .* must be cluster\.gpus = 8"):
        read(tmp_path, text, name="8B_qlora_single_device.yaml").predicted()


def test_degrees_and_groups(tmp_path: Path) -> None:
    degrees = (
        "data_parallel_shard_dim: 2\ndata_parallel_replicate_dim: 2\ntensor_parallel_dim: 2\n"
        "tensor_parallel_plan:\n  _component_: torchtune.models.llama3.base_llama_tp_plan\n"
        "fsdp_reshard_after_forward: False"
    )
    found = read(tmp_path, FULL.replace("data_parallel_shard_dim: -1", degrees))
    pinned = found.scenario.pinned
    assert (pinned["tp"], pinned["dp"], pinned["shard_group"]) == (2, 4, 2)
    assert (pinned["sharding"], pinned["sequence_parallel"]) == ("zero2", True)
    assert found.predicted().step_time_s > 0


@pytest.mark.parametrize(
    ("was", "now", "rule"),
    [
        ("dtype: bf16", "dtype: fp16", "dtype: must be one of bf16, fp32, got 'fp16'"),
        ("batch_size: 2", "batch_size: some", "batch_size: must be a whole number from 1"),
        ("llama3_1_8b", "llama3_1_8b\n  lora_rank: 8", r"model\.lora_rank: must not be there"),
        ("llama3_1_8b", "lora_llama3_1_8b", r"model\.lora_attn_modules: must be a list of q_proj"),
        ("bwd: False", "bwd: True\ngradient_accumulation_steps: 2", "bwd: must be false"),
        ("offloading: False", "offloading: True\nenable_activation_checkpointing: False", "with"),
        ("seed: null", "ac_mode: full", "ac_mode: must not be there"),
        ("seed: null", "quantizer:\n  _component_: x.Y", "Int8DynActInt4WeightQATQ"),
        ("seed: null", "tensor_parallel_dim: 2", "must be 1 without tensor_parallel_plan"),
        ("torch.optim.AdamW", "torch.optim.SGD", r"must have optimizer\.momentum"),
        ("shard_dim: -1", "shard_dim: 1\ndata_parallel_replicate_dim: 8", "nothing reduces"),
        ("torchtune.modules.loss.Linear", "torchtune.rlhf.loss.X", r"loss\._component_: must be"),
    ],
)  # fmt: skip
def test_what_a_recipe_or_a_scenario_cannot_do_is_refused(
    tmp_path: Path, was: str, now: str, rule: str
) -> None:
    assert was in FULL
    assert re.search(rf"own\.yaml: .*{rule}", problems(tmp_path, FULL.replace(was, now)))


def test_pairs_and_teachers(tmp_path: Path) -> None:
    """recipes/lora_dpo_distributed.py: concatenated_forward, adapters off for the reference;
    recipes/knowledge_distillation_distributed.py: a teacher_model of its own."""
    command = "tune run --nproc_per_node 8 lora_dpo_distributed --config own.yaml"
    plain = read(tmp_path, ADAPTERS, command.replace("dpo", "finetune")).scenario
    text = re.sub(r"torchtune\.modules\.loss\.\w+", "torchtune.rlhf.loss.DPOLoss", ADAPTERS)
    found = read(tmp_path, text, command).scenario
    assert found.pinned["micro_batch"] == 2 * plain.pinned["micro_batch"]
    assert found.required(Distillation).compares == "log_probabilities"
    text = f"{ADAPTERS}teacher_model:\n  _component_: torchtune.models.llama3_1.llama3_1_70b\n"
    taught = read(tmp_path, text, command.replace("lora_dpo", "knowledge_distillation")).scenario
    assert taught.required(Distillation).teacher == "llama-3.1-70b"
    assert taught.pinned["micro_batch"] == plain.pinned["micro_batch"]


def test_quantisation_aware_training_is_read(tmp_path: Path) -> None:
    """Of which linears, as torchtune@bd2a0fc7 says: recipes/qat*.py, training/quantization.py."""
    kind = "torchtune.training.quantization.Int8DynActInt4WeightQATQuantizer"
    quantiser = f"quantizer:\n  _component_: {kind}\n  groupsize: 256\n"
    text = FULL.replace("compile: True", "compile: False") + quantiser
    command = "tune run --nproc_per_node 8 qat_distributed --config own.yaml"
    plain = read(tmp_path, text, command.replace("qat_d", "full_finetune_d"))
    rounded = read(tmp_path, text, command)
    recipe = rounded.scenario.workload.recipe
    assert (recipe.fake_quantised_weights, recipe.fake_quantised_inputs) == (
        "detached_scales",
        True,
    )
    assert recipe.fake_quantised_head  # Llama 3.1 has a table of its own there
    tied = read(tmp_path, text.replace("llama3_1.llama3_1_8b", "llama3_2.llama3_2_1b"), command)
    assert not tied.scenario.workload.recipe.fake_quantised_head
    small = text.replace("llama3_1.llama3_1_8b", "qwen3.qwen3_1_7b_instruct")
    assert read(tmp_path, small, command).scenario.workload.architecture.name == "qwen3-1.7b"
    assert not read(tmp_path, small, command).scenario.workload.recipe.fake_quantised_head
    assert plain.scenario.workload.recipe.fake_quantised_weights == "none"
    longer = rounded.predicted().estimate.step_time_s[0] / plain.predicted().estimate.step_time_s[0]
    assert longer > 1.5  # each weight's 118 B of traffic against the 12 B of its three products
    adapted = ADAPTERS.replace("qlora_", "lora_").replace("compile: True", "compile: False")
    command = "tune run --nproc_per_node 8 qat_lora_finetune_distributed --config own.yaml"
    recipe = read(tmp_path, adapted + quantiser, command).scenario.workload.recipe
    assert (recipe.fake_quantised_weights, recipe.fake_quantised_head) == ("detached_scales", False)
    compiled = problems(tmp_path, text.replace("compile: False", "compile: True"))
    assert "what a compiler or fused modules make of it is not known" in compiled


def test_rounding_slows_a_step_down_as_published(tmp_path: Path) -> None:
    """torchtune's pull 2864: Qwen3 1.7B, 4 GPUs, 16 samples each, 5,687.638 to 2,569.197 tokens/s.

    Neither the GPUs nor the length that samples are padded to are told: the longest of 16 samples
    of alpaca has a few hundred tokens.
    """
    text = FULL.replace("compile: True", "compile: False").replace(
        "batch_size: 2", "batch_size: 16"
    )
    text = text.replace(
        "enable_activation_checkpointing: True", "enable_activation_checkpointing: False"
    )
    text = text.replace("llama3_1.llama3_1_8b", "qwen3.qwen3_1_7b_instruct")
    kind = "torchtune.training.quantization.Int8DynActInt4WeightQATQuantizer"
    quantiser = f"quantizer:\n  _component_: {kind}\n"
    command = "tune run --nproc_per_node 4 qat_distributed --config own.yaml"
    longer = []
    for tokens in (250, 600):
        own = text.replace("max_seq_len: 2048", f"max_seq_len: {tokens}")
        plain = read(tmp_path, own, command.replace("qat_d", "full_finetune_d"), gpus=0).predicted()
        rounded = read(tmp_path, own + quantiser, command, gpus=0).predicted()
        longer.append(rounded.estimate.step_time_s[0] / plain.estimate.step_time_s[0])
        said = "published steps are 2.2 times as long"
        assert any(said in words for words in untimed(rounded.scenario.workload))
        assert not untimed(plain.scenario.workload)
    assert longer == pytest.approx([5687.638 / 2569.197] * 2, rel=0.2)


def test_what_is_not_told_is_asked_for(tmp_path: Path) -> None:
    assert "recipe: 'single_device or distributed' is not told" in problems(tmp_path, ADAPTERS)
    command = "tune run --nproc_per_node 8 full_finetune_distributed --config llama3_1/8B_full"
    assert "run.sh: line 2: --config: what the recipe does" in problems(tmp_path, FULL, command)
    command = "tune run eleuther_eval --config own.yaml"
    assert "run.sh: line 2: recipe: must be one of" in problems(tmp_path, FULL, command)
    command = "tune run lora_finetune_single_device --config own.yaml"
    assert "must be of lora where" in problems(tmp_path, FULL, command)
    command = "tune run full_finetune_single_device --config own.yaml tensor_parallel_dim=8"
    assert "no recipe of one device reads it" in problems(tmp_path, FULL, command)


@pytest.mark.parametrize(
    ("builder", "name"),
    [
        ("llama2_13b", "llama-2-13b"), ("llama3_8b", "llama-3-8b"),
        ("llama3_1_405b", "llama-3.1-405b"),
        ("llama3_2_3b", "llama-3.2-3b"), ("llama3_3_70b", "llama-3.1-70b"),
        ("gemma2_9b", "gemma-2-9b"),
        ("mistral_7b", "mistral-7b"), ("phi3_mini", "phi-3-mini"), ("qwen2_7b", "qwen2-7b"),
        ("qwen3_8b_instruct", "qwen3-8b"), ("qwen3_32b", "qwen3-32b"), ("gemma_2b", None),
    ],
)  # fmt: skip
def test_builders_are_of_the_zoo(builder: str, name: str | None) -> None:
    assert presets.named(builder) == name


def test_states_may_wait_on_the_host(tmp_path: Path) -> None:
    found = read(tmp_path, FULL.replace("seed: null", "fsdp_cpu_offload: True"))
    assert found.scenario.pinned["optimizer_offload"] == "cpu"
    assert found.scenario.software.name == "torch-fsdp-compiled"
    held = found.predicted().estimate.memory_bytes["optimizer"][0]
    assert held == 0
