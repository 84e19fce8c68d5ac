"""Operators of an attention module: projections, core attention, the collectives around them."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.cost.operators.attention_scores import core_attention, is_flash
from simulator.cost.operators.context import Widths, exchange_context
from simulator.cost.operators.operations import (
    Collective,
    Gemm,
    Operators,
    Ranks,
    Stream,
    element_bytes,
    norm,
    separate_linears,
)
from simulator.cost.operators.roles import GemmRole, SavedRole
from simulator.cost.operators.tensor_parallel import (
    gather_cast_input,
    gather_input,
    reduce_cast_output,
    reduce_output,
)
from simulator.software.kernels import Kernels
from simulator.workload.architecture import Attention, Block
from simulator.workload.recipe import Recipe

__all__ = ["attention", "cross_attention"]


def attention(
    ops: Operators,
    kind: Block,
    hidden: int,
    ranks: Ranks,
    recipe: Recipe,
    kernels: Kernels,
    position: str,
) -> None:
    """Projections, core attention and the collectives around them."""
    att, size = kind.attention, element_bytes(recipe)
    tokens = ranks.tokens(recipe)
    heads, again = att.heads / ranks.tp, "mla_up_proj" * att.is_mla
    kv_heads = np.maximum(att.kv_heads / ranks.tp, 1.0)
    query, key, value = heads * att.head_dim, kv_heads * att.head_dim, kv_heads * att.value_dim
    if att.is_mla:
        key, value = heads * att.head_dim, heads * att.value_dim
        _latent_projections(ops, att, hidden, ranks, recipe)
        first = "kv_up"
    else:
        each = separate_linears(ops, "qkv", (query, key, value), tokens * hidden, size, kernels)
        width = query + key + value
        ops.gemms.append(
            Gemm(
                name="qkv",
                role=GemmRole.QUERY_KEY_VALUE,
                m=tokens,
                n=width,
                k=hidden,
                linears=each,
            )
        )
        first = "qkv"
    result = heads * att.value_dim
    if att.filtered:
        _filter(ops, hidden, ranks, recipe, kernels)
    if kind.norms > 0:
        keeps = tokens if kernels.keeps_gathered_inputs else ranks.own_tokens(recipe)
        ops.keep("attention input", keeps * hidden * size, SavedRole.LINEAR_INPUT, module="norm")
    rotary = position == "rope" and att.rotary
    # Transformer Engine's fused kernel has no factor on the rotation (Megatron-Core, rope_utils.py)
    fused = "rope" in kernels.fused and not att.scaled_rotary
    rope = (2 * size if fused else 7 * size) if rotary else 0.0
    ops.streams.append(
        Stream(
            name="rotary",
            kind="elementwise",
            forward_bytes=rope * tokens * (query + key),
            backward_bytes=rope * tokens * (query + key),
            calls=2 if rotary else 0,
            module=again,
        )
    )
    # batched products take the parts where they lie; transformers copies those of DeBERTa
    copied = 1.0 if is_flash(kernels, att) else 3.0 if att.disentangled else 0.0
    ops.streams.append(
        Stream(
            name="split and merge",
            kind="elementwise",
            forward_bytes=2 * size * tokens * value * copied,
            backward_bytes=2 * size * tokens * (query + key + value),
            calls=np.minimum(copied, 1.0),
            backward_calls=1.0,
            module=again,
        )
    )
    if att.qk_norm or att.plain_qk_norm:
        kind_of = "rms" if att.qk_norm else "plain"
        for tensor, width in (("queries", query), ("keys", key)):
            norm(ops, f"norm of {tensor}", tokens * width, att.head_dim, size, kernels, kind_of)
    copies = heads / kv_heads if kernels.repeats_keys else 1.0
    for role, width in (
        (SavedRole.QUERIES, query),
        (SavedRole.KEYS, copies * key),
        (SavedRole.VALUES, copies * value),
    ):
        ops.keep(role.name.lower(), tokens * width * size, role, module=again)
    core_attention(ops, att, hidden, ranks, recipe, kernels, alibi=position == "alibi")
    ops.gemms.append(
        Gemm(name="proj", role=GemmRole.ATTENTION_OUTPUT, m=tokens, n=hidden, k=result)
    )
    ops.keep("attention output", tokens * result * size, SavedRole.ATTENTION_OUTPUT)
    wide = tokens * hidden * size
    if att.is_mla:
        latent = (att.q_lora_rank or hidden) + att.kv_lora_rank
        gather_input(ops, tokens * latent * size, ranks, first, kernels, module=again)
        _gather_rotary(ops, tokens * att.rope_head_dim * size, ranks)
    else:
        gather_cast_input(ops, wide, ranks, first, recipe, kernels, projections=3)
    reduce_cast_output(ops, wide, ranks, "proj", recipe, kernels)
    widths = Widths(query=query, key=key, value=value, result=result)
    shared = query / key
    exchange_context(ops, widths, tokens, tokens, ranks, size, kernels, shared)


def _latent_projections(
    ops: Operators, att: Attention, hidden: int, ranks: Ranks, recipe: Recipe
) -> None:
    """MLA: down- and up-projections; the down-projections are not sharded over tp."""
    tokens, own = ranks.tokens(recipe), ranks.own_tokens(recipe)
    heads, size = att.heads / ranks.tp, element_bytes(recipe)
    nope, up = att.head_dim - att.rope_head_dim, "mla_up_proj"
    if att.q_lora_rank:
        ops.gemms.append(
            Gemm(name="q_down", role=GemmRole.LATENT_DOWN, m=own, n=att.q_lora_rank, k=hidden)
        )
        ops.gemms.append(
            Gemm(
                name="q_up",
                role=GemmRole.QUERY_UP,
                m=tokens,
                n=heads * att.head_dim,
                k=att.q_lora_rank,
                module=up,
            )
        )
        latent = own * att.q_lora_rank * size
        ops.keep("compressed queries", latent, SavedRole.LATENT)
        ops.keep("compressed queries, normed", latent, SavedRole.LATENT_NORMED)
    else:
        ops.gemms.append(
            Gemm(
                name="q",
                role=GemmRole.QUERY_UP,
                m=tokens,
                n=heads * att.head_dim,
                k=hidden,
                module=up,
            )
        )
    ops.gemms.append(
        Gemm(
            name="kv_down",
            role=GemmRole.LATENT_DOWN,
            m=own,
            n=att.kv_lora_rank + att.rope_head_dim,
            k=hidden,
        )
    )
    ops.gemms.append(
        Gemm(
            name="kv_up",
            role=GemmRole.KEY_VALUE_UP,
            m=tokens,
            n=heads * (nope + att.value_dim),
            k=att.kv_lora_rank,
            module=up,
        )
    )
    latent = own * att.kv_lora_rank * size
    ops.keep("compressed keys", latent + own * att.rope_head_dim * size, SavedRole.LATENT)
    ops.keep("compressed keys, normed", latent, SavedRole.LATENT_NORMED)


def _gather_rotary(ops: Operators, wide: Any, ranks: Ranks) -> None:
    """MLA's rotary part of the keys, which no linear reads: gathered once, its gradient scattered.

    Megatron-Core gathers it before what `mla_up_proj` recomputes.
    """
    sharded = np.where(ranks.sequence_parallel, wide, 0.0)
    whole = np.where(ranks.sequence_parallel, 0.0, wide)
    for operation, size_bytes, backward in (
        ("all_gather", sharded, False),
        ("reduce_scatter", sharded, True),
        ("all_reduce", whole, True),
    ):
        ops.collectives.append(
            Collective(operation=operation, group="tp", size_bytes=size_bytes, backward=backward)
        )


def cross_attention(
    ops: Operators,
    att: Attention,
    hidden: int,
    ranks: Ranks,
    recipe: Recipe,
    source: Recipe,
    kernels: Kernels,
) -> None:
    """Attention of a decoder to the output of its encoder, whose length `source` gives.

    The encoder's output is kept once for all layers, by the first layer of the decoder; with
    sequence parallelism every layer gathers it.
    """
    size, tokens, keys = element_bytes(recipe), ranks.tokens(recipe), ranks.tokens(source)
    query = att.heads / ranks.tp * att.head_dim
    kv_heads = np.maximum(att.kv_heads / ranks.tp, 1.0)
    pairs, result = kv_heads * (att.head_dim + att.value_dim), att.heads / ranks.tp * att.value_dim
    ops.gemms.append(
        Gemm(name="cross q", role=GemmRole.CROSS_ATTENTION, m=tokens, n=query, k=hidden)
    )
    ops.gemms.append(
        Gemm(name="cross kv", role=GemmRole.CROSS_ATTENTION, m=keys, n=pairs, k=hidden)
    )
    keeps = tokens if kernels.keeps_gathered_inputs else ranks.own_tokens(recipe)
    ops.keep("cross attention input", keeps * hidden * size, SavedRole.LINEAR_INPUT, module="norm")
    ops.keep("cross queries", tokens * query * size, SavedRole.CROSS_QUERIES)
    ops.keep("cross keys and values", keys * pairs * size, SavedRole.CROSS_KEYS_AND_VALUES)
    core_attention(ops, att, hidden, ranks, recipe, kernels, source=source, prefix="cross ")
    ops.gemms.append(
        Gemm(name="cross proj", role=GemmRole.CROSS_ATTENTION, m=tokens, n=hidden, k=result)
    )
    ops.keep("cross attention output", tokens * result * size, SavedRole.CROSS_ATTENTION_OUTPUT)
    gather_input(ops, tokens * hidden * size, ranks, "cross q", kernels)
    gather_input(ops, keys * hidden * size, ranks, "cross kv", kernels)
    reduce_output(ops, tokens * hidden * size, ranks, "cross proj")
    widths = Widths(
        query=query, key=kv_heads * att.head_dim, value=kv_heads * att.value_dim, result=result
    )
    exchange_context(ops, widths, tokens, keys, ranks, size, kernels, result / widths.value)


def _filter(ops: Operators, hidden: int, ranks: Ranks, recipe: Recipe, kernels: Kernels) -> None:
    """Localized filtering (Yuan 2.0): two convolutions over two tokens and an RMS norm of the sum.

    Every tensor-parallel rank has their weights; queries and keys read the result, values do not.
    """
    size, tokens = element_bytes(recipe), ranks.tokens(recipe)
    ops.gemms.append(Gemm(name="filter1", m=tokens, n=hidden // 2, k=2 * hidden))
    ops.gemms.append(Gemm(name="filter2", m=tokens, n=hidden, k=2 * (hidden // 2)))
    ops.keep("filter output", tokens * (hidden // 2) * size)
    ops.keep("filtered input", tokens * hidden * size, module="norm")
    norm(ops, "filter norm", tokens * hidden, hidden, size, kernels, "rms")
