"""Decoders with layer norms and plain MLPs."""

from __future__ import annotations

from typing import Any

from simulator.workload.architecture import MLP, Architecture, Attention, Block
from simulator.workload.families.pieces import dense, grouped, model, plain
from simulator.workload.fields import Fields


def gpt2(f: Fields) -> Architecture:
    """Learned positions, dropout, a tied head."""
    f.refuse("add_cross_attention", "only decoders without an encoder are known")
    wide = 4 * f.size("n_embd")
    block = Block(
        attention=plain(f, "n_embd", "n_head", dropout=f.drops("attn_pdrop", 0.1)),
        mlp=MLP(ffn_hidden=f.size("n_inner", wide, wide), gated=False, bias=True),
        norm="layer",
        dropout=f.drops("resid_pdrop", 0.1),
    )
    return model(
        f,
        [block] * f.layers("n_layer"),
        width="n_embd",
        limit="n_positions",
        positions=1024,
        tied=True,
        position="learned",
        final_norm="layer",
    )


def gpt_neox(f: Fields) -> Architecture:
    """Rotary positions; attention and MLP side by side, each under a norm."""
    drops, bias = f.drops("attention_dropout", 0.0), f.flag("attention_bias", True)
    block = Block(
        attention=plain(f, "hidden_size", "num_attention_heads", dropout=drops, bias=bias),
        mlp=dense(f, gated=False, bias=True),
        norm="layer",
        dropout=f.drops("hidden_dropout", 0.0),
        parallel_residual=f.flag("use_parallel_residual", True),
    )
    return model(f, [block] * f.layers(), positions=2048, final_norm="layer")


def _falcon_heads(f: Fields, new: bool) -> Attention:
    """Multi-query attention unless switched off; the large models group theirs."""
    heads = f.size("num_attention_heads")
    if new:
        kv_heads = f.size("num_kv_heads", heads, heads)
    else:
        kv_heads = 1 if f.flag("multi_query", True) else heads
    rule = f"must divide num_attention_heads ({heads})"
    f.require(heads % kv_heads == 0, "num_kv_heads", rule, kv_heads, "num_attention_heads")
    bias = f.flag("bias", False)
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=f.per_head("hidden_size", "num_attention_heads"),
        qkv_bias=bias,
        output_bias=bias,
        dropout=f.drops("attention_dropout", 0.0),
    )


def falcon(f: Fields) -> Architecture:
    """Attention and MLP side by side under one norm, in the large models under one each."""
    new = f.flag("new_decoder_architecture", False)
    parallel = new or f.flag("parallel_attn", True)
    norms = f.size("num_ln_in_parallel_attn", 1 + new, 1 + new, most=2) if parallel else 2
    wide = 4 * f.size("hidden_size")
    block = Block(
        attention=_falcon_heads(f, new),
        mlp=MLP(
            ffn_hidden=f.size("ffn_hidden_size", wide, wide),
            gated=False,
            bias=f.flag("bias", False),
        ),
        norm="layer",
        norms=norms,
        dropout=f.drops("hidden_dropout", 0.0),
        parallel_residual=parallel,
    )
    position = "alibi" if f.flag("alibi", False) else "rope"
    return model(
        f, [block] * f.layers(), positions=2048, tied=True, position=position, final_norm="layer"
    )


def opt(f: Fields) -> Architecture:
    """Rectified MLPs; the table of positions has two rows more than positions.

    OPT-350m has a narrower table of tokens, norms behind attention and MLP, and none at the end.
    """
    f.refuse("_remove_final_layer_norm", "a model without its last norm is not known")
    hidden = f.size("hidden_size")
    inner = f.size("word_embed_proj_dim", hidden, hidden)
    bias, before = f.flag("enable_bias", True), f.flag("do_layer_norm_before", True)
    drops = f.drops("attention_dropout", 0.0)
    attention = plain(f, "hidden_size", "num_attention_heads", dropout=drops, bias=bias)
    mlp = MLP(ffn_hidden=f.size("ffn_dim"), gated=False, bias=bias, activation="relu")
    block = Block(attention=attention, mlp=mlp, norm="layer", dropout=f.drops("dropout", 0.1))
    return model(
        f,
        [block] * f.layers(),
        positions=2048,
        tied=True,
        position="learned",
        extra_embeddings=2,
        table_width=inner if inner != hidden else 0,
        final_norm="layer" if before else "none",
    )


def mpt(f: Fields) -> Architecture:
    """ALiBi, no biases anywhere, not even in the layer norms; inner width 4 in any case."""
    config: Any = f.table("attn_config")
    inner = Fields(config, name=f.name, where=f.where, prefix=f"{f.prefix}attn_config.")
    inner.refuse("qk_ln", "norms of queries and keys are not counted")
    drops = inner.drops("attn_pdrop", 0.0)
    block = Block(
        attention=plain(f, "d_model", "n_heads", dropout=drops, bias=False),
        mlp=MLP(ffn_hidden=4 * f.size("d_model"), gated=False),
        norm="layer_without_bias",
        dropout=f.drops("resid_pdrop", 0.0),
    )
    inner.finish()
    return model(
        f,
        [block] * f.layers("n_layers"),
        width="d_model",
        limit="max_seq_len",
        positions=2048,
        tied=True,
        position="alibi",
        final_norm="layer_without_bias",
    )


def nemotron(f: Fields) -> Architecture:
    """Layer norms, rotary positions and an MLP of squared rectifiers."""
    bias = f.flag("attention_bias", False)
    attention = grouped(f, qkv_bias=bias, output_bias=bias)
    mlp = dense(f, gated=False, bias=f.flag("mlp_bias", False), activation="squared_relu")
    block = Block(attention=attention, mlp=mlp, norm="layer")
    return model(f, [block] * f.layers(), positions=4096, final_norm="layer")
