"""Bytes that torch's own optimizers keep for a small model, against ours: exact."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from simulator.cost.states.state_bytes import part_states
from simulator.layout.layouts import Layouts
from simulator.software.profile import load_software
from simulator.workload.architecture import MLP, Architecture, Attention, Block
from simulator.workload.recipe import Recipe, Workload

H, F, V, L = 64, 160, 320, 3
TINY = Architecture(
    name="tiny",
    family="llama",
    hidden=H,
    blocks=(Block(attention=Attention(heads=4, kv_heads=2, head_dim=16), mlp=MLP(ffn_hidden=F)),),
    layer_kinds=(0,) * L,
    vocabulary=V,
)
BLOCK = [(H, H), (H // 2, H), (H // 2, H), (H, H), (F, H), (F, H), (H, F)]
"""Queries, keys, values, output, gate, up, down: one head size of 16, two key heads."""

Parameters = Iterable[torch.nn.Parameter]


def parameters(dtype: torch.dtype) -> tuple[list[Any], list[Any]]:
    """The blocks' matrices, and everything else: norms, embedding, head."""
    matrices = [torch.nn.Parameter(torch.zeros(s, dtype=dtype)) for s in BLOCK * L]
    others = [(H,)] * (2 * L + 1) + [(V, H)] * 2
    return matrices, [torch.nn.Parameter(torch.zeros(s, dtype=dtype)) for s in others]


def kept(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of all states after a step but the step counters."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return sum(
        value.nbytes
        for state in optimizer.state.values()
        for name, value in state.items()
        if torch.is_tensor(value) and name != "step"
    )


def ours(**recipe: Any) -> float:
    work = Workload(architecture=TINY, recipe=Recipe(sequence_length=64, global_batch=1, **recipe))
    found = part_states(work, load_software("plain-ddp"), Layouts.of())
    master = 4.0 * found.trained if recipe.get("precision") != "fp32" else 0.0
    moments = (found.optimizer - master).sum(axis=0)[0]
    return float(moments @ [L, 1, 1])


CASES: list[tuple[str, Callable[[Parameters], torch.optim.Optimizer]]] = [
    ("adamw", torch.optim.AdamW),
    ("adafactor", torch.optim.Adafactor),
    ("sgd", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
]


@pytest.mark.parametrize(("name", "make"), CASES)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_states(name: str, make: Callable[[Parameters], torch.optim.Optimizer], dtype: str) -> None:
    matrices, others = parameters({"fp32": torch.float32, "bf16": torch.bfloat16}[dtype])
    found = ours(precision="fp32", optimizer=name, moment_dtype=dtype)
    assert found == kept(make([*matrices, *others]))


def test_muon_takes_the_matrices_and_adamw_the_rest() -> None:
    matrices, others = parameters(torch.float32)
    both = kept(torch.optim.Muon(matrices)) + kept(torch.optim.AdamW(others))
    assert ours(precision="fp32", optimizer="muon") == both


def test_products_of_muons_step() -> None:
    """FLOPs that torch counts in one step over the blocks' matrices: 5 (4 m² n + 2 m³) each."""
    from torch.utils.flop_counter import FlopCounterMode

    from simulator.cost.states.optimizers import NEWTON_SCHULZ_STEPS

    matrices, _ = parameters(torch.float32)
    optimizer = torch.optim.Muon(matrices)
    for parameter in matrices:
        parameter.grad = torch.ones_like(parameter)
    with FlopCounterMode(display=False) as counter:
        optimizer.step()
    small, large = zip(*((min(s), max(s)) for s in BLOCK), strict=True)
    by_hand = sum(
        NEWTON_SCHULZ_STEPS * (4 * m * m * n + 2 * m**3) for m, n in zip(small, large, strict=True)
    )
    assert counter.get_total_flops() == L * by_hand
