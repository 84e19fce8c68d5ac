"""Casts around linear layers of fewer than 16 bit, as streams: bytes and kernels of each pass.

NVIDIA/TransformerEngine: pytorch/module/linear.py and layernorm_linear.py @0004dbd0 (release 1),
base.py (`grad_output_preprocess`), csrc/quantizer.cpp @0064fbd6, csrc/extensions/normalization.cpp
@01a4d046 and swizzle.cpp @05760704 (release 2).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.cost.operators.adapters import adapted_inputs
from simulator.cost.operators.operations import Gemm, Operators, Ranks, Saved, Stream
from simulator.cost.operators.roles import GemmRole, SavedRole, StreamRole
from simulator.records import dataclass
from simulator.software.kernels import Kernels
from simulator.workload.recipe import Recipe

_HALF = 2.0
"""Bytes of an element in 16 bit."""

_SCALES = {"mxfp8": 1 / 32, "nvfp4": 1 / 16}
"""Bytes of the scales that GEMMs take in tiles, per element of their operand."""

_MAXIMUM_KERNELS = {"fp8_current": 2.0, "nvfp4": 2.0}
"""Kernels that take a tensor's maximum before its cast: its place is set to zero, then a scan
(recipe/current_scaling.cu, `launch_amax_kernel`; hadamard_transform.cu, `ZeroAmaxKernel`)."""

_SCALE_KERNELS = {"fp8_current": 1.0}
"""Kernels that make a scale of the maximum (`nvte_compute_scale_from_amax`); NVFP4's cast does."""


_ADAPTED = {GemmRole.QUERY_KEY_VALUE: {"q", "k", "v"}, GemmRole.FC1: {"gate", "up"}}
"""Matrices of linears behind a norm; an adapter on any of them reads what the norm leaves."""

QUANTISED_BYTES = {
    "fp8": 1.0, "fp8_current": 1.0, "fp8_blockwise": 1.03125, "mxfp8": 1.03125, "nvfp4": 0.5625,
}  # fmt: skip
"""Bytes of one element with its scales: one scale of a tensor, of 4 B for 128 elements, of 1 B for
32 (MXFP8_BLOCK_SCALING_SIZE) or for 16 (NVFP4_BLOCK_SCALING_SIZE, TransformerEngine
pytorch/constants.py); padding of the scales is left out."""

BLOCK_SCALED = ("fp8_blockwise", "mxfp8", "nvfp4")
"""Types with a scale for each block of a row or column, so that both are cast apart."""

_INPUTS = (SavedRole.LINEAR_INPUT, SavedRole.LATENT_NORMED, SavedRole.ACTIVATION_OUTPUT)
"""Inputs of linears that nothing else keeps: norms keep their own inputs, not their outputs."""

_SHARED = (SavedRole.ATTENTION_OUTPUT, SavedRole.CROSS_ATTENTION_OUTPUT)
"""Inputs of linears that attention's backward pass needs in 16 bit as well."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rules:
    """What one recipe, software and device do with any operand."""

    precision: str
    each: float
    """Bytes of an element with its scales, along rows or along columns."""
    apart: bool
    """Columns have scales of their own, so that they cannot be made of rows."""
    transposes: bool
    """Products take columns as rows of a transposed copy."""
    columns_read: float
    """Bytes of an element that a kernel of its own reads for the columns."""
    share: Floats
    """Part of a gathered operand that a rank casts."""
    gathers: NDArray[np.bool_]
    trained: bool
    """Whether weights have gradients, the products of which take columns of both operands."""

    def cast(self, whole: Any, gathered: Any, fused: str = "") -> tuple[Any, float, Any]:
        """Return bytes and kernels of an operand's cast, and bytes of making its columns after it.

        Rows of gathered pieces are in order; pieces of a transposed copy lie side by side and are
        put in order, or the copy is made of gathered rows: one read and write of it in either case.
        `fused` says what of it the kernel in front does: nothing, `maximum` or all of the `cast`.
        """
        late = gathered | (fused == "cast" and not self.apart)
        made = np.where(late & self.transposes, 2.0 * self.each, 0.0) * whole * self.trained
        if fused == "cast":
            return 0.0 * made, 0.0, made
        kernels = 1.0 + _MAXIMUM_KERNELS.get(self.precision, 0.0)
        kernels += _SCALE_KERNELS.get(self.precision, 0.0)
        columns_read = self.columns_read * self.trained
        kernels += 1.0 * (columns_read > 0.0)
        moved = _HALF * (2.0 if self.precision in _MAXIMUM_KERNELS else 1.0) + columns_read
        if fused == "maximum":
            moved, kernels = moved - _HALF, kernels - 1.0
        columns = (self.apart | (self.transposes & ~np.asarray(late))) & self.trained
        return whole * self.cut(gathered) * (moved + self.each * (1.0 + columns)), kernels, made

    def cast_weight(self, whole: Any, *, arrives: bool) -> tuple[Any, float, Any, float]:
        """Return bytes and kernels of a weight's cast, forward, and of its columns, backward.

        Columns with scales of their own are a second cast, others a transposed copy. A weight that
        `arrives` from its ranks in 8 bit is not cast.
        """
        # the data gradient takes columns of any weight, in the backward pass
        both = replace(self, trained=True, columns_read=0.0)
        rows, kernels, _ = both.cast(whole, np.False_)
        forward = rows - self.columns * self.each * whole
        backward = self.columns * (_HALF if self.apart else self.each) + self.columns * self.each
        if arrives:
            forward, kernels = 0.0 * forward, 0.0
        return forward, kernels, backward * whole, 1.0 * self.columns

    def written_cast(self, whole: Any, gathered: Any) -> Any:
        """Bytes that a kernel which casts its result writes more than in 16 bit.

        It writes columns with the rows if these have scales of their own.
        """
        more = self.each * (1.0 + (self.apart and self.trained)) - _HALF
        return more * whole * self.cut(gathered)

    @property
    def columns(self) -> bool:
        """Whether products need an operand along columns beside that along rows."""
        return self.apart or self.transposes

    def cut(self, gathered: Any) -> Any:
        """Part of an operand that a rank casts: its own, where the rest is gathered."""
        return np.where(gathered, self.share, 1.0)


def casts(
    ops: Operators,
    recipe: Recipe,
    kernels: Kernels,
    ranks: Ranks,
    normed: Mapping[GemmRole, StreamRole],
    *,
    either_layout: bool = False,
    trained: bool = True,
) -> list[Stream]:
    """Kernels of a part, with the casts that its linears of fewer than 16 bit need.

    Inputs are cast forward, gradients backward. A cast reads 16 bit (once more for a present
    maximum) and writes numbers along rows, for the product that reads them first, and along
    columns, for the weight gradient. fp8 with one scale for a tensor has the same numbers in both;
    devices whose products take `either_layout` need no transposed copy. What sequence parallelism
    gathers is cast before, by the rank that has it, and its transposed copy made after. Weights are
    cast once per step, which is left out, or in every forward pass anew
    (`casts_weights_each_pass`). Each expert's tokens are cast on their own
    (`multi_tensor_quantize_impl`; one kernel with delayed scaling on Hopper).

    `normed` names the norm in front of a linear that is part of its module; it leaves 16 bit, for
    a cast apart, where an adapter reads its result, too (layernorm_linear.py:
    `return_layernorm_output`). Kernels of a dense MLP's activation may do the same, both ways.
    Columns are made where weights are `trained` alone (linear.py: `weight.requires_grad`,
    `requires_wgrad`).
    """
    if not recipe.is_quantised:
        return ops.streams
    precision = recipe.precision
    apart = precision in BLOCK_SCALED
    rules = _Rules(
        precision=precision,
        each=QUANTISED_BYTES[precision],
        apart=apart,
        transposes=precision != "mxfp8" and (apart or not either_layout),
        columns_read=_HALF * (precision in kernels.transformer_engine.columns_cast_apart),
        share=ranks.own_tokens(recipe) / ranks.tokens(recipe),
        gathers=np.asarray(ranks.sequence_parallel) & (np.asarray(ranks.tp) > 1),
        trained=trained,
    )
    written: dict[StreamRole, Any] = {}
    written_back: dict[StreamRole, Any] = {}
    added: list[Stream] = []
    targets, engine = recipe.lora_targets, kernels.transformer_engine
    activated = _fused(precision, engine.activation_casts, engine.activation_maxima)
    for g in ops.gemms:
        if g.kind != "linear":
            continue
        norm = normed.get(g.role)
        adapted = recipe.lora_rank > 0 and _ADAPTED.get(g.role, set()).intersection(targets)
        fused = _fused_into_norm(precision, kernels) if norm is not None and not adapted else ""
        fused_back = activated if g.role is GemmRole.FC1 else ""
        if g.role is GemmRole.FC2:
            norm, fused = StreamRole.ACTIVATION, activated
        gathered = rules.gathers & (g.name in ops.gathered)
        gathered_back = rules.gathers & (g.name in ops.gathered_back)
        if norm is not None and fused == "cast":
            written[norm] = rules.written_cast(g.batch * g.m * g.k, gathered)
        if fused_back == "cast":
            written_back[StreamRole.ACTIVATION] = rules.written_cast(
                g.batch * g.m * g.n, gathered_back
            )
        cast = _casts_of(g, rules, (fused, fused_back), (gathered, gathered_back))
        if precision in engine.fused_grouped_mlp:
            cast = [_without_products(g, s) for s in cast]
        added += cast
        if kernels.casts_weights_each_pass:
            added.append(_cast_weight(g, rules, arrives=recipe.fp8_weights))
        added += _swizzles(g, rules, kernels)
    return _written(ops.streams, written, written_back) + added


def _written(
    streams: list[Stream], forward: Mapping[StreamRole, Any], backward: Mapping[StreamRole, Any]
) -> list[Stream]:
    """Kernels, with the bytes that those which cast write more than in 16 bit, by role."""
    return [
        replace(
            s,
            forward_bytes=s.forward_bytes + forward.get(s.role, 0.0),
            backward_bytes=s.backward_bytes + backward.get(s.role, 0.0),
        )
        for s in streams
    ]


def _fused_into_norm(precision: str, kernels: Kernels) -> str:
    """What of a cast the norm in front of its linear does: nothing, the maximum or all of it."""
    if "norm" not in kernels.fused:
        return ""
    engine = kernels.transformer_engine
    return _fused(precision, engine.norm_casts, engine.norm_maxima)


def _fused(precision: str, casts: Collection[str], maxima: Collection[str]) -> str:
    """What of a cast a kernel does that does so for some types: nothing, the maximum or all."""
    if precision in casts:
        return "cast"
    return "maximum" if precision in maxima else ""


def _casts_of(
    g: Gemm, rules: _Rules, fused: tuple[str, str], gathered: tuple[Any, Any]
) -> list[Stream]:
    """The cast of a linear's input and of its output's gradient, and copies of columns."""
    moved, calls, made = rules.cast(g.batch * g.m * g.k, gathered[0], fused[0])
    moved_back, calls_back, made_back = rules.cast(g.batch * g.m * g.n, gathered[1], fused[1])
    streams = [
        _serving(g, StreamRole.CAST, "cast for", (moved, moved_back), (calls, calls_back)),
    ]
    copies = 1.0 * (made > 0.0) + 1.0 * (made_back > 0.0)
    if np.any(copies > 0.0):
        streams.append(
            Stream(
                name=f"columns for {g.name}",
                role=StreamRole.COLUMNS,
                product=g.role,
                kind="elementwise",
                forward_bytes=0.0,
                backward_bytes=made + made_back,
                calls=0.0,
                backward_calls=copies * (g.batch if g.grouped else 1.0),
            )
        )
    return streams


def _without_products(g: Gemm, s: Stream) -> Stream:
    """What is left of a cast where the products of routed experts write numbers of fewer bits.

    The first one's epilogue writes the input of the second, that of the second one's data gradient
    the gradient of the first one's output, along rows and along columns.
    """
    if g.role is GemmRole.EXPERT_FC2:
        return replace(s, forward_bytes=0.0, calls=0.0)
    if g.role is GemmRole.EXPERT_FC1:
        return replace(s, backward_bytes=0.0, backward_calls=0.0)
    return s


def _cast_weight(g: Gemm, rules: _Rules, *, arrives: bool) -> Stream:
    """The cast of a linear's weight, which recomputation repeats, and of its columns.

    pytorch/ao float8/float8_linear.py (`cast_weight_to_float8_t` in `forward`), float8_ops.py
    (`preprocess_addmm` makes the second operand lie along columns: a copy for the data gradient).
    """
    moved, calls, moved_back, calls_back = rules.cast_weight(g.batch * g.k * g.n, arrives=arrives)
    moves, launches = (moved, moved_back), (calls, calls_back)
    return _serving(g, StreamRole.WEIGHT_CAST, "cast of the weight of", moves, launches)


def _serving(
    g: Gemm, role: StreamRole, what: str, moved: tuple[Any, Any], calls: tuple[float, float]
) -> Stream:
    """Kernels that a linear needs, forward and backward; experts have them one by one."""
    times = g.batch if g.grouped else 1.0
    return Stream(
        name=f"{what} {g.name}",
        role=role,
        product=g.role,
        kind="cast",
        forward_bytes=moved[0],
        backward_bytes=moved[1],
        calls=calls[0] * times,
        backward_calls=calls[1] * times,
        module=g.module,
    )


def _swizzles(g: Gemm, rules: _Rules, kernels: Kernels) -> list[Stream]:
    """The kernels that put block scales into the tiles which GEMMs read.

    One for each operand of each product (`swizzle_scales_for_gemm`), or for the weights alone where
    casts write tiles; one for all experts of a rank (`nvte_multi_tensor_swizzle_scaling_factors`).
    """
    scales, engine = _SCALES.get(rules.precision, 0.0), kernels.transformer_engine
    if not scales or rules.precision not in engine.swizzled_weights:
        return []
    weights, inputs, results = (g.batch * a * b for a, b in ((g.k, g.n), (g.m, g.k), (g.m, g.n)))
    forward, backward = weights, weights
    calls, back = 1.0, 1.0
    if rules.precision in engine.swizzled_inputs:
        # forward: input; data gradient: gradient; weight gradient: both
        forward, backward = weights + inputs, weights + results
        calls, back = 2.0, 2.0
        if rules.trained:
            backward, back = backward + results + inputs, 4.0
    return [
        Stream(
            name=f"scales for {g.name}",
            role=StreamRole.SCALES,
            product=g.role,
            kind="elementwise",
            forward_bytes=2.0 * scales * forward,
            backward_bytes=2.0 * scales * backward,
            calls=calls,
            backward_calls=back,
            module=g.module,
        )
    ]


def quantise_saved(ops: Operators, recipe: Recipe, kernels: Kernels) -> list[Saved]:
    """What linears keep, in the type of their products where the software does so.

    An input that another operator keeps in 16 bit too is there twice. Of latent attention's
    compressed tensors the norms keep one half, the up-projections the other. Under adapters the
    linears are frozen and keep none; the adapters multiply 16 bit, and keep those.
    """
    if recipe.lora_rank:
        return adapted_inputs(ops.saved, recipe)
    if not recipe.is_quantised or not kernels.transformer_engine.saves_quantised_inputs:
        return ops.saved
    once = kernels.transformer_engine.keeps_attention_output_once
    share = QUANTISED_BYTES[recipe.precision] / 2.0
    has_shared_experts = any(g.role is GemmRole.SHARED_FC1 for g in ops.gemms)
    kept: list[Saved] = []
    for tensor in ops.saved:
        small = share * tensor.size_bytes
        if tensor.role in _INPUTS:
            kept.append(replace(tensor, size_bytes=small))
            continue
        kept.append(tensor)
        if tensor.role in _SHARED and not once:
            kept.append(Saved(f"{tensor.name}, quantised", small, module=tensor.module))
        if tensor.role is SavedRole.ROUTED_INPUT and has_shared_experts:
            kept.append(Saved("shared experts' input", small, module=tensor.module))
    return kept
