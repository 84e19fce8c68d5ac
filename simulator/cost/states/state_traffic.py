"""Memory traffic around model states in every micro-batch: sums of gradients, casts, copies."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.cost.operators.operations import element_bytes
from simulator.cost.states.state_bytes import PartStates, gradient_bytes, kept_bytes
from simulator.cost.states.state_keys import StateKeys
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import SHARDINGS, Layouts
from simulator.schedules.registry import BREADTH_FIRST, TAKES_ROUNDS
from simulator.software.profile import Software
from simulator.workload.recipe import Recipe

_ZERO2 = SHARDINGS.index("zero2")


def micro_batch_traffic_s(cluster: Cluster, software: Software, parameters: Floats) -> Floats:
    """Seconds of moving every parameter's gradient and weight about in one micro-batch."""
    traffic = parameters * float(software.states.micro_batch_traffic)
    return np.asarray(traffic / _copy_rate(cluster, "optimizer"))


def cast_copies(keys: StateKeys) -> Floats:
    """Bytes of the 16-bit copies that torch.autocast makes of each part's weights, (keys, parts).

    Products read a copy, which autograd keeps for the data gradient, in a compiled block too (the
    partition of AOTAutograd saves it); the look-up in the embedding takes the table as it is, a
    tied head a copy. Frozen weights that are kept in a type of their own are in that of the
    products.
    """
    arch = keys.workload.architecture
    size, states = element_bytes(keys.workload.recipe), keys.per_part
    wider = kept_bytes(keys.workload.recipe, keys.software.states) > size
    cast = states.trained if keys.software.states.frozen is not None else states.parameters
    copies = size * (cast[0] + cast[1])
    copies = np.where(keys.unwrapped & wider, copies, 0.0)
    copies[:, -1] += copies[:, -2] * bool(arch.tied_embeddings and arch.output_rows)
    copies[:, -2] = 0.0
    return copies


def casts_s(keys: StateKeys) -> Floats:
    """Seconds of making these copies once and of casting gradients back, (2, keys, parts)."""
    recipe, states = keys.workload.recipe, keys.software.states
    size, copies = element_bytes(recipe), cast_copies(keys)
    share = keys.per_part.trained.sum(axis=0) / np.maximum(
        keys.per_part.parameters.sum(axis=0), 1.0
    )
    there = copies * (1.0 + kept_bytes(recipe, states) / size)
    back = copies * (1.0 + gradient_bytes(recipe, states) / size) * share
    return np.array([there, back]) / _copy_rate(keys.cluster, "optimizer")


def accumulation_s(
    recipe: Recipe,
    cluster: Cluster,
    software: Software,
    part_states: PartStates,
    once: NDArray[np.bool_],
    unwrapped: NDArray[np.bool_],
) -> Floats:
    """Seconds of casting the first gradients of a step, and of adding up those of a later pass.

    Keys that reduce `once`, with FSDP2's ``_fsdp_param.py``: `to_accumulated_grad_if_needed` reads
    16 bit and writes the type of the reduction, where that is another one;
    `accumulate_unsharded_grad_if_needed` reads the sum and the gradient and writes the sum, as
    autograd does where it is not, and always of replicas that are `unwrapped`. Shape (2, keys,
    parts).
    """
    trained, reduced = (
        part_states.trained[0] + part_states.trained[1],
        part_states.reduce[0] + part_states.reduce[1],
    )
    adds = trained * float(software.states.accumulation_traffic)
    adds = np.where(unwrapped, 3.0 * gradient_bytes(recipe, software.states) * trained, adds)
    traffic = np.array([np.zeros(adds.shape), adds])
    if software.fsdp2.adds_unreduced:
        given = element_bytes(recipe) * trained
        cast = np.where(reduced > given, given + reduced, 0.0)
        whole = np.stack([cast, given + 2.0 * reduced])
        traffic = np.where(once[:, None], whole, traffic)
    return np.asarray(traffic / _copy_rate(cluster, "optimizer"))


def copies_s_per_byte(cluster: Cluster, software: Software) -> Floats:
    """Seconds of copies for every byte that is gathered, gathered again, reduced, and shared so."""
    states = software.states
    copies = np.array(
        [*[software.fsdp2.gather_copies] * 2, states.reduce_copies, states.shared_reduce_copies],
        float,
    )
    return np.asarray(copies / _copy_rate(cluster, "copy"))


def _copy_rate(cluster: Cluster, kind: str) -> float:
    """Bytes per second that large kernels of a class move."""
    kernel = cluster.accelerator.stream[kind]
    return float(kernel.memory_fraction * cluster.accelerator.memory.bandwidth_bytes_per_s)


def round_passes(layouts: Layouts) -> Floats:
    """Passes of a chunk between the last ones of two chunks of a rank."""
    m, takes = layouts.micro_batches, TAKES_ROUNDS[layouts.schedule]
    size = m // layouts.rounds
    return np.where(takes, size, np.where(BREADTH_FIRST[layouts.schedule], m, 1)).astype(float)


def reductions(layouts: Layouts, software: Software, once: NDArray[np.bool_]) -> Floats:
    """Reductions of a rank's gradients in a step, where they are not part of every pass.

    One, one after every micro-batch (zero2), or one after every round of micro-batches that a chunk
    takes without a break. `once`: where they are not reduced after every micro-batch.
    """
    m = layouts.micro_batches / layouts.copies
    every = (layouts.sharding == _ZERO2) & software.states.reduces_every_micro_batch & ~once
    each_round = once & software.fsdp2.reduces_each_round
    return np.where(every, m, np.where(each_round, layouts.rounds, 1.0))
