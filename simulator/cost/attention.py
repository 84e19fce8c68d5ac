"""Operators of an attention module: projections, core attention, the collectives around them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.cost.operations import (
    Collective,
    Flash,
    Gemm,
    Operators,
    Ranks,
    Stream,
    element_bytes,
    gather_input,
    norm,
    reduce_output,
)
from simulator.software import Kernels
from simulator.workload.architecture import Attention, Block
from simulator.workload.recipe import Recipe

__all__ = ["attention"]

Floats = NDArray[np.float64]


def attention(
    ops: Operators, kind: Block, hidden: int, ranks: Ranks, recipe: Recipe, kernels: Kernels,
    rotary: bool,
) -> None:  # fmt: skip
    """Projections, core attention and the collectives around them."""
    att, size = kind.attention, element_bytes(recipe)
    tokens = ranks.tokens(recipe)
    heads = att.heads / ranks.tp
    kv_heads = np.maximum(att.kv_heads / ranks.tp, 1.0)
    query, key, value = heads * att.head_dim, kv_heads * att.head_dim, kv_heads * att.value_dim
    if att.is_mla:
        key, value = heads * att.head_dim, heads * att.value_dim
        _latent_projections(ops, att, hidden, ranks, recipe)
        first = "kv_up"
    else:
        ops.gemms.append(Gemm(name="qkv", m=tokens, n=query + key + value, k=hidden))
        first = "qkv"
    result = heads * att.value_dim
    if kind.norms > 0:
        keeps = tokens if kernels.keeps_gathered_inputs else ranks.own_tokens(recipe)
        ops.saved.append(("attention input", "norm", keeps * hidden * size))
    rope = (2 * size if "rope" in kernels.fused else 7 * size) if rotary else 0.0
    ops.streams.append(
        Stream(
            name="rotary",
            kind="elementwise",
            forward_bytes=rope * tokens * (query + key),
            backward_bytes=rope * tokens * (query + key),
            calls=2 if rotary else 0,
        )
    )
    ops.streams.append(
        Stream(
            name="split and merge",
            kind="elementwise",
            forward_bytes=2 * size * tokens * value,
            backward_bytes=2 * size * tokens * (query + key + value),
        )
    )
    if att.qk_norm:
        for tensor, width in (("queries", query), ("keys", key)):
            norm(ops, f"norm of {tensor}", tokens * width, att.head_dim, size, kernels, "rms")
    for tensor, width in (("queries", query), ("keys", key), ("values", value)):
        ops.saved.append((tensor, "mla_up_proj" * att.is_mla, tokens * width * size))
    _core_attention(ops, att, heads, ranks, recipe, kernels)
    ops.gemms.append(Gemm(name="proj", m=tokens, n=hidden, k=result))
    ops.saved.append(("attention output", "", tokens * result * size))
    wide = tokens * hidden * size
    latent = (att.q_lora_rank or hidden) + att.kv_lora_rank + att.rope_head_dim
    gather_input(ops, tokens * latent * size if att.is_mla else wide, ranks, first, kernels)
    reduce_output(ops, wide, ranks, "proj")
    _context_ring(ops, tokens, query, key + value, result, ranks, size)


def _context_ring(
    ops: Operators, tokens: Floats, query: Any, pairs: Any, result: Any, ranks: Ranks, size: float
) -> None:
    """Add cp - 1 exchanges of keys and values, and merging every partial result in fp32.

    The backward pass sends keys, values and their gradients, and adds the partial gradients.
    """
    steps = ranks.cp - 1.0
    ops.streams.append(
        Stream(
            name="context merge",
            kind="elementwise",
            calls=0.0,
            forward_bytes=steps * tokens * result * (size + 8.0),
            backward_bytes=steps * tokens * (query + pairs) * 3.0 * size,
        )
    )
    exchanged = tokens * pairs * size * steps
    for backward, times in ((False, 1.0), (True, 2.0)):
        ops.collectives.append(
            Collective(
                operation="ring",
                group="cp",
                size_bytes=times * exchanged,
                backward=backward,
                window="attention",
            )
        )


def _latent_projections(
    ops: Operators, att: Attention, hidden: int, ranks: Ranks, recipe: Recipe
) -> None:
    """MLA: down- and up-projections; the down-projections are not sharded over tp."""
    tokens, own = ranks.tokens(recipe), ranks.own_tokens(recipe)
    heads, size = att.heads / ranks.tp, element_bytes(recipe)
    nope, up = att.head_dim - att.rope_head_dim, "mla_up_proj"
    if att.q_lora_rank:
        ops.gemms.append(Gemm(name="q_down", m=own, n=att.q_lora_rank, k=hidden))
        ops.gemms.append(
            Gemm(name="q_up", m=tokens, n=heads * att.head_dim, k=att.q_lora_rank, module=up)
        )
        ops.saved.append(("compressed queries", "", 2 * own * att.q_lora_rank * size))
    else:
        ops.gemms.append(Gemm(name="q", m=tokens, n=heads * att.head_dim, k=hidden))
    ops.gemms.append(Gemm(name="kv_down", m=own, n=att.kv_lora_rank + att.rope_head_dim, k=hidden))
    ops.gemms.append(
        Gemm(
            name="kv_up", m=tokens, n=heads * (nope + att.value_dim), k=att.kv_lora_rank, module=up
        )
    )
    ops.saved.append(
        ("compressed keys", "", own * (2 * att.kv_lora_rank + att.rope_head_dim) * size)
    )


def _core_attention(
    ops: Operators, att: Attention, heads: Floats, ranks: Ranks, recipe: Recipe, kernels: Kernels
) -> None:
    """Scores, softmax and weighted sum: one flash kernel, or two products and what lies between."""
    length, size = recipe.sequence_length, element_bytes(recipe)
    tokens = ranks.tokens(recipe)
    span = min(att.window or length, length)
    if kernels.attention == "flash":
        pairs = tokens * (span - span * span / (2.0 * length))
        flop = 2.0 * pairs * heads * (att.head_dim + att.value_dim)
        kv = 2 * np.maximum(att.kv_heads * heads / att.heads, 1.0)
        moved = size * tokens * (heads * (att.head_dim + att.value_dim) + kv * att.head_dim)
        ops.flash.append(Flash(flop=flop, moved_bytes=moved, sequence=span / ranks.cp))
        ops.saved.append(("log-sum-exp", "core_attn", 4.0 * tokens * heads))
        return
    calls = ranks.micro_batch * heads
    local = length / ranks.cp
    ops.gemms.append(
        Gemm(
            name="scores",
            m=local,
            n=length,
            k=att.head_dim,
            batch=calls,
            kind="attention",
            module="core_attn",
        )
    )
    ops.gemms.append(
        Gemm(
            name="context",
            m=local,
            n=att.value_dim,
            k=length,
            batch=calls,
            kind="attention",
            module="core_attn",
        )
    )
    scores = calls * local * length
    fused = "softmax" in kernels.fused
    ops.streams.append(
        Stream(
            name="softmax",
            kind="softmax",
            module="core_attn",
            calls=1 if fused else 4,
            forward_bytes=(4.0 if fused else 20.0) * scores,
            backward_bytes=(6.0 if fused else 20.0) * scores,
        )
    )
    ops.saved.append(("attention weights", "core_attn", size * scores))
    if att.dropout:
        ops.streams.append(
            Stream(
                name="attention dropout",
                kind="softmax",
                module="core_attn",
                forward_bytes=5.0 * scores,
                backward_bytes=5.0 * scores,
            )
        )
        ops.saved.append(("dropped attention weights", "core_attn", (size + 1.0) * scores))
    copied = 2 * size * tokens * heads * att.value_dim
    ops.streams.append(
        Stream(
            name="context transpose",
            kind="elementwise",
            forward_bytes=copied,
            backward_bytes=copied,
            module="core_attn",
        )
    )
