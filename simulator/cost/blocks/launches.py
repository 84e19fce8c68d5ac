"""What the host does for a part: enqueues its kernels, which no pass outruns, and copies inputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.cost.collectives.calls import broadcasts_s
from simulator.cost.operators.operations import Operators, Ranks, recomputes
from simulator.cost.operators.roles import GemmRole, StreamRole
from simulator.cost.operators.split_work import split_host_s
from simulator.files import Figure
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import DISPATCHERS
from simulator.software.host_work import HostWork, Launched
from simulator.software.profile import Software
from simulator.workload.recipe import Recipe, Workload

_DENSE = ("norm", "core_attn", "mla_up_proj", "mlp", "shared_experts")
_EXPERTS = ("mlp_act", "moe_act", "moe")
"""Modules of selective recomputation, and those of them that belong to routed experts."""

_MODULES_AGAIN = 2.0
"""Modules of Python within one that is set aside, between 1 of a norm and 3 of an MLP."""

_BothWays = tuple[Any, Any]
"""Forward and backward."""

_PIXEL_BYTES = 4.0
"""For every value of an image: images are fp32 once they are normalised."""


def launches_s(
    software: Software, ops: Operators, ranks: Ranks, recipe: Recipe
) -> tuple[Floats, Floats]:
    """Seconds of one forward and one backward pass.

    A backward pass has a gradient of the data and one of weights: where all weights are frozen the
    second is not asked for (Transformer Engine's pytorch/module/linear.py, `requires_wgrad`;
    torch's ``needs_input_grad``). Adapters launch their own products and sums beside them.

    Parameters
    ----------
    software : Software
    ops : Operators
        Of the part. A block takes the software's counts, other parts their operators.
    ranks : Ranks
    recipe : Recipe
    """
    host = software.host
    if ops.is_block and not ops.counts_kernels:
        forward_s, backward_s = _launched_s(software, ops, ranks, recipe)
    else:
        whole = float(host.captured_fraction * host.captured_moe_fraction)
        forward_s = _listed(ops) * (1.0 - whole) * host.seconds_per_kernel
        backward_s = 2.0 * forward_s
    grouped = software.allocator.grouped_products
    products_s = _expert_products(ops) * grouped * host.seconds_per_expert_product
    # a captured part of a block leaves its experts out, whose sizes the host has to know
    products_s = products_s * (host.captured_moe_fraction < 1.0)
    split_s = split_host_s(host, ops, ranks.tp)
    beside_s = _adapter_kernels(software, ops) * host.seconds_per_kernel * ops.is_block
    rounding = [s for s in ops.streams if s.role is StreamRole.FAKE_QUANTISATION]
    rounds_s = sum(s.calls for s in rounding) * host.seconds_per_kernel
    rounds_back_s = sum(s.calls_back for s in rounding) * host.seconds_per_kernel
    frozen = any(g.kind != "attention" and not g.trained for g in ops.gemms)
    backward_s = (backward_s + 2.0 * products_s) * (0.5 if frozen else 1.0)
    forward_s = np.asarray(forward_s + products_s + beside_s + rounds_s + split_s[0])
    return forward_s, np.asarray(backward_s + 2.0 * beside_s + rounds_back_s + split_s[1])


def _listed(ops: Operators) -> Any:
    """Kernels of a part whose operators are all listed, but for those of fake quantisation."""
    streams = [s for s in ops.streams if s.role is not StreamRole.FAKE_QUANTISATION]
    return sum(s.calls for s in streams) + len(ops.gemms)


def _expert_products(ops: Operators) -> Any:
    """Products of single experts in a forward pass."""
    return np.asarray(sum(g.batch for g in ops.gemms if g.grouped), dtype=float)


def _adapter_kernels(software: Software, ops: Operators) -> float:
    """Kernels of adapters' forward pass that no graph launches, beside a block's count."""
    products = sum(g.role is GemmRole.ADAPTER for g in ops.gemms)
    sums = sum(float(np.max(s.calls)) for s in ops.streams if s.role is StreamRole.ADAPTER)
    return (products + sums) * (1.0 - software.host.captured_fraction)


def _launched_s(software: Software, ops: Operators, ranks: Ranks, recipe: Recipe) -> _BothWays:
    """Seconds of a block, of what no captured graph launches."""
    host = software.host
    dense, routed = block_launches_s(software, ops, ranks, recipe)
    outside = 1.0 - host.captured_fraction, 1.0 - host.captured_moe_fraction
    forward_s, backward_s = (
        outside[0] * dense_s + outside[1] * routed_s
        for dense_s, routed_s in zip(dense, routed, strict=True)
    )
    waits_s = _exchange_s(software, ops, ranks) * (outside[1] > 0.0)
    return forward_s + waits_s, backward_s


def block_launches_s(
    software: Software, ops: Operators, ranks: Ranks, recipe: Recipe
) -> tuple[_BothWays, _BothWays]:
    """Seconds of a block without graphs, forward and backward: for all tokens, for routed experts.

    Products of single experts and the wait for their sizes are apart.
    """
    host = software.host
    dense_s = _counted_s(host, dense_counts(software, ops, ranks, recipe))
    mixer_s = ops.mixer_kernels * host.seconds_per_kernel
    dense_s = dense_s[0] + mixer_s, dense_s[1] + 2.0 * mixer_s
    routed_s = _counted_s(host, routed_counts(software, ops, ranks))
    calls = _collectives(ops, ranks)
    each_s = host.seconds_per_collective
    return (
        (dense_s[0] + each_s * calls[0][0], dense_s[1] + each_s * calls[0][1]),
        (routed_s[0] + each_s * calls[1][0], routed_s[1] + each_s * calls[1][1]),
    )


def _counted_s(host: HostWork, counts: Mapping[Launched, Any]) -> _BothWays:
    """Seconds of what a block has, either way."""
    forward_s: Any = 0.0
    backward_s: Any = 0.0
    for name, count in counts.items():
        if (launches := host.launches.get(name)) is not None:
            twice = 2.0 * launches.forward
            back = twice if launches.backward is None else launches.backward
            modules_s = launches.modules * host.seconds_per_module
            forward_s = forward_s + count * (launches.forward * host.seconds_per_kernel + modules_s)
            backward_s = backward_s + count * back * host.seconds_per_kernel
    return forward_s, backward_s


def dense_counts(
    software: Software, ops: Operators, ranks: Ranks, recipe: Recipe
) -> dict[Launched, Any]:
    """How much a block has of what all tokens pass."""
    kernels = software.kernels
    fused = ("latent_rope" if ops.is_latent else "rope") in kernels.fused and not ops.scales_rotary
    delayed = recipe.precision == "fp8"
    counts: dict[Launched, Any] = {
        "attention": float(ops.has_attention),
        "mlp": float(ops.has_mlp and not ops.is_moe),
        "shared_experts": float(ops.has_mlp and ops.is_moe),
        "bias": float(ops.biased_linears),
        "rotary": float(ops.rotates and fused),
        "rotary_apart": float(ops.rotates and not fused),
        "head_norms": float(ops.norms_heads),
        "latent": float(ops.is_latent),
        "unfused_attention": float(ops.has_attention and not ops.flash),
        "context_step": (ranks.key_blocks(kernels) - 1.0) * ops.has_attention,
        "quantised": float(recipe.is_quantised and not delayed),
        "delayed_scaling": float(delayed),
        "deterministic": float(software.host.deterministic),
    }
    return counts


def routed_counts(software: Software, ops: Operators, ranks: Ranks) -> dict[Launched, Any]:
    """How much a block has of what routed experts need."""
    if not ops.is_moe:
        return {}
    apart = not software.allocator.grouped_products
    experts = np.max([g.batch for g in ops.gemms if g.grouped], axis=0, initial=0.0)
    counts: dict[Launched, Any] = {
        "routed": 1.0,
        "exchanged": _exchanges(ranks) & (ranks.dispatcher != DISPATCHERS.index("allgather")),
        "auxiliary_loss": 1.0,
        "grouped_experts": float(not apart),
        "expert": apart * experts,
        "biased_expert": ops.biased_experts,
    }
    return counts


def _collectives(ops: Operators, ranks: Ranks) -> tuple[list[Any], list[Any]]:
    """Collectives of a block either way: of all tokens, of routed experts.

    A ring sends and receives for each further rank.
    """
    dense: list[Any] = [0.0, 0.0]
    routed: list[Any] = [0.0, 0.0]
    for c in ops.collectives:
        members = getattr(ranks.groups, c.group).size
        asked = (members > 1) & (np.asarray(c.size_bytes) > 0)
        calls = 2.0 * (members - 1) if c.operation == "ring" else 1.0
        some = dense if c.moe is None else routed
        some[c.backward] = some[c.backward] + asked * calls
    return dense, routed


def _exchange_s(software: Software, ops: Operators, ranks: Ranks) -> Any:
    """Seconds that the host waits for the sizes of what goes to experts of other ranks."""
    waits = software.host.seconds_per_exchange
    if not ops.is_moe or not waits or ops.padded_experts:  # all know the sizes of those
        return 0.0
    library = software.kernels.expert_library
    names = [library if name == "deepep" else name for name in DISPATCHERS]
    seconds = np.array([float(waits.get(name, 0.0)) for name in names])
    return seconds[np.asarray(ranks.dispatcher)] * _exchanges(ranks)


def posted_by_host(ranks: Ranks) -> Any:
    """Whether messages of DeepEP go to experts of other servers, where a host's thread posts them.

    The host then waits for a dispatch as it waits for sizes: what the two take adds up. Steps of
    Qwen3 30B on p5 and 235B on p6-b300 (awslabs/awsome-distributed-ai@95b939cd), over 2 and 4
    servers, 512 and 2,048 tokens a rank, are the host's floor and the messages' waits to 10 %.
    """
    experts, way = ranks.groups.experts, np.asarray(ranks.dispatcher)
    return (experts.local < experts.size) & (way == DISPATCHERS.index("deepep"))


def _exchanges(ranks: Ranks) -> Any:
    """Whether experts are on other ranks, too."""
    return np.asarray(ranks.ep * ranks.etp) > 1


def replays_s(
    software: Software,
    ops: Operators,
    ranks: Ranks,
    recipe: Recipe,
    modules: Collection[str],
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
    recipe : Recipe
    modules : collection of str
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
    again_s: Any = 0.0
    nothing = Figure(0.0)
    alone = replace(host, seconds_per_module=nothing, seconds_per_collective=nothing)
    kernels = replace(software, host=alone)
    ways = (
        ((0.0, 0.0),) * 2 if ops.counts_kernels else block_launches_s(kernels, ops, ranks, recipe)
    )
    for routed, (forward_s, _) in zip((False, True), ways, strict=True):
        own = [one for one in listed if _is_routed(one[0]) == routed]
        calls = sum(calls for _, calls in own)
        some = sum(launched(module) * calls for module, calls in own)
        each_s = forward_s / np.maximum(calls, 1.0)
        again_s = again_s + some * (host.seconds_per_kernel if ops.counts_kernels else each_s)
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
    again_s = again_s + products * host.seconds_per_expert_product
    replay_s = host.seconds_per_replay + _MODULES_AGAIN * host.seconds_per_module
    return count * host.seconds_per_checkpoint, again_s + count * replay_s


def _is_routed(module: str) -> bool:
    """Whether an operator belongs to routed experts; shared ones are launched as a dense MLP is."""
    return "moe" in (names := module.split("+")) and "shared_experts" not in names


def fetch_bytes(workload: Workload, software: Software, micro_batch: Floats) -> Floats:
    """Bytes of one micro-batch for the first stage, for the last one, and for both.

    Parameters
    ----------
    workload, software : Workload, Software
    micro_batch : ndarray
        Sequences of a micro-batch, shape (keys,).

    Returns
    -------
    ndarray, shape (keys, 3)
    """
    arch, recipe, fetch = workload.architecture, workload.recipe, software.input
    read = float(recipe.sequence_length)
    written = float(recipe.decoder_length or read) if arch.is_encoder_decoder else 0.0
    tokens = (read + written) * fetch.token_bytes
    labels, shared = (written or read) * fetch.label_bytes, (read + written) * fetch.shared_bytes
    if arch.patch_values:  # an image and its class
        patches = read - arch.extra_embeddings
        tokens = patches * arch.patch_values * _PIXEL_BYTES
        labels, shared = fetch.label_bytes, fetch.shared_bytes
    shared = shared + read**2 * fetch.mask_bytes
    return np.asarray(micro_batch[:, None] * np.array([tokens, labels, shared], dtype=float))


def input_s(workload: Workload, cluster: Cluster, software: Software, ranks: Ranks) -> Floats:
    """Seconds of these copies, over the host link and then over tp; shape (keys, 3).

    A node without a host link has its input where it computes.
    """
    sizes = fetch_bytes(workload, software, ranks.micro_batch)
    seconds = sizes / float(cluster.node.host_bytes_per_s or np.inf)
    if not software.input.broadcast:
        return seconds
    links, group = cluster.links_of("tp"), ranks.groups.tp
    # `broadcasts_s` counts one broadcast of every rank's share: here one rank sends it all
    sent = broadcasts_s(links, sizes.T * group.size, group) / group.size
    return np.asarray(seconds + np.where(sizes > 0, sent.T, 0.0))
