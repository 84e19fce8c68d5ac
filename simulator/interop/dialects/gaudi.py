"""A layout as Optimum Habana's command: gaudi_spawn.py around a script of its examples.

Options as in huggingface/optimum-habana@1d8504c6, examples/language-modeling: README.md,
run_clm.py, run_lora_clm.py. The configuration is DeepSpeed's.
"""

from __future__ import annotations

import json
from typing import Any

from simulator.interop.dialects.deepspeed import deepspeed_config
from simulator.interop.dialects.torchrun import steps, unsaid_stashes, wrapped
from simulator.quoting import comment_line, here_document
from simulator.scenario import Scenario

_TARGETS = {
    "q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj",
    "gate": "gate_proj", "up": "up_proj", "down": "down_proj",
}  # fmt: skip


def gaudi_block(row: dict[str, Any], scenario: Scenario) -> str:
    """Write DeepSpeed's configuration with a here-document, then the command."""
    cluster, recipe = scenario.cluster, scenario.workload.recipe
    where = "--hostfile hostfile" if cluster.nodes > 1 else f"--world_size {cluster.gpus}"
    script = "run_lora_clm.py" if recipe.lora_rank else "run_clm.py"
    start = f"PT_HPU_LAZY_MODE=1 python ../gaudi_spawn.py {where} --use_deepspeed {script}"
    micro = row["micro_batch"]
    groups = [
        _model(scenario),
        [
            f"--per_device_train_batch_size {micro}",
            f"--gradient_accumulation_steps {row['global_batch'] // (row['dp'] * micro)}",
            f"--max_steps {steps(scenario)}",
        ],
        _switches(row, scenario),
        ["--dataset_name wikitext", "--dataset_config_name wikitext-2-raw-v1"],
        ["--do_train", "--output_dir out", "--deepspeed ds_config.json"],
    ]
    text = json.dumps(deepspeed_config(row, scenario), indent=2)
    notes = [comment_line(note) for note in unsaid_stashes(recipe)]
    return "\n".join(
        [
            "# In examples/language-modeling of Optimum Habana. Yours to set: model, data, learning"
            " rate" + (", hostfile." if cluster.nodes > 1 else "."),
            here_document("ds_config.json", text, end="JSON"),
            wrapped(start, groups),
            *notes,
        ]
    )


def _model(scenario: Scenario) -> list[str]:
    recipe = scenario.workload.recipe
    if not recipe.lora_rank:  # from scratch: the sizes of a config.json, no weights
        return [
            '--config_name "$MODEL"',
            '--tokenizer_name "$MODEL"',
            f"--block_size {recipe.sequence_length}",
        ]
    targets = dict.fromkeys(_TARGETS[name] for name in recipe.lora_targets if name in _TARGETS)
    return [
        '--model_name_or_path "$MODEL"',
        f"--max_seq_length {recipe.sequence_length}",
        f"--lora_rank {recipe.lora_rank}",
        f"--lora_alpha {2 * recipe.lora_rank}",
        f"--lora_target_modules {' '.join(targets)}",
        "--dataset_concatenation",
    ]


def _switches(row: dict[str, Any], scenario: Scenario) -> list[str]:
    precision = scenario.workload.recipe.precision
    flags = ["--use_habana", "--use_lazy_mode", "--gaudi_config_name Habana/llama"]
    if precision != "fp32":
        flags.append("--bf16")
    if precision == "fp8":
        flags.append("--fp8")
    if scenario.software.kernels.attention == "flash":
        flags.append("--use_flash_attention True")
    return flags + ["--gradient_checkpointing"] * (row["recompute"] == "full")
