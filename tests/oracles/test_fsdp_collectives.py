"""FSDP2's collectives, counted by torch itself on a pretended process group of 64 ranks.

Every collective that ``torch.distributed.fsdp.fully_shard`` asks for in two micro-batches is
written down with its bytes and its ranks; priced one by one they must come to what our states cost.
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.utils._python_dispatch import TorchDispatchMode

from simulator.cost.collectives.calls import all_gather_s, all_reduce_s, reduce_scatter_s
from simulator.cost.passes import part_passes
from simulator.cost.pricing import price
from simulator.hardware.cluster import load_cluster, with_release
from simulator.layout.layouts import Layouts
from simulator.layout.placement import Group
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

sys.path.insert(0, str(Path(__file__).parent))

from one_rank_memory import Model, Shape, pretended, split_states

RANKS, LAYERS, MICRO_BATCHES = 64, 3, 2
SHAPE = Shape(256, 4, 2, 512, 1024, 16, True)
CLUSTER = load_cluster("dgx-h100", RANKS)
SOFTWARE = load_software("torchtitan")


@dataclass(frozen=True)
class Call:
    """One collective: what it is, bytes of the whole tensor, ranks."""

    kind: str
    size_bytes: float
    ranks: int


class Recorder(TorchDispatchMode):
    """Writes down every collective that torch asks for."""

    def __init__(self, replicas: int) -> None:
        super().__init__()
        self.replicas, self.calls = replicas, list[Call]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if "_allgather_base_" in name or "_reduce_scatter_base_" in name:
            kind = "gather" if "allgather" in name else "reduce"
            whole, share = sorted((x.nbytes for x in args[:2]), reverse=True)
            self.calls.append(Call(kind, whole, whole // share))
        elif "c10d.allreduce_" in name:
            size = sum(x.nbytes for x in args[0])
            self.calls.append(Call("replicas", size, self.replicas))
        return func(*args, **(kwargs or {}))


def torch_calls(reshard: bool | int, hybrid: int = 0) -> list[list[Call]]:
    """Collectives of each micro-batch of a small Llama."""
    found = []
    with pretended(RANKS):
        names, sizes = ("shard",), (RANKS,)
        if hybrid:
            names, sizes = ("replicate", "shard"), (RANKS // hybrid, hybrid)
        mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
        torch.set_default_dtype(torch.float32)
        model = Model(SHAPE, LAYERS)
        split_states(model, mesh, reshard)
        words = torch.zeros(1, SHAPE.sequence, dtype=torch.int64)
        for _ in range(MICRO_BATCHES):
            with Recorder(RANKS // hybrid if hybrid else 1) as seen:
                logits = model(words)
                F.cross_entropy(logits.flatten(0, 1).float(), words.flatten()).backward()
            found.append(seen.calls)
    return found


def of_kind(calls: list[Call], kind: str) -> list[Call]:
    return [call for call in calls if call.kind == kind]


def block_bytes() -> int:
    """bf16 weights of one block: q, k, v, o, gate, up, down and two norms."""
    h, kv = SHAPE.hidden, SHAPE.hidden // SHAPE.heads * SHAPE.kv_heads
    return 2 * (2 * h * h + 2 * h * kv + 3 * h * SHAPE.ffn + 2 * h)


ROOT = 2 * (2 * SHAPE.vocabulary * SHAPE.hidden + SHAPE.hidden)
"""bf16 embedding, head and last norm."""


@pytest.mark.parametrize(
    ("reshard", "second"), [(True, RANKS), (False, 0), (8, 8), (4, 4), (RANKS, RANKS), (1, 0)]
)
def test_blocks_are_gathered_over_all_then_over_the_smaller_group(
    reshard: bool | int, second: int
) -> None:
    """By hand: in every micro-batch root and blocks over 64, and the blocks again over `second`."""
    for calls in torch_calls(reshard):
        gathers = of_kind(calls, "gather")
        forward = [Call("gather", ROOT, RANKS), *[Call("gather", block_bytes(), RANKS)] * LAYERS]
        again = [Call("gather", block_bytes(), second)] * (LAYERS if second else 0)
        assert sorted(gathers, key=repr) == sorted([*forward, *again], key=repr)
        assert len(of_kind(calls, "reduce")) == LAYERS + 1


def workload() -> Workload:
    base = presets.load("llama-3.1-8b")
    kind = base.blocks[0]
    att = replace(
        kind.attention,
        heads=SHAPE.heads,
        kv_heads=SHAPE.kv_heads,
        head_dim=SHAPE.hidden // SHAPE.heads,
    )
    arch = replace(
        base,
        hidden=SHAPE.hidden,
        vocabulary=SHAPE.vocabulary,
        layer_kinds=(0,) * LAYERS,
        blocks=(replace(kind, attention=att, mlp=replace(kind.mlp, ffn_hidden=SHAPE.ffn)),),
    )
    recipe = Recipe(sequence_length=SHAPE.sequence, global_batch=RANKS * MICRO_BATCHES)
    return Workload(architecture=arch, recipe=recipe)


def seconds(call: Call, hybrid: int) -> float:
    """One collective, priced by itself: ranks are numbered server by server."""
    local = min(call.ranks, CLUSTER.domain)
    if call.kind == "replicas" and hybrid == CLUSTER.domain:
        local = 1
    group = Group(size=np.array([call.ranks]), local=np.array([local]))
    cost = {"gather": all_gather_s, "reduce": reduce_scatter_s, "replicas": all_reduce_s}[call.kind]
    return float(
        cost(with_release(CLUSTER, SOFTWARE.kernels.nccl), float(call.size_bytes), group)[0]
    )


@pytest.mark.parametrize(
    ("reshard", "hybrid"), [(True, 0), (False, 0), (8, 0), (16, 0), (True, 8), (False, 8)]
)
def test_our_gathers_and_reductions_are_those_of_torch(reshard: bool | int, hybrid: int) -> None:
    """Exposed and hidden time of a micro-batch's collectives add up to those torch asks for."""
    table = Layouts.of(
        dp=RANKS,
        sharding="zero3",
        shard_group=hybrid or RANKS,
        reshard_after_forward=reshard,
        global_batch=RANKS * MICRO_BATCHES,
    )
    priced = price(table, workload(), CLUSTER, SOFTWARE)
    none = np.zeros((1, 3))
    passes = part_passes(
        priced, table, priced.block_key, priced.state_key, table.micro_batches, none
    )
    block, embedding, head = (passes.fsdp_s + passes.hidden_s).sum(axis=0)[0]
    calls = torch_calls(reshard, hybrid)[1]
    root = [
        call for call in calls if call.size_bytes in (ROOT, 2 * ROOT, 2 * ROOT // (hybrid or RANKS))
    ]
    blocks = [call for call in calls if call not in root]
    assert LAYERS * block == pytest.approx(sum(seconds(x, hybrid) for x in blocks), rel=1e-12)
    # torch moves embedding and head (with the last norm) in one collective, we price two
    table_share = 2 * SHAPE.vocabulary * SHAPE.hidden / ROOT
    shares = [
        replace(x, size_bytes=x.size_bytes * part)
        for x in root
        for part in (table_share, 1 - table_share)
    ]
    expected = sum(seconds(x, hybrid) for x in shares)
    assert embedding + head == pytest.approx(expected, rel=1e-12)
