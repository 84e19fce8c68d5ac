"""Max-min fair rates: how flows that cross common links share what the links carry.

Progressive filling (Bertsekas and Gallager, Data Networks, section 6.5.2): the rates of all flows
rise together until a link is full; its flows keep what they have, the others go on rising. The
result is the only one in which no flow can have more without taking from a flow that has no more
than it. Equal flows are one class; a class loads a link with `share` times the rate of each flow.

A rate may be anything that adds up on what it uses: bytes per second on a link, or the progress of
a task that takes a part of the memory bandwidth of its accelerator.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from simulator.arrays import Floats, Ints
from simulator.compiled import compiled
from simulator.errors import InputError, problem


class Crossings(NamedTuple):
    """Classes of equal flows and the links that they cross, as compiled code takes them."""

    capacity: Floats
    """Of each link."""
    first: Ints
    """Class ``c`` crosses the links ``link[first[c]:first[c + 1]]``."""
    link: Ints
    share: Floats
    """Load on each listed link for one unit of rate."""
    flows: Floats
    """Equal flows of each class."""
    limit: Floats
    """Rate of a flow of each class where nothing shares its links."""


class Scratch(NamedTuple):
    """Room that :func:`fill` works in: made once by :func:`scratch`, used for many solves."""

    left: Floats
    """What is left of a live link."""
    load: Floats
    """Load on a live link for one unit of rate of its waiting classes."""
    level: Floats
    """Rate at which a live link is full."""
    crossing: Ints
    """Waiting classes that cross a live link."""
    live: Ints
    """Links that an active class crosses."""
    start: Ints
    """Where the classes of a live link start among `members`."""
    unfilled: Ints
    """Live links that are not full yet."""
    position: Ints
    """Position of a link among the live ones, or -1."""
    members: Ints
    """The classes of each live link."""
    waiting: Ints
    """Classes that still wait for their rate."""
    best: Floats
    """Rate at which a waiting class is held up as things stand."""


_NEAR = 1e-12
"""Rates closer than this are one: rounding."""


def fair_rates(
    capacity: ArrayLike,
    first: ArrayLike,
    link: ArrayLike,
    flows: ArrayLike | None = None,
    *,
    share: ArrayLike | None = None,
    limit: ArrayLike | None = None,
) -> Floats:
    """Max-min fair rate of every flow of each class: the public form of :func:`fill`.

    One solve, checked, of what `transfer` and the event queue solve at every event.

    Parameters
    ----------
    capacity : array_like, (links,)
        What each link carries, in bytes per second.
    first, link : array_like
        Class ``c`` crosses the links ``link[first[c]:first[c + 1]]``.
    flows : array_like, (classes,), optional
        Equal flows of a class, each of which crosses these links; one where not given.
    share : array_like, optional
        Load on each listed link for one unit of rate, beside `link`; 1 where not given, less where
        a flow is spread over several links.
    limit : array_like, (classes,), optional
        Rate that a flow has where nothing shares its links; infinite where not given.

    Returns
    -------
    ndarray, (classes,)
        Rates in the unit of `capacity`.

    Raises
    ------
    InputError
        If the capacity of a crossed link, a number of flows, a share or a limit is not positive, a
        link is not one of those given, or a class has neither a link nor a limit.

    Examples
    --------
    Two links of 10 and 4: one flow over both, one over each alone (textbook water filling).

    >>> fair_rates([10.0, 4.0], [0, 2, 3, 4], [0, 1, 0, 1])
    array([2., 8., 2.])
    """
    room = np.ascontiguousarray(capacity, dtype=np.float64)
    start = np.ascontiguousarray(first, dtype=np.int64)
    links = np.ascontiguousarray(link, dtype=np.int64)
    classes = max(len(start) - 1, 0)
    count = _column(flows, classes)
    weight = _column(share, len(links))
    most = _column(limit, classes, np.inf)
    check(room, start, links, count, weight, most)
    rate = np.zeros(classes)
    active = np.arange(classes, dtype=np.int64)
    network = Crossings(room, start, links, weight, count, most)
    fill(network, active, classes, rate, scratch(len(room), classes, len(links)))
    return rate


def _column(values: ArrayLike | None, length: int, otherwise: float = 1.0) -> Floats:
    if values is None:
        return np.full(length, otherwise)
    # a copy: what is broadcast is read-only, for which everything would be compiled again
    return np.broadcast_to(np.asarray(values, dtype=np.float64), (length,)).copy()


def check(
    capacity: Floats, first: Ints, link: Ints, flows: Floats, share: Floats, limit: Floats
) -> None:
    """Refuse what no network is: rates that are not positive, links that are not there."""
    problems = [
        problem("network", f"{name}[{at[0]}]", "must be positive", float(values[at[0]]))
        for name, values in (("flows", flows), ("share", share), ("limit", limit))
        if len(at := np.flatnonzero(~(values > 0)))
    ]
    if len(at := np.flatnonzero(~(capacity >= 0))):
        rule = "must not be negative"
        problems.append(problem("network", f"capacity[{at[0]}]", rule, float(capacity[at[0]])))
    ordered = len(first) > 0 and first[0] == 0 and first[-1] == len(link)
    if not ordered or (np.diff(first) < 0).any():
        problems.append(
            problem("network", "first", f"must rise from 0 to {len(link)}", first.tolist())
        )
    elif len(at := np.flatnonzero((np.diff(first) == 0) & np.isinf(limit))):
        problems.append(f"network: first[{at[0]}]: a class without a link must have a limit")
    if len(at := np.flatnonzero((link < 0) | (link >= len(capacity)))):
        rule = f"must be one of the links 0 to {len(capacity) - 1}"
        problems.append(problem("network", f"link[{at[0]}]", rule, int(link[at[0]])))
    elif len(at := np.flatnonzero(capacity[link] == 0)):
        rule = "must be positive where a class crosses it"
        problems.append(problem("network", f"capacity[{link[at[0]]}]", rule, 0.0))
    if problems:
        raise InputError(problems)


def scratch(links: int, classes: int, crossings: int) -> Scratch:
    """Room for :func:`fill` over so many links, classes and entries of `link`."""
    return Scratch(
        left=np.zeros(links),
        load=np.zeros(links),
        level=np.zeros(links),
        crossing=np.zeros(links, dtype=np.int64),
        live=np.zeros(links, dtype=np.int64),
        start=np.zeros(links + 1, dtype=np.int64),
        unfilled=np.zeros(links, dtype=np.int64),
        position=np.full(links, -1, dtype=np.int64),
        members=np.zeros(crossings, dtype=np.int64),
        waiting=np.zeros(classes, dtype=np.int64),
        best=np.zeros(classes),
    )


@compiled
def _gather(network, active, number, work):  # type: ignore[no-untyped-def]
    """Collect the links that active classes cross, and the classes of each link."""
    capacity, first, link, share, flows, _ = network
    left, load, level, crossing, live, start, unfilled, position, members, _, _ = work
    count = 0
    for a in range(number):
        c = active[a]
        for k in range(first[c], first[c + 1]):
            i = position[link[k]]
            if i < 0:
                i = count
                count += 1
                position[link[k]] = i
                live[i] = link[k]
                left[i] = capacity[link[k]]
                load[i] = 0.0
                crossing[i] = 0
            crossing[i] += 1
            load[i] += flows[c] * share[k]
    total = 0
    for i in range(count):
        start[i] = total
        total += crossing[i]
        level[i] = left[i] / load[i]
        unfilled[i] = i
    for a in range(number):
        c = active[a]
        for k in range(first[c], first[c + 1]):
            i = position[link[k]]
            members[start[i]] = c
            start[i] += 1
    for i in range(count, 0, -1):
        start[i] = start[i - 1]
    start[0] = 0
    return count


@compiled
def _settle(c, rate, at_rate, network, work):  # type: ignore[no-untyped-def]
    """Give a class its rate and take its load off its links."""
    _, first, link, share, flows, _ = network
    left, load, level, crossing, _, _, _, position, _, _, _ = work
    rate[c] = at_rate
    for k in range(first[c], first[c + 1]):
        i = position[link[k]]
        loaded = flows[c] * share[k]
        left[i] = max(left[i] - loaded * at_rate, 0.0)
        load[i] -= loaded
        crossing[i] -= 1
        level[i] = left[i] / load[i] if crossing[i] > 0 else np.inf


@compiled
def fill(network, active, number, rate, work):  # type: ignore[no-untyped-def]
    """Rates of the classes ``active[:number]``, into `rate`; compiled, for use in other kernels.

    `network` is a :class:`Crossings` of float64 and int64 arrays, `work` is made by
    :func:`scratch`. Only links that an active class crosses are looked at. A link on which no
    waiting class can be held up earlier by another of its links, or by its limit, is a bottleneck
    whatever happens elsewhere: all such links are settled in one round, the fullest among them.
    """
    _, first, link, _, _, limit = network
    _, _, level, _, live, _, _, position, _, waiting, best = work
    count = _gather(network, active, number, work)
    for a in range(number):
        waiting[a] = active[a]
        rate[active[a]] = -1.0
    unset, unfilled = number, count
    while unset > 0:
        for a in range(unset):
            c = waiting[a]
            least = limit[c]
            for k in range(first[c], first[c + 1]):
                least = min(least, level[position[link[k]]])
            best[c] = least * (1.0 + _NEAR)
        unfilled = _bottlenecks(unfilled, rate, network, work)
        kept = 0
        for a in range(unset):
            c = waiting[a]
            if rate[c] < 0.0 and limit[c] <= best[c]:
                _settle(c, rate, limit[c], network, work)
            if rate[c] < 0.0:
                waiting[kept] = c
                kept += 1
        unset = kept
    for i in range(count):
        position[live[i]] = -1


@compiled
def _bottlenecks(number, rate, network, work):  # type: ignore[no-untyped-def]
    """Settle what waits on links that hold up all their classes first; links left open."""
    limit = network.limit
    _, _, level, crossing, _, start, unfilled, _, members, _, best = work
    kept = 0
    for j in range(number):
        i = unfilled[j]
        if crossing[i] == 0:
            continue
        reached, holds = level[i], True
        for m in range(start[i], start[i + 1]):
            if rate[members[m]] < 0.0 and best[members[m]] < reached:
                holds = False
                break
        if not holds:
            unfilled[kept] = i
            kept += 1
            continue
        for m in range(start[i], start[i + 1]):
            c = members[m]
            if rate[c] < 0.0:
                _settle(c, rate, min(reached, limit[c]), network, work)
    return kept


def link_load(
    rate: Floats, first: Ints, link: Ints, share: Floats, flows: Floats, links: int
) -> Floats:
    """Load of each link where the flows of each class have these rates."""
    load = np.repeat(rate * flows, np.diff(first)) * share
    return np.asarray(np.bincount(link, weights=load, minlength=links), dtype=np.float64)
