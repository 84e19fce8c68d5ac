"""Qwen3-Next: three layers of the gated delta rule to one of gated attention, small experts."""

from __future__ import annotations

import dataclasses

from simulator.workload.architecture import Architecture, Block
from simulator.workload.families.pieces import dense, experts, grouped, layer_types, model
from simulator.workload.fields import Fields
from simulator.workload.mixers import GatedDelta


def qwen3_next(f: Fields) -> Architecture:
    """Experts with a gated shared one in every layer, or every n-th."""
    layers, bias = f.layers(), f.flag("attention_bias", False)
    attention = grouped(
        f, kv=2, head_dim=256, qkv_bias=bias, output_bias=bias, qk_norm=True, output_gate=True
    )
    every = f.size("full_attention_interval", 4)
    types = layer_types(f, layers) or [
        "linear_attention" if (at + 1) % every else "full_attention" for at in range(layers)
    ]
    step, plain = f.size("decoder_sparse_step", 1), set(f.items("mlp_only_layers", int))
    routed = dataclasses.replace(
        experts(f, "num_experts", 512, 10, f.size("moe_intermediate_size", 512)),
        shared_ffn_hidden=f.size("shared_expert_intermediate_size", 512),
        shared_gate=True,
    )
    mixer, blocks = _gated_delta(f), []
    for at, kind in enumerate(types):
        sparse = (at + 1) % step == 0 and at not in plain
        mlp = routed if sparse else dense(f)
        linear = kind == "linear_attention"
        blocks.append(
            Block(attention=None if linear else attention, mixer=mixer if linear else None, mlp=mlp)
        )
    return model(f, blocks, positions=32_768)


def _gated_delta(f: Fields) -> GatedDelta:
    keys, values = f.size("linear_num_key_heads", 16), f.size("linear_num_value_heads", 32)
    rule = f"must be a multiple of linear_num_key_heads ({keys})"
    f.require(values % keys == 0, "linear_num_value_heads", rule, values, "linear_num_key_heads")
    return GatedDelta(
        key_heads=keys,
        value_heads=values,
        key_head_dim=f.size("linear_key_head_dim", 128),
        value_head_dim=f.size("linear_value_head_dim", 128),
        convolution=f.size("linear_conv_kernel_dim", 4),
    )
