"""A job file of torchtitan 0.1 or 0.2, or the same as options ``--section.key value``.

Names as in torchtitan/config/job_config.py of v0.2; 0.1 has degrees of parallelism under
[parallelism] too, and [experimental] for some of them, and batch_size instead of local_batch_size.
"""

from __future__ import annotations

import re

from simulator.interop.launch_files.idle_keys import idle_in
from simulator.interop.launch_files.settings import Reading, Setting, Settings, as_whole
from simulator.workload import presets

__all__ = ["SECTIONS", "read_torchtitan"]

SECTIONS = (
    *("model", "training", "parallelism", "activation_checkpoint", "compile", "experimental"),
    *("job", "profiling", "metrics", "optimizer", "lr_scheduler", "checkpoint", "comm"),
    *("float8", "quantize", "mx", "fault_tolerance", "validation", "debug", "memory_estimation"),
)
_FROM = ("parallelism", "experimental", "training")
_SCHEDULES = {
    "1f1b": "1f1b", "gpipe": "gpipe", "interleaved1f1b": "interleaved", "loopedbfs": "looped_bfs",
    "interleavedzerobubble": "interleaved_zb", "zbvzerobubble": "zb_v", "dualpipev": "dualpipe_v",
}  # fmt: skip
_FAMILIES = {
    "llama3": ("llama-3.1", "llama-3"),
    "qwen3": ("qwen3",),
    "deepseek_v3": ("deepseek-v3",),
    "llama4": ("llama-4",),
}
_FLAVORS = {"llama4 17bx16e": "llama-4-scout", "llama4 17bx128e": "llama-4-maverick",
            "gpt_oss 20b": "gpt-oss-20b"}  # fmt: skip
_ROTATIONS = {"alltoall": "ring", "allgather": "all_gather"}
_BACKEND = "parallelism.expert_parallel_comm_backend"
_DISPATCHERS = {"standard": "alltoall", "deepep": "deepep", "hybridep": "deepep"}
_CHUNKED = ("interleaved", "looped_bfs", "interleaved_zb")
_V_SHAPED = ("zb_v", "dualpipe_v")


def read_torchtitan(settings: Settings) -> Reading:
    """State what a job's settings say; keys are ``section.key``."""
    kind = "torchtitan job"
    for name, key in (
        ("layout.tp", "tensor_parallel_degree"), ("layout.pp", "pipeline_parallel_degree"),
        ("layout.cp", "context_parallel_degree"), ("layout.ep", "expert_parallel_degree"),
        ("layout.etp", "expert_tensor_parallel_degree"),
    ):  # fmt: skip
        settings.whole(name, *(f"{section}.{key}" for section in _FROM))
    settings.whole("training.sequence_length", "training.seq_len")
    settings.whole("run.steps", "training.steps")
    _batch(settings)
    _states(settings)
    _pipeline(settings)
    modes = {word: word for word in ("none", "selective", "full")}
    settings.word("layout.recompute", modes, "activation_checkpoint.mode")
    rotated = tuple(f"{section}.context_parallel_rotate_method" for section in _FROM)
    if (settings.value_of("layout.cp") or 1) > 1:
        settings.word("layout.cp_kind", _ROTATIONS, *rotated)
    settings.take(*rotated)
    if (settings.value_of("layout.ep") or 1) > 1:
        backend = settings.found.get(_BACKEND)
        settings.word("layout.dispatcher", _DISPATCHERS, _BACKEND)
        if backend is not None and str(backend.value).strip("'\"").lower() == "hybridep":
            settings.notes.append(f"{backend.place}: HybridEP is priced as DeepEP")
    settings.take(_BACKEND)
    _precision(settings)
    settings.word("training.optimizer", {"adamw": "adamw", "adam": "adamw"}, "optimizer.name")
    _model(settings)
    compiled = settings.flag("compile.enable", "training.compile")
    asynchronous = settings.flag("parallelism.enable_async_tensor_parallel",
                                 "experimental.enable_async_tensor_parallel")  # fmt: skip
    software = ("torchtitan-async",) if asynchronous else ()
    software = (*software, *(("torchtitan",) if compiled else ("torchtitan-eager",)))
    return settings.reading(kind, idle_in("torchtitan"), software=software)


def _batch(settings: Settings) -> None:
    local = settings.whole("", "training.local_batch_size", "training.batch_size")
    key = "training.local_batch_size"
    setting = settings.found.get(key) or settings.found.get("training.batch_size")
    pp = settings.value_of("layout.pp") or 1
    micro = settings.whole("", "parallelism.pipeline_parallel_microbatch_size")
    if local is not None and setting is not None:
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


def _pipeline(settings: Settings) -> None:
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
    schedule = settings.word("layout.schedule", _SCHEDULES, *named)
    for end in ("first", "last"):
        settings.take(f"parallelism.pipeline_parallel_{end}_stage_less_layers")
    each = settings.whole("run.layers_per_stage", "parallelism.pipeline_parallel_layers_per_stage")
    parts = settings.take("parallelism.module_fqns_per_model_part")
    if parts is not None and isinstance(parts.value, list) and len(parts.value) % pp == 0:
        settings.say("layout.vpp", max(len(parts.value) // pp, 1), parts)
        layers = [str(part).count("layers.") for part in parts.value]
        settings.say("layout.stages", layers, parts)
    elif each is None and schedule in (*_CHUNKED, *_V_SHAPED):
        at = settings.found.get("parallelism.pipeline_parallel_schedule")
        if at is not None:
            settings.say("layout.vpp", 2, at)


def _precision(settings: Settings) -> None:
    converters = settings.found.get("model.converters")
    said = str(converters.value) if converters else ""
    if converters and "float8" in said:
        recipe = settings.take("quantize.linear.float8.recipe_name", "float8.recipe_name")
        gathered = settings.flag("quantize.linear.float8.enable_fsdp_float8_all_gather",
                                 "float8.enable_fsdp_float8_all_gather")  # fmt: skip
        settings.say("training.precision", "fp8_current", recipe or converters)
        if gathered:
            settings.say("training.fp8_weights", True, converters)
    elif (converters and ".mx" in said) or said == "['mx']":
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


def _model(settings: Settings) -> None:
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
