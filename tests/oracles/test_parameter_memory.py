"""States of one rank under FSDP2, sharded for real over a process group that only pretends."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from simulator.cost.step import evaluate
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.architecture import Architecture
from simulator.workload.recipe import Recipe, Workload

RANKS = 8


@pytest.fixture(scope="module")
def mesh() -> Iterator[dist.DeviceMesh]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield init_device_mesh("cpu", (RANKS,))
    dist.destroy_process_group()


class Layer(torch.nn.Module):
    """The linears of a Llama block, in a row; what they compute does not matter here."""

    def __init__(self, h: int, kv: int, f: int) -> None:
        super().__init__()
        sizes = {
            "q": (h, h),
            "k": (h, kv),
            "v": (h, kv),
            "o": (h, h),
            "g": (h, f),
            "u": (h, f),
            "d": (f, h),
        }
        self.linears = torch.nn.ModuleDict(
            {name: torch.nn.Linear(*size, bias=False) for name, size in sizes.items()}
        )
        self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(h) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part = self.linears
        y = self.norms[0](x)
        side = part["k"](y).sum(-1, keepdim=True) + part["v"](y).sum(-1, keepdim=True)
        x = x + part["o"](part["q"](y)) + side
        y = self.norms[1](x)
        return x + part["d"](part["g"](y) * part["u"](y))


class Model(torch.nn.Module):
    """Embedding, layers, norm and head of an architecture."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        att, f = arch.blocks[0].attention, arch.blocks[0].mlp.ffn_hidden
        kv = att.kv_heads * att.head_dim
        self.words = torch.nn.Embedding(arch.vocabulary, arch.hidden)
        self.layers = torch.nn.ModuleList(Layer(arch.hidden, kv, f) for _ in arch.layer_kinds)
        self.norm = torch.nn.RMSNorm(arch.hidden)
        self.head = torch.nn.Linear(arch.hidden, arch.vocabulary, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def local_bytes(tensors: list[torch.Tensor]) -> int:
    return sum(x.to_local().numel() * x.element_size() for x in tensors)  # type: ignore[attr-defined]


def test_fsdp2_keeps_sixteen_bytes_per_parameter_over_the_shards(mesh: dist.DeviceMesh) -> None:
    """fp32 shards, fp32 gradients and two fp32 moments, as torchtitan trains."""
    arch = replace(presets.load("llama-3.1-8b"), layer_kinds=(0, 0))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    with FakeTensorMode():
        model = Model(arch)
        for layer in model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.zeros(1, 64, dtype=torch.int64)).sum().backward()
        optimizer.step()
        parameters = list(model.parameters())
        weights = local_bytes(parameters)
        gradients = local_bytes([x.grad for x in parameters if x.grad is not None])
        moments = local_bytes(
            [
                state[name]
                for state in optimizer.state.values()
                for name in ("exp_avg", "exp_avg_sq")
            ]
        )
    # two micro-batches: gradients of the first lie there in full while the second is at its peak
    work = Workload(architecture=arch, recipe=Recipe(sequence_length=64, global_batch=2 * RANKS))
    layout = Layouts.of(dp=RANKS, sharding="zero3", global_batch=2 * RANKS)
    found = evaluate(layout, work, load_cluster("dgx-h100", RANKS), load_software("torchtitan"))
    held = {kind: float(size[0]) for kind, size in found.memory_bytes.items()}
    assert weights + moments == held["weights"] + held["optimizer"]
    assert gradients == held["gradients"]
    assert weights == 4 * arch.parameters / RANKS
