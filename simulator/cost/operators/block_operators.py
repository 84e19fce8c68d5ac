"""Workload x layout -> operators: GEMMs, attention, bytes moved, collectives, tensors.

For each part of the model (every block kind, the embedding, the head) this module lists what one
rank does for one micro-batch, over the distinct layout keys. ``cost/blocks/block_prices.py`` prices
the list.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from simulator.cost.operators.adapters import freeze
from simulator.cost.operators.attention import attention, cross_attention
from simulator.cost.operators.biases import linear_biases
from simulator.cost.operators.casts import casts, quantise_saved
from simulator.cost.operators.ends import embedding, head, layer_recipe, look_up
from simulator.cost.operators.fake_quantised import fake_quantise
from simulator.cost.operators.mixers import mix, small_linear
from simulator.cost.operators.mlp import experts, mlp
from simulator.cost.operators.operations import (
    Gemm,
    ModuleOperators,
    Operators,
    Ranks,
    Stream,
    element_bytes,
    norm,
    residual,
    stream_bytes,
    stream_casts,
)
from simulator.cost.operators.roles import GemmRole, SavedRole, StreamRole
from simulator.cost.operators.selective import rerun_norms
from simulator.cost.operators.stashes import compress_stashes
from simulator.cost.operators.tensor_parallel import gather_input
from simulator.cost.operators.traced_blocks import traced
from simulator.software.kernels import Kernels
from simulator.workload.architecture import MLP, Architecture, Block, MoE
from simulator.workload.modules import beside
from simulator.workload.recipe import Recipe, Workload

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
    ops = _computed(kind, hidden, ranks, recipe, kernels, position=position)
    recipe = layer_recipe(kind, recipe)
    # The passes below read what those before them made. Norms that run again do so in 16 bit, as
    # they are before a cast is fused into one. Casts need the finished list of linears. Stashes
    # come last: what is quantised already is encoded from that.
    if kernels.reruns_norms:
        ops = replace(ops, streams=ops.streams + rerun_norms(ops.streams))
    ops = replace(
        ops,
        streams=casts(
            ops,
            recipe,
            kernels,
            ranks,
            _normed(kind),
            either_layout=either_layout,
            trained=recipe.lora_rank == 0 and kind.trained,
        ),
        saved=quantise_saved(ops, recipe, kernels),
    )
    return compress_stashes(ops, recipe)


def _computed(
    kind: Block, hidden: int, ranks: Ranks, recipe: Recipe, kernels: Kernels, *, position: str
) -> Operators:
    """What a block computes and keeps in 16 bit, in the order of its forward pass."""
    ops = _nothing_yet(kind, recipe, position)
    inputs, recipe, hidden = recipe, layer_recipe(kind, recipe), kind.width or hidden
    size = element_bytes(recipe)
    elements, wide = ranks.own_tokens(recipe) * hidden, stream_bytes(size, kernels)
    ops.checkpoint_bytes = elements * wide
    parallel = kind.parallel_residual
    roles = _NORMS if kind.mixes_tokens else _NORMS[1:]
    for index in range(kind.norms):
        ops.add(
            norm(
                f"norm{index + 1}",
                elements,
                hidden,
                wide,
                kernels,
                kind=kind.norm,
                keeps_input=index == 0 or not parallel,
                role=roles[index] if index < len(roles) else StreamRole.OTHER,
            )
        )
    if kind.starts_decoder:
        ops.add(_start_decoder(kind, hidden, ranks, recipe, kernels, source=inputs))
    if kind.merges_patches:
        ops.add(_merge_patches(hidden, ranks, recipe, kernels))
    if kind.attention is not None:
        ops.add(attention(kind, hidden, ranks, recipe, kernels, position=position))
    if kind.mixer is not None:
        ops.add(mix(kind.mixer, hidden, ranks, recipe, kernels, alone=kind.attention is None))
    for weight in beside(kind.linears, 0):
        ops.add(small_linear(weight, hidden, ranks, recipe))
    if kind.convolution:
        ops.add(_convolve(kind, hidden, ranks, recipe, kernels))
    if kind.cross_attention is not None:
        att = kind.cross_attention
        ops.add(cross_attention(att, hidden, ranks, recipe, kernels, source=inputs))
        ops.add(residual("cross attention residual", elements, size, kind.dropout, kernels))
    if isinstance(kind.mlp, MoE):
        ops.add(experts(kind.mlp, hidden, ranks, recipe, kernels))
    elif kind.mlp is not None:
        shared = parallel and kind.norms == 1
        ops.add(mlp(kind.mlp, hidden, ranks, recipe, kernels, keeps_input=not shared))
        # dropout behind it keeps a mask, a norm what it reads
        ops.last_linear = None if kind.dropout or kind.norms > 3 else GemmRole.FC2
    ops.streams += stream_casts("linears", elements, *_along_stream(kind, kernels), kernels)
    ops.streams += linear_biases(kind, hidden, ranks, recipe, kernels)
    if kind.layer_input:
        ops.add(_layer_input(kind, hidden, ranks, recipe, kernels))
    for name, role in _residuals(kind).items():
        ops.add(residual(name, elements, size, kind.dropout, kernels, role=role))
    return ops


def _along_stream(kind: Block, kernels: Kernels) -> tuple[int, int]:
    """Linears that read the stream between blocks, and linears that write to it."""
    apart, mlp = kernels.separate_linears, kind.mlp
    readers = 0
    if kind.attention is not None:
        readers += 2 if kind.attention.is_mla else 3 if apart else 1
    if mlp is not None:  # the router and the dispatch of routed experts
        readers += 2 if isinstance(mlp, MoE) or (mlp.gated and apart) else 1
    return readers, kind.mixes_tokens + (mlp is not None)


def _layer_input(
    kind: Block, hidden: int, ranks: Ranks, recipe: Recipe, kernels: Kernels
) -> ModuleOperators:
    """An input that the layer alone has: an activation times it, and a norm of the result.

    Its two linears are among the small ones. Kept are what the first of them reads, both factors
    and what the norm reads; all layers' inputs are one tensor of the embedding, a slice for each,
    which is there for recomputation too (transformers, modeling_gemma4.py).
    """
    ops = ModuleOperators()
    size, elements = element_bytes(recipe), ranks.own_tokens(recipe) * hidden
    narrow = ranks.own_tokens(recipe) * kind.layer_input
    ops.streams.append(
        Stream(
            name="layer input",
            kind="activation",
            forward_bytes=3 * size * narrow,
            backward_bytes=5 * size * narrow,
        )
    )
    ops.keep("layer input gate's input", elements * size)
    ops.keep("layer input and gate", 2 * narrow * size)
    ops.checkpoint_bytes = narrow * size
    ops.add(norm("layer input norm", elements, hidden, size, kernels, kind=kind.norm))
    ops.add(residual("layer input residual", elements, size, False, kernels))
    return ops


def _nothing_yet(kind: Block, recipe: Recipe, position: str) -> Operators:
    """What is known of a block before its operators are listed."""
    heads, mlp = kind.attention, kind.mlp
    routed = isinstance(mlp, MoE) and not mlp.shared_ffn_hidden
    biased = 2 if isinstance(mlp, MLP) and mlp.bias else 0
    if heads is not None:
        biased += heads.qkv_bias + heads.output_bias
    return Operators(
        is_moe=kind.is_moe,
        has_attention=heads is not None,
        has_mlp=mlp is not None and not routed,
        is_latent=heads is not None and heads.is_mla,
        rotates=heads is not None and position == "rope",
        scales_rotary=heads is not None and heads.scaled_rotary,
        norms_heads=heads is not None and heads.qk_norm,
        biased_linears=biased,
        padded_experts=isinstance(mlp, MoE) and recipe.moe_pads_to_capacity,
    )


def _residuals(kind: Block) -> dict[str, StreamRole]:
    """Sums of a block: one behind each of its modules."""
    there = (kind.mixes_tokens, kind.mlp is not None)
    return dict(itertools.compress(_RESIDUALS.items(), there))


def _normed(kind: Block) -> dict[GemmRole, StreamRole]:
    """Linears that alone read the norm in front of them, and that norm.

    Megatron-Core makes one module of both (TELayerNormColumnParallelLinear, gpt_layer_specs.py);
    norms before experts and latent projections are modules of their own.
    """
    alone = not kind.mixes_tokens or kind.mlp is None
    shared = kind.parallel_residual or kind.cross_attention is not None
    if shared or (kind.norms < 2 and not alone):
        return {}
    return {
        GemmRole.QUERY_KEY_VALUE: StreamRole.ATTENTION_NORM,
        GemmRole.FC1: StreamRole.MLP_NORM,
    }


def _start_decoder(
    kind: Block,
    hidden: int,
    ranks: Ranks,
    recipe: Recipe,
    kernels: Kernels,
    *,
    source: Recipe,
) -> ModuleOperators:
    """Add the encoder's last norm, whose output all layers of the decoder read, and the look-up."""
    ops = ModuleOperators()
    size, elements = element_bytes(recipe), ranks.own_tokens(source) * hidden
    ops.add(norm("encoder norm", elements, hidden, size, kernels, kind=kind.norm))
    ops.keep("encoder output", elements * size, module="norm")
    ops.streams.append(look_up(ranks.tokens(recipe) * hidden, size))
    if kind.dropout:
        ops.keep("encoder dropout mask", elements, SavedRole.MASK)
        ops.keep("decoder dropout mask", ranks.own_tokens(recipe) * hidden, SavedRole.MASK)
    return ops


def _merge_patches(hidden: int, ranks: Ranks, recipe: Recipe, kernels: Kernels) -> ModuleOperators:
    """Four patches of half the width become one: a norm over all four and a projection."""
    ops = ModuleOperators()
    size, wide = element_bytes(recipe), 2 * hidden
    elements = ranks.own_tokens(recipe) * wide
    ops.add(norm("merge norm", elements, wide, size, kernels, kind="layer"))
    ops.keep("merge input", elements * size, SavedRole.MERGED_INPUT, module="norm")
    ops.gemms.append(Gemm(name="merge", m=ranks.tokens(recipe), n=hidden / ranks.tp, k=wide))
    ops.add(gather_input(ranks.tokens(recipe) * wide * size, ranks, "merge", kernels))
    return ops


def _convolve(
    kind: Block, hidden: int, ranks: Ranks, recipe: Recipe, kernels: Kernels
) -> ModuleOperators:
    """A convolution over the tokens of the layer's input, an activation, the sum and a norm.

    Every tensor-parallel rank has its weights. transformers copies the input with channels first,
    which the convolution keeps, and the result back, which the activation keeps.
    """
    ops = ModuleOperators()
    size, own_tokens = element_bytes(recipe), ranks.own_tokens(recipe)
    seen = kind.convolution * (hidden // kind.convolution_groups)
    ops.gemms.append(Gemm(name="convolution", m=own_tokens, n=hidden, k=seen, kind="head"))
    elements = own_tokens * hidden
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
    ops.add(residual("convolution residual", elements, size, kind.dropout, kernels))
    ops.add(norm("convolution norm", elements, hidden, size, kernels, kind="layer"))
    return ops


def predict_ahead(
    arch: Architecture,
    ranks: Ranks,
    recipe: Recipe,
    kernels: Kernels,
    *,
    either_layout: bool = False,
) -> Operators:
    """List what a multi-token-prediction layer does beside its block.

    The hidden state and the next token's embedding are normed and joined by a projection of
    twice the width; the result passes the model's output head and a loss of its own.
    """
    size, tokens, own_tokens = element_bytes(recipe), ranks.tokens(recipe), ranks.own_tokens(recipe)
    ops = Operators()
    for name in ("hidden norm", "embedding norm"):
        ops.add(
            norm(name, own_tokens * arch.hidden, arch.hidden, size, kernels, kind=arch.final_norm)
        )
    ops.gemms.append(Gemm(name="join", m=tokens, n=arch.hidden / ranks.tp, k=2 * arch.hidden))
    ops.keep("join input", 2 * own_tokens * arch.hidden * size, SavedRole.MERGED_INPUT)
    ops.add(gather_input(2 * tokens * arch.hidden * size, ranks, "join", kernels))
    last = head(arch, ranks, recipe, kernels)
    # a loss of its own before the model's: 16-bit logits are gone by then
    kept = [
        replace(x, size_bytes=x.size_bytes - last.passing_bytes * (x.role is SavedRole.LOGITS))
        for x in last.saved
    ]
    for end in (embedding(arch, ranks, recipe, kernels), last):
        ops.add(replace(end, passing_bytes=0.0, saved=kept if end is last else end.saved))
    ops.streams = casts(ops, recipe, kernels, ranks, {}, either_layout=either_layout)
    return ops


def model_parts(
    workload: Workload, ranks: Ranks, kernels: Kernels, *, either_layout: bool = False
) -> list[Operators]:
    """Operators of every part of a model on one rank: block kinds, then embedding, then head.

    `either_layout` is the device's ``fp8_either_layout``.
    """
    arch, recipe = workload.architecture, workload.recipe
    parts = []
    for kind in arch.blocks:
        ops = block(
            kind, arch.hidden, ranks, recipe, kernels, arch.position, either_layout=either_layout
        )
        if kind.predicts_ahead:
            ops.add(predict_ahead(arch, ranks, recipe, kernels, either_layout=either_layout))
        parts.append(ops)
    parts += [embedding(arch, ranks, recipe, kernels), head(arch, ranks, recipe, kernels)]
    if recipe.fake_quantised_weights != "none":
        parts = fake_quantise(parts, workload, ranks, kernels)
    return freeze(parts, arch, ranks, recipe, kernels) if recipe.freezes else parts
