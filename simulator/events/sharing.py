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

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulator.events.byte_time import COMMUNICATION
from simulator.events.demands import Demands
from simulator.events.engine import Times, play
from simulator.events.link_profiles import COMPUTING, PHASES, Profiles
from simulator.events.passes import CAUSE
from simulator.events.phase_rows import Rows, links_of, merged, rows_of, table_of
from simulator.events.phases import Phases, cut, together
from simulator.events.play import Played

__all__ = ["shared"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Uses = dict[str, tuple[str, float]]

_FULL = 1.0 + 1e-9
"""Share of a link above which it is too much: rounding."""
_LEAST = 1e-9
"""Share of a step that is no delay: rounding."""


class Rows:
    """Phases of all tasks, in the order of tasks."""

    task: Ints
    seconds: Floats
    action: Ints
    """The action that it is a phase of; -1: of none."""
    phase: Ints
    profile: Ints
    """Row of `_table`; 0: takes nothing."""


def shared(played: Played, takes: Profiles) -> tuple[Played, Uses]:
    """Play a step where its tasks share links.

    Returns
    -------
    Played
        Delays of passes are noted with their causes.
    dict
        By kind of link the one that carries most, and the seconds for which it would be full.
    """
    rows, table, link = rows_of(played, takes), table_of(takes), links_of(takes)
    uses = _uses(takes, rows, table, link)
    short = _short(played, rows, table, link, len(takes.names))
    amount = np.where(short[link], table, 0.0)
    rows = merged(rows, np.asarray(amount.any(axis=1)))
    if not amount[rows.profile].any():
        return played, uses
    phases = cut(played.step.graph, rows.task, rows.seconds)
    times = play(phases.graph, _demands(rows, amount, link, len(takes.names)), played.step.name)
    late = np.maximum(times.end_s - times.start_s - rows.seconds, 0.0)
    if late.max(initial=0.0) <= _LEAST * times.makespan_s:
        return played, uses
    return _delayed(played, takes, rows, phases, times, late), uses


def _short(played: Played, rows: Rows, table: Floats, link: Ints, links: int) -> NDArray[np.bool_]:
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


def _demands(rows: Rows, amount: Floats, link: Ints, links: int) -> Demands:
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
    played: Played, takes: Profiles, rows: Rows, phases: Phases, times: Times, late: Floats
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


def _uses(takes: Profiles, rows: Rows, table: Floats, link: Ints) -> Uses:
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
