"""Model states of one rank, and the communication that keeps data-parallel replicas equal.

Priced once per distinct (plan, degrees, sharding) key, for every distinct rank of the plan:
bytes of weights, gradients and optimizer states, and seconds of gradient reduction, parameter
gathering and the optimizer step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.cost.collectives.calls import (
    all_gather_s,
    all_reduce_s,
    broadcasts_s,
    reduce_scatter_s,
)
from simulator.cost.collectives.small_reductions import maxima_s, norm_s
from simulator.cost.kernels.memory_bound import stream_figures, stream_s
from simulator.cost.operators.matrices import NO_LINEARS, Matrix, weight_matrices
from simulator.cost.operators.split_work import step_host_s
from simulator.cost.states.gathered import (
    after_forward,
    gathered_bytes,
    gathers_by_block,
    keeps_gathered,
    on_rank,
    released,
    unreduced_bytes,
)
from simulator.cost.states.gradient_pieces import early_gradients, embedding_gradient, step_pieces
from simulator.cost.states.optimizers import newton_schulz_s
from simulator.cost.states.state_bytes import PartStates, part_states
from simulator.cost.states.state_traffic import (
    accumulation_s,
    copies_s_per_byte,
    micro_batch_traffic_s,
)
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import SHARDINGS, Layouts
from simulator.layout.placement import Group, Placement
from simulator.layout.stages import StageTable
from simulator.software.profile import Software
from simulator.workload.architecture import Architecture, Block, MoE
from simulator.workload.recipe import Workload

__all__ = ["STATE_KINDS", "StateCosts", "state_costs"]


STATE_KINDS = ("weights", "gradients", "optimizer", "gathered")
"""Kinds of state memory, in the order in which they are added."""

_ZERO1, _ZERO2, _ZERO3 = (SHARDINGS.index(word) for word in ("zero1", "zero2", "zero3"))


@dataclass(frozen=True, kw_only=True)
class StateCosts:
    """Per key; columns are the distinct ranks of the key's plan."""

    state_bytes: Floats
    """Shape (kinds, keys, columns), kinds as in STATE_KINDS."""
    reduce_s: Floats
    """Gradient reduction of one rank, shape (keys, columns); zero where it is done by part."""
    gather_s: Floats
    """Gather of updated parameters (zero1, zero2), shape (keys, columns)."""
    tables_s: Floats
    """Sum of the gradients of a word table that the first and the last stage both hold, (keys,)."""
    maxima_s: Floats
    """One reduction of the maxima behind fp8 scales, (keys,)."""
    norm_s: Floats
    """Reduction of the gradient norm, (keys,)."""
    reduce_buckets: Floats
    """Buckets of that reduction, shape (keys, columns)."""
    optimizer_s: Floats
    """Optimizer step, shape (keys, columns)."""
    linear_shapes: Floats
    """Weights of the trained linears of every distinct rank, each shape once, shape (keys,
    columns); zero where the software keeps nothing by shape."""
    has_experts: NDArray[np.bool_]
    """Whether a distinct rank has routed experts, shape (keys, columns)."""
    keeps_gathered: NDArray[np.bool_]
    """zero2 and zero3 that gather and reduce once per step, shape (keys,)."""
    part_gather_s: Floats
    """Gather of one part's parameters where blocks are gathered one by one: zero3, and zero2 of
    FSDP2; shape (keys, parts)."""
    part_regather_s: Floats
    """zero3: gather of them for the backward pass, from the ranks that share them after the forward
    pass; none for FSDP2's root group (embedding and head), which stays whole. (keys, parts)."""
    part_reduce_s: Floats
    """Reduction of one part's gradients, where parts are gathered so; shape (keys, parts)."""
    early_gradients: Floats
    """Gradients of the head, of the largest block, what sharding leaves of the latter and of head
    and embedding, and the embedding's, shape (5, keys, columns): what a backward pass has at first,
    at any time where the optimizer steps inside it, after its first block, and only at its end."""
    embedding_gradient: Floats
    """The embedding's gradient over the whole vocabulary, where tensor-parallel ranks make it and
    keep their share (torch DTensor), shape (keys, columns)."""
    step_pieces: Floats
    """What reduction and step allocate in pieces larger than any activation, shape (keys,
    columns)."""
    gathered_bytes: Floats
    """Of the gathered kind, what is in use at each of the MOMENTS of ``memory/moments.py``, shape
    (moments, keys, columns); `state_bytes` has what its pool has reserved."""
    unreduced_bytes: Floats
    """Of these, whole gradients that wait for the last micro-batch, shape (keys, columns)."""
    host_step: Floats
    """What an optimizer on the host takes and gives: bytes of gradients, bytes of weights and
    parameters of this rank's share, and bytes of the states, shape (4, keys, columns)."""
    part_traffic_s: Floats
    """Casts, copies and accumulation of one part's gradients and weights in every micro-batch,
    shape (keys, parts)."""
    part_accumulation_s: Floats
    """What one part's gradients of the first micro-batch are cast, and what those of a later one
    are added to the ones before, shape (2, keys, parts)."""
    part_copies_s: Floats
    """Copies in and out of flat buffers around one part's gather, the gather of its backward pass
    and its reduction, shape (3, keys, parts)."""
    part_host_s: Floats
    """What the host takes longer for a part that is gathered, forward and backward, shape (2, keys,
    parts)."""
    by_block: NDArray[np.bool_]
    """Whether parameters are gathered and gradients reduced part by part, shape (keys,)."""


def state_costs(
    workload: Workload,
    cluster: Cluster,
    software: Software,
    layouts: Layouts,
    placement: Placement,
    table: StageTable,
    plan: NDArray[Any],
) -> StateCosts:
    """Price states for one layout of each distinct key; `plan` is each layout's row of `table`."""
    either = cluster.accelerator.fp8_either_layout
    each = part_states(workload, software, layouts, either_layout=either)
    parts = table.parts[plan]
    level = layouts.sharding[:, None]
    share = 1.0 / placement.shard.size[:, None]
    expert_group = _expert_shard(placement)
    expert_share = 1.0 / expert_group.size[:, None]

    def sharded(per_part: Floats, least: int) -> Floats:
        """Hold of one kind of state, divided over the shard group from `least` on."""
        cut = np.where(level >= least, share, 1.0)
        expert_cut = np.where(level >= least, expert_share, 1.0)
        return np.asarray(
            on_rank(parts, per_part[0]) * cut + on_rank(parts, per_part[1]) * expert_cut
        )

    gathered, in_use = gathered_bytes(parts, each, layouts, software)
    kinds = (
        sharded(each.weights, _ZERO3) * table.versions[plan],
        sharded(each.gradients, _ZERO2),
        sharded(each.optimizer, _ZERO1),
        gathered,
    )
    groups = (placement.shard, expert_group)
    by_block = gathers_by_block(layouts, each, software)
    once = keeps_gathered(layouts, software)
    replicas = _replicas(placement)
    linked = [[cluster.links_of(kind + of) for of in ("", "_copies")] for kind in ("dp", "edp")]
    shape = kinds[0].shape
    reduce_s, gather_s, buckets = np.zeros(shape), np.zeros(shape), np.ones(shape)
    returned = np.where(once[:, None], each.gather, each.update)
    for reduced, updated, group, copies, links in zip(
        each.reduce, returned, groups, replicas, linked, strict=True
    ):
        out, back = on_rank(parts, reduced), on_rank(parts, updated)
        pieces = _pieces(out, parts, placement, software)
        least = _ZERO3 if software.states.reduces_everywhere else _ZERO1
        seconds = _reduce_s(links, out / pieces, level >= least, group, copies) * pieces
        reduce_s = reduce_s + np.where(~by_block & (out > 0), seconds, 0.0)
        if software.states.broadcasts_parameters:
            seconds = broadcasts_s(links[0], back, _wide(group))
        else:
            seconds = all_gather_s(links[0], back / pieces, _wide(group)) * pieces
        between = (level >= _ZERO1) & ~by_block & (back > 0)
        gather_s = gather_s + np.where(between, seconds, 0.0)
        buckets = np.maximum(buckets, pieces)

    part_gather, part_reduce = np.zeros_like(each.reduce[0]), np.zeros_like(each.reduce[0])
    part_regather = np.zeros_like(part_gather)
    copied = np.zeros((3, *part_gather.shape))
    later, resharded = after_forward(layouts, placement, groups), by_block & (level == _ZERO3)
    for reduced, whole, group, nearer, copies, links in zip(
        each.reduce, each.gather, groups, later, replicas, linked, strict=True
    ):
        gather = all_gather_s(links[0], whole, _wide(group))
        again = all_gather_s(links[0], whole, _wide(nearer))
        reduce = _reduce_s(links, reduced, level >= _ZERO1, group, copies)
        part_gather = part_gather + np.where(by_block & (whole > 0), gather, 0.0)
        part_regather = part_regather + np.where(resharded & (whole > 0), again, 0.0)
        part_reduce = part_reduce + np.where(by_block & (reduced > 0), reduce, 0.0)
        apart = by_block | once[:, None]
        copied[0] += np.where(apart & (_wide(group).size > 1), whole, 0.0)
        copied[1] += np.where(resharded & (_wide(nearer).size > 1), whole, 0.0)
        copied[2] += np.where(placement.dp.size[:, None] > 1, reduced, 0.0)
    if (
        each.shards_only or not software.states.weight
    ):  # the root group, embedding and head, stays whole for the backward pass
        part_regather[:, -2:] = 0.0
        copied[1][:, -2:] = 0.0
    elif float(software.states.live_parameters):
        part_regather = part_regather * released(parts, each, software).max(axis=1)[:, None]
    return StateCosts(
        state_bytes=np.stack(np.broadcast_arrays(*kinds)),
        reduce_s=reduce_s,
        gather_s=gather_s,
        tables_s=_tables_s(workload.architecture, cluster, each, layouts, placement),
        maxima_s=maxima_s(
            cluster,
            software,
            workload.recipe,
            placement,
            (parts[:, :, :-2].sum(axis=2) / layouts.vpp[:, None]).max(axis=1),
        ),
        norm_s=norm_s(cluster, workload.recipe, layouts),
        reduce_buckets=buckets,
        optimizer_s=_optimizer_s(workload, cluster, software, each, sharded)
        + step_host_s(software.host, layouts.tp, by_block[:, 0], parts),
        linear_shapes=_linear_shapes(workload, software, layouts, parts),
        has_experts=on_rank(parts, each.parameters[1]) > 0,
        keeps_gathered=once,
        part_gather_s=part_gather,
        part_regather_s=part_regather,
        part_reduce_s=part_reduce,
        early_gradients=early_gradients(
            parts, each, workload.architecture, np.where(level >= _ZERO2, share, 1.0)
        ),
        embedding_gradient=embedding_gradient(parts, workload, software, layouts),
        step_pieces=step_pieces(parts, workload, software, layouts, sharded(each.trained, _ZERO1)),
        gathered_bytes=in_use,
        unreduced_bytes=unreduced_bytes(parts, each, layouts, software),
        host_step=np.stack(
            [
                sharded(x, _ZERO1)
                for x in (each.gradients, each.update, each.trained, each.optimizer)
            ]
        ),
        part_traffic_s=micro_batch_traffic_s(
            cluster, software, each.parameters[0] + each.parameters[1]
        ),
        part_accumulation_s=accumulation_s(workload.recipe, cluster, software, each, once),
        part_copies_s=copied * copies_s_per_byte(cluster, software)[:, None, None],
        part_host_s=_gathered_host_s(software, by_block[:, 0], parts.shape[2]),
        by_block=by_block[:, 0],
    )


def _tables_s(
    arch: Architecture, cluster: Cluster, each: PartStates, layouts: Layouts, placement: Placement
) -> Floats:
    """All-reduce between the stages that hold the word table, after all other reductions.

    A tied head has a copy, and so have layers that predict ahead (Megatron-Core,
    distributed/finalize_model_grads.py, _allreduce_word_embedding_grads).
    """
    shared = arch.tied_embeddings or any(kind.predicts_ahead for kind in arch.blocks)
    table = each.reduce[0, :, len(arch.blocks)] * shared
    pair = Group(size=np.full(len(layouts), 2), local=np.minimum(placement.pp.local, 2))
    seconds = all_reduce_s(cluster.links_of("pp"), table, pair)
    return np.where((layouts.pp > 1) & (table > 0), seconds, 0.0)


def _optimizer_s(
    workload: Workload,
    cluster: Cluster,
    software: Software,
    each: PartStates,
    sharded: Callable[[Floats, int], Floats],
) -> Floats:
    """Seconds of the optimizer step of every distinct rank: memory traffic, and Muon's products.

    Ranks that share the optimizer states share its work; matrices stay whole and are dealt out.
    """
    figures = stream_figures(cluster.accelerator, "optimizer")
    seconds = stream_s(moved_bytes=sharded(each.traffic, _ZERO1), **figures)
    if workload.recipe.optimizer != "muon":
        return seconds
    products_s = newton_schulz_s(each.matrices, each.trained, cluster, software)
    return np.asarray(seconds + sharded(products_s, _ZERO1))


def _gathered_host_s(software: Software, by_block: NDArray[np.bool_], parts: int) -> Floats:
    """Host time of gathering parts, where the host waits for kernels; both ends are one part."""
    host = software.host
    ways = np.array([host.gathered_block_forward_s, host.gathered_block_backward_s], float)
    share = np.where(np.arange(parts) < parts - 2, 1.0, 0.5)
    waits = by_block[:, None] & host.waits_for_kernels
    return np.asarray(ways[:, None, None] * np.where(waits, share, 0.0))


def _pieces(size_bytes: Floats, parts: Floats, placement: Placement, software: Software) -> Floats:
    """Collectives that a reduction is cut into: buckets that start while the pass still runs."""
    states = software.states
    if states.reduces_by_block:
        return np.maximum(parts[:, :, :-1].sum(axis=2), 1.0)
    ranks = placement.dp.size[:, None].astype(float)
    bucket = np.maximum(float(states.bucket_bytes), float(states.bucket_bytes_per_rank) * ranks)
    return np.maximum(np.ceil(size_bytes / bucket), 1.0)


def _linear_shapes(
    workload: Workload, software: Software, layouts: Layouts, parts: Floats
) -> Floats:
    """Weights of a rank's linears as gradient-accumulation fusion sees them: each shape once.

    Blocks with equal attention share its shapes, as do those with equal MLPs; of the experts one
    counts. Transformer Engine, pytorch/module/base.py, get_dummy_wgrad.
    """
    found: Floats = np.zeros(parts.shape[:2])
    arch, seen = workload.architecture, dict[tuple[object, int], tuple[Floats, Any]]()
    none = not float(software.allocator.dummy_gradient_copies) or workload.recipe.lora_rank
    if none or arch.traced is not None:
        return found
    matrices = weight_matrices(
        arch,
        tp=layouts.tp,
        pp=layouts.pp,
        ep=layouts.ep,
        etp=layouts.etp,
        kernels=software.kernels,
    )
    for part, kind in enumerate(arch.blocks):
        if kind.frozen:
            continue
        sizes: dict[object, Floats] = {}
        for w in matrices:
            if w.part == part and w.name not in NO_LINEARS:
                module = kind.mlp if w.name in ("gate", "up", "down") else kind.attention
                one = sizes.get(module, np.zeros(len(layouts)))
                sizes[module] = one + np.where(
                    _as_experts(w, kind, layouts), 0.0, w.rows * w.columns
                )
        for shapes, size in sizes.items():
            key, here = (shapes, kind.width or arch.hidden), parts[:, :, part] > 0
            seen[key] = (size, here | seen[key][1] if key in seen else here)
    for size, here in seen.values():
        found = found + np.where(here, size[:, None], 0.0)
    return found


def _as_experts(matrix: Matrix, kind: Block, layouts: Layouts) -> Any:
    """Whether a matrix of the shared experts has the shape of a routed one's."""
    if not isinstance(kind.mlp, MoE) or matrix.routed or matrix.name not in ("gate", "up", "down"):
        return False
    return kind.mlp.shared_ffn_hidden / layouts.tp == kind.mlp.ffn_hidden / layouts.etp


def _wide(group: Group) -> Group:
    """The same group with a trailing axis for columns or parts."""
    return Group(size=group.size[:, None], local=group.local[:, None])


def _expert_shard(placement: Placement) -> Group:
    """Ranks that share the states of the same experts: as many replicas of them as of the rest."""
    replicas = np.maximum(placement.dp.size // placement.shard.size, 1)
    size = np.maximum(placement.edp.size // replicas, 1)
    return Group(size=size, local=np.gcd(placement.edp.local, size))


def _replicas(placement: Placement) -> tuple[Group, Group]:
    """Groups that hold the same shard, for dense and expert parameters (hybrid sharding)."""
    shard, expert = placement.shard, _expert_shard(placement)
    return tuple(
        Group(
            size=np.maximum(whole.size // part.size, 1),
            local=np.maximum(whole.local // part.local, 1),
        )
        for whole, part in ((placement.dp, shard), (placement.edp, expert))
    )  # type: ignore[return-value]


def _reduce_s(
    links: list[Cluster], size_bytes: Floats, scatters: Any, group: Group, copies: Group
) -> Floats:
    """Reduce gradients: all-reduce (ddp), or scatter over the shard group, then its replicas.

    `links` are those of the first two, and of the replicas.
    """
    shard, replicas = _wide(group), _wide(copies)
    everyone = Group(size=shard.size * replicas.size, local=shard.local * replicas.local)
    whole = all_reduce_s(links[0], size_bytes, everyone)
    scattered = reduce_scatter_s(links[0], size_bytes, shard)
    scattered = scattered + all_reduce_s(links[1], size_bytes / shard.size, replicas)
    return np.where(scatters, scattered, whole)
