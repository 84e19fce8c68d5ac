"""DeepSeek: latent attention, dense layers first, then routed and shared experts."""

from __future__ import annotations

import dataclasses
from typing import Any

from simulator.workload.architecture import Architecture, Attention, Block
from simulator.workload.families.pieces import dense, experts, model
from simulator.workload.fields import Fields

__all__ = ["deepseek_v2", "deepseek_v3"]


def _latent(f: Fields) -> Attention:
    """Latent attention (MLA); the published ``num_key_value_heads`` has no meaning there."""
    f.refuse("attention_bias", "biases of latent attention are not counted")
    heads, rope = f.size("num_attention_heads"), f.size("qk_rope_head_dim", 64)
    return Attention(
        heads=heads,
        kv_heads=heads,
        head_dim=f.size("qk_nope_head_dim", 128) + rope,
        value_head_dim=f.size("v_head_dim", 128),
        q_lora_rank=f.size("q_lora_rank", 1536, 0),
        kv_lora_rank=f.size("kv_lora_rank", 512),
        rope_head_dim=rope,
        dropout=f.drops("attention_dropout", 0.0),
    )


def _deepseek(
    f: Fields, *, first: int, number: int, shared: int, width: int, top_k: int | None, **rest: Any
) -> Architecture:
    """Dense layers first, experts from ``first_k_dense_replace`` on; keywords are defaults."""
    attention, layers = _latent(f), f.layers()
    start = f.size("first_k_dense_replace", first, least=0)
    step = f.size("moe_layer_freq", 1)
    sparse = [layer >= start and layer % step == 0 for layer in range(layers)]
    inner = f.size("moe_intermediate_size", width)
    routed = experts(f, "n_routed_experts", number, top_k, inner)
    together = inner * f.size("n_shared_experts", shared, 0, least=0)
    moe = dataclasses.replace(routed, shared_ffn_hidden=together)
    with_experts = Block(attention=attention, mlp=moe)
    plain = with_experts if all(sparse) else Block(attention=attention, mlp=dense(f))
    return model(f, [with_experts if routes else plain for routes in sparse], **rest)


def deepseek_v2(f: Fields) -> Architecture:
    """Every layer with experts unless the config says otherwise."""
    f.refuse("mlp_bias", "biases of experts are not counted")
    return _deepseek(f, first=0, number=64, shared=2, width=1407, top_k=None, positions=2048)


def deepseek_v3(f: Fields) -> Architecture:
    """Three dense layers first; layers that predict ahead are named, not counted."""
    named = "num_mtp_layers" if "num_mtp_layers" in f.config else "num_nextn_predict_layers"
    mtp = f.size(named, 0, 0, least=0)
    defaults = {"first": 3, "number": 256, "shared": 1, "width": 2048, "top_k": 8}
    return _deepseek(f, **defaults, positions=4096, mtp_layers=mtp)
