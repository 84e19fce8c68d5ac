"""Trees: a chain inside each domain, two binary trees among domains, up and down again."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.cost.collectives.nccl.algorithm import Algorithm, Belief, CallShape, Tuner
from simulator.hardware.fabric import CollectiveLibrary


def _belief(tuner: Tuner, protocol: str) -> Belief:
    tables, library = tuner.tables, tuner.library
    most = tuner.channels * tuner.by_nodes(tables.tree_simple_bytes_per_s)
    rate = np.minimum(tables.tree_fraction * _bus(tuner), most)
    if protocol == "ll":
        rate = np.minimum(rate / tables.tree_ll_divisor, tuner.ll_ceiling())
    elif protocol == "ll128":
        share = np.where(
            tuner.crosses, tables.ll128_tree_fraction[1], tables.ll128_tree_fraction[0]
        )
        most = tuner.channels * tuner.by_nodes(tables.tree_ll128_bytes_per_s)
        rate = np.minimum(rate * share, most)
    near_s = tuner.near_hop_s(library.tree_hop_s, protocol)
    far_s = float(getattr(library.tree_hop_s["network"], protocol))
    base_s = float(getattr(library.tree_base_s, protocol))
    hops_s = (tuner.group.local - 1) * near_s + np.floor(np.log2(tuner.nodes)) * far_s
    return Belief(
        latency_s=base_s + 2 * hops_s,
        bytes_per_s=0.5 * rate * tuner.tree_correction(protocol),
    )


def _bus(tuner: Tuner) -> Floats:
    """Rate of both links and adapters: between two nodes links inside may be the faster ones."""
    far = tuner.paired_outside()
    return np.where(tuner.crosses, np.minimum(tuner.inside, far), tuner.inside)


def tree_far_hops(shape: CallShape) -> Any:
    """Up and down a binary tree over the domains."""
    return 2.0 * np.ceil(np.log2(shape.nodes))


def tree_bytes(library: CollectiveLibrary, shape: CallShape, size_bytes: Floats) -> Any:
    """Of two trees with half of the bytes each, mean over domains, each a leaf of one of them."""
    return 2.0 * size_bytes * (shape.nodes - 1) / shape.nodes


def _adapter_bytes(library: CollectiveLibrary, shape: CallShape, size_bytes: Floats) -> Any:
    branching = shape.nodes > 2
    share = np.where(branching, float(library.tree_network_fraction), 1.0)
    return tree_bytes(library, shape, size_bytes) / share


TREE = Algorithm(
    word="tree",
    operations=("all_reduce",),
    protocols=("ll", "ll128", "simple"),
    allowed=lambda tuner, protocol: tuner.whole_lines(protocol),
    belief=_belief,
    near_steps=lambda shape: 2 * (shape.local - 1),
    far_hops=tree_far_hops,
    far_hop_s=lambda library, protocol: getattr(library.tree_hop_s["network"], protocol),
    adapter_bytes=_adapter_bytes,
)
