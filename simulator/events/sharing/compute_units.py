"""Compute units that calls hold beside the passes of their rank.

The thread blocks of a collective, or of a send, stay on their compute units as long as it runs,
whatever its rate; the pass beside it computes with those that are left. The closed form charges a
pass for what it takes to be beside it (`slowdown`); where a step is played with what tasks take,
that is taken out again for calls that are tasks of their own, and they hold their units instead,
when and as long as they run. Calls inside a pass stay charged as the closed form has it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats, Ints
from simulator.cost.collectives.calls import send_share, slowdown_share
from simulator.cost.terms import HIDDEN
from simulator.events.sharing.link_profiles import Profiles
from simulator.events.sharing.phase_rows import Rows
from simulator.events.step.pass_costs import CAUSE
from simulator.events.step.pass_phases import COMPUTING, REPEATING
from simulator.events.step.play import Played, shown_s


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
