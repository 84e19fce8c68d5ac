"""Rings: every member sends to the next; ``n - 1`` steps, twice that for an all-reduce."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.cost.collectives.nccl.algorithm import Algorithm, Belief, CallShape, Tuner
from simulator.hardware.fabric import CollectiveLibrary


def _belief(tuner: Tuner, protocol: str) -> Belief:
    tables, library = tuner.tables, tuner.library
    rate = tuner.bus
    if protocol == "ll":
        rate = np.minimum(tuner.ll_ceiling(), rate * tables.ll_fraction)
    elif protocol == "ll128":
        of_release = library.releases[library.release].ring_ll128_bytes_per_s
        rows = {**tables.ring_ll128_bytes_per_s, **of_release}
        rate = np.minimum(tables.ll128_fraction * rate, tuner.channels * tuner.by_nodes(rows))
    far_s = np.where(
        tuner.alone & tuner.crosses,
        float(getattr(library.tree_hop_s["network"], protocol)),
        float(getattr(library.ring_hop_s["network"], protocol)),
    )
    post_s = tuner.post_s * (tables.simple_posts if protocol == "simple" else 1.0)
    near_s = tuner.near_hop_s(library.ring_hop_s, protocol)
    held_s = np.where(tuner.crosses, np.maximum(near_s, post_s), near_s)
    base_s = float(getattr(library.ring_base_s, protocol))
    near_steps = tuner.steps - tuner.far_steps
    latency_s = np.asarray(base_s + near_steps * held_s + tuner.far_steps * far_s)
    if protocol == "simple" and tuner.all_reduce:
        latency_s = latency_s * _plateau(tuner)
    return Belief(latency_s=latency_s, bytes_per_s=rate * tuner.ratio)


def _plateau(tuner: Tuner) -> Floats:
    """Factor on the latency of all-reduces over several nodes with enough for every channel."""
    tables = tuner.tables
    enough = tables.ring_plateau_from_bytes * tuner.channels * tuner.group.size
    factor = tables.ring_plateau.get(tuner.row, tables.ring_plateau["newer"])
    return np.where(tuner.crosses & (tuner.size_bytes >= enough), factor, 1.0)


def ring_near_steps(shape: CallShape) -> Any:
    """Steps of a ring that stay inside a domain."""
    return shape.passes * (shape.n - 1) - ring_far_hops(shape)


def ring_far_hops(shape: CallShape) -> Any:
    """Steps of a ring that leave a domain."""
    return shape.passes * (shape.nodes - 1)


def ring_bytes(library: CollectiveLibrary, shape: CallShape, size_bytes: Floats) -> Any:
    """``(n - 1) / n`` of the bytes, once for each time that they go round."""
    return shape.passes * size_bytes * (shape.n - 1) / shape.n


RING = Algorithm(
    word="ring",
    operations=("all_reduce", "all_gather", "reduce_scatter", "broadcast"),
    protocols=("ll", "ll128", "simple"),
    allowed=lambda tuner, protocol: tuner.whole_lines(protocol),
    belief=_belief,
    near_steps=ring_near_steps,
    far_hops=ring_far_hops,
    far_hop_s=lambda library, protocol: getattr(library.ring_hop_s["network"], protocol),
    adapter_bytes=ring_bytes,
    fills=False,
)
