"""Heads of several tasks against a torch module on the meta device: counts, FLOPs, kept bytes."""

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from simulator.cost.operators.ends import head
from simulator.cost.operators.matrices import rank_parameters
from simulator.cost.operators.model_flop import model_flop_per_step
from simulator.workload import presets
from simulator.workload.architecture import Architecture
from simulator.workload.recipe import Recipe
from simulator.workload.tasks import TaskHeads
from tests.oracles.test_families import UNFUSED, alone

HIDDEN, VECTORS, LENGTH = 64, 2, 48


def tower(inputs: int, inner: int, outputs: int) -> nn.Module:
    if not inner:
        return nn.Linear(inputs, outputs)
    return nn.Sequential(nn.Linear(inputs, inner), nn.ReLU(), nn.Linear(inner, outputs))


class Tasks(nn.Module):
    """Multi-gate mixture of experts (Ma et al. 2018), or towers on a shared bottom."""

    def __init__(self, given: TaskHeads) -> None:
        super().__init__()
        wide = given.expert_outputs or HIDDEN
        self.experts = nn.ModuleList(
            tower(HIDDEN, given.expert_hidden, wide) for _ in range(given.experts)
        )
        gates = given.outputs if given.experts else ()
        self.gates = nn.ModuleList(nn.Linear(HIDDEN, given.experts, bias=False) for _ in gates)
        reads = wide if given.experts else HIDDEN
        self.towers = nn.ModuleList(tower(reads, given.tower_hidden, n) for n in given.outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inputs = [x] * len(self.towers)
        if self.experts:
            results = torch.stack([expert(x) for expert in self.experts], dim=1)
            weights = [torch.softmax(gate(x), dim=-1) for gate in self.gates]
            inputs = [torch.bmm(one.unsqueeze(1), results).squeeze(1) for one in weights]
        losses = [
            nn.functional.cross_entropy(
                one(y), torch.zeros(len(x), dtype=torch.long, device="meta")
            )
            for one, y in zip(self.towers, inputs, strict=True)
        ]
        return torch.stack(losses).sum()


def kept_bytes(run: Any) -> int:
    """Floating-point tensors that autograd saves, parameters and scalars left out."""
    storages: dict[int, torch.UntypedStorage] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        base = x._base if x._base is not None else x
        mine = x.is_floating_point() and x.numel() > 1 and not isinstance(base, nn.Parameter)
        if mine:
            storages[x.untyped_storage()._cdata] = x.untyped_storage()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        run()
    return sum(storage.nbytes() for storage in storages.values())


MMOE = TaskHeads(outputs=(3, 3, 7), tower_hidden=16, experts=5, expert_hidden=32, expert_outputs=24)
CASES = [
    MMOE,
    replace(MMOE, expert_outputs=0, tower_hidden=0),
    replace(MMOE, outputs=(2,)),
    TaskHeads(outputs=(3, 5), tower_hidden=16),
    TaskHeads(outputs=(3, 5)),
    replace(MMOE, per_token=True),
]


def small(tasks: TaskHeads) -> Architecture:
    """A model of this width whose own output is gone, with no other classifier."""
    base = presets.load("llama-3.2-1b")
    return replace(base, hidden=HIDDEN, tasks=tasks, final_norm="none", vocabulary=100)


def forward_flop(tasks: TaskHeads, width: int) -> float:
    """FLOPs for one vector: two per weight, and the weighted sums of the experts' results."""
    return sum(weight.flop for weight in tasks.weights(width)) + tasks.mixing_flop(width)


@pytest.mark.parametrize("tasks", CASES)
def test_against_torch(tasks: TaskHeads) -> None:
    vectors = VECTORS * (LENGTH if tasks.per_token else 1)
    with torch.device("meta"):
        module, x = Tasks(tasks), torch.empty(vectors, HIDDEN)
        with FlopCounterMode(display=False) as counter:
            module(x)
        whole = kept_bytes(lambda: module(x))
    assert tasks.parameters(HIDDEN) == sum(p.numel() for p in module.parameters())
    assert forward_flop(tasks, HIDDEN) * vectors == counter.get_total_flops()
    recipe = Recipe(sequence_length=LENGTH, global_batch=VECTORS, precision="fp32")
    ops = head(small(tasks), alone(), recipe, UNFUSED)
    flop = sum(float((2 * g.batch * g.m * g.n * g.k).item()) for g in ops.gemms)
    assert flop == counter.get_total_flops()
    assert sum(float(x.size_bytes.item()) for x in ops.saved) == whole


def test_tasks_stand_instead_of_the_output_or_beside_it() -> None:
    base = presets.load("llama-3.1-8b")  # 128,256 x 4096, not tied
    table, own = 128_256 * 4096, replace(MMOE, expert_hidden=512).parameters(4096)
    tasks = replace(MMOE, expert_hidden=512)
    alone_, beside = (replace(base, tasks=replace(tasks, keeps_output=x)) for x in (False, True))
    assert alone_.parameters == base.parameters - table + own
    assert beside.parameters == base.parameters + own
    for arch in (alone_, beside):
        *_, last = rank_parameters(arch, tp=1, pp=4, kernels=UNFUSED)
        assert last == arch.head_parameters
    # a tied table is the embedding's on its own stage, and on no other without an output
    tied = presets.load("llama-3.2-1b")
    *_, last = rank_parameters(replace(tied, tasks=tasks), tp=1, pp=4, kernels=UNFUSED)
    assert last == 2048 + tasks.parameters(2048)


def test_model_flop_of_tasks_is_per_sequence_or_per_token() -> None:
    base = presets.load("llama-3.1-8b")

    def flop(arch: Architecture) -> float:
        return model_flop_per_step(arch, tokens=4096, sequence_length=1024)

    output = 3 * 2 * 128_256 * 4096 * 4096
    each = 3 * forward_flop(MMOE, 4096)
    pooled, every = (replace(base, tasks=replace(MMOE, per_token=x)) for x in (False, True))
    assert flop(pooled) == pytest.approx(flop(base) - output + 4 * each, rel=1e-12)
    assert flop(every) == pytest.approx(flop(base) - output + 4096 * each, rel=1e-12)


def test_every_tensor_rank_has_the_tasks_whole() -> None:
    arch = replace(presets.load("llama-3.1-8b"), tasks=MMOE)
    one, eight = (rank_parameters(arch, tp=t, pp=1, kernels=UNFUSED)[-1] for t in (1, 8))
    assert one == eight == 4096 + MMOE.parameters(4096)


def test_shares_of_the_batch_by_hand() -> None:
    """Three tasks of 2, 2 and 5 outputs, a tower each: two see half and a tenth of the samples."""
    heads = {"outputs": (2, 2, 5), "tower_hidden": 256, "experts": 8, "expert_hidden": 2048}
    every, some = TaskHeads(**heads), TaskHeads(**heads, batch_fractions=(1.0, 0.5, 0.1))
    h, e, t = 1024, 2048, 256
    assert some.parameters(h) == every.parameters(h)
    shared = 8 * 2 * h * e + 3 * 8 * h
    towers = (1.0 + 0.5 + 0.1) * (h * t + 8 * h) + t * (2 + 0.5 * 2 + 0.1 * 5)
    assert forward_flop(some, h) == pytest.approx(2 * (shared + towers))
