"""A layout as MaxText settings: pretraining, and fine-tuning with low-rank adapters.

Names as in AI-Hypercomputer/maxtext@e591f30c, src/maxtext/configs/base.yml; adapters as in its
docs/tutorials/posttraining/native_lora.md; types as in AI-Hypercomputer/tpu-recipes@c8cfe2fb.
"""

from __future__ import annotations

from math import gcd
from typing import Any

from simulator.interop.torchrun import steps, unsaid_stashes, wrapped
from simulator.scenario import Scenario
from simulator.workload.architecture import MLP, Architecture
from simulator.workload.recipe import Recipe

__all__ = ["CP_KINDS", "KEPT", "MODELS", "maxtext_block", "maxtext_unsaid"]

MODELS = {
    "llama-2-7b": "llama2-7b", "llama-2-13b": "llama2-13b", "llama-2-70b": "llama2-70b",
    "llama-3-8b": "llama3-8b", "llama-3-70b": "llama3-70b", "llama-3.1-8b": "llama3.1-8b",
    "llama-3.1-70b": "llama3.1-70b", "llama-3.1-405b": "llama3.1-405b",
    "llama-4-scout": "llama4-17b-16e", "llama-4-maverick": "llama4-17b-128e",
    "mistral-7b": "mistral-7b", "mixtral-8x7b": "mixtral-8x7b", "mixtral-8x22b": "mixtral-8x22b",
    "gemma-2-9b": "gemma2-9b", "gpt3-175b": "gpt3-175b", "gpt-oss-20b": "gpt-oss-20b",
    "deepseek-v2": "deepseek2-236b", "deepseek-v3": "deepseek3-671b", "qwen3-8b": "qwen3-8b",
    "qwen3-32b": "qwen3-32b", "qwen3-235b-a22b": "qwen3-235b-a22b",
    "qwen3-next-80b-a3b": "qwen3-next-80b-a3b",
}  # fmt: skip
"""Our names of models -> MaxText's."""

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
    notes = [f"# {note}" for note in _notes(row, scenario)]
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
    found = [
        f"{axis}_parallelism={size}" for axis, size in sizes.items() if size > 1 or axis in always
    ]
    if row["cp"] > 1:
        found.append(f"context_parallel_strategy={CP_KINDS[row['cp_kind']]}")
    return found


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
    if row["etp"] != row["tp"] and scenario.workload.architecture.is_moe and row["tp"] > 1:
        unsaid["etp"] = f"MaxText's experts keep tp = {row['tp']}."
    return unsaid
