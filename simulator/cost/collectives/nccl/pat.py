"""PAT: gathers and scatters with one accelerator to a node, in log2(nodes) steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.cost.collectives.nccl.algorithm import Algorithm, Belief, CallShape
from simulator.cost.collectives.nccl.ring import ring_bytes, ring_near_steps
from simulator.cost.collectives.nccl.tuner import Tuner

__all__ = ["PAT"]


def _belief(tuner: Tuner, protocol: str) -> Belief:
    tables = tuner.tables
    latency_s = tables.pat_base_s + np.log2(tuner.nodes) * tables.pat_hop_s / 3.5
    return Belief(
        latency_s=latency_s + tables.pat_rank_s * tuner.group.size,
        bytes_per_s=tables.pat_fraction * tuner.bus * tuner.ratio,
    )


def _far_hops(shape: CallShape) -> Any:
    return np.ceil(np.log2(shape.nodes))


PAT = Algorithm(
    word="pat",
    operations=("all_gather", "reduce_scatter"),
    protocols=("simple",),
    allowed=lambda tuner, protocol: tuner.crosses & tuner.alone,
    belief=_belief,
    near_steps=ring_near_steps,
    far_hops=_far_hops,
    far_hop_s=lambda library, protocol: library.tuning.pat_hop_s,
    adapter_bytes=ring_bytes,
)
