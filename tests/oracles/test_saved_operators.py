"""Bytes that newer operators keep for the backward pass, against what autograd saves.

As ``test_saved_bytes.py``, whose kernels stand in for those of a GPU: gates on attention, the
indexer of sparse attention, experts on a narrower width, inputs of every layer of its own.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F

from simulator.workload.architecture import MLP, Attention, Block, MoE
from simulator.workload.huggingface import from_hf
from simulator.workload.mixers import ShortConvolution
from simulator.workload.modules import Indexer
from tests.oracles.test_saved_bytes import (
    FUSED,
    Flash,
    Norm,
    Rotate,
    SwiGLU,
    fake,
    kept,
    ours,
    parameter,
    stream,
)

__all__ = ["fake"]

S, H = 1024, 512
MLP_ = MLP(ffn_hidden=768)


class Gate(torch.autograd.Function):
    """Sigmoid of a gate times a result in one kernel, which keeps both."""

    @staticmethod
    def forward(ctx: Any, result: Any, gate: Any) -> Any:
        ctx.save_for_backward(result, gate)
        return torch.empty_like(result)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad, grad


class GatedGelu(torch.autograd.Function):
    """An activation of one tensor times another in one kernel, which keeps both."""

    @staticmethod
    def forward(ctx: Any, gate: Any, other: Any) -> Any:
        ctx.save_for_backward(gate, other)
        return torch.empty_like(gate)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad, grad


def feed(x: torch.Tensor) -> torch.Tensor:
    f = MLP_.ffn_hidden
    y = Norm.apply(x)
    return x + F.linear(SwiGLU.apply(F.linear(y, parameter(2 * f, H))), parameter(H, f))


@pytest.mark.parametrize("gate", ["full", "head"])
def test_gated_attention(gate: str) -> None:
    """Qwen3-Next projects a gate with its queries (modeling_qwen3_next.py), Laguna one a head."""
    full = gate == "full"
    att = Attention(heads=8, kv_heads=2, head_dim=64, output_gate=full, head_gate=not full,
                    qk_norm=True)  # fmt: skip
    wide, narrow = att.heads * att.head_dim, att.kv_heads * att.head_dim

    def forward() -> torch.Tensor:
        x = stream(S, H)
        y = Norm.apply(x)
        q = F.linear(y, parameter(wide * (1 + full), H)).view(S, att.heads, -1)
        if full:
            q, g = q.split([att.head_dim, att.head_dim], -1)
        else:
            g = F.linear(y, parameter(att.heads, H)).unsqueeze(-1)
            g = g + 0  # not taken for statistics, whose last dimension is 1 as well
        k = F.linear(y, parameter(narrow, H)).view(S, att.kv_heads, -1)
        v = F.linear(y, parameter(narrow, H)).view(S, att.kv_heads, -1)
        mixed = Flash.apply(Rotate.apply(Norm.apply(q)), Rotate.apply(Norm.apply(k)), v)
        out = Gate.apply(mixed, g if full else g.expand(-1, -1, 2))
        return feed(x + F.linear(out.reshape(S, wide), parameter(H, wide)))

    found = kept(forward, statistics=False)
    kind = Block(attention=att, mlp=MLP_)
    assert found == ours(kind, H, S, 1, FUSED, without=("statistics",))


def test_experts_on_a_narrower_width() -> None:
    """Nemotron 3 (modeling_nemotron_h.py): fc1_latent_proj, experts, fc2_latent_proj."""
    moe = MoE(experts=8, top_k=2, ffn_hidden=256, latent=128, shared_ffn_hidden=384,
              gated=False, activation="squared_relu")  # fmt: skip
    e, f, share = moe.experts, moe.ffn_hidden, S * moe.top_k // moe.experts

    def forward() -> torch.Tensor:
        x = stream(S, H)
        y = Norm.apply(x)
        narrow = F.linear(y, parameter(moe.latent, H))
        order = torch.zeros(e * share, dtype=torch.int64)
        sorted_y = torch.index_select(narrow, 0, order).view(e, share, moe.latent)
        inner = F.relu(torch.bmm(sorted_y, parameter(e, moe.latent, f))).square()
        routed = torch.bmm(inner, parameter(e, f, moe.latent)).view(S, -1, moe.latent).sum(1)
        routed = F.linear(routed, parameter(H, moe.latent))
        wide = moe.shared_ffn_hidden
        shared = F.relu(F.linear(y, parameter(wide, H))).square()
        return x + routed + F.linear(shared, parameter(H, wide))

    found = kept(forward, statistics=False) - 8 * e * share
    kind = Block(attention=None, mlp=moe, norms=1)
    assert found == ours(kind, H, S, 1, FUSED, without=("statistics", "router"))


def test_inputs_of_every_layer() -> None:
    """Gemma 3n and 4 (modeling_gemma4.py): per_layer_input_gate, activation times the layer's own
    input, per_layer_projection and a norm, behind the MLP."""
    sizes = {
        "model_type": "gemma4_text", "hidden_size": H, "intermediate_size": 768,
        "num_hidden_layers": 1, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
        "global_head_dim": 64, "vocab_size": 100, "hidden_size_per_layer_input": 64,
        "vocab_size_per_layer_input": 100, "layer_types": ["sliding_attention"],
        "num_kv_shared_layers": 0, "sliding_window": 4096, "max_position_embeddings": 4096,
    }  # fmt: skip
    arch = from_hf(sizes, name="x", where="c")
    plain = from_hf({**sizes, "hidden_size_per_layer_input": 0}, name="x", where="c")
    ple = 64

    def forward() -> torch.Tensor:
        x = stream(S, H)
        gate = F.linear(x, parameter(ple, H))
        inner = GatedGelu.apply(gate, stream(S, ple))
        return x + Norm.apply(F.linear(inner, parameter(H, ple)))

    without = ("statistics",)
    more = ours(arch.blocks[0], H, S, 1, FUSED, without=without)
    more -= ours(plain.blocks[0], H, S, 1, FUSED, without=without)
    assert more == kept(forward, statistics=False)


class Convolve(torch.autograd.Function):
    """A causal convolution keeps its input (causal_conv1d_fn)."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad


def test_a_gated_short_convolution() -> None:
    """LFM2 (modeling_lfm2.py: Lfm2ShortConv): B x is convolved, times C."""

    def forward() -> torch.Tensor:
        x = stream(S, H)
        b, c, inner = F.linear(Norm.apply(x), parameter(3 * H, H)).split([H, H, H], -1)
        y = c * Convolve.apply(b * inner)
        return feed(x + F.linear(y, parameter(H, H)))

    kind = Block(attention=None, mixer=ShortConvolution(inner=H), mlp=MLP_)
    found = kept(forward, statistics=False)
    assert found == ours(kind, H, S, 1, FUSED, without=("statistics",))


@pytest.mark.parametrize("biased", [True, False])
def test_an_indexer(biased: bool) -> None:
    """DeepSeek-V3.2's (inference/model.py: Indexer) on what attention reads, too: a norm on the key
    (without biases on the queries as well), rotations, a number for each head, and one kernel that
    reads all three. Indices, 4 B each, no gradient goes through."""
    indexer = Indexer(heads=4, head_dim=32, top_k=256, biased_norm=biased)
    sizes = {"heads": 8, "kv_heads": 8, "head_dim": 64}
    plain = Block(attention=Attention(**sizes), mlp=MLP_)
    picking = Block(attention=Attention(**sizes, indexer=indexer), mlp=MLP_)

    class Pick(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, q: Any, k: Any, w: Any) -> Any:
            ctx.save_for_backward(q, k, w)
            return torch.empty_like(q)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad, grad, grad

    y = parameter(S, H)  # kept by attention, which reads it too

    def forward() -> torch.Tensor:
        q = F.linear(y, parameter(4 * 32, H)).view(S, 4, 32)
        q = Rotate.apply(q if biased else Norm.apply(q))
        k = Rotate.apply(Norm.apply(F.linear(y, parameter(32, H))))
        return Pick.apply(q, k, F.linear(y, parameter(4, H)))

    without = ("statistics",)
    more = ours(picking, H, S, 1, FUSED, without=without)
    more -= ours(plain, H, S, 1, FUSED, without=without)
    assert more == kept(forward, statistics=False) + 4 * S * indexer.top_k
