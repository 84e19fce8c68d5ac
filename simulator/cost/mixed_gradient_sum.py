"""Gradients summed over servers of several kinds, each with a layout of its own: three phases.

Replicas on one kind of servers cut the model alike, those on another kind otherwise, so that no
rank of one has a rank of the other with the same gradients. Each kind first scatters the sum of its
own replicas over them: every rank then holds one piece of the model and no other rank of its kind
has it. Pieces are summed between the kinds, which is an all-reduce of each part of a piece among
those who hold it, one rank of every kind. Each kind updates its pieces by itself and gathers the
weights. (Hetu v2, arXiv 2504.20490, calls the second leg SplitAllReduce: communication of
the finest slices of a parameter whose cuts differ. HexiScale, arXiv 2409.01143, trains with
pipelines of unlike tensor degrees, stages and batches.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulator.cost.collectives.calls import all_reduce_s
from simulator.cost.tables import Priced
from simulator.layout.placement import Group
from simulator.records import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientSumPhases:
    """Seconds of each, by kind of servers: of the rank that takes longest, hidden or not."""

    reduce_scatter_s: tuple[float, ...]
    """Gradients over the replicas of a kind; a part of its term ``dp``."""
    exchange_s: tuple[float, ...]
    """Pieces between the kinds, as the adapters of this one would have it."""
    gather_s: tuple[float, ...]
    """Weights over the replicas of a kind; a part of its term ``dp``."""
    piece_bytes: tuple[float, ...]
    """Gradients that a rank exchanges."""

    @property
    def between_s(self) -> float:
        """The exchange: the slowest kind decides. Nothing hides it: all kinds must be done."""
        return max(self.exchange_s)


def mixed_gradient_sum(kinds: Sequence[Priced], ranks: Sequence[int]) -> GradientSumPhases:
    """Price the legs for one layout of each kind.

    A piece of a kind with few ranks lies with at least as many ranks of another kind as go into
    one: so many calls are made for it.

    Parameters
    ----------
    kinds : sequence of Priced
        One layout each, on the servers of the kind alone.
    ranks : sequence of int
        Accelerators of each.
    """
    pieces, exchanged = [], []
    members = Group(size=np.array([len(kinds)]), local=np.array([1]))
    for priced, count in zip(kinds, ranks, strict=True):
        piece = float(priced.states.reduced_bytes[priced.state_key[0]].max())
        calls = -(-max(ranks) // count)
        links = priced.cluster.links_of("dp_copies")
        reduce_s = all_reduce_s(links, np.array([piece / calls]), members)
        pieces.append(piece)
        exchanged.append(calls * float(reduce_s[0]))
    return GradientSumPhases(
        reduce_scatter_s=tuple(float(k.states.reduce_s[k.state_key[0]].max()) for k in kinds),
        exchange_s=tuple(exchanged),
        gather_s=tuple(float(k.states.gather_s[k.state_key[0]].max()) for k in kinds),
        piece_bytes=tuple(pieces),
    )
