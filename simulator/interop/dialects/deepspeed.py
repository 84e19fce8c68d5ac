"""DeepSpeed's configuration file, written and read, and the command that runs a script with it.

Names as in deepspeed/runtime/config.py, runtime/zero/config.py and runtime/zero/offload_config.py
of deepspeedai/DeepSpeed@1b88ac36. The script (a Hugging Face Trainer takes the file as it is)
builds the model; recomputation is its own switch.
"""

from __future__ import annotations

import json
from typing import Any

from simulator.interop.dialects.settings import Reading, Settings, Unset, idle_in
from simulator.interop.dialects.torchrun import torchrun
from simulator.layout.layouts import SHARDINGS
from simulator.quoting import comment_line, here_document
from simulator.scenario import Scenario
from simulator.software.profile import Software
from simulator.workload.recipe import Recipe

# --- written -------------------------------------------------------------------------------------

_OPTIMIZERS = {"adamw": "AdamW", "lion": "Lion", "lamb": "Lamb", "muon": "Muon"}
"""Types that DeepSpeed builds itself (deepspeed/runtime/config.py, DEEPSPEED_OPTIMIZERS)."""

_NVME_PATH = "/local_nvme"


def deepspeed_block(row: dict[str, Any], scenario: Scenario) -> str:
    """Write the configuration with a here-document, then the command."""
    text = json.dumps(deepspeed_config(row, scenario), indent=2)
    told = " --gradient_checkpointing" if row["recompute"] == "full" else ""
    if rank := scenario.workload.recipe.lora_rank:
        told += f' --model_name_or_path "$CHECKPOINT" --lora_rank {rank}'
    notes = "".join(f"{comment_line(note)}\n" for note in _notes(row))
    return (
        "# train.py is your script: deepspeed.initialize with this configuration. Yours to set:\n"
        "# model, data, learning rate.\n"
        f"{notes}{here_document('ds_config.json', text, end='JSON')}\n"
        f"{torchrun(scenario.cluster)} train.py --deepspeed ds_config.json{told}"
    )


def deepspeed_config(row: dict[str, Any], scenario: Scenario) -> dict[str, Any]:
    """Return the configuration as nested tables."""
    recipe = scenario.workload.recipe
    accumulated = row["global_batch"] // (row["dp"] * row["micro_batch"])
    config: dict[str, Any] = {
        "train_batch_size": row["global_batch"],
        "train_micro_batch_size_per_gpu": row["micro_batch"],
        "gradient_accumulation_steps": accumulated,
        "gradient_clipping": 1.0,
        **_precision(recipe),
        "zero_optimization": _zero(row, recipe, scenario.software),
    }
    if recipe.optimizer in _OPTIMIZERS:
        config["optimizer"] = {"type": _OPTIMIZERS[recipe.optimizer], "params": {"lr": 1e-4}}
    if row["cp"] > 1:
        config["sequence_parallel_size"] = row["cp"]
    if "nvme" in (row["optimizer_offload"], row["parameter_offload"]):
        config["aio"] = {
            "block_size": 1048576,
            "queue_depth": 8,
            "single_submit": False,
            "overlap_events": True,
        }
    return config


def _precision(recipe: Recipe) -> dict[str, Any]:
    """16-bit weights, and gradients added up in the same type unless the recipe says otherwise."""
    word = {"fp16": "fp16", "bf16": "bf16"}.get(recipe.precision)
    if word is None:
        return {}
    return {
        word: {"enabled": True},
        "data_types": {"grad_accum_dtype": recipe.gradient_dtype or word},
        "communication_data_type": recipe.reduce_dtype or word,
    }


def _zero(row: dict[str, Any], recipe: Recipe, software: Software) -> dict[str, Any]:
    """The stage, its buckets, and where states wait."""
    stage = SHARDINGS.index(row["sharding"])  # stage 0 is plain data parallelism
    elements = round(float(software.states.bucket_bytes) / 2)
    table: dict[str, Any] = {
        "stage": stage,
        "overlap_comm": software.overlap.gradient_reduce,
        "contiguous_gradients": True,
        "reduce_scatter": True,
        "reduce_bucket_size": elements,
    }
    if stage < 3:
        table |= {
            "allgather_partitions": True,
            "allgather_bucket_size": elements,
            "use_multi_rank_bucket_allreduce": software.deepspeed_zero.reduces_everywhere,
        }
    else:
        distance = round(2 * float(software.deepspeed_zero.live_parameters))
        table |= {
            "stage3_max_live_parameters": distance,
            "stage3_max_reuse_distance": distance,
            "stage3_prefetch_bucket_size": 50_000_000,
            "stage3_param_persistence_threshold": 100_000,
        }
        if row["reshard_after_forward"] is not True:
            table["zero_hpz_partition_size"] = row["reshard_after_forward"]
        if row["shard_group"] < row["dp"] * row["cp"]:
            table["mics_shard_size"] = row["shard_group"]
    return {**table, **_offload(row, recipe)}


def _offload(row: dict[str, Any], recipe: Recipe) -> dict[str, Any]:
    offload: dict[str, Any] = {}
    tier = row["optimizer_offload"]
    if tier != "none":
        table: dict[str, Any] = {"device": tier, "pin_memory": True}
        if float(recipe.optimizer_offload_fraction) < 1:
            table["ratio"] = float(recipe.optimizer_offload_fraction)
        if tier == "nvme":
            table |= {
                "nvme_path": _NVME_PATH,
                "buffer_count": 4,
                "pipeline_read": True,
                "pipeline_write": True,
            }
        offload["offload_optimizer"] = table
    tier = row["parameter_offload"]
    if tier != "none":
        table = {"device": tier, "pin_memory": True}
        if tier == "nvme":
            table |= {"nvme_path": _NVME_PATH, "max_in_cpu": 0}
        offload["offload_param"] = table
    return offload


def deepspeed_unsaid(row: dict[str, Any], scenario: Scenario) -> dict[str, str]:
    """Fields of a layout that neither the configuration nor the script's switch says."""
    if row["recompute"] == "selective":
        return {"recompute": "gradient_checkpointing computes whole layers again, or nothing."}
    if row["recompute_layers"]:
        return {"recompute_layers": "gradient_checkpointing computes all layers again."}
    return {}


def _notes(row: dict[str, Any]) -> list[str]:
    """What else has to be there."""
    notes = []
    if "nvme" in (row["optimizer_offload"], row["parameter_offload"]):
        notes.append(f"{_NVME_PATH} stands for the folder where your NVMe drives are mounted.")
    if row["cp"] > 1:
        notes.append("Sequence parallelism also needs DeepSpeed's attention around your own.")
    return notes


# --- read ----------------------------------------------------------------------------------------

_DTYPES = {"fp32": "fp32", "fp16": "fp16", "bf16": "bf16", "bfp16": "bf16"}
_READ_OPTIMIZERS = {
    "adam": "adamw", "adamw": "adamw", "fusedadam": "adamw", "cpuadam": "adamw",
    "lion": "lion", "lamb": "lamb", "muon": "muon", "sgd": "sgd",
}  # fmt: skip

_ONE_BIT = {"onebitadam": "adamw", "zerooneadam": "adamw", "onebitlamb": "lamb"}
"""Optimizers whose momenta are exchanged in a bit, once their warm-up is over -> what they are
until then (deepspeed/runtime/fp16/onebit)."""


def read_deepspeed(settings: Settings) -> Reading:
    """State what a configuration says; keys are dotted."""
    say_engine(settings)
    return settings.reading(
        "DeepSpeed configuration",
        idle_in("deepspeed"),
        software=("deepspeed", "optimum-habana"),
    )


def say_engine(settings: Settings) -> None:
    """State what DeepSpeed's own keys say, whatever stands beside them."""
    settings.whole("training.global_batch", "train_batch_size")
    settings.whole("layout.micro_batch", "train_micro_batch_size_per_gpu")
    settings.whole("run.accumulation", "gradient_accumulation_steps")
    settings.whole("layout.cp", "sequence_parallel_size")
    settings.whole("layout.tp", "tensor_parallel.autotp_size")
    if (settings.value_of("layout.cp") or 1) > 1:
        settings.say("layout.cp_kind", "all_to_all", settings.found["sequence_parallel_size"])
    say_zero(settings, "zero_optimization.")
    _buckets(settings)
    halves = [w for w in ("fp16", "bf16", "bfloat16") if settings.flag(f"{w}.enabled")]
    settings.one_of("training.precision", [f"{word}.enabled" for word in halves])
    for word in halves:
        at = settings.found[f"{word}.enabled"]
        settings.say("training.precision", word.replace("bfloat16", "bf16"), at)
    _states(settings)
    settings.word("training.gradient_dtype", _DTYPES, "data_types.grad_accum_dtype")
    settings.word("training.reduce_dtype", _DTYPES, "communication_data_type")
    settings.word("training.optimizer", {**_READ_OPTIMIZERS, **_ONE_BIT}, "optimizer.type")
    named = settings.found.get("optimizer.type")
    if named is not None and (plain := _ONE_BIT.get(str(named.value).lower())):
        rule = f"exchange in a bit is not modelled; read as {plain}, which it is in its warm-up"
        settings.notes.append(f"{named.place}: {named.value}: {rule}: later steps are shorter")
    settings.take("zero_optimization")


_MOST_ELEMENTS = 10**13


def _buckets(settings: Settings) -> None:
    """Buckets of gradients, whether they are reduced beside compute, and stage 3's live weights.

    Defaults as in deepspeed/runtime/zero/config.py of deepspeedai/DeepSpeed@edaa7221: buckets of
    5e8 elements, reduced beside the backward pass in stage 3 alone; "auto" is the Trainer's, the
    square of the width (transformers/integrations/deepspeed.py).
    """
    prefix = "zero_optimization."
    bucket = settings.found.get(f"{prefix}reduce_bucket_size")
    if bucket is not None and str(bucket.value) == "auto":
        settings.take(bucket.key)
        settings.say("run.bucket_by_width", True, bucket)
    elements = settings.whole("", f"{prefix}reduce_bucket_size", most=_MOST_ELEMENTS)
    if elements is not None and bucket is not None:
        settings.say("software.bucket_bytes", 2 * elements, bucket)
    beside = settings.flag(f"{prefix}overlap_comm")
    if beside is not None:
        settings.say(
            "software.overlap_grad_reduce", beside, settings.found[f"{prefix}overlap_comm"]
        )
    elif settings.value_of("layout.sharding") in ("zero1", "zero2"):
        why = "overlap_comm not said: DeepSpeed has it on in stage 3 alone"
        settings.usually("software.overlap_grad_reduce", False, why)
    if settings.value_of("layout.sharding") != "zero3":
        return
    keys = [f"{prefix}stage3_max_{tail}" for tail in ("live_parameters", "reuse_distance")]
    live, reuse = (settings.whole("", key, least=0, most=_MOST_ELEMENTS) for key in keys)
    if live is None and reuse is None:
        return
    fewest = min(size for size in (live, reuse) if size is not None)
    setting = settings.at(*(keys if fewest == live else keys[::-1]))
    settings.say("software.deepspeed_zero.live_parameters", fewest / 2, setting)


def _states(settings: Settings) -> None:
    """States of 16 bit, and what waits for the backward pass elsewhere."""
    for word, dtype in (("bf16", "bf16"), ("fp16", "fp16")):
        for tail in ("master_weights_and_grads", "master_weights_and_gradients"):
            key = f"{word}.{word}_{tail}"
            if settings.flag(key):
                settings.say("training.gradient_dtype", dtype, settings.found[key])
                rule = "master weights are counted in fp32, gradients in 16 bit"
                settings.notes.append(f"{settings.found[key].place}: {rule}")
    if settings.flag("bf16.bf16_optimizer_states"):
        settings.say("training.moment_dtype", "bf16", settings.found["bf16.bf16_optimizer_states"])
    for tail in ("partition_activations", "cpu_checkpointing"):
        key = f"activation_checkpointing.{tail}"
        if settings.flag(key):
            settings.notes.append(f"{settings.found[key].place}: not counted in memory or time")


def say_zero(settings: Settings, prefix: str) -> None:
    """State the stage, its groups and where states wait."""
    stage = settings.take(f"{prefix}stage", f"{prefix}zero_stage")
    number = settings_stage(stage.value) if stage is not None else None
    if stage is not None and "$" in str(stage.value):
        settings.unset.append(Unset("layout.sharding", str(stage.value), stage.place))
    elif stage is not None and number is None:
        settings.problems.append(f"{stage.place}: must be 0, 1, 2 or 3, got {stage.value!r}")
    elif stage is not None:
        settings.say("layout.sharding", ("ddp", "zero1", "zero2", "zero3")[number or 0], stage)
    settings.whole("layout.shard_group", f"{prefix}mics_shard_size")
    group = settings.whole("", f"{prefix}zero_hpz_partition_size")
    if group and group > 1 and number == 3:
        settings.say(
            "layout.reshard_after_forward",
            group,
            settings.found[f"{prefix}zero_hpz_partition_size"],
        )
    tiers = {"cpu": "cpu", "nvme": "nvme", "none": "none"}
    settings.word("layout.optimizer_offload", tiers, f"{prefix}offload_optimizer.device",
                  f"{prefix}offload_optimizer_device")  # fmt: skip
    settings.word("layout.parameter_offload", tiers, f"{prefix}offload_param.device",
                  f"{prefix}offload_param_device")  # fmt: skip
    for old, name in (("cpu_offload", "optimizer"), ("cpu_offload_param", "parameter")):
        if settings.flag(f"{prefix}{old}"):  # before ZeRO-Infinity
            settings.say(f"layout.{name}_offload", "cpu", settings.found[f"{prefix}{old}"])
    ratio = settings.take(f"{prefix}offload_optimizer.ratio")
    if ratio is not None and isinstance(ratio.value, (int, float)) and 0 < ratio.value <= 1:
        settings.say("training.optimizer_offload_fraction", float(ratio.value), ratio)


def settings_stage(value: Any) -> int | None:
    """Stage of ZeRO.

    >>> settings_stage(3), settings_stage("2"), settings_stage(7)
    (3, 2, None)
    """
    word = str(value).removesuffix(".0")  # Megatron-DeepSpeed's is a float
    return int(word) if word in ("0", "1", "2", "3") else None
