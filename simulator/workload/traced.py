"""What a user's own module does, as counted while it ran without data: sizes only, no torch.

``workload/torch_module.py`` makes these records, ``cost/operators/traced_blocks.py`` prices them.
"""

from __future__ import annotations

from typing import Any

from simulator.files import record
from simulator.workload.weights import Weight


@record
class Amount:
    """A size that grows with the samples of a micro-batch: fixed + per_sample x samples."""

    fixed: float = 0.0
    """What does not grow: weights that are read, masks over positions."""
    per_sample: float = 0.0
    """What every sample adds."""

    def at(self, samples: Any) -> Any:
        """Return the size for a number of samples, or for an array of numbers."""
        return self.fixed + self.per_sample * samples


@record
class TracedGemm:
    """`batch` products of (m, k) by (k, n): a linear layer, a convolution, attention scores."""

    m: Amount
    n: Amount
    k: Amount
    batch: Amount
    weights: bool
    """Whether one operand is a parameter."""

    def flop(self, samples: float) -> float:
        """FLOPs of the forward pass, two per multiply-add."""
        rows = self.batch.at(samples) * self.m.at(samples)
        return float(2 * rows * self.n.at(samples) * self.k.at(samples))


@record
class TracedFlash:
    """One fused attention call."""

    heads: Amount
    """Heads times sequences."""
    queries: float
    """Of one sequence."""
    keys: float
    """Of one sequence: the most that a query may see."""
    score_size: float
    """Elements of a head of queries and keys."""
    value_size: float
    query_bytes: Amount
    """Queries and result."""
    key_bytes: Amount
    """Keys and values."""
    causal: bool

    @property
    def seen(self) -> float:
        """Keys that a query sees on average: half of them under a causal mask."""
        return self.keys * (0.5 if self.causal else 1.0)

    def flop(self, samples: float) -> float:
        """FLOPs of the forward pass, the causal half of them where it is causal."""
        pairs = self.heads.at(samples) * self.queries * self.seen
        return float(2.0 * pairs * (self.score_size + self.value_size))


@record
class TracedStream:
    """Memory-bound kernels of one class: bytes moved and kernels, both directions."""

    kind: str
    """Class of the accelerator's `stream` table."""
    forward_bytes: Amount
    backward_bytes: Amount
    calls: float
    """Kernels of one direction: the mean of both."""


@record
class TracedPart:
    """One layer of a traced module, or all that stands outside its layers."""

    parameters: int
    gemms: tuple[TracedGemm, ...]
    flash: tuple[TracedFlash, ...]
    streams: tuple[TracedStream, ...]
    saved_bytes: Amount
    """What autograd keeps from forward to backward, parameters and buffers left out."""
    input_bytes: Amount
    """The inputs that have a gradient: all that full recomputation keeps."""
    transient_bytes: Amount
    """Most that one backward kernel reads and writes beside what was kept."""
    element_bytes: int
    """Bytes of one floating-point number in the trace."""

    @property
    def weights(self) -> list[Weight]:
        """Operands of products that are parameters, as matrices."""
        return [
            Weight(name="linear", rows=int(g.n.fixed), columns=int(g.k.fixed))
            for g in self.gemms
            if g.weights
        ]

    def flop(self, samples: float) -> float:
        """Forward FLOPs, causal attention counted half (the convention behind MFU)."""
        return sum(g.flop(samples) for g in self.gemms) + sum(
            call.flop(samples) for call in self.flash
        )

    @property
    def flop_per_sample(self) -> float:
        """Forward FLOPs that every sample adds."""
        return self.flop(2.0) - self.flop(1.0)
