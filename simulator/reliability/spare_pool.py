"""Whether a spare is free when a server fails: an M/M/c queue whose arrivals stop while it waits.

Servers in repair are a birth-death process. Its distribution is Poisson's, cut off behind the last
spare where the run waits (Erlang's loss formula holds for any distribution of repairs), and whole
where the run shrinks and goes on failing. Servers of several kinds of repairs share the spares: one
in repair is of a kind by the load of that kind, and what is left of its repair has no memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.records import dataclass

_TIMES = 64
"""Points of the integral over the time of a wait, evenly spaced in its logarithm."""


@dataclass(frozen=True, kw_only=True)
class PoolUse:
    """Chances of what a failed server finds; all of shape (layouts, 1) but `waits_s`."""

    hot: Floats
    """A hot spare is free."""
    cold: Floats
    """None, but another server of the pool is."""
    none: Floats
    """Neither."""
    waits_s: Floats
    """Until the first of the pool, or the failed server itself, is back; (layouts, kinds)."""
    back_per_s: Floats
    """How often a repair ends for which a run that shrinks grows back."""
    slower: Floats
    """Mean share of the speed that a run loses, where it shrinks and does not wait."""
    unsure_s: Floats
    """Variance, per second, of the seconds that a run loses by waiting or by missing servers."""


def pool_use(
    load: Floats, repair_s: Floats, hot: Floats, pool: Floats, *, shrinks: Any, lost: Any = None
) -> PoolUse:
    """Find the chances of spares.

    Parameters
    ----------
    load : (layouts, kinds)
        Servers that fail in the time of one repair, by kind of repair.
    repair_s : (kinds,)
        Mean time of a repair.
    hot, pool : (layouts, 1)
        Hot spares, and all spares.
    shrinks : bool or (layouts, 1)
        Whether a run trains on without a server, and does not wait.
    lost : (layouts, servers), optional
        Share of its speed that it loses without 0, 1, 2 ... of them, the last for more.

    Examples
    --------
    One spare, half a failure per repair: states 0 and 1 are seen as 1 to 0.5.

    >>> one = np.ones((1, 1))
    >>> use = pool_use(0.5 * one, one[0], one, one, shrinks=False)
    >>> round(float(use.hot[0, 0]), 4), round(float(use.none[0, 0]), 4)
    (0.6667, 0.3333)
    """
    rows = (len(load), 1)
    shrinks = np.broadcast_to(shrinks, rows)
    lost = np.zeros(rows) if lost is None else lost
    table = np.hstack([load, hot, pool, shrinks, lost])
    if len(table) > 1 and (table == table[0]).all():  # layouts of one search, mostly
        found = pool_use(load[:1], repair_s, hot[:1], pool[:1], shrinks=shrinks[:1], lost=lost[:1])
        return PoolUse(**{name: np.broadcast_to(x, (len(load), x.shape[1]))
                          for name, x in vars(found).items()})  # fmt: skip
    whole = load.sum(axis=1, keepdims=True)
    states, chance = _chances(whole, pool, shrinks)
    seen = np.where(shrinks | (states <= pool), chance, 0.0)
    seen = seen / seen.sum(axis=1, keepdims=True)
    warm = np.sum(np.where(states < hot, seen, 0.0), axis=1, keepdims=True)
    cold = np.sum(np.where((states >= hot) & (states < pool), seen, 0.0), axis=1, keepdims=True)
    short = np.maximum(states - pool, 0.0)
    repair_s = np.maximum(repair_s, 1e-9)
    share = load / np.maximum(whole, 1e-300)
    ends = np.sum(share / repair_s, axis=1, keepdims=True)
    columns = np.minimum(short, lost.shape[1] - 1).astype(int)
    missing = np.take_along_axis(lost, columns, axis=1)
    missing = np.where(shrinks, missing, np.minimum(short, 1.0))
    return PoolUse(
        hot=warm,
        cold=cold,
        none=np.maximum(1.0 - warm - cold, 0.0),
        waits_s=_waits(share, repair_s, pool),
        back_per_s=ends * np.sum(np.where(short > 0.0, states * chance, 0.0), 1, keepdims=True),
        slower=np.sum(chance * missing, axis=1, keepdims=True),
        unsure_s=_unsure(chance, missing, whole * ends),
    )


def _chances(load: Floats, pool: Floats, shrinks: Any) -> tuple[Any, Floats]:
    """How many servers are in repair, and how often; the last state of a run that waits is that."""
    most = np.minimum(pool, np.ceil(load + 12.0 * np.sqrt(load) + 30.0))
    states = np.arange(int(np.nanmax(np.append(most, 0.0))) + (40 if np.any(shrinks) else 2))
    if np.any(shrinks):
        states = np.arange(max(len(states), int(np.nanmax(load + 12.0 * np.sqrt(load))) + 40))
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(states > 0, states * np.log(load), 0.0)
    logs = logs - np.concatenate(([0.0], np.cumsum(np.log(np.maximum(states[1:], 1)))))
    logs = np.where(shrinks | (states <= pool + 1), logs, -np.inf)
    chance = np.exp(logs - logs.max(axis=1, keepdims=True))
    return states, np.asarray(chance / chance.sum(axis=1, keepdims=True))


def _waits(share: Floats, repair_s: Floats, pool: Floats) -> Floats:
    """Mean of the least of `pool` repairs of any kind and one of each kind, (layouts, kinds).

    The integral of ``S(t)^pool exp(-t / r)``, S being the chance that a server of any kind is
    still in repair; trapezoids in the logarithm of t, since kinds last minutes or days.
    """
    used = repair_s[repair_s > 1e-6]
    if not len(used):
        return np.zeros_like(share)
    least, most = 1e-4 * float(used.min()) / (1.0 + float(pool.max())), 40.0 * float(used.max())
    logs = np.linspace(np.log(least), np.log(most), _TIMES)
    times = np.exp(logs)
    left = np.exp(-times / repair_s[:, None])  # (kinds, times)
    others = share @ left
    if (pool != 1.0).any():
        others = others**pool
    some = others * times * (logs[1] - logs[0])
    return np.asarray(some @ left.T + least)


def _unsure(chance: Floats, lost: Floats, arrivals: Floats) -> Floats:
    """Variance per second of the time lost in a birth-death process, (layouts, 1).

    ``2 sum over states of (sum up to it of chance (lost - mean))^2 / (chance x arrivals)``, the
    variance of an additive functional of a reversible chain (Keilson 1979).
    """
    mean = np.sum(chance * lost, axis=1, keepdims=True)
    sums = np.cumsum(chance * (lost - mean), axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        by_state = np.where(chance > 1e-12, sums**2 / (chance * arrivals), 0.0)
    return np.asarray(2.0 * np.sum(by_state[:, :-1], axis=1, keepdims=True))
