"""V-Half and V-Min (Qi et al. 2024, Pipeline Parallelism with Controllable Memory).

Passes of a micro-batch follow one another at fixed distances, the same for every micro-batch: a
building block (section 2). A rank holds a chunk's activations for as long as the block lasts
there, so blocks are laid in a V, where a rank whose first chunk waits long has a second one that
waits shortly (section 3), and distances set the memory: M/2 and M/3, M being 1F1B's (table 1).
Where all passes take as long the bubble is 1/2 and 2/3 of 1F1B's; where they do not, V-Min's grows
with every micro-batch (figure 5).
"""

from __future__ import annotations

from collections import deque

import numpy as np

from simulator.schedules.schedule import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    Order,
    Schedule,
    there_and_back,
)

_INTERVAL = 6
"""Passes of a rank per micro-batch: forward, input and weight pass of two chunks."""

Pass = tuple[int, int, int]
"""Kind, chunk and micro-batch."""


def _half(pp: int, m: int, v: int) -> Order:
    """V-Half (table 9): down the V a pass every other moment, up it one after the other."""
    turns = (2, 1, 1) if pp % 2 else (2, 4, 1)
    return _filled(_blocks(pp, m, steps=(2, 1), turns=turns), pp, most_held=2 * (pp // 2 + 1))


def _min(pp: int, m: int, v: int) -> Order:
    """V-Min (table 8): every pass right after the one before it."""
    turns = (1, 1, 1) if pp % 3 else (1, 3, 1)
    return _filled(_blocks(pp, m, steps=(1, 1), turns=turns), pp, most_held=2 * ((pp + 4) // 3))


def _blocks(
    pp: int, m: int, *, steps: tuple[int, int], turns: tuple[int, int, int]
) -> list[list[Pass]]:
    """Forward and input passes of every rank, in the order of the repeated building block.

    Parameters
    ----------
    pp, m : int
        Ranks and micro-batches.
    steps : tuple of int
        From a rank to the next one down the V and up it, forward as backward (equation 2).
    turns : tuple of int
        At the last rank going forward, at the loss, at the last rank going backward.
    """
    down, up = (np.arange(pp) * step for step in steps)
    forward = down, down[-1] + turns[0] + up[::-1]
    loss = forward[1][0] + turns[1]
    backward = loss + down[-1] + turns[2] + up[::-1], loss + down
    starts = {(FORWARD, 0): forward[0], (FORWARD, 1): forward[1]}
    starts |= {(BACKWARD_INPUT, 0): backward[0], (BACKWARD_INPUT, 1): backward[1]}
    ranks = []
    for rank in range(pp):
        moments = [
            (int(start[rank]) + _INTERVAL * batch, (*what, batch))
            for what, start in starts.items()
            for batch in range(m)
        ]
        ranks.append([what for _, what in sorted(moments)])
    return ranks


def _filled(ranks: list[list[Pass]], pp: int, most_held: int) -> Order:
    """Squeeze the blocks together, then fill weight passes in (section 2, figure 11).

    All passes take as long. A rank runs its next forward or input pass as soon as what it takes is
    there; before that, and where it holds as many activations as it may, its oldest weight pass.
    `most_held` is how many chunk passes a rank holds when blocks follow one another every interval.
    """
    ahead = [deque(passes) for passes in ranks]
    weights: list[deque[Pass]] = [deque() for _ in ranks]
    rows: list[list[Pass]] = [[] for _ in ranks]
    held = [0] * pp
    ended: set[tuple[int, int, int]] = set()
    while any(ahead) or any(weights):
        now: list[tuple[int, int, int]] = []
        for rank in range(pp):
            able = ahead[rank] and _ready(ahead[rank][0], rank, pp, ended)
            if able and (held[rank] < most_held or ahead[rank][0][0] != FORWARD):
                kind, chunk, batch = ahead[rank].popleft()
                rows[rank].append((kind, chunk, batch))
                now.append((kind, _piece(pp, rank, chunk), batch))
                held[rank] += kind == FORWARD
                if kind == BACKWARD_INPUT:
                    weights[rank].append((BACKWARD_WEIGHT, chunk, batch))
            elif weights[rank]:
                rows[rank].append(weights[rank].popleft())
                held[rank] -= 1
        ended.update(now)
    kind, chunk, micro_batch = np.array([row for passes in rows for row in passes]).T
    return Order(
        rank=np.repeat(np.arange(pp), [len(passes) for passes in rows]),
        kind=kind,
        micro_batch=micro_batch,
        chunk=chunk,
        with_next=np.zeros(len(kind), dtype=bool),
    )


def _ready(ahead: Pass, rank: int, pp: int, ended: set[tuple[int, int, int]]) -> bool:
    """Whether the result that a forward or input pass takes is there."""
    kind, chunk, batch = ahead
    piece = _piece(pp, rank, chunk)
    if kind == FORWARD:
        return piece == 0 or (FORWARD, piece - 1, batch) in ended
    if piece == 2 * pp - 1:
        return (FORWARD, piece, batch) in ended
    return (BACKWARD_INPUT, piece + 1, batch) in ended


def _piece(pp: int, rank: int, chunk: int) -> int:
    return 2 * pp - 1 - rank if chunk else rank


SCHEDULES = tuple(
    Schedule(
        word=word,
        order=order,
        piece=there_and_back,
        fewest_chunks=2,
        most_chunks=2,
        splits_backward=True,
    )
    for word, order in (("v_half", _half), ("v_min", _min))
)
