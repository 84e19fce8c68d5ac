"""Recipes of torchtune, read: their YAML, and ``tune run RECIPE --config FILE KEY=VALUE``.

Names, defaults and what the recipes refuse as in pytorch/torchtune@bd2a0fc7: recipes/{full,lora}_
finetune_{single_device,distributed}.py, recipes/configs, torchtune/models, torchtune/modules/loss.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulator.errors import problem
from simulator.interop.dialects.model_names import say_teacher
from simulator.interop.dialects.settings import (
    Place,
    Reading,
    Setting,
    Settings,
    Unset,
    idle_in,
)
from simulator.interop.dialects.training_ways import WAYS, say_pairs
from simulator.workload import presets

_OPTIMIZERS = {
    "torch.optim.adamw": "adamw", "torch.optim.adam": "adamw", "torch.optim.sgd": "sgd",
    "bitsandbytes.optim.adamw": "adamw", "bitsandbytes.optim.pagedadamw": "adamw",
    "bitsandbytes.optim.adamw8bit": "adamw_8bit",
    "bitsandbytes.optim.pagedadamw8bit": "adamw_8bit",
    "torchao.optim.adamw8bit": "adamw_8bit",
    "torchao.prototype.low_bit_optim.adamw8bit": "adamw_8bit",
}  # fmt: skip
_CHUNKS = {
    "torchtune.modules.loss.linearcrossentropyloss": 8,
    "torchtune.modules.loss.cewithchunkedoutputloss": 8,
    "torch.nn.crossentropyloss": 1,
}
"""Losses, and in how many pieces they are computed where ``num_output_chunks`` is not said."""
_PAIRED = ("torchtune.rlhf.loss.dpoloss", "torchtune.rlhf.loss.rsoloss")
_TARGETS = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "output_proj": "o"}
_ROTATIONS = {"allgather": "all_gather", "alltoall": "ring"}
_RECIPES = (
    *("full_finetune", "lora_finetune", "full_dpo", "lora_dpo"),
    *("knowledge_distillation", "qat", "qat_lora_finetune"),
)
_SPLITS = (
    *("tensor_parallel_dim", "context_parallel_dim", "data_parallel_shard_dim"),
    *("data_parallel_replicate_dim", "fsdp_cpu_offload"),
)
_DISTRIBUTED = (*_SPLITS, "fsdp_reshard_after_forward", "custom_sharded_layers")
"""Keys that the distributed recipes alone read."""
_REFUSED = {
    "policy_model._component_": "learning from rewards is not modelled: it generates text",
    "ppo_epochs": "learning from rewards is not modelled: it generates text",
    "orchestration.num_inference_workers": "learning from rewards is not modelled: it generates",
    "grpo_samples": "learning from rewards is not modelled: it generates text",
    "resize_token_embeddings": "a vocabulary of another size is: --from config.json has it",
    "model.use_dora": "magnitudes of DoRA are not modelled",
    "model.apply_lora_to_output": "an adapter of the output head is not modelled",
}
"""Keys that ask, where they are on, for what no field of a scenario says."""


def is_torchtune(sections: Mapping[str, Any]) -> bool:
    """Whether a file's sections name what they build as torchtune's do."""
    return any(isinstance(part, Mapping) and "_component_" in part for part in sections.values())


def read_torchtune(settings: Settings, recipe: Setting | None = None) -> Reading:
    """State what a configuration says; `recipe` is what the command runs it with."""
    settings.resolve()
    for key, rule in _REFUSED.items():
        setting = settings.take(key)
        if setting is not None and str(setting.value).lower() not in ("none", "null", "false"):
            _refuse(settings, setting, rule)
    if "optimizer._component_" not in settings.found and not settings.problems:
        rule = f"must be there: this is a file {WAYS['nothing']}"
        settings.problems.append(f"{settings.path}: optimizer._component_: {rule}")
    settings.word("", {"cuda": "cuda"}, "device")
    settings.whole("layout.micro_batch", "batch_size")
    settings.whole("run.accumulation", "gradient_accumulation_steps")
    settings.whole("training.sequence_length", "tokenizer.max_seq_len")
    epochs, steps = settings.whole("", "epochs"), settings.whole("", "max_steps_per_epoch")
    if epochs and steps:
        settings.say("run.steps", epochs * steps, settings.found["max_steps_per_epoch"])
    _model(settings)
    _teacher(settings)
    _types(settings)
    _rounding(settings, recipe)
    _loss(settings)
    _recompute(settings)
    alone = _alone(settings, recipe)
    _layout(settings, recipe, alone)
    _packing(settings)
    compiled = settings.flag("compile")
    parts = any(key.startswith("compile.") for key in settings.found)
    if (inner := settings.flag("compile.model")) is not None or parts:
        compiled = inner is not False  # its default is true
    names = ("torchtitan", "torchtitan-eager")
    if alone:
        names = ("torchtune-2024", "torchtune-2024-eager")
    elif settings.value_of("layout.parameter_offload"):
        names = ("torch-fsdp-compiled", "torch-fsdp")
    return settings.reading("torchtune recipe", idle_in("torchtune"),
                            software=(names[0 if compiled else 1],))  # fmt: skip


def _refuse(settings: Settings, setting: Setting, rule: str) -> None:
    settings.problems.append(problem(str(setting.place), "", rule, setting.value))


def _model(settings: Settings) -> None:
    """The zoo's model of a builder, and its adapters: ``...models.llama2.lora_llama2_7b``."""
    builder = settings.take("model._component_")
    if builder is None:
        return
    name = str(builder.value).rpartition(".")[2]
    plain = name.removeprefix("qlora_").removeprefix("lora_")
    known = presets.named(plain) or presets.named(re.sub(r"(\d)_(\d+b)", r"\1.\2", plain))
    settings.say("model.name" if known else "run.model", known or plain, builder)
    words = settings.take("model.lora_attn_modules")
    if name == plain:
        for key in ("model.lora_rank", "model.lora_attn_modules", "model.quantize_base"):
            if key in settings.found:
                rule = f"must not be there: {plain} has no adapters, lora_{plain} has"
                _refuse(settings, settings.found[key], rule)
                settings.take(key)
        return
    if settings.whole("training.lora_rank", "model.lora_rank") is None:
        settings.say("training.lora_rank", 8, builder)
    targets = re.sub(r"[\[\],'\"]", " ", str(words.value)).split() if words is not None else []
    if words is None or not set(targets) <= set(_TARGETS):
        place = Place(settings.path, "model.lora_attn_modules") if words is None else words.place
        rule = f"must be a list of {', '.join(_TARGETS)}"
        settings.problems.append(problem(str(place), "", rule, words and words.value))
        return
    adapted = [_TARGETS[word] for word in targets]
    adapted += ["gate", "up", "down"] if settings.flag("model.apply_lora_to_mlp") else []
    settings.say("training.lora_targets", adapted, words)
    quantised = settings.flag("model.quantize_base")
    if quantised or (quantised is None and name.startswith("qlora_")):
        at = builder if quantised is None else settings.found["model.quantize_base"]
        settings.say("training.quantised_base", True, at)


def _teacher(settings: Settings) -> None:
    """The frozen model of a recipe of distillation, by its builder: ``models.llama3_1_8b``."""
    builder = settings.take("teacher_model._component_")
    if builder is not None:
        settings.take("kd_loss._component_", "kd_ratio")
        name = Setting(builder.key, str(builder.value).rpartition(".")[2], builder.place)
        say_teacher(settings, name)
        rule = "the pass of the teacher is not in this step: foreshard distil prices both"
        settings.notes.append(f"{builder.place}: {rule}")


def _types(settings: Settings) -> None:
    """One type for weights, gradients and moments, without fp32 copies; then the optimizer."""
    eight = settings.flag("enable_fp8_training")
    if eight:
        settings.word("", {"tensorwise": "fp8_current"}, "fp8_recipe_name")
        settings.say("training.precision", "fp8_current", settings.found["enable_fp8_training"])
    settings.take("fp8_recipe_name")
    name = "" if eight else "training.precision"
    dtype = settings.word(name, {"bf16": "bf16", "fp32": "fp32"}, "dtype")
    optimizer = settings.word("training.optimizer", _OPTIMIZERS, "optimizer._component_")
    if dtype == "bf16":
        at = settings.found["dtype"]
        settings.say("training.master_weights", False, at)
        settings.say("training.gradient_dtype", "bf16", at)
        settings.say("training.reduce_dtype", "bf16", at)
        if optimizer in ("adamw", "sgd"):
            at = settings.found["optimizer._component_"]
            wide = "bitsandbytes" in str(at.value)  # its 32-bit states, whatever the weights are
            settings.say("training.moment_dtype", "fp32" if wide else "bf16", at)
    if optimizer is not None and "paged" in str(settings.at("optimizer._component_").value).lower():
        at = settings.found["optimizer._component_"]
        settings.notes.append(f"{at.place}: pages that wait on the host are counted on the GPU")
    momentum = settings.take("optimizer.momentum")
    if optimizer == "sgd" and (momentum is None or str(momentum.value) in ("0", "0.0", "None")):
        rule = "must have optimizer.momentum: sgd without it is not modelled"
        _refuse(settings, settings.found["optimizer._component_"], rule)
    if settings.flag("optimizer_in_bwd"):
        at = settings.found["optimizer_in_bwd"]
        settings.say("training.optimizer_in_backward", True, at)
        clipped = settings.found.get("clip_grad_norm")
        if (settings.value_of("run.accumulation") or 1) > 1:
            _refuse(settings, at, "must be false with gradient_accumulation_steps above 1")
        if clipped is not None and clipped.value not in (None, "null", "None"):
            _refuse(settings, at, "must be false with clip_grad_norm")


def _rounding(settings: Settings, recipe: Setting | None) -> None:
    """Quantisation-aware training, by its quantiser (torchtune/training/quantization.py).

    It takes every linear of a model (torchao's `_replace_linear_8da4w`), the output head with them
    where that has a table of its own (a `TiedLinear` is none); recipes with adapters take the
    adapted ones (`swap_lora_linear_with_qat`).
    """
    quantiser = settings.take("quantizer._component_")
    late = settings.take("fake_quant_after_n_steps")
    groups = settings.take("quantizer.groupsize")
    if quantiser is None or quantiser.value in (None, "null", "None"):
        return
    if recipe is not None and "qat" not in str(recipe.value):
        settings.notes.append(f"{quantiser.place}: {recipe.value} does not read it")
        return
    kind = str(quantiser.value).rpartition(".")[2].lower().removesuffix("moduleswap")
    if kind != "int8dynactint4weightqatquantizer":
        rule = "must be Int8DynActInt4WeightQATQuantizer: what others round is not modelled"
        _refuse(settings, quantiser, rule)
        return
    settings.say("training.fake_quantised_weights", "detached_scales", quantiser)
    settings.say("training.fake_quantised_inputs", True, quantiser)
    if not settings.value_of("training.lora_rank"):
        name = settings.value_of("model.name")
        untied = name is None or not presets.load(str(name)).tied_embeddings
        settings.say("training.fake_quantised_head", untied, quantiser)
        if name is None:
            told = "the head is counted as rounded, as one with a table of its own is"
            settings.notes.append(f"{quantiser.place}: {told}")
    if groups is not None:
        settings.notes.append(f"{groups.place}: the size of a group changes next to nothing")
    if late is not None and late.value not in (None, "null", "None"):
        settings.notes.append(f"{late.place}: steps before it, without rounding, are shorter")


def _loss(settings: Settings) -> None:
    """Pieces of head and loss, or pairs of answers beside a reference (recipes/*_dpo_*.py)."""
    component = settings.found.get("loss._component_")
    if component is not None and str(component.value).lower() in _PAIRED:
        settings.take("loss._component_", "loss.beta", "loss.label_smoothing", "loss.loss_type")
        say_pairs(settings, component, reference=True)
        return
    usual = settings.word("", _CHUNKS, "loss._component_")
    if usual is None:
        settings.take("loss.num_output_chunks")
    elif settings.whole("training.loss_chunks", "loss.num_output_chunks") is None:
        settings.say("training.loss_chunks", usual, settings.found["loss._component_"])


def _recompute(settings: Settings) -> None:
    """All layers, or those that ``ac_mode`` names where checkpointing itself is off."""
    again = settings.flag("enable_activation_checkpointing")
    mode = settings.word("", {x: x for x in ("none", "full", "selective")}, "ac_mode")
    option = settings.take("ac_option")
    if mode is not None:
        at = settings.found["ac_mode"]
        if again:
            rule = "must not be there with enable_activation_checkpointing: neither then holds"
            _refuse(settings, at, rule)
        elif mode == "selective" and str(option and option.value) not in ("op", "1"):
            _refuse(settings, option or at, "must be op or 1: layers in turn are not modelled")
        else:
            whole = mode == "selective" and option is not None and str(option.value) == "1"
            settings.say("layout.recompute", "full" if whole else mode, at)
    elif again is not None:
        at = settings.found["enable_activation_checkpointing"]
        settings.say("layout.recompute", "full" if again else "none", at)
    if settings.flag("enable_activation_offloading"):
        at = settings.found["enable_activation_offloading"]
        if again:
            settings.say("run.offload_inputs", True, at)
        else:
            _refuse(settings, at, "must be false without enable_activation_checkpointing")
    if settings.flag("activation_offloading_use_streams") is False:
        at = settings.found["activation_offloading_use_streams"]
        settings.notes.append(f"{at.place}: offloading is counted beside the computation")


def _alone(settings: Settings, recipe: Setting | None) -> bool | None:
    """Whether a single device trains; None where neither command, name nor keys say it."""
    if recipe is not None:
        name = str(recipe.value).removesuffix(".py").rpartition("/")[2]
        end = next((x for x in ("single_device", "distributed") if name.endswith(f"_{x}")), "")
        kind = name.removesuffix(f"_{end}")
        adapted = bool(settings.value_of("training.lora_rank"))
        if kind not in _RECIPES or not end:
            rule = f"must be one of {', '.join(_RECIPES)}, _single_device or _distributed"
            _refuse(settings, recipe, rule)
        elif kind != "knowledge_distillation" and ("lora" in kind) != adapted:
            _refuse(settings, recipe, "must be of lora where model._component_ has adapters")
        return end == "single_device"
    name = Path(settings.path.rpartition(": ")[2]).stem
    if name.endswith(("single_device", "low_memory")):
        return True
    if any(key in settings.found for key in _DISTRIBUTED):
        return False
    why = "is not told; `tune run RECIPE --config FILE` in a script given too tells (ddp or zero3)"
    place = Place(settings.path, "recipe")
    settings.unset.append(Unset("layout.sharding", "single_device or distributed", place, why))
    return None


def _layout(settings: Settings, recipe: Setting | None, alone: bool | None) -> None:
    at = recipe or Setting("recipe", None, Place(settings.path, "recipe"))
    settings.say("layout.pp", 1, at)
    settings.say("layout.ep", 1, at)
    if alone:
        for key in _DISTRIBUTED:
            setting = settings.take(key)
            asks = setting is not None and str(setting.value) not in ("None", "False", "1", "-1")
            if setting is not None and asks and key in _SPLITS:
                _refuse(settings, setting, "must not be there: no recipe of one device reads it")
        settings.say("cluster.gpus", 1, at)
        for name in ("tp", "cp", "dp"):
            settings.say(f"layout.{name}", 1, at)
        settings.say("layout.sharding", "ddp", at)
        return
    tp = settings.whole("layout.tp", "tensor_parallel_dim") or 1
    cp = settings.whole("layout.cp", "context_parallel_dim") or 1
    for name, degree in (("layout.tp", tp), ("layout.cp", cp)):
        if settings.value_of(name) is None:
            settings.say(name, degree, at)
    plan = settings.take("tensor_parallel_plan._component_")
    if tp > 1:
        split = settings.found["tensor_parallel_dim"]
        if plan is None:
            _refuse(settings, split, "must be 1 without tensor_parallel_plan")
        settings.say("layout.sequence_parallel", True, plan or split)
    rotated = "context_parallel_rotate_method"
    if cp > 1 and settings.word("layout.cp_kind", _ROTATIONS, rotated) is None:
        settings.say("layout.cp_kind", "all_gather", settings.found["context_parallel_dim"])
    settings.take(rotated)
    if alone is False:
        _shards(settings, at, tp, cp)


def _shards(settings: Settings, at: Setting, tp: int, cp: int) -> None:
    """Groups that share everything, and how many of them there are."""
    replicas = settings.whole("run.shard_replicas", "data_parallel_replicate_dim") or 1
    shard, members = settings.found.get("data_parallel_shard_dim"), None
    if shard is not None and str(shard.value) == "-1":
        settings.take("data_parallel_shard_dim")  # all that the other degrees leave
    else:
        members = settings.whole("run.shard_degree", "data_parallel_shard_dim")
    if members and shard is not None:
        settings.say("layout.dp", replicas * members, shard)
        settings.say("cluster.gpus", math.prod((replicas, members, tp, cp)), shard)
    reshard = settings.flag("fsdp_reshard_after_forward")
    kept = settings.found["fsdp_reshard_after_forward"] if reshard is False else None
    if members == 1 and cp == 1 and shard is not None:
        settings.say("layout.sharding", "ddp", shard)
        if replicas > 1:
            _refuse(settings, shard, "must be above 1 or -1 with replicas, which nothing reduces")
    else:
        settings.say("layout.sharding", "zero2" if kept else "zero3", kept or shard or at)
    if settings.flag("fsdp_cpu_offload"):
        offload = settings.found["fsdp_cpu_offload"]
        settings.say("layout.parameter_offload", "cpu", offload)
        settings.say("layout.optimizer_offload", "cpu", offload)
    note = "a distributed recipe is counted as torchtitan's FSDP2 with the types of this file"
    settings.notes.append(f"{settings.path}: {note}")


def _packing(settings: Settings) -> None:
    if settings.flag("dataset.packed"):
        settings.say("training.batching", "packed", settings.found["dataset.packed"])
        return
    rule = "sequences that are not packed are counted as tokenizer.max_seq_len tokens each"
    settings.notes.append(f"{settings.path}: {rule}; --set training.lengths=[...] says theirs, with"
                          " training.batching=dynamic")  # fmt: skip
