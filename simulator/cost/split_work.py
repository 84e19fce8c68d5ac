"""What torch's DTensor adds to a part that is cut over tensor-parallel ranks: work of the host."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.cost.operations import Collective, Operators
from simulator.software import HostWork

__all__ = ["split_host_s", "sums_over_tp"]

Floats = NDArray[np.float64]


def sums_over_tp(c: Collective) -> bool:
    """Whether a collective is a reduction over tp as DTensor asks for it."""
    return c.group == "tp" and c.operation == "all_reduce"


def split_host_s(host: HostWork, ops: Operators, tp: Any) -> tuple[Floats, Floats]:
    """What the host takes longer for a part that is cut over tp, forward and backward, in seconds.

    Embedding and head have half of what is stated for both ends.
    """
    if ops.is_block:
        ways = [float(host.split_block_forward_s), float(host.split_block_backward_s)]
    else:
        ways = [float(host.split_ends_forward_s) / 2.0, float(host.split_ends_backward_s) / 2.0]
    split = np.asarray(tp) > 1
    seconds = [np.where(split, way, 0.0) for way in ways]
    if not host.split_reduction_s:
        return seconds[0], seconds[1]
    for c in filter(sums_over_tp, ops.collectives):
        asked = split & (np.asarray(c.size_bytes) > 0)
        way = int(c.backward)
        seconds[way] = seconds[way] + np.where(asked, float(host.split_reduction_s), 0.0)
    return seconds[0], seconds[1]
