"""Which algorithm and protocol NCCL runs a collective with: its own arithmetic, its own tables.

NCCL fills latency and bandwidth of every algorithm and protocol that the machine allows and takes
the one whose time it believes to be the shortest (src/graph/tuning.cc). It decides the regime that
a call runs in; `simulator.cost.collectives.calls` knows what that regime then takes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.arrays import Floats, Ints
from simulator.cost.collectives.nccl.algorithms import CHOICES, Choice
from simulator.cost.collectives.nccl.tuner import Tuner
from simulator.hardware.cluster import Cluster
from simulator.layout.placement import Group


def choose(
    cluster: Cluster, operation: str, size_bytes: Any, group: Group, *, integer: Any = False
) -> Ints:
    """Code of what NCCL runs (position in ``CHOICES``).

    Parameters
    ----------
    operation : str
        ``all_reduce``; ``all_gather`` or ``reduce_scatter``, which it treats alike; ``broadcast``.
    size_bytes : array_like
        The gathered or reduced buffer.
    integer : array_like of bool
        Whether the elements are integers, which switches do not add up.
    """
    size_bytes = np.asarray(size_bytes, dtype=float)
    shape = np.broadcast_shapes(size_bytes.shape, np.shape(group.size))
    code, best_s = np.zeros(shape, dtype=np.int64), np.full(shape, np.inf)
    believed = believed_s(cluster, operation, size_bytes, group, integer=integer)
    for number, choice in enumerate(CHOICES):
        if choice in believed:
            better = believed[choice] < best_s
            code = np.where(better, number, code)
            best_s = np.where(better, believed[choice], best_s)
    return code


def believed_s(
    cluster: Cluster, operation: str, size_bytes: Any, group: Group, *, integer: Any = False
) -> dict[Choice, Floats]:
    """What NCCL believes each choice to take; infinite, or not there, where it is not allowed."""
    size_bytes = np.asarray(size_bytes, dtype=float)
    tuner = Tuner(cluster, operation, size_bytes, group, integer=integer)
    believed = {}
    for choice in CHOICES:
        algorithm, protocol = choice.algorithm, choice.protocol
        known = operation in algorithm.operations and cluster.library.has(algorithm.word)
        allowed = known and algorithm.allowed(tuner, protocol)
        if np.any(allowed):
            belief = algorithm.belief(tuner, protocol)
            rate = np.asarray(belief.bytes_per_s)
            seconds = belief.latency_s + size_bytes / np.maximum(rate, 1e-30)
            believed[choice] = np.where(allowed & (rate > 0), seconds, np.inf)
    return believed
