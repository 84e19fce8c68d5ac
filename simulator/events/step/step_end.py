"""What a step does beside its passes: parameter gathers before, reductions and optimizer after.

Gradients are reduced in buckets that start when they are ready; the first bucket of a chunk is
ready when its share of the last backward pass has run, the last one when all of it has. In between
the buckets queue, so that two tasks stand for all of them: all but the last, and the last. A
gather runs the other way round: the first forward pass of a chunk starts so late that every bucket
is there when its layers need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats, Ints
from simulator.cost.collectives.calls import slowdown_share
from simulator.cost.memory.offload import host_parts_s, host_step_s, uses_host
from simulator.cost.passes import rank_tails
from simulator.cost.states.state_traffic import reductions, round_passes
from simulator.cost.tables import Priced, Selection
from simulator.events.step.auxiliary_tasks import AuxiliaryTasks, Table
from simulator.events.step.pass_costs import AHEAD, BACK, Passes
from simulator.events.step.programs import Program
from simulator.events.step.streams import COMPUTE, COPY, DATA, HOST
from simulator.records import dataclass
from simulator.schedules.schedule import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD

if TYPE_CHECKING:
    pass


# --- copies of activations to the host ---------------------------------------------------


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


@dataclass(frozen=True, kw_only=True)
class StepEndWork:
    """Once-per-step work of each rank; arrays over ranks, or (ranks, chunks)."""

    reduce_s: Floats
    """Of each chunk's gradients, (ranks, chunks)."""
    gather_s: Floats
    """Of each chunk's updated parameters, (ranks, chunks)."""
    buckets: Floats
    """Into which a rank cuts either, (ranks,)."""
    overlaps: tuple[bool, bool]
    """Whether gathers run beside forward passes, and reductions beside backward passes."""
    reductions: float
    """Reductions of a step: one, or one of every micro-batch or round."""
    exposed_reductions_s: Floats
    """What all but the last show, spread over micro-batches, (ranks, chunks)."""
    overlap_slowdown_s: Floats
    """What a hidden gather and the last reduction cost passes beside them, (2, ranks, chunks)."""
    reduction_slowdown_s: Floats
    """What reductions before the last cost, spread over backward passes, (ranks, chunks)."""
    tied_embedding_sum_s: float
    """Sum of the word table's gradients over two stages, after all reductions."""
    norm_s: float
    """Reduction of the gradient norm, after that."""
    gradients_s: float
    """Shown copies of gradients to an optimizer on the host."""
    hidden_gradients_s: float
    """The same behind backward passes, on the rank that copies most."""
    copied_s: Floats
    """One hidden copy of each rank, (ranks,)."""
    copies_each: bool
    """Whether gradients are copied after every micro-batch, not once."""
    optimizer_s: Floats
    """On the device of each rank, (ranks,)."""
    host_s: Floats
    """On the host, at the same time, (ranks,)."""


def step_end_work(rows: Selection, priced: Priced, passes: Passes) -> StepEndWork:
    """Price what a step of one layout does once."""
    states, grid, layouts = priced.states, rows.state_key, rows.layouts
    order = np.argsort(rows.rank[0], kind="stable")
    software, m = priced.software, layouts.micro_batches / layouts.copies
    overlap = software.overlap
    once = bool(states.keeps_gathered[grid[0]])
    whole = passes.window_s.sum(axis=1)
    shares = passes.window_s / np.maximum(whole, 1e-300)[:, None, :]
    empty = np.empty((2, 1, len(order)))
    empty[:, 0, order] = whole.T
    times = float(reductions(layouts, software, states.keeps_gathered[grid])[0])
    _, covered = rank_tails(
        priced, layouts, grid, (empty[AHEAD], empty[BACK]), np.full((1, 1), times)
    )
    slowed = [covered[1 - way][0, order][:, None] * shares[:, :, way] for way in (AHEAD, BACK)]
    slowed[BACK], before = slowed[BACK] / times, slowed[BACK] * (1.0 - 1.0 / times) / float(m[0])
    reduce_s, gather_s = (
        x[grid[0], order][:, None] * shares[:, :, way]
        for x, way in ((states.reduce_s, BACK), (states.gather_s, AHEAD))
    )
    reduces_beside = overlap.gradient_reduce and not (software.fsdp2.reduces_after_passes and once)
    beside = passes.window_s[:, :, BACK] if reduces_beside else 0.0
    between = float(round_passes(layouts)[0]) if once else 1.0
    between_s = np.maximum(reduce_s - between * beside, 0.0)
    optimizer_s, gradients = states.optimizer_s[grid[0], order], [np.zeros(1), np.zeros(1)]
    host_s, copied_s, copies = np.zeros(len(order)), np.zeros(len(order)), 1.0
    if uses_host(layouts):
        _, *gradients = host_step_s(priced, layouts, grid, m, empty[BACK])
        device, host, copy, count = host_parts_s(priced, layouts, grid, m)
        optimizer_s, host_s = device[0, order], host[0, order]
        copied_s, copies = np.minimum(copy, empty[BACK])[0, order], float(count[0, 0])
    return StepEndWork(
        reduce_s=reduce_s,
        gather_s=gather_s,
        buckets=states.reduce_buckets[grid[0], order],
        overlaps=(overlap.parameter_gather, reduces_beside),
        reductions=times,
        exposed_reductions_s=between_s
        * ((times - 1.0) / float(m[0]) if once else float(times > 1.0)),
        overlap_slowdown_s=np.stack(slowed) * slowdown_share(priced.cluster),
        reduction_slowdown_s=before * slowdown_share(priced.cluster),
        tied_embedding_sum_s=float(states.tables_s[grid[0]]),
        norm_s=float(states.norm_s[grid[0]]),
        gradients_s=float(gradients[0][0]),
        hidden_gradients_s=float(gradients[1][0]),
        copied_s=copied_s,
        copies_each=copies > 1.0,
        optimizer_s=optimizer_s,
        host_s=host_s,
    )


@dataclass(frozen=True, kw_only=True)
class ChunkBoundaries:
    """First forward pass and last pass with gradients of every chunk: actions, (ranks, chunks)."""

    first: Ints
    last: Ints
    final: Ints
    """The last action of each rank, (ranks,)."""

    @classmethod
    def of(cls, program: Program) -> ChunkBoundaries:
        """Find them."""
        count, action = program.ranks * program.chunks, np.arange(len(program))
        first, last = np.full(count, len(program)), np.full(count, -1)
        chunk = program.rank * program.chunks + program.chunk
        ahead = program.kind == FORWARD
        ready = ~ahead & (program.kind != BACKWARD_INPUT)
        np.minimum.at(first, chunk[ahead], action[ahead])
        np.maximum.at(last, chunk[ready], action[ready])
        shape = (program.ranks, program.chunks)
        ends = np.searchsorted(program.rank, np.arange(program.ranks), side="right") - 1
        return cls(first=first.reshape(shape), last=last.reshape(shape), final=ends)


def step_end_tasks(
    program: Program,
    ends: ChunkBoundaries,
    step_end: list[StepEndWork],
    passes: Passes,
    action_s: Floats,
) -> tuple[AuxiliaryTasks, Ints]:
    """List the tasks of a step beside its passes.

    Parameters
    ----------
    program : Program
        Of all replicas: rank is replica x pipeline ranks + pipeline rank.
    ends : Ends
    step_end : list of StepEndWork
        One per replica. Replicas join where gradients are reduced.
    passes : Passes
        Of all replicas: what may be hidden beside them, and copies of their activations.
    action_s : ndarray
        Seconds of each action.

    Returns
    -------
    AuxiliaryTasks
    ndarray
        Cause, kind of span and chunk of each, shape (tasks, 3).
    """
    table, stages = Table(len(program)), program.ranks // len(step_end)
    clock = _Clock(program=program, action_s=action_s, awaited=program.awaited)
    done, windows_s = activation_copies(table, program, passes.copy_s), passes.window_s
    for stage in range(stages):
        ranks = [(stage + replica * stages, tail) for replica, tail in enumerate(step_end)]
        for rank, tail in ranks:
            _gathers(table, ends, rank, tail, windows_s[rank, :, AHEAD])
        done += _reductions(table, ends, ranks, windows_s[..., BACK], clock)
        for rank, tail in ranks:
            _copies(table, ends, rank, tail, windows_s[rank, :, BACK], clock)
    _closing(table, ends, step_end, done)
    return table.finished()


def _gathers(
    table: Table, ends: ChunkBoundaries, rank: int, tail: StepEndWork, window_s: Floats
) -> None:
    """Gathers before the first forward passes; each chunk starts when its layers will be there."""
    stage = rank % len(tail.buckets)
    whole_s = tail.gather_s[stage]
    if not whole_s.any():
        return
    if not tail.overlaps[AHEAD]:
        first = int(ends.first[rank].min())
        table.add(rank, DATA, float(whole_s.sum()), -1, before=first, kind="gather")
        return
    share = 1.0 / np.maximum(tail.buckets[stage] * whole_s / whole_s.sum(), 1.0)
    before = np.cumsum(whole_s) - whole_s
    needed = before + np.maximum(whole_s * share, whole_s - window_s * (1.0 - share))
    for chunk, seconds in enumerate(np.diff(np.maximum.accumulate(needed), prepend=0.0)):
        first = int(ends.first[rank, chunk])
        table.add(rank, DATA, float(seconds), -1, before=first, kind="gather", chunk=chunk)
    if (rest_s := float(whole_s.sum() - needed.max())) > 0.0:  # beside the first passes
        table.add(rank, DATA, rest_s, -1, kind="gather")


def _reductions(
    table: Table,
    ends: ChunkBoundaries,
    ranks: list[tuple[int, StepEndWork]],
    windows_s: Floats,
    clock: _Clock,
) -> list[int]:
    """Reductions of one stage, which its replicas begin together; returns what ends them."""
    stage, work = ranks[0]
    final = [int(ends.final[rank]) for rank, _ in ranks]
    if not work.reduce_s[stage].any():
        return final
    if not work.overlaps[BACK]:
        tasks = [
            table.add(rank, DATA, float(tail.reduce_s[stage].sum()), int(ends.final[rank]))
            for rank, tail in ranks
        ]
        _join(table, final, tasks)
        return tasks
    tasks = []
    for chunk in np.argsort(ends.last[stage]).tolist():
        last = [int(ends.last[rank, chunk]) for rank, _ in ranks]
        ready, most, tasks = [], [], []
        for (rank, tail), action in zip(ranks, last, strict=True):
            whole_s, seconds = tail.reduce_s[stage].sum(), float(tail.reduce_s[stage, chunk])
            share = 1.0 / max(float(tail.buckets[stage]) * seconds / whole_s, 1.0)
            if share < 1.0:
                rest_s = float(windows_s[rank, chunk]) * (1.0 - share)
                ready.append(clock.before_end(table, ends, action, rest_s))
                most.append(
                    table.add(rank, DATA, seconds * (1.0 - share), action, waits=False, chunk=chunk)
                )
            tasks.append(table.add(rank, DATA, seconds * share, action, chunk=chunk))
        table.edges += list(zip(ready, most, strict=True))
        _join(table, ready, most)
        _join(table, last, tasks)
    return tasks


def _copies(
    table: Table,
    ends: ChunkBoundaries,
    rank: int,
    tail: StepEndWork,
    windows_s: Floats,
    clock: _Clock,
) -> None:
    """Copies of gradients to the host that backward passes hide: each ends with its pass."""
    copied_s = tail.copied_s[rank % len(tail.copied_s)] * windows_s / max(windows_s.sum(), 1e-300)
    if not copied_s.any():
        return
    listed = clock.program
    kinds = (listed.kind != FORWARD) & (listed.kind != BACKWARD_INPUT)
    gradient_passes = np.flatnonzero((listed.rank == rank) & kinds)
    for action in gradient_passes if tail.copies_each else np.unique(ends.last[rank]):
        chunk = int(listed.chunk[action])
        seconds = float(copied_s[chunk])
        clock.before_end(table, ends, int(action), seconds, COPY)
        table.add(
            rank,
            COPY,
            seconds,
            int(action),
            waits=False,
            cause="offload",
            kind="offload",
            chunk=chunk,
        )


@dataclass(frozen=True, kw_only=True)
class _Clock:
    """Tells moments inside a pass, of which the graph knows only the end."""

    program: Program
    action_s: Floats
    awaited: NDArray[np.int32]

    def before_end(
        self, table: Table, ends: ChunkBoundaries, action: int, seconds: float, stream: int = HOST
    ) -> int:
        """Add a task that ends so many seconds before an action does, at most when it starts."""
        paired = action > 0 and bool(self.program.with_next[action - 1])
        lead, rank = action - paired, int(self.program.rank[action])
        whole_s = float(self.action_s[lead : action + 1].sum())
        before = lead - 1 if lead > ends.first[rank].min() else -1
        inside_s = min(seconds, float(self.action_s[action]))
        tick = table.add(rank, stream, whole_s - inside_s, before, kind="launch")
        waits = [int(self.awaited[a]) for a in range(lead, action + 1) if self.awaited[a] >= 0]
        table.edges += [(a, tick) for a in waits]
        return tick


def _join(table: Table, earlier: list[int], later: list[int]) -> None:
    """Let every replica's task wait for the others', too."""
    table.edges += [
        (before, other)
        for i, before in enumerate(earlier)
        for k, other in enumerate(later)
        if i != k
    ]


def _closing(
    table: Table, ends: ChunkBoundaries, step_end: list[StepEndWork], done: list[int]
) -> None:
    """What waits for all gradients: the word table's sum, the norm, then the optimizer."""
    final, work = ends.final, step_end[0]
    hub = table.add(0, DATA, work.tied_embedding_sum_s, int(final[0]), waits=False)
    table.edges += [(task, hub) for task in done]
    if work.norm_s:
        norm = table.add(
            0, DATA, work.norm_s, int(final[0]), waits=False, cause="small_reductions", kind="norm"
        )
        table.edges.append((hub, norm))
        hub = norm
    if work.gradients_s:
        down = table.add(
            0, COPY, work.gradients_s, int(final[0]), waits=False, cause="offload", kind="offload"
        )
        table.edges.append((hub, down))
        hub = down
    for rank in range(len(final)):
        tail, stage = step_end[rank // len(work.buckets)], rank % len(work.buckets)
        for stream, seconds in ((COMPUTE, tail.optimizer_s[stage]), (HOST, tail.host_s[stage])):
            if seconds or stream == COMPUTE:
                step = table.add(
                    rank,
                    stream,
                    float(seconds),
                    int(final[rank]),
                    cause="optimizer",
                    kind="optimizer",
                )
                table.edges.append((hub, step))
