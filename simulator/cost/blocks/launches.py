"""What the host needs to enqueue the kernels of a part: a pass takes no less."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.cost.operators.operations import Operators, Ranks
from simulator.cost.operators.roles import GemmRole, StreamRole
from simulator.cost.operators.split_work import split_host_s
from simulator.software.profile import Software

__all__ = ["launches_s"]


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
