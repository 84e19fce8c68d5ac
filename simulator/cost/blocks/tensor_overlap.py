"""Collectives over tp that run together with the product they feed or follow, cut into pieces.

Transformer Engine's user buffers (common/comm_gemm_overlap/comm_gemm_overlap.cpp) and torch's
asynchronous tensor parallelism (torch/distributed/_symmetric_memory/__init__.py) do it alike:

- **ring exchange**: a product of as many pieces as ranks, along the tokens, on a few streams. Copy
  engines move the rows of one piece while another is in work. What is scattered so arrives as one
  part from every rank, which a kernel adds up in the end.
- **pipeline** (user buffers, scatters): a few pieces along the output's features. Kernels scatter
  one while another is in work; the product leaves them compute units in all of its pieces. The
  scatter of the last piece has nothing beside it.

User buffers run the other collectives of a linear **in bulk** beside a product that does not wait
for them, by kernels on a few compute units.

Pieces on several streams fill one another's last wave: tiles are dealt as those of one product.
Each piece still starts by itself, behind the event that says that its rows are there, and reads its
operands, so that the one that is not cut is read as often as there are pieces.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.cost.operators.operations import Collective, Operators, Ranks
from simulator.layout.placement import Group
from simulator.records import dataclass
from simulator.software.overlap import Overlap

_CUTS = ("userbuffers", "async")
"""Words of ``Overlap.tensor`` that cut products."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """How a product is cut for the collective beside it."""

    rows: Any = 1.0
    """Pieces along its rows, the tokens."""
    columns: Any = 1.0
    """Pieces along its columns, the output's features."""
    held_units: Any = 0.0
    """Compute units that all of its pieces leave to the collective."""

    @property
    def pieces(self) -> Any:
        """How many there are, each with a start of its own."""
        return self.rows * self.columns

    def shape(self, m: Any, n: Any, batch: Any) -> tuple[Any, Any, Any]:
        """Rows, columns and number of the pieces, which share the device as a batch does."""
        return m / self.rows, n / self.columns, batch * self.pieces


WHOLE = Cut()
"""A product in one piece."""


def usable(overlap: Overlap, precision: str) -> Overlap:
    """What of the software's overlap there is in training with products of this type."""
    if overlap.tensor == "userbuffers" and precision not in overlap.user_buffers.precisions:
        return replace(overlap, tensor="backward")
    return overlap


def cuts(ops: Operators, overlap: Overlap, ranks: Ranks, *, quantised: bool) -> dict[str, Cut]:
    """How products of a part are cut, by ``name:direction``; those left out are whole."""
    cut_of = {}
    split = ranks.sequence_parallel & (ranks.tp > 1) & _reached(ranks.groups.tp)
    for c in ops.collectives:
        way = _way(c, overlap, quantised=quantised)
        if way == "ring_exchange":
            cut_of[c.window] = Cut(rows=np.where(split, ranks.tp, 1.0))
        elif way == "pipeline":
            user_buffers = overlap.user_buffers
            cut_of[c.window] = Cut(
                columns=np.where(split, float(user_buffers.splits), 1.0),
                held_units=np.where(split, float(user_buffers.pipeline_units), 0.0),
            )
    return cut_of


def hidden_s(
    c: Collective,
    overlap: Overlap,
    seconds: Floats,
    product_s: Floats,
    group: Group,
    *,
    quantised: bool,
) -> Floats:
    """Seconds of a collective over tp that its product hides; `product_s` is that of all pieces.

    A gather has moved the rows of the next piece when one has been computed, or the next piece
    waits: ``max(n p, p + (n - 1) s)`` for n pieces of p seconds and sends of s. Where the ring
    scatters, the rank's own piece is the last and is not sent: the same. A pipeline ends after
    ``max(n p + s, p + n s)`` with as many scatters of s seconds.
    """
    if not c.window or overlap.tensor == "none":
        return np.zeros(seconds.shape)
    if not c.pipelined:
        runs = overlap.tensor != "async"
        return np.minimum(seconds, product_s) if runs else np.zeros(seconds.shape)
    way = _way(c, overlap, quantised=quantised)
    if way == "ring_exchange":
        covered = np.minimum(seconds, product_s * (group.size - 1) / group.size)
    elif way == "pipeline":
        splits = overlap.user_buffers.splits
        covered = np.minimum(seconds, product_s) * (splits - 1) / splits
    else:
        return np.zeros(seconds.shape)
    return np.where(_reached(group), covered, 0.0)


def held_units(c: Collective, overlap: Overlap, usual: Any, group: Group) -> Any:
    """Compute units that a collective takes from what hides it, as long as it runs.

    None of a pipelined one: copy engines take none, and a pipeline's are taken from its product
    in any case (`Cut.held_units`). `usual` are the collective library's.
    """
    if not c.buffered or overlap.tensor not in _CUTS:
        return usual
    if c.pipelined:
        return 0.0
    user_buffers = overlap.user_buffers
    units = float(
        user_buffers.gather_units if c.operation == "all_gather" else user_buffers.scatter_units
    )
    return np.where(_reached(group), units, usual)


def moved_bytes(
    c: Collective, overlap: Overlap, size_bytes: Floats, group: Group, *, quantised: bool
) -> Floats:
    """Memory traffic that a collective adds in the way of the compute.

    A gather starts with a copy of the rank's own rows into the buffer that its peers read. A ring
    that scatters ends with the sum of what came from every rank.
    """
    if not c.buffered or overlap.tensor not in _CUTS:
        return np.zeros(size_bytes.shape)
    way = _way(c, overlap, quantised=quantised)
    if c.operation == "all_gather" and (way or overlap.tensor == "userbuffers"):
        share = 2.0 / group.size
    elif way == "ring_exchange":
        share = 1.0 + 1.0 / group.size
    else:
        return np.zeros(size_bytes.shape)
    return np.where((group.size > 1) & _reached(group), share * size_bytes, 0.0)


def _reached(group: Group) -> NDArray[np.bool_]:
    """Whether all ranks can read and write one another's buffers: those of a scale-up domain.

    Transformer Engine's issue 1071 and torch's ``get_remote_tensors`` say so of their buffers.
    """
    return np.asarray(group.local >= group.size)


def _way(c: Collective, overlap: Overlap, *, quantised: bool) -> str:
    """How it runs together with its product; blank: it does not."""
    if not c.pipelined or not c.buffered or overlap.tensor not in _CUTS:
        return ""
    if overlap.tensor == "async" or c.operation == "all_gather":
        return "ring_exchange"
    user_buffers = overlap.user_buffers
    return user_buffers.quantised_scatter if quantised else user_buffers.scatter
