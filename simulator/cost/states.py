"""Model states of one rank, and the communication that keeps data-parallel replicas equal.

Priced once per distinct (plan, degrees, sharding) key, for every distinct rank of the plan:
bytes of weights, gradients and optimizer states, and seconds of gradient reduction, parameter
gathering and the optimizer step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.cost.collectives import all_gather_s, all_reduce_s, broadcasts_s
from simulator.cost.kernels import stream_s
from simulator.cost.parameters import expert_parameters, rank_parameters
from simulator.hardware.cluster import Cluster
from simulator.layout.layout import SHARDINGS, Layouts
from simulator.layout.placement import Group, Placement
from simulator.layout.stages import StageTable
from simulator.software import Software, StateBytes
from simulator.workload.architecture import Architecture, MoE
from simulator.workload.recipe import Recipe, Workload

__all__ = ["STATE_KINDS", "StateCosts", "state_costs"]

Floats = NDArray[np.float64]

STATE_KINDS = ("weights", "gradients", "optimizer", "gathered")
"""Kinds of state memory, in the order in which they are added."""

_EIGHT_BIT = 1.0 + 4.0 / 256
"""A moment in 8 bit with one fp32 scale for every 256 values (Dettmers et al. 2022, section 2)."""

_ZERO1, _ZERO2, _ZERO3 = (SHARDINGS.index(word) for word in ("zero1", "zero2", "zero3"))


@dataclass(frozen=True, kw_only=True)
class StateCosts:
    """Per key; columns are the distinct ranks of the key's plan."""

    state_bytes: Floats
    """Shape (kinds, keys, columns), kinds as in STATE_KINDS."""
    reduce_s: Floats
    """Gradient reduction of one rank, shape (keys, columns); zero where zero3 does it by part."""
    gather_s: Floats
    """Gather of updated parameters (zero1, zero2), shape (keys, columns)."""
    reduce_buckets: Floats
    """Buckets of that reduction, shape (keys, columns)."""
    optimizer_s: Floats
    """Optimizer step, shape (keys, columns)."""
    largest_block: Floats
    """Weights of the largest block on one rank (one expert's, for experts), shape (keys,)."""
    keeps_gathered: NDArray[np.bool_]
    """zero3 that gathers and reduces once per step, shape (keys,)."""
    part_gather_s: Floats
    """zero3: gather of one part's parameters, shape (keys, parts)."""
    part_reduce_s: Floats
    """zero3: reduction of one part's gradients, shape (keys, parts)."""
    part_traffic_s: Floats
    """Casts, copies and accumulation of one part's gradients and weights in every micro-batch,
    shape (keys, parts)."""


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
    arch, recipe = workload.architecture, workload.recipe
    size = bytes_per_parameter(recipe, software.states)
    dense = rank_parameters(arch, tp=layouts.tp, pp=layouts.pp, kernels=software.kernels)
    routed = expert_parameters(arch, ep=layouts.ep, etp=layouts.etp)
    parts = table.parts[plan]
    held = _held(parts, dense), _held(parts, routed)
    level = layouts.sharding[:, None]
    share = 1.0 / placement.shard.size[:, None]
    expert_group = _expert_shard(placement)
    expert_share = 1.0 / expert_group.size[:, None]

    def sharded(bytes_: float, least: int) -> Floats:
        """Bytes of one kind of state, divided over the shard group from `least` on."""
        cut = np.where(level >= least, share, 1.0)
        expert_cut = np.where(level >= least, expert_share, 1.0)
        return np.asarray(bytes_ * (held[0] * cut + held[1] * expert_cut))

    gathered = _gathered_bytes(parts, dense + routed, layouts, software, size)
    kinds = (
        sharded(size.weight, _ZERO3),
        sharded(size.gradient, _ZERO2),
        sharded(size.master + size.moments, _ZERO1),
        gathered,
    )
    groups = (placement.shard, expert_group)
    replicas = _replicas(placement)
    reduce_s, gather_s, buckets = (
        np.zeros_like(held[0]),
        np.zeros_like(held[0]),
        np.ones_like(held[0]),
    )
    for count, group, copies in zip(held, groups, replicas, strict=True):
        pieces = _pieces(count * size.reduce, parts, placement, software)
        seconds = _reduce_s(cluster, count * size.reduce / pieces, level, group, copies) * pieces
        reduce_s = reduce_s + np.where((level < _ZERO3) & (count > 0), seconds, 0.0)
        if software.states.broadcasts_parameters:
            seconds = broadcasts_s(cluster, count * size.gather, _wide(group))
        else:
            seconds = all_gather_s(cluster, count * size.gather / pieces, _wide(group)) * pieces
        between = (level >= _ZERO1) & (level < _ZERO3) & (count > 0)
        gather_s = gather_s + np.where(between, seconds, 0.0)
        buckets = np.maximum(buckets, pieces)

    kernel = cluster.accelerator.stream["optimizer"]
    part_gather, part_reduce = np.zeros_like(dense), np.zeros_like(dense)
    for count, group, copies in zip((dense, routed), groups, replicas, strict=True):
        present = (level == _ZERO3) & (count > 0)
        gather = all_gather_s(cluster, count * size.gather, _wide(group))
        reduce = _reduce_s(cluster, count * size.reduce, level, group, copies)
        part_gather = part_gather + np.where(present, gather, 0.0)
        part_reduce = part_reduce + np.where(present, reduce, 0.0)
    return StateCosts(
        state_bytes=np.stack(np.broadcast_arrays(*kinds)),
        reduce_s=reduce_s,
        gather_s=gather_s,
        reduce_buckets=buckets,
        optimizer_s=stream_s(
            moved_bytes=sharded(size.optimizer_traffic, _ZERO1),
            bandwidth_bytes_per_s=float(cluster.accelerator.memory.bandwidth_bytes_per_s),
            memory_fraction=float(kernel.memory_fraction),
            launch_s=float(kernel.launch_s),
        ),
        largest_block=_largest_block(dense, routed, arch, layouts),
        keeps_gathered=_keeps_gathered(layouts, software),
        part_gather_s=part_gather,
        part_reduce_s=part_reduce,
        part_traffic_s=_micro_batch_traffic_s(cluster, software, dense + routed),
    )


def _micro_batch_traffic_s(cluster: Cluster, software: Software, parameters: Floats) -> Floats:
    """Seconds of moving every parameter's gradient and weight about in one micro-batch."""
    kernel = cluster.accelerator.stream["optimizer"]
    rate = kernel.memory_fraction * cluster.accelerator.memory.bandwidth_bytes_per_s
    return np.asarray(parameters * float(software.states.micro_batch_traffic) / rate)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sizes:
    """Bytes per parameter under a recipe."""

    weight: float
    gradient: float
    master: float
    moments: float
    reduce: float
    gather: float
    optimizer_traffic: float


def bytes_per_parameter(recipe: Recipe, states: StateBytes) -> _Sizes:
    """Bytes per parameter of every state: mixed precision as the software does it, or all fp32."""
    whole = recipe.precision in ("fp32", "tf32")
    usual = 4.0 if whole else float(states.moment)
    moments = {"adamw": 2 * usual, "adamw_8bit": 2 * _EIGHT_BIT, "sgd": usual}[recipe.optimizer]
    if whole:
        return _Sizes(weight=4.0, gradient=4.0, master=0.0, moments=moments, reduce=4.0,
                      gather=4.0, optimizer_traffic=16.0 + 2 * moments)  # fmt: skip
    traffic = float(states.optimizer_traffic) - 2 * (2 * usual - moments)
    return _Sizes(weight=float(states.weight), gradient=float(states.gradient),
                  master=float(states.master), moments=moments, reduce=float(states.reduce),
                  gather=float(states.gather), optimizer_traffic=traffic)  # fmt: skip


def _pieces(size_bytes: Floats, parts: Floats, placement: Placement, software: Software) -> Floats:
    """Collectives that a reduction is cut into: buckets that start while the pass still runs."""
    states = software.states
    if states.reduces_by_block:
        return np.maximum(parts[:, :, :-1].sum(axis=2), 1.0)
    ranks = placement.dp.size[:, None].astype(float)
    bucket = np.maximum(float(states.bucket_bytes), float(states.bucket_bytes_per_rank) * ranks)
    return np.maximum(np.ceil(size_bytes / bucket), 1.0)


def _largest_block(dense: Floats, routed: Floats, arch: Architecture, layouts: Layouts) -> Floats:
    """Weights of one block as gradient-accumulation fusion sees them: experts count once."""
    experts = [b.mlp.experts if isinstance(b.mlp, MoE) else 1 for b in arch.blocks]
    largest: Floats = np.zeros(len(layouts))
    for kind, count in enumerate(experts):
        one = routed[:, kind] / np.maximum(count / layouts.ep, 1.0)
        largest = np.maximum(largest, dense[:, kind] + one)
    return largest


def _held(parts: Floats, parameters: Floats) -> Floats:
    """Parameters of every distinct rank: sum over parts in a fixed order, shape (keys, columns)."""
    total: Floats = np.zeros(parts.shape[:2])
    for part in range(parts.shape[2]):
        total = total + parts[:, :, part] * parameters[:, None, part]
    return total


def _wide(group: Group) -> Group:
    """The same group with a trailing axis for columns or parts."""
    return Group(size=group.size[:, None], local=group.local[:, None])


def _expert_shard(placement: Placement) -> Group:
    """Ranks that share the states of the same experts."""
    size = np.minimum(placement.edp.size, placement.shard.size)
    return Group(size=size, local=np.minimum(placement.edp.local, size))


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
    cluster: Cluster, size_bytes: Floats, level: Any, group: Group, copies: Group
) -> Floats:
    """Reduce gradients: all-reduce (ddp), or scatter over the shard group, then its replicas."""
    shard, replicas = _wide(group), _wide(copies)
    everyone = Group(size=shard.size * replicas.size, local=shard.local * replicas.local)
    whole = all_reduce_s(cluster, size_bytes, everyone)
    scattered = all_gather_s(cluster, size_bytes, shard)
    scattered = scattered + all_reduce_s(cluster, size_bytes / shard.size, replicas)
    return np.where(level >= _ZERO1, scattered, whole)


def _gathered_bytes(
    parts: Floats, parameters: Floats, layouts: Layouts, software: Software, size: _Sizes
) -> Floats:
    """zero3 keeps whole what it computes with: the root group, and three copies of one block.

    The current layer, the next one being gathered and the flat buffer it arrives in; the reduced
    gradient of a layer is as large again in the type on the wire. zero2 holds two buckets; where
    only shards stay between steps (FSDP without reshard), whole weights and unreduced gradients.
    """
    blocks = parts[:, :, :-2] > 0
    kinds = parameters[:, None, :-2]
    layer = np.max(np.where(blocks, kinds, 0.0), axis=2) if kinds.shape[2] else 0.0
    root = parts[:, :, -2] * parameters[:, None, -2] + parts[:, :, -1] * parameters[:, None, -1]
    window = size.gather * (2.0 * root + 3.0 * layer) + size.reduce * layer
    level = layouts.sharding[:, None]
    if size.weight == 0.0:
        held = _held(parts, parameters)
        unreduced = np.where(_once_with_pipeline(layouts, software)[:, None], held, layer)
        whole = size.gather * held + size.gradient * unreduced
    else:
        whole = np.full(window.shape, 2.0 * software.states.bucket_bytes)
    kept = _keeps_gathered(layouts, software)[:, None]
    shards_only = np.where(kept, whole, window)
    return np.where(level == _ZERO3, shards_only, np.where(level == _ZERO2, whole, 0.0))


def _keeps_gathered(layouts: Layouts, software: Software) -> NDArray[np.bool_]:
    """Whether zero3 gathers and reduces once per step instead of for every micro-batch."""
    return (layouts.sharding == _ZERO3) & _once_with_pipeline(layouts, software)


def _once_with_pipeline(layouts: Layouts, software: Software) -> NDArray[np.bool_]:
    """Whether parameters stay gathered and gradients unreduced until the last micro-batch."""
    return np.asarray((layouts.pp > 1) & software.states.keeps_gathered_with_pipeline)
