"""A torchtitan job file, written and read, and the command that runs it.

Names as in torchtitan/config/job_config.py of v0.2 (the 0.3 line has Python functions instead); 0.1
has degrees of parallelism under [parallelism] too, and [experimental] for some of them, and
batch_size instead of local_batch_size. The same is read as options ``--section.key value``.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from simulator.files import read_toml
from simulator.interop.dialects.megatron import layers_by_stage
from simulator.interop.dialects.settings import (
    KEEPS,
    SAVES,
    Reading,
    Setting,
    Settings,
    Unset,
    as_whole,
    idle_in,
)
from simulator.interop.dialects.table import read_as
from simulator.interop.dialects.torchrun import steps, torchrun, unsaid_stashes
from simulator.quoting import comment_line, here_document, toml_value
from simulator.scenario import Scenario
from simulator.workload import presets
from simulator.workload.architecture import Architecture

# --- written -------------------------------------------------------------------------------------

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

_ASYNC = {"disabled": "sync", "async": "async", "async_with_pinned_mem": "async"}
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
    every = scenario.run.checkpoints.every_steps
    if every is not None:
        later = {"async_mode": "async"} if scenario.run.checkpoints.mode == "async" else {}
        tables["checkpoint"] = {"enable": True, "interval": every, **later}
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
        "\n".join([f"[{name}]", *(f"{key} = {toml_value(value)}" for key, value in table.items())])
        for name, table in tables.items()
    )
    notes = "".join(f"{comment_line(note)}\n" for note in _notes(row, scenario))
    job = f"{notes}{here_document('foreshard.toml', text, end='TOML')}\n"
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
    if row["cp"] > 1 and row["cp_kind"] in _ROTATIONS:
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
    if row["cp"] > 1 and row["cp_kind"] not in _ROTATIONS:
        unsaid["cp_kind"] = "torchtitan sends keys and values round, or gathers them."
    if row["tp"] > 1 and not row["sequence_parallel"]:
        unsaid["sequence_parallel"] = "torchtitan's tensor parallelism is sequence parallel."
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


# --- read ----------------------------------------------------------------------------------------

SECTIONS = (
    *("model", "training", "parallelism", "activation_checkpoint", "compile", "experimental"),
    *("job", "profiling", "metrics", "optimizer", "lr_scheduler", "checkpoint", "comm"),
    *("float8", "quantize", "mx", "fault_tolerance", "validation", "debug", "memory_estimation"),
)
_FROM = ("parallelism", "experimental", "training")
_FAMILIES = {
    "llama3": ("llama-3.1", "llama-3"),
    "qwen3": ("qwen3",),
    "deepseek_v3": ("deepseek-v3",),
    "llama4": ("llama-4",),
}
_FLAVORS = {"llama4 17bx16e": "llama-4-scout", "llama4 17bx128e": "llama-4-maverick",
            "gpt_oss 20b": "gpt-oss-20b"}  # fmt: skip
_BACKEND = "parallelism.expert_parallel_comm_backend"
_DISPATCHERS = {"standard": "alltoall", "deepep": "deepep", "hybridep": "deepep"}
_CHUNKED = ("interleaved", "looped_bfs", "interleaved_zb")
_V_SHAPED = ("zb_v", "dualpipe_v")


_REGISTRY = Path(__file__).resolve().parent / "torchtitan_registry.toml"


@cache
def registered_jobs() -> dict[str, dict[str, Any]]:
    """Settings of the jobs of torchtitan's registries in Python, by the name of their function."""
    return read_toml(_REGISTRY)


def _of_registry(settings: Settings) -> None:
    """Put the settings of the job that ``--config`` names under those of the command.

    Where jobs are functions, selective checkpointing is that of operators alone (config/configs.py:
    ``ActivationCheckpointConfig`` has no option of it).
    """
    named = settings.take("config")
    settings.take("module")
    if named is None:
        return
    name = str(named.value).strip("'\"")
    job = registered_jobs().get(name)
    if job is None:
        why = "is a job in Python that is not known here, which says what is computed again"
        settings.unset.append(Unset("layout.recompute", name, named.place, why))
        return
    base = registered_jobs().get(str(job.get("base")), {})
    operators = {"activation_checkpoint.selective_ac_option": "op"}
    for key, value in {**operators, **base, **job}.items():
        if key != "base":
            place = replace(named.place, key=f"{named.place.key} {name}: {key}")
            settings.found.setdefault(key, Setting(key, value, place))


def read_torchtitan(settings: Settings) -> Reading:
    """State what a job's settings say; keys are ``section.key``.

    Names as in torchtitan 0.2 (config/job_config.py) and in pytorch/torchtitan@b5bcd76c, whose
    jobs are functions of a registry and count in tokens (config/configs.py).
    """
    kind = "torchtitan job"
    _of_registry(settings)
    for name, key in (
        ("layout.tp", "tensor_parallel_degree"), ("layout.pp", "pipeline_parallel_degree"),
        ("layout.cp", "context_parallel_degree"), ("layout.ep", "expert_parallel_degree"),
        ("layout.etp", "expert_tensor_parallel_degree"),
    ):  # fmt: skip
        settings.whole(name, *(f"{section}.{key}" for section in _FROM))
    settings.whole("training.sequence_length", "training.seq_len", "training.max_context_length")
    settings.whole("run.steps", "training.steps")
    _saves(settings)
    _batch_in_tokens(settings)
    _batch(settings)
    _states(settings)
    _read_pipeline(settings)
    _checkpoints(settings)
    rotated = tuple(f"{section}.context_parallel_rotate_method" for section in _FROM)
    if (settings.value_of("layout.cp") or 1) > 1:
        settings.word("layout.cp_kind", read_as(_ROTATIONS), *rotated)
    settings.take(*rotated)
    if (settings.value_of("layout.ep") or 1) > 1:
        backend = settings.found.get(_BACKEND)
        settings.word("layout.dispatcher", _DISPATCHERS, _BACKEND)
        if backend is not None and str(backend.value).strip("'\"").lower() == "hybridep":
            settings.notes.append(f"{backend.place}: HybridEP is priced as DeepEP")
    settings.take(_BACKEND)
    _precision(settings)
    settings.word("training.optimizer", {"adamw": "adamw", "adam": "adamw"}, "optimizer.name")
    _kernels_of_adamw(settings)
    _read_model(settings)
    compiled = settings.flag("compile.enable", "training.compile")
    parts = settings.take("compile.components")
    compiled = compiled and (parts is None or "model" in str(parts.value))
    asynchronous = settings.flag("parallelism.enable_async_tensor_parallel",
                                 "compile.enable_async_tensor_parallel",
                                 "experimental.enable_async_tensor_parallel")  # fmt: skip
    if settings.flag("optimizer.early_step_in_backward"):
        at = settings.found["optimizer.early_step_in_backward"]
        settings.say("training.optimizer_in_backward", True, at)
    if settings.flag("training.enable_cpu_offload"):
        at = settings.found["training.enable_cpu_offload"]
        settings.say("layout.parameter_offload", "cpu", at)
        settings.say("layout.optimizer_offload", "cpu", at)
    software = ("torchtitan-async",) if asynchronous else ()
    software = (*software, *(("torchtitan",) if compiled else ("torchtitan-eager",)))
    return settings.reading(kind, idle_in("torchtitan"), software=software)


def _kernels_of_adamw(settings: Settings) -> None:
    """Kernels of the update; ``optimizer.fused`` of 0.1 had foreach where it was off."""
    kinds = {"fused": "fused", "foreach": "foreach", "for-loop": "foreach"}
    kinds |= {"fused_opt_states_bf16": "fused"}
    kind = settings.word("run.adamw", kinds, "optimizer.implementation")
    at = settings.found.get("optimizer.implementation")
    said = "" if at is None else str(at.value).lower()
    if at is not None and said == "for-loop":
        rule = "counted as foreach, whose bytes it moves in more kernels"
        settings.notes.append(f"{at.place}: {rule}")
    if at is not None and said == "fused_opt_states_bf16":
        settings.say("training.moment_dtype", "bf16", at)
    fused = settings.flag("optimizer.fused")
    if kind is None and fused is not None:
        settings.say(
            "run.adamw", "fused" if fused else "foreach", settings.found["optimizer.fused"]
        )


def _saves(settings: Settings) -> None:
    """Checkpoints: how often, whether training waits, how many stay."""
    if settings.flag("checkpoint.enable", "checkpoint.enable_checkpoint") is False:
        settings.take("checkpoint.interval")  # nothing is saved
        return
    settings.saves_every("checkpoint.interval")
    settings.word(SAVES, _ASYNC, "checkpoint.async_mode")
    if keeps := settings.whole("", "checkpoint.keep_latest_k", least=0):  # 0: all of them
        settings.say(KEEPS, keeps, settings.at("checkpoint.keep_latest_k"))
    settings.waits_for_storage("async_mode is disabled unless said")


_MOST_TOKENS = 10**11


def _batch_in_tokens(settings: Settings) -> None:
    """Tokens of a forward pass and of a step, as sequences of the longest context."""
    keys = ("training.num_tokens_per_microbatch_per_dp_rank", "training.num_tokens_per_train_step")
    length = settings.value_of("training.sequence_length")
    for key, target in zip(
        keys, ("training.local_batch_size", "training.global_batch_size"), strict=True
    ):
        setting = settings.take(key)
        tokens = (
            None
            if setting is None or str(setting.value) == "-1"
            else settings.whole("", key, most=_MOST_TOKENS)
        )
        if setting is None or tokens is None:
            continue
        if not length or tokens % length:
            rule = f"must be a multiple of training.max_context_length = {length}"
            settings.problems.append(f"{setting.place}: {rule}, got {tokens}")
            continue
        settings.found[target] = replace(setting, key=target, value=tokens // length)


def _checkpoints(settings: Settings) -> None:
    """What is computed again: operators, every n-th block whole, or all.

    torchtitan/distributed/activation_checkpoint.py of 0.2: a number recomputes the blocks n, 2n and
    on, and keeps the others; ``op`` keeps the results of products and attention.
    """
    modes = {word: word for word in ("none", "selective", "full")}
    mode = settings.word("layout.recompute", modes, "activation_checkpoint.mode")
    option = settings.take("activation_checkpoint.selective_ac_option")
    if mode != "selective":
        return
    said = "2" if option is None else str(option.value).strip("'\"").lower()
    every, at = as_whole(said), option or settings.found["activation_checkpoint.mode"]
    if said == "op":
        return
    if option is None:
        why = "selective_ac_option not said: every second block whole is torchtitan's default"
        settings.notes.append(f"{at.place}: {why}")
    if not every:
        rule = "must be op or the number of blocks of which the last is computed again"
        settings.problems.append(f"{at.place}: {rule}, got {said[:40]!r}")
        return
    settings.say("layout.recompute", "full", at)
    settings.say("run.recompute_every", every, at)


def _batch(settings: Settings) -> None:
    local = settings.whole("", "training.local_batch_size", "training.batch_size")
    key = "training.local_batch_size"
    setting = settings.found.get(key) or settings.found.get("training.batch_size")
    pp = settings.value_of("layout.pp") or 1
    micro = settings.whole("", "parallelism.pipeline_parallel_microbatch_size")
    pieces = settings.whole("", "parallelism.num_pp_microbatches")
    if local is not None and setting is not None and pieces and pp > 1:
        settings.say("run.local_batch", local * pieces, setting)  # tokens of each forward pass
        settings.say("layout.micro_batch", local, setting)
    elif local is not None and setting is not None:
        settings.say("run.local_batch", local, setting)
        if pp == 1:
            settings.say("layout.micro_batch", local, setting)
        else:
            at = settings.found.get("parallelism.pipeline_parallel_microbatch_size", setting)
            settings.say("layout.micro_batch", micro or 1, at)
    whole = settings.take("training.global_batch_size")
    if whole is not None and (count := as_whole(str(whole.value))) and count > 0:
        settings.say("training.global_batch", count, whole)


def _states(settings: Settings) -> None:
    """Replicas and shards; resharding after the forward pass is zero3, keeping parameters zero2."""
    keys = [
        tuple(f"{section}.data_parallel_{kind}_degree" for section in ("parallelism", "training"))
        for kind in ("replicate", "shard")
    ]
    replicas, shards = (settings.take(*names) for names in keys)
    count = as_whole(str(replicas.value)) if replicas else None
    number = as_whole(str(shards.value)) if shards else None
    split = (settings.value_of("layout.cp") or 1) > 1  # its ranks share states too
    sharded = shards is None or number != 1 or split
    at: Setting | None = shards or replicas or next(iter(settings.found.values()), None)
    if at is None:
        return
    if number and number > 0 and sharded:
        settings.say("run.shard_degree", number, at)
    elif count and count > 1 and sharded and replicas:
        settings.say("run.shard_replicas", count, replicas)
    reshard = settings.take("parallelism.fsdp_reshard_after_forward",
                            "training.fsdp_reshard_after_forward")  # fmt: skip
    if number == 1 and (count or 1) == 1 and not split and reshard is None:
        return  # a single data-parallel rank: nothing to share
    sharded = sharded or (count or 1) == 1
    word = str(reshard.value).lower() if reshard else "default"
    if not sharded:
        settings.say("layout.sharding", "ddp", at)
    else:
        piped = (settings.value_of("layout.pp") or 1) > 1
        never = word == "never"
        settings.say("layout.sharding", "zero2" if never else "zero3", reshard or at)
        if word == "always" and piped:
            settings.notes.append(
                f"{at.place}: with a pipeline, resharding after every stage is not told apart"
            )


def _read_pipeline(settings: Settings) -> None:
    if (settings.value_of("layout.pp") or 1) <= 1:
        for key in (
            "schedule",
            "layers_per_stage",
            "first_stage_less_layers",
            "last_stage_less_layers",
        ):
            settings.take(f"parallelism.pipeline_parallel_{key}")
        return
    pp = settings.value_of("layout.pp")
    named = tuple(f"{section}.pipeline_parallel_schedule" for section in _FROM)
    schedule = settings.word("layout.schedule", read_as(_SCHEDULES), *named)
    for end in ("first", "last"):
        key = f"parallelism.pipeline_parallel_{end}_stage_less_layers"
        if settings.whole(f"run.{end}_less", key, least=0) is None:
            why = f"{end}_stage_less_layers not said: torchtitan's default"
            settings.usually(f"run.{end}_less", 1, why)
    whole = settings.whole("run.layers_per_stage", "parallelism.pipeline_parallel_layers_per_stage")
    parts = settings.take("parallelism.module_fqns_per_model_part")
    if parts is not None and isinstance(parts.value, list) and len(parts.value) % pp == 0:
        settings.say("layout.vpp", max(len(parts.value) // pp, 1), parts)
        layers = [str(part).count("layers.") for part in parts.value]
        settings.say("layout.stages", layers, parts)
    elif whole is None and schedule in (*_CHUNKED, *_V_SHAPED):
        at = settings.found.get("parallelism.pipeline_parallel_schedule")
        if at is not None:
            settings.say("layout.vpp", 2, at)


_CONVERTED = (
    *("quantize.linear.float8.filter_fqns", "float8.filter_fqns", "quantize.linear.mx.filter_fqns"),
    *("quantize.grouped_mm.float8.fqns", "quantize.grouped_mm.mx.fqns", "mx.filter_fqns"),
)
_COUNTED = {"output", "lm_head", "router.gate", "experts", "auto_filter_small_kn"}
"""Modules that are left in 16 bit, or quantised, as it is counted in any case."""


def _precision(settings: Settings) -> None:
    converters = settings.found.get("model.converters")
    if settings.flag("float8.enable_float8_linear"):  # of releases before model.converters
        at = settings.found["float8.enable_float8_linear"]
        converters = Setting("model.converters", "float8", at.place)
    said = str(converters.value) if converters else ""
    for key in _CONVERTED:
        listed = settings.found.get(key)
        names = set(re.findall(r"[\w.]+", str(listed.value))) if listed is not None else set()
        if names <= _COUNTED:
            settings.take(key)
    if said in ("", "[]") or re.search("float8|mx|nvfp4", said):
        settings.take("model.converters")
    if converters and "nvfp4" in said:
        settings.say("training.precision", "nvfp4", converters)
    elif converters and "float8" in said:
        recipe = settings.take("quantize.linear.float8.recipe_name", "float8.recipe_name")
        gathered = settings.flag("quantize.linear.float8.enable_fsdp_float8_all_gather",
                                 "float8.enable_fsdp_float8_all_gather")  # fmt: skip
        settings.say("training.precision", "fp8_current", recipe or converters)
        if gathered:
            settings.say("training.fp8_weights", True, converters)
    elif (converters and ".mx" in said) or said in ("['mx']", "mx"):
        settings.say("training.precision", "mxfp8", converters) if converters else None
    computed = settings.take("training.mixed_precision_param")
    if computed is not None and not said and str(computed.value) == "float32":
        settings.say("training.precision", "fp32", computed)
    reduced = settings.take("training.mixed_precision_reduce")
    if reduced is not None and str(reduced.value) == "bfloat16":
        settings.say("training.reduce_dtype", "bf16", reduced)
    stored = settings.take("training.dtype")
    if stored is not None and str(stored.value) == "bfloat16":
        settings.say("training.master_weights", False, stored)
        settings.say("training.moment_dtype", "bf16", stored)


def _read_model(settings: Settings) -> None:
    """The zoo's model of a name and a flavor."""
    name, flavor = settings.take("model.name"), settings.take("model.flavor")
    if name is None or flavor is None:
        return
    size = re.sub(r"[^0-9a-z.-]", "", str(flavor.value).lower())
    for stem in _FAMILIES.get(str(name.value), (str(name.value),)):
        known = f"{stem}-{size}"
        if known in presets.names():
            settings.say("model.name", known, flavor)
            return
        if stem in presets.names() and size in ("671b",):
            settings.say("model.name", stem, flavor)
            return
    if (alias := _FLAVORS.get(f"{name.value} {size}")) is not None:
        settings.say("model.name", alias, flavor)
        return
    settings.say("run.model", f"{name.value} {flavor.value}", flavor)
