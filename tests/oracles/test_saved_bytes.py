"""Bytes that a block keeps for its backward pass, against what autograd saves under fake tensors.

The device is the processor's (fake: nothing is computed). Kernels that save other tensors there
than on a GPU are written as autograd functions that save what the GPU's do: norms, rotation, fused
SwiGLU, flash attention with values of another width. Dropout is ``torch.native_dropout``, whose
mask takes one byte.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from simulator.cost.operators.block_operators import block
from simulator.cost.operators.operations import Ranks
from simulator.layout.layouts import Layouts
from simulator.layout.placement import place
from simulator.software.kernels import Kernels
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.architecture import Block
from simulator.workload.recipe import Recipe

FUSED = load_software("megatron-core").kernels
UNFUSED = load_software("megatron-lm-2022").kernels
EAGER = replace(FUSED, fused=tuple(x for x in FUSED.fused if x != "bias_activation"))


@pytest.fixture(autouse=True)
def fake() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    with FakeTensorMode():
        yield
    torch.set_default_dtype(before)


class Norm(torch.autograd.Function):
    """RMS norm as a fused kernel does it: keeps its input and one fp32 number per row."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x, x.new_empty((*x.shape[:-1], 1), dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad


class Rotate(torch.autograd.Function):
    """Rotary positions: linear in its input, keeps nothing of it."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return torch.empty(x.shape)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad


class SwiGLU(torch.autograd.Function):
    """Fused: keeps its input, computes the gate again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return torch.cat([grad, grad], -1)


class Flash(torch.autograd.Function):
    """Keeps queries, keys, values, result and the log-sum-exp of every row in fp32."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any) -> Any:
        out = v.new_empty((*q.shape[:-1], v.shape[-1]))
        ctx.save_for_backward(q, k, v, out, q.new_empty(q.shape[:-1], dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad, grad, grad


def parameter(*shape: int) -> torch.Tensor:
    return torch.nn.Parameter(torch.empty(*shape))


def kept(forward: Callable[[], torch.Tensor], *, statistics: bool = True) -> int:
    """Bytes of the distinct storages that autograd saves, parameters left out."""
    storages: dict[int, Any] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        if not isinstance(x, torch.nn.Parameter) and (statistics or x.shape[-1] != 1):
            base = x._base if x._base is not None else x
            if not isinstance(base, torch.nn.Parameter):
                storage = x.untyped_storage()
                storages[storage._cdata] = storage
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        result = forward()
    assert result.requires_grad
    return sum(storage.nbytes() for storage in storages.values())


def ours(
    kind: Block,
    hidden: int,
    s: int,
    b: int,
    kernels: Kernels,
    *,
    without: tuple[str, ...] = (),
    **recipe: Any,
) -> float:
    layout = Layouts.of(micro_batch=b)
    degrees = {x: getattr(layout, x).astype(float) for x in ("tp", "cp", "ep", "etp")}
    ranks = Ranks(
        **degrees,
        micro_batch=layout.micro_batch.astype(float),
        sequence_parallel=layout.sequence_parallel.astype(bool),
        groups=place(layout, 8),
    )
    ops = block(kind, hidden, ranks, Recipe(sequence_length=s, global_batch=b, **recipe), kernels)
    return sum(
        float(x.size_bytes.sum()) for x in ops.saved if not any(w in x.name for w in without)
    )


def stream(*shape: int) -> torch.Tensor:
    """The residual stream as the block before hands it over."""
    return parameter(*shape) * 1


def dropped(x: torch.Tensor) -> torch.Tensor:
    return torch.native_dropout(x, 0.1, True)[0]


@pytest.mark.parametrize(("h", "heads", "s", "b"), [(2048, 16, 2048, 1), (1024, 16, 512, 4)])
def test_gpt_block_with_dropout_and_unfused_attention(h: int, heads: int, s: int, b: int) -> None:
    """Also what Korthikanti 2022 counts: s b h (34 + 5 a s / h), the norms' statistics left out."""
    model = presets.load("megatron-22b").blocks[0]
    attention = replace(model.attention, heads=heads, kv_heads=heads, head_dim=h // heads)
    kind = replace(model, attention=attention, mlp=replace(model.mlp, ffn_hidden=4 * h))
    qkv, proj, fc1, fc2 = (
        parameter(3 * h, h),
        parameter(h, h),
        parameter(4 * h, h),
        parameter(h, 4 * h),
    )

    def norm(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (h,), parameter(h), parameter(h))

    def forward() -> torch.Tensor:
        x = stream(b, s, h)
        q, k, v = F.linear(norm(x), qkv).view(b, s, 3, heads, -1).permute(2, 0, 3, 1, 4)
        weights = dropped(torch.softmax(q @ k.transpose(-1, -2), -1))
        mixed = (weights @ v).transpose(1, 2).reshape(b, s, h)
        x = x + dropped(F.linear(mixed, proj, parameter(h)))
        inner = F.gelu(F.linear(norm(x), fc1, parameter(4 * h)), approximate="tanh")
        return x + dropped(F.linear(inner, fc2, parameter(h)))

    found = kept(forward, statistics=False)
    assert found == s * b * h * 34 + 5 * heads * s * s * b
    assert found == ours(kind, h, s, b, UNFUSED, without=("statistics",))


def llama(name: str, s: int, b: int, activation: str) -> Callable[[], torch.Tensor]:
    arch = presets.load(name)
    kind, h = arch.blocks[0], arch.hidden
    att, f = kind.attention, kind.mlp.ffn_hidden
    wide, kv = att.heads * att.head_dim, att.kv_heads * att.head_dim
    wq, wk, wv, wo = parameter(wide, h), parameter(kv, h), parameter(kv, h), parameter(h, wide)
    up, gate, down = parameter(2 * f, h), parameter(f, h), parameter(h, f)

    def heads(y: torch.Tensor, weight: torch.Tensor, normed: bool, turned: bool) -> torch.Tensor:
        y = F.linear(y, weight).view(b, s, -1, att.head_dim)
        y = Norm.apply(y) if normed else y
        return (Rotate.apply(y) if turned else y).transpose(1, 2)

    def forward() -> torch.Tensor:
        x = stream(b, s, h)
        y = Norm.apply(x)
        q, k = (heads(y, w, normed=att.qk_norm, turned=True) for w in (wq, wk))
        v = heads(y, wv, normed=False, turned=False)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + F.linear(mixed.transpose(1, 2).reshape(b, s, wide), wo)
        y = Norm.apply(x)
        if activation == "fused":
            return x + F.linear(SwiGLU.apply(F.linear(y, up)), down)
        return x + F.linear(F.silu(F.linear(y, gate)) * F.linear(y, parameter(f, h)), down)

    return forward


@pytest.mark.parametrize("activation", ["fused", "eager"])
@pytest.mark.parametrize(
    ("name", "s", "b"),
    [("llama-3.1-8b", 4096, 1), ("llama-3.1-70b", 8192, 1), ("llama-2-7b", 2048, 3)],
)
def test_llama_block_with_grouped_queries(name: str, s: int, b: int, activation: str) -> None:
    arch = presets.load(name)
    kernels = FUSED if activation == "fused" else EAGER
    found = kept(llama(name, s, b, activation))
    att, f = arch.blocks[0].attention, arch.blocks[0].mlp.ffn_hidden
    per_token = 12 * arch.hidden + 4 * att.kv_heads * att.head_dim + 4 * att.heads + 8
    assert found == s * b * (per_token + (6 if activation == "fused" else 8) * f)
    assert found == ours(arch.blocks[0], arch.hidden, s, b, kernels)


@pytest.mark.parametrize("name", ["qwen3-8b", "qwen3-32b"])
def test_norms_of_queries_and_keys_keep_their_inputs(name: str) -> None:
    arch = presets.load(name)
    assert arch.blocks[0].attention.qk_norm
    assert kept(llama(name, 4096, 1, "fused")) == ours(arch.blocks[0], arch.hidden, 4096, 1, FUSED)


@pytest.mark.parametrize(
    "targets",
    [("q", "k", "v", "o"), ("q", "v"), ("o",), ("gate", "up"), ("down",), ("v", "up", "down")],
)
@pytest.mark.parametrize("name", ["llama-3.1-8b", "llama-2-7b"])
def test_frozen_linears_without_adapters_keep_no_input(name: str, targets: tuple[str, ...]) -> None:
    arch, s, rank = presets.load(name), 4096, 16
    kind, h = arch.blocks[0], arch.hidden
    att, f = kind.attention, kind.mlp.ffn_hidden
    wide, kv = att.heads * att.head_dim, att.kv_heads * att.head_dim

    def linear(y: torch.Tensor, name: str, outputs: int) -> torch.Tensor:
        frozen = torch.nn.Parameter(torch.empty(outputs, y.shape[-1]), requires_grad=False)
        found = F.linear(y, frozen)
        if name not in targets:
            return found
        return found + F.linear(F.linear(y, parameter(rank, y.shape[-1])), parameter(outputs, rank))

    def forward() -> torch.Tensor:
        x = stream(1, s, h)
        y = Norm.apply(x)
        q, k, v = (
            linear(y, n, w).view(1, s, -1, att.head_dim)
            for n, w in (("q", wide), ("k", kv), ("v", kv))
        )
        mixed = Flash.apply(Rotate.apply(q), Rotate.apply(k), v)
        x = x + linear(mixed.view(1, s, wide), "o", h)
        y = Norm.apply(x)
        inner = SwiGLU.apply(torch.cat([linear(y, "gate", f), linear(y, "up", f)], -1))
        return x + linear(inner, "down", h)

    between = 2 * s * rank * len(targets)  # what the second matrix of every adapter reads
    found = kept(forward, statistics=False) - between
    given = {"lora_rank": rank, "lora_targets": targets, "without": ("statistics",)}
    assert found == ours(kind, h, s, 1, FUSED, **given)


@pytest.mark.parametrize("name", ["deepseek-v2", "deepseek-v3"])
def test_latent_attention(name: str) -> None:
    arch, s = presets.load(name), 4096
    h, kind = arch.hidden, arch.blocks[0]
    att, f = kind.attention, kind.mlp.ffn_hidden
    nope = att.head_dim - att.rope_head_dim
    assert not kind.is_moe
    q_down, q_up = (
        parameter(att.q_lora_rank, h),
        parameter(att.heads * att.head_dim, att.q_lora_rank),
    )
    kv_down = parameter(att.kv_lora_rank + att.rope_head_dim, h)
    kv_up = parameter(att.heads * (nope + att.value_dim), att.kv_lora_rank)
    out, up, down = parameter(h, att.heads * att.value_dim), parameter(2 * f, h), parameter(h, f)

    def forward() -> torch.Tensor:
        x = stream(s, h)
        y = Norm.apply(x)
        q = F.linear(Norm.apply(F.linear(y, q_down)), q_up).view(s, att.heads, -1)
        latent, rope = F.linear(y, kv_down).split([att.kv_lora_rank, att.rope_head_dim], -1)
        k, v = (
            F.linear(Norm.apply(latent), kv_up)
            .view(s, att.heads, -1)
            .split([nope, att.value_dim], -1)
        )
        k = torch.cat([k, Rotate.apply(rope).unsqueeze(1).expand(-1, att.heads, -1)], -1)
        mixed = Flash.apply(Rotate.apply(q), k, v.contiguous())
        x = x + F.linear(mixed.reshape(s, -1), out)
        return x + F.linear(SwiGLU.apply(F.linear(Norm.apply(x), up)), down)

    # statistics of the norms (16 of some 300,000 bytes per token) are left out on both sides
    found = kept(forward, statistics=False)
    assert found == ours(kind, h, s, 1, FUSED, without=("statistics",))


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v3", "gpt-oss-20b"])
def test_routed_and_shared_experts(name: str) -> None:
    """Permuted tokens, the inner tensors of both kinds of expert; the router's own are left out."""
    arch, s = presets.load(name), 4096
    kind = next(kind for kind in arch.blocks if kind.is_moe)
    moe, h = kind.mlp, arch.hidden
    e, f, share = moe.experts, moe.ffn_hidden, s * moe.top_k // moe.experts
    up, down, router = parameter(e, h, 2 * f), parameter(e, f, h), parameter(e, h)
    wide = moe.shared_ffn_hidden
    shared_up, shared_down = parameter(2 * wide, h), parameter(h, wide)

    def forward() -> torch.Tensor:
        x = stream(s, h)
        y = Norm.apply(x)
        order = torch.zeros(e * share, dtype=torch.int64)
        sorted_y = torch.index_select(y, 0, order).view(e, share, h)
        routed = torch.bmm(SwiGLU.apply(torch.bmm(sorted_y, up)), down)
        x = x + routed.view(s, -1, h).sum(1) + F.linear(y, router).sum(-1, keepdim=True)
        if wide:
            x = x + F.linear(SwiGLU.apply(F.linear(y, shared_up)), shared_down)
        return x

    index_bytes = 8 * e * share
    other = ("norm1", "statistics", "attention", "queries", "keys", "values", "log-sum", "router")
    found = kept(forward, statistics=False) - index_bytes
    assert found == ours(kind, h, s, 1, FUSED, without=other)
