"""What torch's distributed tensors add to parts that are cut or sharded: copies and host work."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.cost.operators.operations import Collective, Operators
from simulator.software.host_work import HostWork
from simulator.software.kernels import Kernels


def sums_over_tp(c: Collective) -> bool:
    """Whether a collective is a reduction over tp as DTensor asks for it."""
    return c.group == "tp" and c.operation == "all_reduce"


def copies_over_tp(c: Collective, kernels: Kernels) -> float:
    """Memory traffic of copies around a collective over tp, for every byte of the whole tensor.

    Pieces of a product take rows, too: tensors are turned to have the sequence in front and back
    (``_fused_all_gather_matmul_impl`` of torch/distributed/_symmetric_memory).
    """
    if sums_over_tp(c):
        return float(kernels.dtensor.reduction_copies)
    along = c.group == "tp" and c.operation in ("all_gather", "reduce_scatter")
    return float(kernels.dtensor.sequence_copies) if along else 0.0


def split_host_s(host: HostWork, ops: Operators, tp: Any) -> tuple[Floats, Floats]:
    """What the host takes longer for a part that is cut over tp, forward and backward, in seconds.

    Embedding and head have half of what is stated for both ends.
    """
    longer = host.distributed
    if ops.is_block:
        ways = [
            float(longer.split_block_forward_s),
            float(longer.split_block_backward_s),
        ]
    else:
        ways = [
            float(longer.split_ends_forward_s) / 2.0,
            float(longer.split_ends_backward_s) / 2.0,
        ]
    split = np.asarray(tp) > 1
    seconds = [np.where(split, way, 0.0) for way in ways]
    if not longer.split_reduction_s:
        return seconds[0], seconds[1]
    for c in filter(sums_over_tp, ops.collectives):
        asked = split & (np.asarray(c.size_bytes) > 0)
        way = int(c.backward)
        seconds[way] = seconds[way] + np.where(asked, float(longer.split_reduction_s), 0.0)
    return seconds[0], seconds[1]


def step_host_s(
    host: HostWork, tp: NDArray[Any], by_block: NDArray[np.bool_], parts: Floats
) -> Floats:
    """What the host takes longer in the optimizer's step, where it waits for kernels, in seconds.

    `parts` has shape (keys, columns, parts); embedding and head count as half a block each.
    """
    blocks = parts[:, :, :-2].sum(axis=2) + 0.5 * (parts[:, :, -2:] > 0).sum(axis=2)
    longer = host.distributed
    split = np.where(tp > 1, float(longer.split_block_step_s), 0.0)
    gathered = np.where(by_block, float(longer.gathered_block_step_s), 0.0)
    each = np.maximum(split, gathered) * host.waits_for_kernels
    return np.asarray(blocks * each[:, None])
