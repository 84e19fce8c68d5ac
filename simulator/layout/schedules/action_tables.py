"""The order in which every pipeline rank works: one table of actions per schedule.

`actions` lists forward, backward and weight passes of every rank in the order in which the rank
runs them; when each starts follows from what it waits for: the forward pass of piece s from the
forward pass of piece s - 1, the backward pass of piece s from that of piece s + 1, on the last
piece from its own forward pass. `in_flight` counts what the same table keeps in memory.

Sources: GPipe (Huang et al. 2019); 1F1B and interleaving (Narayanan et al. 2021); breadth-first
(Lamy-Poirier 2023); zero bubble H1, H2 and V (Qi et al. 2023); DualPipe and DualPipeV (DeepSeek
2024); PipeDream (Narayanan et al. 2019) and PipeDream-2BW (Narayanan et al. 2021, ICML).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Ints
from simulator.errors import InputError
from simulator.layout.layouts import SCHEDULES

__all__ = [
    "ASKEW",
    "ASYNCHRONOUS",
    "BACKWARD",
    "BACKWARD_INPUT",
    "BACKWARD_WEIGHT",
    "BREADTH_FIRST",
    "FORWARD",
    "KINDS",
    "POST_VALIDATED",
    "ROUNDS",
    "SPLIT",
    "V_SHAPED",
    "Actions",
    "actions",
    "chunk_range",
    "chunks",
    "fewest_micro_batches",
    "flushes",
    "in_flight",
    "piece",
    "pieces",
    "splits_backward",
    "takes_rounds",
    "unpaired",
]


FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT = range(4)

KINDS = "FBIW"
"""Letter of each kind of action: forward, whole backward, its input half, its weight half."""

V_SHAPED = ("zb_v", "dualpipe_v")
"""Schedules whose second chunk runs back from the last rank to the first."""

_LOOPED = ("interleaved", "looped_bfs", "interleaved_zb")

_MOST = 2**31

ASKEW = ("zb_h2", "zb_v")
"""Schedules whose ranks end in the order in which they begin: steps can follow without a gap."""

POST_VALIDATED = ("zb_h1", *ASKEW, "interleaved_zb")
"""Schedules that can do without a barrier at the end of a step (Qi et al. 2024, section 4)."""

_SPLIT = ("zb_h1", "zb_h2", "zb_v", "interleaved_zb", "dualpipe", "dualpipe_v")

SPLIT = tuple(SCHEDULES.index(word) for word in _SPLIT)
"""Schedules in which input and weight gradients are passes of their own, as layouts store them."""

BREADTH_FIRST = tuple(SCHEDULES.index(word) for word in ("gpipe", "looped_bfs"))
"""Schedules that run all forward passes before all backward passes."""

ROUNDS = tuple(SCHEDULES.index(word) for word in ("interleaved", "interleaved_zb"))
"""Schedules whose micro-batches go through a rank's chunks in rounds of about pp."""

_ASYNCHRONOUS = ("pipedream", "pipedream_2bw")

ASYNCHRONOUS = tuple(SCHEDULES.index(word) for word in _ASYNCHRONOUS)
"""Schedules that go on from step to step without a flush, as layouts store them."""


@dataclass(frozen=True, kw_only=True)
class Actions:
    """One row per action, ranks one after the other, each in its order of execution."""

    rank: Ints
    position: Ints
    """0, 1, 2, ... within the rank."""
    kind: Ints
    """Index into KINDS."""
    micro_batch: Ints
    chunk: Ints
    """Which of the rank's chunks; of DualPipe, the direction and so the copy of the parameters."""
    piece: Ints
    """Which piece of the model that chunk is, in the order of a forward pass."""
    with_next: NDArray[np.bool_]
    """The action runs overlapped with the one after it (DualPipe's F&B)."""

    def __len__(self) -> int:
        return len(self.rank)


def splits_backward(schedule: str) -> bool:
    """Whether input and weight gradients are passes of their own."""
    return schedule in _SPLIT


def flushes(schedule: str) -> bool:
    """Whether a step ends before the next one begins."""
    return schedule not in _ASYNCHRONOUS


def chunks(schedule: str, vpp: int) -> int:
    """Chunks that a rank holds: vpp, but DualPipe holds one of each direction."""
    return 2 if schedule == "dualpipe" else vpp


def pieces(schedule: str, pp: int, vpp: int) -> int:
    """Pieces that the model is cut into; DualPipe holds each of them twice."""
    return pp if schedule == "dualpipe" else pp * vpp


def piece(schedule: str, pp: int, rank: Ints, chunk: Ints) -> Ints:
    """Index of the piece of the model that a chunk of a rank is."""
    if schedule in V_SHAPED:
        return np.where(chunk == 0, rank, 2 * pp - 1 - rank)
    if schedule == "dualpipe":
        return np.where(chunk == 0, rank, pp - 1 - rank)
    return chunk * pp + rank


def chunk_range(schedule: str) -> tuple[int, int]:
    """Fewest and most chunks per rank that a schedule is defined for."""
    if schedule in V_SHAPED:
        return 2, 2
    return (2, _MOST) if schedule in _LOOPED else (1, 1)


def takes_rounds(schedule: str) -> bool:
    """Whether micro-batches go through a rank's chunks in rounds of pp."""
    return SCHEDULES.index(schedule) in ROUNDS


def fewest_micro_batches(schedule: str, pp: Any) -> Any:
    """Micro-batches per step below which the schedule is not defined; pp a number or an array."""
    few = {"pipedream_2bw": pp, "dualpipe": 2 * pp, "dualpipe_v": 2 * pp}
    return few.get(schedule, 1)


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
    >>> table = actions("1f1b", 2, 2)
    >>> [f"{KINDS[k]}{m}" for k, m in zip(table.kind, table.micro_batch)]
    ['F0', 'F1', 'B0', 'B1', 'F0', 'B0', 'F1', 'B1']
    """
    _check(schedule, pp, micro_batches, vpp)
    if SCHEDULES.index(schedule) in BREADTH_FIRST:
        return _breadth_first(schedule, pp, micro_batches, vpp)
    if schedule in ("zb_v", "dualpipe", "dualpipe_v"):
        return _from_tokens(schedule, pp, micro_batches)
    return _alternating(schedule, pp, micro_batches, vpp)


def _check(schedule: str, pp: int, m: int, vpp: int) -> None:
    """Refuse numbers for which a schedule is not defined."""
    if schedule not in SCHEDULES:
        raise InputError(f"schedule must be one of {', '.join(SCHEDULES)}, got {schedule!r}")
    if min(pp, m, vpp) < 1:
        raise InputError(f"pp, micro_batches and vpp must be positive, got {pp}, {m}, {vpp}")
    least, most = chunk_range(schedule)
    if not least <= vpp <= most:
        sign = "=" if least == most else ">="
        raise InputError(f"{schedule} needs vpp {sign} {least}, got {vpp}")
    if takes_rounds(schedule) and m % max(m // pp, 1):
        raise InputError(f"{m} micro-batches do not divide into {m // pp} equal rounds")
    if m < (few := fewest_micro_batches(schedule, pp)):
        raise InputError(f"{schedule} needs at least {few} micro-batches, got {m}")
    if schedule == "dualpipe" and (pp % 2 or m % 2):
        raise InputError(f"dualpipe needs even pp and micro-batches, got {pp}, {m}")


def _table(
    schedule: str,
    pp: int,
    rank: Ints,
    kind: Ints,
    micro_batch: Ints,
    chunk: Ints,
    with_next: NDArray[np.bool_] | None = None,
) -> Actions:
    """Number the positions and the pieces of rows that stand in order."""
    first = np.searchsorted(rank, np.arange(pp))
    return Actions(
        rank=rank,
        position=np.arange(len(rank)) - first[rank],
        kind=kind,
        micro_batch=micro_batch,
        chunk=chunk,
        piece=piece(schedule, pp, rank, chunk),
        with_next=np.zeros(len(rank), dtype=bool) if with_next is None else with_next,
    )


def _breadth_first(schedule: str, pp: int, m: int, v: int) -> Actions:
    """All forward passes, chunk by chunk, then all backward passes.

    GPipe takes the micro-batches back in their order, as torch does; breadth-first in the reverse.
    """
    step = np.arange(m * v)
    back = np.arange(m) if schedule == "gpipe" else np.arange(m)[::-1]
    kind = np.repeat([FORWARD, BACKWARD], m * v)
    micro_batch = np.concatenate([step % m, np.tile(back, v)])
    chunk = np.concatenate([step // m, v - 1 - step // m])
    rank = np.repeat(np.arange(pp), 2 * m * v)
    return _table(schedule, pp, rank, *(np.tile(x, pp) for x in (kind, micro_batch, chunk)))


def _alternating(schedule: str, pp: int, m: int, v: int) -> Actions:
    """1F1B and its kin: some forward passes, then forward and backward in turn.

    What differs is how many forward passes come first, and after how many backward passes the
    weight passes start. Interleaving takes micro-batches in rounds of pp (or of the next number
    that divides them).
    """
    n, rounds = m * v, max(m // pp, 1)
    behind = pp - 1 - np.arange(pp)
    hops, delay = {
        "interleaved": (2 if v > 1 else 1, 0),
        "zb_h2": (2, 2),
        "zb_h1": (1, 1),
        "interleaved_zb": (1, 1),
    }.get(schedule, (1, 0))
    size = m // rounds
    warm = np.minimum((v - 1) * size + hops * behind, n)[:, None]
    waits = delay * np.arange(pp)[:, None]

    step = np.broadcast_to(np.arange(n), (pp, n))
    # the order is that of these moments: forward k >= warm at 3 (k - warm), its backward next
    moments = [np.where(step < warm, step - n, 3 * (step - warm)), 3 * step + 1]
    kinds = [FORWARD, BACKWARD_INPUT if splits_backward(schedule) else BACKWARD]
    if splits_backward(schedule):
        moments.append(3 * (step + waits) + 2)
        kinds.append(BACKWARD_WEIGHT)
    order = np.argsort(np.concatenate(moments, axis=1), axis=1, kind="stable")
    step = order % n
    kind = np.array(kinds)[order // n]
    loop = step // size % v
    chunk = np.where(kind == FORWARD, loop, v - 1 - loop)
    micro_batch = step // (size * v) * size + step % size
    rank = np.repeat(np.arange(pp), order.shape[1])
    return _table(schedule, pp, rank, kind.ravel(), micro_batch.ravel(), chunk.ravel())


def _from_tokens(schedule: str, pp: int, m: int) -> Actions:
    """V-shaped and two-way schedules: patterns of tokens, repeated; counting gives micro-batches.

    DualPipe on pp ranks is DualPipeV on half as many, run by both halves at once: rank r and its
    mirror do the same, each with half of the micro-batches of both directions.
    """
    two_way = schedule == "dualpipe"
    ranks, share = (pp // 2, m // 2) if two_way else (pp, m)
    half = [_expand(_rank_tokens(schedule, r, ranks, share), share) for r in range(ranks)]
    columns = [half[min(r, pp - 1 - r)] if two_way else half[r] for r in range(pp)]
    rank = np.repeat(np.arange(pp), [len(column[0]) for column in columns])
    kind, micro_batch, chunk, pair = (
        np.concatenate([column[i] for column in columns]) for i in range(4)
    )
    if two_way:
        chunk = np.where(rank < ranks, chunk, 1 - chunk)
        micro_batch = micro_batch + chunk * share
    return _table(schedule, pp, rank, kind, micro_batch, chunk, pair.astype(bool))


def _rank_tokens(schedule: str, rank: int, ranks: int, m: int) -> list[tuple[int, str]]:
    """Patterns of a rank and how often each is repeated.

    A token is a letter of KINDS and a chunk; "+" joins it to the next one; "W" takes the oldest
    waiting weight pass, "W0" that of chunk 0.
    """
    if schedule == "zb_v":
        return _zb_v(rank, ranks, max(m, 2 * ranks - 1))
    return _dualpipe_v(rank, ranks, m)


def _zb_v(rank: int, ranks: int, m: int) -> list[tuple[int, str]]:
    """ZB-V (Qi et al. 2023, section 6), as torch's ScheduleZBVZeroBubble orders it."""
    after = ranks - rank
    steady = m - (2 * ranks - rank - 1)
    return [
        (2 * after - 1, "F0"),
        (rank, "F1 F0"),
        (after, "F1 I1 W1"),
        (steady, "F0 I0 W0 F1 I1 W1"),
        (after - 1, "I0 W0 F1 I1 W1"),
        (rank, "I0 I1"),
        (after, "I0 W0"),
        (rank, "W1"),
        (rank, "W0"),
    ]


def _dualpipe_v(rank: int, ranks: int, m: int) -> list[tuple[int, str]]:
    """The eight steps of DualPipe's README and code; the last one or two backward passes split."""
    behind = ranks - 1 - rank
    main = m - 2 * ranks + rank + 1
    together = "F0+ B1 F1+ B0"
    # the middle rank does not overlap its first pair, which shortens the bubble
    first = "F0 B1 F1+ B0" if rank == ranks - 1 else together
    pairs = rank + 1
    whole, odd = pairs // 2, rank % 2
    turn = [] if odd else [(1, "B1 I0")]
    return [
        (2 * behind, "F0"),
        (pairs, "F0 F1"),
        (behind, "I1 W F1"),
        (1, first),
        (main - 1, together),
        (behind, "B1 F1+ B0"),
        (whole, "B1 B0"),
        *turn,
        (pairs - whole - len(turn), "I1 I0"),
        (behind, "W I0"),
        (pairs, "W"),
    ]


def _expand(tokens: list[tuple[int, str]], m: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Kind, micro-batch, chunk and pairing of one rank; micro-batches from m on are left out."""
    letters = [word for count, pattern in tokens for word in pattern.split() * count]
    kind = np.array([KINDS.index(word[0]) for word in letters], dtype=np.int64)
    chunk = np.array([int(word[1]) if len(word) > 1 else -1 for word in letters], dtype=np.int64)
    pair = np.array([word.endswith("+") for word in letters], dtype=np.int64)
    micro_batch = np.zeros_like(kind)
    backward = (kind == BACKWARD) | (kind == BACKWARD_INPUT)
    for of_kind in (kind == FORWARD, backward, kind == BACKWARD_WEIGHT):
        for part in (0, 1):
            rows = np.flatnonzero(of_kind & (chunk == part))
            micro_batch[rows] = np.arange(len(rows))
    oldest, waiting = np.flatnonzero(chunk == -1), np.flatnonzero(kind == BACKWARD_INPUT)
    chunk[oldest] = chunk[waiting[: len(oldest)]]
    micro_batch[oldest] = micro_batch[waiting[: len(oldest)]]
    kept = micro_batch < m
    return kind[kept], micro_batch[kept], chunk[kept], pair[kept]


@lru_cache(maxsize=256)
def in_flight(schedule: str, pp: int, micro_batches: int, vpp: int = 1) -> Ints:
    """Micro-batches that each chunk holds when its rank holds most, shape (pp, chunks).

    A chunk holds a micro-batch from its forward pass until its backward pass, weights included,
    has ended. Asynchronous schedules never drain: a step's first micro-batches follow the last
    ones of the step before.
    """
    if not flushes(schedule):
        micro_batches = max(micro_batches, pp)
    table = actions(schedule, pp, micro_batches, vpp)
    count = chunks(schedule, vpp)
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
    if not flushes(schedule):
        return 0.0
    if SCHEDULES.index(schedule) in BREADTH_FIRST:
        return float(micro_batches)
    table = actions(schedule, pp, micro_batches, vpp)
    forward = table.kind == FORWARD
    back = np.full(pp, len(table))
    np.minimum.at(back, table.rank[~forward], table.position[~forward])
    alone = forward & (table.position < back[table.rank])
    if table.with_next.any():
        alone = forward & ~table.with_next
    fewest = np.bincount(table.rank[alone], minlength=pp).min()
    return float(fewest) / chunks(schedule, vpp)
