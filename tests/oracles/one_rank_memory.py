"""One rank's memory as torch itself accounts for it, without a GPU: `python one_rank_memory.py`.

A training step of a few layers runs under fake tensors and a process group that only pretends, and
torch's own trackers (``torch.distributed._tools``) add up every storage by category. Prints the
JSON that is frozen in ``tests/data/one_rank_memory.json``.

Tensors are those of a GPU where the processor's kernels would keep others: norms and SwiGLU are
written as autograd functions that keep what the fused kernels keep, dropout masks take one byte.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard import _fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.testing._internal.distributed.fake_pg import FakeStore

__all__ = ["CASES", "SHAPES", "Case", "measure"]


@dataclass(frozen=True)
class Shape:
    """Width of a model whose depth is cut."""

    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int
    sequence: int
    gated: bool


SHAPES = {
    "gpt-1.3b": Shape(2048, 16, 16, 8192, 51200, 2048, False),
    "llama-3.1-8b": Shape(4096, 32, 8, 14336, 128256, 4096, True),
    "llama-3.1-70b": Shape(8192, 64, 8, 28672, 128256, 8192, True),
    "llama-3.1-405b": Shape(16384, 128, 8, 53248, 128256, 8192, True),
}


@dataclass(frozen=True)
class Case:
    """What is run on one rank of dp x tp."""

    shape: str
    layers: int
    dp: int = 1
    tp: int = 1
    sequence_parallel: bool = False
    reshard: bool | int = True
    """``reshard_after_forward`` of every layer."""
    checkpoint: bool = False
    """Every layer recomputes its forward pass."""
    hybrid: int = 0
    """Ranks of one shard group where that is less than dp (HSDP)."""
    pieces: int = 1
    """Sequences of the micro-batch: so many, and each so many times shorter."""


WAYS: dict[str, dict[str, Any]] = {
    "one GPU": {},
    "FSDP2": {"dp": 8},
    "FSDP2, no reshard": {"dp": 8, "reshard": False},
    "FSDP2, reshard to 4": {"dp": 8, "reshard": 4},
    "HSDP": {"dp": 64, "hybrid": 8},
    "TP": {"tp": 8},
    "TP + SP": {"tp": 8, "sequence_parallel": True},
    "FSDP2 x TP + SP": {"dp": 8, "tp": 8, "sequence_parallel": True},
    "FSDP2 x TP + SP, no reshard": {
        "dp": 8, "tp": 8, "sequence_parallel": True, "reshard": False,
    },
    "FSDP2 x TP + SP, 4 sequences": {
        "dp": 8, "tp": 8, "sequence_parallel": True, "pieces": 4,
    },
}  # fmt: skip
"""Ways to split one model."""

CASES = {
    f"{shape}, {way}{', checkpointed' * checkpoint}, {layers} layers": Case(
        shape=shape, layers=layers, checkpoint=checkpoint, **degrees
    )
    for shape in SHAPES
    for way, degrees in WAYS.items()
    for checkpoint in (False, True)
    for layers in (2, 4)
}
"""Every combination that is frozen."""


class Norm(torch.autograd.Function):
    """RMS norm as a fused kernel does it: keeps its input and one fp32 number per row."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        ctx.save_for_backward(x, weight, x.new_empty((*x.shape[:-1], 1), dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return torch.empty_like(grad), torch.empty_like(ctx.saved_tensors[1])


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Any) -> Any:
        return Norm.apply(x, self.weight)


class SwiGLU(torch.autograd.Function):
    """Fused: keeps its two inputs, computes the gate again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, gate: Any, up: Any) -> Any:
        ctx.save_for_backward(gate, up)
        return torch.empty_like(gate)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return torch.empty_like(grad), torch.empty_like(grad)


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.width = shape.hidden // shape.heads
        kv = shape.kv_heads * self.width
        self.wq = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.wk = nn.Linear(shape.hidden, kv, bias=False)
        self.wv = nn.Linear(shape.hidden, kv, bias=False)
        self.wo = nn.Linear(shape.hidden, shape.hidden, bias=False)

    def forward(self, x: Any) -> Any:
        b, s, _ = x.shape
        q, k, v = (
            w(x).view(b, s, -1, self.width).transpose(1, 2) for w in (self.wq, self.wk, self.wv)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(mixed.transpose(1, 2).reshape(b, s, -1))


class MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gated = shape.gated
        self.w1 = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.w3 = nn.Linear(shape.hidden, shape.ffn, bias=False) if shape.gated else None
        self.w2 = nn.Linear(shape.ffn, shape.hidden, bias=False)

    def forward(self, x: Any) -> Any:
        if self.w3 is None:
            return self.w2(F.gelu(self.w1(x), approximate="tanh"))
        return self.w2(SwiGLU.apply(self.w1(x), self.w3(x)))


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(shape.hidden), RMSNorm(shape.hidden)
        self.attention, self.mlp = Attention(shape), MLP(shape)

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self, shape: Shape, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Block(shape) for _ in range(layers))
        self.norm = RMSNorm(shape.hidden)
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)

    def forward(self, words: Any) -> Any:
        x = self.words(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def split_tensors(model: Model, mesh: DeviceMesh, sequence: bool) -> None:
    """Tensor parallelism as torchtitan plans it for Llama, with a parallel loss.

    Without sequence parallelism the norms work on plain replicated tensors.
    """
    inner = Shard(1) if sequence else Replicate()
    norms = {"norm": SequenceParallel()} if sequence else {}
    parallelize_module(
        model,
        mesh,
        {
            "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=inner),
            "head": ColwiseParallel(
                input_layouts=inner, output_layouts=Shard(-1), use_local_output=False
            ),
            **norms,
        },
    )
    gathered = PrepareModuleInput(input_layouts=(inner,), desired_input_layouts=(Replicate(),))
    for layer in model.layers:
        names = [f"attention.{w}" for w in ("wq", "wk", "wv")] + ["mlp.w1"]
        plan: dict[str, Any] = {name: ColwiseParallel() for name in names}
        if layer.mlp.gated:
            plan["mlp.w3"] = ColwiseParallel()
        plan |= {name: RowwiseParallel(output_layouts=inner) for name in ("attention.wo", "mlp.w2")}
        plan |= {"attention": gathered, "mlp": gathered}
        if sequence:
            plan |= {"norm1": SequenceParallel(), "norm2": SequenceParallel()}
        parallelize_module(layer, mesh, plan)


def split_states(model: Model, mesh: DeviceMesh, reshard: bool | int) -> None:
    """FSDP2 as torchtitan applies it: a group for every layer, one for the rest."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    common: dict[str, Any] = {"mesh": mesh, "mp_policy": policy}
    for layer in model.layers:
        fully_shard(layer, **common, reshard_after_forward=reshard)
    fully_shard(model, **common, reshard_after_forward=False if reshard is False else None)


@contextmanager
def pretended(ranks: int) -> Iterator[None]:
    """A process group of which this process is rank 0 and the others do not exist."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    before, join = torch.get_default_dtype(), DeviceMesh._concatenate
    name = "_propagate_tensor_meta_non_cached"
    propagate = getattr(ShardingPropagator, name)

    def outside(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            with unset_fake_temporarily():
                return function(*arguments)

        return call

    regroup = _fully_shard._get_post_forward_mesh_info
    _fully_shard._get_post_forward_mesh_info = outside(regroup)  # so does it
    DeviceMesh._concatenate = staticmethod(outside(join))  # looks ranks up in a tensor
    setattr(ShardingPropagator, name, outside(propagate))  # full-size tensors that are no memory
    try:
        yield
    finally:
        _fully_shard._get_post_forward_mesh_info = regroup
        DeviceMesh._concatenate = staticmethod(join)
        setattr(ShardingPropagator, name, propagate)
        torch.set_default_dtype(before)
        dist.destroy_process_group()


def measure(case: Case) -> dict[str, dict[str, int]]:
    """Bytes by category: at rest after a step, after the forward pass, and at the peak.

    The second of two steps counts: the optimizer's state is there from its beginning.
    """
    shape = SHAPES[case.shape]
    with pretended(case.dp * case.tp):
        mesh = _mesh(case)
        tp = mesh["tp"] if case.tp > 1 else None
        names = tuple(n for n in mesh.mesh_dim_names or () if n != "tp")
        data = mesh[names] if case.dp > 1 else None
        torch.set_default_dtype(torch.float32 if data is not None else torch.bfloat16)
        with FakeTensorMode():
            model = _model(case, shape, tp, data)
            optimizer = _optimizer(model)
            length = shape.sequence // case.pieces
            words = torch.zeros(case.pieces, length, dtype=torch.int64)
            if data is None:
                tracker: Any = MemTracker()
                tracker.track_external(model, optimizer)
            else:
                tracker = FSDPMemTracker(model, optimizer)
            tracker.track_inputs((words,)) if data is not None else None
            found: dict[str, dict[str, int]] = {}
            with tracker:
                for _ in range(2):
                    tracker.reset_mod_stats()
                    tracker._peak_mem, tracker._peak_mem_snap = {}, {}
                    optimizer.zero_grad()
                    with loss_parallel() if case.tp > 1 else nullcontext():
                        logits = model(words)
                        loss = F.cross_entropy(logits.flatten(0, 1).float(), words.flatten())
                        del logits
                        found["forward"] = _bytes(tracker, "current")
                        loss.backward()
                        del loss
                    found["backward"] = _bytes(tracker, "current")
                    optimizer.step()
                found["rest"] = _bytes(tracker, "current")
                found["peak"] = _bytes(tracker, "peak")
    return found


def _mesh(case: Case) -> DeviceMesh:
    """The ranks as replicas x shards x tensor-parallel ranks, dimensions of one left out."""
    sizes = {
        "replicate": case.dp // case.hybrid if case.hybrid else 1,
        "shard": case.hybrid or case.dp,
        "tp": case.tp,
    }
    sizes = {name: n for name, n in sizes.items() if n > 1} or {"tp": 1}
    return init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def _model(case: Case, shape: Shape, tp: DeviceMesh | None, data: DeviceMesh | None) -> Model:
    """Build the model and split it; meshes are joined outside fake mode, which cannot do it."""
    model = Model(shape, case.layers)
    if tp is not None:
        split_tensors(model, tp, case.sequence_parallel)
    if case.checkpoint:
        for name, layer in list(model.layers.named_children()):
            model.layers.register_module(name, checkpoint_wrapper(layer))
    if data is not None:
        split_states(model, data, case.reshard)
    return model


def _optimizer(model: Model) -> torch.optim.Optimizer:
    """Fused AdamW, which needs no temporaries; plain tensors apart from distributed ones."""
    groups: dict[bool, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        groups.setdefault(isinstance(parameter, DTensor), []).append(parameter)
    return torch.optim.AdamW([{"params": group} for group in groups.values()], fused=True)


def _bytes(tracker: Any, moment: str) -> dict[str, int]:
    """Bytes by category, empty ones left out."""
    snapshot = next(iter(tracker.get_tracker_snapshot(moment).values()))
    return {str(getattr(k, "value", k)): int(v) for k, v in snapshot.items() if v}


def main() -> None:
    """Measure every case and print the document that is frozen."""
    cases = [{"name": name, **asdict(case), "bytes": measure(case)} for name, case in CASES.items()]
    document = {
        "torch": torch.__version__,
        "program": "tests/oracles/one_rank_memory.py",
        "shapes": {name: asdict(shape) for name, shape in SHAPES.items()},
    }
    head = json.dumps(document, indent=1).removesuffix("\n}")
    lines = ",\n".join(f"  {json.dumps(case)}" for case in cases)
    sys.stdout.write(f'{head},\n "cases": [\n{lines}\n ]\n}}\n')


if __name__ == "__main__":
    main()
