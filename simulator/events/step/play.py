"""One step played: replicas, their program, its task graph, and when every task ran."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats, Ints
from simulator.cost.tables import Priced, Selection
from simulator.errors import InputError, problem
from simulator.events.engine.engine import Times, longest_path
from simulator.events.step.auxiliary_tasks import AuxiliaryTasks
from simulator.events.step.pass_costs import AHEAD, BACK, CAUSE, Content, Passes, content, passes_of
from simulator.events.step.programs import (
    Program,
    StepGraph,
    program,
    repeated,
    step_graph,
)
from simulator.events.step.step_end import (
    ChunkBoundaries,
    StepEndWork,
    step_end_tasks,
    step_end_work,
)
from simulator.events.step.streams import COMPUTE, DATA
from simulator.events.step.unfold import EXTRA
from simulator.records import dataclass
from simulator.schedules.dependencies import alone
from simulator.schedules.registry import SCHEDULES
from simulator.schedules.schedule import BACKWARD, BACKWARD_WEIGHT


@dataclass(frozen=True, kw_only=True)
class Replica:
    """One pipeline that is simulated, and how many equal ones it stands for."""

    count: int
    """Data-parallel replicas."""
    rows: Selection
    priced: Priced
    held: Content
    passes: Passes
    step_end: StepEndWork
    numbers: tuple[int, ...] = ()
    """Those replicas, from 0; none where all are alike."""
    sources: tuple[tuple[Replica, ...], ...] = ()
    """Of each pipeline rank: the replicas that it was taken from, each priced on one kind of
    servers as a whole; none where all ranks are this replica's own."""


@dataclass(frozen=True, kw_only=True)
class Played:
    """Everything that is known of a step once it has been played."""

    replicas: tuple[Replica, ...]
    program: Program
    steps: int
    """Steps that the program lists: more than one where none ends with a barrier."""
    passes: Passes
    """Of all replicas: rank is replica x pp + pipeline rank."""
    alone: NDArray[np.bool_]
    """Actions that have no other micro-batch beside them."""
    changes: Ints
    """Actions that last longer than others of their kind, and the cause: shape (changes, 2)."""
    changes_s: Floats
    delays: Ints
    """Actions that last longer than they were priced, and the cause: shape (delays, 2)."""
    delays_s: Floats
    extras: AuxiliaryTasks
    notes: Ints
    """Cause, kind of span and chunk of each extra task."""
    ends: ChunkBoundaries
    step: StepGraph
    times: Times
    build_seconds: float
    run_seconds: float

    @property
    def pp(self) -> int:
        """Pipeline ranks of a replica."""
        return self.program.ranks // len(self.replicas)


def replica_of(rows: Selection, priced: Priced, count: int) -> Replica:
    """Price a replica of a layout that was selected from a table priced with every rank."""
    held = content(rows, priced)
    passes = passes_of(rows, priced, held)
    step_end = step_end_work(rows, priced, passes)
    passes = after_every_pass(passes, step_end.exposed_reductions_s)
    passes = after_every_pass(passes, step_end.reduction_slowdown_s, "slowdown")
    return Replica(
        count=count, rows=rows, priced=priced, held=held, passes=passes, step_end=step_end
    )


def after_every_pass(passes: Passes, seconds: Floats, cause: str = "dp") -> Passes:
    """Passes with what reductions before the last show or slow of each, shape (ranks, chunks)."""
    if not seconds.any():
        return passes
    shown = passes.shown_s.copy()
    for kind in (BACKWARD, BACKWARD_WEIGHT):
        shown[:, :, kind, CAUSE[cause]] += seconds
    return replace(passes, shown_s=shown)


@dataclass(frozen=True, kw_only=True)
class DurationFactors:
    """How much longer everything takes than it was priced; factors, in the order of a step."""

    actions: Floats
    sends: Floats
    """Of what each action sends."""
    extras: Floats
    late_s: Floats
    """Seconds by which the reductions of a rank wait for those of replicas that are not played."""


def play_step(
    replicas: Sequence[Replica],
    *,
    table: Program | None = None,
    began: float | None = None,
    stretch: DurationFactors | None = None,
) -> Played:
    """Build the task graph of one step and run it.

    Parameters
    ----------
    replicas : sequence of Replica
        Pipelines of one layout; they join where gradients are reduced.
    table : Program, optional
        What the ranks do, in place of the layout's schedule.
    began : float, optional
        Moment of ``time.perf_counter`` from which building counts.
    stretch : DurationFactors, optional
        What takes longer than it was priced.
    """
    began = time.perf_counter() if began is None else began
    row = replicas[0].rows.layouts.row()
    schedule, pp, vpp = row["schedule"], row["pp"], row["vpp"]
    m = int(replicas[0].rows.layouts.micro_batches[0])
    askew = replicas[0].priced.workload.recipe.optimizer_post_validation
    steps = -(-2 * pp // m) + 2 if askew or not SCHEDULES[schedule].flushes else 1
    if table is not None:
        _check_table(table, replicas, schedule, pp, vpp, m)
        steps = 1
    action_program = table or program(schedule, pp, m, vpp, steps=1 if askew else steps)
    if askew and table is None:
        action_program = repeated(action_program, steps)
    listed = _tiled(action_program, len(replicas), m * steps)
    passes = _stacked([replica.passes for replica in replicas])
    lone = _alone(listed, passes, flushed=steps == 1)
    ends = ChunkBoundaries.of(listed)
    work = [replica.step_end for replica in replicas]
    changes, changes_s = _changes(ends, work)
    seconds = _action_s(listed, passes, lone)
    np.add.at(seconds, changes[:, 0], changes_s)
    seconds = seconds if stretch is None else seconds * stretch.actions
    extras, notes = step_end_tasks(listed, ends, work, passes, seconds)
    if stretch is not None:
        extras = replace(extras, duration_s=extras.duration_s * stretch.extras)
    step = step_graph(listed, seconds, extras=extras)
    if passes.send_s.any():
        sent = np.flatnonzero(step.task_of_send >= 0)
        step.graph.duration_s[step.task_of_send[sent]] = passes.send_s[listed.rank[sent]]
    if stretch is not None:
        step = _stretched(step, extras, stretch)
    built = time.perf_counter()
    times = longest_path(step.graph, step.name)
    return Played(
        replicas=tuple(replicas),
        program=listed,
        steps=steps,
        passes=passes,
        alone=lone,
        changes=changes,
        changes_s=changes_s,
        delays=np.empty((0, 2), np.int64),
        delays_s=np.empty(0),
        extras=extras,
        notes=notes,
        ends=ends,
        step=step,
        times=times,
        build_seconds=built - began,
        run_seconds=time.perf_counter() - built,
    )


def _stretched(step: StepGraph, extras: AuxiliaryTasks, stretch: DurationFactors) -> StepGraph:
    """Stretch sends, and let reductions wait for those of replicas that are not played."""
    graph = step.graph
    sent = step.task_of_send >= 0
    seconds, lag_s = graph.duration_s.copy(), np.zeros(len(graph.predecessor))
    seconds[step.task_of_send[sent]] *= stretch.sends[sent]
    reduces = np.zeros(len(graph), dtype=np.bool_)
    extra_tasks = step.task_of_extra[: len(extras)]
    reduces[extra_tasks[(extras.stream == DATA) & (extras.after >= 0)]] = True
    before = graph.predecessor
    waits = np.repeat(reduces, np.diff(graph.first)) & (step.stream[before] != DATA)
    lag_s[waits] = stretch.late_s[step.rank[before[waits]]]
    return replace(step, graph=replace(graph, duration_s=seconds, lag_s=lag_s))


def _check_table(
    table: Program, replicas: Sequence[Replica], schedule: str, pp: int, vpp: int, m: int
) -> None:
    """Refuse a user's table that is not of this layout."""
    batches = int(table.micro_batch.max(initial=-1)) + 1
    for word, field, got, wanted in (
        ("ranks", "pp", table.ranks, pp),
        ("chunks", "vpp", table.chunks, SCHEDULES[schedule].chunks(vpp)),
        ("pieces", "pp x vpp", table.pieces, pp * vpp),
        ("micro-batches", "micro-batches", batches, m),
    ):
        if got != wanted:
            rule = f"must have the layout's {wanted} {word} ({field})"
            raise InputError(problem(table.where, "", rule, got))
    elsewhere = SCHEDULES[schedule].piece(pp, table.rank, table.chunk) != table.piece
    if elsewhere.any():
        row = int(np.flatnonzero(elsewhere)[0])
        rule = f"must place pieces of the model as {schedule} does"
        raise InputError(problem(table.where, "", rule, table.name(row)))
    if replicas[0].priced.workload.recipe.optimizer_post_validation:
        rule = "must be none with training.optimizer_post_validation: one step tells no period"
        raise InputError(problem(table.where, "", rule, "a table"))
    if len(replicas) > 1 and table.listed is not None:
        rule = "must leave its sends to the simulator where a deviation unfolds replicas"
        raise InputError(problem(table.where, "", rule, "sends of its own"))


def _action_s(listed: Program, passes: Passes, lone: NDArray[np.bool_]) -> Floats:
    """Seconds of every action."""
    at = (listed.rank, listed.chunk, listed.kind)
    seconds = passes.seconds[at]
    if lone.any():
        seconds = seconds + np.where(lone, passes.alone_s.sum(axis=3)[at], 0.0)
    return np.asarray(seconds)


def _tiled(whole: Program, replicas: int, micro_batches: int) -> Program:
    """The same program on several replicas, each with micro-batches of its own."""
    if replicas == 1:
        return whole
    copy = np.repeat(np.arange(replicas), len(whole))

    def tiled(column: NDArray[np.int64]) -> Ints:
        return np.tile(column, replicas)

    return replace(
        whole,
        ranks=whole.ranks * replicas,
        rank=tiled(whole.rank) + copy * whole.ranks,
        kind=tiled(whole.kind),
        micro_batch=tiled(whole.micro_batch) + copy * micro_batches,
        chunk=tiled(whole.chunk),
        piece=tiled(whole.piece),
        with_next=np.tile(whole.with_next, replicas),
    )


def _stacked(passes: list[Passes]) -> Passes:
    if len(passes) == 1:
        return passes[0]
    names = [field.name for field in fields(Passes)]
    joined = {
        name: np.concatenate([getattr(replica_passes, name) for replica_passes in passes])
        for name in names
    }
    return Passes(**joined)


def _alone(listed: Program, passes: Passes, *, flushed: bool) -> NDArray[np.bool_]:
    """Passes that take longer since none of the other way is beside them."""
    if not (flushed and passes.alone_s.any()):
        return np.zeros(len(listed), dtype=np.bool_)
    return alone(listed, listed.ranks)


def _changes(ends: ChunkBoundaries, step_end: list[StepEndWork]) -> tuple[Ints, Floats]:
    """What first and last passes take longer or shorter than the others of their kind.

    A chunk's gather runs beside the passes since the chunk before it began, its reduction beside
    those until the next one ends: what they slow is spread over these.
    """
    slowed = np.concatenate([work.overlap_slowdown_s for work in step_end], axis=1)
    every = np.concatenate([work.exposed_reductions_s for work in step_end])
    begun, ended = np.sort(ends.first, axis=1), np.sort(ends.last, axis=1)
    sooner = np.concatenate([begun[:, :1], begun[:, :-1] + 1], axis=1)
    later = np.concatenate([ended[:, 1:], ended[:, -1:] + 1], axis=1)
    gathers = _spread(sooner, begun + 1, _in_order(slowed[AHEAD], ends.first))
    reductions = _spread(ended, later, _in_order(slowed[BACK], ends.last))
    parts = (
        (*gathers, "slowdown"),
        (*reductions, "slowdown"),
        (ends.last.ravel(), -every.ravel(), "dp"),
    )
    actions, all_s = (np.concatenate([part[k] for part in parts]) for k in (0, 1))
    causes = np.concatenate([np.full(len(part[0]), CAUSE[part[2]]) for part in parts])
    kept = all_s != 0.0
    return np.column_stack([actions, causes])[kept], all_s[kept]


def _in_order(seconds: Floats, actions: Ints) -> Floats:
    """Seconds of every chunk, in the order of its action on its rank."""
    return np.take_along_axis(seconds, np.argsort(actions, axis=1), axis=1)


def _spread(first: Ints, end: Ints, seconds: Floats) -> tuple[Ints, Floats]:
    """Seconds spread evenly over the actions from `first` to before `end`."""
    start, count = first.ravel(), (end - first).ravel()
    before = np.cumsum(count) - count
    actions = np.arange(count.sum()) + np.repeat(start - before, count)
    return actions, np.repeat(seconds.ravel() / count, count)


def shown_s(played: Played) -> Floats:
    """Seconds of every action by cause, shape (actions, causes)."""
    listed = played.program
    at = (listed.rank, listed.chunk, listed.kind)
    shown = played.passes.shown_s[at]
    shown[played.alone] += played.passes.alone_s[at][played.alone]
    np.add.at(shown, (played.changes[:, 0], played.changes[:, 1]), played.changes_s)
    np.add.at(shown, (played.delays[:, 0], played.delays[:, 1]), played.delays_s)
    return np.maximum(shown, 0.0)


def on_compute(played: Played, rank: int) -> Ints:
    """Tasks that a rank's compute stream runs, in order."""
    step = played.step
    return np.flatnonzero((step.rank == rank) & (step.stream == COMPUTE))


def is_extra(played: Played, task: int) -> bool:
    """Whether a task is none of the program's."""
    return int(played.step.kind[task]) == EXTRA
