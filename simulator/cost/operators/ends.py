"""Operators before the first block and behind the last: embedding, norm, heads, loss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.cost.operators.casts import casts
from simulator.cost.operators.mixers import small_linear
from simulator.cost.operators.operations import (
    Collective,
    Gemm,
    ModuleOperators,
    Operators,
    Ranks,
    Stream,
    element_bytes,
    norm,
    padded_vocabulary,
    stream_bytes,
    stream_casts,
)
from simulator.cost.operators.roles import GemmRole, SavedRole, StreamRole
from simulator.cost.operators.stashes import compress_stashes
from simulator.cost.operators.tensor_parallel import gather_input, reduce_output
from simulator.cost.operators.traced_blocks import traced
from simulator.software.kernels import Kernels
from simulator.workload.architecture import Architecture, Block
from simulator.workload.modules import beside
from simulator.workload.recipe import Recipe
from simulator.workload.tasks import TaskHeads


def layer_recipe(kind: Block, recipe: Recipe) -> Recipe:
    """Return the recipe with the tokens per sequence that the layer sees."""
    length = kind.tokens or (recipe.decoder_length if kind.cross_attention is not None else 0)
    if length in (0, recipe.sequence_length):
        return recipe
    return replace(recipe, sequence_length=length)


def look_up(elements: Floats, size: float) -> Stream:
    """Rows of a table that tokens or positions pick: copied, and their gradients added in fp32."""
    return Stream(
        name="look-up",
        role=StreamRole.LOOK_UP,
        kind="elementwise",
        forward_bytes=2 * size * elements,
        backward_bytes=(size + 8) * elements,
        calls=2,
    )


def embedding(arch: Architecture, ranks: Ranks, recipe: Recipe, kernels: Kernels) -> Operators:
    """List the operators of the input embedding: look-up, positions, dropout, reduction over tp."""
    if arch.traced is not None:  # the head has it
        return Operators(is_block=False)
    size = element_bytes(recipe)
    wide = stream_bytes(size, kernels)
    tokens = ranks.tokens(recipe) * arch.hidden
    ops = Operators(is_block=False, checkpoint_bytes=0.0)
    elements = ranks.own_tokens(recipe) * arch.hidden
    if arch.patch_values:
        patches = ranks.tokens(recipe) - arch.extra_embeddings * ranks.micro_batch / ranks.cp
        ops.gemms.append(
            Gemm(name="patches", m=patches, n=arch.hidden, k=arch.patch_values, kind="head")
        )
        ops.keep("patches", patches * arch.patch_values * size)
    else:
        ops.streams.append(look_up(tokens * arch.table_columns / arch.hidden, wide))
    if arch.table_width:
        few = ranks.own_tokens(recipe)
        ops.gemms.append(
            Gemm(name="project in", m=few, n=arch.hidden, k=arch.table_width, kind="head")
        )
        ops.keep("embedding before projection", few * arch.table_width * size)
    for weight in beside(arch.linears, 0):
        ops.add(small_linear(weight, arch.hidden, ranks, recipe))
    if arch.embedding_norms:
        ops.add(norm("embedding norm", elements, arch.hidden, size, kernels, kind="layer"))
    if arch.blocks[0].dropout:
        ops.streams.append(
            Stream(
                name="dropout",
                kind="elementwise",
                forward_bytes=(2 * wide + 1) * elements,
                backward_bytes=(2 * wide + 1) * elements,
            )
        )
        ops.keep("embedding dropout mask", elements, SavedRole.MASK)
        ops = compress_stashes(ops, recipe)
    ops.add(reduce_output(tokens * arch.table_columns / arch.hidden * size, ranks, ""))
    return ops


def head(arch: Architecture, ranks: Ranks, recipe: Recipe, kernels: Kernels) -> Operators:
    """List the operators of final norm, output head and cross-entropy loss."""
    if arch.traced is not None:
        return traced(arch.traced, ranks, recipe, is_block=False)
    recipe, width = layer_recipe(arch.blocks[-1], recipe), arch.last_width or arch.hidden
    size, own_tokens = element_bytes(recipe), ranks.own_tokens(recipe)
    ops = Operators(is_block=False)
    if arch.head_transform:
        ops.gemms.append(Gemm(name="head transform", m=own_tokens, n=width, k=width, kind="head"))
        ops.keep("head transform input", 2 * own_tokens * width * size)
    if arch.final_norm != "none":
        elements, wide = own_tokens * width, stream_bytes(size, kernels)
        ops.add(norm("final norm", elements, width, wide, kernels, kind=arch.final_norm))
        ops.streams += stream_casts("head", elements, 1, 0, kernels)
    once = ranks.micro_batch
    if arch.pooler:
        ops.gemms.append(Gemm(name="pooler", m=once, n=width, k=width, kind="head"))
    if arch.classes:
        ops.gemms.append(Gemm(name="classes", m=once, n=arch.classes, k=width, kind="head"))
    if arch.tasks is not None:
        ops.add(task_heads(arch.tasks, width, ranks, recipe))
    if arch.output_rows:
        ops.add(_vocabulary(arch, ranks, recipe, kernels))
    if recipe.precision in kernels.transformer_engine.quantised_head:
        ops.gemms = [_as_linear(g) for g in ops.gemms]
        ops.streams = casts(ops, recipe, kernels, ranks, {})
    return ops


def _as_linear(g: Gemm) -> Gemm:
    """The output head as a linear of fewer than 16 bit; anything else as it is."""
    return replace(g, kind="linear") if g.role is GemmRole.OUTPUT_HEAD else g


def _vocabulary(
    arch: Architecture, ranks: Ranks, recipe: Recipe, kernels: Kernels
) -> ModuleOperators:
    """Add the product with the output table and the loss over the vocabulary."""
    ops = ModuleOperators()
    size = element_bytes(recipe)
    tokens, own_tokens = ranks.tokens(recipe), ranks.own_tokens(recipe)
    columns = padded_vocabulary(arch.vocabulary, ranks.tp, kernels) / ranks.tp
    width = arch.table_columns
    if arch.table_width:
        ops.gemms.append(
            Gemm(name="project out", m=own_tokens, n=width, k=arch.hidden, kind="head")
        )
        ops.keep("states before projection", own_tokens * arch.hidden * size)
    ops.gemms.append(
        Gemm(name="head", role=GemmRole.OUTPUT_HEAD, m=tokens, n=columns, k=width, kind="head")
    )
    ops.add(gather_input(tokens * width * size, ranks, "head", kernels))
    logits = tokens * columns
    if arch.logit_softcap:
        ops.add(_soften(logits, size))
    fused = loss_is_fused(kernels, ranks.tp)
    if kernels.linear_loss:
        ops.add(_linear_loss(arch, ranks, recipe, columns))
        return ops
    if kernels.dtensor.gathers_logits:
        logits = logits * ranks.tp
        ops.collectives.append(
            Collective(operation="all_gather", group="tp", size_bytes=size * logits, backward=False)
        )
    ops.streams += _loss(logits, kernels, fused=fused)
    keeps = tokens if kernels.dtensor.keeps_gathered_inputs else own_tokens
    ops.keep("head input", keeps * width * size, linears=("table",))
    trained = recipe.trains_head(tied=arch.tied_embeddings)
    weight, dgrad = trained * columns * width * size, tokens * width * size
    lasting = fused | (recipe.loss_chunks > 1)
    kept = np.where(lasting, size, size + 4)
    ops.keep("logits", kept * logits, SavedRole.LOGITS, module="loss")
    ops.passing_bytes = np.where(lasting, 0.0, size) * logits
    fullest = _loss_bytes(logits, weight, dgrad, size, ranks=ranks, recipe=recipe, kernels=kernels)
    if not kernels.dtensor.keeps_gathered_inputs:
        # the head's input, gathered again for the weight gradient into a buffer that stays, and
        # the scattered gradient (megatron/core/tensor_parallel/layers.py)
        more = dgrad + own_tokens * width * size
        fullest = fullest + np.where(fused & ranks.sequence_parallel, more, 0.0)
    ops.transient_bytes = fullest
    return ops


def _linear_loss(
    arch: Architecture, ranks: Ranks, recipe: Recipe, columns: Floats
) -> ModuleOperators:
    """Loss and head as one function (Liger-Kernel, ops/fused_linear_cross_entropy.py).

    Tokens come in some ``ceil(V / H)`` pieces, each of a power of two, so that a piece's logits are
    about as large as the input. One kernel reads them twice and writes their gradient over them;
    every further piece reads and writes the sum of the weights' gradients. Both gradients wait, and
    the backward pass scales them.
    """
    ops = ModuleOperators()
    size, width, tokens = element_bytes(recipe), arch.table_columns, ranks.tokens(recipe)
    trained = recipe.trains_head(tied=arch.tied_embeddings)
    weight, dgrad = trained * columns * width * size, tokens * width * size
    piece = 2.0 ** np.ceil(np.log2(np.ceil(tokens / np.ceil(columns / width))))
    pieces = np.ceil(tokens / piece)
    ops.streams.append(
        Stream(
            name="loss",
            kind="loss",
            forward_bytes=3 * size * tokens * columns + 2 * weight * (pieces - 1),
            backward_bytes=2 * (dgrad + weight),
            calls=pieces,
            backward_calls=2.0,
            module="loss",
        )
    )
    ops.keep("gradient of the head's input", dgrad, module="loss")
    ops.keep("gradient of the head", weight + 0.0 * tokens, module="loss")
    ops.transient_bytes = np.minimum(piece, tokens) * columns * size
    return ops


def _soften(logits: Floats, size: float) -> ModuleOperators:
    """A soft cap on the logits: a division, a tangent and a product."""
    ops = ModuleOperators()
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
    return ops


def loss_is_fused(kernels: Kernels, tp: Any) -> NDArray[np.bool_]:
    """Whether one or two kernels do the loss; see `Kernels.split_loss_bytes_per_logit`."""
    everywhere = kernels.split_loss_bytes_per_logit is None
    return np.asarray("loss" in kernels.fused) & ((np.asarray(tp) == 1) | everywhere)


def _loss(logits: Floats, kernels: Kernels, *, fused: NDArray[np.bool_]) -> list[Stream]:
    """Cross-entropy over the vocabulary: half of its traffic in either pass."""
    streams = []
    for is_fused, total, calls in (
        (True, float(kernels.fused_loss_traffic), 2),
        (False, float(kernels.eager_loss_traffic), 8),
    ):
        here = fused == is_fused
        if here.any():
            pass_bytes = np.where(here, total * 0.5, 0.0) * logits
            streams.append(
                Stream(
                    name="loss" if is_fused or not fused.any() else "loss over tp",
                    kind="loss",
                    forward_bytes=pass_bytes,
                    backward_bytes=pass_bytes,
                    calls=np.where(here, calls, 0) if not here.all() else calls,
                )
            )
    return streams


def _loss_bytes(
    logits: Floats,
    weight: Floats,
    dgrad: Floats,
    size: float,
    *,
    ranks: Ranks,
    recipe: Recipe,
    kernels: Kernels,
) -> Floats:
    """Most bytes that loss and head's backward pass hold beside what is kept of every logit.

    A fused loss writes the gradient over them, or beside them. In pieces: what one piece needs, the
    weight's gradient from it and the sum of those before (torchtune's CEWithChunkedOutputLoss).
    """
    pieces, fused = recipe.loss_chunks, loss_is_fused(kernels, ranks.tp)
    if pieces > 1:
        piece = np.where(fused, 0.0, float(kernels.chunk_bytes_per_logit))
        return piece * logits / pieces + 2 * weight + dgrad / pieces
    beside = size * logits if kernels.loss_gradient_apart else 0.0
    over = np.maximum(weight + dgrad, beside)
    if not kernels.loss_bytes_per_logit:
        return np.where(fused, over, 4 * logits + weight + dgrad)
    usual = float(kernels.loss_bytes_per_logit)
    split = np.asarray(ranks.tp) > 1
    logit_bytes = np.where(split, float(kernels.split_loss_bytes_per_logit or usual), usual)
    fullest = np.maximum((logit_bytes - size - 4) * logits, weight + dgrad - 4 * logits)
    return np.where(fused, over, fullest)


def task_heads(tasks: TaskHeads, width: int, ranks: Ranks, recipe: Recipe) -> ModuleOperators:
    """List them for one rank; every tensor-parallel rank has them whole.

    Kept for the backward pass, as eager torch does: the input, the rectified inner tensors, the
    experts' results together, the softmax of the gates, what every tower reads, and the logarithms
    of the outputs' probabilities.
    """
    ops = ModuleOperators()
    size = element_bytes(recipe)
    vectors = ranks.own_tokens(recipe) if tasks.per_token else ranks.micro_batch
    seen, reads = sum(tasks.shares), tasks.tower_inputs(width)
    for w in tasks.weights(width):
        ops.gemms.append(
            Gemm(
                name=w.name,
                m=vectors * w.share,
                n=w.rows,
                k=w.columns,
                batch=float(w.count),
                kind="head",
                role=GemmRole.TASK_HEAD,
            )
        )
    if tasks.experts:
        ops.gemms.append(
            Gemm(
                name="task mixing",
                m=seen,
                n=reads,
                k=tasks.experts,
                batch=vectors,
                kind="attention",
                role=GemmRole.TASK_HEAD,
            )
        )
    kept = _kept(tasks, width)
    for name, elements in kept:
        ops.keep(name, vectors * elements * size)
    moved: Any = 2 * size * vectors * sum(elements for _, elements in kept[1:])
    ops.streams.append(
        Stream(
            name="task activations",
            kind="elementwise",
            forward_bytes=moved,
            backward_bytes=1.5 * moved,
            calls=float(len(kept) - 1),
        )
    )
    return ops


def _kept(tasks: TaskHeads, width: int) -> list[tuple[str, float]]:
    """Elements that a vector leaves for the backward pass, by name."""
    seen, reads = sum(tasks.shares), tasks.tower_inputs(width)
    kept: list[tuple[str, float]] = [("task input", width)]
    if tasks.experts:
        kept += [
            ("task experts' inner", tasks.experts * tasks.expert_hidden),
            ("task experts' results", tasks.experts * reads),
            ("task gates", len(tasks.outputs) * tasks.experts),
            ("task tower inputs", seen * reads),
        ]
    if tasks.tower_hidden:
        kept.append(("task towers' inner", seen * tasks.tower_hidden))
    outputs = zip(tasks.outputs, tasks.shares, strict=True)
    return [*kept, ("task outputs", sum(size * share for size, share in outputs))]
