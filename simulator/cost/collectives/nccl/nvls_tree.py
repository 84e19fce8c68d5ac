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
    if tuner.library.releases[tuner.library.release].older_nvls_tree:
        return _older_belief(tuner)
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


def _older_belief(tuner: Tuner) -> Belief:
    """Releases before 2.28: a channel moves what its adapter does, half of it on three domains.

    And 5/6 of that for data that are added up on the way, halved as all but rings are. So these
    releases run rings over several racks, whatever the switch of a rack could add up.
    """
    heads = np.minimum(tuner.group.local, tuner.channels)
    links = tuner.inside / tuner.channels
    adapter = tuner.outside / tuner.group.local
    adapter = np.where(tuner.nodes > 2, adapter / 2.0, adapter)
    return Belief(
        latency_s=tuner.tables.nvls_hop_s["nvlink"]
        + 2 * np.log2(tuner.nodes) * tuner.tables.nvls_hop_s["older_tree"],
        bytes_per_s=0.5 * 5.0 / 6.0 * heads * np.minimum(links, adapter),
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
