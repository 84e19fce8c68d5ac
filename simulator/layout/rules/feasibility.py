"""Which layouts can run at all: divisibility, the cluster, and what the software supports.

An infeasible layout is a result with a reason, not an error: the search counts reasons.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import (
    CP_KINDS,
    DISPATCHERS,
    OFFLOADS,
    RANK_ORDERS,
    RECOMPUTE,
    SHARDINGS,
    Layouts,
)
from simulator.schedules.registry import SCHEDULES, TAKES_ROUNDS, WORDS, by_code
from simulator.software.profile import Software
from simulator.workload.architecture import Architecture, MoE
from simulator.workload.recipe import HOST_OPTIMIZERS, Workload

__all__ = ["FEASIBLE", "REASONS", "reasons"]

FEASIBLE = 0

REASONS = (
    "feasible",
    "dp x tp x pp x cp is not the number of GPUs",
    "a traced module runs in data parallelism, with recomputation of all layers or none",
    "tp does not divide the attention heads",
    "tp and the key/value heads do not divide one another",
    "tp does not divide the MLP width",
    "tp, cp do not divide the sequence length",
    "fewer layers than pipeline stages",
    "layers do not divide evenly over pp x vpp",
    "global batch does not divide by dp x micro-batch",
    "interleaving needs pp > 1 and micro-batches in rounds that the software has",
    "ep does not divide the experts",
    "ep x etp does not divide dp x cp x tp",
    "etp does not divide the expert width",
    "experts need ep, etp = 1 on a dense model",
    "sequence parallelism needs tp > 1",
    "experts with tp > 1 need sequence parallelism",
    "the software has no such tensor or sequence parallelism",
    "the software has no such pipeline schedule",
    "the software has no such context parallelism",
    "the software has no expert parallelism",
    "the software has no such sharding of states",
    "the software cannot combine this sharding with pp > 1",
    "the software cannot combine this sharding with tp > 1",
    "the software has no such recomputation",
    "the software has no such rank order",
    "recompute_layers needs full recomputation and at most the layers of a rank",
    "shard_group does not divide dp x cp",
    "activations of more layers offloaded than a rank has",
    "the software cannot keep activations in host memory",
    "no figure for copies between accelerator and host",
    "the schedule does not go with this pp, vpp or number of micro-batches",
    "the software cannot offload the optimizer",
    "the optimizer has no step on the host",
    "parameters can be offloaded with zero3 only, by software that can",
    "an optimizer step inside the backward pass needs a single micro-batch",
    "all_to_all needs key/value heads that cp divides on every tensor-parallel rank",
    "the software cannot share this sharding among fewer ranks than all replicas",
    "reshard_after_forward needs zero3, a divisor of the ranks that share, and software that can",
    "the software cannot keep states on NVMe",
    "the server has no NVMe, or none known",
    "the software has no such dispatch of tokens to experts",
    "an all-gather of tokens takes neither a capacity factor nor overlapped expert traffic",
    "the software cannot combine offloaded activations with recomputation",
    "the software cannot combine offloaded activations with captured graphs",
    "the software cannot offload the activations of all layers",
    "weights in 8 bit alone need optimizer states that ranks share",
    "the software cannot offload the optimizer with these weights in 8 bit alone",
    "cp_a2a goes with hierarchical context parallelism, where it divides cp and leaves a ring",
    "hierarchical context parallelism needs key/value heads that cp_a2a divides on every rank",
    "post-validation of the optimizer needs a zero-bubble schedule, and software that can",
)
"""Reason by code; the first one that applies is reported."""


def reasons(
    layouts: Layouts, workload: Workload, cluster: Cluster, software: Software
) -> NDArray[np.int8]:
    """Give each layout its reason code: an index into REASONS, 0 where it can run."""
    code = np.zeros(len(layouts), dtype=np.int8)
    checks = _checks(layouts, workload, cluster, software)
    for number, wrong in enumerate(checks, start=1):
        code = np.where((code == FEASIBLE) & wrong, np.int8(number), code)
    return code


def _checks(
    x: Layouts, workload: Workload, cluster: Cluster, software: Software
) -> list[NDArray[np.bool_]]:
    """One boolean column per reason, in the order of REASONS."""
    return [
        *_fits_model(x, workload, cluster, software),
        *_fits_experts(x, workload.architecture),
        *_fits_software(x, workload.architecture, software),
        *_fits_sharding(x, workload.architecture),
        *_fits_offload(x, workload.architecture, cluster, software),
        _misfits_schedule(x),
        *_fits_recipe(x, workload, software),
        _splits_heads(x, workload.architecture, "all_to_all", x.cp),
        *_fits_groups(x, workload.architecture, software),
        *_fits_drives(x, cluster, software),
        *_fits_dispatcher(x, workload, software),
        *_excludes_offload(x, workload.architecture, software),
        workload.recipe.fp8_weights & (x.sharding == 0),
        (x.optimizer_offload > 0)
        & workload.recipe.fp8_weights
        & (workload.recipe.precision not in software.supports.fp8_weights_offload),
        _misfits_groups(x),
        _splits_heads(x, workload.architecture, "hierarchical", x.cp_a2a),
        _needs_barrier(x, software) & workload.recipe.optimizer_post_validation,
    ]


def _fits_model(
    x: Layouts, workload: Workload, cluster: Cluster, software: Software
) -> list[NDArray[np.bool_]]:
    arch, recipe = workload.architecture, workload.recipe
    attention = [kind.attention for kind in arch.blocks]
    heads = _all([a.heads % x.tp == 0 for a in attention])
    kv_heads = _all([(a.kv_heads % x.tp == 0) | (x.tp % a.kv_heads == 0) for a in attention])
    widths = [
        k.mlp.shared_ffn_hidden if isinstance(k.mlp, MoE) else k.mlp.ffn_hidden for k in arch.blocks
    ]
    stages = x.pp * x.vpp
    sharded = np.where(x.sequence_parallel > 0, x.tp, 1)
    even = np.full(len(x), True) if software.supports.uneven_stages else arch.layers % stages == 0
    per_step = x.dp * x.micro_batch
    model_parallel = x.tp * x.pp * x.cp * x.ep * x.etp > 1
    return [
        x.world != cluster.gpus,
        (model_parallel | (x.recompute == RECOMPUTE.index("selective")))
        & (arch.traced is not None),
        ~heads,
        ~kv_heads,
        ~_all([width % x.tp == 0 for width in widths]),
        recipe.sequence_length % (x.cp * np.where(x.cp > 1, 2, 1) * sharded) != 0,
        arch.layers < stages,
        ~even,
        (x.global_batch % per_step != 0) | (x.global_batch < per_step),
        (x.vpp > 1) & ((x.pp == 1) | (TAKES_ROUNDS[x.schedule] & ~_has_rounds(x, software))),
    ]


def _fits_experts(x: Layouts, arch: Architecture) -> list[NDArray[np.bool_]]:
    moes = [kind.mlp for kind in arch.blocks if isinstance(kind.mlp, MoE)]
    folded = (x.dp * x.cp * x.tp) % (x.ep * x.etp) == 0
    return [
        ~_all([moe.experts % x.ep == 0 for moe in moes], len(x)),
        ~folded,
        ~_all([moe.ffn_hidden % x.etp == 0 for moe in moes], len(x)),
        (x.ep * x.etp > 1) & (not moes),
        (x.sequence_parallel > 0) & (x.tp == 1),
        (x.sequence_parallel == 0) & (x.tp > 1) & bool(moes),
    ]


def _fits_dispatcher(x: Layouts, workload: Workload, software: Software) -> list[NDArray[np.bool_]]:
    """Ways to reach the experts; with one expert rank there is nothing to send.

    megatron/core/transformer/transformer_config.py: moe_expert_capacity_factor works with alltoall,
    overlap_moe_expert_parallel_comm with alltoall and flex.
    """
    sends = x.ep * x.etp > 1
    gathers = x.dispatcher == DISPATCHERS.index("allgather")
    wants = workload.recipe.moe_capacity_factor is not None or software.overlap.expert
    return [
        sends & ~_words(x.dispatcher, DISPATCHERS, software.supports.dispatchers),
        sends & gathers & wants,
    ]


def _splits_experts(x: Layouts, arch: Architecture) -> NDArray[np.bool_]:
    """Where pipeline ranks are not outermost, experts (etp = tp if there are none) keep to tp x cp.

    megatron/core/parallel_state.py: with any other order, the data-parallel size of the attention
    and of the MoE layers must be the same.
    """
    outermost = tuple(order for order in RANK_ORDERS if order.endswith("pp"))
    together = x.ep * x.etp if arch.is_moe else x.tp
    moved = ~_words(x.rank_order, RANK_ORDERS, outermost)
    return np.asarray((x.pp > 1) & moved & (together != x.tp * x.cp))


def _fits_software(x: Layouts, arch: Architecture, software: Software) -> list[NDArray[np.bool_]]:
    can = software.supports
    sequence = _one_of(x.sequence_parallel, [int(value) for value in can.sequence_parallel])
    return [
        (x.tp > 1) & ~(can.tensor & sequence),
        ((x.pp > 1) & (not can.pipeline)) | ~_words(x.schedule, WORDS, can.schedules),
        (x.cp > 1) & ~_words(x.cp_kind, CP_KINDS, can.cp_kinds),
        (x.ep * x.etp > 1) & (not can.expert),
        ~_words(x.sharding, SHARDINGS, can.sharding),
        (x.pp > 1) & ~_words(x.sharding, SHARDINGS, can.sharding_with_pipeline),
        (x.tp > 1) & ~_words(x.sharding, SHARDINGS, can.sharding_with_tensor),
        ~_words(x.recompute, RECOMPUTE, can.recompute)
        | ((x.recompute_layers > 0) & (not can.recompute_layers)),
        ~_words(x.rank_order, RANK_ORDERS, can.rank_orders) | _splits_experts(x, arch),
    ]


def _fits_sharding(x: Layouts, arch: Architecture) -> list[NDArray[np.bool_]]:
    most = -(-arch.layers // x.pp)
    partial = x.recompute_layers > 0
    return [
        partial & ((x.recompute != RECOMPUTE.index("full")) | (x.recompute_layers > most)),
        (x.dp * x.cp) % np.maximum(x.shard_group, 1) != 0,
    ]


def _fits_groups(x: Layouts, arch: Architecture, software: Software) -> list[NDArray[np.bool_]]:
    """Hybrid sharding, and parameters resharded to a smaller group after the forward pass.

    Experts are shared by fewer ranks, which the replicas and the smaller group must divide, too.
    """
    can, shard = software.supports, np.maximum(x.shard_group, 1)
    replicas, group = x.dp * x.cp // shard, np.maximum(x.reshard_after_forward, 1)
    hybrid = (x.sharding > 0) & (replicas > 1)
    same = np.maximum(x.dp * x.cp * x.tp // (x.ep * x.etp), 1)
    uneven = (same % np.maximum(replicas, 1) != 0) & arch.is_moe
    share = np.maximum(same // np.maximum(replicas, 1), 1) if arch.is_moe else shard
    whole = (x.pp > 1) & software.states.keeps_gathered_with_pipeline
    wrong = (x.sharding != SHARDINGS.index("zero3")) | (shard % group != 0) | (share % group != 0)
    return [
        hybrid & (~_words(x.sharding, SHARDINGS, can.hybrid_sharding) | uneven),
        (x.reshard_after_forward > 0) & (wrong | whole | ("group" not in can.reshard)),
    ]


def _fits_recipe(x: Layouts, workload: Workload, software: Software) -> list[NDArray[np.bool_]]:
    can, recipe = software.supports, workload.recipe
    step, held = x.optimizer_offload > 0, x.parameter_offload > 0
    sharded = x.sharding == SHARDINGS.index("zero3")
    return [
        step
        & (
            (not can.optimizer_offload)
            | ~_words(x.sharding, SHARDINGS, can.optimizer_offload_sharding)
        ),
        step & (recipe.optimizer not in HOST_OPTIMIZERS),
        held & ~(sharded & can.parameter_offload),
        (x.micro_batches > 1) & recipe.optimizer_in_backward,
    ]


_POST_VALIDATED = by_code(lambda schedule: schedule.post_validated)


def _needs_barrier(x: Layouts, software: Software) -> NDArray[np.bool_]:
    """Layouts whose ranks end a step together: every schedule but those of zero bubble."""
    able = _POST_VALIDATED[x.schedule] & (x.pp > 1)
    return ~(able & software.supports.post_validation)


def _misfits_groups(x: Layouts) -> NDArray[np.bool_]:
    """Hierarchical context parallelism has groups of cp_a2a ranks, and rings of two or more."""
    grouped = (x.cp > 1) & (x.cp_kind == CP_KINDS.index("hierarchical"))
    size = np.maximum(x.cp_a2a, 1)
    divides = (size > 1) & (size < x.cp) & (x.cp % size == 0)
    return np.asarray(np.where(grouped, ~divides, size > 1))


def _splits_heads(
    x: Layouts, arch: Architecture, kind: str, ranks: NDArray[Any]
) -> NDArray[np.bool_]:
    """Ulysses splits the heads of a tensor-parallel rank over `ranks`.

    TransformerEngine (AttnFuncWithCPAndQKVOA2A) asks this of queries and of keys and values, which
    it does not repeat; a rank whose tp is above the key/value heads has one of them.
    """
    splits = (x.cp > 1) & (x.cp_kind == CP_KINDS.index(kind))
    if not splits.any():
        return splits
    kinds = [found for b in arch.blocks for found in (b.attention, b.cross_attention) if found]
    counts = [
        count for att in kinds for count in (att.heads, att.heads if att.is_mla else att.kv_heads)
    ]
    even = [np.maximum(count // x.tp, 1) % np.maximum(ranks, 1) == 0 for count in counts]
    return np.asarray(splits & ~_all(even))


def _fits_offload(
    x: Layouts, arch: Architecture, cluster: Cluster, software: Software
) -> list[NDArray[np.bool_]]:
    offloads = x.offload_layers > 0
    return [
        x.offload_layers > -(-arch.layers // x.pp),
        offloads & ((not software.supports.offload) | (x.pp > 1)),
        ((offloads | (x.parameter_offload > 0)) & (cluster.node.host_bytes_per_s is None))
        | ((x.optimizer_offload > 0) & (not _updates_on_host(cluster))),
    ]


def _fits_drives(x: Layouts, cluster: Cluster, software: Software) -> list[NDArray[np.bool_]]:
    drives = np.maximum(x.optimizer_offload, x.parameter_offload) == OFFLOADS.index("nvme")
    return [drives & (not software.supports.nvme_offload), drives & (cluster.node.nvme is None)]


def _excludes_offload(
    x: Layouts, arch: Architecture, software: Software
) -> list[NDArray[np.bool_]]:
    """What the framework's own checks refuse beside activations in host memory."""
    excluded, offloads = software.supports.offload_excludes, x.offload_layers > 0
    captured = (software.host.captured_fraction, software.host.captured_moe_fraction)
    return [
        offloads & (x.recompute > 0) & ("recompute" in excluded),
        offloads & ("graphs" in excluded and max(captured) > 0),
        (x.offload_layers >= arch.layers) & ("all_layers" in excluded),
    ]


def _updates_on_host(cluster: Cluster) -> bool:
    """Whether the server's profile says how fast copies and updates of its host are."""
    known = (cluster.node.host_bytes_per_s, cluster.node.host_adam_parameters_per_s)
    return all(figure is not None for figure in known)


def _has_rounds(x: Layouts, software: Software) -> NDArray[np.bool_]:
    """Whether micro-batches divide into rounds as long as the software takes them.

    megatron/core/pipeline_parallel/schedules.py: rounds of microbatch_group_size_per_vp_stage, pp
    unless given, from pp to all micro-batches. torch/distributed/pipelining/schedules.py: as many
    rounds as pp goes into the micro-batches, one at the least.
    """
    rounds = np.maximum(x.micro_batches // x.pp, 1)
    if software.supports.rounds == "pp":
        return np.asarray(x.micro_batches % x.pp == 0)
    fewer = software.supports.rounds == "any"
    return np.asarray((x.micro_batches % rounds == 0) & ((x.micro_batches >= x.pp) | fewer))


def _misfits_schedule(x: Layouts) -> NDArray[np.bool_]:
    """Schedules of their own number of chunks, ranks or micro-batches."""
    misfits = np.zeros(len(x), dtype=bool)
    for code in np.unique(x.schedule):
        schedule, rows = SCHEDULES[WORDS[code]], x.schedule == code
        wrong = (x.vpp < schedule.fewest_chunks) | (x.vpp > schedule.most_chunks)
        if not schedule.by_default:
            wrong |= (x.pp == 1) | (x.micro_batches < schedule.fewest_micro_batches(x.pp))
        if schedule.even:
            wrong |= (x.pp % 2 != 0) | (x.micro_batches % 2 != 0)
        misfits |= rows & wrong
    return misfits


def _all(columns: list[Any], size: int | None = None) -> NDArray[np.bool_]:
    return np.logical_and.reduce(columns) if columns else np.full(size or 0, True)


def _one_of(column: NDArray[Any], values: list[int]) -> NDArray[np.bool_]:
    return np.isin(column, values)


def _words(
    column: NDArray[Any], words: tuple[str, ...], allowed: tuple[str, ...]
) -> NDArray[np.bool_]:
    table = np.array([word in allowed for word in words])
    return np.asarray(table[column])
