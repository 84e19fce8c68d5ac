"""A layout over a recipe of Megatron-Bridge: pretraining, and fine-tuning with low-rank adapters.

Options as in NVIDIA-NeMo/Megatron-Bridge@067f987d (adapters) and @03b04509 (pretraining),
scripts/training/run_recipe.py and src/megatron/bridge/peft/lora.py; other fields by trailing
KEY=VALUE.
"""

from __future__ import annotations

from typing import Any

from simulator.interop.dialects.megatron import TARGETS, Arguments, megatron_arguments, stem_of
from simulator.interop.dialects.torchrun import steps, torchrun, unsaid_stashes, wrapped
from simulator.quoting import comment_line, shell_word
from simulator.scenario import Scenario
from simulator.workload.architecture import Architecture
from simulator.workload.recipe import Recipe

_RECIPES = (
    *("gemma-2-9b", "gpt-oss-20b", "llama-3-8b", "llama-3-70b", "llama-3.1-8b", "llama-3.1-70b"),
    *("llama-3.1-405b", "llama-3.2-1b", "llama-3.2-3b", "qwen2-7b", "qwen3-8b", "qwen3-32b"),
    "qwen3-235b-a22b",
)
"""Models of the zoo that have a recipe with adapters."""


def recipe_stem(arch: Architecture) -> str:
    """Name the model as its recipes do: ``llama31_70b``; empty where there is none."""
    return stem_of(arch.name) if arch.name in _RECIPES else ""


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
    recipe = f"{stem_of(scenario.workload.architecture.name)}_pretrain_config"
    start = (
        f"{torchrun(scenario.cluster)} scripts/training/run_recipe.py"
        f" --recipe {shell_word(recipe)} --dataset llm-pretrain-mock"
    )
    return "\n".join(
        [
            "# In a checkout of Megatron-Bridge. Yours to set: data (mock data here), tokenizer,"
            " learning rate, checkpoints; the recipe where there is none of this name.",
            wrapped(start, _settings(row, scenario)),
            *(comment_line(note) for note in unsaid_stashes(scenario.workload.recipe)),
        ]
    )


def _settings(
    row: dict[str, Any], scenario: Scenario, *, but: tuple[str, ...] = ()
) -> list[list[str]]:
    """Megatron's arguments as KEY=VALUE but for some; what recipes have on is said where off."""
    explicit: Arguments = {}
    if row["vpp"] > 1:
        explicit["virtual_pipeline_model_parallel_size"] = row["vpp"]
    if row["tp"] > 1 and not row["sequence_parallel"]:
        explicit["sequence_parallel"] = "false"
    if row["sharding"] == "ddp":
        explicit["use_distributed_optimizer"] = "false"
    groups = [
        [_setting(key, value) for key, value in group.items() if key not in but]
        for group in (*megatron_arguments(row, scenario), explicit)
    ]
    return [said for group in groups if (said := [text for text in group if text])]


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


def _setting(key: str, value: Any) -> str:
    """``tensor_model_parallel_size`` of 8 as ``model.tensor_model_parallel_size=8``."""
    if key in ("grad_reduce_in_bf16", "accumulate_allreduce_grads_in_fp32"):
        key, value = "grad_reduce_in_fp32", str(key != "grad_reduce_in_bf16").lower()
    section = next((name for name, keys in _SECTIONS.items() if key in keys), None)
    if section is None:
        return ""
    if isinstance(value, list):
        value = f"[{','.join(map(str, value))}]"
    return shell_word(f"{section}.{key}={'true' if value is True else value}")


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
        *_settings(row, scenario, but=(*_SECTIONS["train"], "seq_length")),
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
            *(comment_line(note) for note in notes),
        ]
    )


def _adapters(recipe: Recipe) -> list[str]:
    targets = dict.fromkeys(TARGETS[name] for name in recipe.lora_targets if name in TARGETS)
    return [
        f"peft.dim={recipe.lora_rank}",
        f"peft.alpha={2 * recipe.lora_rank}",
        shell_word(f"peft.target_modules=[{','.join(targets)}]"),
    ]
