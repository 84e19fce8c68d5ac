"""Split a model over ranks with torch's own means: TP and SP, recompute, compile, FSDP2, DDP."""

from __future__ import annotations

import functools
from collections import Counter

import torch
from _cases import Case
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

aten = torch.ops.aten
MATMULS = {aten.mm.default, aten.addmm.default}
SAVED = MATMULS | {
    getattr(aten, name).default
    for name in (
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_grouped_mm",
    )
    if hasattr(aten, name)
}
"""What selective recompute keeps, but for every second matmul."""


def make_mesh(case: Case, kind: str) -> DeviceMesh:
    """Return the mesh (pp, dp, tp): neighbours are of one TP group."""
    return init_device_mesh(kind, (case.pp, case.dp, case.tp), mesh_dim_names=("pp", "dp", "tp"))


# --- tensor parallelism ---------------------------------------------------------------------


def apply_tp(model: nn.Module, mesh: DeviceMesh, sequence_parallel: bool) -> None:
    """Cut linear layers by columns and rows, and with `sequence_parallel` what is between."""
    from torch.distributed.tensor.parallel import parallelize_module

    parallelize_module(model, mesh, _present(model, _outer_plan(sequence_parallel)))
    for layer in model.layers.values():
        parallelize_module(layer, mesh, _present(layer, _layer_plan(sequence_parallel)))


def _present(module: nn.Module, plan: dict) -> dict:
    """Leave out what this module does not have (a stage, a family)."""
    names = {name for name, _ in module.named_modules()}
    return {name: style for name, style in plan.items() if name in names}


def _outer_plan(sequence_parallel: bool) -> dict:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
    )

    inside = Shard(1) if sequence_parallel else Replicate()
    table = RowwiseParallel(input_layouts=Replicate(), output_layouts=inside)
    head = ColwiseParallel(input_layouts=inside, output_layouts=Shard(-1), use_local_output=False)
    plan = {"embedding": table, "positions": table, "output": head}
    return plan | ({"norm": SequenceParallel()} if sequence_parallel else {})


def _layer_plan(sequence_parallel: bool) -> dict:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
    )

    inside = Shard(1) if sequence_parallel else Replicate()
    columns = ("attention.wq", "attention.wk", "attention.wv", "mlp.w1", "mlp.w3")
    plan = {name: ColwiseParallel() for name in columns}
    plan |= {name: RowwiseParallel(output_layouts=inside) for name in ("attention.wo", "mlp.w2")}
    if not sequence_parallel:
        return plan
    gather = {"input_layouts": Shard(1), "desired_input_layouts": Replicate()}
    whole = {key: (layout, None, None) for key, layout in gather.items()}
    return plan | {
        "norm1": SequenceParallel(),
        "norm2": SequenceParallel(),
        "attention": PrepareModuleInput(**whole),
        "mlp": PrepareModuleInput(**gather),
    }


# --- recompute and compile ------------------------------------------------------------------


class Recomputed(nn.Module):
    """A block whose activations are dropped and computed again in backward.

    selective: attention and every second matmul keep their outputs (torchtitan's rule "op").
    """

    def __init__(self, block: nn.Module, how: str) -> None:
        super().__init__()
        self.block = block
        self.more = {"context_fn": _selective} if how == "selective" else {}

    def forward(self, *inputs):
        """Run the block under a checkpoint."""
        return checkpoint(self.block, *inputs, use_reentrant=False, **self.more)


def _selective():
    return create_selective_checkpoint_contexts(functools.partial(_keep, Counter()))


def _keep(seen: Counter, context, function, *_, **__) -> CheckpointPolicy:
    if function in MATMULS:
        seen[context.is_recompute] += 1
        if seen[context.is_recompute] % 2 == 0:
            return CheckpointPolicy.PREFER_RECOMPUTE
    keep = function in SAVED
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


def apply_recompute(model: nn.Module, how: str) -> None:
    """Wrap every layer; "none" leaves the model alone."""
    if how != "none":
        for name, layer in list(model.layers.items()):
            model.layers[name] = Recomputed(layer, how)


def apply_compile(model: nn.Module) -> None:
    """Compile each layer by itself: one compilation serves all."""
    for layer in model.layers.values():
        layer.compile()


# --- data parallelism -----------------------------------------------------------------------


def apply_fsdp(root: nn.Module, layers, mesh: DeviceMesh, case: Case) -> None:
    """Shard each layer, then what else `root` holds, over the data-parallel ranks (FSDP2)."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy()
    if case.precision == "bf16" and case.states == "fp32":
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    again = case.sharding == "zero3"
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=again)
    fully_shard(root, mesh=mesh, mp_policy=policy)


def apply_ddp(root: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Average gradients over the data-parallel ranks while backward runs."""
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(
        root, process_group=mesh.get_group(), gradient_as_bucket_view=True
    )
