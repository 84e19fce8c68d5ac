"""Which ranks share the states of dense and of expert parameters, and when, told apart once.

``torch.distributed.fsdp.fully_shard``, `reshard_after_forward` as a number: every rank keeps its
share of a block among so many adjacent ranks until the backward pass gathers it from these. hpZ of
ZeRO++ (Wang et al. 2023) does the same with a secondary copy.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.cost.operators.matrices import Matrix, weight_matrices
from simulator.cost.states.state_bytes import PartStates, on_rank, part_states
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import SHARDINGS, Layouts
from simulator.layout.placement import Group, Placement
from simulator.records import dataclass
from simulator.software.profile import Software
from simulator.workload.recipe import Workload

DDP, ZERO1, ZERO2, ZERO3 = (SHARDINGS.index(x) for x in ("ddp", "zero1", "zero2", "zero3"))


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedStates:
    """Dense or expert parameters; bytes of shape (keys, parts), groups of shape (keys, 1)."""

    reduce: Floats
    """Gradients of every part in the type on the wire."""
    gather: Floats
    """Whole weights of every part in the type on the wire."""
    update: Floats
    """Weights that an optimizer step sends back."""
    ranks: Group
    """Ranks that share one copy of the states."""
    nearer_ranks: Group
    """Ranks that share them between a forward and its backward pass."""
    copies: Group
    """Ranks that hold the same share (hybrid sharding)."""
    links: Cluster
    """Links of the ranks that share."""
    copy_links: Cluster
    """Links of the copies."""


@dataclass(frozen=True, kw_only=True)
class StateKeys:
    """Layouts whose states are priced, one of each distinct key, with all that prices read."""

    workload: Workload
    cluster: Cluster
    software: Software
    layouts: Layouts
    placement: Placement
    parts: Floats
    """What every distinct rank holds, shape (keys, columns, parts)."""
    per_part: PartStates
    """States of every part."""
    kinds: tuple[SharedStates, SharedStates]
    """Dense and expert parameters."""
    by_block: NDArray[np.bool_]
    """Whether parameters are gathered and gradients reduced part by part, (keys, 1)."""
    once: NDArray[np.bool_]
    """Whether they are gathered and reduced once per step, (keys,)."""

    @cached_property
    def matrices(self) -> list[Matrix]:
        """Weight matrices of every part on one rank; none are known of a traced model."""
        layouts = self.layouts
        return weight_matrices(
            self.workload.architecture,
            tp=layouts.tp,
            pp=layouts.pp,
            ep=layouts.ep,
            etp=layouts.etp,
            kernels=self.software.kernels,
        )

    @cached_property
    def unwrapped(self) -> NDArray[np.bool_]:
        """Replicas that nothing wraps, (keys, 1)."""
        return unwrapped(self.layouts, self.software)[:, None]

    @property
    def deferred(self) -> NDArray[np.bool_]:
        """Gathered block by block, with gradients whole until the last micro-batch, (keys, 1)."""
        once_a_step = not self.software.states.reduces_every_micro_batch
        return self.by_block & self.per_part.shards_only & once_a_step

    @property
    def level(self) -> NDArray[Any]:
        """Index into SHARDINGS, shape (keys, 1)."""
        return self.layouts.sharding[:, None]

    @property
    def share(self) -> Floats:
        """Share of the dense states that a rank keeps where they are sharded, (keys, 1)."""
        return np.asarray(1.0 / self.kinds[0].ranks.size)

    def take(self, rows: NDArray[Any]) -> StateKeys:
        """Some of the keys."""
        setting = self.workload, self.cluster, self.software
        return state_keys(*setting, self.layouts[rows], self.placement.take(rows), self.parts[rows])

    def sharded(self, per_part: Floats, least: int) -> Floats:
        """Hold of one kind of state, divided over the ranks that share from level `least` on.

        `per_part` has shape (2, keys, parts), dense and expert; the result (keys, columns).
        """
        cut, expert_cut = (
            np.where(self.level >= least, 1.0 / kind.ranks.size, 1.0) for kind in self.kinds
        )
        return np.asarray(
            on_rank(self.parts, per_part[0]) * cut + on_rank(self.parts, per_part[1]) * expert_cut
        )


def unwrapped(layouts: Layouts, software: Software) -> NDArray[np.bool_]:
    """Replicas that nothing wraps: lone ones that FSDP2 leaves, all under autocast, (layouts,)."""
    alone = layouts.dp * layouts.cp == 1
    bare = alone & (software.fsdp2.lone_replica != "wrapped")
    return np.asarray(bare | software.states.autocasts)


def as_wrapped(layouts: Layouts, software: Software) -> Layouts:
    """Layouts as their states are kept: a replica that nothing wraps shares nothing."""
    bare = unwrapped(layouts, software)
    if not bare.any():
        return layouts
    return replace(layouts, sharding=np.where(bare, DDP, layouts.sharding))


def state_keys(
    workload: Workload,
    cluster: Cluster,
    software: Software,
    layouts: Layouts,
    placement: Placement,
    parts: Floats,
) -> StateKeys:
    """Tell dense from expert parameters and find who shares either; `parts` as in StateKeys."""
    either, once = cluster.accelerator.fp8_either_layout, _keeps_gathered(layouts, software)
    per_part = part_states(workload, software, layouts, either_layout=either)
    groups = (placement.shard, _expert_shard(placement))
    nearer = _after_forward(layouts, placement, groups)
    kinds = [
        SharedStates(
            reduce=per_part.reduce[i],
            gather=per_part.gather[i],
            update=per_part.update[i],
            ranks=_wide(groups[i]),
            nearer_ranks=_wide(nearer[i]),
            copies=_wide(_copies(whole, groups[i])),
            links=cluster.links_of(name),
            copy_links=cluster.links_of(f"{name}_copies"),
        )
        for i, (name, whole) in enumerate((("dp", placement.dp), ("edp", placement.edp)))
    ]
    return StateKeys(
        workload=workload,
        cluster=cluster,
        software=software,
        layouts=layouts,
        placement=placement,
        parts=parts,
        per_part=per_part,
        kinds=(kinds[0], kinds[1]),
        by_block=_gathers_by_block(layouts, per_part, once),
        once=once,
    )


def _after_forward(
    layouts: Layouts, placement: Placement, groups: tuple[Group, Group]
) -> tuple[Group, Group]:
    """Ranks that share parameters between a forward and its backward pass.

    `groups` are those that share them otherwise, of dense and of expert parameters.
    """
    fewer = layouts.reshard_after_forward > 0
    found = []
    for whole in groups:
        size = np.where(fewer, np.minimum(placement.reshard.size, whole.size), whole.size)
        found.append(Group(size=size, local=np.gcd(whole.local, size)))
    return found[0], found[1]


def _gathers_by_block(
    layouts: Layouts, states: PartStates, once: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Whether every micro-batch gathers parameters and reduces gradients block by block, (keys, 1).

    zero3 does; so does zero2 where only shards stay between passes: FSDP2 without resharding keeps
    parameters from the forward to the backward pass of a micro-batch and not beyond it.
    """
    blocks = (layouts.sharding == ZERO3) | ((layouts.sharding == ZERO2) & states.shards_only)
    return np.asarray(blocks & ~once)[:, None]


def _keeps_gathered(layouts: Layouts, software: Software) -> NDArray[np.bool_]:
    """Whether parameters stay gathered and gradients unreduced until the last micro-batch.

    zero2 and zero3 then gather and reduce once per step and differ in nothing.
    """
    once = (layouts.pp > 1) & software.fsdp2.keeps_gathered_with_pipeline
    return np.asarray(once & (layouts.sharding >= ZERO2))


def _expert_shard(placement: Placement) -> Group:
    """Ranks that share the states of the same experts: as many replicas of them as of the rest."""
    replicas = np.maximum(placement.dp.size // placement.shard.size, 1)
    size = np.maximum(placement.edp.size // replicas, 1)
    return Group(size=size, local=np.gcd(placement.edp.local, size))


def _copies(whole: Group, shard: Group) -> Group:
    """Ranks of `whole` that hold the same shard (hybrid sharding)."""
    return Group(
        size=np.maximum(whole.size // shard.size, 1),
        local=np.maximum(whole.local // shard.local, 1),
    )


def _wide(group: Group) -> Group:
    """The same group with a trailing axis for columns or parts."""
    return Group(size=group.size[:, None], local=group.local[:, None])
