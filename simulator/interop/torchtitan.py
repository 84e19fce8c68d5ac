"""A layout as a torchtitan 0.2 job file and the command that runs it.

Names as in torchtitan/config/job_config.py of v0.2 (the 0.3 line has Python functions instead).
"""

from __future__ import annotations

import re
from typing import Any

from simulator.interop.dialects.megatron import layers_by_stage
from simulator.interop.torchrun import steps, torchrun, unsaid_stashes
from simulator.scenario import Scenario
from simulator.workload.architecture import Architecture

__all__ = ["torchtitan_block", "torchtitan_tables", "torchtitan_unsaid"]

_MODELS = {
    "llama": "llama3",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3",
    "deepseek_v3": "deepseek_v3",
}
"""Family -> torchtitan's model name."""

_CONVERTERS = {
    "fp8": ("quantize.linear.float8", "rowwise"),
    "fp8_current": ("quantize.linear.float8", "rowwise"),
    "mxfp8": ("quantize.linear.mx", "mxfp8_cublas"),
}
"""Converter and recipe of each type (torchtitan/components/quantization)."""

_SCHEDULES = {
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "interleaved": "Interleaved1F1B",
    "looped_bfs": "LoopedBFS",
    "interleaved_zb": "InterleavedZeroBubble",
    "zb_v": "ZBVZeroBubble",
    "dualpipe_v": "DualPipeV",
}
"""Names that torch.distributed.pipelining.schedules.get_schedule_class knows."""

_ROTATIONS = {"ring": "alltoall", "all_gather": "allgather"}
"""Its all-to-all passes keys and values to the next rank, as a ring does."""

_RESHARD = {"zero2": "never", "zero3": "always"}
"""Its default policy is the latter without pipeline stages and the former with them."""


def torchtitan_tables(row: dict[str, Any], scenario: Scenario) -> dict[str, dict[str, Any]]:
    """The sections of the job file."""
    tables: dict[str, dict[str, Any]] = {
        "model": _model(scenario),
        "training": _training(row, scenario),
        "parallelism": {
            **_data_parallel(row),
            **_degrees(row, scenario),
            **_pipeline(row, scenario),
        },
        "activation_checkpoint": _recompute(row),
        "compile": {"enable": "norm" in scenario.software.kernels.fused},
    }
    precision = scenario.workload.recipe.precision
    if precision in _CONVERTERS:
        converter, recipe_name = _CONVERTERS[precision]
        how: dict[str, Any] = {"recipe_name": recipe_name}
        if scenario.workload.recipe.fp8_weights:  # tensorwise scaling, which has no recipe's name
            how = {
                "enable_fsdp_float8_all_gather": True,
                "precompute_float8_dynamic_scale_for_fsdp": True,
            }
        tables[converter] = {**how, "filter_fqns": ["output"]}
    return tables


def torchtitan_block(row: dict[str, Any], scenario: Scenario) -> str:
    """Write the job file with a here-document, then the command."""
    tables = torchtitan_tables(row, scenario)
    text = "\n".join(
        "\n".join([f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in table.items())])
        for name, table in tables.items()
    )
    notes = "".join(f"# {note}\n" for note in _notes(row, scenario))
    job = f"{notes}cat > foreshard.toml <<'TOML'\n{text}\nTOML\n"
    if scenario.workload.recipe.lora_rank:
        return (
            "# torchtitan 0.2 has no low-rank adapters: no launch command is written for this"
            f" fine-tuning. The layout in its settings, for a trainer of yours:\n{job.rstrip()}"
        )
    return (
        "# In a checkout of torchtitan 0.2. Yours to set: data, tokenizer, learning rate.\n"
        f"{job}{torchrun(scenario.cluster)} -m torchtitan.train --job.config_file foreshard.toml"
    )


def _model(scenario: Scenario) -> dict[str, Any]:
    arch = scenario.workload.architecture
    name = _MODELS.get(arch.family, "yours")
    table: dict[str, Any] = {"name": name, "flavor": _flavor(arch)}
    if scenario.workload.recipe.precision in _CONVERTERS:
        table["converters"] = [_CONVERTERS[scenario.workload.recipe.precision][0]]
    return table


def _flavor(arch: Architecture) -> str:
    """Torchtitan calls a size by its parameters: 70B, 235B-A22B."""
    found = re.search(r"(\d+(?:\.\d+)?b(?:-a\d+b)?)$", arch.name.lower())
    return found.group(1).upper() if found and arch.family in _MODELS else "yours"


def _training(row: dict[str, Any], scenario: Scenario) -> dict[str, Any]:
    """With a pipeline the local batch holds all micro-batches; without, gradients accumulate."""
    recipe = scenario.workload.recipe
    local = row["micro_batch"] if row["pp"] == 1 else row["global_batch"] // row["dp"]
    half = recipe.is_quantised or recipe.precision == "bf16"
    return {
        "local_batch_size": local,
        "global_batch_size": row["global_batch"],
        "seq_len": recipe.sequence_length,
        "steps": steps(scenario),
        "mixed_precision_param": "bfloat16" if half else "float32",
        "mixed_precision_reduce": "float32",
    }


def _data_parallel(row: dict[str, Any]) -> dict[str, Any]:
    """Replicas and shards; context-parallel ranks share states too and are not counted here."""
    if row["sharding"] == "ddp":
        return {"data_parallel_replicate_degree": row["dp"], "data_parallel_shard_degree": 1}
    shard = max(row["shard_group"] // row["cp"], 1)
    reshard = "default" if row["pp"] > 1 and row["sharding"] == "zero3" else ""
    return {
        "data_parallel_replicate_degree": row["dp"] // shard,
        "data_parallel_shard_degree": shard,
        "fsdp_reshard_after_forward": reshard or _RESHARD.get(row["sharding"], "default"),
    }


def _degrees(row: dict[str, Any], scenario: Scenario) -> dict[str, Any]:
    table: dict[str, Any] = {"tensor_parallel_degree": row["tp"]}
    if scenario.software.overlap.tensor == "async" and row["tp"] > 1:
        table["enable_async_tensor_parallel"] = True
    table["context_parallel_degree"] = row["cp"]
    if row["cp"] > 1:
        table["context_parallel_rotate_method"] = _ROTATIONS[row["cp_kind"]]
    if scenario.workload.architecture.is_moe:
        table["expert_parallel_degree"] = row["ep"]
        table["expert_tensor_parallel_degree"] = row["etp"]
        if row["ep"] > 1 and row["dispatcher"] != "alltoall":  # torchtitan's "standard"
            table["expert_parallel_comm_backend"] = row["dispatcher"]
    return table


def _pipeline(row: dict[str, Any], scenario: Scenario) -> dict[str, Any]:
    """Stages: by their number of layers where they are even, else module by module."""
    table: dict[str, Any] = {"pipeline_parallel_degree": row["pp"]}
    if row["pp"] == 1:
        return table
    table["pipeline_parallel_schedule"] = _SCHEDULES[row["schedule"]]
    table["pipeline_parallel_microbatch_size"] = row["micro_batch"]
    counts = layers_by_stage(row, scenario.workload.architecture)
    if len(set(counts)) == 1:
        less = {f"pipeline_parallel_{end}_stage_less_layers": 0 for end in ("first", "last")}
        return {**table, **less, "pipeline_parallel_layers_per_stage": counts[0]}
    return {**table, "module_fqns_per_model_part": _modules(counts)}


def _modules(counts: list[int]) -> list[list[str]]:
    """Module names of every stage."""
    parts, first = [], 0
    for count in counts:
        parts.append([f"layers.{i}" for i in range(first, first + count)])
        first += count
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "output"]
    return parts


def _recompute(row: dict[str, Any]) -> dict[str, Any]:
    table = {"mode": row["recompute"]}
    return {**table, "selective_ac_option": "op"} if row["recompute"] == "selective" else table


def _notes(row: dict[str, Any], scenario: Scenario) -> list[str]:
    """What the job file cannot say."""
    arch, notes = scenario.workload.architecture, []
    if arch.family not in _MODELS or _flavor(arch) == "yours":
        notes.append(f"Name the model and flavor that have the sizes of {arch.name}.")
    return [*notes, *unsaid_stashes(scenario.workload.recipe)]


def torchtitan_unsaid(row: dict[str, Any], scenario: Scenario) -> dict[str, str]:
    """Fields of a layout that no setting says."""
    unsaid = {}
    if row["sharding"] == "zero1":
        unsaid["sharding"] = "torchtitan shares parameters too."
    if row["sharding"] == "ddp" and row["cp"] > 1:
        reason = "torchtitan's context-parallel ranks share states."
        unsaid |= {"sharding": reason, "shard_group": reason}
    elif row["shard_group"] % row["cp"]:
        unsaid["shard_group"] = "all context-parallel ranks share states."
    if row["reshard_after_forward"] is not True:
        unsaid["reshard_after_forward"] = (
            "the setting has no number, so pass it as reshard_after_forward where torchtitan calls"
            " fully_shard on a block."
        )
    if row["recompute_layers"]:
        unsaid["recompute_layers"] = "torchtitan runs all layers again with mode = full."
    offload = ("optimizer_offload", "parameter_offload")
    reason = "no setting that is written here moves states to the host."
    return unsaid | {name: reason for name in offload if row[name] != "none"}


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        nested = any(isinstance(item, list) for item in value)
        start, between, end = ("[\n  ", ",\n  ", "\n]") if nested else ("[", ", ", "]")
        return start + between.join(_toml(item) for item in value) + end
    return f'"{value}"' if isinstance(value, str) else str(value)
