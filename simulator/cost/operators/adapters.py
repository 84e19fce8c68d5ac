"""Parts of the model that are not trained: low-rank adapters, 4-bit weights, frozen blocks.

Hu et al. 2021 (LoRA): the product of a frozen matrix W (out, in) gets ``B A x`` added, with A
(rank, in) and B (out, rank) trained. Dettmers et al. 2023 (QLoRA): W is kept in 4-bit NF4 and
turned into 16 bit before every product.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simulator.cost.operators.matrices import Matrix, weight_matrices
from simulator.cost.operators.operations import (
    OPERATOR,
    Gemm,
    Operators,
    Ranks,
    Saved,
    Stream,
    element_bytes,
)
from simulator.cost.operators.roles import GemmRole, StreamRole
from simulator.software.kernels import Kernels
from simulator.workload.architecture import Architecture
from simulator.workload.recipe import Recipe

_JOINED = (("q", "k", "v"), ("gate", "up"))
"""Matrices that are one linear, unless the software has them apart (`separate_linears`)."""


NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes of a weight in NF4 with double quantisation: one 8-bit scale for 64 weights, one fp32 scale
for 256 of those (Dettmers et al. 2023, section 3: 0.127 bits a weight)."""


_PRODUCTS = {"down": GemmRole.FC2}
"""Products that a block may end in, by the name of their weight."""


def adapters(
    matrices: list[Matrix], arch: Architecture, recipe: Recipe, kernels: Kernels
) -> list[Matrix]:
    """List the two small matrices that every adapted linear of a trained block gets on one rank."""
    rank, beside = recipe.lora_rank, []
    for part, kind in enumerate(arch.blocks):
        trained = [w for w in matrices if w.part == part and kind.trained]
        for w in adapted_linears(trained, recipe, kernels):
            beside.append(Matrix(name=w.name, part=part, rows=rank, columns=w.columns))
            beside.append(Matrix(name=w.name, part=part, rows=w.rows, columns=rank))
    return beside


def adapted_linears(matrices: list[Matrix], recipe: Recipe, kernels: Kernels) -> list[Matrix]:
    """Matrices of one block that get an adapter; those of one linear, if all do, get it together.

    Megatron's are put beside linears (NVIDIA-NeMo/Megatron-Bridge peft/lora.py, ``linear_qkv``).
    """
    linears = [w for w in matrices if not w.routed]
    adapted = [w for w in linears if w.name in recipe.lora_targets]
    for names in () if kernels.separate_linears else _JOINED:
        whole = [w for w in linears if w.name in names]
        parts = [w for w in adapted if w.name in names]
        if len(parts) == len(whole) > 1:
            at = adapted.index(parts[0])
            joined = replace(parts[0], name="+".join(names), rows=sum(w.rows for w in parts))
            adapted = [*adapted[:at], joined, *(w for w in adapted[at:] if w.name not in names)]
    return adapted


def adapted_inputs(saved: list[Saved], recipe: Recipe) -> list[Saved]:
    """What a block keeps under adapters: no input that frozen linears alone would read.

    A linear reads its input again for its weight's gradient only. torch saves it only where the
    weight requires one (``linear``, ``mm``), TransformerEngine likewise (pytorch/module/linear.py,
    layernorm_linear.py, ``backward_needs_input``; grouped_linear.py, ``weight_requires_grad``), and
    Megatron-Core (tensor_parallel/layers.py, ``LinearWithFrozenWeight``).
    """
    targets = set(recipe.lora_targets)
    return [x for x in saved if not x.linears or targets.intersection(x.linears)]


def freeze(
    parts: list[Operators], arch: Architecture, ranks: Ranks, recipe: Recipe, kernels: Kernels
) -> list[Operators]:
    """Parts without what is not done for weights that are not trained, and with adapters.

    A block that is frozen with all before it has no backward pass and keeps nothing. Under adapters
    the products of frozen weights lose their weight gradient; `adapted_inputs` are kept.

    Parameters
    ----------
    parts : list of Operators
        Block kinds, embedding, head.
    arch, ranks, recipe, kernels
        What they were made of.
    """
    *blocks, embedding, head = parts
    matrices = weight_matrices(
        arch, tp=ranks.tp, pp=1.0, ep=ranks.ep, etp=ranks.etp, kernels=kernels
    )
    trained = []
    for part, (kind, ops) in enumerate(zip(arch.blocks, blocks, strict=True)):
        if recipe.quantised_base and (recipe.lora_rank or kind.passes_gradients):
            ops = replace(ops, streams=ops.streams + _dequantised(ops.gemms))
        if kind.frozen:
            ops = _without_backward(ops)
        elif kind.passes_gradients:
            ops = _frozen(replace(ops, saved=[x for x in ops.saved if not x.linears]))
        elif recipe.lora_rank:
            ops = _adapted(ops, [w for w in matrices if w.part == part], ranks, recipe, kernels)
        trained.append(ops)
    if not recipe.trains_embedding and not trains_projector(arch, recipe):
        embedding = _without_backward(embedding)
    elif not recipe.trains_embedding:
        embedding = replace(
            embedding,
            streams=[
                replace(s, backward_bytes=0.0, backward_calls=0.0)
                if s.role is StreamRole.LOOK_UP
                else s
                for s in embedding.streams
            ],
        )
    if not recipe.trains_head(tied=arch.tied_embeddings):
        head = _frozen(head)
    return [*trained, embedding, head]


def trains_projector(arch: Architecture, recipe: Recipe) -> bool:
    """Whether what brings a tower's output to the model's width is trained, frozen text or not."""
    frozen = recipe.frozen_layers > 0 or "projector" in recipe.frozen_parts
    return arch.projector > 0 and recipe.lora_rank == 0 and not frozen


def _adapted(
    ops: Operators, matrices: list[Matrix], ranks: Ranks, recipe: Recipe, kernels: Kernels
) -> Operators:
    """Freeze a block's weights and put two small products, a scale and a sum beside the adapted.

    The scale alpha / rank is applied to the result, then added to the linear's; backward the scale
    once more, and the sum of both gradients of the input (NVIDIA-NeMo/Megatron-Bridge peft/utils.py
    and lora_layers.py; peft's lora/layer.py and torchtune's modules/peft/lora.py alike). Where they
    are fused the products do both and read what they add to (Transformer Engine's ops/fused,
    forward_linear_scale_add.py, backward_linear_scale.py and backward_linear_add.py).
    """
    ops = _frozen(ops)
    gemms, streams, saved = list(ops.gemms), list(ops.streams), list(ops.saved)
    size, tokens, rank = element_bytes(recipe), ranks.tokens(recipe), recipe.lora_rank
    last, fused = ops.last_linear, "adapters" in kernels.fused
    for w in adapted_linears(matrices, recipe, kernels):
        if _PRODUCTS.get(w.name) is last:
            last = None  # the adapter's products come after it
        name = f"adapter of {w.name}"
        for end, n, k in (("in", rank, w.columns), ("out", w.rows, rank)):
            role = GemmRole.ADAPTER
            gemms.append(Gemm(name=f"{name}, {end}", role=role, m=tokens, n=n, k=k, kind="head"))
        streams.append(
            Stream(
                name=name,
                role=StreamRole.ADAPTER,
                kind=OPERATOR if kernels.runs_alone("adapters") else "elementwise",
                forward_bytes=size * tokens * (1 if fused else 2 + 3) * w.rows,
                backward_bytes=size * tokens * (w.columns if fused else 2 * w.rows + 3 * w.columns),
                calls=0.0 if fused else 2.0,
            )
        )
        saved.append(Saved(name, tokens * rank * size))
        if kernels.torch.wide_adapters:
            streams.append(_widened(name, tokens * w.columns))
            if w.name == "o":  # attention keeps its result, too
                saved.append(Saved(f"input of {name}", tokens * w.columns * size))
    return replace(ops, gemms=gemms, streams=streams, saved=saved, last_linear=last)


def _widened(name: str, elements: Any) -> Stream:
    """Casts of an adapter's input from 16 bit to fp32 and back, and of its gradient.

    peft has adapters in fp32 (``autocast_adapter_dtype``) and casts to the type of their weights
    (tuners_utils.py, ``_cast_input_dtype``), torch.autocast to that of products.
    """
    return Stream(
        name=f"casts for {name}",
        role=StreamRole.ADAPTER,
        kind=OPERATOR,
        forward_bytes=12.0 * elements,
        backward_bytes=12.0 * elements,
        calls=2.0,
    )


def _frozen(ops: Operators) -> Operators:
    """No gradients of weights: neither products nor kernels for them.

    Scores have no weights; heads of tasks stay trained.
    """
    gemms = [
        g if g.kind == "attention" or g.role is GemmRole.TASK_HEAD else replace(g, trained=False)
        for g in ops.gemms
    ]
    streams = [
        replace(s, backward_bytes=0.0 * s.backward_bytes, backward_calls=0.0)
        if s.for_weights
        else s
        for s in ops.streams
    ]
    return replace(ops, gemms=gemms, streams=streams)


def _without_backward(ops: Operators) -> Operators:
    """A forward pass alone, which keeps nothing."""
    return replace(
        ops,
        has_backward=False,
        collectives=[c for c in ops.collectives if not c.backward],
        saved=[replace(tensor, size_bytes=0.0 * tensor.size_bytes) for tensor in ops.saved],
        streams=[s for s in ops.streams if s.stashes is None],
        checkpoint_bytes=0.0,
        transient_bytes=0.0,
    )


def _dequantised(gemms: list[Gemm]) -> list[Stream]:
    """Frozen weights of the linear layers are read in 4 bit and written in 16 for every product."""
    streams = []
    for g in gemms:
        if g.kind == "linear":
            moved: Any = (NF4_BYTES + 2.0) * g.batch * g.k * g.n
            streams.append(
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
    return streams
