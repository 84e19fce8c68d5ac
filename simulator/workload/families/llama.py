"""Decoders with RMS norms, rotary positions and gated MLPs, dense or with experts."""

from __future__ import annotations

import dataclasses

from simulator.workload.architecture import MLP, Architecture, Attention, Block
from simulator.workload.families.pieces import (
    alternating,
    dense,
    experts,
    grouped,
    layer_types,
    model,
    windowed,
)
from simulator.workload.fields import Fields
from simulator.workload.mixers import LightningAttention


def llama(f: Fields) -> Architecture:
    """Full attention, gated MLP."""
    bias = f.flag("attention_bias", False)
    attention = grouped(f, qkv_bias=bias, output_bias=bias)
    block = Block(attention=attention, mlp=dense(f, bias=f.flag("mlp_bias", False)))
    return model(f, [block] * f.layers(), positions=2048)


def mistral(f: Fields) -> Architecture:
    """A sliding window in every layer."""
    attention = grouped(f, kv=8, window=f.size("sliding_window", 4096, 0))
    block = Block(attention=attention, mlp=dense(f))
    return model(f, [block] * f.layers(), positions=131_072)


def mixtral(f: Fields) -> Architecture:
    """Experts in every layer."""
    attention = grouped(f, kv=8, window=f.size("sliding_window", 0, 0))
    routed = experts(f, "num_local_experts", 8, 2, f.size("intermediate_size"))
    block = Block(attention=attention, mlp=routed)
    return model(f, [block] * f.layers(), positions=131_072)


def minimax(f: Fields) -> Architecture:
    """Mixtral's layers, in most of them lightning attention (MiniMax-Text-01).

    Older configs name layers by ``attn_type_list``: 1 for attention, 0 for lightning attention.
    """
    layers = f.layers()
    attention = grouped(f, kv=8, window=f.size("sliding_window", 0, 0))
    mixer = LightningAttention(
        heads=attention.heads, head_dim=attention.head_dim, chunk=f.size("block_size", 256)
    )
    codes = f.items("attn_type_list", int)
    rule = f"must have a number for each of num_hidden_layers ({layers}) layers"
    fits = len(codes) in (0, layers)
    f.require(fits, "attn_type_list", rule, len(codes), "num_hidden_layers")
    full = [word == "full_attention" for word in layer_types(f, layers)] or [c != 0 for c in codes]
    routed = experts(f, "num_local_experts", 8, 2, f.size("intermediate_size"))
    softmax = Block(attention=attention, mlp=routed)
    linear = Block(attention=None, mixer=mixer, mlp=routed)
    blocks = [softmax if here else linear for here in full or [at % 2 == 0 for at in range(layers)]]
    return model(f, blocks, positions=131_072)


def qwen2(f: Fields) -> Architecture:
    """Biases on queries, keys and values."""
    attentions = windowed(f, grouped(f, kv=32, qkv_bias=True), start=28)
    mlp = dense(f)
    return model(f, [Block(attention=kind, mlp=mlp) for kind in attentions], positions=32_768)


def qwen3(f: Fields) -> Architecture:
    """Norms on queries and keys, heads of 128."""
    bias = f.flag("attention_bias", False)
    attention = grouped(f, kv=32, head_dim=128, qkv_bias=bias, output_bias=bias, qk_norm=True)
    mlp = dense(f)
    attentions = windowed(f, attention, start=28)
    return model(
        f,
        [Block(attention=kind, mlp=mlp) for kind in attentions],
        positions=32_768,
    )


def qwen3_moe(f: Fields) -> Architecture:
    """Experts in every layer, or every n-th."""
    bias = f.flag("attention_bias", False)
    attentions = windowed(f, grouped(f, kv=4, qkv_bias=bias, output_bias=bias, qk_norm=True))
    step, plain = f.size("decoder_sparse_step", 1), set(f.items("mlp_only_layers", int))
    sparse = [(at + 1) % step == 0 and at not in plain for at in range(len(attentions))]
    count = "num_local_experts" if "num_local_experts" in f.config else "num_experts"
    routed = experts(f, count, 128, 8, f.size("moe_intermediate_size", 768))
    mlp = routed if all(sparse) else dense(f)
    pairs = zip(attentions, sparse, strict=True)
    blocks = [Block(attention=kind, mlp=routed if routes else mlp) for kind, routes in pairs]
    return model(f, blocks, positions=32_768)


def phi3(f: Fields) -> Architecture:
    """Llama's layers with fused projections."""
    attention = grouped(f, window=f.size("sliding_window", 0, 0))
    block = Block(attention=attention, mlp=dense(f), dropout=f.drops("resid_pdrop", 0.0))
    return model(f, [block] * f.layers(), positions=4096)


def gemma2(f: Fields) -> Architecture:
    """Attention and MLP end in a norm too; windows in every second layer; capped scores."""
    f.refuse("use_bidirectional_attention", "only causal attention is known")
    bias = f.flag("attention_bias", False)
    attention = grouped(
        f,
        kv=4,
        head_dim=256,
        qkv_bias=bias,
        output_bias=bias,
        softcap=f.positive("attn_logit_softcapping", 50.0),
    )
    mlp = dense(f)
    blocks = [Block(attention=kind, mlp=mlp, norms=4) for kind in alternating(f, attention, 4096)]
    capped = f.positive("final_logit_softcapping", 30.0)
    return model(f, blocks, positions=8192, tied=True, logit_softcap=capped)


def gpt_oss(f: Fields) -> Architecture:
    """Windows in every second layer, a sink per head, experts and router with biases."""
    bias = f.flag("attention_bias", True)
    attention = grouped(
        f, kv=8, head_dim=64, qkv_bias=bias, output_bias=bias, sinks=True, scaled_rotary=True
    )
    width = f.size("intermediate_size")
    routed = experts(f, "num_local_experts", 128, 4, width, bias=True, clamped=True)
    blocks = [Block(attention=kind, mlp=routed) for kind in alternating(f, attention, 128)]
    return model(f, blocks, positions=131_072)


def _llama4_attention(f: Fields) -> list[Attention]:
    """Rotary positions and chunks in most layers, neither in every fourth."""
    layers, bias = f.layers(), f.flag("attention_bias", False)
    plain = grouped(f, kv=8, head_dim=128, qkv_bias=bias, output_bias=bias)
    step = f.size("no_rope_layer_interval", 4)
    turns = f.items("no_rope_layers", int) or [int((at + 1) % step != 0) for at in range(layers)]
    rule = f"must have a number for each of num_hidden_layers ({layers}) layers"
    f.require(len(turns) >= layers, "no_rope_layers", rule, len(turns), "num_hidden_layers")
    types = layer_types(f, layers)
    chunk, normed = f.size("attention_chunk_size", 8192, 0), f.flag("use_qk_norm", True)
    attentions = []
    for at, turned in enumerate(turns[:layers]):
        cut = types[at] == "chunked_attention" if at < len(types) else bool(turned)
        window = chunk if cut else 0
        attentions.append(
            dataclasses.replace(
                plain,
                rotary=bool(turned),
                plain_qk_norm=normed and bool(turned),
                window=window,
                chunked=window > 0,
            )
        )
    return attentions


def llama4_text(f: Fields) -> Architecture:
    """A routed and a shared expert in every n-th layer, all as wide; dense layers are wider."""
    layers, width = f.layers(), f.size("intermediate_size", 8192)
    step = f.size("interleave_moe_layer_step", 1)
    named = f.items("moe_layers", int)
    states_layers = f.config.get("moe_layers") is not None
    sparse = set(named if states_layers else range(step - 1, layers, step))
    routed = dataclasses.replace(
        experts(f, "num_local_experts", 16, 1, width), shared_ffn_hidden=width
    )
    plain = MLP(ffn_hidden=f.size("intermediate_size_mlp", 16_384))
    blocks = [
        Block(attention=kind, mlp=routed if at in sparse else plain)
        for at, kind in enumerate(_llama4_attention(f))
    ]
    return model(f, blocks, positions=131_072)


def yuan(f: Fields) -> Architecture:
    """Yuan 2.0: localized filtering in front of queries and keys, tied tables."""
    f.refuse("use_moe", "the attention router of Yuan 2.0-M32 is not known")
    heads, width = f.size("num_attention_heads"), f.size("hidden_size")
    inner = f.size("attention_projection_size", width, width)
    rule = f"must be a multiple of num_attention_heads ({heads})"
    f.require(inner % heads == 0, "attention_projection_size", rule, inner, "num_attention_heads")
    f.require(width % 2 == 0, "hidden_size", "must be even", width)
    attention = Attention(
        heads=heads, kv_heads=heads, head_dim=max(1, inner // heads), filtered=True
    )
    block = Block(attention=attention, mlp=dense(f), dropout=f.drops("dropout", 0.0))
    return model(f, [block] * f.layers(), positions=8192, tied=True)
