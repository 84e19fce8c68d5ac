"""Parts of the model that are not trained: low-rank adapters, 4-bit weights, frozen blocks.

Hu et al. 2021 (LoRA): the product of a frozen matrix W (out, in) gets ``B A x`` added, with A
(rank, in) and B (out, rank) trained. Dettmers et al. 2023 (QLoRA): W is kept in 4-bit NF4 and
turned into 16 bit before every product.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simulator.cost.operators.matrices import Matrix, weight_matrices
from simulator.cost.operators.operations import Gemm, Operators, Ranks, Stream, element_bytes
from simulator.cost.operators.roles import GemmRole, StreamRole
from simulator.software.kernels import Kernels
from simulator.workload.architecture import Architecture
from simulator.workload.recipe import Recipe

__all__ = ["NF4_BYTES", "adapters", "freeze"]


NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes of a weight in NF4 with double quantisation: one 8-bit scale for 64 weights, one fp32 scale
for 256 of those (Dettmers et al. 2023, section 3: 0.127 bits a weight)."""


def adapters(matrices: list[Matrix], arch: Architecture, recipe: Recipe) -> list[Matrix]:
    """List the two small matrices that every adapted matrix of a trained block gets on one rank."""
    rank, found = recipe.lora_rank, []
    for w in matrices:
        inside = w.part < len(arch.blocks) and not arch.blocks[w.part].frozen
        if inside and not w.routed and w.name in recipe.lora_targets:
            found.append(Matrix(name=w.name, part=w.part, rows=rank, columns=w.columns))
            found.append(Matrix(name=w.name, part=w.part, rows=w.rows, columns=rank))
    return found


def freeze(
    parts: list[Operators], arch: Architecture, ranks: Ranks, recipe: Recipe, kernels: Kernels
) -> None:
    """Take out of every part what is not done for weights that are not trained, and add adapters.

    A block that is frozen with all before it has no backward pass and keeps nothing. Under adapters
    the products of frozen weights lose their weight gradient; inputs are kept as in full training.

    Parameters
    ----------
    parts : list of Operators
        Block kinds, embedding, head; changed in place.
    arch, ranks, recipe, kernels
        What they were made of.
    """
    *blocks, embedding, head = parts
    matrices = weight_matrices(
        arch, tp=ranks.tp, pp=1.0, ep=ranks.ep, etp=ranks.etp, kernels=kernels
    )
    for part, (kind, ops) in enumerate(zip(arch.blocks, blocks, strict=True)):
        if recipe.quantised_base:
            _dequantise(ops)
        if kind.frozen:
            _without_backward(ops)
        elif recipe.lora_rank:
            _adapt(ops, [w for w in matrices if w.part == part], ranks, recipe)
    if not recipe.trains_embedding:
        _without_backward(embedding)
    if not recipe.trains_head(tied=arch.tied_embeddings):
        _freeze(head)


def _adapt(ops: Operators, matrices: list[Matrix], ranks: Ranks, recipe: Recipe) -> None:
    """Freeze a block's weights and put two small products and an addition beside the adapted."""
    _freeze(ops)
    size, tokens, rank = element_bytes(recipe), ranks.tokens(recipe), recipe.lora_rank
    for w in matrices:
        if w.routed or w.name not in recipe.lora_targets:
            continue
        if w.name == "down":
            ops.last_linear = None  # the adapter's products come after it
        name = f"adapter of {w.name}"
        ops.gemms.append(
            Gemm(
                name=f"{name}, in",
                role=GemmRole.ADAPTER,
                m=tokens,
                n=rank,
                k=w.columns,
                kind="head",
            )
        )
        ops.gemms.append(
            Gemm(
                name=f"{name}, out",
                role=GemmRole.ADAPTER,
                m=tokens,
                n=w.rows,
                k=rank,
                kind="head",
            )
        )
        added = 3 * size * tokens * w.rows
        ops.streams.append(
            Stream(name=name, kind="elementwise", forward_bytes=added, backward_bytes=added)
        )
        ops.keep(name, tokens * rank * size)


def _freeze(ops: Operators) -> None:
    """No gradients of weights: neither products nor kernels for them."""
    ops.gemms = [_frozen(g) for g in ops.gemms]
    ops.streams = [
        replace(s, backward_bytes=0.0 * s.backward_bytes, backward_calls=0.0)
        if s.for_weights
        else s
        for s in ops.streams
    ]


def _frozen(g: Gemm) -> Gemm:
    """The same without a weight gradient; scores have no weights, heads of tasks stay trained."""
    kept = g.kind == "attention" or g.role is GemmRole.TASK_HEAD
    return g if kept else replace(g, trained=False)


def _without_backward(ops: Operators) -> None:
    ops.has_backward = False
    ops.collectives = [c for c in ops.collectives if not c.backward]
    ops.saved = [replace(tensor, size_bytes=0.0 * tensor.size_bytes) for tensor in ops.saved]
    ops.streams = [s for s in ops.streams if s.stashes is None]
    ops.checkpoint_bytes, ops.transient_bytes = 0.0, 0.0


def _dequantise(ops: Operators) -> None:
    """Frozen weights of the linear layers are read in 4 bit and written in 16 for every product."""
    for g in [g for g in ops.gemms if g.kind == "linear"]:
        moved: Any = (NF4_BYTES + 2.0) * g.batch * g.k * g.n
        ops.streams.append(
            Stream(
                name=f"dequantisation for {g.name}",
                role=StreamRole.DEQUANTISATION,
                product=g.role,
                kind="elementwise",
                forward_bytes=moved,
                backward_bytes=moved,
                module=g.module,
            )
        )
