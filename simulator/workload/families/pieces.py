"""Pieces of a config that families share: attention, experts, and the model around its blocks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from simulator.workload.architecture import MLP, Architecture, Attention, Block, MoE
from simulator.workload.fields import Fields


def grouped(f: Fields, *, kv: int | None = None, head_dim: int = 0, **rest: Any) -> Attention:
    """Grouped-query attention; `kv` and `head_dim` are the defaults of the class."""
    heads = f.size("num_attention_heads")
    kv_heads = f.size("num_key_value_heads", kv or heads, heads)
    rule = f"must divide num_attention_heads ({heads})"
    f.require(heads % kv_heads == 0, "num_key_value_heads", rule, kv_heads, "num_attention_heads")
    if f.config.get("head_dim") is not None or head_dim:
        dim = f.size("head_dim", head_dim)
    else:
        dim = f.per_head("hidden_size", "num_attention_heads", " unless head_dim is given")
    dropout = f.drops("attention_dropout", 0.0)
    return Attention(heads=heads, kv_heads=kv_heads, head_dim=dim, dropout=dropout, **rest)


def windowed(f: Fields, attention: Attention, start: int | None = None) -> list[Attention]:
    """Give the attention of every layer of a Qwen: a window only where one is switched on.

    `start` is the default of ``max_window_layers``, the first layer with a window; None means
    that the class has no such key and every layer has one.
    """
    layers = f.layers()
    if not f.flag("use_sliding_window", False):
        return [attention] * layers
    slid = dataclasses.replace(attention, window=f.size("sliding_window", 4096, 0))
    types = layer_types(f, layers)
    if types:
        return [slid if kind == "sliding_attention" else attention for kind in types]
    first = 0 if start is None else f.size("max_window_layers", start, least=0)
    return [slid if layer >= first else attention for layer in range(layers)]


def layer_types(f: Fields, layers: int) -> list[str]:
    """Read the type of every layer; none if the config does not name them."""
    types = f.items("layer_types", str)
    rule = f"must name the type of each of num_hidden_layers ({layers}) layers"
    fits = len(types) in (0, layers)
    f.require(fits, "layer_types", rule, len(types), "num_hidden_layers")
    return types


def alternating(f: Fields, attention: Attention, window: int) -> list[Attention]:
    """Give the attention of every layer: a window in each second one, from the first on.

    `window` is the default of the class; ``layer_types`` may say another order.
    """
    layers = f.layers()
    slid = dataclasses.replace(attention, window=f.size("sliding_window", window, 0))
    types = layer_types(f, layers) or ["sliding_attention", "full_attention"] * layers
    return [slid if kind == "sliding_attention" else attention for kind in types[:layers]]


def experts(f: Fields, count: str, number: int, top_k: int | None, width: int, **rest: Any) -> MoE:
    """Routed experts; `count` names their field, `number` and `top_k` are defaults."""
    number, top_k = f.size(count, number), f.size("num_experts_per_tok", top_k)
    rule = f"must be at most {count} ({number})"
    f.require(top_k <= number, "num_experts_per_tok", rule, top_k, count)
    return MoE(experts=number, top_k=top_k, ffn_hidden=width, **rest)


def dense(f: Fields, **rest: Any) -> MLP:
    """Dense feed-forward module of ``intermediate_size``."""
    return MLP(ffn_hidden=f.size("intermediate_size"), **rest)


def model(
    f: Fields,
    blocks: Iterable[Block],
    *,
    width: str = "hidden_size",
    limit: str = "max_position_embeddings",
    positions: int,
    tied: bool | None = False,
    **rest: Any,
) -> Architecture:
    """Put the blocks of all layers, first to last, between embedding and head.

    `tied` is the default of ``tie_word_embeddings``; None means tied whatever the config says.
    """
    return Architecture.of_layers(
        blocks,
        name=f.name,
        family=f.family,
        hidden=f.size(width),
        vocabulary=f.size("vocab_size"),
        tied_embeddings=tied is None or f.flag("tie_word_embeddings", tied),
        max_positions=f.size(limit, positions),
        **rest,
    )


def plain(f: Fields, width: str, heads: str, *, dropout: bool, bias: bool = True) -> Attention:
    """Multi-head attention of the GPT families; `width` and `heads` name its fields."""
    count = f.size(heads)
    return Attention(
        heads=count,
        kv_heads=count,
        head_dim=f.per_head(width, heads),
        qkv_bias=bias,
        output_bias=bias,
        dropout=dropout,
    )
