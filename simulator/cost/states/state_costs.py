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
from simulator.cost.kernels.memory_bound import stream_figures, stream_s
from simulator.cost.operators.matrices import NO_LINEARS, Matrix
from simulator.cost.operators.split_work import step_host_s
from simulator.cost.states.gathered import (
    early_gradients,
    embedding_gradient,
    gathered_bytes,
    step_pieces,
)
from simulator.cost.states.optimizers import newton_schulz_s
from simulator.cost.states.state_bytes import on_rank
from simulator.cost.states.state_collectives import (
    maxima_s,
    norm_s,
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
from simulator.cost.states.state_traffic import (
    accumulation_s,
    cast_copies,
    casts_s,
    micro_batch_traffic_s,
)
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
    """Per key; columns are the distinct ranks of the key's plan.

    What is a property is found when it is first asked for: bounds do without nearly all of them,
    memory without times.
    """

    keys: StateKeys
    state_bytes: Floats
    """Shape (kinds, keys, columns), kinds as in STATE_KINDS."""
    has_experts: NDArray[np.bool_]
    """Whether a distinct rank has routed experts, shape (keys, columns)."""
    keeps_gathered: NDArray[np.bool_]
    """zero2 and zero3 that gather and reduce once per step, shape (keys,)."""
    gathered_bytes: Floats
    """Of the gathered kind, what is in use at each of the MOMENTS of ``memory/moments.py``, shape
    (moments, keys, columns); `state_bytes` has what its pool has reserved."""
    unreduced_bytes: Floats
    """Whole gradients that wait for the last micro-batch, shape (keys, columns): of these where
    parameters stay gathered until then, beside these where later ones are `deferred`."""
    by_block: NDArray[np.bool_]
    """Whether parameters are gathered and gradients reduced part by part, shape (keys,)."""

    def take(self, rows: NDArray[Any]) -> StateCosts:
        """Of some keys, for which alone is found what is asked for then."""
        return StateCosts(
            keys=self.keys.take(rows),
            state_bytes=self.state_bytes[:, rows],
            has_experts=self.has_experts[rows],
            keeps_gathered=self.keeps_gathered[rows],
            gathered_bytes=self.gathered_bytes[:, rows],
            unreduced_bytes=self.unreduced_bytes[rows],
            by_block=self.by_block[rows],
        )

    @property
    def deferred(self) -> NDArray[np.bool_]:
        """Gradients stay whole until the last micro-batch, parameters do not, (keys, 1)."""
        return self.keys.deferred

    @cached_property
    def reduce_s(self) -> Floats:
        """Gradient reduction of one rank, shape (keys, columns); zero where it is done by part."""
        return rank_reduce_s(self.keys)

    @cached_property
    def gather_s(self) -> Floats:
        """Gather of updated parameters (zero1, zero2), shape (keys, columns)."""
        return rank_gather_s(self.keys)

    @cached_property
    def tables_s(self) -> Floats:
        """Sum of the gradients of a word table that first and last stage both hold, (keys,)."""
        return tables_s(self.keys)

    @cached_property
    def maxima_s(self) -> Floats:
        """One reduction of the maxima behind fp8 scales, (keys,)."""
        keys = self.keys
        chunk = keys.parts[:, :, :-2].sum(axis=2) / keys.layouts.vpp[:, None]
        setting = keys.cluster, keys.software, keys.workload.recipe
        return maxima_s(*setting, keys.placement, chunk.max(axis=1))

    @cached_property
    def norm_s(self) -> Floats:
        """Reduction of the gradient norm, (keys,)."""
        return norm_s(self.keys.cluster, self.keys.workload.recipe, self.keys.layouts)

    @cached_property
    def reduce_buckets(self) -> Floats:
        """Buckets of that reduction, shape (keys, columns)."""
        return reduce_buckets(self.keys)

    @cached_property
    def optimizer_s(self) -> Floats:
        """Optimizer step, shape (keys, columns)."""
        keys = self.keys
        host = keys.software.host, keys.layouts.tp, self.by_block, keys.parts
        return _optimizer_s(keys) + step_host_s(*host)

    @cached_property
    def part_gather_s(self) -> Floats:
        """Gather of one part's parameters, shape (keys, parts).

        Where blocks are gathered one by one: zero3, and zero2 of FSDP2.
        """
        return part_gather_s(self.keys)

    @cached_property
    def part_regather_s(self) -> Floats:
        """zero3: gather of them for the backward pass, shape (keys, parts).

        From the ranks that share them after the forward pass; none for FSDP2's root group
        (embedding and head), which stays whole.
        """
        return part_regather_s(self.keys)

    @cached_property
    def part_reduce_s(self) -> Floats:
        """Reduction of one part's gradients, where parts are gathered so; shape (keys, parts)."""
        return part_reduce_s(self.keys)

    @cached_property
    def part_traffic_s(self) -> Floats:
        """Casts, copies and sums of one part in every micro-batch, shape (keys, parts).

        Of its gradients and weights.
        """
        dense, experts = self.keys.per_part.parameters
        return micro_batch_traffic_s(self.keys.cluster, self.keys.software, dense + experts)

    @cached_property
    def part_accumulation_s(self) -> Floats:
        """What one part's gradients are cast and added, shape (2, keys, parts).

        Cast of the first micro-batch; those of a later one added to the ones before.
        """
        keys = self.keys
        setting = keys.workload.recipe, keys.cluster, keys.software
        return accumulation_s(*setting, keys.per_part, keys.once, keys.unwrapped)

    @cached_property
    def cast_copies(self) -> Floats:
        """Bytes of a part's weights as torch.autocast casts them, shape (keys, parts)."""
        return cast_copies(self.keys)

    @cached_property
    def casts_s(self) -> Floats:
        """Seconds of these casts, and of those of their gradients, shape (2, keys, parts)."""
        return casts_s(self.keys)

    @cached_property
    def part_copies_s(self) -> Floats:
        """Copies in and out of flat buffers of one part, shape (3, keys, parts).

        Around its gather, the gather of its backward pass and its reduction.
        """
        return part_copies_s(self.keys)

    @cached_property
    def part_host_s(self) -> Floats:
        """What the host takes longer for a part that is gathered, shape (2, keys, parts).

        Forward and backward.
        """
        return _gathered_host_s(self.keys.software, self.by_block, self.keys.parts.shape[2])

    @cached_property
    def reduced_bytes(self) -> Floats:
        """Gradients that a rank keeps of it, in the type on the wire, shape (keys, columns)."""
        return self.keys.sharded(self.keys.per_part.reduce, ZERO1)

    @cached_property
    def linear_shapes(self) -> Floats:
        """Weights of the trained linears of every distinct rank, shape (keys, columns).

        Each shape once; zero where the software keeps nothing by shape.
        """
        return _linear_shapes(self.keys)

    @cached_property
    def early_gradients(self) -> Floats:
        """Gradients that wait for the optimizer, shape (5, keys, columns).

        Of the head, of the largest block, what sharding leaves of the latter and of head and
        embedding, and the embedding's: what a backward pass has at first, at any time where the
        optimizer steps inside it, after its first block, and only at its end.
        """
        keys = self.keys
        kept = np.where(keys.level >= ZERO2, keys.share, 1.0)
        return early_gradients(
            keys.parts, keys.per_part, keys.workload.architecture, kept, keys.unwrapped
        )

    @cached_property
    def embedding_gradient(self) -> Floats:
        """The embedding's gradient over the whole vocabulary, shape (keys, columns).

        Where tensor-parallel ranks make it and keep their share (torch DTensor).
        """
        keys = self.keys
        return embedding_gradient(keys.parts, keys.workload, keys.software, keys.layouts)

    @cached_property
    def step_pieces(self) -> Floats:
        """What reduction and step allocate in large pieces, shape (keys, columns).

        In pieces larger than any activation.
        """
        return step_pieces(self.keys, self.keys.sharded(self.keys.per_part.trained, ZERO1))

    @cached_property
    def host_step(self) -> Floats:
        """What an optimizer on the host takes and gives, shape (4, keys, columns).

        Bytes of gradients, bytes of weights and parameters of this rank's share, and bytes of the
        states.
        """
        return _host_step(self.keys)

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
    return StateCosts(
        keys=keys,
        state_bytes=_state_bytes(keys, versions, reserved),
        has_experts=on_rank(parts, per_part.parameters[1]) > 0,
        keeps_gathered=keys.once,
        gathered_bytes=in_use,
        unreduced_bytes=unreduced,
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
