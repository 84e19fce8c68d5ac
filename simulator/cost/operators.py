"""Workload x layout -> operators: matrix products, attention, bytes moved, collectives, tensors kept.

For each part of the model (every block kind, the embedding, the head) this module lists
what one rank does for one micro-batch, as arrays over the distinct layout keys. Nothing here
knows seconds; ``cost/blocks.py`` prices the list.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.layout.placement import Placement
from simulator.software import Kernels
from simulator.workload.architecture import MLP, Architecture, Attention, Block, MoE
from simulator.workload.recipe import Recipe

__all__ = [
    "Collective",
    "Flash",
    "Gemm",
    "Operators",
    "Ranks",
    "Stream",
    "block",
    "embedding",
    "head",
]

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """What one rank sees, as arrays over distinct layout keys."""

    tp: Floats
    sequence_parallel: NDArray[np.bool_]
    cp: Floats
    ep: Floats
    etp: Floats
    micro_batch: Floats
    groups: Placement

    def tokens(self, recipe: Recipe) -> Floats:
        """Tokens of one micro-batch on one rank (the sequence is split over cp)."""
        return self.micro_batch * recipe.sequence_length / self.cp

    def own_tokens(self, recipe: Recipe) -> Floats:
        """The same between tensor-parallel regions, where sequence parallelism splits over tp."""
        return self.tokens(recipe) / np.where(self.sequence_parallel, self.tp, 1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Gemm:
    """`batch` products of (m, k) by (k, n) on one rank; backward adds dgrad and wgrad."""

    name: str
    m: Any
    n: Any
    k: Any
    batch: Any = 1.0
    kind: str = "linear"
    """linear (weights, takes fp8), attention (no weights), head (weights, stays 16 bit)."""
    module: str = ""
    """What recomputation has to name to run it again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Flash:
    """One fused causal attention call."""

    flop: Any
    """Causal FLOPs of the forward pass."""
    moved_bytes: Any
    sequence: Any
    """Keys that one call sees: the ring of context parallelism brings them s / cp at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream:
    """Memory-bound kernels: bytes moved and number of calls in each direction."""

    name: str
    kind: str
    """Class of the accelerator's `stream` table."""
    forward_bytes: Any
    backward_bytes: Any
    calls: float = 1.0
    module: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """One collective of a micro-batch, and the matrix product that may hide it."""

    operation: str
    """all_gather, reduce_scatter, all_reduce, all_to_all or ring."""
    group: str
    """tp, cp, ep or etp: also the name of its time term."""
    size_bytes: Any
    backward: bool
    window: str = ""
    """GEMM whose time may hide it: ``name:forward``, ``name:dgrad``, ``name:wgrad``, or ``attention``."""
    pipelined: bool = False
    """Hidden only by software that pipelines the collective with the GEMM (user buffers)."""


@dataclass(kw_only=True, slots=True)
class Operators:
    """Everything that one part of the model does on one rank for one micro-batch."""

    gemms: list[Gemm] = field(default_factory=list)
    flash: list[Flash] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    saved: list[tuple[str, str, Any]] = field(default_factory=list)
    """(tensor, module, bytes) kept from forward to backward."""
    transient_bytes: Any = 0.0
    """Largest temporaries of the backward pass beside what was saved."""
    checkpoint_bytes: Any = 0.0
    """The part's input, all that full recomputation keeps."""
    is_moe: bool = False
    is_block: bool = True


def block(kind: Block, hidden: int, ranks: Ranks, recipe: Recipe, kernels: Kernels) -> Operators:
    """List the operators of one transformer block."""
    ops = Operators(is_moe=kind.is_moe)
    size = element_bytes(recipe)
    own = ranks.own_tokens(recipe) * hidden
    ops.checkpoint_bytes = own * size
    for index in range(kind.norms):
        _norm(ops, f"norm{index + 1}", own, hidden, size, kernels)
    _attention(ops, kind, hidden, ranks, recipe, kernels)
    if isinstance(kind.mlp, MoE):
        _experts(ops, kind.mlp, hidden, ranks, recipe, kernels)
    else:
        _mlp(ops, kind.mlp, hidden, ranks, recipe, kernels)
    for name in ("attention", "mlp"):
        _residual(ops, f"{name} residual", own, size, kind.dropout, kernels)
    return ops


def embedding(arch: Architecture, ranks: Ranks, recipe: Recipe, kernels: Kernels) -> Operators:
    """List the operators of the input embedding: look-up, positions, dropout, reduction over tp."""
    size = element_bytes(recipe)
    tokens = ranks.tokens(recipe) * arch.hidden
    ops = Operators(is_block=False, checkpoint_bytes=0.0)
    ops.streams.append(Stream(name="look-up", kind="elementwise", forward_bytes=2 * size * tokens,
                              backward_bytes=(size + 8) * tokens, calls=2))  # fmt: skip
    if arch.blocks[0].dropout:
        own = ranks.own_tokens(recipe) * arch.hidden
        ops.streams.append(Stream(name="dropout", kind="elementwise",
                                  forward_bytes=(2 * size + 1) * own, backward_bytes=(2 * size + 1) * own))  # fmt: skip
        ops.saved.append(("embedding dropout mask", "", own))
    _reduce_output(ops, tokens * size, ranks, "")
    return ops


def head(arch: Architecture, ranks: Ranks, recipe: Recipe, kernels: Kernels) -> Operators:
    """List the operators of final norm, output head and cross-entropy loss."""
    size = element_bytes(recipe)
    tokens, own = ranks.tokens(recipe), ranks.own_tokens(recipe)
    columns = padded_vocabulary(arch.vocabulary, ranks.tp, kernels) / ranks.tp
    ops = Operators(is_block=False)
    _norm(ops, "final norm", own * arch.hidden, arch.hidden, size, kernels)
    ops.gemms.append(Gemm(name="head", m=tokens, n=columns, k=arch.hidden, kind="head"))
    _gather_input(ops, tokens * arch.hidden * size, ranks, "head", kernels)
    logits = tokens * columns
    fused = "loss" in kernels.fused
    total = 24.0 if fused else 44.0
    ops.streams.append(Stream(name="loss", kind="loss", forward_bytes=total * 0.5 * logits,
                              backward_bytes=total * 0.5 * logits, calls=2 if fused else 8))  # fmt: skip
    ops.saved.append(("head input", "", own * arch.hidden * size))
    ops.saved.append(("logits", "loss", logits * (size if fused else size + 4)))
    dgrad = tokens * arch.hidden * size
    ops.transient_bytes = columns * arch.hidden * size + dgrad + (0 if fused else 4) * logits
    return ops


def element_bytes(recipe: Recipe) -> float:
    """Bytes of one activation element."""
    return 4.0 if recipe.precision in ("fp32", "tf32") else 2.0


def padded_vocabulary(vocabulary: int, tp: Any, kernels: Kernels) -> Floats:
    """Vocabulary rounded up so that tp shards are equal (Megatron: a multiple of 128 tp)."""
    step = kernels.pads_vocabulary_to * np.asarray(tp, dtype=float)
    return np.ceil(vocabulary / step) * step


def _norm(
    ops: Operators, name: str, elements: Floats, width: int, size: float, kernels: Kernels
) -> None:
    """A norm: one kernel each way when fused, else six (cast, square, mean, scale, cast, weight)."""
    fused = "norm" in kernels.fused
    forward, backward = (2 * size, 3 * size) if fused else (6 * size + 16, 10 * size + 24)
    ops.streams.append(Stream(name=name, kind="norm" if fused else "elementwise",
                              forward_bytes=forward * elements, backward_bytes=backward * elements,
                              calls=1 if fused else 6, module="norm"))  # fmt: skip
    ops.saved.append((f"{name} input", "", elements * size))
    ops.saved.append((f"{name} statistics", "norm", 4.0 * elements / width))
    if not fused:
        ops.saved.append((f"{name} in fp32", "norm", elements * (4 + size)))


def _residual(
    ops: Operators, name: str, elements: Floats, size: float, dropout: bool, kernels: Kernels
) -> None:
    """Bias, dropout and residual addition; the backward pass also adds the two gradients."""
    fused = "bias_dropout_add" in kernels.fused
    mask = 1.0 if dropout else 0.0
    forward = 3 * size + mask
    if not fused and dropout:
        forward += 4 * size
    backward = 3 * size + (2 * size + mask if dropout else 0.0)
    ops.streams.append(Stream(name=name, kind="elementwise", forward_bytes=forward * elements,
                              backward_bytes=backward * elements, calls=1 if fused else 3))  # fmt: skip
    if dropout:
        ops.saved.append((f"{name} dropout mask", "", elements))


def _attention(
    ops: Operators, kind: Block, hidden: int, ranks: Ranks, recipe: Recipe, kernels: Kernels
) -> None:
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
    rope = 2 * size if "rope" in kernels.fused else 7 * size
    ops.streams.append(Stream(name="rotary", kind="elementwise", forward_bytes=rope * tokens * (query + key),
                              backward_bytes=rope * tokens * (query + key), calls=2))  # fmt: skip
    ops.streams.append(Stream(name="split and merge", kind="elementwise", forward_bytes=2 * size * tokens * value,
                              backward_bytes=2 * size * tokens * (query + key + value)))  # fmt: skip
    for tensor, width in (("queries", query), ("keys", key), ("values", value)):
        ops.saved.append((tensor, "", tokens * width * size))
    _core_attention(ops, att, heads, ranks, recipe, kernels)
    ops.gemms.append(Gemm(name="proj", m=tokens, n=hidden, k=result))
    ops.saved.append(("attention output", "", tokens * result * size))
    wide = tokens * hidden * size
    _gather_input(ops, wide, ranks, first, kernels)
    _reduce_output(ops, wide, ranks, "proj")
    _context_ring(ops, tokens, query, key + value, result, ranks, size)


def _context_ring(
    ops: Operators, tokens: Floats, query: Any, pairs: Any, result: Any, ranks: Ranks, size: float
) -> None:
    """cp - 1 exchanges of keys and values, and merging each step's partial result into the sum in fp32.

    The backward pass sends keys, values and their gradients, and adds the partial gradients.
    """
    steps = ranks.cp - 1.0
    ops.streams.append(Stream(name="context merge", kind="elementwise", calls=0.0,
                              forward_bytes=steps * tokens * result * (size + 8.0),
                              backward_bytes=steps * tokens * (query + pairs) * 3.0 * size))  # fmt: skip
    exchanged = tokens * pairs * size * steps
    for backward, times in ((False, 1.0), (True, 2.0)):
        ops.collectives.append(Collective(operation="ring", group="cp", size_bytes=times * exchanged,
                                          backward=backward, window="attention"))  # fmt: skip


def _latent_projections(
    ops: Operators, att: Attention, hidden: int, ranks: Ranks, recipe: Recipe
) -> None:
    """MLA: down- and up-projections; the down-projections are not sharded over tp."""
    tokens, own = ranks.tokens(recipe), ranks.own_tokens(recipe)
    heads, size = att.heads / ranks.tp, element_bytes(recipe)
    nope = att.head_dim - att.rope_head_dim
    if att.q_lora_rank:
        ops.gemms.append(Gemm(name="q_down", m=own, n=att.q_lora_rank, k=hidden))
        ops.gemms.append(Gemm(name="q_up", m=tokens, n=heads * att.head_dim, k=att.q_lora_rank))
        ops.saved.append(("compressed queries", "", 2 * own * att.q_lora_rank * size))
    else:
        ops.gemms.append(Gemm(name="q", m=tokens, n=heads * att.head_dim, k=hidden))
    ops.gemms.append(Gemm(name="kv_down", m=own, n=att.kv_lora_rank + att.rope_head_dim, k=hidden))
    ops.gemms.append(
        Gemm(name="kv_up", m=tokens, n=heads * (nope + att.value_dim), k=att.kv_lora_rank)
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
    ops.gemms.append(Gemm(name="scores", m=local, n=length, k=att.head_dim, batch=calls,
                          kind="attention", module="core_attn"))  # fmt: skip
    ops.gemms.append(Gemm(name="context", m=local, n=att.value_dim, k=length, batch=calls,
                          kind="attention", module="core_attn"))  # fmt: skip
    scores = calls * local * length
    fused = "softmax" in kernels.fused
    ops.streams.append(Stream(name="softmax", kind="softmax", module="core_attn", calls=1 if fused else 4,
                              forward_bytes=(4.0 if fused else 20.0) * scores,
                              backward_bytes=(6.0 if fused else 20.0) * scores))  # fmt: skip
    ops.saved.append(("attention weights", "core_attn", size * scores))
    if att.dropout:
        ops.streams.append(Stream(name="attention dropout", kind="softmax", module="core_attn",
                                  forward_bytes=5.0 * scores, backward_bytes=5.0 * scores))  # fmt: skip
        ops.saved.append(("dropped attention weights", "core_attn", (size + 1.0) * scores))
    copied = 2 * size * tokens * heads * att.value_dim
    ops.streams.append(Stream(name="context transpose", kind="elementwise", forward_bytes=copied,
                              backward_bytes=copied, module="core_attn"))  # fmt: skip


def _mlp(
    ops: Operators, mlp: MLP, hidden: int, ranks: Ranks, recipe: Recipe, kernels: Kernels
) -> None:
    """A dense MLP, sharded over tp, with the collectives around it."""
    size, tokens = element_bytes(recipe), ranks.tokens(recipe)
    keeps = tokens if kernels.keeps_gathered_inputs else ranks.own_tokens(recipe)
    ops.saved.append(("mlp input", "norm", keeps * hidden * size))
    wide = tokens * hidden * size
    _feed_forward(ops, "fc", tokens, hidden, mlp.ffn_hidden / ranks.tp, mlp.gated, size, kernels)
    _gather_input(ops, wide, ranks, "fc1", kernels)
    _reduce_output(ops, wide, ranks, "fc2")


def _feed_forward(
    ops: Operators, name: str, tokens: Any, hidden: int, ffn: Any, gated: bool, size: float,
    kernels: Kernels, batch: Any = 1.0,
) -> None:  # fmt: skip
    """Two linears and the activation between them, for one MLP or a batch of experts."""
    wide = 2 if gated else 1
    ops.gemms.append(Gemm(name=f"{name}1", m=tokens, n=wide * ffn, k=hidden, batch=batch))
    ops.gemms.append(Gemm(name=f"{name}2", m=tokens, n=hidden, k=ffn, batch=batch))
    inner = batch * tokens * ffn
    fused = "bias_activation" in kernels.fused
    if gated:
        forward, backward = (3, 5) if fused else (5, 9)
    else:
        forward, backward = (2, 3) if fused else (4, 5)
    ops.streams.append(Stream(name=f"{name} activation", kind="elementwise", calls=1 if fused else 2,
                              forward_bytes=forward * size * inner, module="mlp_act",
                              backward_bytes=backward * size * inner))  # fmt: skip
    ops.saved.append((f"{name}1 output", "", wide * inner * size))
    ops.saved.append((f"{name} activation output", "mlp_act", inner * size))
    if gated and not fused:
        ops.saved.append((f"{name} gate", "mlp_act", inner * size))
    ops.transient_bytes = np.maximum(ops.transient_bytes, (wide + 1) * inner * size)


def _experts(
    ops: Operators, moe: MoE, hidden: int, ranks: Ranks, recipe: Recipe, kernels: Kernels
) -> None:
    """Router, dispatch, routed experts as one grouped product, combine, shared experts."""
    size, own, tokens = element_bytes(recipe), ranks.own_tokens(recipe), ranks.tokens(recipe)
    ops.saved.append(("moe input", "norm", own * hidden * size))
    ops.gemms.append(Gemm(name="router", m=own, n=moe.experts, k=hidden, kind="head"))
    ops.saved.append(("router", "", 24.0 * own * moe.experts))
    sent = own * moe.top_k * hidden * size
    arriving = sent * ranks.etp
    ops.streams.append(Stream(name="permute", kind="elementwise", calls=4, forward_bytes=2 * (sent + arriving),
                              backward_bytes=2 * (sent + arriving)))  # fmt: skip
    for backward in (False, True):
        for _ in ("dispatch", "combine"):
            ops.collectives.append(
                Collective(operation="all_to_all", group="ep", size_bytes=sent, backward=backward)
            )
        for operation in ("all_gather", "reduce_scatter"):
            ops.collectives.append(
                Collective(operation=operation, group="etp", size_bytes=arriving, backward=backward)
            )
    per_expert = own * moe.top_k * ranks.etp * ranks.ep / moe.experts
    ops.saved.append(("permuted tokens", "", arriving))
    _feed_forward(ops, "expert fc", per_expert, hidden, moe.ffn_hidden / ranks.etp, moe.gated, size, kernels,
                  batch=moe.experts / ranks.ep)  # fmt: skip
    if moe.shared_ffn_hidden:
        wide = tokens * hidden * size
        _feed_forward(
            ops,
            "shared fc",
            tokens,
            hidden,
            moe.shared_ffn_hidden / ranks.tp,
            moe.gated,
            size,
            kernels,
        )
        _gather_input(ops, wide, ranks, "shared fc1", kernels)
        _reduce_output(ops, wide, ranks, "shared fc2")


def _gather_input(ops: Operators, wide: Any, ranks: Ranks, linear: str, kernels: Kernels) -> None:
    """A column-parallel linear: sequence parallelism gathers its input, else gradients are reduced.

    Korthikanti et al. 2022, section 4.2.2: with sequence parallelism the backward pass gathers the
    input again beside dgrad and scatters the input gradient beside wgrad.
    """
    sharded = np.where(ranks.sequence_parallel, wide, 0.0)
    whole = np.where(ranks.sequence_parallel, 0.0, wide)
    add = ops.collectives.append
    add(Collective(operation="all_gather", group="tp", size_bytes=sharded, backward=False,
                   window=f"{linear}:forward", pipelined=True))  # fmt: skip
    if not kernels.keeps_gathered_inputs:
        add(Collective(operation="all_gather", group="tp", size_bytes=sharded, backward=True,
                       window=f"{linear}:dgrad"))  # fmt: skip
    add(Collective(operation="reduce_scatter", group="tp", size_bytes=sharded, backward=True,
                   window=f"{linear}:wgrad"))  # fmt: skip
    add(Collective(operation="all_reduce", group="tp", size_bytes=whole, backward=True,
                   window=f"{linear}:wgrad"))  # fmt: skip


def _reduce_output(ops: Operators, wide: Any, ranks: Ranks, linear: str) -> None:
    """A row-parallel linear: its partial outputs are reduced (scattered with sequence parallelism)."""
    sharded = np.where(ranks.sequence_parallel, wide, 0.0)
    whole = np.where(ranks.sequence_parallel, 0.0, wide)
    window = {"forward": f"{linear}:forward", "dgrad": f"{linear}:dgrad"} if linear else {}
    add = ops.collectives.append
    add(Collective(operation="reduce_scatter", group="tp", size_bytes=sharded, backward=False,
                   window=window.get("forward", ""), pipelined=True))  # fmt: skip
    add(Collective(operation="all_gather", group="tp", size_bytes=sharded, backward=True,
                   window=window.get("dgrad", ""), pipelined=True))  # fmt: skip
    add(Collective(operation="all_reduce", group="tp", size_bytes=whole, backward=False))
