"""A played step once more, where calls that move bytes at the same moment share the links.

Passes are cut into phases; each phase, send, reduction and copy takes of the links of its ranks
what ``events/link_profiles.py`` says, and where together they ask for more than a link carries,
max-min fair shares slow them (``engine.play``). All replicas do the same at the same time. A link
whose users could not fill it if all of them ran at once is left out; if no link is left, or none
was short when it counted, the step is that of the longest path, to the bit.

What the compute units that a collective holds cost the compute beside it stays what the closed form
charges (`slowdown`): that holds for the time of its bytes alone, and is not charged once more where
sharing draws them out. Where what hides no longer keeps up with the compute before it, its pass is
longer, and that is charged to what hides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator.events.byte_time import COMMUNICATION
from simulator.events.demands import Demands
from simulator.events.engine import Times, play
from simulator.events.link_profiles import COMPUTING, PHASES, Profiles
from simulator.events.passes import CAUSE
from simulator.events.phases import Phases, cut, together
from simulator.events.play import Played, shown_s
from simulator.events.timeline import SPAN_KINDS, STREAMS
from simulator.events.unfold import EXTRA, SEND

__all__ = ["destinations", "shared"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Uses = dict[str, tuple[str, float]]

_FULL = 1.0 + 1e-9
"""Share of a link above which it is too much: rounding."""
_LEAST = 1e-9
"""Share of a step that is no delay: rounding."""
_GATHER, _FETCH = SPAN_KINDS.index("gather"), SPAN_KINDS.index("fetch")
_DATA, _COPY = STREAMS.index("data"), STREAMS.index("copy")


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """Phases of all tasks, in the order of tasks."""

    task: Ints
    seconds: Floats
    action: Ints
    """The action that it is a phase of; -1: of none."""
    phase: Ints
    profile: Ints
    """Row of `_table`; 0: takes nothing."""


def destinations(played: Played) -> Ints:
    """The rank to which the result of each pass goes, (ranks, chunks, kinds); -1 where it stays."""
    listed, step = played.program, played.step
    found = np.full(played.passes.shown_s.shape[:3], -1, np.int64)
    graph = step.graph
    later = np.repeat(np.arange(len(graph)), np.diff(graph.first))
    sent = step.kind[graph.predecessor] == SEND
    sent &= step.rank[graph.predecessor] != step.rank[later]
    action = step.row[graph.predecessor[sent]]
    at = (listed.rank[action], listed.chunk[action], listed.kind[action])
    found[at] = step.rank[later[sent]]
    return found


def shared(played: Played, takes: Profiles) -> tuple[Played, Uses]:
    """Play a step where its tasks share links.

    Returns
    -------
    Played
        Delays of passes are noted with their causes.
    dict
        By kind of link the one that carries most, and the seconds for which it would be full.
    """
    rows, table, link = _rows(played, takes), _table(takes), _links(takes)
    uses = _uses(takes, rows, table, link)
    short = _short(played, rows, table, link, len(takes.names))
    amount = np.where(short[link], table, 0.0)
    rows = _merged(rows, np.asarray(amount.any(axis=1)))
    if not amount[rows.profile].any():
        return played, uses
    phases = cut(played.step.graph, rows.task, rows.seconds)
    times = play(phases.graph, _demands(rows, amount, link, len(takes.names)), played.step.name)
    late = np.maximum(times.end_s - times.start_s - rows.seconds, 0.0)
    if late.max(initial=0.0) <= _LEAST * times.makespan_s:
        return played, uses
    return _delayed(played, takes, rows, phases, times, late), uses


def _rows(played: Played, takes: Profiles) -> _Rows:
    """Cut every pass into phases; other tasks are of one."""
    listed, step = played.program, played.step
    shown, count = shown_s(played), len(PHASES)
    columns = [shown[:, [CAUSE[name] for name in names]].sum(axis=1) for names in PHASES]
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
    return _Rows(
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
    tails = sends + ranks * chunks * kinds
    copies = tails + 2 * ranks
    found = np.zeros(len(tasks), np.int64)
    row, rank = step.row[tasks], step.rank[tasks].astype(np.int64)
    sent = np.flatnonzero(step.kind[tasks] == SEND)
    at = tuple(column[row[sent]] for column in (listed.rank, listed.chunk, listed.kind))
    found[sent] = sends + np.ravel_multi_index(at, (ranks, chunks, kinds))
    own = (step.kind[tasks] == EXTRA) & (row < step.extras)
    word = np.full(len(tasks), -1)
    word[own] = played.notes[row[own], 1]
    stream = step.stream[tasks]
    moved = own & (stream == _DATA)
    found[moved] = tails + 2 * rank[moved] + (word[moved] == _GATHER)
    moved = own & (stream == _COPY)
    found[moved] = copies + 2 * rank[moved] + (word[moved] == _FETCH)
    return found


def _table(takes: Profiles) -> Floats:
    """All profiles below one another, (profiles, width); the first takes nothing."""
    width = takes.link.shape[1]
    parts = [takes.passes, takes.sends, takes.tails, takes.copies]
    return np.concatenate([np.zeros((1, width)), *(x.reshape(-1, width) for x in parts)])


def _links(takes: Profiles) -> Ints:
    """The links of each profile."""
    parts = (takes.passes, takes.sends, takes.tails, takes.copies)
    each = [np.repeat(takes.link, x[0, ..., 0].size, axis=0) for x in parts]
    return np.concatenate([takes.link[:1], *each])


def _short(played: Played, rows: _Rows, table: Floats, link: Ints, links: int) -> NDArray[np.bool_]:
    """Which links are too narrow for what all streams could ask of them at once."""
    asks = np.flatnonzero((rows.seconds > 0.0) & (rows.profile > 0))
    stream = np.full(len(table), -1)  # whatever has a profile runs on the same one
    stream[rows.profile[asks]] = played.step.graph.stream[rows.task[asks]]
    profile, column = np.nonzero((table > 0.0) & (stream >= 0)[:, None])
    user = stream[profile] * links + link[profile, column]
    users, place = np.unique(user, return_inverse=True)
    most = np.zeros(len(users))
    np.maximum.at(most, place, table[profile, column])
    asked = np.bincount(users % links, weights=most, minlength=links)
    return np.asarray(asked > _FULL)


def _merged(rows: _Rows, takes: NDArray[np.bool_]) -> _Rows:
    """Make one phase of those of a task that take nothing, one after the other."""
    nothing = ~takes[rows.profile]
    again = np.r_[False, (rows.task[1:] == rows.task[:-1]) & nothing[1:] & nothing[:-1]]
    first = np.flatnonzero(~again)
    return _Rows(
        task=rows.task[first],
        seconds=np.add.reduceat(rows.seconds, first) if len(first) else rows.seconds,
        action=rows.action[first], phase=rows.phase[first],
        profile=np.where(nothing, 0, rows.profile)[first],
    )  # fmt: skip


def _demands(rows: _Rows, amount: Floats, link: Ints, links: int) -> Demands:
    """What every phase takes; links are shared by their bytes, not by progress."""
    own = amount[rows.profile]
    phase, column = np.nonzero(own > 0.0)
    most = own.max(axis=1)
    return Demands(
        capacity=np.ones(links),
        first=np.searchsorted(phase, np.arange(len(own) + 1)),
        resource=link[rows.profile[phase], column],
        amount=own[phase, column],
        held=np.zeros(len(phase), np.bool_),
        work=rows.seconds,
        limit=np.ones(len(own)),
        priority=np.zeros(len(own), np.int64),
        weight=np.where(most > 0.0, most, 1.0),
    )


def _delayed(
    played: Played, takes: Profiles, rows: _Rows, phases: Phases, times: Times, late: Floats
) -> Played:
    """The step as it was played, and what its passes were late for."""
    late = np.where(late > _LEAST * times.makespan_s * 1e-3, late, 0.0)
    own = np.flatnonzero((late > 0.0) & (rows.action >= 0))
    beside = rows.phase[own] == COMPUTING
    waits, hides = own[~beside], own[beside]
    named = np.array([CAUSE[names[0]] for names in PHASES])
    delays = [np.column_stack([rows.action[waits], named[rows.phase[waits]]])]
    delays_s, listed = [late[waits]], played.program
    action = rows.action[hides]
    share = takes.hiding[listed.rank[action], listed.chunk[action], listed.kind[action]]
    for i, name in enumerate((*COMMUNICATION, "offload")):
        delays.append(np.column_stack([action, np.full(len(action), CAUSE[name])]))
        delays_s.append(late[hides] * share[:, i])
    noted_s = np.concatenate(delays_s)
    noted = np.concatenate(delays)[noted_s > 0.0]
    whole = together(phases, times)
    longer = np.bincount(rows.task, weights=late, minlength=len(played.step.graph))
    graph = replace(played.step.graph, duration_s=played.step.graph.duration_s + longer)
    return replace(
        played, times=whole, step=replace(played.step, graph=graph),
        delays=np.concatenate([played.delays, noted]),
        delays_s=np.concatenate([played.delays_s, noted_s[noted_s > 0.0]]),
    )  # fmt: skip


def _uses(takes: Profiles, rows: _Rows, table: Floats, link: Ints) -> Uses:
    """The link of each kind that carries most."""
    seconds = np.bincount(rows.profile, weights=rows.seconds, minlength=len(table))
    carried = np.bincount(
        link.ravel(), weights=(table * seconds[:, None]).ravel(), minlength=len(takes.names)
    )
    kinds = np.array([name.split()[0] for name in takes.names])
    found = {}
    for kind in dict.fromkeys(kinds.tolist()):
        at = np.flatnonzero(kinds == kind)
        most = int(at[np.argmax(carried[at])])
        if carried[most] > 0.0:
            found[kind] = takes.names[most], float(carried[most])
    return found
