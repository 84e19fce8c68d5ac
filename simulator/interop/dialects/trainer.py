"""Hugging Face's ``TrainingArguments``, as JSON or as options, and ``accelerate``'s configuration.

Names as in transformers 5.24 and 4.57 (training_args.py), trl 0.24 (trainer/*_config.py),
accelerate 1.15 (utils/dataclasses.py: FSDP plugin; commands/config) and LLaMA-Factory@ff6d4d12
(hparams), which takes the arguments of a Trainer beside those of its own.
"""

from __future__ import annotations

import re

from simulator.interop.dialects.deepspeed import say_zero
from simulator.interop.dialects.model_names import say_model
from simulator.interop.dialects.settings import (
    KEEPS,
    Place,
    Reading,
    Setting,
    Settings,
    as_whole,
    idle_in,
)
from simulator.interop.dialects.training_ways import (
    PAIRS,
    REINFORCEMENT,
    SCORES,
    module_names,
    needs_reference,
    refusal,
    refuse_adapters,
    refuse_way,
    say_low_bit,
    say_pairs,
    say_rank,
    say_scores,
    say_targets,
    way_of,
)
from simulator.interop.dialects.vision_trainers import say_trained_parts

TRAINER_KEYS = {
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
}
TRAINER = "Hugging Face TrainingArguments"
LLAMA_FACTORY = "LLaMA-Factory configuration"
TRAINERS = (TRAINER, LLAMA_FACTORY)
"""Kinds of readings whose micro-batches are accumulated once unless they say how often."""
_FACTORY_KEYS = {"finetuning_type", "cutoff_len", "quantization_bit", "pure_bf16"}
"""Keys that LLaMA-Factory alone has."""
_TRL_PROGRAM = re.compile(
    r"(?:^|[/. ])(?:trl|(?:sft|dpo|orpo|cpo|reward_modeling)(?:\.py)?)(?:$|[/. ])"
)
_OPTIMIZERS = {
    "adamw": "adamw", "adamw_torch": "adamw", "adamw_torch_fused": "adamw", "adamw_hf": "adamw",
    "adamw_apex_fused": "adamw", "paged_adamw_32bit": "adamw", "paged_adamw": "adamw",
    "adamw_bnb_8bit": "adamw_8bit", "adamw_8bit": "adamw_8bit", "paged_adamw_8bit": "adamw_8bit",
    "adafactor": "adafactor", "sgd": "sgd", "lion_32bit": "lion",
}  # fmt: skip
_ADAMW = {"adamw_torch": "foreach", "adamw_torch_fused": "fused", "adamw_apex_fused": "fused"}
"""Kernels of AdamW, by name of the optimizer; others are not known to be one or the other."""
_STAGES = {"0": "ddp", "1": "zero1", "2": "zero2", "3": "zero3"}
_FUSED = ("flash_attention_2", "flash_attention_3", "sdpa", "kernels-community/vllm-flash-attn3",
          "fa2", "fa3", "auto")  # fmt: skip
_DEGREE = re.compile(
    r"parallelism_config[._](?:parallelism_config_)?(tp|cp|dp_replicate|dp_shard)_size"
)
_WAYS_BY_KEY = {
    REINFORCEMENT: "num_generations max_completion_length reward_funcs reward_model_path"
    " reward_model_name_or_path use_vllm vllm_mode total_episodes num_ppo_epochs",
    PAIRS: "precompute_ref_log_probs ref_model_init_kwargs ref_model rpo_alpha reference_free"
    " pref_loss simpo_gamma cpo_alpha",
    "preference": "desirable_weight undesirable_weight",
    SCORES: "center_rewards_coefficient",
    "distillation": "teacher_model_name_or_path lmbda",
}
"""Keys of trl's configurations that no plain fine-tuning has."""
_STAGE_WAYS = {"rm": SCORES, "ppo": REINFORCEMENT, "dpo": PAIRS, "kto": "preference"}
"""LLaMA-Factory's stages that are no plain step."""
_REFUSED = {
    "lora_modules_to_save": "trains whole modules beside the adapters",
    "additional_target": "trains whole modules beside the adapters",
    "freeze_extra_modules": "trains modules of its choice",
    "use_llama_pro": "trains blocks that are put between the model's",
    "use_galore": "keeps low-rank optimizer states",
    "use_apollo": "keeps low-rank optimizer states",
    "use_badam": "trains a block at a time",
    "mixture_of_depths": "lets tokens skip layers",
    "shift_attn": "attends within shifted groups",
    "tensor_model_parallel_size": "trains by Megatron-Core, whose settings are not read here",
    "use_mca": "trains by Megatron-Core, whose settings are not read here",
    "use_megatron_bridge": "trains by Megatron-Bridge, whose settings are not read here",
    "activation_offloading": "keeps activations in host memory",
    "use_kt": "keeps experts in host memory",
}
"""Switches of trl and LLaMA-Factory that change memory by a factor -> what they do."""
_LENGTHS = (
    *("max_length", "max_seq_length", "max_seq_len", "model_max_length", "block_size"),
    *("cutoff_len", "context_window_size"),
)


def read_trainer(settings: Settings, program: str = "") -> Reading:
    """State what the arguments of a Trainer say; `program` is the script that takes them."""
    factory = bool(_FACTORY_KEYS & set(settings.found)) or "llamafactory" in program
    trl = not factory and _TRL_PROGRAM.search(program) is not None
    say_trained_parts(settings)
    settings.whole("layout.micro_batch", "per_device_train_batch_size", "per_gpu_train_batch_size")
    settings.whole("run.accumulation", "gradient_accumulation_steps")
    steps = settings.take("max_steps")
    if steps is not None and str(steps.value) not in ("-1", "0"):  # num_train_epochs decides then
        settings.whole("run.steps", "max_steps")
    strategy = settings.found.get("save_strategy")
    if strategy is None or str(strategy.value).rpartition(".")[2].lower() == "steps":
        settings.saves_every("save_steps")
        settings.waits_for_storage("a Trainer saves before it goes on")
    else:
        settings.take("save_steps")  # an epoch, the best score or nothing decides
    settings.whole(KEEPS, "save_total_limit")
    model = settings.take("model_name_or_path", "model_name")
    if model is not None and settings.value_of("model.name") is None:
        say_model(settings, model)
    settings.whole("training.sequence_length", *_LENGTHS)
    trainer = "LLaMA-Factory" if factory else "trl" if trl else ""
    if trainer:
        length = 2048 if factory else 1024
        settings.usually(
            "training.sequence_length", length, f"length not said: {trainer}'s default"
        )
    _way(settings, program)
    _adapters(settings, trainer)
    settings.word("layout.sharding", _STAGES, "zero_stage")
    if "zero_stage" in settings.found and not trainer:
        _deepspeed_chat(settings)
    else:
        _loaded(settings)
    _switches(settings, trainer)
    software = _shards(settings)
    if "deepspeed" in settings.found:
        software = ("deepspeed", "optimum-habana")
    return settings.reading(LLAMA_FACTORY if factory else TRAINER, idle_in("trainer"),
                            software=software, otherwise=("plain-ddp",))  # fmt: skip


def _deepspeed_chat(settings: Settings) -> None:
    """What DeepSpeed-Chat's scripts make DeepSpeed's configuration of.

    deepspeedai/DeepSpeedExamples@45b4b715: training/step1_supervised_finetuning/main.py and
    dschat/utils/ds_utils.py (get_train_ds_config); a Trainer has no option ``--zero_stage``.
    """
    stage = settings.found["zero_stage"]
    settings.word("training.precision", {"fp16": "fp16", "bf16": "bf16"}, "dtype")
    settings.usually("training.precision", "fp16", "dtype not said: DeepSpeed-Chat's default")
    if settings.flag("offload"):
        _say_offload(settings, settings.found["offload"])
    if settings.value_of("layout.sharding") == "zero3":  # stage3_max_live_parameters = 3e7
        settings.say("software.deepspeed_zero.live_parameters", 3e7 / 2, stage)
    elif settings.value_of("layout.sharding") in ("zero1", "zero2"):
        settings.say("software.overlap_grad_reduce", True, stage)


def _way(settings: Settings, program: str) -> None:
    """Read training on pairs, by stage, program or keys; refuse what else is no plain step."""
    stage = settings.take("stage")
    way = "" if stage is None else _STAGE_WAYS.get(str(stage.value).strip().lower(), "")
    at = stage
    if not way and (way := way_of(program)):
        at = Setting(program, None, Place(settings.path, program))
        if way not in (PAIRS, SCORES):
            settings.problems.append(f"{at.place} asks for {refusal(way)}")
            return
    for other, words in _WAYS_BY_KEY.items() if way in ("", PAIRS, SCORES) else ():
        setting = settings.take(*words.split())
        if setting is not None and setting.value is not None:
            way, at = way or other, at or setting
    if not way and (at := settings.take("beta", "max_prompt_length")) is not None:
        way = PAIRS  # of trl's configurations: DPOConfig, ORPOConfig, CPOConfig, KTOConfig
        rule = "read as DPO's, beside a reference; the script with it, orpo.py or cpo.py, says more"
        settings.notes.append(f"{at.place}: no plain fine-tuning has it: {rule}")
    if way == PAIRS and at is not None:
        _pairs(settings, at, program)
    elif way == SCORES and at is not None:
        say_scores(settings, at)
    elif way and at is not None:
        refuse_way(settings, way, at)


def _pairs(settings: Settings, at: Setting, program: str) -> None:
    """Pairs of answers, beside a reference unless the loss, or its results ahead of time, say so.

    trl 0.24.0: DPOConfig; LLaMA-Factory: hparams/finetuning_args.py, ``use_ref_model``.
    """
    loss = settings.take("pref_loss", "loss_type")
    settings.take("beta", "pref_beta", "pref_ftx", "label_smoothing", "ld_alpha")
    words = f"{program} {'' if loss is None else loss.value}"
    alone = {"simpo_gamma", "cpo_alpha"} & set(settings.found) or not needs_reference(words)
    ahead = settings.flag("precompute_ref_log_probs") or settings.flag("reference_free")
    say_pairs(settings, at, reference=not (alone or ahead))


def _adapters(settings: Settings, trainer: str) -> None:
    """Adapters and their targets, frozen parts, and the type of the frozen matrices."""
    asked = settings.found.get("use_peft")
    asked = asked if settings.flag("use_peft") else None
    kind = settings.take("finetuning_type")
    word = str(kind.value).strip().lower() if kind is not None else ""
    factory = trainer == "LLaMA-Factory"
    if kind is not None and word not in ("lora", "full", "freeze"):
        settings.problems.append(
            f"{kind.place}: must be lora, freeze or full (others are not modelled), got {word!r}"
        )
    if word == "lora" or (factory and kind is None):
        at = kind or settings.at(*_FACTORY_KEYS, *settings.found)
        say_rank(settings, "lora_rank", usual=8, setting=at)
    elif word == "freeze" and kind is not None:
        _frozen(settings, kind)
    elif not word:
        off = trainer == "trl" and asked is None  # trl reads its adapters only with use_peft
        ranks = () if off else ("lora_rank", "lora_r", "peft_lora_r")
        settings.take("lora_rank", "lora_r", "peft_lora_r")
        say_rank(settings, *ranks, usual=16 if asked else 0, setting=asked)
        rank = settings.take("lora_dim")  # DeepSpeed's examples; 0: all weights are trained
        if rank is not None and str(rank.value) != "0":
            settings.whole("training.lora_rank", "lora_dim")
    say_targets(settings, "lora_target", "lora_target_modules")
    if factory:
        _frozen_parts(settings)
    adapted = settings.value_of("training.lora_rank")
    targets = settings.found.get("lora_target_modules")
    if adapted and trainer == "trl" and (targets is None or targets.value in (None, "None")):
        why = "modules of adapters not said: peft's default for most families"
        settings.usually("training.lora_targets", ["q", "v"], why)
    dropped = settings.take("lora_dropout")
    if adapted and dropped is not None and str(dropped.value) not in ("0", "0.0", "None"):
        settings.notes.append(f"{dropped.place}: masks of the adapters' dropout are not counted")
    _low_bit(settings, bool(adapted))
    refuse_adapters(settings, _REFUSED)
    if settings.flag("use_dora"):
        rule = "adapters are counted as LoRA's, without the norms of DoRA"
        settings.notes.append(f"{settings.found['use_dora'].place}: {rule}")


def _frozen_parts(settings: Settings) -> None:
    """Parts of a model with towers that LLaMA-Factory freezes (hparams/finetuning_args.py)."""
    usual = {"freeze_vision_tower": ("tower", True), "freeze_language_model": ("text", False),
             "freeze_multi_modal_projector": ("projector", True)}  # fmt: skip
    said = {key: settings.flag(key) for key in usual}
    frozen = [part for key, (part, on) in usual.items() if (on if said[key] is None else said[key])]
    given = [settings.found[key] for key in usual if key in settings.found]
    unsaid = Setting("", None, Place(settings.path, "freeze_vision_tower by default"))
    settings.say("run.frozen_parts", frozen, next(iter(given), unsaid))


def _frozen(settings: Settings, kind: Setting) -> None:
    """LLaMA-Factory's ``freeze``: the last layers alone are trained, by default two."""
    modules = settings.take("freeze_trainable_modules")
    if (names := module_names(modules)) and modules is not None:
        rule = f"trains {', '.join(names)[:60]} of a layer alone, which is not modelled"
        settings.problems.append(f"{modules.place}: {rule}")
    count = settings.take("freeze_trainable_layers")
    number = 2 if count is None else as_whole(str(count.value))
    if number is None or number < 1:
        rule = "must be the number of last layers that are trained (first ones are not modelled)"
        settings.problems.append(f"{(count or kind).place}: {rule}, got {(count or kind).value!r}")
        return
    settings.say("run.trained_layers", number, count or kind)
    settings.say("training.frozen_head", True, kind)
    if count is None:
        settings.notes.append(
            f"{kind.place}: trained layers not said, 2 are LLaMA-Factory's default"
        )


def _low_bit(settings: Settings, adapted: bool) -> None:
    """A base in 4 bit, as trl, transformers and LLaMA-Factory say it."""
    bits = settings.take("quantization_bit")
    on = {bit: settings.flag(f"load_in_{bit}bit") for bit in (4, 8)}
    four = settings.found["load_in_4bit"] if on[4] else None
    eight = settings.found["load_in_8bit"] if on[8] else None
    if bits is not None and str(bits.value).lower() not in ("none", "null", ""):
        four, eight = (bits, eight) if str(bits.value) == "4" else (four, bits)
    method = settings.take("quantization_method")
    if (
        method is not None
        and bits is not None
        and str(method.value).lower() not in ("bnb", "bitsandbytes")
    ):
        settings.problems.append(f"{method.place}: must be bnb, got {method.value!r}")
    say_low_bit(settings, four, eight)
    if four is not None and not adapted and eight is None:
        rule = "a base in 4 bit is trained by adapters alone: their rank is not said"
        settings.problems.append(f"{four.place}: {rule}; --set training.lora_rank=N says it")
    nested = settings.take("use_bnb_nested_quant", "double_quantization")
    if four is not None and nested is not None and str(nested.value).lower() == "false":
        settings.notes.append(f"{nested.place}: counted with double quantisation")


def _loaded(settings: Settings) -> None:
    """The type in which weights are loaded: where nothing keeps others, that of all states."""
    if settings.flag("pure_bf16"):
        at = settings.found["pure_bf16"]
        settings.say("training.precision", "bf16", at)
        settings.say("run.loaded_dtype", "bf16", at)
        return
    words = {"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16",
             "half": "fp16", "float32": "fp32", "fp32": "fp32", "float": "fp32"}  # fmt: skip
    setting = settings.take("dtype", "torch_dtype", "model_init_kwargs.dtype",
                            "model_init_kwargs.torch_dtype")  # fmt: skip
    if setting is None or setting.value is None:
        return
    word = str(setting.value).strip("'\"").lower().removeprefix("torch.")
    if word == "auto":
        rule = "weights are loaded as the checkpoint has them, counted as bf16"
        settings.notes.append(f"{setting.place}: {rule}")
        settings.say("run.loaded_dtype", "bf16", setting)
    elif word in words:
        settings.say("run.loaded_dtype", words[word], setting)
    else:
        rule = f"must be auto or one of {', '.join(words)}"
        settings.problems.append(f"{setting.place}: {rule}, got {word[:60]!r}")


def _switches(settings: Settings, trainer: str) -> None:
    halves = [word for word in ("bf16", "fp16") if settings.flag(word)]
    settings.one_of("training.precision", halves)  # training_args.py: at most one
    for word in halves:
        settings.say("training.precision", word, settings.found[word])
    if trainer == "trl":
        settings.usually("training.precision", "bf16", "neither bf16 nor fp16 said: trl's default")
    elif settings.value_of("run.loaded_dtype") in (None, "fp32"):
        why = "neither bf16 nor fp16 said, which the Trainer takes for fp32"
        settings.usually("training.precision", "fp32", why)
    _say_checkpoints(settings, "activation_checkpointing", "gradient_checkpointing")
    _say_reentry(settings)
    mebibytes = settings.whole("", "ddp_bucket_cap_mb")
    if mebibytes:
        at = settings.found["ddp_bucket_cap_mb"]
        settings.say("software.bucket_bytes", mebibytes * 2**20, at)
    off = settings.flag("disable_gradient_checkpointing")
    if off is not None:
        at = settings.found["disable_gradient_checkpointing"]
        settings.say("layout.recompute", "none" if off else "full", at)
    if trainer:
        why = f"checkpointing of activations not said: it is on in {trainer} unless turned off"
        settings.usually("layout.recompute", "full", why)
    if trainer == "LLaMA-Factory" and settings.value_of("layout.recompute") != "none":
        why = "use_reentrant_gc not said: checkpoints are entered again unless it is false"
        settings.usually("software.recompute_stops_early", "never", why)
    settings.word("training.optimizer", _OPTIMIZERS, "optim")
    _say_adamw(settings)
    if settings.flag("adafactor"):
        settings.say("training.optimizer", "adafactor", settings.found["adafactor"])
    if settings.flag("use_muon"):
        settings.say("training.optimizer", "muon", settings.found["use_muon"])
    _attention(settings, "attn_implementation", "flash_attn")
    if settings.flag("use_flash_attention") is False:  # Optimum Habana's
        at = settings.found["use_flash_attention"]
        settings.say("software.flash_attention", False, at)
    packed = {key: settings.flag(key) for key in ("packing", "neat_packing", "padding_free")}
    if packed["packing"] is False:
        rule = "every sample is counted as long as the longest; shorter ones take less"
        settings.notes.append(f"{settings.found['packing'].place}: {rule}")
    for key in ("torch_compile", "use_liger_kernel", "enable_liger_kernel", "use_unsloth"):
        on = settings.found.get(key)
        if on is not None and str(on.value).lower() == "false":
            settings.take(key)
        elif on is not None and "liger" in key and not settings.value_of("run.sequences_each"):
            settings.flag(key)  # head and loss are one (transformers/integrations/liger.py)
            settings.say("run.loss_by_width", True, on)
            rule = "norms, gates and rotations that it fuses are counted as separate kernels"
            settings.notes.append(f"{on.place}: {rule}")


def _say_adamw(settings: Settings) -> None:
    """State which kernels AdamW has; DeepSpeed brings its own."""
    optim = settings.found.get("optim")
    if optim is not None:
        if kernels := _ADAMW.get(str(optim.value).strip("'\"").lower()):
            settings.say("run.adamw", kernels, optim)
    elif "deepspeed" not in settings.found:
        why = "optim not said: transformers takes fused AdamW from PyTorch 2.8 on"
        settings.usually("run.adamw", "fused", why)


_OTHER_KEYWORDS = re.compile(r"[A-Za-z_]*(?<!use_reentrant)(?<![Tt]rue)(?<![Ff]alse)[\"']?\s*:")
"""A keyword of torch's checkpoint beside ``use_reentrant``."""
_REENTRY = ("gradient_checkpointing_kwargs", "gradient_checkpointing_kwargs.use_reentrant",
            "use_reentrant_gc")  # fmt: skip


def _say_reentry(settings: Settings) -> None:
    """State where recomputation stops: checkpoints with re-entry run their block to its end."""
    for setting in (settings.found.get(key) for key in _REENTRY):
        if setting is not None and not _OTHER_KEYWORDS.search(str(setting.value)):
            settings.take(setting.key)
            word = re.search(r"true|false", str(setting.value), re.IGNORECASE)
            if word is not None:
                stops = "never" if word[0].lower() == "true" else "16bit"
                settings.say("software.recompute_stops_early", stops, setting)


def _say_checkpoints(settings: Settings, *keys: str) -> None:
    """State whether whole layers are computed again."""
    again = settings.flag(*keys)
    if again is not None:
        settings.say("layout.recompute", "full" if again else "none", settings.at(*keys))


def _attention(settings: Settings, *keys: str) -> None:
    setting = next((settings.found[key] for key in keys if key in settings.found), None)
    word = "" if setting is None else str(setting.value).strip("'\"").lower()
    if setting is None or setting.value is True:
        return
    if word in _FUSED:
        settings.take(setting.key)
    elif word in ("eager", "disabled"):
        settings.take(setting.key)
        settings.say("software.flash_attention", False, setting)


# --- sharding by FSDP ----------------------------------------------------------------------------

_STRATEGIES = {
    "full_shard": ("zero3", False), "1": ("zero3", False), "true": ("zero3", False),
    "shard_grad_op": ("zero2", False), "2": ("zero2", False), "false": ("zero2", False),
    "no_shard": ("ddp", False), "3": ("ddp", False),
    "hybrid_shard": ("zero3", True), "4": ("zero3", True),
    "hybrid_shard_zero2": ("zero2", True), "_hybrid_shard_zero2": ("zero2", True),
    "5": ("zero2", True),
}  # fmt: skip
"""ShardingStrategy's names and numbers, and reshard_after_forward -> sharding, and whether a server
keeps a copy of its own (torch/distributed/fsdp/api.py)."""


def _shards(settings: Settings) -> tuple[str, ...]:
    """What ``fsdp`` and ``fsdp_config`` say, and the software that does it."""
    setting = settings.take("fsdp")
    value = "" if setting is None or setting.value is None else setting.value
    words = value if isinstance(value, list) else str(value).replace(",", " ").split()
    words = [str(word).strip("[]'\"").lower() for word in words]
    if setting is None or not words or words in (["false"], ["0"], [""]):
        return ()
    for word in words:
        if word in ("auto_wrap", "size_based_auto_wrap", "transformer_based_wrap"):
            continue
        if word == "offload":
            _say_offload(settings, setting)
        elif word in _STRATEGIES and not word.isdigit():
            _say_strategy(settings, word, setting)
        elif not (word == "1" and len(words) == 1):
            rule = "must be among full_shard, shard_grad_op, hybrid_shard, hybrid_shard_zero2,"
            rule += " no_shard, offload, auto_wrap"
            settings.problems.append(f"{setting.place}: {rule}, got {word[:60]!r}")
    _say_fsdp(settings, "fsdp_config.")
    settings.usually("layout.sharding", "zero3", "strategy of FSDP not said: full_shard")
    alone = settings.value_of("layout.sharding") == "ddp"
    return () if alone else _fsdp_software(None)


def _say_strategy(settings: Settings, word: str, setting: Setting) -> None:
    sharding, within_server = _STRATEGIES[word]
    settings.say("layout.sharding", sharding, setting)
    if within_server:
        settings.say("run.shard_servers", 1, setting)


def _say_offload(settings: Settings, setting: Setting) -> None:
    settings.say("layout.parameter_offload", "cpu", setting)
    settings.say("layout.optimizer_offload", "cpu", setting)


def _say_fsdp(settings: Settings, prefix: str) -> None:
    """State what the fields of FSDP's plugin say, with and without their own ``fsdp_``."""

    def named(key: str) -> tuple[str, ...]:
        plain = (f"{prefix}{key}",) if prefix else ()
        return (f"{prefix}fsdp_{key}", *plain)

    strategies = (named("reshard_after_forward"), named("sharding_strategy"))
    for setting in filter(None, [settings.take(*keys) for keys in strategies]):
        word = str(setting.value).strip("'\"").lower()
        if word in _STRATEGIES:
            _say_strategy(settings, word, setting)
            break
        rule = f"must be one of {', '.join(_STRATEGIES)}"
        settings.problems.append(f"{setting.place}: {rule}, got {word[:60]!r}")
    _say_checkpoints(settings, *named("activation_checkpointing"))
    for keys in (named("offload_params"), named("cpu_offload")):
        if settings.flag(*keys):
            _say_offload(settings, settings.at(*keys))
    if settings.flag(*named("activation_checkpointing_offload")):
        at = settings.at(*named("activation_checkpointing_offload"))
        settings.problems.append(f"{at.place}: inputs of layers in host memory are not modelled")
    if settings.flag(f"{prefix}xla"):
        at = settings.found[f"{prefix}xla"]
        settings.problems.append(f"{at.place}: FSDP of XLA is not read")


def read_accelerate(settings: Settings, kind: str = "accelerate configuration") -> Reading:
    """State what accelerate's configuration says; FSDP and DeepSpeed are sections of it.

    Options of ``accelerate launch`` are the same without their section.
    """
    sectioned = kind == "accelerate configuration"
    if sectioned:
        settings.whole("cluster.gpus", "num_processes")
        settings.whole("run.nodes", "num_machines")
    section = "deepspeed_config." if sectioned else ""
    steps = ("gradient_accumulation_steps", "deepspeed_config.gradient_accumulation_steps")
    settings.whole("run.accumulation", *steps)
    settings.word(
        "training.precision",
        {"bf16": "bf16", "fp16": "fp16", "no": "fp32", "fp8": "fp8"},
        "mixed_precision",
    )
    software: tuple[str, ...] = ()
    settings.take("config_file")
    strategy = settings.take("distributed_type")
    word = "" if strategy is None else str(strategy.value).upper()
    if word == "DEEPSPEED" or settings.flag("use_deepspeed"):
        say_zero(settings, section)
        software = ("deepspeed",)
    elif word == "FSDP" or settings.flag("use_fsdp"):
        _say_fsdp(settings, "fsdp_config." if sectioned else "")
        settings.usually("layout.sharding", "zero3", "strategy of FSDP not said: full_shard")
        if settings.value_of("layout.sharding") != "ddp":
            software = _by_fsdp(settings)
    elif word == "MEGATRON_LM" or settings.flag("use_megatron_lm"):
        at = strategy or settings.found["use_megatron_lm"]
        settings.problems.append(f"{at.place}: Megatron-LM under accelerate is not read")
    elif strategy is not None and word.startswith("MULTI_"):
        settings.say("layout.sharding", "ddp", strategy)
    _degrees(settings)
    return settings.reading(
        kind, idle_in("accelerate"), software=software, otherwise=("plain-ddp",)
    )


def _by_fsdp(settings: Settings) -> tuple[str, ...]:
    compiler = settings.take("dynamo_config.dynamo_backend", "dynamo_backend")
    compiled = compiler is not None and str(compiler.value).upper() == "INDUCTOR"
    return _fsdp_software(compiled)


def _fsdp_software(compiled: bool | None) -> tuple[str, ...]:
    """FSDP around transformers' modules; `compiled`: None where the file cannot say."""
    eager, other = "torch-fsdp", "torch-fsdp-compiled"
    return (eager, other) if compiled is None else (other,) if compiled else (eager,)


def _degrees(settings: Settings) -> None:
    """Degrees of accelerate's own parallelism."""
    names = {
        "tp": "layout.tp",
        "cp": "layout.cp",
        "dp_replicate": "run.shard_replicas",
        "dp_shard": "run.shard_degree",
    }
    for key in list(settings.found):
        if degree := _DEGREE.fullmatch(key):
            settings.whole(names[degree[1]], key)
