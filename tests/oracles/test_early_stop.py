"""What torch recomputes of a checkpointed block, counted by torch, against full recomputation."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from simulator.cost.pricing import price
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.software.profile import load_software
from simulator.workload.architecture import MLP, Architecture, Attention, Block
from simulator.workload.recipe import Recipe, Workload

HIDDEN, FFN, HEADS, TOKENS = 64, 192, 4, 32


class TorchBlock(nn.Module):
    """A block of a decoder, as torchtitan and torchtune have it."""

    def __init__(self, dropout: float, norm_behind: bool = False) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(HIDDEN) for _ in range(2))
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.out = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.gate_up = nn.Linear(HIDDEN, 2 * FFN, bias=False)
        self.down = nn.Linear(FFN, HIDDEN, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.behind = nn.RMSNorm(HIDDEN) if norm_behind else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.norms[0](x)).chunk(3, dim=-1)
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in parts)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.norms[1](x)).chunk(2, dim=-1)
        return x + self.dropout(self.behind(self.down(nn.functional.silu(gate) * up)))


def repeated_flop(*, reentrant: bool, dropout: float, norm_behind: bool = False) -> tuple[int, int]:
    """FLOPs of products in one forward pass, and those that a checkpoint repeats, by torch."""
    block = TorchBlock(dropout, norm_behind)
    x = torch.randn(1, TOKENS, HIDDEN, requires_grad=True)
    with FlopCounterMode(display=False) as forward:
        block(x)
    with FlopCounterMode(display=False) as plain:
        block(x).sum().backward()
    with FlopCounterMode(display=False) as again:
        checkpoint(block, x, use_reentrant=reentrant).sum().backward()
    return forward.get_total_flops(), again.get_total_flops() - plain.get_total_flops()


def full_flop(software: str, *, dropout: bool) -> float:
    """What Foreshard says full recomputation repeats of the same block."""
    attention = Attention(heads=HEADS, kv_heads=HEADS, head_dim=HIDDEN // HEADS)
    block = Block(attention=attention, mlp=MLP(ffn_hidden=FFN, gated=True), dropout=dropout)
    model = Architecture(
        name="block",
        family="llama",
        hidden=HIDDEN,
        vocabulary=128,
        blocks=(block,),
        layer_kinds=(0,),
    )
    work = Workload(architecture=model, recipe=Recipe(sequence_length=TOKENS, global_batch=1))
    layouts = Layouts.of(global_batch=1, recompute="full")
    blocks = price(layouts, work, load_cluster("dgx-h100", 1), load_software(software)).blocks
    return float(blocks.full_flop[0, 0])


@pytest.mark.parametrize(
    ("software", "reentrant"),
    [("torchtitan", False), ("plain-ddp", False), ("megatron-core", True)],
)
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_products_left_out_are_those_that_torch_leaves_out(
    software: str, reentrant: bool, dropout: float
) -> None:
    forward, repeated = repeated_flop(reentrant=reentrant, dropout=dropout)
    left_out = forward - repeated
    expected = 2 * TOKENS * FFN * HIDDEN if not reentrant and not dropout else 0
    assert left_out == expected  # torch itself
    whole = full_flop("megatron-core", dropout=dropout > 0)
    assert whole - full_flop(software, dropout=dropout > 0) == left_out


def test_a_norm_behind_the_last_linear_makes_torch_run_it_again() -> None:
    forward, repeated = repeated_flop(reentrant=False, dropout=0.0, norm_behind=True)
    assert repeated == forward
