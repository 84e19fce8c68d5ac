"""Flows over time: rates change when a flow begins or ends, and between two such moments stand.

What ends at one moment ends together, so that rates are solved once for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulator.arrays import Floats, Ints
from simulator.compiled import compiled
from simulator.errors import ForeshardError, InputError
from simulator.events.engine.event_queue import QUEUED, enter, leave
from simulator.events.engine.fair_shares import Crossings, check, fill, scratch
from simulator.events.network.collective_phases import modelled
from simulator.events.network.flows import Flows, Folded, fold, joined
from simulator.events.network.links import Topology, degraded
from simulator.hardware.cluster import Cluster
from simulator.records import dataclass

_TOGETHER = 1e-9
"""Ends that lie closer than this share of what is left to the next one are one moment."""
_RUNNING, _WAITING, _CLOSED, _ENDED, _SOLVES = range(5)
"""Where the counters stand: running classes, steps lined up, steps just closed, classes that have
ended, times that rates were solved."""


class _Classes(NamedTuple):
    """Classes of flows, by the step that they belong to."""

    size: Floats
    step: Ints
    order: Ints
    """Classes by step."""
    members: Ints
    """Where each step starts in `order`."""


class _Steps(NamedTuple):
    """When steps may begin."""

    earliest: Floats
    before: Ints
    """The step waited for; -1 none."""
    lag: Floats
    followers: Ints
    """Steps by the step before."""
    after: Ints
    """Where the followers of each step start in `followers`."""


class _Progress(NamedTuple):
    """What changes as time passes."""

    start: Floats
    end: Floats
    """Of classes; -1 before it."""
    step_end: Floats
    active: Ints
    """Running classes."""
    rate: Floats
    remaining: Floats
    """Bytes left of each class."""
    left: Ints
    """Classes of each step that have not ended."""
    closing: Ints
    """Steps just closed."""
    queue: NDArray[Any]
    """Steps lined up, by when they begin."""
    counters: Ints


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """When every flow ran and what every link carried."""

    start_s: Floats
    """First byte of each flow."""
    end_s: Floats
    """Last byte."""
    step_end_s: Floats
    """End of each step: of its last flow."""
    carried_bytes: Floats
    """By link."""
    solves: int
    """How often rates were solved."""

    @property
    def makespan_s(self) -> float:
        """Time until the last step has ended."""
        return float(self.step_end_s.max(initial=0.0))


def transfer(table: Flows, capacity_bytes_per_s: Floats, *, folded: bool = True) -> Transfer:
    """Let flows share links max-min fairly until all have ended.

    Parameters
    ----------
    table : Flows
    capacity_bytes_per_s : ndarray
        By link.
    folded : bool
        Fold equal flows into classes first; the result is the same.

    Examples
    --------
    Two flows of 1 GB on a link of 1 GB/s; the second is half as large and ends first.

    >>> from simulator.events.network.flows import flows
    >>> from simulator.events.network.routes import Routes
    >>> ways = Routes(first=np.array([0, 1, 2]), link=np.array([0, 0]), share=np.ones(2))
    >>> transfer(flows(ways, np.array([1e9, 0.5e9])), np.array([1e9])).end_s.tolist()
    [1.5, 1.0]
    """
    capacity = np.ascontiguousarray(capacity_bytes_per_s, dtype=np.float64)
    bound = np.where(np.diff(table.first) == 0, 1.0, table.limit_bytes_per_s)
    check(capacity, table.first, table.link, table.count, table.share, bound)
    small = fold(table, capacity) if folded else _unfolded(table, capacity)
    start, end, step_end, solves = _play(small)
    return Transfer(
        start_s=start[small.flow_class],
        end_s=end[small.flow_class],
        step_end_s=step_end[small.step_class],
        carried_bytes=_carried(small),
        solves=solves,
    )


def _carried(small: Folded) -> Floats:
    """Bytes over each link: an equal part of what its class carries."""
    t = small.flows
    entry = np.repeat(t.count * t.size_bytes, np.diff(t.first)) * t.share
    each = np.bincount(t.link, weights=entry, minlength=len(small.links_of)) / small.links_of
    return np.where(small.link_class >= 0, np.append(each, 0.0)[small.link_class], 0.0)


def _unfolded(table: Flows, capacity: Floats) -> Folded:
    return Folded(
        flows=table,
        capacity_bytes_per_s=capacity,
        flow_class=np.arange(len(table)),
        link_class=np.arange(len(capacity)),
        step_class=np.arange(len(table.start_s)),
        links_of=np.ones(len(capacity)),
    )


def _play(small: Folded) -> tuple[Floats, Floats, Floats, int]:
    """Run the classes; (start, end, step end, solves)."""
    t, capacity = small.flows, small.capacity_bytes_per_s
    classes, steps = len(t), len(t.start_s)
    order = np.argsort(t.step, kind="stable")
    members = np.searchsorted(t.step[order], np.arange(steps + 1))
    followers = np.argsort(t.before, kind="stable")
    after = np.searchsorted(t.before[followers], np.arange(steps + 1))
    progress = _Progress(
        start=np.zeros(classes),
        end=np.full(classes, -1.0),
        step_end=np.full(steps, -1.0),
        active=np.zeros(classes, np.int64),
        rate=np.zeros(classes),
        remaining=t.size_bytes.copy(),
        left=members[1:] - members[:-1],
        closing=np.zeros(steps, np.int64),
        queue=np.zeros(steps, QUEUED),
        counters=np.zeros(5, dtype=np.int64),
    )
    _run(
        Crossings(capacity, t.first, t.link, t.share, t.count, t.limit_bytes_per_s),
        _Classes(t.size_bytes, t.step, order, members),
        _Steps(t.start_s, t.before, t.lag_s, followers, after),
        progress,
        scratch(len(capacity), classes, len(t.link)),
    )
    start, end, step_end, *_, counters = progress
    if counters[_ENDED] < classes:
        stuck = int(np.flatnonzero(end < 0.0)[0])
        raise ForeshardError(f"network: flow {stuck} never ends: its links leave it no rate")
    return start, end, step_end, int(counters[_SOLVES])


@compiled
def _solve(network, progress, work):  # type: ignore[no-untyped-def]
    """Solve the rates from now on; seconds until the first flow ends."""
    _, _, _, active, rate, remaining, _, _, _, counters = progress
    running = counters[_RUNNING]
    fill(network, active, running, rate, work)
    finish = np.inf
    for a in range(running):
        c = active[a]
        if rate[c] > 0.0:
            finish = min(finish, remaining[c] / rate[c])
    counters[_SOLVES] += 1
    return finish


@compiled
def _end(c, at_s, classes, progress):  # type: ignore[no-untyped-def]
    """Note the end of a class, and that of its step if it was the last."""
    _, end, step_end, _, _, _, left, closing, _, counters = progress
    end[c] = at_s
    counters[_ENDED] += 1
    s = classes.step[c]
    left[s] -= 1
    if left[s] == 0:
        step_end[s] = at_s
        closing[counters[_CLOSED]] = s
        counters[_CLOSED] += 1


@compiled
def _follow(steps, progress):  # type: ignore[no-untyped-def]
    """Line up the steps that waited for those that have just ended."""
    earliest, _, lag, followers, after = steps
    _, _, step_end, _, _, _, _, closing, queue, counters = progress
    for i in range(counters[_CLOSED]):
        s = closing[i]
        for k in range(after[s], after[s + 1]):
            f = followers[k]
            enter(f, max(step_end[s], earliest[f]) + lag[f], counters[_WAITING], f, queue)
            counters[_WAITING] += 1
    counters[_CLOSED] = 0


@compiled
def _begin(s, at_s, network, classes, progress):  # type: ignore[no-untyped-def]
    """Begin a step: its flows run, but for those with nothing to move or nowhere to go."""
    _, first, _, _, _, limit = network
    size, _, order, members = classes
    start, _, step_end, active, _, _, left, closing, _, counters = progress
    if left[s] == 0:
        step_end[s] = at_s
        closing[counters[_CLOSED]] = s
        counters[_CLOSED] += 1
    for m in range(members[s], members[s + 1]):
        c = order[m]
        start[c] = at_s
        if size[c] > 0.0 and (first[c] < first[c + 1] or limit[c] < np.inf):
            active[counters[_RUNNING]] = c
            counters[_RUNNING] += 1
        else:
            _end(c, at_s, classes, progress)


@compiled
def _pass(span, ends, now, classes, progress):  # type: ignore[no-untyped-def]
    """Let time pass up to `now`; where flows end at its end, take them off."""
    _, _, _, active, rate, remaining, _, _, _, counters = progress
    kept = 0
    for a in range(counters[_RUNNING]):
        c = active[a]
        remaining[c] -= rate[c] * span
        if ends and remaining[c] <= _TOGETHER * rate[c] * span:
            _end(c, now, classes, progress)
        else:
            active[kept] = c
            kept += 1
    counters[_RUNNING] = kept


@compiled
def _run(network, classes, steps, progress, work):  # type: ignore[no-untyped-def]
    """Play all steps: begins and ends go into `progress`."""
    earliest, before, lag, _, _ = steps
    _, _, _, _, _, _, _, _, queue, counters = progress
    now = 0.0
    for s in range(len(earliest)):
        if before[s] < 0:
            enter(s, earliest[s] + lag[s], counters[_WAITING], s, queue)
            counters[_WAITING] += 1
    while counters[_WAITING] > 0 or counters[_RUNNING] > 0:
        finish, upcoming = np.inf, np.inf
        if counters[_RUNNING] > 0:
            finish = _solve(network, progress, work)
        if counters[_WAITING] > 0:
            upcoming = queue[queue[0].heap].key - now
        elif finish == np.inf:
            return  # nothing will ever change: the caller says so
        ends = finish <= upcoming
        now = now + finish if finish < upcoming else queue[queue[0].heap].key
        _pass(min(finish, upcoming), ends, now, classes, progress)
        while counters[_CLOSED] > 0 or (counters[_WAITING] > 0 and queue[queue[0].heap].key <= now):
            _follow(steps, progress)
            while counters[_WAITING] > 0 and queue[queue[0].heap].key <= now:
                s = leave(counters[_WAITING], queue)
                counters[_WAITING] -= 1
                _begin(s, queue[s].key, network, classes, progress)


@dataclass(frozen=True, kw_only=True)
class Call:
    """One collective on each of several groups at once."""

    operation: str
    members: ArrayLike
    """GPUs of each group, (groups, members)."""
    size_bytes: float
    """As the collectives of ``cost/collectives/calls.py`` take it."""
    seconds: float
    """What it takes on sound links that nothing else uses."""
    algorithm: str | None = None
    """Whose links it takes (``events/network/collective_phases.py``); None: those of a ring, of an
    all-to-all directly."""
    start_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class InCompany:
    """What calls take beside one another."""

    seconds: tuple[Floats, ...]
    """By call, one per group."""
    slowdown: tuple[Floats, ...]
    """The same over its time alone; 1 where it takes none."""
    flows: Flows
    """One per group, groups of the first call first."""
    transfer: Transfer
    """Of all flows."""


def in_company(
    cluster: Cluster,
    network: Topology,
    calls: Sequence[Call],
    *,
    link_degradation: Mapping[str, float] | None = None,
    crowded: bool = False,
) -> InCompany:
    """Run calls beside one another.

    Parameters
    ----------
    cluster : Cluster
    network : Topology
        Its sound links.
    calls : sequence of Call
    worn : mapping, optional
        Share that is left of links by name; 0 is a lost link, which flows go around.
    crowded : bool
        The groups of a call share the links between switches, which its time does not know of.

    Raises
    ------
    InputError
        If there is no call, one is impossible, or lost links leave no way.
    """
    if not calls:
        raise InputError("network: calls: must name at least one collective")
    links = degraded(network, link_degradation) if link_degradation else network
    tables = [
        modelled(
            cluster,
            links,
            call.members,
            call.size_bytes,
            call.seconds,
            operation=call.operation,
            algorithm=call.algorithm,
            start_s=call.start_s,
            crowded=crowded,
        )
        for call in calls
    ]
    flows = joined(*tables)
    played = transfer(flows, links.capacity_bytes_per_s)
    ends = np.cumsum([len(table) for table in tables])
    took = np.split(played.end_s - played.start_s, ends[:-1])
    slower = tuple(
        np.divide(call_s, call.seconds, out=np.ones_like(call_s), where=call_s > 0.0)
        for call_s, call in zip(took, calls, strict=True)
    )
    return InCompany(seconds=tuple(took), slowdown=slower, flows=flows, transfer=played)
