"""The order in which every pipeline rank works: one table of actions per schedule.

`actions` lists forward, backward and weight passes of every rank in the order in which the rank
runs them; when each starts follows from what it waits for: the forward pass of piece s from the
forward pass of piece s - 1, the backward pass of piece s from that of piece s + 1, on the last
piece from its own forward pass. `in_flight` counts what the same table keeps in memory.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from simulator.arrays import Ints
from simulator.errors import InputError
from simulator.records import dataclass
from simulator.schedules.dependencies import alone
from simulator.schedules.registry import SCHEDULES
from simulator.schedules.schedule import BACKWARD_INPUT, FORWARD, Order


@dataclass(frozen=True, kw_only=True, slots=True)
class Actions(Order):
    """One row per action, ranks one after the other, each in its order of execution."""

    position: Ints
    """0, 1, 2, ... within the rank."""
    piece: Ints
    """Which piece of the model the chunk is, in the order of a forward pass."""

    def __len__(self) -> int:
        return len(self.rank)


def actions(schedule: str, pp: int, micro_batches: int, vpp: int = 1) -> Actions:
    """List the actions of every rank, in order.

    Parameters
    ----------
    schedule : str
        One of SCHEDULES. Asynchronous ones (PipeDream) are listed as 1F1B over `micro_batches`;
        they go on without the drain.
    pp, micro_batches, vpp : int
        Ranks, micro-batches and chunks per rank.

    Raises
    ------
    InputError
        If the schedule does not exist for these numbers.

    Examples
    --------
    >>> from simulator.schedules.schedule import KINDS
    >>> table = actions("1f1b", 2, 2)
    >>> [f"{KINDS[k]}{m}" for k, m in zip(table.kind, table.micro_batch)]
    ['F0', 'F1', 'B0', 'B1', 'F0', 'B0', 'F1', 'B1']
    """
    _check(schedule, pp, micro_batches, vpp)
    order = SCHEDULES[schedule].order(pp, micro_batches, vpp)
    first = np.searchsorted(order.rank, np.arange(pp))
    return Actions(
        rank=order.rank,
        kind=order.kind,
        micro_batch=order.micro_batch,
        chunk=order.chunk,
        with_next=order.with_next,
        position=np.arange(len(order.rank)) - first[order.rank],
        piece=SCHEDULES[schedule].piece(pp, order.rank, order.chunk),
    )


def _check(word: str, pp: int, m: int, vpp: int) -> None:
    """Refuse numbers for which a schedule is not defined."""
    if word not in SCHEDULES:
        raise InputError(f"schedule must be one of {', '.join(SCHEDULES)}, got {word!r}")
    if min(pp, m, vpp) < 1:
        raise InputError(f"pp, micro_batches and vpp must be positive, got {pp}, {m}, {vpp}")
    schedule = SCHEDULES[word]
    least, most = schedule.fewest_chunks, schedule.most_chunks
    if not least <= vpp <= most:
        sign = "=" if least == most else ">="
        raise InputError(f"{word} needs vpp {sign} {least}, got {vpp}")
    if schedule.takes_rounds and m % max(m // pp, 1):
        raise InputError(f"{m} micro-batches do not divide into {m // pp} equal rounds")
    if m < (few := schedule.fewest_micro_batches(pp)):
        raise InputError(f"{word} needs at least {few} micro-batches, got {m}")
    if schedule.even and (pp % 2 or m % 2):
        raise InputError(f"{word} needs even pp and micro-batches, got {pp}, {m}")


@lru_cache(maxsize=256)
def in_flight(schedule: str, pp: int, micro_batches: int, vpp: int = 1) -> Ints:
    """Micro-batches that each chunk holds when its rank holds most, shape (pp, chunks).

    A chunk holds a micro-batch from its forward pass until its backward pass, weights included,
    has ended. Asynchronous schedules never drain: a step's first micro-batches follow the last
    ones of the step before.
    """
    if not SCHEDULES[schedule].flushes:
        micro_batches = max(micro_batches, pp)
    table = actions(schedule, pp, micro_batches, vpp)
    count = SCHEDULES[schedule].chunks(vpp)
    change = np.select([table.kind == FORWARD, table.kind != BACKWARD_INPUT], [1, -1], default=0)
    held = np.cumsum(change[:, None] * (table.chunk[:, None] == np.arange(count)), axis=0)
    total = held.sum(axis=1)
    result = np.zeros((pp, count), dtype=np.int64)
    starts = np.flatnonzero(table.position == 0)
    for rank, (first, end) in enumerate(zip(starts, [*starts[1:], len(table)], strict=True)):
        result[rank] = held[first + np.argmax(total[first:end])]
    return result


@lru_cache(maxsize=4096)
def unpaired(schedule: str, pp: int, micro_batches: int, vpp: int = 1) -> float:
    """Micro-batches whose forward pass has no backward pass of another beside it.

    Counted on the rank with the fewest, which has no idle time to spend on them: forward passes
    before its first backward pass; where the schedule joins passes in pairs, those that are in
    none. At the end as many backward passes are alone. Chunk passes are parts of a micro-batch.

    Examples
    --------
    >>> unpaired("1f1b", 4, 8), unpaired("interleaved", 4, 8, 2), unpaired("gpipe", 4, 8)
    (1.0, 2.5, 8.0)
    """
    if not SCHEDULES[schedule].flushes:
        return 0.0
    if SCHEDULES[schedule].breadth_first:
        return float(micro_batches)
    table = actions(schedule, pp, micro_batches, vpp)
    lone = alone(table, pp) & (table.kind == FORWARD)
    fewest = np.bincount(table.rank[lone], minlength=pp).min()
    return float(fewest) / SCHEDULES[schedule].chunks(vpp)
