"""A layout as lines of Python around torch's ``fully_shard`` (FSDP2), for a training script.

Names as in torch/distributed/fsdp of PyTorch 2.6 and later. A mesh of one dimension is FSDP, one of
two is hybrid sharding: replicas of groups that share.
"""

from __future__ import annotations

from typing import Any

from simulator.interop.torchrun import steps, torchrun
from simulator.scenario import Scenario

__all__ = ["fsdp2_block", "fsdp2_lacks"]


def fsdp2_lacks(row: dict[str, Any], scenario: Scenario) -> list[str]:
    """What of a layout these lines cannot say."""
    wrong = [f"{name} = {row[name]}" for name in ("tp", "pp", "cp", "ep") if row[name] > 1]
    if row["sharding"] not in ("ddp", "zero2", "zero3"):
        wrong.append(f"sharding = {row['sharding']}")
    if row["recompute"] == "selective" or row["recompute_layers"]:
        wrong.append("recomputation of a part")
    return wrong


def fsdp2_block(row: dict[str, Any], scenario: Scenario) -> str:
    """Write the lines and, above them, the command that runs them."""
    recipe = scenario.workload.recipe
    lines = [
        f"# {torchrun(scenario.cluster)} train.py",
        "# In train.py, your script: build `model` (its blocks are model.layers), then:",
        f"MICRO_BATCH = {row['micro_batch']}",
        f"GRADIENT_ACCUMULATION = {row['global_batch'] // (row['dp'] * row['micro_batch'])}",
        f"SEQUENCE_LENGTH = {recipe.sequence_length}",
        f"STEPS = {steps(scenario)}",
        "",
        "import torch",
        "from torch.distributed.device_mesh import init_device_mesh",
    ]
    again = []
    if row["recompute"] == "full":
        wrapper = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"
        lines.append(f"from {wrapper} import checkpoint_wrapper")
        again = [
            "for name, block in list(model.layers.named_children()):",
            "    model.layers.register_module(name, checkpoint_wrapper(block))",
        ]
    if row["sharding"] == "ddp":
        rest = [f'mesh = init_device_mesh("cuda", ({row["dp"]},))', *again, *_replicated(recipe)]
    else:
        rest = _sharded(row, recipe, again)
    if recipe.lora_rank:
        targets = ", ".join(f'"{name}"' for name in recipe.lora_targets)
        lines += [f"LORA_RANK = {recipe.lora_rank}  # a fine-tuning: the model itself is frozen"]
        lines += [f"LORA_TARGETS = [{targets}]"]
    return "\n".join([*lines, *rest])


def _half(recipe: Any) -> str:
    return {"fp16": "torch.float16", "fp32": "torch.float32", "tf32": "torch.float32"}.get(
        recipe.precision, "torch.bfloat16"
    )


def _replicated(recipe: Any) -> list[str]:
    return [
        "from torch.nn.parallel import DistributedDataParallel",
        f'autocast = torch.autocast("cuda", dtype={_half(recipe)})',
        "model = DistributedDataParallel(model, device_mesh=mesh)",
    ]


def _sharded(row: dict[str, Any], recipe: Any, again: list[str]) -> list[str]:
    group, replicas = row["shard_group"], row["dp"] // row["shard_group"]
    shape = f"({replicas}, {group})" if replicas > 1 else f"({group},)"
    names = '("replicate", "shard")' if replicas > 1 else '("shard",)'
    policy = f"MixedPrecisionPolicy(param_dtype={_half(recipe)}, reduce_dtype=torch.float32)"
    reduced = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}.get(recipe.reduce_dtype or "")
    if reduced:
        policy = policy.replace("reduce_dtype=torch.float32", f"reduce_dtype={reduced}")
    keeps = row["sharding"] == "zero2"
    numbered = row["sharding"] == "zero3" and row["reshard_after_forward"] is not True
    reshard = str(row["reshard_after_forward"]) if numbered else str(not keeps)
    shared = f"mesh=mesh, mp_policy=policy, reshard_after_forward={reshard}"
    imports = ["MixedPrecisionPolicy", "fully_shard"]
    offload = row["parameter_offload"] == "cpu" or row["optimizer_offload"] == "cpu"
    if offload:
        imports.insert(0, "CPUOffloadPolicy")
        shared += ", offload_policy=CPUOffloadPolicy(pin_memory=True)"
    return [
        f"from torch.distributed.fsdp import {', '.join(imports)}",
        f'mesh = init_device_mesh("cuda", {shape}, mesh_dim_names={names})',
        f"policy = {policy}",
        *again,
        "for block in model.layers:",
        f"    fully_shard(block, {shared})",
        f"fully_shard(model, {shared})",
    ]
