"""Hugging Face's ``TrainingArguments``, as JSON or as options, and ``accelerate``'s configuration.

Names as in transformers 5 (training_args.py) and accelerate 1 (utils/dataclasses.py: FSDP plugin).
"""

from __future__ import annotations

import re

from simulator.interop.dialects.deepspeed import say_zero
from simulator.interop.dialects.model_names import say_model
from simulator.interop.dialects.settings import Reading, Settings, idle_in

TRAINER_KEYS = {
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
}
_OPTIMIZERS = {
    "adamw": "adamw", "adamw_torch": "adamw", "adamw_torch_fused": "adamw", "adamw_hf": "adamw",
    "adamw_apex_fused": "adamw", "paged_adamw_32bit": "adamw", "adamw_bnb_8bit": "adamw_8bit",
    "adamw_8bit": "adamw_8bit", "paged_adamw_8bit": "adamw_8bit", "adafactor": "adafactor",
    "sgd": "sgd", "lion_32bit": "lion",
}  # fmt: skip
_STAGES = {"0": "ddp", "1": "zero1", "2": "zero2", "3": "zero3"}
_FUSED = ("flash_attention_2", "flash_attention_3", "sdpa", "kernels-community/vllm-flash-attn3")
_DEGREE = re.compile(
    r"parallelism_config[._](?:parallelism_config_)?(tp|cp|dp_replicate|dp_shard)_size"
)


def read_trainer(settings: Settings) -> Reading:
    """State what the arguments of a Trainer say."""
    settings.whole("layout.micro_batch", "per_device_train_batch_size", "per_gpu_train_batch_size")
    settings.whole("run.accumulation", "gradient_accumulation_steps")
    steps = settings.take("max_steps")
    if steps is not None and str(steps.value) != "-1":  # -1: num_train_epochs decides
        settings.whole("run.steps", "max_steps")
    model = settings.take("model_name_or_path", "model_name")
    if model is not None and settings.value_of("model.name") is None:
        say_model(settings, model)
    settings.whole(
        "training.sequence_length",
        "max_length",
        "max_seq_length",
        "max_seq_len",
        "model_max_length",
        "block_size",
        "cutoff_len",
    )
    settings.whole("training.lora_rank", "lora_rank", "lora_r", "peft_lora_r")
    rank = settings.take("lora_dim")  # DeepSpeed's examples; 0: all weights are trained
    if rank is not None and str(rank.value) != "0":
        settings.whole("training.lora_rank", "lora_dim")
    settings.word("layout.sharding", _STAGES, "zero_stage")
    _switches(settings)
    shards = settings.take("fsdp")
    words = str(shards.value).replace(",", " ").split() if shards else []
    if shards and words and words != ["False"]:
        settings.say("layout.sharding", "zero2" if "shard_grad_op" in words else "zero3", shards)
    software: tuple[str, ...] = ("torchtitan-eager",) if words else ()
    if "deepspeed" in settings.found:
        software = ("deepspeed", "optimum-habana")
    return settings.reading("Hugging Face TrainingArguments", idle_in("trainer"),
                            software=software or ("plain-ddp",))  # fmt: skip


def _switches(settings: Settings) -> None:
    for word in ("bf16", "fp16"):
        if settings.flag(word):
            settings.say("training.precision", word, settings.found[word])
    again = settings.flag("gradient_checkpointing")
    if again is not None:
        settings.say(
            "layout.recompute",
            "full" if again else "none",
            settings.found["gradient_checkpointing"],
        )
    settings.word("training.optimizer", _OPTIMIZERS, "optim")
    attention = settings.found.get("attn_implementation")
    if attention is not None and str(attention.value) in _FUSED:
        settings.take("attn_implementation")
    for key in ("torch_compile", "use_liger_kernel"):
        on = settings.found.get(key)
        if on is not None and str(on.value).lower() == "false":
            settings.take(key)


def read_accelerate(settings: Settings) -> Reading:
    """State what accelerate's configuration says; FSDP and DeepSpeed are sections of it."""
    settings.whole("cluster.gpus", "num_processes")
    settings.whole("run.nodes", "num_machines")
    settings.whole(
        "run.accumulation",
        "gradient_accumulation_steps",
        "deepspeed_config.gradient_accumulation_steps",
    )
    settings.word(
        "training.precision",
        {"bf16": "bf16", "fp16": "fp16", "no": "fp32", "fp8": "fp8"},
        "mixed_precision",
    )
    kind = settings.take("distributed_type")
    software: tuple[str, ...] = ("plain-ddp",)
    if kind is not None and str(kind.value).upper() == "DEEPSPEED":
        say_zero(settings, "deepspeed_config.")
        software = ("deepspeed",)
    elif kind is not None and str(kind.value).upper() == "FSDP":
        _fsdp(settings)
        compiler = settings.take("dynamo_config.dynamo_backend", "dynamo_backend")
        compiled = compiler is not None and str(compiler.value).upper() == "INDUCTOR"
        software = ("torchtitan",) if compiled else ("torchtitan-eager",)
    elif kind is not None and str(kind.value).upper().startswith("MULTI_"):
        settings.say("layout.sharding", "ddp", kind)
    for key in list(settings.found):
        if fullmatch := _DEGREE.fullmatch(key):
            name = {
                "tp": "layout.tp",
                "cp": "layout.cp",
                "dp_replicate": "run.shard_replicas",
                "dp_shard": "run.shard_degree",
            }
            settings.whole(name[fullmatch[1]], key)
    return settings.reading("accelerate configuration", idle_in("accelerate"), software=software)


def _fsdp(settings: Settings) -> None:
    prefix = "fsdp_config.fsdp_"
    reshard = settings.take(f"{prefix}reshard_after_forward")
    strategy = settings.take(f"{prefix}sharding_strategy")
    at = reshard or strategy
    if at is not None:
        kept = str(at.value).upper() in ("FALSE", "SHARD_GRAD_OP", "2", "_HYBRID_SHARD_ZERO2")
        alone = str(at.value).upper() in ("NO_SHARD", "3")
        settings.say("layout.sharding", "ddp" if alone else "zero2" if kept else "zero3", at)
    again = settings.flag(f"{prefix}activation_checkpointing")
    if again is not None:
        settings.say(
            "layout.recompute",
            "full" if again else "none",
            settings.found[f"{prefix}activation_checkpointing"],
        )
    if settings.flag(f"{prefix}offload_params"):
        at = settings.found[f"{prefix}offload_params"]
        settings.say("layout.parameter_offload", "cpu", at)
        settings.say("layout.optimizer_offload", "cpu", at)
