"""Yuan 2.0, which transformers has not: its layer built of torch's own modules on the meta device.

Sizes and structure as in IEITYuan's configuration_yuan.py and yuan_hf_model.py: two causal
convolutions over two tokens in front of queries and keys, their sum with the input normed.
"""

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from simulator.cost.operators.block_operators import block
from simulator.workload import presets
from simulator.workload.recipe import Recipe
from tests.oracles.test_families import UNFUSED, alone

LENGTH = 64


class Filter(nn.Module):
    """Localized filtering."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.narrow = nn.Conv2d(hidden, hidden // 2, (2, 1))
        self.widen = nn.Conv2d(hidden // 2, hidden, (2, 1))
        self.norm = nn.RMSNorm(hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.transpose(1, 2).unsqueeze(-1)  # batch, channels, tokens, 1
        rows = self.narrow(nn.functional.pad(rows, (0, 0, 1, 0)))
        rows = self.widen(nn.functional.pad(rows, (0, 0, 1, 0)))
        return self.norm(rows.squeeze(-1).transpose(1, 2) + x)


class Layer(nn.Module):
    """One decoder layer, its attention written out."""

    def __init__(self, hidden: int, inner: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.RMSNorm(hidden), nn.RMSNorm(hidden)])
        self.filter = Filter(hidden)
        self.query, self.key, self.value, self.out = (
            nn.Linear(hidden, hidden, bias=False) for _ in range(4)
        )
        self.gate, self.up = (nn.Linear(hidden, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, hidden = x.shape
        normed = self.norms[0](x)
        near = self.filter(normed)

        def heads(states: torch.Tensor) -> torch.Tensor:
            return states.view(batch, length, self.heads, -1).transpose(1, 2)

        query, key, value = heads(self.query(near)), heads(self.key(near)), self.value(normed)
        weights = torch.softmax(query @ key.transpose(2, 3), dim=-1)
        mixed = (weights @ heads(value)).transpose(1, 2).reshape(batch, length, hidden)
        x = x + self.out(mixed)
        normed = self.norms[1](x)
        return x + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))


@pytest.mark.parametrize(
    ("name", "layers", "published"), [("yuan2-2b", 24, 2.1e9), ("yuan2-51b", 42, 51.8e9)]
)
def test_parameters(name: str, layers: int, published: float) -> None:
    arch = presets.load(name)
    kind = arch.blocks[0]
    with torch.device("meta"):
        layer = Layer(arch.hidden, kind.mlp.ffn_hidden, kind.attention.heads)
        each = sum(p.numel() for p in layer.parameters())
    assert kind.parameters(arch.hidden) == each
    assert arch.parameters == layers * each + 135_040 * arch.hidden + arch.hidden
    assert arch.parameters == pytest.approx(published, rel=6e-3)


def test_the_largest_of_the_family_has_twice_the_layers() -> None:
    """Yuan 2.0-102B: 84 layers as wide as those of the 51B; published as 102.6 billion."""
    arch = presets.load("yuan2-51b")
    layer = arch.blocks[0].parameters(arch.hidden)
    assert arch.parameters + 42 * layer == pytest.approx(102.6e9, rel=1e-3)


def test_forward_flop_of_a_layer() -> None:
    arch = presets.load("yuan2-2b")
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        Layer(arch.hidden, 8192, 32)(torch.empty(2, LENGTH, arch.hidden))
    recipe = Recipe(sequence_length=LENGTH, global_batch=2)
    ops = block(arch.blocks[0], arch.hidden, alone(), recipe, UNFUSED)
    found = sum(float((2 * g.batch * g.m * g.n * g.k).item()) for g in ops.gemms)
    assert found == counter.get_total_flops()
