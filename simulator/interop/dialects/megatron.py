"""Megatron's arguments, written and read: flags of Megatron-LM, fields of recipes built on it.

Argument ``a_b`` is flag ``--a-b`` of Megatron-LM and field ``a_b`` of a recipe (Megatron-Bridge,
NeMo, Primus). Names, meanings and defaults as in NVIDIA/Megatron-LM@000c4ac2,
megatron/training/arguments.py, NVIDIA-NeMo/Megatron-Bridge@067f987d and the user guide of
Megatron-FSDP. What no argument says stands in a comment under the command.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from simulator.cost.blocks.tensor_overlap import usable
from simulator.errors import problem
from simulator.interop.dialects.deepspeed import say_zero
from simulator.interop.dialects.megatron_deepspeed import in_words_of_core
from simulator.interop.dialects.megatron_model import CAPACITY, model_arguments, shape_of, unsaid
from simulator.interop.dialects.megatron_multimodal import is_multimodal, say_lengths, with_tower
from simulator.interop.dialects.model_names import zoo_model
from simulator.interop.dialects.settings import (
    SAVES,
    Reading,
    Setting,
    Settings,
    Unset,
    as_whole,
    idle_in,
)
from simulator.interop.dialects.table import (
    Word,
    as_flags,
    field_values,
    read_words,
    write_words,
)
from simulator.interop.dialects.torchrun import SAMPLE_STEPS, torchrun, unsaid_stashes, wrapped
from simulator.interop.dialects.training_ways import REINFORCEMENT, refuse_way, way_of
from simulator.layout.stages import read_stages, stages
from simulator.quoting import comment_line
from simulator.scenario import Scenario
from simulator.software.profile import Software
from simulator.workload import presets
from simulator.workload.architecture import Architecture
from simulator.workload.recipe import LARGEST, Recipe

Arguments = dict[str, Any]
"""Values by argument: true for a switch."""

# --- words ----------------------------------------------------------------------------------------

_PARALLEL = (
    Word("layout.tp", "tensor_model_parallel_size"),
    Word("layout.pp", "pipeline_model_parallel_size"),
)
_CONTEXT = (
    Word("layout.cp", "context_parallel_size", needs="layout.cp"),
    Word(
        "layout.cp_kind",
        "cp_comm_type context_parallel_algo",
        {"ring": "p2p", "all_gather": "all_gather", "all_to_all": "a2a", "hierarchical": "a2a+p2p"},
        {
            "megatron_cp_algo": "ring",
            "ulysses_cp_algo": "all_to_all",
            "hybrid_cp_algo": "hierarchical",
        },
        needs="layout.cp",
    ),
)
_ORDER = Word("layout.rank_order", "use_tp_pp_dp_mapping", on="tp-cp-pp-dp")
_EXPERTS = (
    Word("layout.ep", "expert_model_parallel_size moe_expert_parallel_size"),
    Word("layout.etp", "expert_tensor_parallel_size"),
    Word(
        "layout.dispatcher",
        "moe_token_dispatcher_type",
        {
            "alltoall": "alltoall",
            "allgather": "allgather",
            "deepep": {"moe_token_dispatcher_type": "flex", "moe_enable_deepep": True},
        },
        {"alltoall_seq": "alltoall"},
    ),
)
_BATCH = (
    Word("layout.micro_batch", "micro_batch_size"),
    Word("training.global_batch", "global_batch_size train_batch_size"),
    Word("training.sequence_length", "seq_length encoder_seq_length max_sequence_length"),
)
_SIZE_OF_RUN = (
    Word("run.steps", "train_iters max_steps"),
    Word("run.nodes", "num_nodes trainer_num_nodes"),
    Word("run.per_node", "devices gpus_per_node num_gpus_per_node"),
    Word("cluster.gpus", "num_gpus world_size"),
    Word("training.lora_rank", "dim lora_r adapter_dim"),
)
_STRATEGIES = {
    "ddp": "no_shard",
    "zero1": "optim",
    "zero2": "optim_grads",
    "zero3": "optim_grads_params",
}
"""Megatron-FSDP's words for what ranks share."""
_OPTIMIZER_OFFLOAD = (
    Word("layout.optimizer_offload", "optimizer_cpu_offload", on="cpu"),
    Word(
        "training.optimizer_offload_fraction",
        "optimizer_offload_fraction",
        needs="layout.optimizer_offload",
        real=True,
    ),
)
_OPTIMIZER = Word(
    "training.optimizer",
    "optimizer",
    {"sgd": "sgd", "muon": "muon"},
    {"adam": "adamw", "adamw": "adamw", "distributed_fused_adam": "adamw", "dist_muon": "muon"},
)
_FP8_WEIGHTS = Word("training.fp8_weights", "fp8_param_gather fp8_param", on=True)
_LOW_PRECISION: dict[str, Arguments] = {
    "fp8": {
        "fp8_format": "hybrid", "fp8_recipe": "delayed",
        "fp8_amax_history_len": 1024, "fp8_amax_compute_algo": "max",
    },
    "fp8_current": {"fp8_format": "hybrid", "fp8_recipe": "tensorwise"},
    "fp8_blockwise": {"fp8_format": "e4m3", "fp8_recipe": "blockwise"},
    "mxfp8": {"fp8_format": "e4m3", "fp8_recipe": "mxfp8"},
    "nvfp4": {"fp4_format": "e2m1", "fp4_recipe": "nvfp4"},
}  # fmt: skip
"""megatron/training/arguments.py of Megatron-Core 0.15: --fp8-recipe, --fp4-recipe."""
_MIXED = {
    "bf16": "bf16", "bf16_mixed": "bf16", "bf16-mixed": "bf16", "32": "fp32",
    "fp16": "fp16", "16-mixed": "fp16", "fp16_mixed": "fp16",
    "fp8_cs": "fp8_current", "fp8_ds": "fp8", "fp8_mx": "mxfp8", "fp8_sc": "fp8_blockwise",
    "nvfp4": "nvfp4", "bf16_with_fp8_delayed_scaling_mixed": "fp8",
    "bf16_with_fp8_current_scaling_mixed": "fp8_current", "bf16_with_mxfp8_mixed": "mxfp8",
    "bf16_with_fp8_subchannel_scaling_mixed": "fp8_blockwise", "bf16_with_nvfp4_mixed": "nvfp4",
}  # fmt: skip
"""Words of recipes for a precision."""
MODULES = {
    "core_attn": "core_attn", "layernorm": "norm", "mlp": "mlp", "moe_act": "moe_act", "moe": "moe",
    "shared_experts": "shared_experts", "mla_up_proj": "mla_up_proj",
}  # fmt: skip
"""Modules of selective recomputation -> ours."""
_OF_EXPERTS = ("mlp_act", "moe", "moe_act", "shared_experts")
"""Those that mean something to Megatron for a model with experts only."""
TARGETS = {
    "q": "linear_qkv", "k": "linear_qkv", "v": "linear_qkv", "o": "linear_proj",
    "gate": "linear_fc1", "up": "linear_fc1", "down": "linear_fc2",
}  # fmt: skip
"""Matrices with adapters -> the modules that hold them."""

MEGATRON_KEYS = {
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
    *("expert_model_parallel_size", "moe_expert_parallel_size", "expert_tensor_parallel_size"),
    *("micro_batch_size", "global_batch_size", "seq_length", "encoder_seq_length"),
    *("max_sequence_length", "train_iters", "num_nodes", "trainer_num_nodes", "gpus_per_node"),
    *("num_gpus_per_node", "lora_r", "adapter_dim"),
}
"""Keys by which a command or a recipe is known as Megatron's."""

# --- written --------------------------------------------------------------------------------------


def megatron_block(row: dict[str, Any], scenario: Scenario) -> str:
    """Write the command for pretrain_gpt.py, ready to run on mock data."""
    flags = as_flags([*megatron_arguments(row, scenario), _saves(scenario)])
    return "\n".join(
        [
            "# In a checkout of Megatron-LM. Yours to set: data and tokenizer (mock data here),"
            " learning rate, checkpoints.",
            *_environment(row, scenario.workload.recipe),
            wrapped(f"{torchrun(scenario.cluster)} pretrain_gpt.py", flags),
            *(comment_line(note) for note in megatron_notes(row, scenario)),
        ]
    )


def megatron_arguments(row: dict[str, Any], scenario: Scenario) -> list[Arguments]:
    """Arguments of the whole run in groups."""
    arch, recipe = scenario.workload.architecture, scenario.workload.recipe
    values = field_values(row, recipe)
    return [
        _parallel(row, arch, values),
        _pipeline(row, arch),
        write_words(_BATCH, values) | _length(recipe),
        _states(row, scenario.software),
        _recompute(row, scenario.software, arch),
        _offload(row, values) | _stashes(recipe, arch),
        _precision(recipe, scenario.software, values),
        _kernels(row, scenario),
        *model_arguments(arch, scenario.software, recipe),
        _stand_ins(arch, scenario.software),
    ]


def _saves(scenario: Scenario) -> Arguments:
    """Checkpoints so many steps apart; the folder is yours to set."""
    every, mode = scenario.run.checkpoints.every_steps, scenario.run.checkpoints.mode
    if every is None:
        return {}
    later = {"async_save": True} if mode == "async" else {}
    return {"save": "checkpoints", "save_interval": every, **later}


def _environment(row: dict[str, Any], recipe: Recipe) -> list[str]:
    lines = []
    if row["sharding"] in ("zero2", "zero3"):
        lines.append("unset CUDA_DEVICE_MAX_CONNECTIONS")
    elif row["tp"] > 1 or row["cp"] > 1:
        lines.append("export CUDA_DEVICE_MAX_CONNECTIONS=1  # not needed from Blackwell on")
    if recipe.precision == "tf32":
        lines.append("export TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1")
    return lines


def _parallel(row: dict[str, Any], arch: Architecture, values: dict[str, Any]) -> Arguments:
    arguments = write_words(_PARALLEL, values)
    if row["sequence_parallel"]:
        arguments["sequence_parallel"] = True
    arguments |= write_words(_CONTEXT, values)
    if row["cp"] > 1 and row["cp_kind"] == "hierarchical":
        rings = row["cp"] // row["cp_a2a"]
        arguments["hierarchical_context_parallel_sizes"] = [row["cp_a2a"], rings]
    if arch.is_moe:
        arguments |= write_words(_EXPERTS, values)
    return arguments | write_words([_ORDER], values)


def _pipeline(row: dict[str, Any], arch: Architecture) -> Arguments:
    pieces, count = row["pp"] * row["vpp"], row["global_batch"] // (row["dp"] * row["micro_batch"])
    group = {}
    if row["vpp"] > 1 and count % row["pp"]:
        size = count // max(count // row["pp"], 1)
        group = {"microbatch_group_size_per_virtual_pipeline_stage": size}
    if arch.layers % pieces or len(set(row["stages"])) > 1:
        return {"pipeline_model_parallel_layout": pipeline_layout(row, arch)} | group
    if row["vpp"] > 1:
        group["num_layers_per_virtual_pipeline_stage"] = arch.layers // pieces
    return group


def layers_by_stage(row: dict[str, Any], arch: Architecture) -> list[int]:
    """Layers of every (virtual) pipeline stage, in model order."""
    table = stages(
        pp=row["pp"],
        vpp=row["vpp"],
        micro_batches=row["pp"],
        layer_kinds=arch.layer_kinds,
        kinds=len(arch.blocks),
        splits=[row.get("stages", ())],
    )
    counts = table.blocks.sum(axis=1)
    piece = table.chunk * row["pp"] + table.rank
    return [int(counts[i]) for i in piece.argsort()]


def pipeline_layout(row: dict[str, Any], arch: Architecture) -> str:
    """Spell uneven stages as Megatron does: E embedding, t layer, L loss, stages split by ``|``.

    >>> from simulator.workload.presets import load
    >>> pipeline_layout({"pp": 8, "vpp": 1}, load("llama-3.1-405b"))
    'Et*15|(t*16|)*6t*15L'
    """
    counts = layers_by_stage(row, arch)
    layers = ["t" * count if count < 2 else f"t*{count}" for count in counts]
    runs = [(f"{stage}|", len(list(same))) for stage, same in groupby(layers[1:-1])]
    middle = "".join(stage if times == 1 else f"({stage})*{times}" for stage, times in runs)
    return f"E{layers[0]}|{middle}{layers[-1]}L"


def _length(recipe: Recipe) -> Arguments:
    if recipe.run_tokens is None:
        return {"train_iters": SAMPLE_STEPS}
    return {"train_samples": int(-(-recipe.run_tokens // recipe.sequence_length))}


def _states(row: dict[str, Any], software: Software) -> Arguments:
    """How optimizer states, gradients and parameters are shared, and what that hides behind."""
    shards, shared = row["dp"] * row["cp"], row["sharding"] != "ddp"
    arguments: Arguments = {"use_distributed_optimizer": True} if shared else {}
    if row["sharding"] in ("zero2", "zero3"):
        arguments |= {
            "use_megatron_fsdp": True,
            "data_parallel_sharding_strategy": _STRATEGIES[row["sharding"]],
            "no_gradient_accumulation_fusion": True,
            "init_model_with_meta_device": True,
            "ckpt_format": "fsdp_dtensor",
        }
    if shared and row["shard_group"] != shards:
        arguments["num_distributed_optimizer_instances"] = shards // row["shard_group"]
    if software.overlap.gradient_reduce and shards > 1:
        arguments["overlap_grad_reduce"] = True
        if software.overlap.parameter_gather and shared:
            arguments["overlap_param_gather"] = True
    return arguments


def _recompute(row: dict[str, Any], software: Software, arch: Architecture) -> Arguments:
    """Megatron's block method counts layers per virtual stage, the layout counts per rank."""
    kind, layers = row["recompute"], row["recompute_layers"]
    if kind == "none":
        return {}
    arguments: Arguments = {"recompute_granularity": kind}
    if kind == "selective":
        theirs = {ours: word for word, ours in MODULES.items()} | {"mlp_act": "moe_act"}
        modules = dict.fromkeys(
            theirs[name]
            for name in recomputed(row, software)
            if name in theirs and (name not in _OF_EXPERTS or arch.is_moe)
        )
        return arguments | ({"recompute_modules": list(modules)} if modules else {})
    method = "block" if layers else "uniform"
    count = -(-layers // row["vpp"]) if layers else 1
    return arguments | {"recompute_method": method, "recompute_num_layers": count}


def recomputed(row: dict[str, Any], software: Software) -> Sequence[str]:
    """Modules that selective recomputation names."""
    named: str = row["recompute_modules"]
    return named.split("+") if named else software.kernels.selective_modules


def _offload(row: dict[str, Any], values: dict[str, Any]) -> Arguments:
    """Activations of the first layers of the model, and optimizer states, in host memory."""
    count = row["offload_layers"]
    arguments = {"cpu_offloading_num_layers": count} if count else {}
    states = write_words(_OPTIMIZER_OFFLOAD, values)
    return arguments | states | ({"use_precision_aware_optimizer": True} if states else {})


def _stashes(recipe: Recipe, arch: Architecture) -> Arguments:
    """Compressed stashes: Megatron-Core stores the input of SwiGLU in fp8, and nothing else."""
    stash = recipe.stash_bytes
    gated = all(mlp.gated for mlp in arch.mlps)
    fp8 = stash is not None and stash.activation_input == 1.0 and gated
    return {"activation_func_fp8_input_store": True} if fp8 else {}


def _precision(recipe: Recipe, software: Software, values: dict[str, Any]) -> Arguments:
    half = {"fp16": "fp16", "fp32": "", "tf32": ""}.get(recipe.precision, "bf16")
    arguments: Arguments = {half: True} if half else {}
    arguments |= _LOW_PRECISION.get(recipe.precision, {}) | write_words([_FP8_WEIGHTS], values)
    if recipe.fp8_weights and recipe.precision == "mxfp8":
        arguments["reuse_grad_buf_for_mxfp8_param_ag"] = True
    if arguments and float(software.states.gradient) >= 4:
        arguments["accumulate_allreduce_grads_in_fp32"] = True
    elif half == "bf16":
        arguments["grad_reduce_in_bf16"] = True
    return arguments | write_words([_OPTIMIZER], values)


def _kernels(row: dict[str, Any], scenario: Scenario) -> Arguments:
    software = scenario.software
    overlap = usable(software.overlap, scenario.workload.recipe.precision)
    experts = software.overlap.expert and row["ep"] > 1 and _pairs_passes(row, software)
    kept = float(software.kernels.loss_bytes_per_logit or 0.0)
    loss = "te" if "loss" in software.kernels.fused else "native" if kept == _COMPILED_LOSS else ""
    switches = {
        "cross_entropy_loss_fusion": bool(loss),
        "tp_comm_overlap": overlap.tensor == "userbuffers" and row["sequence_parallel"],
        "overlap_moe_expert_parallel_comm": experts,
        "no_overlap_p2p_communication": row["vpp"] > 1 and not software.overlap.pipeline_send,
    }
    arguments: Arguments = {"attention_backend": software.kernels.attention}
    arguments |= {name: True for name, on in switches.items() if on}
    if loss:
        arguments["cross_entropy_fusion_impl"] = loss
    return arguments


def _pairs_passes(row: dict[str, Any], software: Software) -> bool:
    """Whether Megatron-LM takes --overlap-moe-expert-parallel-comm with this layout.

    megatron/core/transformer/transformer_config.py: chunks where there is a pipeline, experts not
    recomputed.
    """
    again = row["recompute"] == "full" or (
        row["recompute"] == "selective" and "moe" in recomputed(row, software)
    )
    return not again and (row["pp"] == 1 or row["vpp"] > 1)


def _stand_ins(arch: Architecture, software: Software) -> Arguments:
    """Mock data; the null tokenizer adds one token to the size that it is given."""
    masked = {} if software.input.mask_bytes else {"no_create_attention_mask_in_dataloader": True}
    return {
        **masked,
        "mock_data": True,
        "tokenizer_type": "NullTokenizer",
        "vocab_size": arch.vocabulary - 1,
        "lr": "1e-4",
        "log_interval": 1,
        "log_throughput": True,
    }


def megatron_notes(row: dict[str, Any], scenario: Scenario) -> list[str]:
    """What no flag says of the model and of the run."""
    arch, recipe, software = (
        scenario.workload.architecture, scenario.workload.recipe, scenario.software,
    )  # fmt: skip
    notes = []
    if software.overlap.expert and row["ep"] > 1 and not _pairs_passes(row, software):
        notes.append(
            "Megatron-LM hides no expert traffic with this recomputation, or a pipeline without"
            " chunks: the prediction does."
        )
    if arch.position == "rope":
        notes.append("Set --rotary-base (and its scaling) as the model's config.json has it.")
    if arch.position == "alibi":
        notes.append("Megatron-LM has no ALiBi: the command runs without positions.")
    if arch.blocks[0].parallel_residual:
        notes.append("Megatron-LM has no parallel residual: attention and MLP follow one another.")
    if missing := unsaid(arch):
        notes.append(f"These flags leave out of the model: {', '.join(missing)}.")
    if arch.mtp_layers:
        notes.append(
            f"{arch.mtp_layers} multi-token-prediction layer left out, as in the prediction."
        )
    return [*notes, *unsaid_stashes(recipe, [*_stashes(recipe, arch)])]


def megatron_unsaid(row: dict[str, Any], scenario: Scenario) -> dict[str, str]:
    """Fields of a layout that no flag says."""
    missing = {}
    if row["rank_order"] not in ("tp-cp-dp-pp", _ORDER.on):
        missing["rank_order"] = "Megatron-LM cannot order ranks so, its default is used."
    if row["recompute"] == "full" and row["recompute_layers"] % row["vpp"]:
        count = -(-row["recompute_layers"] // row["vpp"])
        missing["recompute_layers"] = (
            f"recomputed layers are counted per virtual stage: {count} x {row['vpp']} of a rank."
        )
    return missing


# --- read -----------------------------------------------------------------------------------------


_WAYS = {
    **dict.fromkeys(("perform_rl_step", "grpo_group_size", "langrl_env_config"), REINFORCEMENT),
    **dict.fromkeys(("export_kd_teacher_load", "kd_teacher_load", "teacher"), "distillation"),
}
_OTHER = ("vision_pretraining", "decoder_num_layers", "retro_add_retriever", "sound_model_type")
"""Arguments of programs that train another model than a decoder of text."""
_OTHER_MODELS = re.compile(r"pretrain_(?:t5|bert|ict|retro|vlm|vision|mimo|multimodal)")


def _refuse_programs(settings: Settings, program: str) -> None:
    """Refuse Megatron's programs that train otherwise, or another kind of model."""
    for key, way in _WAYS.items():
        setting = settings.take(key)
        if setting is not None and str(setting.value).lower() not in ("false", "none", "null"):
            refuse_way(settings, way, setting)
    stage = settings.found.get("stage")  # MindSpeed-LLM's
    if stage is not None and str(stage.value) in ("sft", "pt"):
        settings.take("stage")
    elif stage is not None and (way := way_of(str(stage.value))):
        refuse_way(settings, way, stage)
    other = _OTHER if is_multimodal(settings, program) else (*_OTHER, "decoder_seq_length")
    given = [settings.take(key) for key in other]
    marks = [s for s in given if s and str(s.value).lower() not in ("false", "none", "null")]
    if marks or _OTHER_MODELS.search(program):
        places = ", ".join(str(s.place) for s in marks) or f"{settings.path}: {program}"
        rule = "an encoder beside the decoder of text, with lengths and frozen parts of its own, is"
        settings.problems.append(f"{places}: {rule} not read: nothing is answered")


def read_megatron(settings: Settings, *, flags: bool, kind: str, program: str = "") -> Reading:
    """State what Megatron's arguments say.

    `flags` says that what is not there is off, as with Megatron-LM's own command; recipes have
    values of their own for what they do not name. `program` is the script that takes them.
    """
    _refuse_programs(settings, program)
    in_words_of_core(settings)
    multimodal = is_multimodal(settings, program)
    if multimodal:
        say_lengths(settings, program)
    read_words((*_PARALLEL, _CONTEXT[0], *_EXPERTS[:2], *_BATCH, *_SIZE_OF_RUN), settings)
    settings.whole(
        "run.samples", "train_samples", most=10**12
    )  # 4,096 tokens each: 1,000 x today's
    if flags and {"train_iters", "train_samples"} <= set(settings.found):
        rule = "stands beside --train-iters, which Megatron-LM refuses (validate_args)"
        settings.problems.append(f"{settings.found['train_samples'].place}: {rule}")
    settings.saves_every("save_interval")
    if settings.flag("async_save"):
        settings.say(SAVES, "async", settings.at("async_save"))
    elif flags or "async_save" in settings.taken:
        settings.waits_for_storage("saves without --async-save")
    tokens = settings.whole("", "train_tokens", most=10**17)
    if tokens is not None:
        settings.say("training.tokens", float(tokens), settings.at("train_tokens"))
    _growing_batch(settings)
    shape = shape_of(settings, flags=flags)
    if multimodal and shape.architecture is not None:
        shape = replace(shape, architecture=with_tower(shape.architecture, settings))
        settings.stated = [x for x in settings.stated if not x.field.startswith("size.")]
    _read_pipeline(settings, shape.layers)
    _read_context(settings)
    _read_experts(settings, flags)
    by_deepspeed = _of_deepspeed(settings)
    if not by_deepspeed:
        _read_states(settings, flags)
    say_recomputation(settings)
    _read_precision(settings, flags)
    _adapters(settings)
    _kernels_said(settings, flags)
    on = settings.flag("sequence_parallel")
    tp = settings.value_of("layout.tp")
    if on is not None or (flags and (tp or 1) > 1):
        at = settings.at("sequence_parallel", "tensor_model_parallel_size")
        split = (tp is None and not flags) or (tp or 1) > 1
        settings.say("layout.sequence_parallel", bool(on) and split, at)
    if shape.architecture is None or not shape.architecture.vocabulary:
        _recipe_model(settings)
    return settings.reading(
        kind,
        idle_in("megatron"),
        software=_software(settings, flags, by_deepspeed),
        architecture=shape.architecture,
        notes=shape.notes,
    )


def _software(settings: Settings, flags: bool, by_deepspeed: bool) -> tuple[str, ...]:
    """Profiles that do what the arguments ask for."""
    overlapped = _is_on(settings, "overlap_grad_reduce")
    own = ("megatron-core",) if overlapped else ("megatron-core-defaults", "megatron-core")
    if by_deepspeed and (settings.value_of("layout.ep") or 1) == 1:
        plain = settings.value_of("layout.sharding") in (None, "ddp", "zero1")
        piped = plain and (settings.value_of("layout.cp") or 1) == 1
        own = (*(("megatron-deepspeed-2023",) if piped else ()), "deepspeed", *own)
    return (*(own if flags else ("megatron-bridge",)), "primus", "mindspeed")


def _is_on(settings: Settings, key: str) -> bool:
    setting = settings.found.get(key)
    return setting is not None and str(setting.value).lower() not in ("false", "none", "null", "0")


_COMPILED_LOSS = 2.0 + 2 * 4.0
"""Bytes of a logit where native fusion hands on two fp32 tensors beside the 16-bit logits."""
_LOSS = {"native": "compiled", "te": "transformer_engine", "linear": "transformer_engine"}
_TURNED_OFF = {
    "gradient_accumulation_fusion": "software.fused_gradient_accumulation",
    "create_attention_mask_in_dataloader": "software.mask_in_dataloader",
    "overlap_p2p_comm": "software.overlap.pipeline_send",
}
_TURNS_OFF = {
    "no_gradient_accumulation_fusion": "software.fused_gradient_accumulation",
    "no_create_attention_mask_in_dataloader": "software.mask_in_dataloader",
    "no_overlap_p2p_communication": "software.overlap.pipeline_send",
}
"""Arguments that say of a kernel or an overlap that it is off, where profiles have it on."""


_ON_ASCEND = {"use_fused_rmsnorm", "use_fused_swiglu", "use_fused_rotary_pos_emb"}
"""Switches of MindSpeed for kernels of its own."""


def _kernels_said(settings: Settings, flags: bool) -> None:
    """What the arguments say of kernels and overlap otherwise than the software's profile.

    Only what is stated: an argument that is not there leaves what the profile counts with, but for
    what Megatron-LM does only where its flag asks: gathers of parameters beside compute
    (``--overlap-param-gather``) and a loss of fewer kernels (``--cross-entropy-loss-fusion``).
    """
    multiple = settings.whole("", "make_vocab_size_divisible_by", most=10**6)
    if multiple:
        at = settings.found["make_vocab_size_divisible_by"]
        settings.say("software.kernels.pads_vocabulary_to", multiple, at)
    if _ON_ASCEND & set(settings.found):  # whose profile is of these kernels
        settings.taken |= {key for key in (*_ON_ASCEND, *_TURNS_OFF) if _is_on(settings, key)}
        settings.take("transformer_impl", "use_flash_attn", "lora_fusion")
        return
    for key, name in {**_TURNED_OFF, **_TURNS_OFF}.items():
        on = settings.flag(key)
        if on is not None and on == (key in _TURNS_OFF):
            settings.say(name, False, settings.found[key])
    gathers = settings.flag("overlap_param_gather")
    reduces = settings.flag("overlap_grad_reduce")
    if reduces and flags and not gathers:
        at = settings.at("overlap_param_gather", "overlap_grad_reduce")
        settings.say("software.overlap_param_gather", False, at)
    if settings.flag("tp_comm_overlap") and (settings.value_of("layout.tp") or 1) > 1:
        settings.say("software.tp_comm_overlap", True, settings.found["tp_comm_overlap"])
    if settings.flag("overlap_moe_expert_parallel_comm"):
        at = settings.found["overlap_moe_expert_parallel_comm"]
        settings.say("software.expert_overlap", True, at)
    bucket = settings.whole("", "ddp_bucket_size", most=10**13)
    if bucket:
        size = 2 if settings.value_of("training.reduce_dtype") == "bf16" else 4
        settings.say("software.bucket_bytes", size * bucket, settings.found["ddp_bucket_size"])
    fused = settings.flag("cross_entropy_loss_fusion")
    how = settings.take("cross_entropy_fusion_impl")
    if fused is not None or (flags and settings.found):
        impl = "native" if how is None else str(how.value).strip("'\"").lower()
        word = _LOSS.get(impl, "compiled") if fused else "none"
        at = settings.at("cross_entropy_loss_fusion", "bf16", *settings.found)
        settings.say("software.loss_fusion", word, at)
    attention = settings.take("attention_backend")
    settings.flag("use_flash_attn")
    said = "" if attention is None else str(attention.value).lower().rpartition(".")[2]
    if attention is not None and said in ("unfused", "local"):
        settings.say("software.flash_attention", False, attention)
    built = settings.take("transformer_impl")
    if built is not None and str(built.value) == "local":
        settings.say("software.transformer_impl", "local", built)
        if flags:  # its core attention is megatron/core/transformer/dot_product_attention.py
            settings.say("software.flash_attention", False, built)
    if settings.flag("deterministic_mode"):
        settings.say("software.deterministic", True, settings.found["deterministic_mode"])


def _growing_batch(settings: Settings) -> None:
    """A batch that grows over the run: the last one is that of nearly all of it.

    ``0:384 200B:768 400B:1152``: sequences from so many tokens on (megatron/core/
    num_microbatches_calculator.py); ``32 32 5859375`` of older releases ramps up to
    ``--global-batch-size`` over so many samples.
    """
    schedule = settings.take("step_batch_size_schedule")
    ramp = settings.take("rampup_batch_size")
    if schedule is not None:
        text = str(schedule.value).strip("'\"[] ")
        listed = re.fullmatch(r"0:\d{1,9}(?:[\s,]+\d[\d.]{0,15}[KMBT]?:\d{1,9})*", text)
        sizes = [int(size) for size in re.findall(r":(\d{1,9})", text)]
        if listed is None or not 0 < min(sizes) <= max(sizes) <= LARGEST:
            rule = "must give sequences by tokens, 0:384 200B:768"
            settings.problems.append(f"{schedule.place}: {rule}, got {text[:80]!r}")
            return
        settings.say("training.global_batch", sizes[-1], schedule)
        if len(sizes) > 1:
            grown = ", ".join(map(str, sizes[:-1]))
            rule = f"steps are those of its last batch, {sizes[-1]}; it has {grown} before"
            settings.notes.append(f"{schedule.place}: {rule}")
    elif ramp is not None:
        rule = "steps are those of the whole batch; the ramp before it is not counted"
        settings.notes.append(f"{ramp.place}: {rule}")


def _recipe_model(settings: Settings) -> None:
    """The zoo's model of a recipe: ``llama31_70b_pretrain_config``."""
    setting = settings.take("recipe", "model_recipe_name", "model")
    if setting is None:
        return
    said = str(setting.value).lower()
    stems = {stem_of(name): name for name in presets.names()}
    alike = [stem for stem in stems if said == stem or said.startswith(f"{stem}_")]
    if alike:
        settings.say("model.name", stems[max(alike, key=len)], setting)
    elif (known := zoo_model(re.sub(r"\.ya?ml$", "", said))) is not None:
        settings.say("model.name", known, setting)
    elif re.fullmatch(r"[\w.-]{1,100}", said):
        settings.say("run.model", said, setting)


def stem_of(name: str) -> str:
    """A model's name as recipes have it.

    >>> stem_of("llama-3.1-70b")
    'llama31_70b'
    """
    return re.sub(r"^([a-z]+)-(\d)", r"\1\2", name.replace(".", "")).replace("-", "_")


def _read_pipeline(settings: Settings, layers: int | None) -> None:
    """Chunks of every rank, however they are counted, and layers of every chunk."""
    chunks = settings.whole(
        "layout.vpp", "virtual_pipeline_model_parallel_size", "num_virtual_stages_per_pipeline_rank"
    )
    pp = settings.value_of("layout.pp") or 1
    spelled = settings.take("pipeline_model_parallel_layout")
    if spelled is not None and isinstance(spelled.value, str):
        _read_stages(settings, spelled, pp, chunks)
    key = "num_layers_per_virtual_pipeline_stage"
    size = None if chunks else settings.whole("", key)
    counted = [name for name in _COUNTED if layers and settings.flag(name)]
    whole = (layers or 0) + len(counted)
    if size and layers:
        if whole % (pp * size):
            rule = f"{size} x pp {pp} must divide {whole} layers"
            settings.problems.append(f"{settings.at(key).place}: {rule}")
            return
        chunks = whole // (pp * size)
        settings.say("layout.vpp", chunks, settings.at(key))
    if layers and pp > 1:
        _deal_unevenly(settings, layers, pp, chunks or 1, counted)


_COUNTED = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
"""Switches by which the embedding, or the output head, counts as a layer of its stage."""
_ENDS = tuple(
    (f"decoder_{end}_pipeline_num_layers", f"num_layers_in_{end}_pipeline_stage")
    for end in ("first", "last")
)


def _deal_unevenly(
    settings: Settings, layers: int, pp: int, chunks: int, counted: list[str]
) -> None:
    """Layers of stages whose ends are said, or whose ends have the embedding and the head.

    megatron/core/transformer/transformer_block.py: get_num_layers_to_build.
    """
    ends = [settings.whole("", *keys) for keys in _ENDS]
    keys = [*counted, *(key for keys in _ENDS for key in keys if key in settings.found)]
    if not counted and ends == [None, None]:
        return
    at = settings.at(*keys)
    left = pp - sum(end is not None for end in ends)
    rest = layers + len(counted) - sum(end or 0 for end in ends)
    middle = rest // left if left else 0
    first, last = (middle if end is None else end for end in ends)
    ranks = [first, *[middle] * (pp - 2), last]
    if rest < 0 or sum(ranks) != layers + len(counted) or any(size % chunks for size in ranks):
        rule = f"{layers} layers cannot be dealt so to pp {pp} with {chunks} chunks each"
        settings.problems.append(f"{at.place}: {rule}")
        return
    dealt = [size // chunks for _ in range(chunks) for size in ranks]
    dealt[0] -= _COUNTED[0] in counted
    dealt[-1] -= _COUNTED[1] in counted
    settings.say("layout.stages", dealt, at)


def _read_stages(settings: Settings, spelled: Setting, pp: int, chunks: int | None) -> None:
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


def _read_context(settings: Settings) -> None:
    ulysses = settings.whole("", "ds_sequence_parallel_size")
    if ulysses is not None and ulysses > 1:
        at = settings.at("ds_sequence_parallel_size")
        settings.say("layout.cp", ulysses, at)
        settings.say("layout.cp_kind", "all_to_all", at)
    read_words([_ORDER] if ulysses and ulysses > 1 else [_CONTEXT[1], _ORDER], settings)
    group = settings.whole("", "ulysses_degree_in_cp")
    sizes = settings.take("hierarchical_context_parallel_sizes")
    if settings.value_of("layout.cp_kind") != "hierarchical":
        return
    if group:
        settings.say("layout.cp_a2a", group, settings.at("ulysses_degree_in_cp"))
    listed = str(sizes.value).strip("[]").replace(",", " ").split() if sizes else []
    if sizes and listed and (first := as_whole(listed[0])):
        settings.say("layout.cp_a2a", first, sizes)


def _read_experts(settings: Settings, flags: bool) -> None:
    read_words((_EXPERTS[2], *CAPACITY), settings)
    experts_said = "num_experts" in settings.found and (settings.value_of("layout.ep") or 1) > 1
    if flags and experts_said and settings.value_of("layout.dispatcher") is None:
        why = "--moe-token-dispatcher-type not said: allgather is Megatron-Core's default"
        settings.usually("layout.dispatcher", "allgather", why)
    settings.take("moe_enable_deepep")  # beside the dispatcher flex, which is read as DeepEP
    tp, experts = settings.value_of("layout.tp"), settings.found.get("num_experts")
    if flags and tp and experts and settings.value_of("layout.etp") is None:
        settings.say("layout.etp", tp, settings.at("tensor_model_parallel_size"))
    if not flags and settings.flag("moe_permute_fusion"):
        settings.say("software.unpermute", "fused", settings.found["moe_permute_fusion"])
    if not flags or not experts:
        return
    grouped, at = settings.flag("moe_grouped_gemm"), settings.at("moe_grouped_gemm", "num_experts")
    settings.say("software.grouped_experts", bool(grouped), at)
    if settings.flag("moe_permute_fusion"):
        settings.say("software.unpermute", "fused", settings.found["moe_permute_fusion"])
    elif _is_on(settings, "deterministic_mode"):  # megatron/core/transformer/moe/moe_utils.py
        settings.say("software.unpermute", "index_add", settings.found["deterministic_mode"])
    else:
        settings.say("software.unpermute", "scatter_add", settings.at("num_experts"))


def _read_states(settings: Settings, flags: bool) -> None:
    """Sharding, its groups, and what waits in host memory."""
    fully = settings.flag("use_megatron_fsdp", "use_custom_fsdp")
    words = {theirs: ours for ours, theirs in _STRATEGIES.items()}
    strategy = settings.word("", words, "data_parallel_sharding_strategy")
    shared = settings.flag("use_distributed_optimizer")
    torch = settings.flag("use_torch_fsdp2")
    if fully and strategy:
        settings.say("layout.sharding", strategy, settings.at("data_parallel_sharding_strategy"))
    elif torch:
        settings.say("layout.sharding", "zero3", settings.at("use_torch_fsdp2"))
    elif shared is not None:
        word = "zero1" if shared else "ddp"
        settings.say("layout.sharding", word, settings.at("use_distributed_optimizer"))
    elif flags and settings.found:
        some = settings.at("tensor_model_parallel_size", *settings.found)
        settings.say("layout.sharding", "ddp", some)
    settings.word("layout.schedule", {"dualpipev": "dualpipe_v"}, "schedules_method")
    settings.whole("run.shard_instances", "num_distributed_optimizer_instances")
    settings.whole("layout.offload_layers", "cpu_offloading_num_layers", least=0)
    read_words(_OPTIMIZER_OFFLOAD, settings)
    settings.take("cpu_offloading")


def _of_deepspeed(settings: Settings) -> bool:
    """Sharding as Megatron-DeepSpeed says it: by ``--zero-stage``, or in DeepSpeed's own file.

    Names as in megatron/arguments.py of deepspeedai/Megatron-DeepSpeed@4efb479d.
    """
    if "deepspeed_config" not in settings.found and not settings.flag("deepspeed"):
        return False
    settings.take("deepspeed", "deepspeed_config", "no_pipeline_parallel")
    say_zero(settings, "")
    read_words([Word("layout.optimizer_offload", "cpu_optimizer", on="cpu")], settings)
    return True


def say_recomputation(settings: Settings) -> None:
    """State what is computed again: granularity, method, layers, modules."""
    kind = settings.word(
        "layout.recompute",
        {word: word for word in ("full", "selective", "none")} | {"null": "none"},
        "recompute_granularity",
        "activations_checkpoint_granularity",
    )
    if settings.flag("recompute_activations"):  # above any granularity (validate_args)
        kind = "selective"
        settings.say("layout.recompute", kind, settings.found["recompute_activations"])
    elif kind is None and settings.flag("checkpoint_activations"):
        settings.say("layout.recompute", "full", settings.found["checkpoint_activations"])
    settings.take("checkpoint_num_layers", "deepspeed_activation_checkpointing")
    method = settings.take("recompute_method", "activations_checkpoint_method")
    counts = ("recompute_num_layers", "activations_checkpoint_num_layers")
    count = settings.whole("", *counts, least=0)
    modules = settings.take("recompute_modules")
    if kind == "full" and method and str(method.value) == "uniform" and (count or 1) > 1:
        rule = f"of {count} layers one input is kept; counted as one of each"
        settings.notes.append(f"{settings.at(*counts).place}: {rule}")
    if kind == "full" and count == 0:
        settings.say("layout.recompute", "none", settings.at(*counts))
    elif kind == "full" and method and str(method.value) == "block" and count:
        settings.say(
            "layout.recompute_layers", count * (settings.value_of("layout.vpp") or 1), method
        )
    if settings.flag("moe_layer_recompute") and kind is None:
        settings.say("layout.recompute", "selective", settings.found["moe_layer_recompute"])
        settings.say("layout.recompute_modules", "moe", settings.found["moe_layer_recompute"])
    _modules_by_switch(settings, kind)
    if kind != "selective" or modules is None:
        return
    words = _listed(modules)
    if unknown := [word for word in words if word not in MODULES]:
        rule = f"must be among {', '.join(MODULES)}, got {unknown[0]!r}"
        settings.problems.append(f"{modules.place}: {rule}")
    elif words:
        named = "+".join(dict.fromkeys(MODULES[word] for word in words))
        settings.say("layout.recompute_modules", named, modules)


def _modules_by_switch(settings: Settings, kind: str | None) -> None:
    """MindSpeed's switches for a norm and an activation, with attention's core or alone."""
    keys = {"norm": "recompute_norm", "mlp_act": "recompute_activation_function"}
    named = [name for name, key in keys.items() if settings.flag(key)]
    if not named:
        return
    at = settings.at(keys[named[0]])
    if kind == "full":
        rule = "what it runs again in layers that are kept is not counted"
        settings.notes.append(f"{at.place}: {rule}")
        return
    settings.say("layout.recompute", "selective", at)
    attention = ["core_attn"] if kind == "selective" else []
    settings.say("layout.recompute_modules", "+".join([*attention, *named]), at)


def _listed(setting: Setting) -> list[str]:
    """Words of a list, in whatever brackets."""
    return re.sub(r"[\[\],'\"]", " ", str(setting.value)).split()


def _read_precision(settings: Settings, flags: bool) -> None:
    half = {word: settings.flag(word) for word in ("bf16", "fp16")}
    settings.one_of("training.precision", [word for word, on in half.items() if on])  # arguments.py
    settings.word("training.precision", _MIXED, "precision", "precision_config", "mixed_precision")
    formats = [settings.take(f"{word}_format", word) for word in ("fp8", "fp4")]
    fp8, fp4 = (
        None if at is None or str(at.value).lower() in ("none", "null", "false") else at
        for at in formats
    )
    recipes = {
        how["fp8_recipe"]: ours for ours, how in _LOW_PRECISION.items() if "fp8_recipe" in how
    }
    recipe = settings.word("", recipes, "fp8_recipe")
    settings.take("fp4_recipe")
    if fp4 is not None:
        settings.say("training.precision", "nvfp4", fp4)
    elif fp8 is not None:
        settings.say("training.precision", recipe or "fp8", fp8)
    elif settings.value_of("training.precision") is None:
        for word in (word for word, on in half.items() if on):
            settings.say("training.precision", word, settings.at(word))
    if flags and not settings.flag("deepspeed") and "deepspeed_config" not in settings.found:
        why = "neither --bf16 nor --fp16 said: Megatron-LM computes in fp32"
        settings.usually("training.precision", "fp32", why)
    read_words([_FP8_WEIGHTS], settings)
    _types(settings, flags, half)
    read_words([_OPTIMIZER], settings)


def _types(settings: Settings, flags: bool, half: dict[str, bool | None]) -> None:
    """Types of gradients and moments."""
    keys = ("grad_reduce_in_bf16", "accumulate_allreduce_grads_in_fp32", "grad_reduce_in_fp32")
    low, full = settings.flag(keys[0]), settings.flag(*keys[1:])
    aware = bool(settings.flag("use_precision_aware_optimizer"))
    main = settings.take("main_grads_dtype")
    kept_low = aware and main is not None and _DTYPES.get(_dtype(main)) == "bf16"
    word = ""
    if low or (kept_low and not full) or (full is False and (half["bf16"] or not flags)):
        word = "bf16"
    elif full or (flags and half["bf16"]):
        word = "fp32"
    at = (
        (*keys, "main_grads_dtype", "bf16")
        if low or full is not None
        else ("main_grads_dtype", *keys)
    )
    for name in ("gradient_dtype", "reduce_dtype") if word else ():
        settings.say(f"training.{name}", word, settings.at(*at, "bf16"))
    _optimizer_types(settings, aware)


_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
_DTYPES = {word: word for word in _BYTES} | {
    "float32": "fp32", "float": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16",
    "uint8": "fp8",
}  # fmt: skip


def _dtype(setting: Setting) -> str:
    return str(setting.value).strip("'\"").lower().removeprefix("torch.")


def _optimizer_types(settings: Settings, aware: bool) -> None:
    """Types of main weights and moments, which the precision-aware optimizer alone may change."""
    keys = ("exp_avg_dtype", "exp_avg_sq_dtype", "main_params_dtype")
    given = [settings.take(key) for key in keys]
    sizes = []
    for setting in given:
        word = "fp32" if setting is None or setting.value is None else _dtype(setting)
        if word not in _DTYPES and setting is not None:
            rule = f"must be one of {', '.join(_BYTES)}"
            settings.problems.append(f"{setting.place}: {rule}, got {word[:40]!r}")
            return
        sizes.append(_DTYPES[word])
    first, second, main = sizes
    moments = given[0] or given[1]
    if not aware or sizes == ["fp32"] * 3:
        return
    if moments is not None and first == second and first in ("bf16", "fp16"):
        settings.say("training.moment_dtype", first, moments)
    elif moments is not None and (first, second) != ("fp32", "fp32"):
        mean_bytes = (_BYTES[first] + _BYTES[second]) / 2
        settings.say("software.states.moment", mean_bytes, moments)
    if given[2] is not None and main != "fp32":
        settings.say("software.states.master", _BYTES[main], given[2])


def adapted_matrices(modules: Iterable[str]) -> list[str]:
    """Matrices of a block by Megatron's modules.

    >>> adapted_matrices(["linear_qkv", "linear_proj"])
    ['q', 'k', 'v', 'o']
    """
    return [name for word in modules for name, module in TARGETS.items() if module == word]


_NO_ADAPTERS = ("none", "null", "false", "", "pretrain", "sft", "full")


def _adapters(settings: Settings) -> None:
    kind = settings.take("peft")  # of a recipe of Megatron-Bridge, which has a rank of its own
    mode = settings.found.get("mode")
    if mode is not None and str(mode.value).lower() in ("lora", "dora", "pretrain", "sft"):
        settings.take("mode")
        kind = kind or mode
    word = "none" if kind is None else str(kind.value).lower()
    said = word in ("lora", "dora")
    if kind is not None and not said and word not in _NO_ADAPTERS:
        rule = "must be lora or none (other adapters are not modelled)"
        settings.problems.append(problem(str(kind.place), "", rule, kind.value))
    if kind is not None and said and settings.value_of("training.lora_rank") is None:
        why = "names adapters, but not their rank"
        settings.unset.append(Unset("training.lora_rank", str(kind.value), kind.place, why))
    modules = settings.take("target_modules", "lora_target_modules")
    if modules is not None and (names := adapted_matrices(_listed(modules))):
        settings.say("training.lora_targets", names, modules)
