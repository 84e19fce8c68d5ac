"""A layout as lines of Python around torch's ``fully_shard`` (FSDP2), for a training script.

Names as in torch/distributed/fsdp of PyTorch 2.6 and later. A mesh of one dimension is FSDP, one of
two is hybrid sharding: replicas of groups that share.

A script is parsed as text, and never run.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from simulator.errors import InputError
from simulator.interop.dialects.settings import Place, Reading, Setting, Settings, as_whole
from simulator.interop.dialects.torchrun import steps, torchrun
from simulator.quoting import comment_line, python_literal
from simulator.scenario import Scenario

# --- written -------------------------------------------------------------------------------------


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
        comment_line(f"{torchrun(scenario.cluster)} train.py"),
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
        lines += [f"LORA_RANK = {recipe.lora_rank}  # a fine-tuning: the model itself is frozen"]
        lines += [f"LORA_TARGETS = {python_literal(recipe.lora_targets)}"]
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


# --- read ----------------------------------------------------------------------------------------

_LARGEST = 2**18
_NAMES = {"MICRO_BATCH": "layout.micro_batch", "GRADIENT_ACCUMULATION": "run.accumulation",
          "SEQUENCE_LENGTH": "training.sequence_length", "STEPS": "run.steps",
          "LORA_RANK": "training.lora_rank"}  # fmt: skip
_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def is_fsdp2(text: str) -> bool:
    """Whether a text is such a script."""
    called = re.search(r"^[ \t]*(?:\w+ = )?(?:fully_shard|DistributedDataParallel)\(", text, re.M)
    return called is not None and "init_device_mesh" in text


def read_fsdp2(text: str, path: str) -> list[Reading]:
    """State what the assignments and calls of a script say.

    Raises
    ------
    InputError
        If the text is no Python.
    """
    if len(text) > _LARGEST:
        raise InputError(f"{path}: larger than {_LARGEST // 2**10} KiB, got {len(text)}")
    try:
        tree = ast.parse(text)
        found = list(_settings(tree, path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"{path}: no Python that can be read: {str(error)[:120]}") from None
    settings = Settings.of(path, found)
    for key, name in _NAMES.items():
        settings.whole(name, key)
    targets = settings.take("LORA_TARGETS")
    if targets is not None and isinstance(targets.value, list):
        settings.say("training.lora_targets", targets.value, targets)
    _states(settings)
    if again := settings.take("checkpoint_wrapper"):
        settings.say("layout.recompute", "full", again)
    else:
        mesh = settings.found.get("mesh")
        if mesh is not None:
            settings.say("layout.recompute", "none", mesh)
    for name, keys in (
        ("precision", ("param_dtype", "dtype")),
        ("reduce_dtype", ("reduce_dtype",)),
    ):
        dtype = settings.take(*keys)
        if dtype is not None and isinstance(dtype.value, str) and dtype.value in _DTYPES:
            settings.say(f"training.{name}", _DTYPES[dtype.value], dtype)
    kind = "script around FSDP2"
    return [settings.reading(kind, lambda key: True, software=("torchtitan-eager", "plain-ddp"))]


def _states(settings: Settings) -> None:
    mesh = settings.take("mesh")
    sizes = mesh.value if mesh is not None and isinstance(mesh.value, list) else []
    if mesh is not None and sizes:
        whole = 1
        for size in sizes:
            whole *= size
        settings.say("cluster.gpus", whole, mesh)
        if len(sizes) == 2:
            settings.say("run.shard_degree", sizes[1], mesh)
    shard = settings.take("fully_shard")
    if shard is None:
        if mesh is not None:
            settings.say("layout.sharding", "ddp", mesh)
        return
    reshard = settings.take("reshard_after_forward")
    kept = reshard is not None and reshard.value is False
    settings.say("layout.sharding", "zero2" if kept else "zero3", reshard or shard)
    number = None if reshard is None else as_whole(reshard.value)
    if reshard is not None and number and number > 1:
        settings.say("layout.reshard_after_forward", number, reshard)
    if offload := settings.take("CPUOffloadPolicy"):
        settings.say("layout.optimizer_offload", "cpu", offload)
        if not kept:
            settings.say("layout.parameter_offload", "cpu", offload)


def _settings(tree: ast.AST, path: str) -> list[Setting]:
    """Assignments of names, and the calls and keywords that matter."""
    settings: list[Setting] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, value = node.targets[0].id, _value(node.value)
            if name.isupper() and value is not None:
                settings.append(Setting(name, value, Place(path, name, node.lineno)))
        if not isinstance(node, ast.Call):
            continue
        called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        place = Place(path, f"{called}(...)", node.lineno)
        if called == "init_device_mesh" and len(node.args) > 1:
            sizes = _value(node.args[1])
            if isinstance(sizes, list) and all(type(x) is int and 0 < x < 10**7 for x in sizes):
                settings.append(Setting("mesh", sizes[:3], place))
        elif called in ("fully_shard", "checkpoint_wrapper", "CPUOffloadPolicy"):
            settings.append(Setting(called, True, place))
        for keyword in node.keywords:
            if keyword.arg in ("reshard_after_forward", "param_dtype", "reduce_dtype", "dtype"):
                at = Place(path, f"{called}({keyword.arg})", node.lineno)
                settings.append(Setting(keyword.arg, _value(keyword.value), at))
    return settings


def _value(node: ast.AST) -> Any:
    """A constant, a list of constants, or the last name of ``torch.bfloat16``."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.Tuple, ast.List)):
        return [_value(item) for item in node.elts]
    return node.attr if isinstance(node, ast.Attribute) else None
