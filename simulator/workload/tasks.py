"""Heads of several tasks behind the last block: on the trunk itself, or on experts that they share.

Multi-gate mixture of experts (Ma et al., KDD 2018): every expert sees every input once, each task
has a gate of its own that weighs their results, and a tower on the weighted sum.
"""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Gt, Le, MaxLen, MinLen

from simulator.files import Number, Whole, record
from simulator.workload.weights import Weight, parameters

_LARGEST = 2**31
Outputs = Annotated[Whole, Gt(0), Le(_LARGEST)]
Width = Annotated[Whole, Ge(0), Le(_LARGEST)]
Fraction = Annotated[Number, Gt(0), Le(1)]


@record
class TaskHeads:
    """What stands behind the last norm instead of, or beside, the model's own output."""

    outputs: Annotated[tuple[Outputs, ...], MinLen(1), MaxLen(256)]
    """Outputs of each task: its classes, or 1 for a number."""
    batch_fractions: Annotated[tuple[Fraction, ...], MaxLen(256)] = ()
    """Share of the samples that have a label of each task; the others pass its tower by. None
    given: all have all."""
    tower_hidden: Width = 0
    """Inner width of each task's tower, two linear layers with a rectifier between; 0: one linear
    layer."""
    experts: Width = 0
    """Experts that all tasks share, each task through a gate without bias and a softmax; 0: the
    towers read the trunk (a shared bottom)."""
    expert_hidden: Width = 0
    """Inner width of an expert, two linear layers with a rectifier between."""
    expert_outputs: Width = 0
    """Width of an expert's result; 0 means the model's."""
    per_token: bool = False
    """Whether every token gets an answer of every task; false: one vector of every sequence."""
    keeps_output: bool = False
    """Whether the model's own output and its loss (over the vocabulary, or classes) stay too."""

    @property
    def shares(self) -> tuple[float, ...]:
        """Share of the samples that each task sees."""
        return self.batch_fractions or (1.0,) * len(self.outputs)

    def tower_inputs(self, width: int) -> int:
        """Width of what a tower reads in a model of this width."""
        return (self.expert_outputs or width) if self.experts else width

    def weights(self, width: int) -> list[Weight]:
        """List the linear layers, the gates of all tasks together; these have no biases."""
        reads, tasks = self.tower_inputs(width), len(self.outputs)
        layers: list[tuple[str, int, int, int, float]] = []
        if self.experts:
            layers = [
                ("task experts in", self.expert_hidden, width, self.experts, 1.0),
                ("task experts out", reads, self.expert_hidden, self.experts, 1.0),
                ("task gates", tasks * self.experts, width, 1, 1.0),
            ]
        if self.tower_hidden:
            layers += [
                (
                    f"task towers{_told(share)}",
                    self.tower_hidden,
                    reads,
                    self.shares.count(share),
                    share,
                )
                for share in dict.fromkeys(self.shares)
            ]
            reads = self.tower_hidden
        alike = list(zip(self.outputs, self.shares, strict=True))
        layers += [
            (
                f"task outputs of {size}{_told(share)}",
                size,
                reads,
                alike.count((size, share)),
                share,
            )
            for size, share in dict.fromkeys(alike)
        ]
        return [
            Weight(
                name=name,
                rows=rows,
                columns=columns,
                bias=name != "task gates",
                count=count,
                per="token" if self.per_token else "sequence",
                share=share,
            )
            for name, rows, columns, count, share in layers
        ]

    def parameters(self, width: int) -> int:
        """Count weights and biases."""
        return parameters(self.weights(width))

    def mixing_flop(self, width: int) -> float:
        """FLOPs of the weighted sums of the experts' results, for one vector."""
        return 2.0 * sum(self.shares) * self.experts * self.tower_inputs(width)


def _told(share: float) -> str:
    """Tell layers of unlike shares apart: prices are looked up by name."""
    return "" if share == 1.0 else f" for {share:g}"
