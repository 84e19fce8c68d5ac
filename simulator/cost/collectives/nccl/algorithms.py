"""All algorithms of NCCL that are modelled, and what a choice among them stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from simulator.cost.collectives.nccl.algorithm import Algorithm
from simulator.cost.collectives.nccl.collnet import COLLNET
from simulator.cost.collectives.nccl.nvls import NVLS
from simulator.cost.collectives.nccl.nvls_tree import NVLS_TREE
from simulator.cost.collectives.nccl.pat import PAT
from simulator.cost.collectives.nccl.ring import RING
from simulator.cost.collectives.nccl.tree import TREE
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
"""What the codes of ``nccl_choice.choose`` stand for."""

_ALGORITHM_OF_CHOICE = np.array([ALGORITHMS.index(choice.algorithm) for choice in CHOICES])


def by_algorithm(code: Any, quantity: Callable[[Algorithm], Any]) -> Any:
    """Take a quantity of each call from the algorithm that it runs with, by codes of choices."""
    algorithm_of = _ALGORITHM_OF_CHOICE[code]
    runs = np.bincount(algorithm_of.ravel(), minlength=len(ALGORITHMS)).tolist()
    asked = zip(ALGORITHMS, runs, strict=True)
    return np.choose(algorithm_of, [quantity(algorithm) if n else False for algorithm, n in asked])
