"""Workload x layout -> operators: matrix products, attention, bytes moved, collectives, tensors.

For each part of the model (every block kind, the embedding, the head) this module lists what one
rank does for one micro-batch, over the distinct layout keys. ``cost/blocks.py`` prices the list.
"""

from __future__ import annotations

import numpy as np

from simulator.cost.attention import attention
from simulator.cost.mlp import experts, mlp
from simulator.cost.operations import (
    Gemm,
    Operators,
    Ranks,
    Stream,
    casts,
    element_bytes,
    gather_input,
    norm,
    padded_vocabulary,
    reduce_output,
    residual,
)
from simulator.software import Kernels
from simulator.workload.architecture import Architecture, Block, MoE
from simulator.workload.recipe import Recipe

__all__ = ["block", "embedding", "head", "predict_ahead"]


def block(
    kind: Block, hidden: int, ranks: Ranks, recipe: Recipe, kernels: Kernels, *, rotary: bool = True
) -> Operators:
    """List the operators of one transformer block."""
    ops = Operators(is_moe=kind.is_moe)
    size = element_bytes(recipe)
    own = ranks.own_tokens(recipe) * hidden
    ops.checkpoint_bytes = own * size
    for index in range(kind.norms):
        norm(ops, f"norm{index + 1}", own, hidden, size, kernels, kind.norm)
    attention(ops, kind, hidden, ranks, recipe, kernels, rotary)
    if isinstance(kind.mlp, MoE):
        experts(ops, kind.mlp, hidden, ranks, recipe, kernels)
    else:
        mlp(ops, kind.mlp, hidden, ranks, recipe, kernels)
    for name in ("attention", "mlp"):
        residual(ops, f"{name} residual", own, size, kind.dropout, kernels)
    casts(ops, recipe)
    return ops


def predict_ahead(
    ops: Operators, arch: Architecture, ranks: Ranks, recipe: Recipe, kernels: Kernels
) -> None:
    """Add what a multi-token-prediction layer does beside its block.

    The hidden state and the next token's embedding are normed and joined by a projection of
    twice the width; the result passes the model's output head and a loss of its own.
    """
    size, tokens, own = element_bytes(recipe), ranks.tokens(recipe), ranks.own_tokens(recipe)
    for name in ("hidden norm", "embedding norm"):
        norm(ops, name, own * arch.hidden, arch.hidden, size, kernels, arch.final_norm)
    ops.gemms.append(Gemm(name="join", m=tokens, n=arch.hidden / ranks.tp, k=2 * arch.hidden))
    ops.saved.append(("join input", "", 2 * own * arch.hidden * size))
    gather_input(ops, 2 * tokens * arch.hidden * size, ranks, "join", kernels)
    for more in (embedding(arch, ranks, recipe, kernels), head(arch, ranks, recipe, kernels)):
        ops.gemms += more.gemms
        ops.streams += more.streams
        ops.collectives += more.collectives
        ops.saved += more.saved
        ops.transient_bytes = np.maximum(ops.transient_bytes, more.transient_bytes)
    casts(ops, recipe)


def embedding(arch: Architecture, ranks: Ranks, recipe: Recipe, kernels: Kernels) -> Operators:
    """List the operators of the input embedding: look-up, positions, dropout, reduction over tp."""
    size = element_bytes(recipe)
    tokens = ranks.tokens(recipe) * arch.hidden
    ops = Operators(is_block=False, checkpoint_bytes=0.0)
    ops.streams.append(
        Stream(
            name="look-up",
            kind="elementwise",
            forward_bytes=2 * size * tokens,
            backward_bytes=(size + 8) * tokens,
            calls=2,
        )
    )
    if arch.blocks[0].dropout:
        own = ranks.own_tokens(recipe) * arch.hidden
        ops.streams.append(
            Stream(
                name="dropout",
                kind="elementwise",
                forward_bytes=(2 * size + 1) * own,
                backward_bytes=(2 * size + 1) * own,
            )
        )
        ops.saved.append(("embedding dropout mask", "", own))
    reduce_output(ops, tokens * size, ranks, "")
    return ops


def head(arch: Architecture, ranks: Ranks, recipe: Recipe, kernels: Kernels) -> Operators:
    """List the operators of final norm, output head and cross-entropy loss."""
    size = element_bytes(recipe)
    tokens, own = ranks.tokens(recipe), ranks.own_tokens(recipe)
    columns = padded_vocabulary(arch.vocabulary, ranks.tp, kernels) / ranks.tp
    ops = Operators(is_block=False)
    norm(ops, "final norm", own * arch.hidden, arch.hidden, size, kernels, arch.final_norm)
    ops.gemms.append(Gemm(name="head", m=tokens, n=columns, k=arch.hidden, kind="head"))
    gather_input(ops, tokens * arch.hidden * size, ranks, "head", kernels)
    logits = tokens * columns
    fused = "loss" in kernels.fused
    total = 24.0 if fused else 44.0
    ops.streams.append(
        Stream(
            name="loss",
            kind="loss",
            forward_bytes=total * 0.5 * logits,
            backward_bytes=total * 0.5 * logits,
            calls=2 if fused else 8,
        )
    )
    ops.saved.append(("head input", "", own * arch.hidden * size))
    ops.saved.append(("logits", "loss", logits * (size if fused else size + 4)))
    dgrad = tokens * arch.hidden * size
    ops.transient_bytes = columns * arch.hidden * size + dgrad + (0 if fused else 4) * logits
    return ops
