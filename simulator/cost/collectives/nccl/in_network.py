"""Sums inside switches: of a domain (NVLS), of several under trees, of the network (CollNet)."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.cost.collectives.nccl.algorithm import Algorithm, Belief, CallShape, Tuner
from simulator.cost.collectives.nccl.ring import ring_bytes, ring_far_hops, ring_near_steps
from simulator.cost.collectives.nccl.tree import tree_bytes, tree_far_hops
from simulator.hardware.fabric import CollectiveLibrary


def _allowed(tuner: Tuner, protocol: str) -> Any:
    if tuner.links.nvls_bytes_per_s is None:
        return False
    enough = tuner.group.size >= tuner.library.nvls_smallest_group
    return ~tuner.crosses & enough & tuner.floating


def _belief(tuner: Tuner, protocol: str) -> Belief:
    return Belief(
        latency_s=tuner.tables.nvls_hop_s["nvlink"], bytes_per_s=tuner.switch_rate() * tuner.ratio
    )


NVLS = Algorithm(
    word="nvls",
    operations=("all_reduce",),
    protocols=("simple",),
    allowed=_allowed,
    belief=_belief,
    near_steps=ring_near_steps,
    far_hops=ring_far_hops,
    far_hop_s=lambda library, protocol: 0.0,
    adapter_bytes=ring_bytes,
    in_switch=True,
)


def _tree_allowed(tuner: Tuner, protocol: str) -> Any:
    if tuner.links.nvls_bytes_per_s is None:
        return False
    enough = tuner.group.local >= tuner.library.nvls_smallest_group
    return tuner.crosses & enough & tuner.floating


def _tree_belief(tuner: Tuner, protocol: str) -> Belief:
    newer = _newer_belief(tuner)
    if not tuner.library.releases[tuner.library.release].older_nvls_tree:
        return newer
    older, many = _older_belief(tuner), tuner.nodes > 2
    return Belief(
        latency_s=np.where(many, older.latency_s, newer.latency_s),
        bytes_per_s=np.where(many, older.bytes_per_s, newer.bytes_per_s),
    )


def _newer_belief(tuner: Tuner) -> Belief:
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
    """Three domains and more before 2.28: a head moves half of what its adapter does.

    And 5/6 of that for data that are added up on the way, halved as all but rings are: these
    releases run rings over many racks, whatever the switch of a rack could add up. Of two domains
    the same arithmetic says so, but 2.23 was measured on two servers of H100 at 470 GB/s, more
    than rings can (oracle-quickstart/oci-hpc), so that newer releases stand for it there.
    """
    heads = np.minimum(tuner.group.local, tuner.channels)
    head = np.minimum(tuner.inside / tuner.channels, tuner.outside / tuner.group.local / 2.0)
    hops_s = 2 * np.log2(tuner.nodes) * tuner.tables.nvls_hop_s["older_tree"]
    return Belief(
        latency_s=tuner.tables.nvls_hop_s["nvlink"] + hops_s,
        bytes_per_s=0.5 * 5.0 / 6.0 * heads * head,
    )


NVLS_TREE = Algorithm(
    word="nvls_tree",
    operations=("all_reduce",),
    protocols=("simple",),
    allowed=_tree_allowed,
    belief=_tree_belief,
    near_steps=ring_near_steps,
    far_hops=tree_far_hops,
    far_hop_s=lambda library, protocol: library.tuning.nvls_hop_s["tree"],
    adapter_bytes=tree_bytes,
    in_switch=True,
)


def _collnet_allowed(tuner: Tuner, protocol: str) -> Any:
    return tuner.crosses & tuner.cluster.fabric.reduces_in_network


def _collnet_belief(tuner: Tuner, protocol: str) -> Belief:
    tables = tuner.tables
    if tuner.links.nvls_bytes_per_s is not None:
        return Belief(
            latency_s=tables.nvls_hop_s["nvlink"] + tables.nvls_hop_s["network"],
            bytes_per_s=np.minimum(tuner.switch_rate(), tuner.outside * 2.0) * tuner.ratio,
        )
    chain_s = 2 * (tuner.group.local - 1) * tables.collnet_hop_s["nvlink"]
    return Belief(latency_s=chain_s + tables.collnet_hop_s["network"], bytes_per_s=0.5 * tuner.bus)


def _adapter_bytes(library: CollectiveLibrary, shape: CallShape, size_bytes: Floats) -> Any:
    """All bytes once."""
    return size_bytes / float(library.collnet_fraction)


COLLNET = Algorithm(
    word="collnet",
    operations=("all_reduce",),
    protocols=("simple",),
    allowed=_collnet_allowed,
    belief=_collnet_belief,
    near_steps=ring_near_steps,
    far_hops=lambda shape: 2.0,
    far_hop_s=lambda library, protocol: library.tuning.nvls_hop_s["network"] / 2,
    adapter_bytes=_adapter_bytes,
    in_switch=True,
)
