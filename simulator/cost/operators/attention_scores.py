"""Scores, softmax and weighted sum of an attention module: one flash kernel, or its pieces."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.cost.operators.casts import QUANTISED_BYTES
from simulator.cost.operators.model_flop import seen_keys
from simulator.cost.operators.operations import (
    Flash,
    Gemm,
    ModuleOperators,
    Ranks,
    Stream,
    element_bytes,
)
from simulator.cost.operators.roles import GemmRole, SavedRole
from simulator.software.kernels import Kernels
from simulator.software.mechanisms import FUSED_HEAD
from simulator.workload.architecture import Attention
from simulator.workload.recipe import Recipe

_CORE = "core_attn"


def core_attention(
    att: Attention,
    hidden: int,
    ranks: Ranks,
    recipe: Recipe,
    kernels: Kernels,
    *,
    source: Recipe | None = None,
    prefix: str = "",
    alibi: bool = False,
) -> ModuleOperators:
    """List scores, softmax and weighted sum; `source` has the length of the keys if not their own.

    Under a causal mask flash attention computes half of the scores, the products of unfused
    attention all of them. ALiBi is part of flash attention; unfused scores start from it
    (bigscience-workshop/Megatron-DeepSpeed megatron/model/transformer.py: torch.baddbmm with beta
    1). Disentangled attention has no flash kernel.
    """
    source = source or recipe
    if is_flash(kernels, att):
        return _flash(att, ranks, recipe, kernels, source=source, prefix=prefix)
    heads, size, length = att.heads / ranks.tp, element_bytes(recipe), source.sequence_length
    if att.window and not att.causal:  # windows of an image are computed apart, not masked
        length = min(att.window, length)
    calls, local = ranks.micro_batch * heads, recipe.sequence_length / ranks.cp
    products = [
        _product(f"{prefix}{name}", local, n, k, calls, causal=att.causal)
        for name, n, k in (("scores", length, att.head_dim), ("context", att.value_dim, length))
    ]
    ops = ModuleOperators(gemms=products)
    if att.disentangled:
        ops.add(_positions(att, hidden, heads, ranks, recipe))
    ops.add(_softmax(att, calls, local, length, size, kernels=kernels, prefix=prefix, alibi=alibi))
    tokens = ranks.tokens(recipe) * heads
    # batched products take transposed operands as they are, so that gradients are not copied; the
    # factor on the scores is a kernel for each of the gradients of queries and keys
    copied, scaled = 2 * size * tokens * att.value_dim, 4 * size * tokens * att.head_dim
    transpose, factor = f"{prefix}context transpose", f"{prefix}scaled gradients"
    ops.streams.append(_stream(transpose, "elementwise", copied, 0.0, backward_calls=0.0))
    if not att.disentangled and "attention_scale" not in kernels.fused:
        back = {"calls": 0.0, "backward_calls": 2.0}
        ops.streams.append(_stream(factor, "elementwise", 0.0, scaled, **back))
    return ops


def _softmax(
    att: Attention,
    calls: Floats,
    local: Floats,
    length: int,
    size: float,
    *,
    kernels: Kernels,
    prefix: str,
    alibi: bool,
) -> ModuleOperators:
    """What lies between both products, on `calls` times `local` by `length` scores."""
    ops, scores = ModuleOperators(), calls * local * length
    if alibi:  # one row for each head, copied to all rows, to which the product adds its results
        moved = 2 * size * scores
        ops.streams.append(_stream(f"{prefix}distances", "softmax", moved, 0.0, backward_calls=0.0))
    if att.softcap:
        there, back = 6 * size * scores, 3 * size * scores
        ops.streams.append(_stream(f"{prefix}softcap", "softmax", there, back, calls=3))
        ops.keep(f"{prefix}capped scores", size * scores, module=_CORE)
    forward, backward = _softmax_bytes(att, kernels)
    kernel_calls = 1 if "softmax" in kernels.fused else 4
    ops.streams.append(
        _stream(
            f"{prefix}softmax", "softmax", forward * scores, backward * scores, calls=kernel_calls
        )
    )
    if att.causal and (pair_bytes := kernels.transformer_engine.mask_bytes):
        made = pair_bytes * local * length
        ops.streams.append(
            _stream(f"{prefix}mask", "elementwise", made, 0.0, calls=8, backward_calls=0.0)
        )
    ops.keep(f"{prefix}attention weights", size * scores, SavedRole.ATTENTION_WEIGHTS, module=_CORE)
    if att.dropout:
        ops.streams.append(
            _stream(f"{prefix}attention dropout", "softmax", 5.0 * scores, 5.0 * scores)
        )
        dropped = (size + 1.0) * scores
        ops.keep(f"{prefix}dropped attention weights", dropped, module=_CORE)
    return ops


def is_flash(kernels: Kernels, att: Attention) -> bool:
    """Whether one kernel computes the module; disentangled attention has none."""
    unequal = att.head_dim > FUSED_HEAD and att.value_dim != att.head_dim
    unfused = unequal and kernels.wide_heads.unequal == "unfused"
    return kernels.attention == "flash" and not att.disentangled and not unfused


def _softmax_bytes(att: Attention, kernels: Kernels) -> tuple[float, float]:
    """Bytes that each score moves in either pass of the softmax, scale and mask.

    Fused, forward reads and writes 16 bit, backward reads gradient and result and writes. Under a
    plain causal mask Megatron's kernel reads only the half that the mask leaves and writes zeros to
    the rest (NVIDIA/Megatron-LM megatron/fused_kernels/scaled_upper_triang_masked_softmax.h).
    """
    if "softmax" not in kernels.fused:
        return 20.0, 20.0
    plain = att.causal and not (att.window or att.softcap or att.relative_buckets)
    if plain and "causal_softmax" in kernels.fused:
        return 3.0, 4.0
    return 4.0, 6.0


def _flash(
    att: Attention,
    ranks: Ranks,
    recipe: Recipe,
    kernels: Kernels,
    *,
    source: Recipe,
    prefix: str,
) -> ModuleOperators:
    """Fused calls. Windows without a mask (of an image) are sequences of their own."""
    ops = ModuleOperators()
    heads = att.heads / ranks.tp
    tokens, blocks = ranks.tokens(recipe), ranks.key_blocks(kernels)
    lengths = _lengths(source)
    span = sum(share * min(att.window or length, length) for length, share in lengths)
    keys = sum(share * seen_keys(att, length) for length, share in lengths)
    rows = sum(share * length for length, share in _lengths(recipe))
    if att.window and not att.causal:
        rows = min(att.window, rows)
    queries = rows / ranks.query_parts()
    width = element_bytes(recipe) * (att.head_dim + att.value_dim)
    kv_heads = np.maximum(att.kv_heads * heads / att.heads, 1.0)
    pairs = ranks.tokens(source) * ranks.query_parts() / blocks * kv_heads
    ops.flash.append(
        Flash(
            heads=tokens * heads / queries,
            queries=queries,
            keys=keys / blocks,
            span=span / blocks,
            score_size=att.head_dim,
            value_size=att.value_dim,
            query_bytes=width * tokens * heads,
            key_bytes=width * pairs,
            calls=blocks,
        )
    )
    if recipe.precision in kernels.transformer_engine.quantised_attention:
        ops.streams.append(
            _cast_operands(att, tokens * heads, ranks.tokens(source) * kv_heads, recipe, prefix)
        )
    # of the attention to an encoder no rule tells it apart
    role = SavedRole.OTHER if prefix else SavedRole.LOG_SUM_EXP
    ops.keep(f"{prefix}log-sum-exp", 4.0 * tokens * heads, role, module=_CORE)
    if kernels.copies_attention_output:
        copied = np.where((ranks.micro_batch > 1) & (ranks.cp == 1), tokens * heads, 0.0)
        size_bytes = copied * att.value_dim * element_bytes(recipe)
        ops.keep(f"{prefix}batch-first output", size_bytes, module=_CORE)
    return ops


def _cast_operands(att: Attention, queries: Any, pairs: Any, recipe: Recipe, prefix: str) -> Stream:
    """Casts of queries, keys and values, and of the result's gradient: along rows and columns.

    NVIDIA/TransformerEngine v2.16 pytorch/attention/dot_product_attention/utils.py,
    combine_and_quantize; the result and three gradients come out in 16 bit.
    """
    element = element_bytes(recipe) + 2.0 * QUANTISED_BYTES[recipe.precision]
    cast = queries * att.head_dim + pairs * (att.head_dim + att.value_dim)
    return Stream(
        name=f"{prefix}casts for attention",
        kind="cast",
        forward_bytes=element * cast,
        backward_bytes=element * queries * att.value_dim,
        calls=3.0,
        backward_calls=1.0,
        module=_CORE,
    )


def _lengths(recipe: Recipe) -> tuple[tuple[int, float], ...]:
    """Lengths that attention sees, and the share of tokens in sequences of each."""
    if recipe.batching == "packed":
        return tuple(recipe.sequences)
    return ((recipe.sequence_length, 1.0),)


def _positions(
    att: Attention, hidden: int, heads: Floats, ranks: Ranks, recipe: Recipe
) -> ModuleOperators:
    """Disentangled attention: queries meet positions as keys, keys meet positions as queries.

    He et al. 2021 (arXiv 2006.03654), section 3.2, kept as transformers computes it: projections
    repeated for every sequence, both products and two tables of indices (which torch's gather
    keeps), keys once more with the scale in them.
    """
    ops = ModuleOperators()
    size, rows, length = element_bytes(recipe), att.disentangled, recipe.sequence_length
    calls, local = ranks.micro_batch * heads, length / ranks.cp
    width = heads * att.head_dim
    for name in ("position keys", "position queries"):
        ops.gemms.append(Gemm(name=name, m=rows, n=width, k=hidden))
    ops.gemms.append(_product("content to position", local, rows, att.head_dim, calls))
    ops.gemms.append(_product("position to content", local, rows, att.head_dim, calls))
    scores = calls * local * length
    # two gathers read 8-byte indices; two scales; three sums of score matrices
    moved = (2 * (8 + 2 * size) + 2 * 2 * size + 3 * 3 * size) * scores
    ops.streams.append(_stream("position scores", "elementwise", moved, moved, calls=8))
    repeated = 2 * ranks.micro_batch * rows * width * size
    ops.keep("position keys and queries", repeated, module=_CORE)
    ops.keep("position scores", 2 * size * calls * local * rows, module=_CORE)
    ops.keep("position indices", 2 * 8.0 * local * length, module=_CORE)
    ops.keep("scaled keys", ranks.tokens(recipe) * width * size, module=_CORE)
    if att.dropout:
        ops.keep("dropped positions", (size + 1.0) * rows * hidden + 0 * heads, module=_CORE)
    return ops


def _product(name: str, m: Any, n: Any, k: Any, batch: Any, *, causal: bool = False) -> Gemm:
    return Gemm(
        name=name,
        role=GemmRole.SCORES,
        m=m,
        n=n,
        k=k,
        batch=batch,
        kind="attention",
        module=_CORE,
        causal=causal,
    )


def _stream(
    name: str,
    kind: str,
    forward: Any,
    backward: Any,
    *,
    calls: float = 1.0,
    backward_calls: float | None = None,
) -> Stream:
    return Stream(
        name=name,
        kind=kind,
        module=_CORE,
        calls=calls,
        backward_calls=backward_calls,
        forward_bytes=forward,
        backward_bytes=backward,
    )
