"""Mixers of tokens that stand in place of attention, and cost the same for every token.

A mixer lists its weights and its products over chunks of a sequence, sizes only;
``cost/operators/block_operators.py`` names the module that prices each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from simulator.workload.weights import Weight


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkProduct:
    """`count` equal products of (m, k) by (k, n) over one sequence, weights not among them."""

    name: str
    count: int
    """Heads, or groups of heads, times chunks of the sequence: what tensor parallelism shares."""
    m: int
    n: int
    k: int
    causal: bool = False
    """All is computed, half of it counts: tokens of a chunk see themselves and those before."""

    @property
    def flop(self) -> float:
        """FLOPs of a forward pass over one sequence, causal ones counted half."""
        return (1.0 if self.causal else 2.0) * self.count * self.m * self.n * self.k


class Mixer(Protocol):
    """What a module offers to stand in a block as its mixer."""

    @property
    def assumption(self) -> str:
        """What its prediction assumes, for the reader of one."""

    @property
    def shares(self) -> tuple[int, ...]:
        """Counts of heads and groups that tensor parallelism has to divide."""

    def weights(self, hidden: int) -> list[Weight]:
        """List its weights in a model of width `hidden`."""

    def products(self, length: int) -> list[ChunkProduct]:
        """List its products over a sequence of `length` tokens."""
