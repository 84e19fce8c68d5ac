"""Pieces of a config that families share: attention, MLP, and the model around its blocks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from simulator.workload.architecture import MLP, Architecture, Attention, Block
from simulator.workload.fields import Fields


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
