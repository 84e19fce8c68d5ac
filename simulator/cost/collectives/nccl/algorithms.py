"""All algorithms of NCCL that are modelled, and which of them it runs a collective with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from simulator.arrays import Floats, Ints
from simulator.cost.collectives.nccl.algorithm import Algorithm, Tuner
from simulator.cost.collectives.nccl.in_network import COLLNET, NVLS, NVLS_TREE
from simulator.cost.collectives.nccl.pat import PAT
from simulator.cost.collectives.nccl.ring import RING
from simulator.cost.collectives.nccl.tree import TREE
from simulator.hardware.cluster import Cluster
from simulator.layout.placement import Group
from simulator.records import dataclass

ALGORITHMS = (RING, TREE, NVLS, NVLS_TREE, COLLNET, PAT)
"""Of two that NCCL believes to be as fast, the one named first runs."""


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """An algorithm and the protocol that it runs with."""

    algorithm: Algorithm
    protocol: str

    @property
    def name(self) -> str:
        """Algorithm, and protocol where there are several."""
        word = self.algorithm.word
        return f"{word} {self.protocol}" if len(self.algorithm.protocols) > 1 else word


CHOICES = tuple(Choice(algorithm, word) for algorithm in ALGORITHMS for word in algorithm.protocols)
"""What the codes of ``choose`` stand for."""

_ALGORITHM_OF_CHOICE = np.array([ALGORITHMS.index(choice.algorithm) for choice in CHOICES])


def by_algorithm(code: Any, quantity: Callable[[Algorithm], Any]) -> Any:
    """Take a quantity of each call from the algorithm that it runs with, by codes of choices."""
    algorithm_of = _ALGORITHM_OF_CHOICE[code]
    runs = np.bincount(algorithm_of.ravel(), minlength=len(ALGORITHMS)).tolist()
    asked = zip(ALGORITHMS, runs, strict=True)
    return np.choose(algorithm_of, [quantity(algorithm) if n else False for algorithm, n in asked])


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
        if operation not in algorithm.operations or not cluster.library.has(algorithm.word):
            continue
        allowed = algorithm.allowed(tuner, protocol)
        if np.any(allowed):
            belief = algorithm.belief(tuner, protocol)
            rate = np.asarray(belief.bytes_per_s)
            seconds = belief.latency_s + size_bytes / np.maximum(rate, 1e-30)
            believed[choice] = np.where(allowed & (rate > 0), seconds, np.inf)
    return believed
