"""Model states of one rank, and the communication that keeps data-parallel replicas equal.

Priced once per distinct (plan, degrees, sharding) key, for every distinct rank of the plan:
bytes of weights, gradients and optimizer states, and seconds of gradient reduction, parameter
gathering and the optimizer step.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.cost.collectives.small_reductions import maxima_s, norm_s
from simulator.cost.kernels.memory_bound import stream_figures, stream_s
from simulator.cost.operators.matrices import NO_LINEARS, Matrix
from simulator.cost.operators.split_work import step_host_s
from simulator.cost.states.gathered import gathered_bytes
from simulator.cost.states.gradient_pieces import early_gradients, embedding_gradient, step_pieces
from simulator.cost.states.optimizers import newton_schulz_s
from simulator.cost.states.state_bytes import on_rank
from simulator.cost.states.state_collectives import (
    part_copies_s,
    part_gather_s,
    part_reduce_s,
    part_regather_s,
    rank_gather_s,
    rank_reduce_s,
    reduce_buckets,
    tables_s,
)
from simulator.cost.states.state_keys import ZERO1, ZERO2, ZERO3, StateKeys, state_keys
from simulator.cost.states.state_traffic import accumulation_s, micro_batch_traffic_s
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import Layouts
from simulator.layout.placement import Placement
from simulator.records import dataclass
from simulator.software.profile import Software
from simulator.workload.architecture import Block, MoE
from simulator.workload.recipe import Workload

STATE_KINDS = ("weights", "gradients", "optimizer", "gathered")
"""Kinds of state memory, in the order in which they are added."""


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
    reduced_bytes: Floats
    """Gradients that a rank keeps of it, in the type on the wire, shape (keys, columns)."""
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

    @cached_property
    def longest_optimizer_s(self) -> Floats:
        """Optimizer step of the rank that takes longest, (keys,); asked for with every table."""
        return np.asarray(self.optimizer_s.max(axis=1))


def state_costs(
    workload: Workload,
    cluster: Cluster,
    software: Software,
    layouts: Layouts,
    placement: Placement,
    *,
    parts: Floats,
    versions: Floats,
) -> StateCosts:
    """Price states for one layout of each distinct key.

    `parts` is what every distinct rank holds, shape (keys, columns, parts), `versions` how many
    versions of its weights it keeps, shape (keys, columns).
    """
    keys = state_keys(workload, cluster, software, layouts, placement, parts)
    per_part = keys.per_part
    reserved, in_use, unreduced = gathered_bytes(keys)
    by_block = keys.by_block[:, 0]
    chunk = (parts[:, :, :-2].sum(axis=2) / layouts.vpp[:, None]).max(axis=1)
    stepped = keys.sharded(per_part.trained, ZERO1)
    kept = np.where(keys.level >= ZERO2, keys.share, 1.0)
    parameters = per_part.parameters[0] + per_part.parameters[1]
    return StateCosts(
        state_bytes=_state_bytes(keys, versions, reserved),
        reduce_s=rank_reduce_s(keys),
        gather_s=rank_gather_s(keys),
        tables_s=tables_s(keys),
        maxima_s=maxima_s(cluster, software, workload.recipe, placement, chunk),
        norm_s=norm_s(cluster, workload.recipe, layouts),
        reduced_bytes=keys.sharded(per_part.reduce, ZERO1),
        reduce_buckets=reduce_buckets(keys),
        optimizer_s=_optimizer_s(keys) + step_host_s(software.host, layouts.tp, by_block, parts),
        linear_shapes=_linear_shapes(keys),
        has_experts=on_rank(parts, per_part.parameters[1]) > 0,
        keeps_gathered=keys.once,
        part_gather_s=part_gather_s(keys),
        part_regather_s=part_regather_s(keys),
        part_reduce_s=part_reduce_s(keys),
        early_gradients=early_gradients(parts, per_part, workload.architecture, kept),
        embedding_gradient=embedding_gradient(parts, workload, software, layouts),
        step_pieces=step_pieces(keys, stepped),
        gathered_bytes=in_use,
        unreduced_bytes=unreduced,
        host_step=_host_step(keys),
        part_traffic_s=micro_batch_traffic_s(cluster, software, parameters),
        part_accumulation_s=accumulation_s(workload.recipe, cluster, software, per_part, keys.once),
        part_copies_s=part_copies_s(keys),
        part_host_s=_gathered_host_s(software, by_block, parts.shape[2]),
        by_block=by_block,
    )


def _state_bytes(keys: StateKeys, versions: Floats, gathered: Floats) -> Floats:
    """Bytes of STATE_KINDS."""
    per_part = keys.per_part
    kinds = (
        keys.sharded(per_part.weights, ZERO3) * versions,
        keys.sharded(per_part.gradients, ZERO2),
        keys.sharded(per_part.optimizer, ZERO1),
        gathered,
    )
    return np.stack(np.broadcast_arrays(*kinds))


def _host_step(keys: StateKeys) -> Floats:
    """What an optimizer on the host takes and gives, shape (4, keys, columns)."""
    per_part = keys.per_part
    moved = (per_part.gradients, per_part.update, per_part.trained, per_part.optimizer)
    return np.stack([keys.sharded(x, ZERO1) for x in moved])


def _optimizer_s(keys: StateKeys) -> Floats:
    """Seconds of the optimizer step of every distinct rank: memory traffic, and Muon's products.

    Ranks that share the optimizer states share its work; matrices stay whole and are dealt out.
    """
    per_part = keys.per_part
    figures = stream_figures(keys.cluster.accelerator, "optimizer")
    seconds = stream_s(moved_bytes=keys.sharded(per_part.traffic, ZERO1), **figures)
    if keys.workload.recipe.optimizer != "muon":
        return seconds
    products_s = newton_schulz_s(per_part.matrices, per_part.trained, keys.cluster, keys.software)
    return np.asarray(seconds + keys.sharded(products_s, ZERO1))


def _gathered_host_s(software: Software, by_block: NDArray[np.bool_], parts: int) -> Floats:
    """Host time of gathering parts, where the host waits for kernels; both ends are one part."""
    host = software.host
    ways = np.array(
        [host.distributed.gathered_block_forward_s, host.distributed.gathered_block_backward_s],
        float,
    )
    share = np.where(np.arange(parts) < parts - 2, 1.0, 0.5)
    waits = by_block[:, None] & host.waits_for_kernels
    return np.asarray(ways[:, None, None] * np.where(waits, share, 0.0))


def _linear_shapes(keys: StateKeys) -> Floats:
    """Weights of a rank's linears as gradient-accumulation fusion sees them: each shape once.

    Blocks with equal attention share its shapes, as do those with equal MLPs; of the experts one
    counts. Transformer Engine, pytorch/module/base.py, get_dummy_wgrad.
    """
    parts, layouts, arch = keys.parts, keys.layouts, keys.workload.architecture
    weights: Floats = np.zeros(parts.shape[:2])
    seen: dict[tuple[object, int], tuple[Floats, Any]] = {}
    copies = float(keys.software.allocator.dummy_gradient_copies)
    none = not copies or keys.workload.recipe.lora_rank
    if none or arch.traced is not None:
        return weights
    for part, kind in enumerate(arch.blocks):
        if not kind.trained:
            continue
        sizes: dict[object, Floats] = {}
        for w in keys.matrices:
            if w.part == part and w.name not in NO_LINEARS:
                module = kind.mlp if w.name in ("gate", "up", "down") else kind.attention
                so_far = sizes.get(module, np.zeros(len(layouts)))
                sizes[module] = so_far + np.where(
                    _as_experts(w, kind, layouts), 0.0, w.rows * w.columns
                )
        for shapes, size in sizes.items():
            key, here = (shapes, kind.width or arch.hidden), parts[:, :, part] > 0
            seen[key] = (size, here | seen[key][1] if key in seen else here)
    for size, here in seen.values():
        weights = weights + np.where(here, size[:, None], 0.0)
    return weights


def _as_experts(matrix: Matrix, kind: Block, layouts: Layouts) -> Any:
    """Whether a matrix of the shared experts has the shape of a routed one's."""
    if not isinstance(kind.mlp, MoE) or matrix.routed or matrix.name not in ("gate", "up", "down"):
        return False
    return kind.mlp.shared_ffn_hidden / layouts.tp == kind.mlp.ffn_hidden / layouts.etp
