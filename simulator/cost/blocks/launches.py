"""What the host needs to enqueue the kernels of a part: a pass takes no less."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.cost.operators.operations import Operators, Ranks, recomputes
from simulator.cost.operators.roles import GemmRole, StreamRole
from simulator.cost.operators.split_work import split_host_s
from simulator.files import Figure
from simulator.software.profile import Software

_DENSE = ("norm", "core_attn", "mla_up_proj", "mlp", "shared_experts")
_EXPERTS = ("mlp_act", "moe_act", "moe")
"""Modules of selective recomputation, and those of them that belong to routed experts."""


def launches_s(
    software: Software, ops: Operators, ranks: Ranks, *, quantised: bool
) -> tuple[Floats, Floats]:
    """Seconds of one forward and one backward pass; the latter launches twice as many kernels.

    One for each gradient of the data and one for each of weights: where all weights are frozen the
    second is not asked for (Transformer Engine's pytorch/module/linear.py, `requires_wgrad`;
    torch's ``needs_input_grad``). Adapters launch their own products and sums beside them.

    Parameters
    ----------
    software : Software
    ops : Operators
        Of the part. A block takes the software's count of kernels, other parts their operators.
    ranks : Ranks
    quantised : bool
        Whether linears take fewer than 16 bit.
    """
    host = software.host
    if ops.is_block and not ops.counts_kernels:
        kernels = _block_kernels(software, ops, ranks, quantised=quantised)
    else:
        whole = float(host.captured_fraction * host.captured_moe_fraction)
        kernels = (sum(s.calls for s in ops.streams) + len(ops.gemms)) * (1.0 - whole)
    # a captured part of a block leaves its experts out, whose sizes the host has to know
    products = np.asarray(sum(g.batch for g in ops.gemms if g.grouped), dtype=float)
    apart_s = products * host.seconds_per_expert_product * (host.captured_moe_fraction < 1.0)
    once_s = np.asarray(kernels * host.seconds_per_kernel + apart_s)
    split_s = split_host_s(host, ops, ranks.tp)
    beside_s = _adapter_kernels(software, ops) * host.seconds_per_kernel * ops.is_block
    frozen = any(g.kind != "attention" and not g.trained for g in ops.gemms)
    forward_s = once_s + beside_s + split_s[0]
    return forward_s, (1.0 if frozen else 2.0) * once_s + 2.0 * beside_s + split_s[1]


def _adapter_kernels(software: Software, ops: Operators) -> float:
    """Kernels of adapters' forward pass that no graph launches, beside a block's count."""
    products = sum(g.role is GemmRole.ADAPTER for g in ops.gemms)
    sums = sum(float(np.max(s.calls)) for s in ops.streams if s.role is StreamRole.ADAPTER)
    return (products + sums) * (1.0 - software.host.captured_fraction)


def _block_kernels(software: Software, ops: Operators, ranks: Ranks, *, quantised: bool) -> Any:
    """Kernels of a block's forward pass that no captured graph launches."""
    host = software.host
    count = host.kernels_per_block + quantised * host.kernels_per_fp8_block
    mlp = host.kernels_per_mlp / max(host.kernels_per_block, 1.0)
    if not ops.has_attention:  # where nobody counted the MLP's kernels, it has half of a block's
        count = count * (mlp or 0.5) * ops.has_mlp + ops.mixer_kernels
    elif not ops.has_mlp:
        count = count * (1.0 - mlp)
    count = count + ops.is_latent * host.kernels_per_latent_block
    blocks = ranks.key_blocks(software.kernels)
    kernels = count + host.kernels_per_context_step * (blocks - 1.0)
    kernels = kernels * (1.0 - host.captured_fraction)
    launched = 1.0 - host.captured_moe_fraction
    apart = ops.biased_experts * host.kernels_per_biased_expert
    apart = apart + host.kernels_per_overlapped_block * software.overlap.expert
    usual = float(host.kernels_per_moe_block)
    fixed = float(host.kernels_per_padded_moe_block) or usual
    routed = (fixed if ops.padded_experts else usual) * launched + apart * (launched > 0.0)
    return kernels + ops.is_moe * routed


def replays_s(
    software: Software,
    ops: Operators,
    ranks: Ranks,
    modules: Collection[str],
    *,
    quantised: bool,
) -> tuple[Any, Any]:
    """Seconds that selective recomputation of `modules` adds to a host's forward and backward pass.

    Each of them is set aside by itself, and enqueued again as the share of the block's kernels, or
    of those of its routed experts, that its operators are of those listed. What a graph captures,
    its replay launches.

    Parameters
    ----------
    software : Software
        Whose `host.seconds_per_checkpoint` is known; else both are 0.
    ops : Operators
        Of a block.
    ranks : Ranks
    modules : collection of str
    quantised : bool
        Whether linears take fewer than 16 bit.
    """
    host = software.host
    if not host.seconds_per_checkpoint or not modules:
        return 0.0, 0.0
    dense = 1.0 - host.captured_fraction
    experts = float(host.captured_moe_fraction < 1.0)  # they run outside of partial graphs
    outside = {**dict.fromkeys(_DENSE, dense), **dict.fromkeys(_EXPERTS, experts)}

    def launched(module: str) -> float:
        named = [outside.get(name, 1.0) for name in modules if recomputes(module, (name,))]
        return max(named, default=0.0)

    listed = [(g.module, 1.0) for g in ops.gemms if not g.grouped]
    listed += [(s.module, s.calls) for s in ops.streams if s.stashes is None]
    listed += [("core_attn", 1.0) for _ in ops.flash]
    again: Any = 0.0
    for routed, kernels in zip(
        (False, True), _kernels_apart(software, ops, ranks, quantised), strict=True
    ):
        own = [one for one in listed if _is_routed(one[0]) == routed]
        calls = sum(calls for _, calls in own)
        some = sum(launched(module) * calls for module, calls in own)
        again = again + (some if ops.counts_kernels else some / np.maximum(calls, 1.0) * kernels)
    products = sum(launched(g.module) * g.batch for g in ops.gemms if g.grouped)
    # norms that no linear takes along stand before latent attention and before experts
    apart = {
        "norm": float(ops.is_latent) + ops.is_moe,
        "core_attn": ops.has_attention,
        "mla_up_proj": ops.is_latent,
        "mlp": ops.has_mlp and not ops.is_moe,
        "shared_experts": ops.has_mlp and ops.is_moe,
        **dict.fromkeys(_EXPERTS, ops.is_moe),
    }
    count = sum(outside[name] * apart[name] for name in modules if name in apart)
    again_s = again * host.seconds_per_kernel + products * host.seconds_per_expert_product
    return count * host.seconds_per_checkpoint, again_s + count * host.seconds_per_replay


def _is_routed(module: str) -> bool:
    """Whether an operator belongs to routed experts; shared ones are launched as a dense MLP is."""
    return "moe" in (names := module.split("+")) and "shared_experts" not in names


def _kernels_apart(
    software: Software, ops: Operators, ranks: Ranks, quantised: bool
) -> tuple[Any, Any]:
    """Kernels of a block without graphs: those of all tokens, and those of routed experts."""
    none = Figure(0.0)
    bare = replace(software.host, captured_fraction=none, captured_moe_fraction=none)
    software = replace(software, host=bare)
    dense = _block_kernels(software, replace(ops, is_moe=False), ranks, quantised=quantised)
    return dense, _block_kernels(software, ops, ranks, quantised=quantised) - dense
