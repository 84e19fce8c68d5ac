"""CollNet: switches of the network add up, behind the domain's switch, else behind chains."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.cost.collectives.nccl.algorithm import Algorithm, Belief, CallShape
from simulator.cost.collectives.nccl.ring import ring_near_steps
from simulator.cost.collectives.nccl.tuner import Tuner
from simulator.hardware.fabric import CollectiveLibrary


def _allowed(tuner: Tuner, protocol: str) -> Any:
    return tuner.crosses & tuner.cluster.fabric.reduces_in_network


def _belief(tuner: Tuner, protocol: str) -> Belief:
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
    allowed=_allowed,
    belief=_belief,
    near_steps=ring_near_steps,
    far_hops=lambda shape: 2.0,
    far_hop_s=lambda library, protocol: library.tuning.nvls_hop_s["network"] / 2,
    adapter_bytes=_adapter_bytes,
    in_switch=True,
)
