"""A layout as a Primus experiment: Megatron-LM's arguments on ROCm, in YAML.

Names as in AMD-AGI/Primus@fd1eeabb: examples/megatron/configs/MI300X,
primus/configs/modules/megatron/trainer_base.yaml and models/megatron/language_model.yaml; adapters
as in examples/megatron_bridge/configs/MI300X/qwen3_32b_lora_posttrain.yaml, where what no recipe's
function takes is left out of the call (primus/backends/megatron_bridge/config_utils.py).
"""

from __future__ import annotations

from typing import Any

from simulator.interop.dialects.megatron import (
    megatron_arguments,
    megatron_notes,
    megatron_unsaid,
)
from simulator.interop.dialects.megatron_bridge import recipe_note, recipe_stem
from simulator.interop.dialects.torchrun import steps
from simulator.scenario import Scenario

__all__ = ["primus_block", "primus_unsaid"]

_OTHERS = {
    "no_gradient_accumulation_fusion": "gradient_accumulation_fusion",
    "no_overlap_p2p_communication": "overlap_p2p_comm",
    "no_create_attention_mask_in_dataloader": "create_attention_mask_in_dataloader",
    "disable_bias_linear": "add_bias_linear",
}
"""Megatron-LM's switches that turn something off -> the argument that is false then."""

_NAMES = {"fp8_format": "fp8", "fp4_format": "fp4"}


def primus_block(row: dict[str, Any], scenario: Scenario) -> str:
    """Write the experiment with a here-document, then the command of every server."""
    recipe = scenario.workload.recipe
    if recipe.lora_rank:
        return _adapting(row, scenario)
    overrides = {"sequence_parallel": "false", "use_distributed_optimizer": "false"}
    for group in megatron_arguments(row, scenario):
        overrides |= dict(_setting(key, value) for key, value in group.items())
    module = ["pre_trainer:", "  framework: megatron", "  config: pre_trainer.yaml"]
    return "\n".join(
        [
            "# With Primus in AMD's container, on every server. Yours to set: data and tokenizer"
            " (mock data here), learning rate, checkpoints.",
            _experiment([*module, "  model: language_model.yaml"], overrides),
            *_start(scenario, "pretrain"),
            *(f"# {note}" for note in megatron_notes(row, scenario)),
        ]
    )


def _setting(key: str, value: Any) -> tuple[str, str]:
    if key in _OTHERS:
        return _OTHERS[key], "false"
    words = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    quoted = f"'{words}'" if set(words) & set("()|*[]") else words
    return _NAMES.get(key, key), "true" if value is True else quoted


def _experiment(module: list[str], overrides: dict[str, str]) -> str:
    lines = [
        "work_group: amd",
        "user_name: root",
        "exp_name: foreshard",
        "workspace: ./output",
        "modules:",
        *(f"  {line}" for line in module),
        "    overrides:",
        *(f"      {name}: {value}" for name, value in overrides.items()),
    ]
    return "\n".join(["cat > foreshard.yaml <<'YAML'", *lines, "YAML"])


def _start(scenario: Scenario, what: str) -> list[str]:
    lines = []
    if scenario.cluster.nodes > 1:
        nodes = f"NNODES={scenario.cluster.nodes}"
        lines.append(f'export {nodes} NODE_RANK="$RANK" MASTER_ADDR="$HEAD_NODE" MASTER_PORT=29500')
    return [*lines, f"primus-cli direct -- train {what} --config foreshard.yaml"]


def _adapting(row: dict[str, Any], scenario: Scenario) -> str:
    """Fine-tuning with adapters is Megatron-Bridge's, started by Primus."""
    recipe = scenario.workload.recipe
    overrides: dict[str, Any] = {
        "tensor_model_parallel_size": row["tp"],
        "pipeline_model_parallel_size": row["pp"],
        "virtual_pipeline_model_parallel_size": row["vpp"] if row["vpp"] > 1 else "null",
        "context_parallel_size": row["cp"],
        "sequence_parallel": str(bool(row["sequence_parallel"])).lower(),
        "peft": f"lora  # of rank {recipe.lora_rank} (peft.dim)",
        "train_iters": steps(scenario),
        "global_batch_size": row["global_batch"],
        "micro_batch_size": row["micro_batch"],
        "seq_length": recipe.sequence_length,
        "precision_config": "bf16_mixed",
    }
    if row["recompute"] == "full":
        overrides |= {"recompute_granularity": "full", "recompute_method": "uniform"}
        overrides["recompute_num_layers"] = 1
    stem = recipe_stem(scenario.workload.architecture)
    module = ["post_trainer:", "  framework: megatron_bridge", "  config: sft_trainer.yaml"]
    return "\n".join(
        [
            "# With Primus in AMD's container, on every server: a fine-tuning by Megatron-Bridge."
            " Yours to set: checkpoint, data, learning rate.",
            _experiment([*module, f"  model: {stem or 'yours'}.yaml"], overrides),
            *_start(scenario, "posttrain"),
            *(f"# {note}" for note in recipe_note(scenario.workload.architecture)),
        ]
    )


_RECIPE_SAYS = {
    "sharding": ("zero1", "the recipe shares optimizer states."),
    "cp_kind": ("ring", "a recipe has no word for it."),
    "rank_order": ("tp-cp-dp-pp", "a recipe has no word for it."),
    "ep": (1, "a recipe has no word for it here."),
    "etp": (1, "a recipe has no word for it here."),
    "offload_layers": (0, "a recipe has no word for it."),
    "optimizer_offload": ("none", "a recipe has no word for it."),
    "recompute_layers": (0, "the recipe runs all layers again."),
    "stages": ([], "a recipe has no word for it."),
}
"""Fields of a layout that a fine-tuning's configuration does not say, and what holds instead."""


def primus_unsaid(row: dict[str, Any], scenario: Scenario) -> dict[str, str]:
    """Fields of a layout that no argument says; of a fine-tuning, of which there are few."""
    if not scenario.workload.recipe.lora_rank:
        return megatron_unsaid(row, scenario)
    unsaid = {name: why for name, (usual, why) in _RECIPE_SAYS.items() if row[name] != usual}
    if row["cp"] == 1:
        unsaid.pop("cp_kind", None)
    if row["cp_kind"] == "hierarchical":
        unsaid["cp_a2a"] = unsaid["cp_kind"]
    if row["recompute"] == "selective":
        unsaid |= {"recompute": "a recipe has no word for it.", "recompute_modules": "the same."}
    if row["sharding"] != "ddp" and row["shard_group"] != row["dp"] * row["cp"]:
        unsaid["shard_group"] = "all ranks share optimizer states."
    return unsaid
