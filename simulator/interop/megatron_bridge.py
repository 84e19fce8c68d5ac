"""A fine-tuning with low-rank adapters as a recipe of Megatron-Bridge; Megatron-LM has none.

Options as in NVIDIA-NeMo/Megatron-Bridge@067f987d, scripts/training/run_recipe.py and
src/megatron/bridge/peft/lora.py; other fields by trailing KEY=VALUE.
"""

from __future__ import annotations

import re
from typing import Any

from simulator.interop.torchrun import steps, torchrun, unsaid_stashes, wrapped
from simulator.scenario import Scenario
from simulator.workload.architecture import Architecture
from simulator.workload.recipe import Recipe

__all__ = ["bridge_adapter_block", "recipe_note", "recipe_stem"]

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

_CP_KINDS = {
    "ring": "p2p", "all_gather": "all_gather", "all_to_all": "a2a", "hierarchical": "a2a+p2p",
}  # fmt: skip


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
        _degrees(row, arch),
        _adapters(recipe),
        _settings(row, recipe),
    ]
    notes = [*recipe_note(arch), *unsaid_stashes(recipe)]
    if recipe.quantised_base:
        notes.append("The recipe keeps the frozen weights in 16 bit: 4-bit ones are yours.")
    return "\n".join(
        [
            "# A fine-tuning in a checkout of Megatron-Bridge: Megatron-LM itself has no adapters."
            " Yours to set: checkpoint, data, learning rate.",
            wrapped(start, groups),
            *(f"# {note}" for note in notes),
        ]
    )


def _degrees(row: dict[str, Any], arch: Architecture) -> list[str]:
    flags = [
        f"--tensor_model_parallel_size {row['tp']}",
        f"--pipeline_model_parallel_size {row['pp']}",
        f"--context_parallel_size {row['cp']}",
    ]
    if row["vpp"] > 1:
        flags.append(f"--virtual_pipeline_model_parallel_size {row['vpp']}")
    if arch.is_moe:
        flags += [
            f"--expert_model_parallel_size {row['ep']}",
            f"--expert_tensor_parallel_size {row['etp']}",
        ]
    return flags


def _adapters(recipe: Recipe) -> list[str]:
    targets = dict.fromkeys(_TARGETS[name] for name in recipe.lora_targets if name in _TARGETS)
    return [
        f"peft.dim={recipe.lora_rank}",
        f"peft.alpha={2 * recipe.lora_rank}",
        f"'peft.target_modules=[{','.join(targets)}]'",
    ]


def _settings(row: dict[str, Any], recipe: Recipe) -> list[str]:
    found = [f"model.sequence_parallel={str(bool(row['sequence_parallel'])).lower()}"]
    if row["cp"] > 1:
        found.append(f"model.cp_comm_type={_CP_KINDS[row['cp_kind']]}")
    shared = str(row["sharding"] != "ddp").lower()
    found.append(f"ddp.use_distributed_optimizer={shared}")
    if row["recompute"] != "none":
        found.append(f"model.recompute_granularity={row['recompute']}")
    if row["recompute"] == "full":
        count = row["recompute_layers"]
        method = "block" if count else "uniform"
        found += [f"model.recompute_method={method}", f"model.recompute_num_layers={count or 1}"]
    return found
