"""A layout over a recipe of Megatron-Bridge: pretraining, and fine-tuning with low-rank adapters.

Options as in NVIDIA-NeMo/Megatron-Bridge@067f987d (adapters) and @03b04509 (pretraining),
scripts/training/run_recipe.py and src/megatron/bridge/peft/lora.py; other fields by trailing
KEY=VALUE.
"""

from __future__ import annotations

import re
from typing import Any

from simulator.interop.megatron import megatron_flags
from simulator.interop.torchrun import steps, torchrun, unsaid_stashes, wrapped
from simulator.scenario import Scenario
from simulator.workload.architecture import Architecture
from simulator.workload.recipe import Recipe

__all__ = ["bridge_adapter_block", "bridge_block", "recipe_note", "recipe_stem"]

_RECIPES = (
    *("gemma-2-9b", "gpt-oss-20b", "llama-3-8b", "llama-3-70b", "llama-3.1-8b", "llama-3.1-70b"),
    *("llama-3.1-405b", "llama-3.2-1b", "llama-3.2-3b", "qwen2-7b", "qwen3-8b", "qwen3-32b"),
    "qwen3-235b-a22b",
)
"""Models of the zoo that have a recipe with adapters."""

_TARGETS = {
    "q": "linear_qkv", "k": "linear_qkv", "v": "linear_qkv", "o": "linear_proj",
    "gate": "linear_fc1", "up": "linear_fc1", "down": "linear_fc2",
}  # fmt: skip
"""Our names of adapted matrices -> the modules that hold them."""


def recipe_stem(arch: Architecture) -> str:
    """Name the model as its recipes do: ``llama31_70b``; empty where there is none."""
    if arch.name not in _RECIPES:
        return ""
    short = re.sub(r"^([a-z]+)-(\d)", r"\1\2", arch.name.replace(".", ""))
    return short.replace("-", "_")


def recipe_note(arch: Architecture) -> list[str]:
    """Say where a recipe has to be written first."""
    if recipe_stem(arch):
        return []
    return [f"Megatron-Bridge has no recipe with adapters of {arch.name}: write yours first."]


def bridge_block(row: dict[str, Any], scenario: Scenario) -> str:
    """Write the command for run_recipe.py: a recipe's pretraining with this layout's fields.

    Fields are Megatron's own: flag ``--a-b`` is field ``a_b``, of the section that has it.
    """
    if scenario.workload.recipe.lora_rank:
        return bridge_adapter_block(row, scenario)
    arch = scenario.workload.architecture
    stem = re.sub(r"^([a-z]+)-(\d)", r"\1\2", arch.name.replace(".", "")).replace("-", "_")
    start = (
        f"{torchrun(scenario.cluster)} scripts/training/run_recipe.py"
        f" --recipe {stem}_pretrain_config --dataset llm-pretrain-mock"
    )
    return "\n".join(
        [
            "# In a checkout of Megatron-Bridge. Yours to set: data (mock data here), tokenizer,"
            " learning rate, checkpoints; the recipe where there is none of this name.",
            wrapped(start, _settings(row, scenario)),
            *(f"# {note}" for note in unsaid_stashes(scenario.workload.recipe)),
        ]
    )


def _settings(row: dict[str, Any], scenario: Scenario, *, but: str = "") -> list[list[str]]:
    """Megatron's flags as KEY=VALUE but for those of a pattern; what recipes have on is said."""
    groups = [
        [text for flag in group for text in _setting(flag) if not (but and re.search(but, text))]
        for group in megatron_flags(row, scenario)
    ]
    explicit = [f"model.virtual_pipeline_model_parallel_size={row['vpp']}"] * (row["vpp"] > 1)
    if row["tp"] > 1 and not row["sequence_parallel"]:
        explicit.append("model.sequence_parallel=false")
    if row["sharding"] == "ddp":
        explicit.append("ddp.use_distributed_optimizer=false")
    return [group for group in (*groups, explicit) if group]


_SECTIONS = {
    "model": (
        "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size",
        "expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel",
        "virtual_pipeline_model_parallel_size", "pipeline_model_parallel_layout", "cp_comm_type",
        "hierarchical_context_parallel_sizes", "recompute_granularity", "recompute_method",
        "recompute_num_layers", "recompute_modules", "moe_token_dispatcher_type",
        "moe_enable_deepep", "cpu_offloading_num_layers", "seq_length",
        "microbatch_group_size_per_vp_stage",
    ),
    "train": ("micro_batch_size", "global_batch_size", "train_iters", "train_samples"),
    "ddp": (
        "use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather",
        "use_megatron_fsdp", "data_parallel_sharding_strategy", "grad_reduce_in_fp32",
        "num_distributed_optimizer_instances",
    ),
    "optimizer": ("optimizer_cpu_offload", "optimizer_offload_fraction"),
    "dist": ("use_tp_pp_dp_mapping",),
}  # fmt: skip
"""Sections of ConfigContainer and the fields of each that a layout sets."""


def _setting(flag: str) -> list[str]:
    """``--tensor-model-parallel-size 8`` as ``model.tensor_model_parallel_size=8``."""
    word, _, value = flag.removeprefix("--").partition(" ")
    name = word.replace("-", "_")
    if name in ("grad_reduce_in_bf16", "accumulate_allreduce_grads_in_fp32"):
        name, value = "grad_reduce_in_fp32", str(name != "grad_reduce_in_bf16").lower()
    section = next((key for key, fields in _SECTIONS.items() if name in fields), None)
    if section is None:
        return []
    value = value.strip("'") or "true"
    if name in ("recompute_modules", "hierarchical_context_parallel_sizes"):
        value = f"[{value.replace(' ', ',')}]"
    text = f"{section}.{name}={value}"
    return [f"'{text}'" if set(value) & set("[]|*()") else text]


def bridge_adapter_block(row: dict[str, Any], scenario: Scenario) -> str:
    """Write the command for run_recipe.py with a frozen model and adapters."""
    arch, recipe = scenario.workload.architecture, scenario.workload.recipe
    start = (
        f"{torchrun(scenario.cluster)} scripts/training/run_recipe.py"
        f" --model {recipe_stem(arch) or 'yours'} --mode lora"
    )
    groups = [
        ["--dataset squad", '--pretrained_checkpoint "$CHECKPOINT"'],
        [
            f"--max_steps {steps(scenario)}",
            f"--global_batch_size {row['global_batch']}",
            f"--micro_batch_size {row['micro_batch']}",
            f"--seq_length {recipe.sequence_length}",
        ],
        _adapters(recipe),
        *_settings(row, scenario, but=r"^train\.|seq_length="),
    ]
    notes = [*recipe_note(arch), *unsaid_stashes(recipe)]
    if recipe.quantised_base:
        notes.append("The recipe keeps the frozen weights in 16 bit: 4-bit ones are yours.")
    if recipe.fp8_weights:
        notes.append("Yours: frozen weights in 8 bit alone (fp8_param of mixed_precision).")
    return "\n".join(
        [
            "# A fine-tuning in a checkout of Megatron-Bridge: Megatron-LM itself has no adapters."
            " Yours to set: checkpoint, data, learning rate.",
            wrapped(start, groups),
            *(f"# {note}" for note in notes),
        ]
    )


def _adapters(recipe: Recipe) -> list[str]:
    targets = dict.fromkeys(_TARGETS[name] for name in recipe.lora_targets if name in _TARGETS)
    return [
        f"peft.dim={recipe.lora_rank}",
        f"peft.alpha={2 * recipe.lora_rank}",
        f"'peft.target_modules=[{','.join(targets)}]'",
    ]
