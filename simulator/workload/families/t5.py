"""Encoder-decoders: T5, and Switch Transformers with experts in every n-th layer."""

from __future__ import annotations

import dataclasses
from typing import Any

from simulator.workload.architecture import MLP, Architecture, Attention, Block, MoE
from simulator.workload.families.pieces import model
from simulator.workload.fields import Fields


def _attention(f: Fields) -> Attention:
    """Heads of any size, no biases; the encoder's see the whole sequence."""
    heads = f.size("num_heads")
    drops = f.drops("dropout_rate", 0.1)
    return Attention(
        heads=heads, kv_heads=heads, head_dim=f.size("d_kv", 64), causal=False, dropout=drops
    )


def _stack(f: Fields, mlps: list[MLP | MoE], *, decoder: bool) -> list[Block]:
    """Layers of one side; its first owns the table of relative positions for all of them."""
    buckets = f.size("relative_attention_num_buckets", 32)
    cross, drops = _attention(f), f.drops("dropout_rate", 0.1)
    self_attention = dataclasses.replace(cross, causal=decoder)
    first = dataclasses.replace(self_attention, relative_buckets=buckets)
    rest: dict[str, Any] = {"cross_attention": cross, "norms": 3} if decoder else {}
    return [
        Block(
            attention=self_attention if at else first,
            mlp=mlp,
            dropout=drops,
            starts_decoder=decoder and at == 0,
            **rest,
        )
        for at, mlp in enumerate(mlps)
    ]


def _both(f: Fields, encoder: list[MLP | MoE], decoder: list[MLP | MoE]) -> Architecture:
    """Encoder, then decoder; one table serves both inputs and the output (transformers 5)."""
    blocks = _stack(f, encoder, decoder=False) + _stack(f, decoder, decoder=True)
    return model(
        f,
        blocks,
        width="d_model",
        limit="n_positions",
        positions=512,
        tied=None,
        position="relative",
    )


def _layers(f: Fields) -> tuple[int, int]:
    encoder = f.layers("num_layers")
    return encoder, f.size("num_decoder_layers", encoder, encoder, most=10_000)


def t5(f: Fields) -> Architecture:
    """T5 (rectified) and T5 v1.1 (gated): the same layers on both sides."""
    kind = f.word("feed_forward_proj", "relu")
    gated, smooth = kind.startswith("gated-"), not kind.endswith("relu")
    mlp = MLP(ffn_hidden=f.size("d_ff"), gated=gated, activation="gelu" if smooth else "relu")
    encoder, decoder = _layers(f)
    return _both(f, [mlp] * encoder, [mlp] * decoder)


def switch_transformers(f: Fields) -> Architecture:
    """One expert per token in every n-th layer, the second being the first of them."""
    f.refuse("router_bias", "a bias of the router alone is not counted")
    mlp = MLP(ffn_hidden=f.size("d_ff"), gated=False, activation="relu")
    moe = MoE(
        experts=f.size("num_experts", 8),
        top_k=1,
        ffn_hidden=f.size("d_ff"),
        gated=False,
        activation="relu",
    )
    sides = zip(("encoder", "decoder"), _layers(f), strict=True)
    stacks: list[list[MLP | MoE]] = []
    for side, layers in sides:
        sparse = f.size(f"num_sparse_{side}_layers", 3, least=0, most=layers)
        # none still gives one, as in transformers
        step = max(1, layers // sparse if sparse else layers)
        stacks.append([moe if step == 1 or at % step == 1 else mlp for at in range(layers)])
    return _both(f, *stacks)
