"""What every pipeline rank does, in order, and the task graph that follows from it.

A program is a table of actions (``schedules/action_tables.py``, or a user's own). What an
action waits for follows from what it is: the forward pass of piece s from that of piece s - 1, the
backward pass of piece s from that of piece s + 1, on the last piece from its own forward pass, a
weight pass from its input pass. Where the other piece is on another rank, a send lies between the
two.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulator.arrays import Floats, Int32s
from simulator.errors import InputError
from simulator.events.engine.graph import TaskGraph
from simulator.events.step.auxiliary_tasks import AuxiliaryTasks
from simulator.events.step.listed_actions import Listed
from simulator.events.step.streams import DATA, PIPELINE, STREAMS
from simulator.events.step.unfold import EXTRA, SEND, ActionTimes, unfold
from simulator.records import dataclass
from simulator.schedules.action_tables import actions
from simulator.schedules.dependencies import NOTHING, UNLISTED, awaited
from simulator.schedules.registry import SCHEDULES
from simulator.schedules.schedule import BACKWARD, BACKWARD_WEIGHT, FORWARD, KINDS


class ProgramColumns(NamedTuple):
    """The columns of a :class:`Program`, as compiled code takes them."""

    rank: NDArray[Any]
    kind: NDArray[Any]
    micro_batch: NDArray[Any]
    chunk: NDArray[Any]
    piece: NDArray[Any]
    with_next: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Program:
    """The ordered actions of every rank: one row per action, ranks one after the other."""

    ranks: int
    chunks: int
    """Chunks of the rank that has most."""
    pieces: int
    """Pieces of the model that a micro-batch passes."""
    rank: NDArray[Any]
    kind: NDArray[Any]
    """Index into KINDS."""
    micro_batch: NDArray[Any]
    chunk: NDArray[Any]
    piece: NDArray[Any]
    with_next: NDArray[np.bool_]
    """The action runs overlapped with the one after it: both start together and end together."""
    listed: Listed | None = None
    """What a user's table lists beside passes: its own sends and receives, sharding words."""
    where: str = "simulate: table"
    """What messages call it: the file of a user's table."""

    def __len__(self) -> int:
        return len(self.rank)

    @cached_property
    def awaited(self) -> Int32s:
        """The action whose result each one takes; NOTHING where there is none.

        Raises
        ------
        InputError
            An action that waits for another that no rank lists, or lists that contradict
            themselves.
        """
        _check_actions(self)
        source = awaited(self, self.pieces)
        if (source == UNLISTED).any():
            raise InputError(_unlisted(self, int(np.argmax(source == UNLISTED))))
        return source

    def columns(self) -> ProgramColumns:
        """Every column, as compiled code takes them."""
        numbers = (self.rank, self.kind, self.micro_batch, self.chunk, self.piece)
        rank, kind, micro_batch, chunk, piece = (np.ascontiguousarray(x) for x in numbers)
        return ProgramColumns(rank, kind, micro_batch, chunk, piece, self.with_next)

    def name(self, action: int) -> str:
        """Word one action.

        Examples
        --------
        >>> program("1f1b", 2, 2).name(2)
        'rank 0: B0 of piece 0'
        """
        word = f"{KINDS[self.kind[action]]}{self.micro_batch[action]}"
        return f"rank {self.rank[action]}: {word} of piece {self.piece[action]}"


def program(schedule: str, pp: int, micro_batches: int, vpp: int = 1, *, steps: int = 1) -> Program:
    """List what a schedule does.

    Parameters
    ----------
    schedule : str
        One of SCHEDULES.
    pp, micro_batches, vpp : int
        Ranks, micro-batches of a step and chunks per rank.
    steps : int
        Steps one after the other, without a flush between them: only of an asynchronous schedule
        (PipeDream), whose steady state is seen in the later ones.
    """
    if schedule not in SCHEDULES:
        raise InputError(f"schedule must be one of {', '.join(SCHEDULES)}, got {schedule!r}")
    if steps != 1 and SCHEDULES[schedule].flushes:
        raise InputError(f"{schedule} flushes after each step: steps must be 1, got {steps}")
    table = actions(schedule, pp, micro_batches * steps, vpp)
    return Program(
        ranks=pp,
        chunks=int(table.chunk.max()) + 1,
        pieces=int(table.piece.max()) + 1,
        rank=table.rank,
        kind=table.kind,
        micro_batch=table.micro_batch,
        chunk=table.chunk,
        piece=table.piece,
        with_next=table.with_next,
    )


def repeated(once: Program, steps: int) -> Program:
    """List several steps of a program one after the other, without a barrier between them.

    Every rank begins its next step when it is done with this one; micro-batches count on.

    Examples
    --------
    >>> two = repeated(program("zb_h1", 2, 2), 2)
    >>> [two.name(i) for i in (0, 5, 6)]
    ['rank 0: F0 of piece 0', 'rank 0: W1 of piece 0', 'rank 0: F2 of piece 0']
    """
    step = np.repeat(np.arange(steps), len(once))
    order = np.argsort(np.tile(once.rank, steps), kind="stable")

    def again(column: NDArray[Any]) -> NDArray[Any]:
        return np.tile(column, steps)[order]

    batches = int(once.micro_batch.max()) + 1
    return replace(
        once,
        rank=again(once.rank),
        kind=again(once.kind),
        chunk=again(once.chunk),
        micro_batch=again(once.micro_batch) + batches * step[order],
        piece=again(once.piece),
        with_next=again(once.with_next),
    )


@dataclass(frozen=True, kw_only=True)
class StepGraph:
    """A task graph and what each of its tasks is."""

    graph: TaskGraph
    program: Program
    rank: Int32s
    stream: NDArray[np.int8]
    """Index into STREAMS."""
    kind: NDArray[np.int8]
    """Index into KINDS, or SEND, or EXTRA."""
    micro_batch: Int32s
    """-1: an extra task."""
    chunk: Int32s
    """-1: an extra task."""
    row: Int32s
    """The action that a pass is or whose result a send carries; the row of an extra task."""
    task_of_action: Int32s
    """Task of each action. Of two that overlap the first lasts as long as both; the second follows
    it without a duration of its own."""
    task_of_send: Int32s
    """Task that carries each action's result to another rank; -1: it stays where it is."""
    task_of_extra: Int32s
    """Of the caller's rows, then of what a user's table lists."""
    extras: int
    """Rows of the caller."""

    def name(self, task: int) -> str:
        """Word one task."""
        row, kind = int(self.row[task]), self.kind[task]
        if kind == EXTRA and row >= self.extras and self.program.listed is not None:
            return self.program.listed.name(row - self.extras)
        if kind == EXTRA:
            return f"rank {self.rank[task]}: extra task {row} on {STREAMS[self.stream[task]]}"
        return self.program.name(row) + (", sent" if kind == SEND else "")


def step_graph(
    program: Program,
    pass_s: ArrayLike,
    send_s: ArrayLike = 0.0,
    *,
    extras: AuxiliaryTasks | None = None,
) -> StepGraph:
    """Unfold a program into tasks.

    Parameters
    ----------
    program : Program
    pass_s : array_like
        Seconds of a pass, shape (ranks, chunks, kinds of KINDS), or of every action on its own,
        shape (actions,). An overlapped pair lasts the sum of its two.
    send_s : array_like
        Seconds of a send across each boundary between pieces s and s + 1, shape (pieces - 1,); or
        forward and backward apart, shape (2, pieces - 1); or one number for all.
    extras : AuxiliaryTasks, optional
        Further tasks.

    Raises
    ------
    InputError
        An action that waits for another that no rank lists, or lists that contradict themselves.

    Examples
    --------
    >>> from simulator.events.engine.engine import longest_path
    >>> step = step_graph(program("1f1b", 2, 2), [[[1.0, 2.0, 0.0, 0.0]]] * 2)
    >>> longest_path(step.graph, step.name).makespan_s
    9.0
    """
    extra = AuxiliaryTasks.none() if extras is None else extras
    source = program.awaited
    check_extras(program, extra)
    seconds = action_seconds(program, pass_s)
    hops = np.broadcast_to(np.asarray(send_s, np.float64), (2, max(program.pieces - 1, 0))).copy()
    of_caller, listed = len(extra), program.listed
    if listed is not None:
        elsewhere = (source >= 0) & (program.rank[source] != program.rank)
        source = np.where(elsewhere & listed.sends, np.int32(NOTHING), source)
        extra = joined(extra, program, listed, listed.seconds(hops))
    actions = ActionTimes(source, seconds, hops)
    tasks = unfold(program.columns(), actions, extra.columns(), program.ranks)
    duration, stream, first, predecessor, numbers, short, kind, *at = tasks
    graph = TaskGraph(duration_s=duration, stream=stream, first=first, predecessor=predecessor)
    step = StepGraph(
        graph=graph,
        program=program,
        rank=numbers[0],
        stream=short,
        kind=kind,
        micro_batch=numbers[1],
        chunk=numbers[2],
        row=numbers[3],
        task_of_action=at[0],
        task_of_send=at[1],
        task_of_extra=at[2],
        extras=of_caller,
    )
    if listed is not None:
        _name_sends(step, listed)
    return step


def action_seconds(program: Program, pass_s: ArrayLike) -> Floats:
    """Seconds of every action, from a table by rank, chunk and kind or from what is such already.

    Of an overlapped pair the first takes the time of both.
    """
    asarray = np.asarray(pass_s, np.float64)
    if asarray.ndim == 1:
        if len(asarray) != len(program):
            raise InputError(f"{len(program)} actions need as many seconds, got {len(asarray)}")
        seconds = asarray.copy()
    else:
        shape = (program.ranks, program.chunks, len(KINDS))
        try:
            table = np.broadcast_to(asarray, shape)
        except ValueError:
            raise InputError(f"pass_s must have shape {shape}, got {asarray.shape}") from None
        seconds = table[program.rank, program.chunk, program.kind].astype(np.float64)
    first = np.flatnonzero(program.with_next)
    seconds[first] += seconds[first + 1]
    seconds[first + 1] = 0.0
    return seconds


def _check_actions(program: Program) -> None:
    """Refuse the first action that is out of place or listed twice."""
    misplaced = _misplaced(program)
    end = int(np.argmax(misplaced)) if misplaced.any() else len(program)
    if (twice := _listed_twice(program, end)) is not None:
        raise InputError(f"{program.name(twice)} is listed twice")
    if end < len(program):
        known = 0 <= program.kind[end] < len(KINDS)
        name = program.name(end) if known else f"kind {program.kind[end]}"
        raise InputError(
            f"action {end} ({name}) is out of place: there are {program.ranks} ranks one after "
            f"the other, {program.chunks} chunks, {program.pieces} pieces, kinds 0 to 3, and pairs "
            "of one rank"
        )


def _misplaced(program: Program) -> NDArray[np.bool_]:
    """Actions of a rank, chunk, piece or kind that is not there, or joined with none."""
    rank, joins = program.rank, program.with_next
    misplaced = np.diff(rank, prepend=rank[:1]) < 0
    for column, end in (
        (rank, program.ranks),
        (program.chunk, program.chunks),
        (program.piece, program.pieces),
        (program.kind, len(KINDS)),
        (program.micro_batch, np.inf),
    ):
        misplaced |= (column < 0) | (column >= end)
    if joins.any():
        misplaced[-1:] |= joins[-1:]
        misplaced[:-1] |= joins[:-1] & ((rank[1:] != rank[:-1]) | joins[1:])
    return np.asarray(misplaced)


def _listed_twice(program: Program, end: int) -> int | None:
    """The first action before `end` that has been done before; a whole backward pass does both."""
    kind = program.kind[:end]
    place = program.micro_batch[:end] * program.pieces + program.piece[:end]
    forward, weight = kind == FORWARD, kind == BACKWARD_WEIGHT
    ways = [forward, ~(forward | weight)]
    if weight.any():
        ways.append(weight | (kind == BACKWARD))
    if all(np.bincount(place[way]).max(initial=0) < 2 for way in ways):
        return None
    met: set[tuple[str, int]] = set()
    for action, at in enumerate(place.tolist()):
        letter = KINDS[kind[action]]
        does = "I" if letter == "B" else letter
        if (does, at) in met:
            return action
        met |= {("I", at), ("W", at)} if letter == "B" else {(does, at)}
    return None


def _unlisted(program: Program, action: int) -> str:
    """Word what an action waits for in vain."""
    name = program.name(action)
    kind, piece = KINDS[program.kind[action]], int(program.piece[action])
    batch = int(program.micro_batch[action])
    if kind == "W":
        needed = f"input pass I{batch} of piece {piece}"
    elif kind == "F" or piece == program.pieces - 1:
        needed = f"forward pass F{batch} of piece {piece - (kind == 'F')}"
    else:
        needed = f"backward pass B{batch} or I{batch} of piece {piece + 1}"
    return f"{name} waits for the {needed}, which no rank lists"


def _name_sends(step: StepGraph, listed: Listed) -> None:
    """Call the sends that a table lists what they are."""
    for row, word in enumerate(listed.words):
        if word.kind.startswith("SEND"):
            task, action = step.task_of_extra[step.extras + row], int(listed.producer[row])
            step.kind[task], step.row[task] = SEND, action
            step.micro_batch[task] = word.micro_batch
            step.chunk[task] = step.program.chunk[action]
            step.task_of_send[action] = task


def period_s(step: StepGraph, end_s: Floats, steps: int, rank: int | None = None) -> float:
    """Seconds of one of several steps in a row without a barrier, in the steady state.

    So much later than in the step before the backward passes of a step end on a last rank, which
    the drain of the pipeline does not touch.

    Parameters
    ----------
    step : StepGraph
        Of a program of several steps (:func:`program`, :func:`repeated`).
    end_s : ndarray
        When each task ended.
    steps : int
        How many.
    rank : int, optional
        The last rank of one of several replicas; none: of all.

    Examples
    --------
    Two equal stages of 3 seconds: a step of 4 micro-batches takes 12, without fill or drain.

    >>> from simulator.events.engine.engine import longest_path
    >>> step = step_graph(program("pipedream", 2, 4, steps=3), [[[1.0, 2.0, 0.0, 0.0]]] * 2)
    >>> period_s(step, longest_path(step.graph).end_s, 3)
    12.0
    """
    listed = step.program
    if steps < 2:
        raise InputError(f"a period needs 2 steps or more, got {steps}")
    last = listed.ranks - 1 if rank is None else rank
    back = np.flatnonzero((listed.rank == last) & (listed.kind != FORWARD))
    ends = end_s[step.task_of_action[back]]
    return float(ends[-1] - ends[-1 - len(back) // steps])


def check_extras(program: Program, extra: AuxiliaryTasks) -> None:
    """Refuse extra tasks that refer to what is not there."""
    n, k = len(program), len(extra)
    given = {
        "rank": (extra.rank, 0, program.ranks),
        "stream": (extra.stream, 0, len(STREAMS)),
        "after": (extra.after, -1, n),
        "before": (extra.before, -1, n),
        "edges": (extra.edges, 0, n + k),
    }
    for name, (column, low, high) in given.items():
        wrong = (column < low) | (column >= high)
        if wrong.any():
            row = int(np.argwhere(wrong)[0][0])
            raise InputError(
                f"extra tasks: {name}: must be from {low} to {high - 1}, "
                f"got {column[wrong].flat[0]} in row {row}"
            )
    placed = np.flatnonzero(extra.after >= 0)
    elsewhere = program.rank[extra.after[placed]] != extra.rank[placed]
    if elsewhere.any():
        row = int(placed[elsewhere][0])
        raise InputError(
            f"extra task {row} on rank {extra.rank[row]} stands behind an action of another rank "
            f"({program.name(int(extra.after[row]))}); a dependency belongs in edges"
        )


def joined(
    extra: AuxiliaryTasks, program: Program, listed: Listed, seconds: Floats
) -> AuxiliaryTasks:
    """Add the words that a table lists to the caller's tasks."""
    n, of_caller, words = len(program), len(extra), listed.words
    rank = np.array([word.rank for word in words])
    place = np.array([word.place for word in words]) - 1
    here = (place >= 0) & (program.rank[place] == rank)
    passed = np.array([word.micro_batch >= 0 for word in words])
    number = n + of_caller + np.arange(len(words))
    produced, sent = np.flatnonzero(listed.producer >= 0), np.flatnonzero(listed.sent >= 0)
    edges = (
        extra.edges,
        np.column_stack([listed.producer[produced], number[produced]]),
        np.column_stack([n + of_caller + listed.sent[sent], number[sent]]),
    )
    return AuxiliaryTasks(
        rank=np.concatenate([extra.rank, rank]),
        stream=np.concatenate([extra.stream, np.where(passed, PIPELINE, DATA)]),
        duration_s=np.concatenate([extra.duration_s, seconds]),
        after=np.concatenate([extra.after, np.where(here, place, -1)]),
        waits=np.concatenate([extra.waits, np.zeros(len(words), np.bool_)]),
        before=np.concatenate([extra.before, listed.consumer]),
        edges=np.concatenate(edges).astype(np.int64),
    )
