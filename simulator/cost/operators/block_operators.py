"""Workload x layout -> operators: matrix products, attention, bytes moved, collectives, tensors.

For each part of the model (every block kind, the embedding, the head) this module lists what one
rank does for one micro-batch, over the distinct layout keys. ``cost/blocks/block_prices.py`` prices
the list.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.cost.operators.attention import attention, cross_attention
from simulator.cost.operators.biases import linear_biases
from simulator.cost.operators.casts import casts
from simulator.cost.operators.mlp import experts, mlp
from simulator.cost.operators.operations import (
    Gemm,
    Operators,
    Ranks,
    Stream,
    element_bytes,
    norm,
    padded_vocabulary,
    residual,
)
from simulator.cost.operators.quantised import quantise_saved
from simulator.cost.operators.recomputed import rerun_norms
from simulator.cost.operators.roles import GemmRole, SavedRole, StreamRole
from simulator.cost.operators.stashes import compress_stashes
from simulator.cost.operators.task_heads import task_heads
from simulator.cost.operators.tensor_parallel import gather_input, reduce_output
from simulator.cost.operators.traced_blocks import traced
from simulator.software.kernels import Kernels
from simulator.workload.architecture import Architecture, Block, MoE
from simulator.workload.recipe import Recipe

__all__ = ["block", "embedding", "head", "predict_ahead"]


_NORMS = (StreamRole.ATTENTION_NORM, StreamRole.MLP_NORM)
"""Of a block's norms; a third and fourth stand behind attention and MLP."""

_RESIDUALS = {
    "attention residual": StreamRole.ATTENTION_RESIDUAL,
    "mlp residual": StreamRole.MLP_RESIDUAL,
}


def block(
    kind: Block,
    hidden: int,
    ranks: Ranks,
    recipe: Recipe,
    kernels: Kernels,
    position: str = "rope",
    *,
    either_layout: bool = False,
) -> Operators:
    """List the operators of one transformer block, or of one layer of a traced module.

    `position` is how positions enter the model, `either_layout` the device's ``fp8_either_layout``.
    """
    if kind.traced is not None:
        return traced(kind.traced, ranks, recipe)
    routed = isinstance(kind.mlp, MoE) and not kind.mlp.shared_ffn_hidden
    ops = Operators(is_moe=kind.is_moe, has_mlp=not routed, is_latent=kind.attention.is_mla)
    inputs, recipe, hidden = recipe, _in_layer(kind, recipe), kind.width or hidden
    size = element_bytes(recipe)
    own = ranks.own_tokens(recipe) * hidden
    ops.checkpoint_bytes = own * size
    parallel = kind.parallel_residual
    for index in range(kind.norms):
        norm(
            ops,
            f"norm{index + 1}",
            own,
            hidden,
            size,
            kernels,
            kind.norm,
            keeps_input=index == 0 or not parallel,
            role=_NORMS[index] if index < len(_NORMS) else StreamRole.OTHER,
        )
    if kind.starts_decoder:
        _start_decoder(ops, kind, hidden, ranks, inputs, recipe, kernels)
    if kind.merges_patches:
        _merge_patches(ops, hidden, ranks, recipe, kernels)
    attention(ops, kind, hidden, ranks, recipe, kernels, position)
    if kind.convolution:
        _convolve(ops, kind, hidden, ranks, recipe, kernels)
    if kind.cross_attention is not None:
        cross_attention(ops, kind.cross_attention, hidden, ranks, recipe, inputs, kernels)
        residual(ops, "cross attention residual", own, size, kind.dropout, kernels)
    if isinstance(kind.mlp, MoE):
        experts(ops, kind.mlp, hidden, ranks, recipe, kernels)
    else:
        shared = parallel and kind.norms == 1
        mlp(ops, kind.mlp, hidden, ranks, recipe, kernels, keeps_input=not shared)
        # dropout behind it keeps a mask, a norm what it reads
        ops.last_linear = None if kind.dropout or kind.norms > 3 else GemmRole.FC2
    ops.streams += linear_biases(kind, hidden, ranks, recipe, kernels)
    for name, role in _RESIDUALS.items():
        residual(ops, name, own, size, kind.dropout, kernels, role)
    if kernels.reruns_norms:
        ops.streams += rerun_norms(ops.streams)
    casts(ops, recipe, kernels, ranks, _normed(kind), either_layout=either_layout)
    ops.saved = quantise_saved(ops, recipe, kernels)
    return compress_stashes(ops, recipe)


def _normed(kind: Block) -> dict[GemmRole, StreamRole]:
    """Linears that alone read the norm in front of them, and that norm.

    Megatron-Core makes one module of both (TELayerNormColumnParallelLinear, gpt_layer_specs.py);
    norms before experts and latent projections are modules of their own.
    """
    if kind.norms < 2 or kind.parallel_residual or kind.cross_attention is not None:
        return {}
    return {
        GemmRole.QUERY_KEY_VALUE: StreamRole.ATTENTION_NORM,
        GemmRole.FC1: StreamRole.MLP_NORM,
    }


def _in_layer(kind: Block, recipe: Recipe) -> Recipe:
    """Return the recipe with the tokens per sequence that the layer sees."""
    length = kind.tokens or (recipe.decoder_length if kind.cross_attention is not None else 0)
    if length in (0, recipe.sequence_length):
        return recipe
    return replace(recipe, sequence_length=length)


def _start_decoder(
    ops: Operators,
    kind: Block,
    hidden: int,
    ranks: Ranks,
    inputs: Recipe,
    recipe: Recipe,
    kernels: Kernels,
) -> None:
    """Add the encoder's last norm, whose output all layers of the decoder read, and the look-up."""
    size, own = element_bytes(recipe), ranks.own_tokens(inputs) * hidden
    norm(ops, "encoder norm", own, hidden, size, kernels, kind.norm)
    ops.keep("encoder output", own * size, module="norm")
    _look_up(ops, ranks.tokens(recipe) * hidden, size)
    if kind.dropout:
        ops.keep("encoder dropout mask", own, SavedRole.MASK)
        ops.keep("decoder dropout mask", ranks.own_tokens(recipe) * hidden, SavedRole.MASK)


def _merge_patches(
    ops: Operators, hidden: int, ranks: Ranks, recipe: Recipe, kernels: Kernels
) -> None:
    """Four patches of half the width become one: a norm over all four and a projection."""
    size, wide = element_bytes(recipe), 2 * hidden
    own = ranks.own_tokens(recipe) * wide
    norm(ops, "merge norm", own, wide, size, kernels, "layer")
    ops.keep("merge input", own * size, SavedRole.MERGED_INPUT, module="norm")
    ops.gemms.append(Gemm(name="merge", m=ranks.tokens(recipe), n=hidden / ranks.tp, k=wide))
    gather_input(ops, ranks.tokens(recipe) * wide * size, ranks, "merge", kernels)


def _convolve(
    ops: Operators, kind: Block, hidden: int, ranks: Ranks, recipe: Recipe, kernels: Kernels
) -> None:
    """A convolution over the tokens of the layer's input, an activation, the sum and a norm.

    Every tensor-parallel rank has its weights. transformers copies the input with channels first,
    which the convolution keeps, and the result back, which the activation keeps.
    """
    size, own = element_bytes(recipe), ranks.own_tokens(recipe)
    seen = kind.convolution * (hidden // kind.convolution_groups)
    ops.gemms.append(Gemm(name="convolution", m=own, n=hidden, k=seen, kind="head"))
    elements = own * hidden
    for name in ("input", "output"):
        ops.streams.append(
            Stream(
                name=f"convolution {name} copy",
                kind="elementwise",
                forward_bytes=2 * size * elements,
                backward_bytes=2 * size * elements,
            )
        )
        ops.keep(f"convolution {name}", elements * size)
    residual(ops, "convolution residual", elements, size, kind.dropout, kernels)
    norm(ops, "convolution norm", elements, hidden, size, kernels, "layer")


def _look_up(ops: Operators, elements: Floats, size: float) -> None:
    ops.streams.append(
        Stream(
            name="look-up",
            kind="elementwise",
            forward_bytes=2 * size * elements,
            backward_bytes=(size + 8) * elements,
            calls=2,
        )
    )


def predict_ahead(
    ops: Operators,
    arch: Architecture,
    ranks: Ranks,
    recipe: Recipe,
    kernels: Kernels,
    *,
    either_layout: bool = False,
) -> None:
    """Add what a multi-token-prediction layer does beside its block.

    The hidden state and the next token's embedding are normed and joined by a projection of
    twice the width; the result passes the model's output head and a loss of its own.
    """
    size, tokens, own = element_bytes(recipe), ranks.tokens(recipe), ranks.own_tokens(recipe)
    for name in ("hidden norm", "embedding norm"):
        norm(ops, name, own * arch.hidden, arch.hidden, size, kernels, arch.final_norm)
    ops.gemms.append(Gemm(name="join", m=tokens, n=arch.hidden / ranks.tp, k=2 * arch.hidden))
    ops.keep("join input", 2 * own * arch.hidden * size, SavedRole.MERGED_INPUT)
    gather_input(ops, 2 * tokens * arch.hidden * size, ranks, "join", kernels)
    for more in (embedding(arch, ranks, recipe, kernels), head(arch, ranks, recipe, kernels)):
        ops.gemms += more.gemms
        ops.streams += more.streams
        ops.collectives += more.collectives
        ops.saved += more.saved
        ops.transient_bytes = np.maximum(ops.transient_bytes, more.transient_bytes)
    casts(ops, recipe, kernels, ranks, {}, either_layout=either_layout)


def embedding(arch: Architecture, ranks: Ranks, recipe: Recipe, kernels: Kernels) -> Operators:
    """List the operators of the input embedding: look-up, positions, dropout, reduction over tp."""
    if arch.traced is not None:  # the head has it
        return Operators(is_block=False)
    size = element_bytes(recipe)
    tokens = ranks.tokens(recipe) * arch.hidden
    ops = Operators(is_block=False, checkpoint_bytes=0.0)
    own = ranks.own_tokens(recipe) * arch.hidden
    if arch.patch_values:
        patches = ranks.tokens(recipe) - arch.extra_embeddings * ranks.micro_batch / ranks.cp
        ops.gemms.append(
            Gemm(name="patches", m=patches, n=arch.hidden, k=arch.patch_values, kind="head")
        )
        ops.keep("patches", patches * arch.patch_values * size)
    else:
        _look_up(ops, tokens * arch.table_columns / arch.hidden, size)
    if arch.table_width:
        few = ranks.own_tokens(recipe)
        ops.gemms.append(
            Gemm(name="project in", m=few, n=arch.hidden, k=arch.table_width, kind="head")
        )
        ops.keep("embedding before projection", few * arch.table_width * size)
    if arch.embedding_norms:
        norm(ops, "embedding norm", own, arch.hidden, size, kernels, "layer")
    if arch.blocks[0].dropout:
        ops.streams.append(
            Stream(
                name="dropout",
                kind="elementwise",
                forward_bytes=(2 * size + 1) * own,
                backward_bytes=(2 * size + 1) * own,
            )
        )
        ops.keep("embedding dropout mask", own, SavedRole.MASK)
        ops = compress_stashes(ops, recipe)
    reduce_output(ops, tokens * arch.table_columns / arch.hidden * size, ranks, "")
    return ops


def head(arch: Architecture, ranks: Ranks, recipe: Recipe, kernels: Kernels) -> Operators:
    """List the operators of final norm, output head and cross-entropy loss."""
    if arch.traced is not None:
        return traced(arch.traced, ranks, recipe, is_block=False)
    recipe, width = _in_layer(arch.blocks[-1], recipe), arch.last_width or arch.hidden
    size, own = element_bytes(recipe), ranks.own_tokens(recipe)
    ops = Operators(is_block=False)
    if arch.head_transform:
        ops.gemms.append(Gemm(name="head transform", m=own, n=width, k=width, kind="head"))
        ops.keep("head transform input", 2 * own * width * size)
    if arch.final_norm != "none":
        norm(ops, "final norm", own * width, width, size, kernels, arch.final_norm)
    once = ranks.micro_batch
    if arch.pooler:
        ops.gemms.append(Gemm(name="pooler", m=once, n=width, k=width, kind="head"))
    if arch.classes:
        ops.gemms.append(Gemm(name="classes", m=once, n=arch.classes, k=width, kind="head"))
    if arch.tasks is not None:
        task_heads(ops, arch.tasks, width, ranks, recipe)
    if arch.output_rows:
        _vocabulary(ops, arch, ranks, recipe, kernels)
    return ops


def _vocabulary(
    ops: Operators, arch: Architecture, ranks: Ranks, recipe: Recipe, kernels: Kernels
) -> None:
    """Add the product with the output table and the loss over the vocabulary."""
    size = element_bytes(recipe)
    tokens, own = ranks.tokens(recipe), ranks.own_tokens(recipe)
    columns = padded_vocabulary(arch.vocabulary, ranks.tp, kernels) / ranks.tp
    width = arch.table_columns
    if arch.table_width:
        ops.gemms.append(Gemm(name="project out", m=own, n=width, k=arch.hidden, kind="head"))
        ops.keep("states before projection", own * arch.hidden * size)
    ops.gemms.append(
        Gemm(name="head", role=GemmRole.OUTPUT_HEAD, m=tokens, n=columns, k=width, kind="head")
    )
    gather_input(ops, tokens * width * size, ranks, "head", kernels)
    logits = tokens * columns
    if arch.logit_softcap:
        ops.streams.append(
            Stream(
                name="logit softcap",
                kind="elementwise",
                forward_bytes=6 * size * logits,
                backward_bytes=7 * size * logits,
                calls=3,
            )
        )
        ops.keep("capped logits", size * logits, module="loss")
    fused = "loss" in kernels.fused
    total = float(kernels.fused_loss_traffic) if fused else 44.0
    ops.streams.append(
        Stream(
            name="loss",
            kind="loss",
            forward_bytes=total * 0.5 * logits,
            backward_bytes=total * 0.5 * logits,
            calls=2 if fused else 8,
        )
    )
    keeps = tokens if kernels.keeps_gathered_inputs else own
    ops.keep("head input", keeps * width * size)
    trained = recipe.trains_head(tied=arch.tied_embeddings)
    weight, dgrad = trained * columns * width * size, tokens * width * size
    kept = size if fused or recipe.loss_chunks > 1 else size + 4
    ops.keep("logits", kept * logits, SavedRole.LOGITS, module="loss")
    ops.passing_bytes = (size if kept > size else 0.0) * logits
    split = np.asarray(ranks.tp) > 1
    ops.transient_bytes = _loss_bytes(logits, weight, dgrad, kept, split, recipe, kernels)
    if "loss" in kernels.fused and not kernels.keeps_gathered_inputs:
        # the head's input, gathered again for the weight gradient into a buffer that stays, and
        # the scattered gradient (megatron/core/tensor_parallel/layers.py)
        more = dgrad + own * width * size
        ops.transient_bytes = ops.transient_bytes + np.where(ranks.sequence_parallel, more, 0.0)


def _loss_bytes(
    logits: Floats,
    weight: Floats,
    dgrad: Floats,
    kept: float,
    split: NDArray[np.bool_],
    recipe: Recipe,
    kernels: Kernels,
) -> Floats:
    """Most bytes that loss and head's backward pass hold beside the `kept` ones of every logit.

    A fused loss writes the gradient over them. In pieces: what one piece needs, the weight's
    gradient from it and the sum of those before (torchtune's CEWithChunkedOutputLoss).
    """
    pieces = recipe.loss_chunks
    if pieces > 1:
        piece = 0.0 if "loss" in kernels.fused else float(kernels.chunk_bytes_per_logit)
        return piece * logits / pieces + 2 * weight + dgrad / pieces
    if "loss" in kernels.fused:
        return weight + dgrad
    if kernels.loss_bytes_per_logit is None:
        return 4 * logits + weight + dgrad
    usual = float(kernels.loss_bytes_per_logit)
    each = np.where(split, float(kernels.split_loss_bytes_per_logit or usual), usual)
    fullest = (each - kept) * logits
    return np.maximum(fullest, weight + dgrad - 4 * logits)
