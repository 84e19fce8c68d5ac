"""A weight as it follows from the sizes of a model: name, rows, columns, and how it may be cut.

Every module lists its weights once. Counts of parameters, what a rank holds of them, the matrices
that optimizers and adapters see, and model FLOPs are sums over these lists.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Literal

from simulator.records import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Weight:
    """`count` equal weights of one module."""

    name: str
    """What it is for, as ``Matrix.name`` says; names of vectors serve the reader only."""
    rows: int
    """Outputs; elements of a vector."""
    columns: int = 1
    """Inputs."""
    cut: Literal["whole", "rows", "columns"] = "whole"
    """What tensor-parallel ranks share among them: outputs, inputs, or nothing."""
    pieces: int = 0
    """Most ranks that share the rows, each with whole heads; beyond them every piece is held more
    than once (key/value heads). 0: no limit."""
    bias: bool = False
    """Whether each row has a bias, cut where rows are."""
    count: int = 1
    """Equal weights: routed experts, towers of tasks."""
    active: int = 0
    """Those of routed experts that one token passes; 0: it is no routed expert's."""
    per: Literal["token", "sequence", "none"] = "token"
    """What is multiplied by it, once each: not vectors, nor tables and projections of relative
    positions."""
    share: float = 1.0
    """Part of those that are."""

    @property
    def parameters(self) -> int:
        """Elements of all of them, biases included."""
        return self.count * (self.columns + self.bias) * self.rows

    @property
    def active_parameters(self) -> int:
        """Those that one token passes."""
        return (self.active or self.count) * (self.columns + self.bias) * self.rows

    @property
    def flop(self) -> float:
        """FLOPs of the products with one token or sequence: two for each element it passes."""
        if self.per == "none":
            return 0.0
        return 2.0 * self.share * (self.active or self.count) * self.rows * self.columns


def vector(name: str, elements: int, *, cut: Literal["whole", "rows"] = "whole") -> Weight:
    """Return a weight that scales or shifts: a norm's, a logit per head."""
    return Weight(name=name, rows=elements, cut=cut, per="none")


def parameters(weights: Iterable[Weight]) -> int:
    """Count the parameters of some weights."""
    return sum(map(attrgetter("parameters"), weights))


def active_parameters(weights: Iterable[Weight]) -> int:
    """Count those that one token passes."""
    return sum(map(attrgetter("active_parameters"), weights))
