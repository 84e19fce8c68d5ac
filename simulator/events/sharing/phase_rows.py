"""The phases of all tasks of a step, and which profile of what it takes each one has.

Passes are cut into phases (``events/step/streams.py``); sends, reductions, gathers and copies
are of one, and so is what takes nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats, Ints
from simulator.events.sharing.link_profiles import Profiles
from simulator.events.step.pass_costs import CAUSE
from simulator.events.step.play import Played, shown_s
from simulator.events.step.streams import COPY, DATA, PHASE_TERMS, SPAN_KINDS
from simulator.events.step.unfold import EXTRA, SEND
from simulator.records import dataclass

_GATHER, _FETCH = SPAN_KINDS.index("gather"), SPAN_KINDS.index("fetch")


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Phases of all tasks, in the order of tasks."""

    task: Ints
    seconds: Floats
    action: Ints
    """The action that it is a phase of; -1: of none."""
    phase: Ints
    profile: Ints
    """Row of `table_of`; 0: takes nothing."""


def destinations(played: Played) -> Ints:
    """The rank to which the result of each pass goes, (ranks, chunks, kinds); -1 where it stays."""
    listed, step = played.program, played.step
    target = np.full(played.passes.shown_s.shape[:3], -1, np.int64)
    graph = step.graph
    later = np.repeat(np.arange(len(graph)), np.diff(graph.first))
    sent = step.kind[graph.predecessor] == SEND
    sent &= step.rank[graph.predecessor] != step.rank[later]
    action = step.row[graph.predecessor[sent]]
    at = (listed.rank[action], listed.chunk[action], listed.kind[action])
    target[at] = step.rank[later[sent]]
    return target


def rows_of(played: Played, takes: Profiles) -> Rows:
    """Cut every pass into phases; other tasks are of one."""
    listed, step = played.program, played.step
    shown, count = shown_s(played), len(PHASE_TERMS)
    columns = [shown[:, [CAUSE[name] for name in names]].sum(axis=1) for names in PHASE_TERMS]
    seconds = np.column_stack(columns)
    action, phase = np.nonzero(seconds > 0.0)
    starter = np.arange(len(listed)) - np.r_[False, listed.with_next[:-1]]
    task = step.task_of_action[starter[action]].astype(np.int64)
    at = (listed.rank[action], listed.chunk[action], listed.kind[action], phase)
    passes = takes.passes.shape[:4]
    profile = 1 + np.ravel_multi_index(at, passes)
    whole = np.bincount(task, weights=seconds[action, phase], minlength=len(step.graph))
    rest = np.flatnonzero(whole == 0.0)
    scale = np.divide(step.graph.duration_s, whole, out=np.ones_like(whole), where=whole > 0.0)
    joined = np.concatenate([task, rest])
    order = np.argsort(joined, kind="stable")
    none = np.full(len(rest), -1)
    return Rows(
        task=joined[order],
        seconds=np.concatenate([seconds[action, phase] * scale[task], step.graph.duration_s[rest]])[
            order
        ],
        action=np.concatenate([action, none])[order],
        phase=np.concatenate([phase, none])[order],
        profile=np.concatenate([profile, _others(played, takes, rest, count)])[order],
    )


def _others(played: Played, takes: Profiles, tasks: Ints, count: int) -> Ints:
    """Profiles of sends, reductions, gathers and copies."""
    step, listed = played.step, played.program
    ranks, chunks, kinds = takes.passes.shape[:3]
    sends = 1 + ranks * chunks * kinds * count
    step_end = sends + ranks * chunks * kinds
    copies = step_end + 2 * ranks
    rows = np.zeros(len(tasks), np.int64)
    row, rank = step.row[tasks], step.rank[tasks].astype(np.int64)
    sent = np.flatnonzero(step.kind[tasks] == SEND)
    at = tuple(column[row[sent]] for column in (listed.rank, listed.chunk, listed.kind))
    rows[sent] = sends + np.ravel_multi_index(at, (ranks, chunks, kinds))
    of_caller = (step.kind[tasks] == EXTRA) & (row < step.extras)
    word = np.full(len(tasks), -1)
    word[of_caller] = played.notes[row[of_caller], 1]
    stream = step.stream[tasks]
    moved = of_caller & (stream == DATA)
    rows[moved] = step_end + 2 * rank[moved] + (word[moved] == _GATHER)
    moved = of_caller & (stream == COPY)
    rows[moved] = copies + 2 * rank[moved] + (word[moved] == _FETCH)
    return rows


def table_of(takes: Profiles) -> Floats:
    """All profiles below one another, (profiles, width); the first takes nothing."""
    width = takes.link.shape[1]
    parts = [takes.passes, takes.sends, takes.step_end, takes.copies]
    return np.concatenate([np.zeros((1, width)), *(x.reshape(-1, width) for x in parts)])


def links_of(takes: Profiles) -> Ints:
    """The links of each profile."""
    parts = (takes.passes, takes.sends, takes.step_end, takes.copies)
    links = [np.repeat(takes.link, x[0, ..., 0].size, axis=0) for x in parts]
    return np.concatenate([takes.link[:1], *links])


def merged(rows: Rows, takes: NDArray[np.bool_]) -> Rows:
    """Make one phase of those of a task that take nothing, one after the other."""
    nothing = ~takes[rows.profile]
    again = np.r_[False, (rows.task[1:] == rows.task[:-1]) & nothing[1:] & nothing[:-1]]
    first = np.flatnonzero(~again)
    return Rows(
        task=rows.task[first],
        seconds=np.add.reduceat(rows.seconds, first) if len(first) else rows.seconds,
        action=rows.action[first],
        phase=rows.phase[first],
        profile=np.where(nothing, 0, rows.profile)[first],
    )
