"""Operators of a feed-forward module: a dense MLP, or a router with routed and shared experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from simulator.cost.operators.biases import expert_bias_gradients, expert_biases, fuses_activation
from simulator.cost.operators.operations import (
    OPERATOR,
    Collective,
    Gemm,
    ModuleOperators,
    Ranks,
    Stream,
    element_bytes,
    separate_linears,
    summed_gradients,
)
from simulator.cost.operators.roles import GemmRole, SavedRole, StreamRole
from simulator.cost.operators.routing import rank_load, reached_places
from simulator.cost.operators.tensor_parallel import (
    gather_cast_input,
    kept_input,
    reduce_cast_output,
)
from simulator.layout.layouts import DISPATCHERS
from simulator.records import dataclass
from simulator.software.kernels import Kernels
from simulator.workload.architecture import MLP, MoE
from simulator.workload.expert_routing import load_expert_routing
from simulator.workload.recipe import Recipe

_GELU_NEW_PASSES, _GELU_NEW_CALLS = (38, 59), (10, 15)
"""Of transformers' NewGELUActivation (activations.py), which is written out in operators: times
that 16-bit elements pass, kernels, forward and backward. Its cube is fp32 under torch.autocast, and
what follows. Counted op by op (tests/oracles/test_eager_modules.py)."""

_DEEPEP = DISPATCHERS.index("deepep")

_Way = tuple[Any, tuple[str, str], str, Any]
"""Which layouts dispatch so, both collectives, their group, bytes of either."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FeedForward:
    """Two linears and the activation between them, of one MLP or a batch of experts, on a rank."""

    name: str
    """Label: that of the linears less their number."""
    tokens: Any
    """Of each of them."""
    hidden: Any
    ffn: Any
    gated: bool
    activation: str = "gelu"
    batch: Any = 1.0
    """How many there are."""
    grouped: bool = False
    """One call for all experts, as in ``Gemm``."""
    module: str = ""
    activation_module: str = "mlp_act"
    roles: tuple[GemmRole, GemmRole] = (GemmRole.FC1, GemmRole.FC2)
    waiting_bytes: Any = 0.0
    """Gradients that wait meanwhile."""
    weighted: bool = False
    """The activation's kernels multiply by the weights of routing."""
    by_products: bool = False
    """The products activate what they compute themselves."""

    @property
    def width(self) -> int:
        """Outputs of the first linear for each input of the second: two with a gate."""
        return 2 if self.gated else 1

    @property
    def inner(self) -> Any:
        """Elements between the linears."""
        return self.batch * self.tokens * self.ffn


def mlp(
    mlp: MLP,
    hidden: int,
    ranks: Ranks,
    recipe: Recipe,
    kernels: Kernels,
    *,
    keeps_input: bool = True,
) -> ModuleOperators:
    """A dense MLP, sharded over tp, with the collectives around it.

    `keeps_input` is false where attention keeps the same input.
    """
    ops = ModuleOperators()
    size, tokens = element_bytes(recipe), ranks.tokens(recipe)
    if keeps_input:
        ops.saved.append(
            kept_input(
                "mlp input",
                hidden,
                ranks,
                recipe,
                kernels,
                linears=("gate", "up"),
                readers=2 if mlp.gated else 1,
            )
        )
    wide = tokens * hidden * size
    ffn = mlp.ffn_hidden / ranks.tp
    residual = ranks.own_tokens(recipe) * hidden * size if kernels.clears_inputs else 0.0
    module = FeedForward(
        name="fc",
        tokens=tokens,
        hidden=hidden,
        ffn=ffn,
        gated=mlp.gated,
        activation=mlp.activation,
        module="mlp",
        waiting_bytes=residual,
    )
    ops.add(feed_forward(module, size, kernels))
    ops.add(
        gather_cast_input(
            wide, ranks, "fc1", recipe, kernels, module="mlp", projections=module.width
        )
    )
    ops.add(reduce_cast_output(wide, ranks, "fc2", recipe, kernels, module="mlp"))
    return ops


def feed_forward(f: FeedForward, size: float, kernels: Kernels) -> ModuleOperators:
    """List the module for activations of `size` bytes an element.

    Fused kernels exist for smooth activations only; a rectifier is known by its output, which the
    second linear keeps anyway.
    """
    ops = _linears(f, size, kernels)
    both, kept = f"{f.module}+{f.activation_module}", f.inner * size
    fused = fuses_activation(kernels, f.gated, f.activation, weighted=f.weighted)
    forward, backward = _activation_passes(f, kernels, fused=fused)
    alone = kernels.runs_alone("bias_activation")
    written_out = alone and f.activation == "gelu_new" and not f.gated
    calls = 1 if fused or not f.gated else 2
    if not f.by_products:
        ops.streams.append(
            Stream(
                name=f"{f.name} activation",
                role=StreamRole.OTHER if f.roles[1] is not GemmRole.FC2 else StreamRole.ACTIVATION,
                kind=OPERATOR if alone else "activation",
                calls=_GELU_NEW_CALLS[0] if written_out else calls,
                forward_bytes=forward * size * f.inner,
                module=both,
                backward_bytes=backward * size * f.inner,
                backward_calls=_GELU_NEW_CALLS[1] if written_out else calls,
            )
        )
    rectified = f.activation == "relu" and not f.gated
    if not rectified:
        wide = f.width * f.inner * size
        ops.keep(f"{f.name}1 output", wide, SavedRole.ACTIVATION_INPUT, module=f.module)
    role = SavedRole.RECTIFIED_OUTPUT if rectified else SavedRole.ACTIVATION_OUTPUT
    ops.keep(
        f"{f.name} activation output",
        kept,
        role,
        module=both,
        linears=() if rectified else ("routed down",) if f.grouped else ("down",),
    )
    if f.gated and not fused:
        ops.keep(f"{f.name} gate", kept, SavedRole.ACTIVATED_GATE, module=both)
    if written_out:
        # half of the input in 16 bit; in fp32 the input, the tangent and one more than it
        ops.keep(f"{f.name} parts of the activation", 6.0 * kept, module=both)
    if f.weighted and not fused and not rectified:
        # a product of its own, which keeps what it multiplies; the second linear keeps the result
        ops.keep(f"{f.name} unweighted activation", kept, module=both)
    # gradients of the activation and of its input; the kept activation itself may be gone by then
    cleared = kept if fused and kernels.clears_inputs else 0.0
    working = (f.width + 1) * f.inner * size - cleared + f.waiting_bytes
    if kernels.gradients_by_block:
        outer, weight = f.batch * f.tokens * f.hidden * size, f.batch * f.hidden * f.ffn * size
        working = _with_gradients(working, f.width, kept, outer, weight)
    ops.transient_bytes = working
    return ops


def _activation_passes(f: FeedForward, kernels: Kernels, *, fused: bool) -> tuple[int, int]:
    """Times that the activation's kernels pass the inner elements, forward and backward.

    A compiler that writes both halves of the gradient of gate and up in one sweep over them reads
    the result's gradient and the gate for each, the other factor for that of the gate. Gradients of
    weights of routing are sums over features: a kernel of its own, which reads all three again.
    """
    if f.activation == "gelu_new" and kernels.runs_alone("bias_activation") and not f.gated:
        return _GELU_NEW_PASSES
    if not f.gated:
        more = f.weighted and not fused and f.activation != "relu"
        return (4, 8) if more else (2, 3)
    if not fused:
        return 5, 9
    swept = 2 if kernels.sweeps_gate_halves else 0
    return 3, 5 + swept + (3 if f.weighted else 0)


def _linears(f: FeedForward, size: float, kernels: Kernels) -> ModuleOperators:
    """Both products, and the sum of the first ones' gradients where they are apart."""
    inputs = f.batch * f.tokens * f.hidden
    apart, sums = separate_linears(f"{f.name}1", (f.ffn,) * f.width, inputs, size, kernels)
    common: dict[str, Any] = {
        "m": f.tokens,
        "batch": f.batch,
        "module": f.module,
        "grouped": f.grouped,
    }
    first, second = f.roles
    wide = f.width * f.ffn
    products = [
        Gemm(name=f"{f.name}1", role=first, n=wide, k=f.hidden, linears=apart, **common),
        Gemm(name=f"{f.name}2", role=second, n=f.hidden, k=f.ffn, **common),
    ]
    return ModuleOperators(gemms=products, streams=sums)


def _with_gradients(working: Any, wide: int, inner: Any, outer: Any, weight: Any) -> Any:
    """Add the weight gradients that stand beside a feed-forward module's `working` bytes.

    Two moments count: the activation's backward pass, with the second linear's weight gradient, and
    the last product of the first linears, with all of them and two gradients of their input, which
    is as wide as what they read (`outer`); the activation's inputs and output are gone by then.
    """
    return np.maximum(working + weight, (wide + 1) * weight + 2.0 * outer - wide * inner)


def experts(
    moe: MoE, hidden: int, ranks: Ranks, recipe: Recipe, kernels: Kernels
) -> ModuleOperators:
    """Router, dispatch, routed experts as one grouped product, combine, shared experts.

    The rank described is the one at which most tokens arrive, which the others wait for.
    """
    ops = ModuleOperators()
    size, own_tokens, width = element_bytes(recipe), ranks.own_tokens(recipe), hidden
    ops.keep("moe input", own_tokens * hidden * size, SavedRole.ROUTED_INPUT, module="norm")
    ops.add(_router(moe, hidden, own_tokens, size, kernels))
    load = sent = rank_load(recipe, moe, ranks.ep)
    if kernels.pads_to_busiest:
        load = np.maximum(load, rank_load(recipe, moe, np.full_like(load, moe.experts)))
    # another rank is the fullest in every layer, so that what waits is nearer the mean
    kept = (1.0 + load_expert_routing().kept_excess * (load - 1.0)) / load
    if moe.latent:
        ops.add(_latent_tokens(moe, hidden, own_tokens, size))
        hidden = moe.latent
    arriving = own_tokens * moe.top_k * hidden * size * ranks.etp * load
    in_turn = kernels.in_turn(recipe.moe_routing)
    there, gathered = _exchange(moe, hidden, ranks, recipe, kernels, in_turn=in_turn, load=sent)
    per_expert = load * own_tokens * moe.top_k * ranks.etp * ranks.ep / moe.experts
    there.keep(
        "permuted tokens", arriving, SavedRole.LINEAR_INPUT, module="moe", linears=("routed up",)
    )
    if kernels.keeps_expert_outputs:
        there.keep("experts' outputs", arriving, module="moe")
    there.streams += _pad_experts(arriving, arriving * sent / load, moe, ranks, recipe, kernels)
    routed = FeedForward(
        name="expert fc",
        tokens=per_expert,
        hidden=hidden,
        ffn=moe.ffn_hidden / ranks.etp,
        gated=moe.gated,
        activation=moe.activation,
        batch=moe.experts / ranks.ep,
        grouped=True,
        module="moe",
        activation_module="moe_act+mlp_act",
        roles=(GemmRole.EXPERT_FC1, GemmRole.EXPERT_FC2),
        weighted=kernels.weighs_activations,
        by_products=recipe.precision in kernels.transformer_engine.fused_grouped_mlp,
        # the gradient of the permuted tokens, before and after its exchange
        waiting_bytes=arriving + np.where(gathered > 0, gathered, arriving),
    )
    there.add(feed_forward(routed, size, kernels))
    if moe.bias and routed.by_products:
        there.streams.append(expert_bias_gradients(arriving))
    elif moe.bias:
        inner = arriving / hidden * moe.ffn_hidden / ranks.etp
        there.add(expert_biases(moe, ranks, arriving, inner))
    if recipe.hot_share:
        there.saved = [replace(x, size_bytes=x.size_bytes * kept) for x in there.saved]
    ops.add(there)
    if moe.shared_ffn_hidden:
        ops.add(_shared_experts(moe, width, ranks, recipe, kernels))
    return ops


def _latent_tokens(moe: MoE, hidden: int, own_tokens: Any, size: float) -> ModuleOperators:
    """Projections of tokens to the width that experts work on, and back.

    Kept: the experts' sum, which the way back reads; what they read is kept once it is permuted.
    """
    ops = ModuleOperators()
    for name, n, k in (("latent down", moe.latent, hidden), ("latent up", hidden, moe.latent)):
        ops.gemms.append(Gemm(name=name, m=own_tokens, n=n, k=k, kind="head", module="moe"))
    ops.keep("latent tokens", own_tokens * moe.latent * size, module="moe")
    return ops


def _router(
    moe: MoE, hidden: int, own_tokens: Any, size: float, kernels: Kernels
) -> ModuleOperators:
    """Scores of a rank's `own_tokens`, and the gradients that its readers hand back to them."""
    ops = ModuleOperators()
    ops.gemms.append(
        Gemm(
            name="router",
            role=GemmRole.ROUTER,
            m=own_tokens,
            n=moe.experts + moe.idle_experts,
            k=hidden,
            kind="head",
            module="moe",
        )
    )
    ops.keep("router", 24.0 * own_tokens * moe.experts, SavedRole.ROUTER, module="moe")
    readers = 3 if moe.shared_ffn_hidden else 2  # router, dispatch, shared experts
    ops.streams += summed_gradients("routed input", readers, own_tokens * hidden * size, kernels)
    if moe.fp32_router and kernels.fp32_router:
        ops.streams.append(_fp32_router(own_tokens * hidden))
    ops.streams += _route(own_tokens * moe.experts, kernels)
    return ops


def _fp32_router(elements: Any) -> Stream:
    """What a router in fp32 moves: casts of its input and of its gradient, backward.

    The forward product reads 16 bit (Megatron-Core 0.13 and newer, moe_utils.py,
    RouterGatingLinearFunction); the backward pass casts the input to fp32 for the gradient of the
    weights, which reads it so, and the gradient of the input, which is written so, to 16 bit.
    """
    read, cast_up, written, cast_down = 4.0, 6.0, 4.0, 6.0
    as_priced = 2.0 + 2.0  # by the products in 16 bit
    return Stream(
        name="router casts",
        kind="elementwise",
        forward_bytes=0.0,
        backward_bytes=(read + cast_up + written + cast_down - as_priced) * elements,
        calls=0.0,
        backward_calls=2.0,
        module="moe",
    )


def _route(scores: Any, kernels: Kernels) -> list[Stream]:
    """Small kernels between the router and the dispatch: scores in fp32, map in a byte."""
    count = float(kernels.routing_kernels)
    if not count:
        return []
    return [
        Stream(
            name="routing",
            kind="elementwise",
            forward_bytes=40.0 * scores,
            backward_bytes=20.0 * scores,
            calls=count,
            backward_calls=count / 2.0,
            module="moe",
        )
    ]


def _shared_experts(
    moe: MoE, hidden: int, ranks: Ranks, recipe: Recipe, kernels: Kernels
) -> ModuleOperators:
    """Experts that every token passes: one MLP, sharded over tp."""
    ops = ModuleOperators()
    size, tokens, module = element_bytes(recipe), ranks.tokens(recipe), "moe+shared_experts"
    shared = FeedForward(
        name="shared fc",
        tokens=tokens,
        hidden=hidden,
        ffn=moe.shared_ffn_hidden / ranks.tp,
        gated=moe.gated,
        activation=moe.activation,
        module=module,
        roles=(GemmRole.SHARED_FC1, GemmRole.SHARED_FC2),
    )
    ops.add(feed_forward(shared, size, kernels))
    wide = tokens * hidden * size
    if kernels.sums_gradients_apart:
        added = 3.0 * ranks.own_tokens(recipe) * hidden * size
        ops.streams.append(
            Stream(
                name="sum of experts",
                kind="elementwise",
                forward_bytes=added,
                backward_bytes=0.0,
                backward_calls=0.0,
                module="moe",
            )
        )
    ops.add(gather_cast_input(wide, ranks, "shared fc1", recipe, kernels, module=module))
    ops.add(reduce_cast_output(wide, ranks, "shared fc2", recipe, kernels, module=module))
    if moe.shared_gate:
        ops.add(_shared_gate(hidden, ranks.own_tokens(recipe), size))
    return ops


def _shared_gate(hidden: int, own_tokens: Any, size: float) -> ModuleOperators:
    """A number per token out of its input, whose sigmoid scales what shared experts made of it."""
    ops = ModuleOperators()
    module = "moe+shared_experts"
    ops.gemms.append(
        Gemm(name="shared gate", m=own_tokens, n=1, k=hidden, kind="head", module=module)
    )
    scaled = own_tokens * hidden * size
    ops.streams.append(
        Stream(
            name="shared gate",
            kind="elementwise",
            forward_bytes=2 * scaled,
            backward_bytes=3 * scaled,
            calls=2,
            module=module,
        )
    )
    ops.keep("shared experts' result", scaled + own_tokens * size, module=module)
    return ops


def _pad_experts(
    arriving: Any, rows: Any, moe: MoE, ranks: Ranks, recipe: Recipe, kernels: Kernels
) -> list[Stream]:
    """Copies of the experts' tokens into aligned or equal rows, and of their outputs back.

    Transformer Engine's Fp8Padding and Fp8Unpadding (pytorch/module/fp8_padding.py), which
    Megatron-Core's TEGroupedMLP puts around its products: both read and write the bytes of all
    arriving tokens, in either direction. Nothing is copied where every expert has an aligned number
    of rows: capacities have it, and HybridEP dispatches to it (`pad_multiple` of _HybridEPManager,
    Megatron-Core 0.16). `arriving` bytes are those that experts work on, `rows` those of tokens.
    """
    if kernels.pads_to_busiest and kernels.sums_gradients_apart:
        return [_pad_by_slices(rows, arriving, moe, ranks)]
    if (
        not kernels.transformer_engine.pads_experts
        or not recipe.is_quantised
        or recipe.moe_pads_to_capacity
    ):
        return []
    roomy = kernels.expert_library == "hybridep"
    copied = np.where(roomy & (np.asarray(ranks.dispatcher) == _DEEPEP), 0.0, 4.0 * arriving)
    return [
        Stream(
            name="expert padding",
            kind="elementwise",
            calls=2,
            forward_bytes=copied,
            backward_bytes=copied,
            module="moe",
        )
    ]


def _pad_by_slices(rows: Any, padded: Any, moe: MoE, ranks: Ranks) -> Stream:
    """Copies of each expert's rows into equal rows and of its outputs back, a slice at a time.

    Forward, both targets are zeroed and every row is copied twice. Backward, torch works on whole
    tensors for every slice (torch/csrc/autograd/functions/tensor.cpp, ``CopySlices``;
    ``slice_backward``, ``select_backward``): the gradient of what was written into is copied, that
    of what was read is zeros with the slice in them, and all of these are added up.

    Parameters
    ----------
    rows, padded : array_like
        Bytes of the rows that the experts get, and of the equal rows that they work on.
    moe : MoE
    ranks : Ranks
    """
    slices = moe.experts / np.asarray(ranks.ep)
    return Stream(
        name="rows by expert",
        kind=OPERATOR,
        forward_bytes=padded + 5.0 * rows,
        backward_bytes=6.0 * slices * (rows + padded) + 11.0 * rows,
        calls=2.0 * slices + 2.0,
        backward_calls=16.0 * slices,
        module="moe",
    )


def _exchange(
    moe: MoE,
    hidden: int,
    ranks: Ranks,
    recipe: Recipe,
    kernels: Kernels,
    *,
    in_turn: bool,
    load: Any,
) -> tuple[ModuleOperators, Any]:
    """Dispatch and combine, each way, with the copies around them; and the bytes gathered.

    An all-gather brings the tokens of all ep x etp ranks to each, which picks its own out of them;
    partial outputs for all tokens are reduced and scattered (Megatron-Core,
    MoEAllGatherTokenDispatcher). Otherwise tokens are sent, and gathered over etp. An all-to-all
    sends copies that lie in order: one kernel makes them of a token, one adds them up again, and a
    rank of several experts sorts what arrives and sorts it back (MoEAlltoAllTokenDispatcher).
    DeepEP sends a token once to a rank, where it is copied and added up.
    """
    ops = ModuleOperators()
    size, own_tokens, way = (
        element_bytes(recipe),
        ranks.own_tokens(recipe),
        np.asarray(ranks.dispatcher),
    )
    once = own_tokens * hidden * size
    sent = once * moe.top_k
    arriving = sent * ranks.etp * load
    alltoall, allgather, deepep = (way == DISPATCHERS.index(word) for word in DISPATCHERS)
    gathered = np.where(allgather, once * ranks.ep * ranks.etp, 0.0)
    sorts_arrivals = np.asarray(moe.experts > ranks.ep)
    if kernels.permutation == "torch":  # a rank that exchanges with nobody sorts once
        sorts_arrivals = sorts_arrivals & (ranks.ep * ranks.etp > 1)
    routed = {
        "picks": moe.top_k,
        "experts": moe.experts,
        "groups": moe.groups,
        "top_groups": moe.top_groups,
    }
    unique = once * ranks.etp * load * reached_places(ranks.ep, in_turn=in_turn, **routed)
    lands = deepep & (ranks.ep > 1)
    copy_bytes = np.where(lands | allgather, arriving, sent)
    token_bytes = np.where(lands, unique, np.where(allgather, arriving, once))
    sum_bytes = np.where(lands, unique, np.where(allgather, gathered, once))
    sort_bytes = np.where(sorts_arrivals & ~(lands | allgather), 4 * arriving, 0.0)
    on_the_way = lands & (kernels.expert_library == "hybridep")
    rows = token_bytes, copy_bytes, sum_bytes
    ops.streams += _permutation(rows, sort_bytes, kernels, on_the_way=on_the_way)
    if np.any(allgather):  # the local experts' part of the gathered map (1 B) and weights (4 B)
        routing = np.where(allgather, 5.0 * own_tokens * ranks.etp * moe.experts, 0.0)
        ops.keep("gathered routing", routing, module="moe")
    ways: list[_Way] = [
        (alltoall, ("all_to_all",) * 2, "ep", load * sent),
        (deepep, ("dispatch", "combine"), "ep", once),
        (allgather, ("all_gather", "reduce_scatter"), "experts", gathered),
        (~allgather, ("all_gather", "reduce_scatter"), "etp", np.where(allgather, 0.0, arriving)),
    ]
    ops.collectives += _both_ways(ways, moe, load, row_bytes=hidden * size)
    return ops, gathered


def _permutation(
    rows: tuple[Any, Any, Any], sort_bytes: Any, kernels: Kernels, *, on_the_way: Any
) -> list[Stream]:
    """Copies of tokens for their experts, and the sum of what comes back.

    torch's gather and scatter-add are each other's gradients. A scatter-add reads a copy and adds
    it, element by element, to a row in memory (``fastAtomicAdd``, pytorch/pytorch#61440). Routing
    weights are multiplied in before, where the activation has not taken them (Megatron-Core 0.8 to
    0.12, transformer/moe/moe_utils.py, ``unpermute``; torchtitan of 2025, models/moe/moe.py): two
    of the copies; backward three where a compiler joins the gradients of both factors, six in
    operators (a product of two, another of three, whose sum reads one).

    Parameters
    ----------
    rows : tuple of array_like
        Bytes of the tokens, of their copies, of what these are added up to.
    sort_bytes : array_like
        Moved either way where what arrives is sorted, and back.
    kernels : Kernels
    on_the_way : array_like of bool
        Whether the library that sends tokens permutes them.
    """
    token_bytes, copy_bytes, sum_bytes = rows
    atomic = ~on_the_way & (kernels.permutation == "torch")
    fused_bytes = np.where(atomic, 0.0, copy_bytes)
    forward = token_bytes + copy_bytes + fused_bytes + np.where(atomic, 0.0, sum_bytes)
    backward = sum_bytes + copy_bytes + fused_bytes + np.where(atomic, 0.0, token_bytes)
    ways = forward + sort_bytes, backward + sort_bytes
    streams = [_moe_stream("permute", "permute", ways, calls=4)]
    if not np.any(atomic):
        return streams
    added = np.where(atomic, copy_bytes, 0.0)
    streams.append(_moe_stream("scatter-add", "scatter_add", (3.0 * added, 3.0 * added)))
    if not kernels.weighs_activations:
        in_operators = kernels.torch.alone or kernels.sums_gradients_apart
        ways = 2.0 * added, (6.0 if in_operators else 3.0) * added
        streams.append(_moe_stream("routing weights", "elementwise", ways))
    return streams


def _moe_stream(name: str, kind: str, ways: tuple[Any, Any], calls: float = 1.0) -> Stream:
    """Kernels around experts; `ways`: bytes forward and backward."""
    forward, backward = ways
    return Stream(
        name=name,
        kind=kind,
        forward_bytes=forward,
        backward_bytes=backward,
        calls=calls,
        module="moe",
    )


def _both_ways(ways: list[_Way], moe: MoE, load: Any, *, row_bytes: float) -> list[Collective]:
    """Dispatch and combine of each way that any layout takes, forward and backward."""
    return [
        Collective(
            operation=operation,
            group=group,
            backward=backward,
            moe=moe,
            size_bytes=np.where(taken, size_bytes, 0.0),
            load=load,
            module="moe",
            row_bytes=row_bytes,
        )
        for backward in (False, True)
        for taken, operations, group, size_bytes in ways
        if np.any(taken)
        for operation in operations
    ]
