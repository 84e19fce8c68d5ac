"""Operators of an attention module: projections, core attention, the collectives around them."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.cost.operators.attention_scores import core_attention, is_flash
from simulator.cost.operators.context import Widths, exchange_context
from simulator.cost.operators.operations import (
    OPERATOR,
    Collective,
    Gemm,
    ModuleOperators,
    Ranks,
    Stream,
    element_bytes,
    norm,
    separate_linears,
    summed_gradients,
)
from simulator.cost.operators.roles import GemmRole, SavedRole
from simulator.cost.operators.tensor_parallel import (
    gather_cast_input,
    gather_input,
    kept_input,
    reduce_cast_output,
    reduce_output,
)
from simulator.software.kernels import Kernels
from simulator.workload.architecture import Attention, Block
from simulator.workload.modules import Indexer
from simulator.workload.recipe import Recipe

_UP = "mla_up_proj"
"""Module of what recomputation makes of latent attention's compressed tensors."""


def attention(
    kind: Block,
    hidden: int,
    ranks: Ranks,
    recipe: Recipe,
    kernels: Kernels,
    *,
    position: str,
) -> ModuleOperators:
    """Projections, core attention and the collectives around them."""
    att, size, tokens = kind.attention, element_bytes(recipe), ranks.tokens(recipe)
    assert att is not None, "a block without attention"
    ops, again, widths = ModuleOperators(), _UP * att.is_mla, _widths(att, ranks)
    if att.is_mla:
        ops.add(_latent_projections(att, hidden, ranks, recipe))
        wide = ranks.own_tokens(recipe) * hidden * size
        ops.streams += summed_gradients("down-projections", 2, wide, kernels)
    else:
        ops.add(_project(att, hidden, ranks, recipe, kernels))
    if att.filtered:
        ops.add(_filter(hidden, ranks, recipe, kernels))
    if kind.norms > 0:
        kept = kept_input(
            "attention input", hidden, ranks, recipe, kernels,
            linears=_readers(kind, att), readers=1 if att.is_mla else 3,
        )  # fmt: skip
        ops.saved.append(kept)
    ops.streams.append(_rotary(att, widths, tokens, size, kernels, position=position))
    ops.streams.append(_split_and_merge(att, ranks, tokens, size, kernels))
    if att.qk_norm or att.plain_qk_norm:
        ops.add(_norm_heads(att, widths, tokens, size, kernels))
    if att.indexer is not None:
        ops.add(_pick(att.indexer, att.q_lora_rank or hidden, hidden, ranks, recipe))
    heads, kv_heads = _heads(att, ranks)
    repeated = ranks.repeated_keys(heads if att.is_mla else kv_heads)
    copies = np.maximum(heads / kv_heads if kernels.repeats_keys else 1.0, repeated)
    ops.add(_what_scores_read(widths, copies, tokens * size, module=again))
    ops.add(core_attention(att, hidden, ranks, recipe, kernels, alibi=position == "alibi"))
    output = GemmRole.ATTENTION_OUTPUT
    ops.gemms.append(Gemm(name="proj", role=output, m=tokens, n=hidden, k=widths.result))
    ops.keep("attention output", tokens * widths.result * size, SavedRole.ATTENTION_OUTPUT)
    ops.add(_gates(att, hidden, tokens, widths, size))
    wide = tokens * hidden * size
    if att.is_mla:
        latent = (att.q_lora_rank or hidden) + att.kv_lora_rank
        ops.add(gather_input(tokens * latent * size, ranks, "kv_up", kernels, module=again))
        ops.collectives += _gather_rotary(tokens * att.rope_head_dim * size, ranks)
    else:
        ops.add(gather_cast_input(wide, ranks, "qkv", recipe, kernels, projections=3))
    ops.add(reduce_cast_output(wide, ranks, "proj", recipe, kernels))
    exchanged = exchange_context(
        widths, tokens, tokens, ranks, size,
        kernels=kernels, heads_per_key=widths.query / widths.key, repeated=repeated,
    )  # fmt: skip
    ops.add(exchanged)
    return ops


def _what_scores_read(
    widths: Widths, copies: Any, bytes_per_element: Any, *, module: str
) -> ModuleOperators:
    """Queries, and keys and values as often as they are repeated, kept for the backward pass."""
    ops = ModuleOperators()
    for role, width in (
        (SavedRole.QUERIES, widths.query),
        (SavedRole.KEYS, copies * widths.key),
        (SavedRole.VALUES, copies * widths.value),
    ):
        ops.keep(role.name.lower(), bytes_per_element * width, role, module=module)
    return ops


def _heads(att: Attention, ranks: Ranks) -> tuple[Any, Any]:
    """Heads of queries, and of keys and values, on one rank: at least one of the latter."""
    return att.heads / ranks.tp, np.maximum(att.kv_heads / ranks.tp, 1.0)


def _widths(att: Attention, ranks: Ranks) -> Widths:
    """Elements per token on one rank; latent attention gives every head keys of its own."""
    heads, kv_heads = _heads(att, ranks)
    pairs = heads if att.is_mla else kv_heads
    return Widths(
        query=heads * att.head_dim,
        key=pairs * att.head_dim,
        value=pairs * att.value_dim,
        result=heads * att.value_dim,
    )


def _project(
    att: Attention,
    hidden: int,
    ranks: Ranks,
    recipe: Recipe,
    kernels: Kernels,
) -> ModuleOperators:
    """Queries, keys and values of the block's input, in one product or in three."""
    tokens, size, role = ranks.tokens(recipe), element_bytes(recipe), GemmRole.QUERY_KEY_VALUE
    widths = _widths(att, ranks)
    keys, values = widths.key * (not att.shares_keys), widths.value
    if att.shares_keys or att.keys_are_values:
        values = values * 0.0
    part_widths = (widths.query * (1 + att.output_gate), keys, values)
    apart, sums = separate_linears("qkv", part_widths, tokens * hidden, size, kernels)
    width = part_widths[0] + keys + values
    product = Gemm(name="qkv", role=role, m=tokens, n=width, k=hidden, linears=apart)
    return ModuleOperators(gemms=[product], streams=sums)


def _norm_heads(
    att: Attention, widths: Widths, tokens: Any, size: float, kernels: Kernels
) -> ModuleOperators:
    """Norms of queries and of keys, by head or over all heads of all ranks.

    Over all heads ranks agree on the mean of squares: a number in fp32 for each token.
    """
    ops = ModuleOperators()
    kind = "plain" if not att.qk_norm else "layer" if att.qk_norm_bias else "rms"
    whole = att.qk_norm_width == "all"
    tensors = [("queries", widths.query, att.heads), ("keys", widths.key, att.kv_heads)]
    for tensor, width, heads in tensors[: 1 if att.shares_keys else 2]:
        normed = att.head_dim * (heads if whole else 1)
        ops.add(norm(f"norm of {tensor}", tokens * width, normed, size, kernels, kind=kind))
        if whole:
            ops.collectives += [
                Collective(
                    operation="all_reduce", group="tp", size_bytes=4.0 * tokens, backward=backward
                )
                for backward in (False, True)
            ]
    return ops


def _pick(
    indexer: Indexer, reads: int, hidden: int, ranks: Ranks, recipe: Recipe
) -> ModuleOperators:
    """The indexer on every rank whole: queries, key and weights, scores, and what it picks.

    Scores of all heads are rectified, weighted and summed in the kernel that makes them; their sum
    is written and read once in fp32 for the choice. Kept are queries, key, weights, indices and
    what the norms of the key, and of queries where they have one, read.
    """
    ops = ModuleOperators()
    size, tokens = element_bytes(recipe), ranks.tokens(recipe)
    heads, head = indexer.heads, indexer.head_dim
    wide = heads * head
    for n, k in ((wide, reads), (head + heads * indexer.weighted, hidden)):
        ops.gemms.append(Gemm(name="indexer", m=tokens, n=n, k=k, kind="head"))
    length = recipe.sequence_length
    keys = length / indexer.compression
    ops.gemms.append(
        Gemm(
            name="index scores",
            m=length / ranks.cp,
            n=keys,
            k=head,
            batch=ranks.micro_batch * heads,
            kind="attention",
            causal=True,
        )
    )
    ops.streams.append(
        Stream(
            name="picked tokens",
            kind="elementwise",
            forward_bytes=2 * 4.0 * tokens * keys / 2,
            backward_bytes=0.0,
            calls=3,
            backward_calls=0.0,
        )
    )
    picked = min(indexer.top_k, length) / indexer.block
    normed = head + (0 if indexer.biased_norm else wide)
    elements = wide + head + heads * indexer.weighted + normed
    ops.keep("indexer", tokens * (elements * size + 4.0 * picked))
    return ops


def _rotary(
    att: Attention, widths: Widths, tokens: Any, size: float, kernels: Kernels, *, position: str
) -> Stream:
    """Rotation of queries and keys by their positions.

    Eager latent attention turns the rotary parts of queries, and of the keys that all heads share,
    as complex numbers of fp32: 20 bytes for an element of two; whole queries and keys are joined
    then (torchtitan's models/deepseek_v3). pytorch/torchtitan#4134 times it and what
    :func:`_split_and_merge` copies on GB300: 1.20 and 0.97 ms for 4,096 tokens of 128 heads.
    """
    rotary = position == "rope" and att.rotary
    if rotary and _rotates_latent(att, kernels):
        return _latent_rotary(att, widths, tokens, size)
    if rotary and att.is_mla and any(kernels.latent_rotary_passes):
        return _latent_operators(att, widths, tokens, size, kernels.latent_rotary_passes)
    forward, backward = (2, 2) if "rope" in kernels.fused else _eager_rotary(kernels)
    if att.scaled_rotary:
        forward, backward = kernels.scaled_rotary_passes
    elements, joined = rotary * size * tokens * (widths.query + widths.key), 0.0
    if att.is_mla and "rope" not in kernels.fused:
        forward, backward, joined = 10, 10, 2.0 * elements
        parts = widths.query / att.head_dim + 1.0
        elements = rotary * size * tokens * att.rope_head_dim * parts
    return Stream(
        name="rotary",
        kind=OPERATOR if kernels.runs_alone("rope") else "elementwise",
        forward_bytes=forward * elements + joined,
        backward_bytes=backward * elements,
        calls=2 if rotary else 0,
        module=_UP * att.is_mla,
    )


def _eager_rotary(kernels: Kernels) -> tuple[int, int]:
    """Times that operators rotating queries and keys pass them, in 16 bit."""
    torch = kernels.torch
    if not torch.alone:
        return 7, 7
    return (
        torch.wide_rotary_passes
        if kernels.wide_stream and torch.wide_rotation
        else torch.rotary_passes
    )


def _rotates_latent(att: Attention, kernels: Kernels) -> bool:
    """Whether latent attention has kernels of its own that rotate, split and merge."""
    return att.is_mla and "latent_rope" in kernels.fused


def _latent_rotary(att: Attention, widths: Widths, tokens: Any, size: float) -> Stream:
    """Two kernels (Megatron-Core 0.13, fusions/fused_mla_yarn_rope_apply.py), alike both ways.

    One turns the rotary part of the queries where it lies. One reads what keys and values were
    projected to, and writes whole keys, rotary part included, and values apart.
    """
    heads = widths.query / att.head_dim
    projected = att.head_dim - att.rope_head_dim + att.value_dim
    written = att.head_dim + att.value_dim
    moved = size * tokens * heads * (2 * att.rope_head_dim + projected + written)
    return Stream(
        name="rotary",
        kind="elementwise",
        forward_bytes=moved,
        backward_bytes=moved,
        calls=2,
        module=_UP,
    )


def _latent_operators(
    att: Attention, widths: Widths, tokens: Any, size: float, passes: tuple[int, int]
) -> Stream:
    """The same by operators: heads are joined again out of their parts, 27 small kernels a way."""
    turned = widths.query * att.rope_head_dim / att.head_dim
    joined = 2 * widths.query + 2 * widths.key - turned
    return Stream(
        name="rotary",
        kind="elementwise",
        forward_bytes=size * tokens * (passes[0] * turned + joined),
        backward_bytes=size * tokens * passes[1] * turned,
        calls=27,
        module=_UP,
    )


def _split_and_merge(
    att: Attention, ranks: Ranks, tokens: Any, size: float, kernels: Kernels
) -> Stream:
    """Copies of the parts of what was projected together, and of their gradients back."""
    widths = _widths(att, ranks)
    # batched products take the parts where they lie; transformers copies those of DeBERTa
    copied = 1.0 if is_flash(kernels, att) else 3.0 if att.disentangled else 0.0
    back = 0.0 if _rotates_latent(att, kernels) else 1.0
    copied = copied * back
    heads, kv_heads = _heads(att, ranks)
    grouped = kernels.copies_grouped_queries and not att.is_mla
    apart = (heads > kv_heads) & (kv_heads > 1.0) & grouped
    return Stream(
        name="split and merge",
        kind="elementwise",
        forward_bytes=2 * size * tokens * (widths.value * copied + widths.query * apart),
        backward_bytes=2 * size * tokens * (widths.query + widths.key + widths.value) * back,
        calls=np.minimum(copied, 1.0) + apart,
        backward_calls=back,
        module=_UP * att.is_mla,
    )


def _readers(kind: Block, att: Attention) -> tuple[str, ...]:
    """Weights that read a block's first norm: a parallel MLP without one of its own, too."""
    if att.is_mla:
        ours: tuple[str, ...] = ("q_down" if att.q_lora_rank else "q", "kv_down")
    else:
        ours = ("q", "k", "v")
    beside = kind.parallel_residual and kind.norms == 1
    return (*ours, "gate", "up") if beside else ours


def _gates(
    att: Attention, hidden: int, tokens: Any, widths: Widths, size: float
) -> ModuleOperators:
    """Gates on attention's result; latent attention's is a product of its own."""
    ops = ModuleOperators()
    if att.output_gate and att.is_mla:
        ops.gemms.append(Gemm(name="gate", m=tokens, n=widths.result, k=hidden))
    if att.head_gate:
        heads = widths.result / att.value_dim
        ops.gemms.append(Gemm(name="head gate", m=tokens, n=heads, k=hidden, kind="head"))
        ops.add(_gate(tokens * widths.result, tokens * heads, size))
    elif att.output_gate:
        ops.add(_gate(tokens * widths.result, tokens * widths.result, size))
    return ops


def _gate(elements: Any, gates: Any, size: float) -> ModuleOperators:
    """A sigmoid of the gate times attention's result: one kernel; gate and product are kept."""
    ops = ModuleOperators()
    ops.streams.append(
        Stream(
            name="output gate",
            kind="elementwise",
            forward_bytes=size * (2 * elements + gates),
            backward_bytes=size * (3 * elements + 2 * gates),
        )
    )
    ops.keep("output gate", gates * size)
    ops.keep("gated output", elements * size, SavedRole.LINEAR_INPUT, linears=("o",))
    return ops


def _latent_projections(
    att: Attention, hidden: int, ranks: Ranks, recipe: Recipe
) -> ModuleOperators:
    """MLA: down- and up-projections; the down-projections are not sharded over tp."""
    ops = ModuleOperators()
    tokens, own_tokens = ranks.tokens(recipe), ranks.own_tokens(recipe)
    heads, size = att.heads / ranks.tp, element_bytes(recipe)
    query, key_and_value = (
        heads * att.head_dim,
        heads * (att.head_dim - att.rope_head_dim + att.value_dim),
    )
    down, keys = GemmRole.LATENT_DOWN, att.kv_lora_rank + att.rope_head_dim
    if att.q_lora_rank:
        ops.gemms += [
            Gemm(name="q_down", role=down, m=own_tokens, n=att.q_lora_rank, k=hidden),
            _up("q_up", GemmRole.QUERY_UP, tokens, query, att.q_lora_rank),
        ]
        latent = own_tokens * att.q_lora_rank * size
        ops.keep("compressed queries", latent, SavedRole.LATENT)
        ops.keep("compressed queries, normed", latent, SavedRole.LATENT_NORMED, linears=("q_up",))
    else:
        ops.gemms.append(_up("q", GemmRole.QUERY_UP, tokens, query, hidden))
    ops.gemms += [
        Gemm(name="kv_down", role=down, m=own_tokens, n=keys, k=hidden),
        _up("kv_up", GemmRole.KEY_VALUE_UP, tokens, key_and_value, att.kv_lora_rank),
    ]
    latent = own_tokens * att.kv_lora_rank * size
    ops.keep("compressed keys", latent + own_tokens * att.rope_head_dim * size, SavedRole.LATENT)
    ops.keep("compressed keys, normed", latent, SavedRole.LATENT_NORMED, linears=("kv_up",))
    return ops


def _up(name: str, role: GemmRole, tokens: Any, outputs: Any, inputs: Any) -> Gemm:
    """An up-projection, which selective recomputation may run again."""
    return Gemm(name=name, role=role, m=tokens, n=outputs, k=inputs, module=_UP)


def _gather_rotary(wide: Any, ranks: Ranks) -> list[Collective]:
    """MLA's rotary part of the keys, which no linear reads: gathered once, its gradient scattered.

    Megatron-Core gathers it before what `mla_up_proj` recomputes.
    """
    sharded = np.where(ranks.sequence_parallel, wide, 0.0)
    whole = np.where(ranks.sequence_parallel, 0.0, wide)
    return [
        Collective(operation=operation, group="tp", size_bytes=size_bytes, backward=backward)
        for operation, size_bytes, backward in (
            ("all_gather", sharded, False),
            ("reduce_scatter", sharded, True),
            ("all_reduce", whole, True),
        )
    ]


def cross_attention(
    att: Attention,
    hidden: int,
    ranks: Ranks,
    recipe: Recipe,
    kernels: Kernels,
    *,
    source: Recipe,
) -> ModuleOperators:
    """Attention of a decoder to the output of its encoder, whose length `source` gives.

    The encoder's output is kept once for all layers, by the first layer of the decoder; with
    sequence parallelism every layer gathers it.
    """
    ops = ModuleOperators()
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
    ops.saved.append(
        kept_input("cross attention input", hidden, ranks, recipe, kernels, linears=("q",))
    )
    ops.keep("cross queries", tokens * query * size, SavedRole.CROSS_QUERIES)
    ops.keep("cross keys and values", keys * pairs * size, SavedRole.CROSS_KEYS_AND_VALUES)
    ops.add(core_attention(att, hidden, ranks, recipe, kernels, source=source, prefix="cross "))
    ops.gemms.append(
        Gemm(name="cross proj", role=GemmRole.CROSS_ATTENTION, m=tokens, n=hidden, k=result)
    )
    ops.keep("cross attention output", tokens * result * size, SavedRole.CROSS_ATTENTION_OUTPUT)
    ops.add(gather_input(tokens * hidden * size, ranks, "cross q", kernels))
    ops.add(gather_input(keys * hidden * size, ranks, "cross kv", kernels))
    ops.add(reduce_output(tokens * hidden * size, ranks, "cross proj"))
    widths = Widths(
        query=query, key=kv_heads * att.head_dim, value=kv_heads * att.value_dim, result=result
    )
    shared = result / widths.value
    ops.add(
        exchange_context(widths, tokens, keys, ranks, size, kernels=kernels, heads_per_key=shared)
    )
    return ops


def _filter(hidden: int, ranks: Ranks, recipe: Recipe, kernels: Kernels) -> ModuleOperators:
    """Localized filtering (Yuan 2.0): two convolutions over two tokens and an RMS norm of the sum.

    Every tensor-parallel rank has their weights; queries and keys read the result, values do not.
    """
    ops = ModuleOperators()
    size, tokens = element_bytes(recipe), ranks.tokens(recipe)
    ops.gemms.append(Gemm(name="filter1", m=tokens, n=hidden // 2, k=2 * hidden))
    ops.gemms.append(Gemm(name="filter2", m=tokens, n=hidden, k=2 * (hidden // 2)))
    ops.keep("filter output", tokens * (hidden // 2) * size)
    ops.keep("filtered input", tokens * hidden * size, module="norm")
    ops.add(norm("filter norm", tokens * hidden, hidden, size, kernels, kind="rms"))
    return ops
