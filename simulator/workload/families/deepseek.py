"""DeepSeek: latent attention, dense layers first, then routed and shared experts."""

from __future__ import annotations

import dataclasses
from typing import Any

from simulator.workload.architecture import Architecture, Attention, Block, MoE
from simulator.workload.families.pieces import dense, experts, model
from simulator.workload.fields import Fields


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


def _grouped(f: Fields, routed: MoE, groups: int, top: int) -> MoE:
    """Experts of a router that takes them from its best groups only; `groups` 0: any group.

    A config that names no groups and has another number of experts than the class is not limited.
    """
    if not groups or (f.config.get("n_group") is None and routed.experts % groups):
        return routed
    even = f"must divide n_routed_experts ({routed.experts})"
    f.require(routed.experts % groups == 0, "n_group", even, groups, "n_routed_experts")
    f.require(top <= groups, "topk_group", f"must be at most n_group ({groups})", top, "n_group")
    offered = routed.experts // groups * min(top, groups)
    rule = f"must be at most the {offered} experts of topk_group ({top}) groups"
    f.require(
        routed.top_k <= offered,
        "num_experts_per_tok",
        rule,
        routed.top_k,
        "topk_group",
        "n_group",
        "n_routed_experts",
    )
    return dataclasses.replace(routed, groups=groups, top_groups=top)


def _deepseek(
    f: Fields,
    *,
    first: int,
    number: int,
    shared: int,
    width: int,
    top_k: int | None,
    groups: int,
    top_groups: int,
    **rest: Any,
) -> Architecture:
    """Dense layers first, experts from ``first_k_dense_replace`` on; keywords are defaults."""
    attention, layers = _latent(f), f.layers()
    start = f.size("first_k_dense_replace", first, least=0)
    step = f.size("moe_layer_freq", 1)
    sparse = [layer >= start and layer % step == 0 for layer in range(layers)]
    inner = f.size("moe_intermediate_size", width)
    routed = experts(f, "n_routed_experts", number, top_k, inner)
    routed = _grouped(f, routed, groups, top_groups)
    together = inner * f.size("n_shared_experts", shared, 0, least=0)
    # MoEGate of both classes takes tokens and weights in fp32
    moe = dataclasses.replace(routed, shared_ffn_hidden=together, fp32_router=True)
    with_experts = Block(attention=attention, mlp=moe)
    plain = with_experts if all(sparse) else Block(attention=attention, mlp=dense(f))
    return model(f, [with_experts if routes else plain for routes in sparse], **rest)


def deepseek_v2(f: Fields) -> Architecture:
    """Every layer with experts unless the config says otherwise."""
    f.refuse("mlp_bias", "biases of experts are not counted")
    limited = f.word("topk_method", "greedy") == "group_limited_greedy"
    # read and checked in any case; greedy routing looks at no groups
    groups, top = f.size("n_group", 1, 1), f.size("topk_group", 1, 1)
    return _deepseek(
        f,
        first=0,
        number=64,
        shared=2,
        width=1407,
        top_k=None,
        positions=2048,
        groups=groups if limited else 0,
        top_groups=top,
    )


def deepseek_v3(f: Fields) -> Architecture:
    """Three dense layers first; layers that predict ahead are named, not counted."""
    named = "num_mtp_layers" if "num_mtp_layers" in f.config else "num_nextn_predict_layers"
    mtp = f.size(named, 0, 0, least=0)
    defaults = {"first": 3, "number": 256, "shared": 1, "width": 2048, "top_k": 8}
    groups, top = f.size("n_group", 8, 1), f.size("topk_group", 4, 1)
    return _deepseek(f, **defaults, positions=4096, mtp_layers=mtp, groups=groups, top_groups=top)
