"""Copies of activations to the host and back in a pipeline.

Without one, a copy has only its own pass to hide behind and is a part of it
(``events/step/pass_costs.py``). In a pipeline it runs on beside other passes and while the rank
waits: out from the start of its forward pass on, back from the start of the backward pass before
its own. Copies take the host link in turn. What comes back is taken block by block, so that it need
not be there before its backward pass begins; what follows that pass waits for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simulator.arrays import Floats
from simulator.events.step.programs import Program
from simulator.events.step.streams import COPY
from simulator.schedules.schedule import BACKWARD_WEIGHT, FORWARD

if TYPE_CHECKING:
    from simulator.events.step.auxiliary_tasks import Table


def activation_copies(table: Table, program: Program, copy_s: Floats) -> list[int]:
    """Add the copies of every micro-batch and chunk; return the last one of each rank.

    Parameters
    ----------
    table : Table
        Extra tasks, to which these are added.
    program : Program
    copy_s : ndarray
        Seconds of one micro-batch's copy one way, (ranks, chunks).
    """
    if not copy_s.any():
        return []
    awaited = program.awaited
    taken = np.full(len(program), -1, np.int64)
    crosses = np.flatnonzero(awaited >= 0)
    taken[awaited[crosses]] = crosses
    last: dict[int, int] = {}
    for ahead, back, early in _pairs(program, copy_s):
        rank, chunk = int(program.rank[ahead]), int(program.chunk[ahead])
        seconds = float(copy_s[rank, chunk])
        out = table.add(
            rank,
            COPY,
            seconds,
            _before(program, ahead),
            cause="offload",
            kind="offload",
            chunk=chunk,
        )
        if awaited[ahead] >= 0:
            table.edges.append((int(awaited[ahead]), out))
        after = back + 1 < len(program) and program.rank[back + 1] == rank
        fetched = table.add(
            rank,
            COPY,
            seconds,
            _before(program, max(early, ahead)),
            before=back + 1 if after else -1,
            cause="offload",
            kind="fetch",
            chunk=chunk,
        )
        if taken[back] >= 0 and program.rank[taken[back]] != rank:
            table.edges.append((fetched, int(taken[back])))
        last[rank] = fetched
    return list(last.values())


def _before(program: Program, action: int) -> int:
    """The action before one on its rank; -1: it is the first."""
    first = action == 0 or program.rank[action - 1] != program.rank[action]
    return -1 if first else action - 1


def _pairs(program: Program, copy_s: Floats) -> list[tuple[int, int, int]]:
    """Forward and backward pass of what is copied, and the backward pass before that one.

    In the order of the backward passes, in which they come back.
    """
    ahead = program.kind == FORWARD
    back = ~ahead & (program.kind != BACKWARD_WEIGHT)
    batches = int(program.micro_batch.max()) + 1
    key = (program.rank * program.chunks + program.chunk) * batches + program.micro_batch
    forward = np.full(int(key.max()) + 1, -1, np.int64)
    forward[key[ahead]] = np.flatnonzero(ahead)
    passes = np.flatnonzero(back)
    early = np.r_[-1, passes[:-1]]
    new_rank = np.r_[True, program.rank[passes[1:]] != program.rank[passes[:-1]]]
    early = np.where(new_rank, passes, early)
    copied = copy_s[program.rank[passes], program.chunk[passes]] > 0
    rows = zip(forward[key[passes]], passes, early, copied, strict=True)
    return [(int(a), int(b), int(e)) for a, b, e, moves in rows if moves]
