"""MaxText's settings, written and read: pretraining, and fine-tuning with low-rank adapters.

``key=value`` behind its program, a YAML file, the slice that xpk asks for. Names and defaults as in
AI-Hypercomputer/maxtext@e591f30c, src/maxtext/configs/base.yml; adapters as in its
docs/tutorials/posttraining/native_lora.md; types as in AI-Hypercomputer/tpu-recipes@c8cfe2fb;
slices as in docs.cloud.google.com/tpu/docs (v3 to v5p are named by TensorCores, others by chips).
"""

from __future__ import annotations

import math
import re
from math import gcd
from typing import Any

from simulator.errors import InputError, problem
from simulator.interop.dialects.settings import Place, Reading, Setting, Settings, as_whole, idle_in
from simulator.interop.dialects.torchrun import steps, unsaid_stashes, wrapped
from simulator.interop.dialects.training_ways import PAIRS, refuse_way
from simulator.quoting import comment_line
from simulator.scenario import Scenario
from simulator.workload import presets
from simulator.workload.architecture import MLP, Architecture
from simulator.workload.huggingface import from_hf
from simulator.workload.recipe import Recipe

# --- written -------------------------------------------------------------------------------------

MODELS = {
    "llama-2-7b": "llama2-7b", "llama-2-13b": "llama2-13b", "llama-2-70b": "llama2-70b",
    "llama-3-8b": "llama3-8b", "llama-3-70b": "llama3-70b", "llama-3.1-8b": "llama3.1-8b",
    "llama-3.1-70b": "llama3.1-70b", "llama-3.1-405b": "llama3.1-405b",
    "llama-4-scout": "llama4-17b-16e", "llama-4-maverick": "llama4-17b-128e",
    "mistral-7b": "mistral-7b", "mixtral-8x7b": "mixtral-8x7b", "mixtral-8x22b": "mixtral-8x22b",
    "gemma-2-9b": "gemma2-9b", "gpt3-175b": "gpt3-175b", "gpt-oss-20b": "gpt-oss-20b",
    "deepseek-v2": "deepseek2-236b", "deepseek-v3": "deepseek3-671b", "qwen3-8b": "qwen3-8b",
    "qwen3-32b": "qwen3-32b", "qwen3-235b-a22b": "qwen3-235b-a22b",
    "qwen3-30b-a3b": "qwen3-30b-a3b", "qwen3-next-80b-a3b": "qwen3-next-80b-a3b",
    "qwen3-0.6b": "qwen3-0.6b", "qwen3-1.7b": "qwen3-1.7b", "qwen3-4b": "qwen3-4b",
    "qwen3-14b": "qwen3-14b", "qwen2.5-1.5b": "qwen2.5-1.5b", "qwen2.5-7b": "qwen2.5-7b",
    "qwen2.5-14b": "qwen2.5-14b", "olmo-3-7b": "olmo3-7b", "olmo-3-32b": "olmo3-32b",
    "gpt-oss-120b": "gpt-oss-120b", "kimi-k2": "kimi-k2-1t", "deepseek-v3.2": "deepseek3.2-671b",
}  # fmt: skip
"""Our names of models -> MaxText's (AI-Hypercomputer/maxtext, configs/models/*.yml)."""

_SAME_SIZES = re.compile(r"-(?:base|thinking-2507|pt|batchsplit|2dfsdp)$")
"""Endings of MaxText's names for other weights, or another way, of the same model."""

CP_KINDS = {"all_gather": "all_gather", "ring": "ring", "all_to_all": "ulysses"}
KEPT = ("query_proj", "key_proj", "value_proj", "out_proj")
"""What selective recomputation leaves on the device."""


def maxtext_block(row: dict[str, Any], scenario: Scenario) -> str:
    """Write the command that every host of the slice runs."""
    recipe = scenario.workload.recipe
    start = "python3 -m maxtext.trainers.pre_train.train maxtext/configs/base.yml"
    data = ["dataset_type=synthetic", "enable_checkpointing=False"]
    what = "data (synthetic here)"
    if recipe.lora_rank:
        start = "python3 -m maxtext.trainers.post_train.sft.train_sft_native"
        data = [
            'load_parameters_path="$CHECKPOINT"',
            'hf_path="$DATASET"',
            "lora.enable_lora=True",
            f"lora.lora_rank={recipe.lora_rank}",
            f"lora.lora_alpha={2 * recipe.lora_rank}",
        ]
        what = "checkpoint, data, lora_alpha"
    groups = [
        _batch(row, scenario),
        _mesh(row, scenario),
        _remat(row),
        _types(recipe, gpu=scenario.cluster.accelerator.platform != "xla"),
        _model(scenario.workload.architecture),
        [*data, 'run_name="$RUN"', 'base_output_directory="$OUTPUT"'],
    ]
    head = f"# MaxText, started on every host of the slice (xpk does it). Yours to set: {what}."
    notes = [comment_line(note) for note in _notes(row, scenario)]
    return "\n".join([head, wrapped(start, [group for group in groups if group]), *notes])


def _devices(scenario: Scenario) -> int:
    """Devices that JAX sees: two on a chip of TPU7x."""
    return scenario.cluster.gpus * scenario.cluster.accelerator.program_devices


def _batch(row: dict[str, Any], scenario: Scenario) -> list[str]:
    recipe = scenario.workload.recipe
    parts = row["global_batch"] // (row["dp"] * row["micro_batch"])
    found = [f"per_device_batch_size={row['global_batch'] / parts / _devices(scenario):g}"]
    if parts > 1:
        found.append(f"gradient_accumulation_steps={parts}")
    return [*found, f"max_target_length={recipe.sequence_length}", f"steps={steps(scenario)}"]


def _mesh(row: dict[str, Any], scenario: Scenario) -> list[str]:
    """Axes inside a slice; what its own interconnect does not join holds replicas or shards.

    On GPUs a slice is a server's links, and what they cannot hold of any axis goes between them.
    """
    slices = max(scenario.cluster.gpus // scenario.cluster.domain, 1)
    devices = scenario.cluster.accelerator.program_devices
    experts = min(row["ep"], row["dp"])
    replicas = row["dp"] * devices // (slices * experts)  # of a slice
    shards = 1
    if row["sharding"] == "zero3":
        shards = max(row["shard_group"] * devices // (row["cp"] * experts), 1)
    within = min(shards, replicas)
    across = min(shards // max(within, 1), slices)
    tensor = "tensor_sequence" if row["sequence_parallel"] else "tensor"
    inner = {tensor: row["tp"], "context": row["cp"], "expert": experts}
    inner |= {"fsdp": shards, "data": row["dp"] // (experts * shards)}
    gpu = scenario.cluster.accelerator.platform != "xla"
    sizes = (
        _dealt(inner, scenario.cluster.domain)
        if gpu
        else {
            "dcn_data": slices // across,
            "dcn_fsdp": across,
            "ici_data": max(replicas // within, 1),
            "ici_fsdp": within,
            f"ici_{tensor}": row["tp"],
            "ici_context": row["cp"],
            "ici_expert": experts,
        }
    )
    always = ("ici_data", "ici_fsdp")
    mesh = [
        f"{axis}_parallelism={size}" for axis, size in sizes.items() if size > 1 or axis in always
    ]
    if row["cp"] > 1:
        mesh.append(f"context_parallel_strategy={CP_KINDS[row['cp_kind']]}")
    return mesh


def _dealt(axes: dict[str, int], domain: int) -> dict[str, int]:
    """Degrees, the innermost first, as far as a domain holds them and between domains."""
    sizes: dict[str, int] = {}
    for axis, size in axes.items():
        sizes[f"ici_{axis}"] = gcd(size, domain)
        sizes[f"dcn_{axis}"] = size // sizes[f"ici_{axis}"]
        domain //= sizes[f"ici_{axis}"]
    return sizes


def _remat(row: dict[str, Any]) -> list[str]:
    kept = {name: "device" for name in KEPT if row["recompute"] == "selective"}
    if row["offload_layers"]:
        kept["decoder_layer_input"] = "offload"
    if kept:
        return ["remat_policy=custom", *(f"{name}={place}" for name, place in kept.items())]
    return [f"remat_policy={'full' if row['recompute'] == 'full' else 'minimal_with_context'}"]


def _types(recipe: Recipe, *, gpu: bool) -> list[str]:
    """Types and kernels; on GPUs those of AI-Hypercomputer/gpu-recipes@2e1fd5ef."""
    found = [f"dtype={'float32' if recipe.precision == 'fp32' else 'bfloat16'}"]
    found += ["hardware=gpu", "attention=cudnn_flash_te"] if gpu else ["attention=flash"]
    if gpu and recipe.is_quantised:
        found.append("quantization=fp8")
    elif recipe.is_quantised:
        found += ["quantization=fp8_full", "use_qwix_quantization=True"]
    if recipe.precision == "fp8" and not gpu:
        fixed = "calibration_method='fixed,-224,224'"
        found += [f"weight_quantization_{fixed}", f"act_quantization_{fixed}"]
    if recipe.moment_dtype == "bf16":
        found.append("mu_dtype=bfloat16")
    return [*found, f"opt_type={recipe.optimizer}"]


def _model(arch: Architecture) -> list[str]:
    """MaxText's preset, or the sizes of a dense decoder."""
    if arch.name in MODELS:
        return [f"model_name={MODELS[arch.name]}"]
    found = [f"base_emb_dim={arch.hidden}", f"base_num_decoder_layers={arch.layers}"]
    for attention in arch.attentions[:1]:
        found += [
            f"base_num_query_heads={attention.heads}",
            f"base_num_kv_heads={attention.kv_heads}",
            f"head_dim={attention.head_dim}",
        ]
    dense = [mlp for mlp in arch.mlps if isinstance(mlp, MLP)]
    found += [f"base_mlp_dim={mlp.ffn_hidden}" for mlp in dense[:1]]
    return [*found, f"vocab_size={arch.vocabulary}"]


def _notes(row: dict[str, Any], scenario: Scenario) -> list[str]:
    """What no setting says."""
    arch, recipe = scenario.workload.architecture, scenario.workload.recipe
    notes = []
    if arch.name not in MODELS:
        notes.append(f"MaxText has no preset of {arch.name}: what is no size above is yours.")
    return [*notes, *unsaid_stashes(recipe)]


def maxtext_unsaid(row: dict[str, Any], scenario: Scenario) -> dict[str, str]:
    """Fields of a layout that no setting says."""
    unsaid = {}
    if row["recompute_layers"]:
        unsaid["recompute_layers"] = "MaxText runs all layers of a rank again."
    if row["sharding"] == "ddp" and max(row["cp"], row["ep"]) > 1:
        reason = "MaxText shards weights over context and experts."
        unsaid |= {"sharding": reason, "shard_group": reason}
    elif row["sharding"] == "zero3" and row["shard_group"] < row["cp"] * min(row["ep"], row["dp"]):
        unsaid["shard_group"] = "MaxText shards weights over all of context and experts."
    if row["offload_layers"]:
        reason = "the command moves the inputs of all layers to the host, and runs layers again."
        unsaid |= {"offload_layers": reason}
        unsaid |= {"recompute": reason} if row["recompute"] != "full" else {}
    if row["ep"] > row["dp"]:
        unsaid["ep"] = f"MaxText's experts lie within dp = {row['dp']}."
    arch = scenario.workload.architecture
    if arch.is_moe and row["tp"] > 1 and (row["etp"] != row["tp"] or arch.name not in MODELS):
        unsaid["etp"] = f"MaxText's experts keep tp = {row['tp']}."
    return unsaid


# --- read ----------------------------------------------------------------------------------------

MAXTEXT_KEYS = {
    *("per_device_batch_size", "max_target_length", "remat_policy", "base_num_decoder_layers"),
    *("base_emb_dim", "ici_fsdp_parallelism", "ici_tensor_parallelism", "dcn_data_parallelism"),
}
"""Keys by which settings are known as MaxText's."""

_DEFAULTS = {
    "per_device_batch_size": 12.0,
    "max_target_length": 2048,
    "remat_policy": "full",
    "ici_fsdp_parallelism": -1,
    "dtype": "bfloat16",
    "opt_type": "adamw",
}
"""What base.yml says of what bears on time and memory."""

_AXES = {
    "layout.tp": ("tensor", "tensor_sequence", "sequence"),
    "layout.cp": ("context",),
    "layout.ep": ("expert",),
    "layout.pp": ("pipeline",),
}
_DATA = ("data", "fsdp", "fsdp_transpose")
_LARGEST_AXIS = 10**7
_OPTIMIZERS = {"adamw": "adamw", "adam_pax": "adamw", "sgd": "sgd", "muon": "muon"}
_MLP_INPUTS = ("mlpwi", "mlpwi_0", "mlpwi_1", "moe_mlpwi_0", "moe_mlpwi_1")
_KEEPABLE = (
    *("context", *_MLP_INPUTS, "mlpwo", "moe_mlpwo", *KEPT, "kv_proj", "qkv_proj"),
    *("attention_out", "query_wa_proj", "kv_wa_proj", "mla_q", "mla_kv"),
)
_ATTENTION = {*KEPT, "qkv_proj", "attention_out", "mla_q"}
_WIDE = {*_MLP_INPUTS, "query_proj", "out_proj", "qkv_proj", "context", "attention_out", "mla_q"}
"""Tensors of a layer as wide as its input or wider: without them nearly all is computed anew."""

_SLICE = re.compile(r"(v3|v4|v5p|v5litepod|v5e|v6e|tpu7x)-(\d{1,5}(?:x\d{1,3}){0,2})")
_BY_CORES = {"v4": 2, "v5p": 2}
"""TensorCores of an accelerator where slices are named by them; on v3 each is a device."""


def read_maxtext(settings: Settings, *, kind: str, whole: bool) -> Reading:
    """State what settings say; where `whole`, base.yml says the rest of them.

    Raises
    ------
    InputError
        If sizes of a model are no model.
    """
    if whole:
        _fill(settings)
    if settings.flag("use_dpo"):
        refuse_way(settings, PAIRS, settings.found["use_dpo"])
    settings.whole("training.sequence_length", "max_target_length")
    settings.whole("run.steps", "steps")
    settings.whole("run.accumulation", "gradient_accumulation_steps")
    _device_batch(settings)
    _read_mesh(settings)
    _recompute(settings)
    _read_types(settings)
    _read_kernels(settings)
    if settings.flag("lora.enable_lora", "enable_lora"):
        settings.whole("training.lora_rank", "lora.lora_rank", "lora_rank")
    named = _read_model(settings)
    shape = None if named else _shape(settings)
    own = ("maxtext", "maxtext-gpu")
    return settings.reading(kind, idle_in("maxtext"), software=own, architecture=shape)


_FUSED_ATTENTION = ("autoselected", "flash", "cudnn_flash_te", "cudnn_flash_jax")
_STORED = {"float32": "fp32", "bfloat16": "bf16"}


def _read_kernels(settings: Settings) -> None:
    """Attention, pieces of the loss, and the types in which weights and gradients are kept."""
    attention = settings.found.get("attention")
    if attention is not None and str(attention.value) in _FUSED_ATTENTION:
        settings.take("attention")
    elif attention is not None and str(attention.value) == "dot_product":
        settings.take("attention")
        settings.say("software.flash_attention", False, attention)
    settings.whole("training.loss_chunks", "num_vocab_tiling")
    if settings.word("", _STORED, "weight_dtype") == "bf16":
        settings.say("training.master_weights", False, settings.found["weight_dtype"])
    gradient = settings.found.get("grad_dtype")
    if gradient is not None and settings.word("", _STORED, "grad_dtype") == "bf16":
        settings.say("training.gradient_dtype", "bf16", gradient)
    if settings.flag("packing") is False:
        rule = "every sample is counted as long as max_target_length; shorter ones take less"
        settings.notes.append(f"{settings.found['packing'].place}: {rule}")


def _fill(settings: Settings) -> None:
    for key, value in _DEFAULTS.items():
        if key not in settings.found:
            settings.found[key] = Setting(key, value, Place("MaxText's base.yml", key))


def _device_batch(settings: Settings) -> None:
    """Sequences of a device in a pass: a fraction where several share one."""
    setting = settings.take("per_device_batch_size")
    if setting is None:
        return
    try:
        number = float(setting.value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 < number <= _LARGEST_AXIS:
        rule = "must be a number above 0"
        settings.problems.append(problem(str(setting.place), "", rule, setting.value))
        return
    settings.say("run.device_batch", number, setting)


def _axis(settings: Settings, axis: str) -> tuple[int, Setting | None]:
    """Devices along an axis, within a slice times over slices; -1: what is left."""
    size, at = 1, None
    for part in ("ici", "dcn"):
        setting = settings.take(f"{part}_{axis}_parallelism")
        if setting is None:
            continue
        number = -1 if str(setting.value).strip() == "-1" else as_whole(setting.value)
        if number is None or not (number == -1 or 0 < number <= _LARGEST_AXIS):
            rule = "must be a whole number from 1, or -1 for what is left"
            settings.problems.append(problem(str(setting.place), "", rule, setting.value))
            continue
        if number != 1:
            at = setting
        size = -1 if -1 in (size, number) else size * number
    return size, at


def _read_mesh(settings: Settings) -> None:
    """Degrees of the layout; weights are sharded over the fsdp axes."""
    known = True
    for name, axes in _AXES.items():
        sizes = [_axis(settings, axis) for axis in axes]
        at = next((setting for _, setting in sizes if setting is not None), None)
        size = math.prod(number for number, _ in sizes)
        if any(number == -1 for number, _ in sizes):
            settings.notes.append(f"{at.place if at else name}: -1, which only the mesh settles")
            known = False
        elif at is not None:
            settings.say(name, size, at)
        elif settings.found.get("ici_fsdp_parallelism"):
            settings.say(name, 1, settings.found["ici_fsdp_parallelism"])
    tp = settings.found.get("ici_tensor_parallelism")
    split = settings.found.get("ici_tensor_sequence_parallelism")
    if (settings.value_of("layout.tp") or 1) > 1 and (split or tp):
        settings.say("layout.sequence_parallel", split is not None, split or tp)  # type: ignore[arg-type]
    if (settings.value_of("layout.cp") or 1) > 1:
        kinds = {word: kind for kind, word in CP_KINDS.items()}
        settings.word("layout.cp_kind", kinds, "context_parallel_strategy")
    settings.take("context_parallel_strategy")
    _states(settings, known)


def _states(settings: Settings, known: bool) -> None:
    """Replicas and shards, and how many devices there are where every axis is said."""
    (data, _), (fsdp, at), (more, other) = (_axis(settings, axis) for axis in _DATA)
    at = at or other
    if at is None:
        at = settings.found.get("ici_fsdp_parallelism") or settings.found.get(
            "ici_data_parallelism"
        )
    if at is None:
        return
    experts = settings.value_of("layout.ep") or 1
    # base.yml's rules shard a weight's embedding axis over these four axes
    sharded = (fsdp, more, experts, settings.value_of("layout.cp") or 1) != (1, 1, 1, 1)
    settings.say("layout.sharding", "zero3" if sharded else "ddp", at)
    if sharded and fsdp > 0 and more > 0:
        settings.say("run.shard_devices", fsdp * more * experts, at)
    sizes = [data, fsdp, more, *(settings.value_of(name) or 1 for name in _AXES)]
    if known and min(sizes) > 0:
        settings.say("run.devices", math.prod(sizes), at)


def _recompute(settings: Settings) -> None:
    """What of a layer is computed again, by the tensors that are kept; the nearest is taken."""
    policy = settings.take("remat_policy")
    places = {key: take for key in _KEEPABLE if (take := settings.take(key)) is not None}
    kept = {key for key, one in places.items() if str(one.value) == "device"}
    moved = [place for place in places.values() if str(place.value) == "offload"]
    inputs = settings.take("decoder_layer_input")
    if policy is None:
        return
    word = str(policy.value)
    if word == "full" or (word == "custom" and not kept & _WIDE):
        kind, exact = "full", not kept and not moved
    elif word == "custom":
        kind = "none" if kept & {*_MLP_INPUTS} and kept & _ATTENTION else "selective"
        exact = kept == {*KEPT} and not moved
    elif word.startswith("minimal"):
        kind, exact = "none", word == "minimal_with_context"
    elif word.startswith(("save_", "qkv_proj_")):
        kind, exact = "selective", False
    else:
        known = "full, minimal, minimal_with_context, save_..., custom"
        settings.problems.append(problem(str(policy.place), "", f"must be one of {known}", word))
        return
    settings.say("layout.recompute", kind, policy)
    if not exact:
        settings.notes.append(f"{policy.place}: {word} is taken as the nearest, recompute = {kind}")
    if inputs is None or str(inputs.value) != "offload":
        return
    if kind == "full":
        settings.say("run.offload_inputs", True, inputs)
    else:
        settings.notes.append(
            f"{inputs.place}: what stays on the device beside it is not told apart"
        )


def _read_types(settings: Settings) -> None:
    dtype, quantised = settings.take("dtype"), settings.take("quantization")
    said = str(quantised.value) if quantised and quantised.value else ""
    settings.word("training.optimizer", _OPTIMIZERS, "opt_type")
    fixed = [settings.take(f"{part}_quantization_calibration_method") for part in ("weight", "act")]
    if quantised and said.startswith(("fp8", "nanoo_fp8", "te_fp8")):
        static = any(one is not None and str(one.value).startswith("fixed") for one in fixed)
        settings.say("training.precision", "fp8" if static else "fp8_current", quantised)
    elif dtype is not None:
        words = {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}
        settings.word("training.precision", words, "dtype")
        if quantised and said:
            note = f"quantization {said} is not modelled: predicted in the type of dtype"
            settings.notes.append(f"{quantised.place}: {note}")
    first = settings.take("mu_dtype")
    if first is not None and str(first.value) == "bfloat16":
        settings.say("training.moment_dtype", "bf16", first)


def _read_model(settings: Settings) -> bool:
    setting = settings.take("model_name")
    if setting is None or str(setting.value) in ("", "default"):
        return False
    ours = {theirs: name for name, theirs in MODELS.items()} | {"llama3.3-70b": "llama-3.1-70b"}
    if (said := _SAME_SIZES.sub("", str(setting.value))) in ours:
        name = ours[said]
        settings.say("model.name", name, setting)
        tp = settings.value_of("layout.tp") or 1
        if tp > 1 and presets.load(name).is_moe:  # experts are cut as all matrices are
            settings.say("layout.etp", tp, setting)
    else:
        settings.notes.append(f"{setting.place}: {setting.value} is no model of the zoo: --model")
    return True


def _shape(settings: Settings) -> Architecture | None:
    """A dense decoder, where all its sizes are stated."""
    layers = settings.whole("size.layers", "base_num_decoder_layers")
    hidden = settings.whole("size.hidden", "base_emb_dim")
    heads = settings.whole("size.heads", "base_num_query_heads")
    rest: dict[str, Any] = {
        name: settings.whole("", key)
        for name, key in (
            ("intermediate_size", "base_mlp_dim"),
            ("num_key_value_heads", "base_num_kv_heads"),
            ("head_dim", "head_dim"),
            ("vocab_size", "vocab_size"),
        )
    }
    if None in (layers, hidden, heads, rest["intermediate_size"], rest["vocab_size"]):
        return None
    document = {
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "max_position_embeddings": settings.value_of("training.sequence_length") or 2048,
        **{name: value for name, value in rest.items() if value is not None},
    }
    try:
        return from_hf(document, name="maxtext-model", where=settings.path)
    except InputError as error:
        settings.problems += error.problems
        return None


def read_slice(settings: Settings) -> None:
    """State the slice that xpk asks for: its kind, and how many chips of how many slices."""
    setting = settings.take("device_type", "tpu_type")
    count = settings.whole("", "num_slices") or 1
    found = _SLICE.fullmatch(str(setting.value)) if setting else None
    if setting is None or found is None:
        return
    kind, sizes = found[1], [int(size) for size in found[2].split("x")]
    chips = math.prod(sizes) if len(sizes) > 1 else max(sizes[0] // _BY_CORES.get(kind, 1), 1)
    name = {"tpu7x": "tpu7x", "v5litepod": "tpu-v5e"}.get(kind, f"tpu-{kind}")
    settings.say("cluster.name", name, setting)
    settings.say("cluster.gpus", chips * count, setting)
