"""A layout over a recipe of Megatron-Bridge: pretraining, and fine-tuning with low-rank adapters.

Options as in NVIDIA-NeMo/Megatron-Bridge@067f987d (adapters) and @03b04509 (pretraining),
scripts/training/run_recipe.py and src/megatron/bridge/peft/lora.py; other fields by trailing
KEY=VALUE.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from simulator.files import read_columns
from simulator.interop.dialects.megatron import (
    MODULES,
    TARGETS,
    Arguments,
    megatron_arguments,
    stem_of,
)
from simulator.interop.dialects.settings import Setting, Settings, Unset
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


# --- read ----------------------------------------------------------------------------------------

_SHORT = {
    "m": "model_family_name", "mr": "model_recipe_name", "ng": "num_gpus", "g": "gpu",
    "c": "compute_dtype", "gn": "gpus_per_node", "ms": "max_steps", "gb": "global_batch_size",
    "mb": "micro_batch_size", "sl": "seq_length", "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size", "cp": "context_parallel_size",
    "vp": "virtual_pipeline_model_parallel_size", "ep": "expert_model_parallel_size",
    "et": "expert_tensor_parallel_size", "a": "account", "p": "partition", "i": "container_image",
    "moe_a2a_overlap": "overlap_moe_expert_parallel_comm", "max_step": "max_steps",
    "t": "time_limit", "hf": "hf_token", "l": "log_dir", "v": "config_variant", "d": "dryrun",
}  # fmt: skip
"""Short options of scripts/performance/setup_experiment.py (argument_parser.py), and those that
have another name in Megatron-Core's configuration (utils/overrides.py)."""
_RECOMPUTED = {
    "recompute_num_layers": {"recompute_granularity": "full", "recompute_method": "block"},
    "recompute_modules": {"recompute_granularity": "selective"},
}
"""Options and what they set beside themselves; the last holds (utils/overrides.py)."""
_IDLE_OPTIONS = (
    *("gpu", "model_family_name", "task", "account", "partition", "container_image", "time_limit"),
    *("hf_token", "log_dir", "dryrun", "domain", "use_recipes", "nemo_home", "detach", "csp"),
    *("max_retries", "custom_mounts", "custom_env_vars", "env", "custom_srun_args", "packager"),
    *("custom_bash_cmds", "gres", "additional_slurm_params", "data", "offline", "config_variant"),
    *("preempt_time", "enable_pct_binding", "warmup_iters"),
)
_PRECISIONS = {
    "bf16": "bf16", "fp8_cs": "fp8_current", "fp8_mx": "mxfp8", "fp8_sc": "fp8_blockwise",
    "nvfp4": "nvfp4",
}  # fmt: skip
_TABLE = Path(__file__).resolve().parent / "bridge_recipes.csv"
_RECIPE_FIELDS = {
    "tp": "layout.tp", "pp": "layout.pp", "cp": "layout.cp", "vpp": "layout.vpp",
    "ep": "layout.ep", "etp": "layout.etp", "global_batch": "training.global_batch",
    "micro_batch": "layout.micro_batch", "sequence_length": "training.sequence_length",
}  # fmt: skip


@cache
def performance_recipes() -> dict[str, dict[str, str]]:
    """What Megatron-Bridge's performance recipes for pre-training set, by their name.

    NVIDIA-NeMo/Megatron-Bridge@067f987d, src/megatron/bridge/perf_recipes, and recipes/ for the
    length of what they build on; read 2026-11-26.
    """
    columns = read_columns(_TABLE)
    rows = zip(*columns.values(), strict=True)
    return {row[0]: dict(zip(columns, row, strict=True)) for row in rows}


def is_setup_experiment(program: str, keys: Iterable[str] = ()) -> bool:
    """Whether a program is the launcher of performance recipes, or one with its options."""
    return program.endswith("setup_experiment.py") or "model_recipe_name" in keys


def with_long_names(settings: list[Setting]) -> list[Setting]:
    """Options of the launcher by their long names; what starts the job alone is left out."""
    named = [replace(item, key=_SHORT.get(item.key, item.key)) for item in settings]
    return [item for item in named if item.key not in _IDLE_OPTIONS or item.key == "gpu"]


def recipe_name(options: dict[str, Setting]) -> str:
    """Name of the recipe that options choose: model, GPUs, device and type."""
    words = {key: str(setting.value).strip("'\"").lower() for key, setting in options.items()}
    dtype = words.get("compute_dtype", "bf16").replace("_", "")
    model, gpus, gpu = (words.get(key, "") for key in ("model_recipe_name", "num_gpus", "gpu"))
    return words.get("recipe", f"{model}_pretrain_{gpus}gpu_{gpu}_{dtype}_config")


def say_recipe(settings: Settings, task: str) -> None:
    """State what the recipe says that the options choose; where it is not known, ask for it."""
    gpu = settings.take("gpu")
    for key, beside in _RECOMPUTED.items():
        if (said := settings.found.get(key)) is not None:
            settings.found |= {name: replace(said, value=value) for name, value in beside.items()}
    settings.word("training.precision", _PRECISIONS, "compute_dtype")
    name = recipe_name({**settings.found, **({} if gpu is None else {"gpu": gpu})})
    if gpu is not None:
        settings.notes.append(f"{gpu.place}: asks for accelerators called {gpu.value!r}")
    row = performance_recipes().get(name) if task == "pretrain" else None
    if row is None and not settings.found:
        return
    if row is None:
        at = settings.at("model_recipe_name", "recipe", *settings.found)
        why = "is a recipe that is not known here, which says the layout and what is recomputed"
        if "tensor_model_parallel_size" not in settings.found:
            settings.unset.append(Unset("layout.tp", name, at.place, why))
        else:
            settings.notes.append(f"{at.place}: {name!r} {why}: what no option says is not counted")
        return
    why = f"said by Megatron-Bridge's recipe {name}"
    for key, field in _RECIPE_FIELDS.items():
        if row[key]:
            settings.usually(field, int(row[key]), why)
    if int(row["tp"]) > 1:
        settings.usually("layout.sequence_parallel", row["sequence_parallel"] == "1", why)
    settings.usually("layout.recompute", row["recompute"] or "none", why)
    words = [MODULES[word] for word in row["recompute_modules"].split("+") if word in MODULES]
    if words and row["recompute"] == "selective":
        settings.usually("layout.recompute_modules", "+".join(dict.fromkeys(words)), why)
    gpus = re.search(r"_(\d+)gpu_", name)
    if gpus is not None:
        settings.usually("cluster.gpus", int(gpus[1]), why)
