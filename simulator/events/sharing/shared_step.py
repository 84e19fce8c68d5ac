"""A played step once more, with what its tasks take: links that they share, units that they hold.

Passes are cut into phases; each phase, send, reduction and copy takes of the links of its ranks
what ``events/sharing/link_profiles.py`` says, and where together they ask for more than a link
carries, max-min fair shares slow them (``engine.play``). Where what hides no longer keeps up with
the compute before it, its pass is longer, and that is charged to what hides. Sends, reductions and
gathers hold compute units beside the passes of their rank (`held_s`), those that are drawn out for
longer.

All replicas do the same at the same time. A link whose users could not fill it if all of them ran
at once is left out. If none is left and nothing runs beside compute, or nothing was short when it
counted, the step is that of the longest path, to the bit.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats, Ints
from simulator.cost.collectives.calls import send_share, slowdown_share
from simulator.cost.terms import HIDDEN
from simulator.events.engine.demands import Demands, demands
from simulator.events.engine.engine import Times, play
from simulator.events.engine.graph import TaskGraph
from simulator.events.sharing.link_profiles import HIDING, Profiles
from simulator.events.sharing.phase_rows import Rows, links_of, merged, rows_of, table_of
from simulator.events.step.pass_costs import CAUSE
from simulator.events.step.play import Played, shown_s
from simulator.events.step.streams import COMPUTING, PHASE_TERMS, REPEATING
from simulator.records import dataclass

Uses = dict[str, tuple[str, float]]

_FULL = 1.0 + 1e-9
"""Share of a link above which it is too much: rounding."""
_LEAST = 1e-9
"""Share of a step that is no delay: rounding."""


@dataclass(frozen=True, kw_only=True)
class _Given:
    """What each profile takes of what is shared."""

    amount: Floats
    """Of links that may be short, (profiles, width)."""
    link: Ints
    """Their numbers, (profiles, width)."""
    compute: Floats
    """Of the rank's compute units, (profiles,)."""
    holds: NDArray[np.bool_]
    """Whether it holds them while it runs, (profiles,)."""
    links: int
    """Of all replicas."""

    @property
    def takes(self) -> NDArray[np.bool_]:
        """Whether a profile takes anything, (profiles,)."""
        return np.asarray(self.amount.any(axis=1) | (self.compute > 0.0))


def shared(played: Played, takes: Profiles) -> tuple[Played, Played, Uses]:
    """Play a step with what its tasks take; delays of passes are noted with their causes.

    Returns
    -------
    Played
        Calls hold compute units, and each kind has its links to itself.
    Played
        The kinds share links, too.
    dict
        By kind of link the one that carries most, and the seconds for which it would be full.
    """
    rows, table, link = rows_of(played, takes), table_of(takes), links_of(takes)
    links = len(takes.names)
    short = _short(played, rows, table, link, links)
    compute, holds = units(played, takes, rows)
    apart = _Given(
        amount=np.zeros_like(table), link=link, compute=compute, holds=holds, links=links
    )
    alone = together = _played(played, takes, rows, apart)
    if short.any():
        given = replace(apart, amount=np.where(short[link], table, 0.0))
        together = _played(played, takes, rows, given)
    return alone, together, _uses(takes, rows, table, link)


def _played(played: Played, takes: Profiles, rows: Rows, given: _Given) -> Played:
    """Play the phases of a step; as it was if none takes longer or shorter."""
    rows = merged(rows, given.takes)
    if not given.takes[rows.profile].any():
        return played
    charged = np.where(rows.phase == COMPUTING, charged_s(played)[rows.action], 0.0)
    plain = np.maximum(rows.seconds - charged, 0.0)
    phases = cut(played.step.graph, rows.task, plain)
    times = play(phases.graph, _demands(played, rows, given, plain), played.step.name)
    late = times.end_s - times.start_s - rows.seconds
    if np.abs(late).max(initial=0.0) <= _LEAST * times.makespan_s:
        return played
    return _delayed(played, takes, (rows, plain), given, phases, times)


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


def _demands(played: Played, rows: Rows, given: _Given, seconds: Floats) -> Demands:
    """What every phase takes; links are shared by their bytes, not by progress."""
    amount, rank = given.amount[rows.profile], played.step.rank[rows.task]
    phase, column = np.nonzero(amount > 0.0)
    computes = np.flatnonzero(given.compute[rows.profile] > 0.0)
    most = amount.max(axis=1)
    entries = np.concatenate(
        [
            np.column_stack(
                [phase, given.link[rows.profile[phase], column], amount[phase, column]]
            ),
            np.column_stack(
                [computes, given.links + rank[computes], given.compute[rows.profile[computes]]]
            ),
        ]
    )
    held = np.concatenate([np.zeros(len(phase), np.bool_), given.holds[rows.profile[computes]]])
    return demands(
        seconds,
        np.ones(given.links + played.program.ranks),
        entries,
        held=held,
        weight=np.where(most > 0.0, most, 1.0),
    )


def _delayed(
    played: Played,
    takes: Profiles,
    cut_up: tuple[Rows, Floats],
    given: _Given,
    phases: Phases,
    times: Times,
) -> Played:
    """The step as it was played, and what its passes were late for."""
    rows, plain = cut_up
    whole = together(phases, times)
    longer = whole.end_s - whole.start_s - played.step.graph.duration_s
    longer[np.abs(longer) <= _LEAST * times.makespan_s] = 0.0
    graph = replace(played.step.graph, duration_s=played.step.graph.duration_s + longer)
    late = times.end_s - times.start_s - plain
    busy = np.flatnonzero((rows.phase == COMPUTING) | (rows.phase == REPEATING))
    held = np.zeros(len(late))
    held[busy] = np.minimum(_held(played, rows, given, times, busy), late[busy])
    noted, noted_s = _noted(played, takes, rows, late - held)
    slowed = held[busy] + plain[busy] - rows.seconds[busy]
    cause = np.full(len(busy), CAUSE["slowdown"])
    noted = np.concatenate([noted, np.column_stack([rows.action[busy], cause])])
    noted_s = np.concatenate([noted_s, slowed])
    kept = np.abs(noted_s) > _LEAST * 1e-3 * times.makespan_s
    return replace(
        played,
        times=whole,
        step=replace(played.step, graph=graph),
        delays=np.concatenate([played.delays, noted[kept]]),
        delays_s=np.concatenate([played.delays_s, noted_s[kept]]),
    )


def _held(played: Played, rows: Rows, given: _Given, times: Times, busy: Ints) -> Floats:
    """Units that calls hold beside phases that compute, as seconds of all of them."""
    rank = played.step.rank[rows.task].astype(np.int64)
    calls = np.flatnonzero(given.holds[rows.profile])
    stream = played.step.stream[rows.task[calls]].astype(np.int64)
    spans = (rank[calls], stream, times.start_s[calls], times.end_s[calls])
    share = given.compute[rows.profile[calls]]
    return held_s(rank[busy], times.start_s[busy], times.end_s[busy], spans, share)


def _noted(played: Played, takes: Profiles, rows: Rows, late: Floats) -> tuple[Ints, Floats]:
    """Which passes were late for want of links, and by what cause."""
    flatnonzero = np.flatnonzero((late != 0.0) & (rows.action >= 0))
    beside = rows.phase[flatnonzero] == COMPUTING
    waits, hides = flatnonzero[~beside], flatnonzero[beside]
    named = np.array([CAUSE[names[0]] for names in PHASE_TERMS])
    delays = [np.column_stack([rows.action[waits], named[rows.phase[waits]]])]
    delays_s, listed = [late[waits]], played.program
    action = rows.action[hides]
    share = takes.hiding[listed.rank[action], listed.chunk[action], listed.kind[action]]
    for i, name in enumerate(HIDING):
        delays.append(np.column_stack([action, np.full(len(action), CAUSE[name])]))
        delays_s.append(late[hides] * share[:, i])
    return np.concatenate(delays), np.concatenate(delays_s)


def _uses(takes: Profiles, rows: Rows, table: Floats, link: Ints) -> Uses:
    """The link of each kind that carries most."""
    seconds = np.bincount(rows.profile, weights=rows.seconds, minlength=len(table))
    carried = np.bincount(
        link.ravel(), weights=(table * seconds[:, None]).ravel(), minlength=len(takes.names)
    )
    kinds = np.array([name.split()[0] for name in takes.names])
    uses = {}
    for kind in dict.fromkeys(kinds.tolist()):
        at = np.flatnonzero(kinds == kind)
        most = int(at[np.argmax(carried[at])])
        if carried[most] > 0.0:
            uses[kind] = takes.names[most], float(carried[most])
    return uses


@dataclass(frozen=True, kw_only=True)
class Phases:
    """A graph of phases."""

    graph: TaskGraph
    first: Ints
    """Phases of task i of the whole graph are ``first[i]`` to ``first[i + 1]``."""
    task: Ints
    """The task of each phase."""


def cut(graph: TaskGraph, task: Ints, seconds: Floats) -> Phases:
    """Cut tasks into phases.

    Parameters
    ----------
    graph : TaskGraph
    task : ndarray
        The task of each phase, in order; every task has one at least.
    seconds : ndarray
        Of each phase.

    Examples
    --------
    >>> from simulator.events.engine.graph import task_graph
    >>> whole = task_graph([3.0, 1.0], [0, 1], [(0, 1)])
    >>> parts = cut(whole, np.array([0, 0, 1]), np.array([1.0, 2.0, 1.0]))
    >>> parts.graph.predecessor.tolist(), parts.graph.first.tolist()
    ([1], [0, 0, 0, 1])
    """
    first = np.searchsorted(task, np.arange(len(graph) + 1))
    edges = np.zeros(len(task), np.int64)
    edges[first[:-1]] = np.diff(graph.first)
    whole = TaskGraph(
        duration_s=seconds,
        stream=graph.stream[task],
        first=np.concatenate([[0], np.cumsum(edges)]).astype(np.int32),
        predecessor=(first[1:][graph.predecessor] - 1).astype(np.int32),
        lag_s=graph.lag_s,
    )
    return Phases(graph=whole, first=first, task=task)


def together(phases: Phases, times: Times) -> Times:
    """When the tasks ran whose phases ran so."""
    starts, ends = phases.first[:-1], phases.first[1:] - 1
    cause = times.cause[starts]
    return Times(
        start_s=times.start_s[starts],
        end_s=times.end_s[ends],
        cause=np.where(cause >= 0, phases.task[cause], -1).astype(np.int32),
    )


def held_share(played: Played) -> Floats:
    """Share of its compute units that a collective of each rank holds."""
    shares = [slowdown_share(replica.priced.cluster) for replica in played.replicas]
    return np.repeat(shares, played.pp)


def _sending_share(played: Played) -> Floats:
    """Share of its compute units that a send of each rank holds."""
    shares = [
        float(
            send_share(
                replica.priced.cluster, replica.priced.hop_crosses[replica.rows.state_key[0]]
            )
        )
        for replica in played.replicas
    ]
    return np.repeat(shares, played.pp)


def units(played: Played, takes: Profiles, rows: Rows) -> tuple[Floats, NDArray[np.bool_]]:
    """What each profile takes of its rank's compute units, and whether it holds them.

    Where no call of a rank runs beside its passes nothing is taken.
    """
    ranks, chunks, kinds, phases = takes.passes.shape[:4]
    share = held_share(played)
    overlaps = np.array([replica.step_end.overlaps[::-1] for replica in played.replicas])
    step_end = share[:, None] * np.repeat(overlaps, played.pp, axis=0)
    sends = np.broadcast_to(_sending_share(played)[:, None, None], (ranks, chunks, kinds))
    none = np.zeros(2 * ranks)
    first = 1 + ranks * chunks * kinds * phases
    calls = np.concatenate([np.zeros(first), sends.ravel(), step_end.ravel(), none])
    used = np.zeros(len(calls), dtype=np.bool_)
    used[rows.profile[rows.seconds > 0.0]] = True
    rank = np.concatenate(
        [np.repeat(np.arange(ranks), chunks * kinds), np.repeat(np.arange(ranks), 2)]
    )
    beside = np.zeros(ranks, dtype=np.bool_)
    beside[rank[(used & (calls > 0.0))[first : first + len(rank)]]] = True
    passes = np.zeros((ranks, chunks, kinds, phases))
    passes[..., [COMPUTING, REPEATING]] = beside[:, None, None, None]
    taken = calls.copy()
    taken[1:first] = passes.ravel()
    return taken, calls > 0.0


def charged_s(played: Played) -> Floats:
    """Slowdown of every action that the closed form charges for calls that are tasks.

    Of reductions that is the last one; those before it run inside passes.
    """
    listed, passes = played.program, played.passes
    seconds = np.zeros(len(listed))
    slowdowns = played.changes[:, 1] == CAUSE["slowdown"]
    action = played.changes[slowdowns, 0]
    np.add.at(seconds, action, played.changes_s[slowdowns])
    if passes.send_s.any():
        hidden = passes.hidden_s[listed.rank, listed.chunk, listed.kind, HIDDEN.index("pp")]
        seconds += hidden * _sending_share(played)[listed.rank]
    return np.minimum(seconds, shown_s(played)[:, CAUSE["slowdown"]])


def held_s(
    rank: Ints,
    start_s: Floats,
    end_s: Floats,
    calls: tuple[Ints, Ints, Floats, Floats],
    share: Floats,
) -> Floats:
    """Units held beside some phases, as seconds of all of them.

    Parameters
    ----------
    rank, start_s, end_s : ndarray
        Of the phases.
    calls : tuple of ndarray
        Rank, stream, start and end of calls; those of one stream stand one after the other
        and hold as much.
    share : ndarray
        Share that each call holds.

    Examples
    --------
    A call from 1 to 3 s that holds a quarter, beside a phase from 2 to 6 s.

    >>> zero = np.zeros(1, int)
    >>> calls = (zero, zero, np.array([1.0]), np.array([3.0]))
    >>> held_s(zero, np.array([2.0]), np.array([6.0]), calls, np.array([0.25])).tolist()
    [0.25]
    """
    seconds = np.zeros(len(rank))
    of_rank, stream, first_s, last_s = calls
    key = of_rank * (int(stream.max(initial=0)) + 1) + stream
    order, here = np.argsort(key, kind="stable"), np.argsort(rank, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(key[order])) + 1):
        if not len(rows):
            continue
        r = int(of_rank[rows[0]])
        moments = np.column_stack([first_s[rows], last_s[rows]]).ravel()
        busy = np.column_stack([np.zeros(len(rows)), last_s[rows] - first_s[rows]]).ravel().cumsum()
        low, high = np.searchsorted(rank, (r, r + 1), sorter=here)
        at = here[low:high]
        until = np.interp(end_s[at], moments, busy) - np.interp(start_s[at], moments, busy)
        seconds[at] += share[rows[0]] * until
    return seconds
