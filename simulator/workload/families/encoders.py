"""Families that no row of the table says: encoders of text and images, and encoder-decoders."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from simulator.workload.architecture import MLP, Architecture, Attention, Block, MoE
from simulator.workload.fields import Fields

_HEADS: dict[str, dict[str, Any]] = {
    "Model": {"pooler": True, "final_norm": "none"},
    "ForMaskedLM": {"head_transform": True, "final_norm": "layer", "head_bias": True},
    "ForPreTraining": {
        "head_transform": True, "pooler": True, "classes": 2, "final_norm": "layer",
        "head_bias": True,
    },
}  # fmt: skip
"""What stands behind the last block, by the ending of ``architectures``; the bare model of BERT
has a pooler, the heads a square layer with a norm and the tied table with a bias."""


def _bidirectional(f: Fields, *, qkv_bias: bool = True) -> Attention:
    drops = f.drops("attention_probs_dropout_prob", 0.1 if f.family != "vit" else 0.0)
    attention = plain(f, "hidden_size", "num_attention_heads", dropout=drops)
    return dataclasses.replace(attention, causal=False, qkv_bias=qkv_bias)


def _disentangled(f: Fields) -> Attention:
    """DeBERTa's attention; with relative positions off it is BERT's."""
    attention = _bidirectional(f)
    if not f.flag("relative_attention", False):
        return attention
    both = {"c2p", "p2c"}
    named = f.config.get("pos_att_type") or []
    terms = set(
        named.lower().split("|") if isinstance(named, str) else f.items("pos_att_type", str)
    )
    f.require(
        {word.strip() for word in terms} == both,
        "pos_att_type",
        "must name c2p and p2c",
        len(terms),
    )
    longest = f.size("max_relative_positions", -1, least=-1, most=2**20)
    longest = longest if longest > 0 else f.size("max_position_embeddings", 512)
    buckets = f.size("position_buckets", -1, least=-1, most=2**20)
    return dataclasses.replace(
        attention,
        disentangled=2 * (buckets if buckets > 0 else longest),
        position_projections=not f.flag("share_att_key", False),
    )


def deberta_v2(f: Fields) -> Architecture:
    """DeBERTa v2 and v3: positions enter the scores by two products of their own."""
    width = f.size("hidden_size")
    inner = f.size("embedding_size", width, width)
    rule = f"must be hidden_size ({width}); projected embeddings are not known"
    f.require(inner == width, "embedding_size", rule, inner, "hidden_size")
    kernel, groups = f.size("conv_kernel_size", 0, 0, least=0), f.size("conv_groups", 1)
    f.require(kernel == 0 or kernel % 2 == 1, "conv_kernel_size", "must be 0 or odd", kernel)
    f.require(
        width % groups == 0,
        "conv_groups",
        f"must divide hidden_size ({width})",
        groups,
        "hidden_size",
    )
    masked = f.ending("architectures", ("Model", "ForMaskedLM")) == "ForMaskedLM"
    attention = _disentangled(f)
    block = Block(
        attention=attention,
        mlp=dense(f, gated=False, bias=True),
        norm="layer",
        dropout=f.drops("hidden_dropout_prob", 0.1),
    )
    first = dataclasses.replace(block, convolution=kernel, convolution_groups=groups)
    types = f.size("type_vocab_size", 0, least=0)
    normed = attention.disentangled and "layer_norm" in str(f.config.get("norm_rel_ebd", "none"))
    head = _HEADS["ForMaskedLM"] if masked else {"final_norm": "none"}
    learned = f.flag("position_biased_input", True)
    blocks = [first, *[block] * (f.layers() - 1)] if kernel else [block] * f.layers()
    return model(
        f,
        blocks,
        positions=512,
        tied=True,
        position="learned" if learned else "relative",
        extra_embeddings=types + attention.disentangled,
        embedding_norms=2 if normed else 1,
        **head,
    )


def _patches(f: Fields, patch: int, channels: int) -> tuple[int, int]:
    """Side of the image in patches, and the values of one patch."""
    image, side = f.size("image_size", 224), f.size("patch_size", patch)
    f.require(
        image % side == 0,
        "image_size",
        f"must be a multiple of patch_size ({side})",
        image,
        "patch_size",
    )
    return max(1, image // side), side * side * f.size("num_channels", channels)


def _image_model(f: Fields, blocks: list[Block], hidden: int, **rest: Any) -> Architecture:
    """A classifier of images: `num_labels` classes, two unless said, none for the bare model."""
    labels = f.size("num_labels", len(f.table("id2label")) or 2, least=0)
    named = f.ending("architectures", ("ForImageClassification", "Model"))
    kinds: dict[Block, int] = {}
    order = tuple(kinds.setdefault(block, len(kinds)) for block in blocks)
    return Architecture(
        name=f.name,
        family=f.family,
        hidden=hidden,
        blocks=tuple(kinds),
        layer_kinds=order,
        vocabulary=0,
        tied_embeddings=True,
        final_norm="layer",
        classes=labels if named == "ForImageClassification" else 0,
        **rest,
    )


def vit(f: Fields) -> Architecture:
    """A class token before the patches of an image, learned positions, norms in front."""
    grid, values = _patches(f, 16, 3)
    block = Block(
        attention=_bidirectional(f, qkv_bias=f.flag("qkv_bias", True)),
        mlp=dense(f, gated=False, bias=True),
        norm="layer",
        dropout=f.drops("hidden_dropout_prob", 0.0),
    )
    return _image_model(
        f,
        [block] * f.layers(),
        f.size("hidden_size"),
        position="learned",
        max_positions=grid * grid + 1,
        extra_embeddings=1,
        patch_values=values,
    )


def swin(f: Fields) -> Architecture:
    """Windows of an image; from stage to stage twice the width and a quarter of the tokens."""
    grid, values = _patches(f, 4, 3)
    depths, heads = f.sizes("depths", (2, 2, 6, 2)), f.sizes("num_heads", (3, 6, 12, 24))
    same = len(depths) == len(heads)
    f.require(same, "num_heads", f"must have {len(depths)} items, as depths", len(heads), "depths")
    embed, side = f.size("embed_dim", 96), f.size("window_size", 7)
    blocks: list[Block] = []
    for stage, (depth, count) in enumerate(zip(depths, heads, strict=False)):
        width, edge = embed << stage, max(1, grid >> stage)
        f.require(width % count == 0, "num_heads", f"must divide the width {width}", count)
        block = _swin_block(f, width, count, min(side, edge) ** 2, (2 * side - 1) ** 2)
        block = dataclasses.replace(block, width=width, tokens=edge * edge)
        first = dataclasses.replace(block, merges_patches=stage > 0)
        blocks += [first, *[block] * (depth - 1)]
    return _image_model(
        f,
        blocks,
        embed,
        position="learned" if f.flag("use_absolute_embeddings", False) else "relative",
        max_positions=grid * grid,
        embedding_norms=1,
        patch_values=values,
    )


def _swin_block(f: Fields, width: int, heads: int, window: int, buckets: int) -> Block:
    ratio = f.number("mlp_ratio", 4.0)
    attention = Attention(
        heads=heads,
        kv_heads=heads,
        head_dim=max(1, width // heads),
        window=window,
        causal=False,
        qkv_bias=f.flag("qkv_bias", True),
        output_bias=True,
        relative_buckets=buckets,
        dropout=f.drops("attention_probs_dropout_prob", 0.0),
    )
    mlp = MLP(ffn_hidden=max(1, int(ratio * width)), gated=False, bias=True)
    drops = f.drops("hidden_dropout_prob", 0.0)
    return Block(attention=attention, mlp=mlp, norm="layer", dropout=drops)


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
