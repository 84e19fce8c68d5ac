"""Launch commands by what the accelerator's programs are built on, and those of fine-tunings."""

import json
import re
import shlex
import subprocess
from typing import Any

import pytest

from simulator.api import predict
from simulator.interop.dialects.megatron_bridge import recipe_stem
from simulator.interop.exporting import launch_flags
from simulator.workload.presets import load

# Of AI-Hypercomputer/maxtext@e591f30c src/maxtext/configs/base.yml (lora.* of configs/types.py).
MAXTEXT = {
    "attention", "base_output_directory", "context_parallel_strategy", "dataset_type", "dtype",
    "enable_checkpointing", "gradient_accumulation_steps", "hf_path", "ici_context_parallelism",
    "dcn_data_parallelism", "dcn_fsdp_parallelism", "ici_data_parallelism",
    "ici_expert_parallelism",
    "ici_fsdp_parallelism", "ici_tensor_parallelism", "ici_tensor_sequence_parallelism",
    "key_proj", "load_parameters_path", "lora.enable_lora", "lora.lora_alpha", "lora.lora_rank",
    "max_target_length", "model_name", "opt_type", "out_proj", "per_device_batch_size",
    "query_proj", "quantization", "remat_policy", "run_name", "steps", "use_qwix_quantization",
    "value_proj", "base_emb_dim", "base_num_decoder_layers",
    "base_num_query_heads", "base_num_kv_heads", "head_dim", "base_mlp_dim", "vocab_size",
    "mu_dtype", "decoder_layer_input",
}  # fmt: skip

# Of AMD-AGI/Primus@fd1eeabb primus/configs (megatron): arguments that switches turn off.
PRIMUS_OFF = ("add_bias_linear", "create_attention_mask_in_dataloader")


def block(**asked: Any) -> str:
    """The launch command of a predicted layout, a sound shell script."""
    found = predict(**{"model": "llama-3.1-8b", **asked})
    text = launch_flags(found.estimate.layouts, found.scenario)
    subprocess.run(["bash", "-n", "-c", text], check=True)
    return text


def settings(text: str) -> dict[str, str]:
    words = shlex.split(text.replace("\\\n", " "), comments=True)
    return dict(word.split("=", 1) for word in words if re.match(r"[a-z_.]+=", word))


@pytest.mark.parametrize(
    ("cluster", "starts"),
    [
        ("tpu-v5p", "python3 -m maxtext.trainers.pre_train.train"),
        ("mi300x-8", "primus-cli direct -- train pretrain"),
        ("hls-gaudi2", "PT_HPU_LAZY_MODE=1 python ../gaudi_spawn.py --world_size 8"),
        ("atlas-800t-a2", "torchrun --standalone --nproc_per_node 8 pretrain_gpt.py"),
        ("dgx-h100", "torchrun --standalone --nproc_per_node 8 pretrain_gpt.py"),
    ],
)
def test_each_platform_is_started_its_own_way(cluster: str, starts: str) -> None:
    text = block(cluster=cluster, gpus=8)
    assert starts in text
    assert ("torch_npu" in text) == (cluster == "atlas-800t-a2")


def test_maxtext_settings_worked_by_hand() -> None:
    """16 chips as tp 2 x cp 2 x fsdp 4; 64 sequences over 16 devices in two parts: 2 each."""
    text = block(
        cluster="tpu-v5p", gpus=16, tp=2, cp=2, dp=4, global_batch=64, micro_batch=8,
        sharding="zero3", recompute="selective", sequence_parallel=False,
    )  # fmt: skip
    found = settings(text)
    assert set(found) <= MAXTEXT
    expected = {
        "ici_tensor_parallelism": "2", "ici_context_parallelism": "2", "ici_fsdp_parallelism": "4",
        "ici_data_parallelism": "1", "per_device_batch_size": "2",
        "gradient_accumulation_steps": "2", "model_name": "llama3.1-8b",
        "remat_policy": "custom", "query_proj": "device", "context_parallel_strategy": "all_gather",
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected


def test_maxtext_without_a_preset_names_sizes() -> None:
    text = block(model="phi-3-mini", cluster="tpu-v5p", gpus=4, sequence_length=2048)
    found = settings(text)
    assert set(found) <= MAXTEXT and "model_name" not in found
    assert (found["base_emb_dim"], found["base_num_decoder_layers"]) == ("3072", "32")
    assert "no preset of phi-3-mini" in text


def test_primus_takes_megatron_arguments_in_yaml() -> None:
    text = block(cluster="mi300x-8", gpus=16, tp=8, pp=2, global_batch=64)
    lines = dict(line.strip().split(": ", 1) for line in text.splitlines() if line[:6] == " " * 6)
    assert (lines["tensor_model_parallel_size"], lines["global_batch_size"]) == ("8", "64")
    assert lines["sequence_parallel"] == lines["bf16"] == "true"
    assert all(lines[name] == "false" for name in PRIMUS_OFF)
    assert not [name for name in lines if name.startswith(("no_", "disable_"))]
    assert "export NNODES=2" in text


def test_gaudi_runs_deepspeed_under_its_own_spawner() -> None:
    text = block(cluster="hls-gaudi2", gpus=16, micro_batch=2, global_batch=64, sharding="zero3")
    config = json.loads(text.split("<<'JSON'\n")[1].split("\nJSON\n")[0])
    assert config["zero_optimization"]["stage"] == 3
    assert "--hostfile hostfile --use_deepspeed run_clm.py" in text
    assert "--per_device_train_batch_size 2 --gradient_accumulation_steps 2" in text


def test_mindspeed_has_flags_of_its_own() -> None:
    text = block(
        cluster="atlas-800t-a2", gpus=16, cp=2, cp_kind="all_to_all", recompute="selective",
        recompute_modules="core_attn+norm",
    )  # fmt: skip
    assert "--context-parallel-algo ulysses_cp_algo" in text and "--cp-comm-type" not in text
    assert "--use-flash-attn" in text and "--attention-backend" not in text
    assert "--recompute-norm" in text and "--recompute-modules" not in text
    assert "--padded-vocab-size 128256" in text and "--mock-data" not in text


ADAPTED = {
    "dgx-h100": ("run_recipe.py --model llama31_8b --mode lora", "peft.dim=16"),
    "mi300x-8": ("train posttrain", "peft: lora"),
    "tpu-v5p": ("post_train.sft.train_sft_native", "lora.lora_rank=16"),
    "hls-gaudi2": ("run_lora_clm.py", "--lora_rank 16"),
    "atlas-800t-a2": ("posttrain_gpt.py", "--lora-r 16"),
}


@pytest.mark.parametrize("cluster", ADAPTED)
def test_adapters_are_a_fine_tuning(cluster: str) -> None:
    text = block(cluster=cluster, gpus=8, lora_rank=16)
    assert all(said in text for said in ADAPTED[cluster])
    assert "pretrain_gpt.py" not in text and "train pretrain" not in text
    assert "lora_rank =" not in text  # not among what no flag says


def test_torchtitan_has_no_adapters_and_no_command_for_them() -> None:
    text = block(cluster="dgx-h100", gpus=8, software="torchtitan", lora_rank=16)
    assert "no launch command is written" in text and "data_parallel_shard_degree = 8" in text
    assert "torchrun" not in text


def test_scripts_are_told_of_adapters() -> None:
    text = block(cluster="dgx-h100", gpus=8, software="deepspeed", lora_rank=16)
    assert '--model_name_or_path "$CHECKPOINT" --lora_rank 16' in text
    text = block(model="gpt2-xl", cluster="dgx-h100", gpus=8, software="plain-ddp", lora_rank=16)
    assert "LORA_RANK=16 LORA_TARGETS=q,k,v,o" in text


@pytest.mark.parametrize(
    ("model", "stem"),
    [("llama-3.1-70b", "llama31_70b"), ("qwen3-235b-a22b", "qwen3_235b_a22b"), ("mpt-7b", "")],
)
def test_names_of_recipes(model: str, stem: str) -> None:
    """NVIDIA-NeMo/Megatron-Bridge@067f987d src/megatron/bridge/recipes: NAME_peft_config."""
    assert recipe_stem(load(model)) == stem
