"""Decoders with RMS norms, rotary positions and gated MLPs, dense or with experts."""

from __future__ import annotations

from simulator.workload.architecture import Architecture, Block
from simulator.workload.families.pieces import alternating, dense, experts, grouped, model, windowed
from simulator.workload.fields import Fields

__all__ = [
    "gemma2",
    "gpt_oss",
    "llama",
    "mistral",
    "mixtral",
    "phi3",
    "qwen2",
    "qwen3",
    "qwen3_moe",
]


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


def qwen2(f: Fields) -> Architecture:
    """Biases on queries, keys and values."""
    each = windowed(f, grouped(f, kv=32, qkv_bias=True), start=28)
    mlp = dense(f)
    return model(f, [Block(attention=one, mlp=mlp) for one in each], positions=32_768)


def qwen3(f: Fields) -> Architecture:
    """Norms on queries and keys, heads of 128."""
    bias = f.flag("attention_bias", False)
    attention = grouped(f, kv=32, head_dim=128, qkv_bias=bias, output_bias=bias, qk_norm=True)
    mlp = dense(f)
    each = windowed(f, attention, start=28)
    return model(f, [Block(attention=one, mlp=mlp) for one in each], positions=32_768)


def qwen3_moe(f: Fields) -> Architecture:
    """Experts in every layer, or every n-th."""
    bias = f.flag("attention_bias", False)
    each = windowed(f, grouped(f, kv=4, qkv_bias=bias, output_bias=bias, qk_norm=True))
    step, plain = f.size("decoder_sparse_step", 1), set(f.items("mlp_only_layers", int))
    sparse = [(at + 1) % step == 0 and at not in plain for at in range(len(each))]
    count = "num_local_experts" if "num_local_experts" in f.config else "num_experts"
    routed = experts(f, count, 128, 8, f.size("moe_intermediate_size", 768))
    mlp = routed if all(sparse) else dense(f)
    pairs = zip(each, sparse, strict=True)
    blocks = [Block(attention=one, mlp=routed if routes else mlp) for one, routes in pairs]
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
        f, kv=4, head_dim=256, qkv_bias=bias, output_bias=bias,
        softcap=f.positive("attn_logit_softcapping", 50.0),
    )  # fmt: skip
    mlp = dense(f)
    blocks = [Block(attention=one, mlp=mlp, norms=4) for one in alternating(f, attention, 4096)]
    capped = f.positive("final_logit_softcapping", 30.0)
    return model(f, blocks, positions=8192, tied=True, logit_softcap=capped)


def gpt_oss(f: Fields) -> Architecture:
    """Windows in every second layer, a sink per head, experts and router with biases."""
    bias = f.flag("attention_bias", True)
    attention = grouped(f, kv=8, head_dim=64, qkv_bias=bias, output_bias=bias, sinks=True)
    routed = experts(f, "num_local_experts", 128, 4, f.size("intermediate_size"), bias=True)
    blocks = [Block(attention=one, mlp=routed) for one in alternating(f, attention, 128)]
    return model(f, blocks, positions=131_072)
