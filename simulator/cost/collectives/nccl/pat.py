"""PAT, parallel aggregated trees: gathers and scatters in a logarithm of steps (Jeaugey 2025).

The share of every member goes down a binomial tree of its own, which all members run at once, each
shifted by its rank. The farthest members come first, with one share; every step halves the
distance and carries more shares, so that few bytes go far. A scatter runs the steps backwards. NCCL
brought it with 2.23 for groups with one accelerator to a node.
"""

from __future__ import annotations

import numpy as np

from simulator.cost.collectives.nccl.algorithm import Algorithm, Belief, Tuner
from simulator.cost.collectives.nccl.ring import ring_bytes
from simulator.records import dataclass


@dataclass(frozen=True, slots=True)
class PatStep:
    """What every member does at the same time."""

    distance: int
    """How many ranks away the receiver is."""
    shares: int
    """How many members' shares are sent together."""


def pat_steps(n: int) -> tuple[PatStep, ...]:
    """Steps of a gather over `n` members whose buffers hold all that is sent together.

    Over distance d travel the shares of members that are an odd multiple of d away: below that the
    tree is full, and of any `n` all ``n - 1`` shares come once.

    Examples
    --------
    >>> [(step.distance, step.shares) for step in pat_steps(8)]
    [(4, 1), (2, 2), (1, 4)]
    >>> [(step.distance, step.shares) for step in pat_steps(5)]
    [(4, 1), (2, 1), (1, 2)]
    """
    distances = [2**power for power in range((n - 1).bit_length())]
    return tuple(PatStep(d, len(range(d, n, 2 * d))) for d in reversed(distances))


def _belief(tuner: Tuner, protocol: str) -> Belief:
    """NCCL counts no ``n / (n - 1)`` here, and whole powers of two."""
    library, pat = tuner.library, tuner.tables.pat
    of_release = library.releases[library.release].pat_fraction
    fraction = pat.fraction if of_release is None else of_release
    hops_s = np.floor(np.log2(tuner.nodes)) * pat.hop_s / pat.hop_divisor
    return Belief(
        latency_s=pat.base_s + hops_s + pat.rank_s * tuner.group.size,
        bytes_per_s=fraction * tuner.bus,
    )


PAT = Algorithm(
    word="pat",
    operations=("all_gather", "reduce_scatter"),
    protocols=("simple",),
    allowed=lambda tuner, protocol: tuner.crosses & tuner.alone,
    belief=_belief,
    near_steps=lambda shape: 0,
    far_hops=lambda shape: np.ceil(np.log2(shape.nodes)),
    far_hop_s=lambda library, protocol: library.tuning.pat.hop_s,
    adapter_bytes=ring_bytes,
    fills=False,
)
