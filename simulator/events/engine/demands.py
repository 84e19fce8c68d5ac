"""What tasks take of what they share: compute units, memory bandwidth, links.

A task runs at a rate: work per second, at most its `limit`. What it takes of a resource grows with
that rate (`amount` for one unit of it), or it holds a fixed amount as long as it runs, whatever its
rate: thread blocks of a collective stay on their compute units while they wait for the wire. What
is held goes first; the others share the rest max-min fair (``events/engine/fair_shares.py``), each
counted by its rate times its `weight`. Where rates are progress and weights the share of a link
that full progress takes, links are shared evenly byte by byte: who asks for less than an even share
has it whole, the others divide the rest.

So a GEMM beside a collective that holds 16 of 132 compute units runs at 116 / 132; one
that would use 60 % of a memory bandwidth of which a copy takes half runs at 50 / 60; and flows of a
network have their bytes as work, links as resources and no limit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulator.arrays import Floats, Ints
from simulator.errors import InputError
from simulator.records import dataclass


@dataclass(frozen=True, kw_only=True)
class Demands:
    """What every task of a graph takes, one row per task and per entry."""

    capacity: Floats
    """What there is of each resource, shape (resources,)."""
    first: Ints
    """Entries of task i are ``first[i]`` to ``first[i + 1]``, shape (tasks + 1,)."""
    resource: Ints
    """Shape (entries,), as the next two."""
    amount: Floats
    held: NDArray[np.bool_]
    """Held as long as the task runs; else for one unit of its rate."""
    work: Floats
    """Work of each task in units of its rate: seconds at full speed where the limit is 1, bytes of
    a flow whose rate is bytes per second. Shape (tasks,), as the next two."""
    limit: Floats
    """Highest rate of a task; infinite where only what it shares limits it."""
    weight: Floats
    """What a unit of each task's rate counts where tasks share evenly."""

    def __len__(self) -> int:
        return len(self.work)


def demands(
    work: ArrayLike,
    capacity: ArrayLike,
    entries: ArrayLike = (),
    *,
    held: ArrayLike = False,
    limit: ArrayLike = 1.0,
    weight: ArrayLike = 1.0,
) -> Demands:
    """Make demands from a list of entries.

    Parameters
    ----------
    work : array_like, (tasks,)
        Seconds at full speed, or what else the rate counts.
    capacity : array_like, (resources,)
        What there is of each resource.
    entries : array_like
        Triples (task, resource, amount).
    held : array_like
        Whether the amount of each entry is held; one for all, or one per entry.
    limit, weight : array_like
        Of each task; one for all, or one per task.

    Raises
    ------
    InputError
        A capacity, an amount or a limit that is not positive, a number that names nothing.

    Examples
    --------
    >>> shared = demands([1.0, 1.0], [1.0], [(0, 0, 1.0), (1, 0, 0.25)], held=[False, True])
    >>> shared.first.tolist(), shared.held.tolist()
    ([0, 1, 2], [False, True])
    """
    size, room = np.array(work, np.float64), np.array(capacity, np.float64)
    n = len(size)
    table = np.array(entries, np.float64).reshape(-1, 3)
    task, resource = (np.asarray(table[:, i], np.int64) for i in (0, 1))
    if len(outside := task[(task < 0) | (task >= n)]):
        raise InputError(f"demands: an entry names task {outside[0]} of {n}")
    order = np.argsort(task, kind="stable")
    found = Demands(
        capacity=room,
        first=np.concatenate([[0], np.cumsum(np.bincount(task, minlength=n))]).astype(np.int64),
        resource=resource[order],
        amount=np.ascontiguousarray(table[order, 2]),
        held=np.broadcast_to(np.asarray(held, np.bool_), len(table))[order],
        work=size,
        limit=np.broadcast_to(np.asarray(limit, np.float64), n).copy(),
        weight=np.broadcast_to(np.asarray(weight, np.float64), n).copy(),
    )
    check(found)
    return found


def check(demands: Demands) -> None:
    """Refuse demands with which no task could run, or whose numbers name nothing."""
    amounts, entries, first = demands.amount, len(demands.resource), demands.first
    if (
        len(first) != len(demands) + 1
        or first[0]
        or first[-1] != entries
        or (np.diff(first) < 0).any()
    ):
        raise InputError(f"demands: first must rise from 0 to {entries} in {len(demands) + 1} rows")
    rows = np.repeat(np.arange(len(demands)), np.diff(demands.first))
    free = np.ones(len(demands), np.bool_)
    free[rows[~demands.held]] = False
    wrong: dict[str, tuple[Any, NDArray[np.bool_], str]] = {
        "capacity": (
            demands.capacity,
            ~((demands.capacity > 0) & np.isfinite(demands.capacity)),
            "must be positive and finite",
        ),
        "amount": (amounts, ~((amounts > 0) & np.isfinite(amounts)), "must be positive and finite"),
        "resource": (
            demands.resource,
            (demands.resource < 0) | (demands.resource >= len(demands.capacity)),
            f"must be from 0 to {len(demands.capacity) - 1}",
        ),
        "work": (
            demands.work,
            ~((demands.work >= 0) & np.isfinite(demands.work)),
            "must be finite and not negative",
        ),
        "limit": (demands.limit, ~(demands.limit > 0), "must be positive"),
        "weight": (
            demands.weight,
            ~((demands.weight > 0) & np.isfinite(demands.weight)),
            "must be positive and finite",
        ),
        "limit of a task that shares nothing": (
            demands.limit,
            free & np.isinf(demands.limit),
            "must be finite",
        ),
    }
    found = [
        f"demands: {name}[{at[0]}]: {rule}, got {values[at[0]]}"
        for name, (values, bad, rule) in wrong.items()
        if len(at := np.flatnonzero(bad))
    ]
    if found:
        raise InputError(found)
