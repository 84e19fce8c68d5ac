"""Whether a spare is free when a server fails: an M/M/c queue whose arrivals stop while it waits.

Servers in repair are a birth-death process. Its distribution is Poisson's, cut off behind the last
spare where the run waits (Erlang's loss formula holds for any distribution of repairs), and whole
where the run shrinks and goes on failing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.arrays import Floats

__all__ = ["PoolUse", "pool_use"]


@dataclass(frozen=True, kw_only=True)
class PoolUse:
    """Chances of what a failed server finds; all of shape (layouts, 1)."""

    hot: Floats
    """A hot spare is free."""
    cold: Floats
    """None, but another server of the pool is."""
    none: Floats
    """Neither."""
    repair_s: Floats
    """Mean time of the repairs that others wait for."""
    back_per_s: Floats
    """How often a repair ends while none is free."""
    slower: Floats
    """Mean share of the speed that a run loses, where it shrinks and does not wait."""


def pool_use(
    load: Floats, repair_s: Floats, hot: Floats, pool: Floats, *, shrinks: Any, lost: Any = 0.0
) -> PoolUse:
    """Find the chances of spares.

    Parameters
    ----------
    load : (layouts, 1)
        Servers that fail in the time of one repair.
    repair_s : (layouts, 1)
        Mean time of a repair.
    hot, pool : (layouts, 1)
        Hot spares, and all spares.
    shrinks : bool or (layouts, 1)
        Whether a run trains on without a server, and does not wait.
    lost : float or (layouts, 1)
        Share of its speed that it loses then, for each.

    Examples
    --------
    One spare, half a failure per repair: states 0 and 1 are seen as 1 to 0.5.

    >>> one = np.ones((1, 1))
    >>> use = pool_use(0.5 * one, one, one, one, shrinks=False)
    >>> round(float(use.hot[0, 0]), 4), round(float(use.none[0, 0]), 4)
    (0.6667, 0.3333)
    """
    shrinks, lost = np.broadcast_to(shrinks, load.shape), np.broadcast_to(lost, load.shape)
    rows = np.hstack([load, repair_s, hot, pool, shrinks, lost])
    if len(rows) > 1 and (rows == rows[0]).all():  # layouts of one search, mostly
        first = [column[:1] for column in (load, repair_s, hot, pool)]
        found = pool_use(*first, shrinks=shrinks[:1], lost=lost[:1])
        return PoolUse(**{name: np.broadcast_to(x, load.shape) for name, x in vars(found).items()})
    most = np.minimum(pool, np.ceil(load + 12.0 * np.sqrt(load) + 30.0))
    states = np.arange(int(np.nanmax(most)) + (40 if np.any(shrinks) else 2))
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(states > 0, states * np.log(load), 0.0)
    logs = logs - np.concatenate(([0.0], np.cumsum(np.log(np.maximum(states[1:], 1)))))
    logs = np.where(shrinks | (states <= most + 1), logs, -np.inf)
    chance = np.exp(logs - logs.max(axis=1, keepdims=True))
    chance = chance / chance.sum(axis=1, keepdims=True)
    seen = np.where(shrinks | (states <= most), chance, 0.0)
    seen = seen / seen.sum(axis=1, keepdims=True)
    warm = np.sum(np.where(states < hot, seen, 0.0), axis=1, keepdims=True)
    cold = np.sum(np.where((states >= hot) & (states < pool), seen, 0.0), axis=1, keepdims=True)
    short = np.maximum(states - pool, 0.0)
    return PoolUse(
        hot=warm,
        cold=cold,
        none=np.maximum(1.0 - warm - cold, 0.0),
        repair_s=np.maximum(repair_s, 1e-9),
        back_per_s=np.maximum(pool + 1.0, load) / np.maximum(repair_s, 1e-9),
        slower=np.sum(chance * np.minimum(short * lost, 1.0), axis=1, keepdims=True),
    )
