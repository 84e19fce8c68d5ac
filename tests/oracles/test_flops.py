"""FLOPs against torch's own counter, on the meta device.

torch counts causal attention in full, ours the causal half; everything else must agree to the FLOP.
"""

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from simulator.cost.operators.block_operators import block
from simulator.cost.operators.ends import head
from simulator.cost.operators.model_flop import model_flop_per_step
from simulator.cost.operators.operations import Operators, Ranks
from simulator.layout.layouts import Layouts
from simulator.layout.placement import place
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.architecture import MLP, Architecture, Attention, Block, MoE
from simulator.workload.recipe import Recipe

KERNELS = replace(load_software("megatron-core").kernels, pads_vocabulary_to=1)
UNFUSED = replace(KERNELS, attention="unfused")
PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.addmm)
BATCHED = (torch.ops.aten.bmm, torch.ops.aten.baddbmm)


def weight(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, device="meta", dtype=torch.bfloat16, requires_grad=True)


def counted(result: Any) -> tuple[dict[Any, int], dict[Any, int]]:
    """FLOPs by operator of a function's forward pass, and of its backward pass."""
    with FlopCounterMode(display=False) as forward:
        out = result()
    with FlopCounterMode(display=False) as backward:
        out.sum().backward()
    return tuple(mode.get_flop_counts().get("Global", {}) for mode in (forward, backward))


def part(counts: dict[Any, int], operators: tuple[Any, ...]) -> int:
    return sum(counts.get(operator, 0) for operator in operators)


def ours(arch: Architecture, kernels: Any, s: int, b: int) -> Operators:
    layout = Layouts.of(micro_batch=b)
    one = [getattr(layout, name).astype(float) for name in ("tp", "cp", "ep", "etp", "micro_batch")]
    ranks = Ranks(
        **dict(zip(("tp", "cp", "ep", "etp", "micro_batch"), one, strict=True)),
        sequence_parallel=layout.sequence_parallel.astype(bool),
        groups=place(layout, 8),
    )
    recipe = Recipe(sequence_length=s, global_batch=b)
    if not arch.layer_kinds:
        return head(arch, ranks, recipe, kernels)
    return block(arch.blocks[0], arch.hidden, ranks, recipe, kernels)


def products(ops: Operators, *kinds: str, batched: bool = False) -> float:
    chosen = [g for g in ops.gemms if g.kind in kinds and (g.name.startswith("expert") == batched)]
    return float(sum((2 * g.batch * g.m * g.n * g.k).item() for g in chosen))


def flash(ops: Operators) -> float:
    return float(sum(call.flop.item() for call in ops.flash))


def one_kind(kind: Block, hidden: int) -> Architecture:
    return Architecture(
        name="test",
        family="custom",
        hidden=hidden,
        blocks=(kind,),
        layer_kinds=(0,),
        vocabulary=1000,
    )


@pytest.mark.parametrize(("b", "s", "h", "heads"), [(1, 2048, 1600, 25), (2, 1024, 2048, 16)])
def test_gpt2_block(b: int, s: int, h: int, heads: int) -> None:
    attention = Attention(
        heads=heads, kv_heads=heads, head_dim=h // heads, qkv_bias=True, output_bias=True
    )
    mlp = MLP(ffn_hidden=4 * h, gated=False, bias=True)
    arch = one_kind(Block(attention=attention, mlp=mlp, norm="layer"), h)
    qkv, proj, fc1, fc2 = weight(3 * h, h), weight(h, h), weight(4 * h, h), weight(h, 4 * h)
    x, bias = weight(b, s, h), weight(h)

    def run() -> torch.Tensor:
        q, k, v = F.linear(x, qkv, weight(3 * h)).view(b, s, 3, heads, -1).permute(2, 0, 3, 1, 4)
        scores = torch.softmax(q @ k.transpose(-1, -2), -1)
        mixed = F.linear((scores @ v).transpose(1, 2).reshape(b, s, h), proj, bias)
        return F.linear(F.gelu(F.linear(mixed, fc1, weight(4 * h))), fc2, bias)

    forward, backward = counted(run)
    ops = ours(arch, UNFUSED, s, b)
    assert part(forward, PRODUCTS) == products(ops, "linear") == 24 * b * s * h * h
    assert part(backward, PRODUCTS) == 2 * products(ops, "linear")
    # both products of the unfused attention run over the whole matrix, as torch counts them
    assert part(forward, BATCHED) == products(ops, "attention") == 4 * b * s * s * h
    assert part(backward, BATCHED) == 2 * products(ops, "attention")
    assert part(forward, BATCHED) == 2 * flash(ours(arch, KERNELS, s, b))


@pytest.mark.parametrize(
    ("name", "b", "s"), [("llama-3.1-8b", 1, 8192), ("llama-3.1-70b", 2, 4096)]
)
def test_llama_block_with_grouped_queries(name: str, b: int, s: int) -> None:
    arch = presets.load(name)
    h, att, f = arch.hidden, arch.blocks[0].attention, arch.blocks[0].mlp.ffn_hidden
    kv = att.kv_heads * att.head_dim
    x, wq, wk, wv = weight(b, s, h), weight(h, h), weight(kv, h), weight(kv, h)
    wo, gate, up, down = weight(h, h), weight(f, h), weight(f, h), weight(h, f)

    def run() -> torch.Tensor:
        q, k, v = (
            F.linear(x, w).view(b, s, -1, att.head_dim).transpose(1, 2) for w in (wq, wk, wv)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        mixed = F.linear(mixed.transpose(1, 2).reshape(b, s, h), wo)
        return F.linear(F.silu(F.linear(mixed, gate)) * F.linear(mixed, up), down)

    forward, backward = counted(run)
    ops = ours(arch, KERNELS, s, b)
    assert part(forward, PRODUCTS) == products(ops, "linear")
    assert part(backward, PRODUCTS) == 2 * products(ops, "linear")
    assert sum(forward.values()) - part(forward, PRODUCTS) == 2 * flash(ops)
    assert sum(backward.values()) - part(backward, PRODUCTS) == 2 * 2 * flash(ops)


@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v2"])
def test_latent_attention(name: str) -> None:
    arch, s = presets.load(name), 4096
    h, att = arch.hidden, arch.blocks[0].attention
    heads, nope = att.heads, att.head_dim - att.rope_head_dim
    assert (att.head_dim, att.value_dim, att.rope_head_dim) == (192, 128, 64)
    x = weight(s, h)
    q_down, q_up = weight(att.q_lora_rank, h), weight(heads * att.head_dim, att.q_lora_rank)
    kv_down = weight(att.kv_lora_rank + att.rope_head_dim, h)
    kv_up = weight(heads * (nope + att.value_dim), att.kv_lora_rank)
    out = weight(h, heads * att.value_dim)

    def run() -> torch.Tensor:
        q = F.linear(F.linear(x, q_down), q_up).view(s, heads, att.head_dim)
        latent, rope = F.linear(x, kv_down).split([att.kv_lora_rank, att.rope_head_dim], -1)
        k, v = F.linear(latent, kv_up).view(s, heads, -1).split([nope, att.value_dim], -1)
        k = torch.cat([k, rope.unsqueeze(1).expand(-1, heads, -1)], -1)
        q, k, v = (t.transpose(0, 1) for t in (q, k, v))
        scores = torch.softmax(q @ k.transpose(-1, -2), -1)
        return F.linear((scores @ v).transpose(0, 1).reshape(s, -1), out)

    forward, backward = counted(run)
    ops = ours(arch, KERNELS, s, 1)
    ops.gemms = [g for g in ops.gemms if not g.name.startswith("fc")]
    assert part(forward, PRODUCTS) == products(ops, "linear")
    assert part(backward, PRODUCTS) == 2 * products(ops, "linear")
    assert part(forward, BATCHED) == 2 * flash(ops)


def experts(moe: MoE, h: int, tokens: int) -> tuple[dict[Any, int], dict[Any, int]]:
    """Router, routed experts as batched products over equal shares of tokens, shared experts."""
    e, f, share = moe.experts, moe.ffn_hidden, tokens * moe.top_k // moe.experts
    x, sorted_x, router = weight(tokens, h), weight(e, share, h), weight(e, h)
    up, down = weight(e, h, 2 * f), weight(e, f, h)
    wide = moe.shared_ffn_hidden
    shared_up, shared_down = weight(2 * wide, h), weight(h, wide)

    def run() -> torch.Tensor:
        gate, value = torch.bmm(sorted_x, up).chunk(2, -1)
        total = torch.bmm(F.silu(gate) * value, down).sum() + F.linear(x, router).sum()
        if wide:
            gate, value = F.linear(x, shared_up).chunk(2, -1)
            total = total + F.linear(F.silu(gate) * value, shared_down).sum()
        return total

    return counted(run)


@pytest.mark.parametrize("name", ["mixtral-8x7b", "qwen3-235b-a22b", "deepseek-v3", "gpt-oss-20b"])
def test_experts_as_batched_products(name: str) -> None:
    arch, s = presets.load(name), 4096
    kind = next(kind for kind in arch.blocks if kind.is_moe)
    moe = kind.mlp
    assert isinstance(moe, MoE)
    forward, backward = experts(moe, arch.hidden, s)
    ops = ours(one_kind(kind, arch.hidden), KERNELS, s, 1)
    ops.gemms = [g for g in ops.gemms if "fc" in g.name or g.name == "router"]
    assert part(forward, BATCHED) == products(ops, "linear", batched=True)
    assert part(forward, BATCHED) == 6 * s * moe.top_k * arch.hidden * moe.ffn_hidden
    assert part(backward, BATCHED) == 2 * part(forward, BATCHED)
    assert part(forward, PRODUCTS) == products(ops, "linear", "head")
    assert part(backward, PRODUCTS) == 2 * part(forward, PRODUCTS)


def test_the_head_is_one_product_with_the_vocabulary() -> None:
    arch, s = presets.load("llama-3.1-8b"), 8192
    x, table = weight(s, arch.hidden), weight(arch.vocabulary, arch.hidden)
    forward, backward = counted(lambda: F.linear(x, table))
    ops = ours(replace(arch, layer_kinds=()), KERNELS, s, 1)
    assert part(forward, PRODUCTS) == products(ops, "head")
    assert part(backward, PRODUCTS) == 2 * products(ops, "head")


@pytest.mark.parametrize(
    ("name", "torch_counts"),
    [("llama-3-8b", 4.744221e14), ("llama-3.1-405b", 2.150748e16)],
)
def test_whole_models_at_8192_tokens(name: str, torch_counts: float) -> None:
    # transformers models under torch 2.13's counter, forward and backward: attention in full
    arch, s = presets.load(name), 8192
    att = arch.blocks[0].attention
    masked_half = 3 * arch.layers * 2 * s * s * att.heads * att.head_dim
    model = model_flop_per_step(arch, tokens=s, sequence_length=s)
    assert model + masked_half == pytest.approx(torch_counts, rel=1e-6)
