"""NVLS: the switch of one domain adds up."""

from __future__ import annotations

from typing import Any

from simulator.cost.collectives.nccl.algorithm import Algorithm, Belief
from simulator.cost.collectives.nccl.ring import ring_bytes, ring_far_hops, ring_near_steps
from simulator.cost.collectives.nccl.tuner import Tuner


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
