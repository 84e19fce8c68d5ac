"""A layout as a Primus experiment: Megatron-LM's arguments on ROCm, in YAML.

Names as in AMD-AGI/Primus@fd1eeabb: examples/megatron/configs/MI300X,
primus/configs/modules/megatron/trainer_base.yaml and models/megatron/language_model.yaml; adapters
as in examples/megatron_bridge/configs/MI300X/qwen3_32b_lora_posttrain.yaml, where what no recipe's
function takes is left out of the call (primus/backends/megatron_bridge/config_utils.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from simulator.interop.dialects.megatron import (
    megatron_arguments,
    megatron_notes,
    megatron_unsaid,
)
from simulator.interop.dialects.megatron_bridge import recipe_note, recipe_stem
from simulator.interop.dialects.torchrun import steps
from simulator.quoting import comment_line, here_document, yaml_value
from simulator.scenario import Scenario

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
            *(comment_line(note) for note in megatron_notes(row, scenario)),
        ]
    )


def _setting(key: str, value: Any) -> tuple[str, str]:
    if key in _OTHERS:
        return _OTHERS[key], "false"
    words = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return _NAMES.get(key, key), yaml_value(True if value is True else words)


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
    return here_document("foreshard.yaml", "\n".join(lines), end="YAML")


def _start(scenario: Scenario, what: str) -> list[str]:
    lines = []
    if scenario.cluster.nodes > 1:
        nodes = f"NNODES={scenario.cluster.nodes}"
        lines.append(f'export {nodes} NODE_RANK="$RANK" MASTER_ADDR="$HEAD_NODE" MASTER_PORT=29500')
    return [*lines, f"primus-cli direct -- train {what} --config foreshard.yaml"]


_RECIPE_TAKES = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
    *("sequence_parallel", "global_batch_size", "micro_batch_size", "seq_length"),
    *("recompute_granularity", "recompute_method", "recompute_num_layers"),
)
"""Megatron's arguments that the recipes of fine-tunings take."""


def _adapting(row: dict[str, Any], scenario: Scenario) -> str:
    """Fine-tuning with adapters is Megatron-Bridge's, started by Primus."""
    overrides = {
        "virtual_pipeline_model_parallel_size": str(row["vpp"]) if row["vpp"] > 1 else "null",
        "context_parallel_size": "1",
        "sequence_parallel": "false",
        "peft": f"lora  # of rank {scenario.workload.recipe.lora_rank} (peft.dim)",
        "train_iters": str(steps(scenario)),
        "precision_config": "bf16_mixed",
    }
    for group in megatron_arguments(row, scenario):
        overrides |= dict(_setting(k, value) for k, value in group.items() if k in _RECIPE_TAKES)
    stem = recipe_stem(scenario.workload.architecture) or "yours"
    module = ["post_trainer:", "  framework: megatron_bridge", "  config: sft_trainer.yaml"]
    return "\n".join(
        [
            "# With Primus in AMD's container, on every server: a fine-tuning by Megatron-Bridge."
            " Yours to set: checkpoint, data, learning rate.",
            _experiment([*module, f"  model: {yaml_value(f'{stem}.yaml')}"], overrides),
            *_start(scenario, "posttrain"),
            *(comment_line(note) for note in recipe_note(scenario.workload.architecture)),
        ]
    )


_RECIPE_MEANS = {
    "sharding": "zero1",
    "cp_kind": "ring",
    "rank_order": "tp-cp-dp-pp",
    "ep": 1,
    "etp": 1,
    "offload_layers": 0,
    "optimizer_offload": "none",
    "recompute_modules": "",
    "stages": [],
}
"""Fields of a layout that a fine-tuning's configuration has no words for: what holds there."""


def primus_unsaid(row: dict[str, Any], scenario: Scenario) -> dict[str, str]:
    """Fields of a layout that no argument says; of a fine-tuning, of which there are few."""
    missing = megatron_unsaid(row, scenario)
    if not scenario.workload.recipe.lora_rank:
        return missing
    lost = [name for name, usual in _RECIPE_MEANS.items() if row[name] != usual]
    if row["cp_kind"] == "hierarchical":
        lost.append("cp_a2a")
    if row["sharding"] != "ddp" and row["shard_group"] != row["dp"] * row["cp"]:
        lost.append("shard_group")
    lost = [name for name in lost if row["cp"] > 1 or not name.startswith("cp_")]
    return missing | {
        name: f"a recipe has no word for it, {_RECIPE_MEANS.get(name, 'its own')} holds."
        for name in lost
    }


# --- read ----------------------------------------------------------------------------------------

_DEFAULTED = re.compile(r"\$\{\w+:([^}$]*)\}")


def is_primus(sections: Mapping[Any, Any]) -> bool:
    """Whether a YAML document is an experiment of Primus: modules with a framework each."""
    modules = sections.get("modules")
    return isinstance(modules, Mapping) and any(
        isinstance(module, Mapping) and "framework" in module for module in modules.values()
    )


def with_defaults(value: Any) -> Any:
    """Values with ``${NAME:default}`` replaced by the default, at any depth.

    >>> with_defaults({"tensor_model_parallel_size": "${PRIMUS_TP:2}", "save": "${OUT}"})
    {'tensor_model_parallel_size': '2', 'save': '${OUT}'}
    """
    if isinstance(value, Mapping):
        return {key: with_defaults(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [with_defaults(inner) for inner in value]
    return _DEFAULTED.sub(r"\1", value) if isinstance(value, str) else value


def frameworks_of(sections: Mapping[Any, Any]) -> list[str]:
    """Frameworks that the modules of an experiment run."""
    modules = [module for module in sections["modules"].values() if isinstance(module, Mapping)]
    return [str(module["framework"]) for module in modules if "framework" in module]
