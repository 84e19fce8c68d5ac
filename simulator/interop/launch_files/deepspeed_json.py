"""DeepSpeed's configuration, and the two configurations that stand around it or beside it.

Names as in deepspeed/runtime/config.py, runtime/zero/config.py of deepspeedai/DeepSpeed@1b88ac36.
"""

from __future__ import annotations

from typing import Any

from simulator.interop.launch_files.idle_keys import idle_in
from simulator.interop.launch_files.settings import Reading, Settings, Unset

__all__ = ["read_deepspeed", "say_zero"]

_DTYPES = {"fp32": "fp32", "fp16": "fp16", "bf16": "bf16", "bfp16": "bf16"}
_OPTIMIZERS = {
    "adam": "adamw", "adamw": "adamw", "fusedadam": "adamw", "cpuadam": "adamw",
    "lion": "lion", "lamb": "lamb", "muon": "muon", "sgd": "sgd",
}  # fmt: skip

_ONE_BIT = {"onebitadam": "adamw", "zerooneadam": "adamw", "onebitlamb": "lamb"}
"""Optimizers whose momenta are exchanged in a bit, once their warm-up is over -> what they are
until then (deepspeed/runtime/fp16/onebit)."""


def read_deepspeed(settings: Settings) -> Reading:
    """State what a configuration says; keys are dotted."""
    settings.whole("training.global_batch", "train_batch_size")
    settings.whole("layout.micro_batch", "train_micro_batch_size_per_gpu")
    settings.whole("run.accumulation", "gradient_accumulation_steps")
    settings.whole("layout.cp", "sequence_parallel_size")
    settings.whole("layout.tp", "tensor_parallel.autotp_size")
    if (settings.value_of("layout.cp") or 1) > 1:
        settings.say("layout.cp_kind", "all_to_all", settings.found["sequence_parallel_size"])
    say_zero(settings, "zero_optimization.")
    for word in ("fp16", "bf16", "bfloat16"):
        if settings.flag(f"{word}.enabled"):
            at = settings.found[f"{word}.enabled"]
            settings.say("training.precision", word.replace("bfloat16", "bf16"), at)
    _states(settings)
    settings.word("training.gradient_dtype", _DTYPES, "data_types.grad_accum_dtype")
    settings.word("training.reduce_dtype", _DTYPES, "communication_data_type")
    settings.word("training.optimizer", {**_OPTIMIZERS, **_ONE_BIT}, "optimizer.type")
    named = settings.found.get("optimizer.type")
    if named is not None and (plain := _ONE_BIT.get(str(named.value).lower())):
        rule = f"exchange in a bit is not modelled; read as {plain}, which it is in its warm-up"
        settings.notes.append(f"{named.place}: {named.value}: {rule}: later steps are shorter")
    settings.take("zero_optimization")
    return settings.reading(
        "DeepSpeed configuration",
        idle_in("deepspeed"),
        software=("deepspeed", "optimum-habana"),
    )


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
