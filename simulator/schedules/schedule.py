"""What a pipeline schedule is: a record of its traits, and the order in which its ranks work.

A module per family makes these records (``schedules/one_f_one_b.py``, ...); the list of all is
``schedules/registry.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats, Ints
from simulator.records import dataclass

FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT = range(4)

KINDS = "FBIW"
"""Letter of each kind of action: forward, whole backward, its input half, its weight half."""

MANY = 2**31
"""No bound on the chunks of a rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """One row per action, ranks one after the other, each in its order of execution."""

    rank: Ints
    kind: Ints
    """Index into KINDS."""
    micro_batch: Ints
    chunk: Ints
    """Which of the rank's chunks; of DualPipe, the direction and so the copy of the parameters."""
    with_next: NDArray[np.bool_]
    """The action runs overlapped with the one after it (DualPipe's F&B)."""


def in_turn(pp: Any, rank: Ints, chunk: Ints) -> Ints:
    """Pieces are dealt to the ranks in turn (Narayanan et al. 2021, section 2.2)."""
    return chunk * pp + rank


def there_and_back(pp: Any, rank: Ints, chunk: Ints) -> Ints:
    """The second chunk runs back from the last rank to the first, which has both ends: a V."""
    return np.where(chunk == 0, rank, 2 * pp - 1 - rank)


def both_ways(pp: Any, rank: Ints, chunk: Ints) -> Ints:
    """Every piece is held twice: the second chunk is the piece of the mirrored rank."""
    return np.where(chunk == 0, rank, pp - 1 - rank)


def _one_version(rank: Ints, pp: Ints, micro_batches: Ints) -> Ints:
    """A flush ends every step, after which one version of the weights is enough."""
    return np.ones_like(rank)


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """A pipeline schedule. pp: ranks; vpp: chunks per rank that the model is cut into."""

    word: str
    """How files and flags name it."""
    order: Callable[[int, int, int], Order]
    """Actions of every rank for pp, micro-batches and vpp that the schedule is defined for."""
    piece: Callable[[Any, Ints, Ints], Ints] = in_turn
    """Which piece of the model a chunk is, in the order of a forward pass: of pp, rank, chunk."""
    fewest_chunks: int = 1
    """Chunks per rank (vpp) below which it is not defined."""
    most_chunks: int = 1
    """Chunks per rank above which it is not defined."""
    rounds_needed: int = 0
    """Micro-batches per rank below which it is not defined; 0: a single micro-batch is enough."""
    even: bool = False
    """Ranks and micro-batches must both be even."""
    by_default: bool = False
    """What a layout of so many chunks takes where it names no schedule."""
    copies: int = 1
    """Pieces that a rank holds at a time, each for its share of the micro-batches."""
    splits_backward: bool = False
    """Input and weight gradients are passes of their own."""
    breadth_first: bool = False
    """All forward passes come before all backward passes."""
    takes_rounds: bool = False
    """Micro-batches go through a rank's chunks in rounds of about pp."""
    joins_passes: bool = False
    """The table joins a forward pass with the backward pass of another micro-batch."""
    flushes: bool = True
    """A step ends before the next one begins."""
    post_validated: bool = False
    """It can do without a barrier at the end of a step (Qi et al. 2024, section 4)."""
    barrier_free_idle_s: Callable[[Floats, Floats, Floats], Floats] | None = None
    """Ranks end in the order in which they begin, so that steps without a barrier follow without a
    gap: idle seconds of a rank between its first action and its last, of what the other ranks'
    forward, input and weight passes take together. None: the first rank begins first, ends last."""
    in_flight: Callable[[Ints, Ints, Ints, Ints, Ints], Ints] | None = None
    """Micro-batches in flight by formula: of rank, chunk, pp, vpp, micro-batches. None: counted in
    the table of actions."""
    weight_versions: Callable[[Ints, Ints, Ints], Ints] = _one_version
    """Versions of the weights that a rank keeps: of rank, pp, micro-batches."""

    @property
    def only_chunks(self) -> int:
        """Chunks per rank where it is defined for one number of them, else 1."""
        return self.fewest_chunks if self.fewest_chunks == self.most_chunks else 1

    def chunks(self, vpp: int) -> int:
        """Chunks that a rank holds, copies included."""
        return self.copies * vpp

    def fewest_micro_batches(self, pp: Any) -> Any:
        """Micro-batches per step below which it is not defined; pp a number or an array."""
        return self.rounds_needed * pp if self.rounds_needed else 1
