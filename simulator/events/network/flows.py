"""Flows as a table, and how equal ones become one class.

A flow moves its bytes over its links once its step begins; a step begins when the step before it
has ended and its own lag has passed. Flows that see equal links, each shared with equal flows, have
equal rates at all times: colour refinement (Weisfeiler and Leman) finds the coarsest such classes,
so that folding is exact. Thousands of GPUs that do the same become a handful of classes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats, Ints
from simulator.compiled import compiled
from simulator.errors import InputError, problem
from simulator.events.network.routes import Routes
from simulator.records import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Flows:
    """Flows (or classes of them) and the steps that they make up."""

    first: Ints
    link: Ints
    share: Floats
    size_bytes: Floats
    """Of each flow of a class."""
    limit_bytes_per_s: Floats
    """Rate of a flow where nothing shares its links."""
    count: Floats
    """Equal flows of a class."""
    step: Ints
    start_s: Floats
    """Earliest begin, by step."""
    before: Ints
    """The step whose end this step waits for, with a lower number; -1 none."""
    lag_s: Floats
    """By step, between its begin and its first byte: the latency of its hops."""

    def __len__(self) -> int:
        """Number of flows."""
        return len(self.size_bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Folded:
    """Classes of equal flows over classes of equal links."""

    flows: Flows
    capacity_bytes_per_s: Floats
    """Of all links of a class together."""
    flow_class: Ints
    """By flow before folding."""
    link_class: Ints
    """By link; -1 where nothing crosses it."""
    step_class: Ints
    links_of: Floats
    """Links of each class."""


class _Colours(NamedTuple):
    """A number for every flow, link and step: equal ones look alike so far."""

    flow: NDArray[np.uint64]
    link: NDArray[np.uint64]
    step: NDArray[np.uint64]


class _Touched(NamedTuple):
    """What a flow touches: its links, each by a share, and its step, which waits for another."""

    first: Ints
    link: Ints
    share: NDArray[np.uint64]
    """Bits of the shares."""
    step: Ints
    before: Ints


def flows(
    ways: Routes,
    size_bytes: Floats | float,
    *,
    limit_bytes_per_s: Floats | float = np.inf,
    step: Ints | None = None,
    start_s: Floats | float = 0.0,
    before: Ints | None = None,
    lag_s: Floats | float = 0.0,
) -> Flows:
    """Make a table of flows; without `step` each is a step of its own.

    Raises
    ------
    InputError
        If a size or a time is negative or no number, a limit is not positive, or a step waits for
        itself or a later one.
    """
    number = len(ways)
    steps = np.arange(number) if step is None else np.asarray(step, dtype=np.int64)
    total = int(steps.max(initial=-1)) + 1
    if not np.ndim(start_s) == np.ndim(lag_s) == 0 or before is not None:
        sizes = [len(x) for x in (start_s, lag_s, before) if isinstance(x, np.ndarray) and x.ndim]
        total = max([total, *sizes])
    waits = np.full(total, -1) if before is None else np.asarray(before, dtype=np.int64)
    table = Flows(
        first=ways.first,
        link=ways.link,
        share=ways.share,
        size_bytes=_filled(size_bytes, number),
        limit_bytes_per_s=_filled(limit_bytes_per_s, number),
        count=np.ones(number),
        step=steps,
        start_s=_filled(start_s, total),
        before=waits.astype(np.int64),
        lag_s=_filled(lag_s, total),
    )
    _check(table)
    return table


def _filled(value: Floats | float, number: int) -> Floats:
    # a copy: what is broadcast is read-only, for which everything would be compiled again
    return np.broadcast_to(np.asarray(value, dtype=np.float64), (number,)).copy()


def _check(table: Flows) -> None:
    problems: list[str] = []
    rules = (
        ("size_bytes", table.size_bytes, "must not be negative", table.size_bytes >= 0.0),
        (
            "limit_bytes_per_s",
            table.limit_bytes_per_s,
            "must be positive",
            table.limit_bytes_per_s > 0.0,
        ),
        ("start_s", table.start_s, "must not be negative", table.start_s >= 0.0),
        ("lag_s", table.lag_s, "must not be negative", table.lag_s >= 0.0),
    )
    for name, values, rule, sound in rules:
        if len(at := np.flatnonzero(~sound)):
            near = "" if name == "limit_bytes_per_s" else " (nearest: 0)"
            problems.append(problem("flows", f"{name}[{at[0]}]", rule, float(values[at[0]])) + near)
    late = np.flatnonzero(table.before >= np.arange(len(table.before)))
    if len(late):
        rule = "must be an earlier step"
        problems.append(problem("flows", f"before[{late[0]}]", rule, int(table.before[late[0]])))
    if problems:
        raise InputError(problems)


def joined(*tables: Flows) -> Flows:
    """Put flows of several calls, or of several jobs, side by side on one network."""
    steps = np.cumsum([0, *(len(t.start_s) for t in tables)])[:-1]
    entries = np.cumsum([0, *(len(t.link) for t in tables)])
    first = [t.first[:-1] + at for t, at in zip(tables, entries, strict=False)]
    columns = {
        name: np.concatenate([getattr(t, name) for t in tables])
        for name in (
            "link",
            "share",
            "size_bytes",
            "limit_bytes_per_s",
            "count",
            "start_s",
            "lag_s",
        )
    }
    return Flows(
        first=np.concatenate([*first, entries[-1:]]),
        step=np.concatenate([t.step + at for t, at in zip(tables, steps, strict=True)]),
        before=np.concatenate(
            [np.where(t.before < 0, -1, t.before + at) for t, at in zip(tables, steps, strict=True)]
        ),
        **columns,
    )


def couple(ways: Routes, size_bytes: Floats, group: Ints, number: int) -> tuple[Routes, Floats]:
    """Join flows that move in step into one: pieces of a ring pass all its hops at one rate.

    Parameters
    ----------
    ways : Routes
        Of every hop.
    size_bytes : ndarray
        What each hop moves.
    group : ndarray of int
        Which hops belong together.
    number : int
        Groups; one without hops is a flow without bytes.

    Returns
    -------
    Routes, ndarray
        By group its links and how many of its bytes each carries; its bytes are those of its
        largest hop.
    """
    most = np.zeros(number)
    np.maximum.at(most, group, size_bytes)
    hop = np.repeat(np.arange(len(ways)), np.diff(ways.first))
    load = ways.share * size_bytes[hop]
    order = np.lexsort((ways.link, group[hop]))
    owner, link, load = group[hop][order], ways.link[order], load[order]
    fresh = np.ones(len(link), dtype=bool)
    fresh[1:] = (owner[1:] != owner[:-1]) | (link[1:] != link[:-1])
    at = np.flatnonzero(fresh)
    total = np.add.reduceat(load, at) if len(at) else load
    first = np.searchsorted(owner[at], np.arange(number + 1))
    share = total / np.where(most > 0.0, most, 1.0)[owner[at]]
    return Routes(first=first.astype(np.int64), link=link[at], share=share), most


def fold(table: Flows, capacity_bytes_per_s: Floats) -> Folded:
    """Fold flows into classes that have equal rates at all times.

    Examples
    --------
    Eight flows, two on each of four equal links, are one class on one link.

    >>> ways = Routes(first=np.arange(9), link=np.arange(8) // 2, share=np.ones(8))
    >>> folded = fold(flows(ways, 1e9), np.full(4, 1e9))
    >>> len(folded.flows), folded.flows.count.tolist(), folded.capacity_bytes_per_s.tolist()
    (1, [8.0], [4000000000.0])
    """
    links, steps = len(capacity_bytes_per_s), len(table.start_s)
    values = _Colours(
        flow=_mixed(table.size_bytes, table.limit_bytes_per_s, table.count),
        link=_mixed(capacity_bytes_per_s),
        step=_mixed(table.start_s, table.lag_s),
    )
    share = table.share.view(np.uint64)
    touched = _Touched(table.first, table.link, share, table.step, table.before)
    colours, classes = values, 0
    while True:
        flow_class, step_class = _numbered(colours.flow), _numbered(colours.step)
        number = sum(
            int(numbers.max(initial=-1)) + 1
            for numbers in (flow_class, step_class, _numbered(colours.link))
        )
        if number == classes:
            break
        classes = number
        after = _Colours(colours.flow.copy(), *map(np.zeros_like, colours[1:]))
        _refine(values, colours, touched, after)
        colours = after
    crossed = np.bincount(table.link, minlength=links) > 0
    link_class = np.full(links, -1, dtype=np.int64)
    link_class[crossed] = _numbered(colours.link[crossed])
    return _classes(table, capacity_bytes_per_s, flow_class, link_class, step_class, steps)


def _classes(
    table: Flows, capacity: Floats, flow: Ints, link: Ints, step: Ints, steps: int
) -> Folded:
    """One flow, one link, one step for each class; first come, first numbered."""
    member, member_step = _firsts(flow), _firsts(step)
    kept = np.zeros(len(table), dtype=bool)
    kept[member] = True
    width = np.diff(table.first)
    entries = np.repeat(kept, width)
    before = table.before[member_step]
    used = link >= 0
    small = Flows(
        first=np.concatenate([[0], np.cumsum(width[member])]).astype(np.int64),
        link=link[table.link[entries]],
        share=table.share[entries],
        size_bytes=table.size_bytes[member],
        limit_bytes_per_s=table.limit_bytes_per_s[member],
        count=_sums(flow, table.count),
        step=step[table.step[member]],
        start_s=table.start_s[member_step],
        before=np.where(before < 0, -1, step[before]) if steps else before,
        lag_s=table.lag_s[member_step],
    )
    return Folded(
        flows=small,
        capacity_bytes_per_s=_sums(link[used], capacity[used]),
        flow_class=flow,
        link_class=link,
        step_class=step,
        links_of=np.bincount(link[used]).astype(float),
    )


def _numbered(colour: NDArray[np.uint64]) -> Ints:
    """Number colours in the order in which they first appear."""
    _, at, inverse = np.unique(colour, return_index=True, return_inverse=True)
    rank = np.empty(len(at), dtype=np.int64)
    rank[np.argsort(at)] = np.arange(len(at))
    return rank[inverse]


def _sums(number: Ints, values: Floats) -> Floats:
    return np.asarray(np.bincount(number, weights=values), dtype=np.float64)


def _firsts(number: Ints) -> Ints:
    """Where each number first appears, numbers being in the order of appearance."""
    return np.unique(number, return_index=True)[1].astype(np.int64)


def _mixed(*columns: Floats) -> NDArray[np.uint64]:
    """Colour by the values of some columns."""
    colour = np.zeros(len(columns[0]), dtype=np.uint64)
    for column in columns:
        _mix_into(colour, np.ascontiguousarray(column).view(np.uint64))
    return colour


@compiled
def _mix(x):  # type: ignore[no-untyped-def]
    """Scramble 64 bits (splitmix64, Steele et al. 2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@compiled
def _mix_into(colour, bits):  # type: ignore[no-untyped-def]
    for i in range(len(colour)):
        colour[i] = _mix(colour[i] ^ _mix(bits[i]))


@compiled
def _refine(values, colours, touched, after):  # type: ignore[no-untyped-def]
    """Colour everything anew by its own values and the colours of all that it touches.

    `after` has what comes out; its links and steps are zero before.
    """
    flow, link, step = colours
    first, links, share, step_of, before = touched
    new_flow, new_link, new_step = after
    for f in range(len(flow)):
        seen = np.uint64(0)
        for k in range(first[f], first[f + 1]):
            seen += _mix(link[links[k]] ^ _mix(share[k]))
            new_link[links[k]] += _mix(flow[f] ^ _mix(share[k]))
        new_flow[f] = _mix(values.flow[f] ^ _mix(seen ^ _mix(step[step_of[f]])))
        new_step[step_of[f]] += _mix(flow[f])
    for at in range(len(link)):
        new_link[at] = _mix(values.link[at] ^ _mix(new_link[at]))
    for s in range(len(step)):
        past = step[before[s]] if before[s] >= 0 else np.uint64(1)
        new_step[s] = _mix(values.step[s] ^ _mix(new_step[s] ^ _mix(past)))
