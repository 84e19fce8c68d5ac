"""NVLS tree: the switches of domains add up, two binary trees join them."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.cost.collectives.nccl.algorithm import Algorithm, Belief
from simulator.cost.collectives.nccl.ring import ring_near_steps
from simulator.cost.collectives.nccl.tree import tree_bytes, tree_far_hops
from simulator.cost.collectives.nccl.tuner import Tuner

__all__ = ["NVLS_TREE"]


def _allowed(tuner: Tuner, protocol: str) -> Any:
    if tuner.links.nvls_bytes_per_s is None:
        return False
    enough = tuner.group.local >= tuner.library.nvls_smallest_group
    return tuner.crosses & enough & tuner.floating


def _belief(tuner: Tuner, protocol: str) -> Belief:
    tables = tuner.tables
    most = tuner.channels * tuner.by_nodes(tables.nvls_tree_bytes_per_s)
    most = np.where(most > 0, most, np.inf)
    rate = np.minimum(tuner.switch_rate(), np.minimum(tuner.paired_outside(), most))
    if tuner.row == "blackwell" and tuner.cluster.node.host != "grace":
        rate = rate * tuner.tree_correction("simple")
    hops_s = 2 * np.log2(tuner.nodes) * tables.nvls_hop_s["tree"]
    return Belief(
        latency_s=tables.nvls_hop_s["nvlink"] + hops_s,
        bytes_per_s=rate * tuner.ratio,
    )


NVLS_TREE = Algorithm(
    word="nvls_tree",
    operations=("all_reduce",),
    protocols=("simple",),
    allowed=_allowed,
    belief=_belief,
    near_steps=ring_near_steps,
    far_hops=tree_far_hops,
    far_hop_s=lambda library, protocol: library.tuning.nvls_hop_s["tree"],
    adapter_bytes=tree_bytes,
    in_switch=True,
)
