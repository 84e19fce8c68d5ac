"""Hops of PAT: a logarithm of steps, all members at once (`nccl.pat` has which)."""

from __future__ import annotations

import numpy as np

from simulator.cost.collectives.nccl.pat import pat_steps
from simulator.events.network.collective_hops import Call, Hops, ring


def aggregated_trees(call: Call) -> list[Hops]:
    """Steps one after the other, far members first in a gather, last in a scatter.

    Groups with several members in a domain go round a ring, as NCCL has them do.
    """
    if call.n < 2 or call.local > 1:
        return ring(call)
    gathers = call.operation == "all_gather"
    steps = pat_steps(call.n)
    return [
        Hops(
            source=call.members.ravel(),
            target=np.roll(call.members, -step.distance if gathers else step.distance, 1).ravel(),
            size_bytes=np.repeat(step.shares * call.size_bytes / call.n, call.n),
            far=1.0,
        )
        for step in (steps if gathers else reversed(steps))
    ]
