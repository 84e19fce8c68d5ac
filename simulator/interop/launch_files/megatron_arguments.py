"""Megatron's arguments, whether as flags of Megatron-LM or as fields of a recipe.

Field ``a_b`` of a recipe (Megatron-Bridge, NeMo, Primus) is flag ``--a-b``; names and defaults as
in NVIDIA/Megatron-LM@000c4ac2, megatron/training/arguments.py, and
NVIDIA-NeMo/Megatron-Bridge@067f987d.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from simulator.interop.launch_files.deepspeed_json import say_zero
from simulator.interop.launch_files.idle_keys import idle_in
from simulator.interop.launch_files.megatron_shape import shape_of
from simulator.interop.launch_files.settings import Reading, Setting, Settings, Unset, as_whole
from simulator.layout.stage_words import read_stages
from simulator.workload import presets
from simulator.workload.recipe import LARGEST

__all__ = ["MEGATRON_KEYS", "adapted_matrices", "read_megatron", "say_recomputation"]

_DEGREES = {
    "layout.tp": ("tensor_model_parallel_size",),
    "layout.pp": ("pipeline_model_parallel_size",),
    "layout.cp": ("context_parallel_size",),
    "layout.ep": ("expert_model_parallel_size", "moe_expert_parallel_size"),
    "layout.etp": ("expert_tensor_parallel_size",),
    "layout.micro_batch": ("micro_batch_size",),
    "training.global_batch": ("global_batch_size", "train_batch_size"),
    "training.sequence_length": ("seq_length", "encoder_seq_length", "max_sequence_length"),
    "run.steps": ("train_iters", "max_steps"),
    "run.nodes": ("num_nodes", "trainer_num_nodes"),
    "run.per_node": ("devices", "gpus_per_node", "num_gpus_per_node"),
    "cluster.gpus": ("num_gpus", "world_size"),
    "training.lora_rank": ("dim", "lora_r", "adapter_dim"),
}
"""Field -> keys that give it as a whole number."""

_MOST_SAMPLES = 10**12
"""Sequences of a whole run: of 4,096 tokens each, a thousand times what is trained today."""

_CP_KINDS = {
    "p2p": "ring", "all_gather": "all_gather", "a2a": "all_to_all", "a2a+p2p": "hierarchical",
    "megatron_cp_algo": "ring", "ulysses_cp_algo": "all_to_all", "hybrid_cp_algo": "hierarchical",
}  # fmt: skip
_DISPATCHERS = {
    "alltoall": "alltoall",
    "allgather": "allgather",
    "flex": "deepep",
    "alltoall_seq": "alltoall",
}
_OPTIMIZERS = {
    "adam": "adamw",
    "adamw": "adamw",
    "distributed_fused_adam": "adamw",
    "sgd": "sgd",
    "muon": "muon",
    "dist_muon": "muon",
}
_SHARDINGS = {
    "no_shard": "ddp",
    "optim": "zero1",
    "optim_grads": "zero2",
    "optim_grads_params": "zero3",
}
_RECIPES = {
    "delayed": "fp8",
    "tensorwise": "fp8_current",
    "blockwise": "fp8_blockwise",
    "mxfp8": "mxfp8",
}
_DTYPES = {
    "fp32": "fp32",
    "float32": "fp32",
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp16": "fp16",
    "torch.float32": "fp32",
    "torch.bfloat16": "bf16",
    "fp8": None,
}
_MODULES = {
    "core_attn": "core_attn", "layernorm": "norm", "mlp": "mlp", "moe_act": "moe_act", "moe": "moe",
    "shared_experts": "shared_experts", "mla_up_proj": "mla_up_proj",
}  # fmt: skip
_PRECISIONS = {
    "bf16": "bf16", "bf16_mixed": "bf16", "bf16-mixed": "bf16", "32": "fp32",
    "fp16": "fp16", "16-mixed": "fp16", "fp16_mixed": "fp16",
    "fp8_cs": "fp8_current", "fp8_ds": "fp8", "fp8_mx": "mxfp8", "fp8_sc": "fp8_blockwise",
    "nvfp4": "nvfp4", "bf16_with_fp8_delayed_scaling_mixed": "fp8",
    "bf16_with_fp8_current_scaling_mixed": "fp8_current", "bf16_with_mxfp8_mixed": "mxfp8",
    "bf16_with_fp8_subchannel_scaling_mixed": "fp8_blockwise", "bf16_with_nvfp4_mixed": "nvfp4",
}  # fmt: skip
_TARGETS = {
    "linear_qkv": ("q", "k", "v"), "linear_proj": ("o",), "linear_fc1": ("gate", "up"),
    "linear_fc2": ("down",),
}  # fmt: skip

MEGATRON_KEYS = frozenset(key for keys in _DEGREES.values() for key in keys) - {
    "dim",
    "devices",
    "train_batch_size",
    "max_steps",
    "world_size",
    "num_gpus",
}
"""Keys by which a command or a recipe is known as Megatron's."""


def read_megatron(settings: Settings, *, flags: bool, kind: str) -> Reading:
    """State what Megatron's arguments say.

    `flags` says that what is not there is off, as with Megatron-LM's own command; recipes have
    values of their own for what they do not name.
    """
    for name, keys in _DEGREES.items():
        settings.whole(name, *keys)
    settings.whole("run.samples", "train_samples", most=_MOST_SAMPLES)
    tokens = settings.whole("", "train_tokens", most=10**17)
    if tokens is not None:
        settings.say("training.tokens", float(tokens), settings.found["train_tokens"])
    _growing_batch(settings)
    shape = shape_of(settings)
    _pipeline(settings, shape.layers)
    _context(settings)
    _experts(settings, flags)
    by_deepspeed = _of_deepspeed(settings)
    if not by_deepspeed:
        _states(settings, flags)
    say_recomputation(settings)
    _precision(settings, flags)
    _adapters(settings)
    on = settings.flag("sequence_parallel")
    tp = settings.value_of("layout.tp")
    if on is not None or (flags and (tp or 1) > 1):
        at = settings.found.get("sequence_parallel") or settings.found["tensor_model_parallel_size"]
        settings.say("layout.sequence_parallel", bool(on) and (tp is None or tp > 1), at)
    if shape.architecture is None or not shape.architecture.vocabulary:
        _recipe_model(settings)
    found = settings.found
    overlapped = "overlap_grad_reduce" in found
    own = ("megatron-core",) if overlapped else ("megatron-core-defaults", "megatron-core")
    if by_deepspeed and (settings.value_of("layout.ep") or 1) == 1:
        plain = settings.value_of("layout.sharding") in (None, "ddp", "zero1")
        piped = plain and (settings.value_of("layout.cp") or 1) == 1
        own = (*(("megatron-deepspeed-2023",) if piped else ()), "deepspeed", *own)
    return settings.reading(
        kind,
        idle_in("megatron"),
        software=(*(own if flags else ("megatron-bridge",)), "primus", "mindspeed"),
        architecture=shape.architecture,
        notes=shape.notes,
    )


def _growing_batch(settings: Settings) -> None:
    """A batch that grows over the run: the last one is that of nearly all of it.

    ``0:384 200B:768 400B:1152``: sequences from so many tokens on (megatron/core/
    num_microbatches_calculator.py); ``32 32 5859375`` of older releases ramps up to
    ``--global-batch-size`` over so many samples.
    """
    steps = settings.take("step_batch_size_schedule")
    ramp = settings.take("rampup_batch_size")
    if steps is not None:
        text = str(steps.value).strip("'\"[] ")
        found = re.fullmatch(r"0:\d{1,9}(?:[\s,]+\d[\d.]{0,15}[KMBT]?:\d{1,9})*", text)
        sizes = [int(size) for size in re.findall(r":(\d{1,9})", text)]
        if found is None or not 0 < min(sizes) <= max(sizes) <= LARGEST:
            rule = "must give sequences by tokens, 0:384 200B:768"
            settings.problems.append(f"{steps.place}: {rule}, got {text[:80]!r}")
            return
        settings.say("training.global_batch", sizes[-1], steps)
        if len(sizes) > 1:
            grown = ", ".join(map(str, sizes[:-1]))
            rule = f"steps are those of its last batch, {sizes[-1]}; it has {grown} before"
            settings.notes.append(f"{steps.place}: {rule}")
    elif ramp is not None:
        rule = "steps are those of the whole batch; the ramp before it is not counted"
        settings.notes.append(f"{ramp.place}: {rule}")


def _recipe_model(settings: Settings) -> None:
    """The zoo's model of a recipe: ``llama31_70b_pretrain_config``."""
    setting = settings.take("recipe", "model_recipe_name", "model")
    if setting is None:
        return
    said = str(setting.value).lower()
    stems = {
        re.sub(r"^([a-z]+)-(\d)", r"\1\2", name.replace(".", "")).replace("-", "_"): name
        for name in presets.names()
    }
    alike = [stem for stem in stems if said == stem or said.startswith(f"{stem}_")]
    if alike:
        settings.say("model.name", stems[max(alike, key=len)], setting)
    elif re.fullmatch(r"[\w.-]{1,100}", said):
        settings.say("run.model", said, setting)


def _pipeline(settings: Settings, layers: int | None) -> None:
    """Chunks of every rank, however they are counted."""
    chunks = settings.whole(
        "layout.vpp", "virtual_pipeline_model_parallel_size", "num_virtual_stages_per_pipeline_rank"
    )
    pp = settings.value_of("layout.pp") or 1
    spelled = settings.take("pipeline_model_parallel_layout")
    if spelled is not None and isinstance(spelled.value, str):
        _stages(settings, spelled, pp, chunks)
    if chunks:
        return
    each = settings.whole("", "num_layers_per_virtual_pipeline_stage")
    if each is not None and layers:
        if layers % (pp * each):
            place = settings.found["num_layers_per_virtual_pipeline_stage"].place
            settings.problems.append(f"{place}: {each} x pp {pp} must divide {layers} layers")
        else:
            settings.say(
                "layout.vpp",
                layers // (pp * each),
                settings.found["num_layers_per_virtual_pipeline_stage"],
            )


def _stages(settings: Settings, spelled: Setting, pp: int, chunks: int | None) -> None:
    """Layers of every piece of the pipeline, spelled ``Et*15|(t*16|)*6t*15L``."""
    try:
        layers = read_stages(spelled.value.strip("'\" ").replace("\\", "")) or ()
    except ValueError as error:
        settings.problems.append(f"{spelled.place}: {error}")
        return
    if len(layers) % pp:
        rule = f"must name stages that pp {pp} divides, got {spelled.value!r}"
        settings.problems.append(f"{spelled.place}: {rule}")
        return
    settings.say("layout.stages", list(layers), spelled)
    if len(layers) > pp and not chunks:
        settings.say("layout.vpp", len(layers) // pp, spelled)


def _context(settings: Settings) -> None:
    ulysses = settings.whole("", "ds_sequence_parallel_size")
    if ulysses is not None and ulysses > 1:
        at = settings.found["ds_sequence_parallel_size"]
        settings.say("layout.cp", ulysses, at)
        settings.say("layout.cp_kind", "all_to_all", at)
    elif (settings.value_of("layout.cp") or 1) > 1:
        kind = settings.word("layout.cp_kind", _CP_KINDS, "cp_comm_type", "context_parallel_algo")
        group = settings.whole("", "ulysses_degree_in_cp")
        if kind == "hierarchical" and group:
            settings.say("layout.cp_a2a", group, settings.found["ulysses_degree_in_cp"])
        sizes = settings.take("hierarchical_context_parallel_sizes")
        group = (
            as_whole(str(sizes.value).strip("[]").replace(",", " ").split()[:1][0])
            if sizes and str(sizes.value).split()
            else None
        )
        if kind == "hierarchical" and sizes and group:
            settings.say("layout.cp_a2a", group, sizes)
    else:
        settings.take("cp_comm_type", "context_parallel_algo", "ulysses_degree_in_cp")
        settings.take("hierarchical_context_parallel_sizes")
    mapped = settings.take("use_tp_pp_dp_mapping")
    if mapped is not None and str(mapped.value).lower() != "false":
        settings.say("layout.rank_order", "tp-cp-pp-dp", mapped)


def _experts(settings: Settings, flags: bool) -> None:
    settings.word("layout.dispatcher", _DISPATCHERS, "moe_token_dispatcher_type")
    tp, ranks = settings.value_of("layout.tp"), settings.found.get("num_experts")
    if flags and tp and ranks and settings.value_of("layout.etp") is None:
        settings.say("layout.etp", tp, settings.found["tensor_model_parallel_size"])
    factor = settings.take("moe_expert_capacity_factor")
    if factor is not None:
        try:
            settings.say("training.moe_capacity_factor", float(factor.value), factor)
        except (TypeError, ValueError):
            settings.problems.append(f"{factor.place}: must be a number, got {factor.value!r}")
    if settings.flag("moe_pad_expert_input_to_capacity"):
        settings.say(
            "training.moe_pads_to_capacity",
            True,
            settings.found["moe_pad_expert_input_to_capacity"],
        )


def _states(settings: Settings, flags: bool) -> None:
    """Sharding, its groups, and what waits in host memory."""
    fully = settings.flag("use_megatron_fsdp", "use_custom_fsdp")
    strategy = settings.word("", _SHARDINGS, "data_parallel_sharding_strategy")
    shared = settings.flag("use_distributed_optimizer")
    torch = settings.flag("use_torch_fsdp2")
    found = settings.found
    if fully and strategy:
        settings.say("layout.sharding", strategy, found["data_parallel_sharding_strategy"])
    elif torch:
        settings.say("layout.sharding", "zero3", found["use_torch_fsdp2"])
    elif shared is not None:
        settings.say(
            "layout.sharding", "zero1" if shared else "ddp", found["use_distributed_optimizer"]
        )
    elif flags and found:
        some = found.get("tensor_model_parallel_size") or next(iter(found.values()))
        settings.say("layout.sharding", "ddp", some)
    settings.word("layout.schedule", {"dualpipev": "dualpipe_v"}, "schedules_method")
    settings.whole("run.shard_instances", "num_distributed_optimizer_instances")
    settings.whole("layout.offload_layers", "cpu_offloading_num_layers", least=0)
    if settings.flag("optimizer_cpu_offload"):
        settings.say("layout.optimizer_offload", "cpu", found["optimizer_cpu_offload"])
        share = settings.take("optimizer_offload_fraction")
        if share is not None and re.fullmatch(r"[01](\.\d{1,9})?", str(share.value)):
            settings.say("training.optimizer_offload_fraction", float(share.value), share)
    settings.take("optimizer_offload_fraction", "cpu_offloading")


def _of_deepspeed(settings: Settings) -> bool:
    """Sharding as Megatron-DeepSpeed says it: by ``--zero-stage``, or in DeepSpeed's own file.

    Names as in megatron/arguments.py of deepspeedai/Megatron-DeepSpeed@4efb479d.
    """
    if "deepspeed_config" not in settings.found and not settings.flag("deepspeed"):
        return False
    settings.take("deepspeed", "deepspeed_config", "no_pipeline_parallel")
    say_zero(settings, "")
    if settings.flag("cpu_optimizer"):
        settings.say("layout.optimizer_offload", "cpu", settings.found["cpu_optimizer"])
    return True


def say_recomputation(settings: Settings) -> None:
    """State what is computed again: granularity, method, layers, modules."""
    kind = settings.word(
        "layout.recompute",
        {w: w for w in ("full", "selective")} | {"none": "none", "null": "none"},
        "recompute_granularity",
        "activations_checkpoint_granularity",
    )
    if kind is None and settings.flag("recompute_activations"):
        settings.say("layout.recompute", "selective", settings.found["recompute_activations"])
    elif kind is None and settings.flag("checkpoint_activations"):
        settings.say("layout.recompute", "full", settings.found["checkpoint_activations"])
    settings.take("checkpoint_num_layers", "deepspeed_activation_checkpointing")
    method = settings.take("recompute_method", "activations_checkpoint_method")
    count = settings.whole("", "recompute_num_layers", "activations_checkpoint_num_layers")
    modules = settings.take("recompute_modules")
    if kind == "full" and method and str(method.value) == "block" and count:
        settings.say(
            "layout.recompute_layers", count * (settings.value_of("layout.vpp") or 1), method
        )
    own = {"norm": "recompute_norm", "mlp_act": "recompute_activation_function"}  # MindSpeed's
    named = [name for name, key in own.items() if settings.flag(key)]
    if named and kind == "full":
        keys = " and ".join(own[name] for name in named)
        rule = "what it runs again in layers that are kept is not counted"
        settings.notes.append(f"{settings.found[own[named[0]]].place}: {keys}: {rule}")
    elif named:
        at = settings.found[own[named[0]]]
        settings.say("layout.recompute", "selective", at)
        attention = ["core_attn"] if kind == "selective" else []
        settings.say("layout.recompute_modules", "+".join([*attention, *named]), at)
    if kind != "selective" or modules is None:
        return
    words = re.sub(r"[\[\],'\"]", " ", str(modules.value)).split()
    if unknown := [word for word in words if word not in _MODULES]:
        settings.problems.append(
            f"{modules.place}: must be among {', '.join(_MODULES)}, got {unknown[0]!r}"
        )
    elif words:
        settings.say(
            "layout.recompute_modules",
            "+".join(dict.fromkeys(_MODULES[word] for word in words)),
            modules,
        )


def _precision(settings: Settings, flags: bool) -> None:
    found = settings.found
    half = {"bf16": settings.flag("bf16"), "fp16": settings.flag("fp16")}
    settings.word(
        "training.precision", _PRECISIONS, "precision", "precision_config", "mixed_precision"
    )
    fp8 = settings.take("fp8_format", "fp8")
    fp4 = settings.take("fp4_format", "fp4")
    recipe = settings.word("", _RECIPES, "fp8_recipe")
    stated = settings.value_of("training.precision")
    if fp4 is not None and str(fp4.value).lower() not in ("none", "null", "false"):
        settings.say("training.precision", "nvfp4", fp4)
    elif fp8 is not None and str(fp8.value).lower() not in ("none", "null", "false"):
        settings.say("training.precision", recipe or "fp8", fp8)
    elif stated is None:
        for word, on in half.items():
            if on:
                settings.say("training.precision", word, found[word])
    settings.take("fp4_recipe")
    if settings.flag("fp8_param_gather", "fp8_param"):
        settings.say(
            "training.fp8_weights", True, found.get("fp8_param_gather") or found["fp8_param"]
        )
    _types(settings, flags, half)
    settings.word("training.optimizer", _OPTIMIZERS, "optimizer")


def _types(settings: Settings, flags: bool, half: dict[str, bool | None]) -> None:
    """Types of gradients and moments."""
    found = settings.found
    low, full = (
        settings.flag("grad_reduce_in_bf16"),
        settings.flag("accumulate_allreduce_grads_in_fp32", "grad_reduce_in_fp32"),
    )
    key = next(
        (
            k
            for k in (
                "grad_reduce_in_bf16",
                "accumulate_allreduce_grads_in_fp32",
                "grad_reduce_in_fp32",
                "bf16",
            )
            if k in found
        ),
        "",
    )
    if low or (full is False and (half["bf16"] or not flags)):
        settings.say("training.gradient_dtype", "bf16", found[key])
        settings.say("training.reduce_dtype", "bf16", found[key])
    elif full or (flags and half["bf16"]):
        settings.say("training.gradient_dtype", "fp32", found[key])
        settings.say("training.reduce_dtype", "fp32", found[key])
    if settings.flag("use_precision_aware_optimizer"):
        first = settings.word("", _DTYPES, "exp_avg_dtype")
        if first == "bf16":
            settings.say("training.moment_dtype", "bf16", found["exp_avg_dtype"])


def adapted_matrices(modules: Iterable[str]) -> list[str]:
    """Matrices of a block by Megatron's modules.

    >>> adapted_matrices(["linear_qkv", "linear_proj"])
    ['q', 'k', 'v', 'o']
    """
    return [name for word in modules for name in _TARGETS.get(word, ())]


def _adapters(settings: Settings) -> None:
    kind = settings.take("peft")  # of a recipe of Megatron-Bridge, which has a rank of its own
    said = kind is not None and str(kind.value).lower() in ("lora", "dora")
    if kind is not None and said and settings.value_of("training.lora_rank") is None:
        why = "names adapters, but not their rank"
        settings.unset.append(Unset("training.lora_rank", str(kind.value), kind.place, why))
    setting = settings.take("target_modules", "lora_target_modules")
    if setting is None:
        return
    names = adapted_matrices(re.sub(r"[\[\],'\"]", " ", str(setting.value)).split())
    if names:
        settings.say("training.lora_targets", names, setting)
