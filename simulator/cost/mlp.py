"""Operators of a feed-forward module: a dense MLP, or a router with routed and shared experts."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.cost.operations import (
    Collective,
    Gemm,
    Operators,
    Ranks,
    Stream,
    element_bytes,
    gather_input,
    reduce_output,
)
from simulator.software import Kernels
from simulator.workload.architecture import MLP, MoE
from simulator.workload.recipe import Recipe

__all__ = ["experts", "feed_forward", "mlp"]


def mlp(
    ops: Operators, mlp: MLP, hidden: int, ranks: Ranks, recipe: Recipe, kernels: Kernels,
    keeps_input: bool = True,
) -> None:  # fmt: skip
    """A dense MLP, sharded over tp, with the collectives around it.

    `keeps_input` is false where attention keeps the same input.
    """
    size, tokens = element_bytes(recipe), ranks.tokens(recipe)
    if keeps_input:
        keeps = tokens if kernels.keeps_gathered_inputs else ranks.own_tokens(recipe)
        ops.saved.append(("mlp input", "norm", keeps * hidden * size))
    wide = tokens * hidden * size
    ffn = mlp.ffn_hidden / ranks.tp
    residual = ranks.own_tokens(recipe) * hidden * size if kernels.clears_inputs else 0.0
    feed_forward(ops, "fc", tokens, hidden, ffn, mlp.gated, size, kernels, module="mlp",
                 activation=mlp.activation, beside=residual)  # fmt: skip
    gather_input(ops, wide, ranks, "fc1", kernels)
    reduce_output(ops, wide, ranks, "fc2")


def feed_forward(
    ops: Operators,
    name: str,
    tokens: Any,
    hidden: Any,
    ffn: Any,
    gated: bool,
    size: float,
    kernels: Kernels,
    batch: Any = 1.0,
    module: str = "",
    activation: str = "gelu",
    beside: Any = 0.0,
) -> None:
    """Two linears and the activation between them, for one MLP or a batch of experts.

    Fused kernels exist for smooth activations only; a rectifier is known by its output, which the
    second linear keeps anyway. `beside` are the bytes of gradients that wait meanwhile.
    """
    smooth = gated or activation == "gelu"
    both = f"{module}+mlp_act" if module else "mlp_act"
    wide = 2 if gated else 1
    ops.gemms.append(
        Gemm(name=f"{name}1", m=tokens, n=wide * ffn, k=hidden, batch=batch, module=module)
    )
    ops.gemms.append(Gemm(name=f"{name}2", m=tokens, n=hidden, k=ffn, batch=batch, module=module))
    inner = batch * tokens * ffn
    fused = smooth and "bias_activation" in kernels.fused
    if gated:
        forward, backward = (3, 5) if fused else (5, 9)
    else:
        forward, backward = (2, 3) if fused else (4, 5)
    ops.streams.append(
        Stream(
            name=f"{name} activation",
            kind="elementwise",
            calls=1 if fused else 2,
            forward_bytes=forward * size * inner,
            module=both,
            backward_bytes=backward * size * inner,
        )
    )
    if gated or activation != "relu":
        ops.saved.append((f"{name}1 output", module, wide * inner * size))
    ops.saved.append((f"{name} activation output", both, inner * size))
    if gated and not fused:
        ops.saved.append((f"{name} gate", both, inner * size))
    # gradients of the activation and of its input; the kept activation itself may be gone by then
    cleared = inner * size if fused and kernels.clears_inputs else 0.0
    working = (wide + 1) * inner * size - cleared + beside
    if kernels.gradients_by_block:
        working = _with_gradients(working, wide, inner * size, batch * tokens * hidden * size,
                                  batch * hidden * ffn * size)  # fmt: skip
    ops.transient_bytes = np.maximum(ops.transient_bytes, working)


def _with_gradients(working: Any, wide: int, inner: Any, outer: Any, weight: Any) -> Any:
    """Add the weight gradients that stand beside a feed-forward module's `working` bytes.

    Two moments count: the activation's backward pass, with the second linear's weight gradient, and
    the last product of the first linears, with all of them and two gradients of their input, which
    is as wide as what they read (`outer`); the activation's inputs and output are gone by then.
    """
    return np.maximum(working + weight, (wide + 1) * weight + 2.0 * outer - wide * inner)


def experts(
    ops: Operators, moe: MoE, hidden: int, ranks: Ranks, recipe: Recipe, kernels: Kernels
) -> None:
    """Router, dispatch, routed experts as one grouped product, combine, shared experts.

    The rank described is the one at which most tokens arrive, which the others wait for.
    """
    size, own, tokens = element_bytes(recipe), ranks.own_tokens(recipe), ranks.tokens(recipe)
    ops.saved.append(("moe input", "norm", own * hidden * size))
    ops.gemms.append(Gemm(name="router", m=own, n=moe.experts, k=hidden, kind="head"))
    ops.saved.append(("router", "", 24.0 * own * moe.experts))
    load = recipe.expert_load
    sent = own * moe.top_k * hidden * size
    arriving = sent * ranks.etp * load
    ops.streams.append(
        Stream(
            name="permute",
            kind="elementwise",
            calls=4,
            forward_bytes=2 * (sent + arriving),
            backward_bytes=2 * (sent + arriving),
        )
    )
    once = kernels.dispatcher == "deepep"
    for backward in (False, True):
        exchange = Collective(
            operation="dispatch" if once else "all_to_all",
            group="ep",
            size_bytes=load * (sent / moe.top_k if once else sent),
            backward=backward,
            copies=moe.top_k,
            experts=moe.experts,
        )
        ops.collectives += [exchange, exchange]  # there and, combined, back
        for operation in ("all_gather", "reduce_scatter"):
            ops.collectives.append(
                Collective(operation=operation, group="etp", size_bytes=arriving, backward=backward)
            )
    per_expert = load * own * moe.top_k * ranks.etp * ranks.ep / moe.experts
    ops.saved.append(("permuted tokens", "", arriving))
    feed_forward(
        ops,
        "expert fc",
        per_expert,
        hidden,
        moe.ffn_hidden / ranks.etp,
        moe.gated,
        size,
        kernels,
        batch=moe.experts / ranks.ep,
        activation=moe.activation,
        beside=2 * arriving,  # the gradient of the permuted tokens, before and after its exchange
    )
    if moe.shared_ffn_hidden:
        wide = tokens * hidden * size
        feed_forward(
            ops,
            "shared fc",
            tokens,
            hidden,
            moe.shared_ffn_hidden / ranks.tp,
            moe.gated,
            size,
            kernels,
            activation=moe.activation,
        )
        gather_input(ops, wide, ranks, "shared fc1", kernels)
        reduce_output(ops, wide, ranks, "shared fc2")
