"""Tasks that share resources, in compiled code: events, and rates that change at them.

At each moment everything that happens then is done first: tasks end, streams go on, tasks start.
Then the rates are solved again, only of tasks that share something, directly or through others,
with what has started or ended; and the end of every task whose rate has changed moves.

What belongs to one task, stream, resource or entry stands together in one record: an event touches
a few records, not a few of thirty arrays.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from simulator.arrays import Floats, Ints
from simulator.compiled import compiled
from simulator.events.engine.event_queue import enter, leave, move
from simulator.events.engine.fair_shares import Crossings, Scratch, fill


def _record(floats: str, integers: str) -> np.dtype[Any]:
    """Name the fields of a record."""
    fields = [(name, "f8") for name in floats.split()] + [(name, "i4") for name in integers.split()]
    return np.dtype(fields, align=True)


TASK = _record(
    "work limit start end left since rate key",
    # first: of its edges; entry: first of its entries; met: in which solve it was last collected
    "heap order place first entry stream following waiting cause met",
)
# ready, listed: the n-th record holds the n-th stream to look at, the n-th resource to solve
STREAM = _record("clock", "head edge why other ready")
RESOURCE = _record("capacity", "top dirty seen listed")
ENTRY = _record("amount", "task resource held after before")

READY, SIZE, COUNTER, DONE, DIRTY, SERIAL = range(6)
COUNTERS = 6
"""Streams to look at, tasks in the queue, ties, tasks done, resources to solve, solves so far."""

NONE_LEFT = 1e-12
"""Share of a capacity below which what is left of it counts as nothing: rounding."""


class Solving(NamedTuple):
    """What rates are solved with."""

    members: Ints
    """Tasks that are solved together."""
    reached: Ints
    """Resources that are solved together."""
    rate: Floats
    """Of every task, times its weight."""
    active: Ints
    """Tasks of `members` that share."""
    growing: Crossings
    """Entries that grow with the rate, as classes on links: the capacity is what is left of a
    resource, a flow a task, a limit is times the weight of its task."""
    scratch: Scratch
    weight: Floats
    """Of every task."""


@compiled
def run_events(  # type: ignore[no-untyped-def]  # noqa: PLR0917 - numba
    task, stream, resource, entry, predecessor, lag, solving, count
):
    """Run all tasks; how many have ended is counted: fewer than all if they wait for one another.

    Parameters
    ----------
    task, stream, resource, entry : ndarray
        Records; one task and one entry more than there are, which say where the rows end.
    predecessor, lag : ndarray
        Of each edge; no lags: empty.
    solving : Solving
    count : ndarray
        COUNTERS zeros.
    """
    for s in range(len(stream)):
        _look(len(stream) - 1 - s, stream, count)
    now = 0.0
    while True:
        while count[READY] > 0:
            count[READY] -= 1
            s = stream[count[READY]].ready
            i = _next(s, now, task, stream, predecessor, lag, count)
            if i >= 0:
                _start(i, now, task, stream, resource, entry, count)
        if count[DIRTY] > 0:
            _solve(now, task, resource, entry, solving, count)
        if count[SIZE] == 0 or task[task[0].heap].key == np.inf:
            return
        now = task[task[0].heap].key
        while count[SIZE] > 0 and task[task[0].heap].key == now:
            i = leave(count[SIZE], task)
            count[SIZE] -= 1
            if task[i].start < 0.0:
                _start(i, now, task, stream, resource, entry, count)
            else:
                _finish(i, now, task, stream, resource, entry, count)


@compiled
def _next(s, now, task, stream, predecessor, lag, count):  # type: ignore[no-untyped-def]  # noqa: PLR0917 - numba
    """The task that a stream can start now; else -1: its start is entered, or what it waits for."""
    at = stream[s]
    i = at.head
    if i < 0:
        return -1
    k, last = at.edge, task[i + 1].first
    while k < last:
        p = predecessor[k]
        until = task[p].end
        if until < 0.0:
            at.other, at.edge = task[p].waiting, k
            task[p].waiting = s
            return -1
        if len(lag) > 0:
            until += lag[k]
        if until > at.clock:
            at.clock, at.why = until, p
        k += 1
    at.edge = k
    task[i].cause = at.why
    if at.clock <= now:
        return i
    enter(i, at.clock, count[SIZE], count[COUNTER], task)
    count[SIZE] += 1
    count[COUNTER] += 1
    return -1


@compiled
def _start(  # type: ignore[no-untyped-def]  # noqa: PLR0917 - numba
    i, now, task, stream, resource, entry, count
):
    """Start a task: one without work ends at once, one that shares nothing runs at its limit."""
    record = task[i]
    record.start, record.since, record.left = now, now, record.work
    if record.work == 0.0:
        _finish(i, now, task, stream, resource, entry, count)
        return
    alone = record.entry == task[i + 1].entry
    record.rate = record.limit if alone else -1.0
    due = now + record.work / record.limit if alone else np.inf
    enter(i, due, count[SIZE], count[COUNTER], task)
    count[SIZE] += 1
    count[COUNTER] += 1
    for k in range(record.entry, task[i + 1].entry):
        top = resource[entry[k].resource].top
        entry[k].after, entry[k].before = top, -1
        if top >= 0:
            entry[top].before = k
        resource[entry[k].resource].top = k
        _mark(entry[k].resource, resource, count)


@compiled
def _finish(i, now, task, stream, resource, entry, count):  # type: ignore[no-untyped-def]  # noqa: PLR0917 - numba
    """End a task; its stream and the streams that wait for it are to be looked at again."""
    record = task[i]
    record.end = now
    count[DONE] += 1
    if record.work > 0.0:
        for k in range(record.entry, task[i + 1].entry):
            after, before = entry[k].after, entry[k].before
            if before >= 0:
                entry[before].after = after
            else:
                resource[entry[k].resource].top = after
            if after >= 0:
                entry[after].before = before
            _mark(entry[k].resource, resource, count)
    w = record.waiting
    while w >= 0:
        _look(w, stream, count)
        w = stream[w].other
    at = stream[record.stream]
    at.head, at.clock, at.why = record.following, now, i
    if at.head >= 0:
        at.edge = task[at.head].first
        _look(record.stream, stream, count)


@compiled
def _look(s, stream, count):  # type: ignore[no-untyped-def]
    """Note that a stream is to be looked at."""
    stream[count[READY]].ready = s
    count[READY] += 1


@compiled
def _mark(r, resource, count):  # type: ignore[no-untyped-def]
    """Note that a resource is to be solved again."""
    if not resource[r].dirty:
        resource[r].dirty = 1
        resource[count[DIRTY]].listed = r
        count[DIRTY] += 1


@compiled
def _solve(now, task, resource, entry, solving, count):  # type: ignore[no-untyped-def]
    """Solve the rates of everything that hangs together with a marked resource."""
    members, rate, weight = solving.members, solving.rate, solving.weight
    count[SERIAL] += 1
    for d in range(count[DIRTY]):
        r = resource[d].listed
        resource[r].dirty = 0
        if resource[r].seen == count[SERIAL]:
            continue
        tasks, resources = _together(r, task, resource, entry, solving, count[SERIAL])
        if tasks > 0:
            _share(tasks, resources, task, resource, entry, solving)
        for n in range(tasks):
            i = members[n]
            _reschedule(i, now, rate[i] / weight[i], task, count[SIZE])
    count[DIRTY] = 0


@compiled
def _together(r, task, resource, entry, solving, serial):  # type: ignore[no-untyped-def]
    """Collect the running tasks and the resources that hang together with one resource."""
    members, reached = solving.members, solving.reached
    tasks, resources, looked = 0, 1, 0
    reached[0], resource[r].seen = r, serial
    while looked < resources:
        k = resource[reached[looked]].top
        looked += 1
        while k >= 0:
            i = entry[k].task
            if task[i].met != serial:
                task[i].met = serial
                members[tasks] = i
                tasks += 1
                for e in range(task[i].entry, task[i + 1].entry):
                    other = entry[e].resource
                    if resource[other].seen != serial:
                        resource[other].seen = serial
                        reached[resources] = other
                        resources += 1
            k = entry[k].after
    return tasks, resources


@compiled
def _share(tasks, resources, task, resource, entry, solving):  # type: ignore[no-untyped-def]
    """Find the rates of some tasks: what is held goes first, then they share the rest.

    All rates here are times the weights of the tasks.
    """
    members, reached, rate, active, growing, scratch, _ = solving
    room, first, links, amount, _, limit = growing
    for n in range(resources):
        room[reached[n]] = resource[reached[n]].capacity
    number = np.int64(0)  # as a bare 0, `fill` would be compiled for the constant too
    for n in range(tasks):
        i = members[n]
        for k in range(task[i].entry, task[i + 1].entry):
            if entry[k].held:
                _take(room, resource, entry[k].resource, entry[k].amount)
        if first[i] == first[i + 1]:
            rate[i] = limit[i]
        else:
            active[number] = i
            number += 1
    if number == 1:  # as `fill` would: its limit, or the scarcest thing that it takes
        i = active[0]
        rate[i] = limit[i]
        for k in range(first[i], first[i + 1]):
            taken = 0.0
            for e in range(first[i], first[i + 1]):
                taken += amount[e] if links[e] == links[k] else 0.0
            rate[i] = min(rate[i], room[links[k]] / taken)
    elif number > 1:
        fill(growing, active, number, rate, scratch)


@compiled
def _take(room, resource, r, amount):  # type: ignore[no-untyped-def]
    """Take an amount from what is left of a resource."""
    room[r] -= amount
    if room[r] < NONE_LEFT * resource[r].capacity:
        room[r] = 0.0


@compiled
def _reschedule(i, now, rate, task, size):  # type: ignore[no-untyped-def]
    """Move the end of a task if its rate has changed."""
    record = task[i]
    if rate == record.rate:
        return
    if now > record.since:
        record.left = max(record.left - record.rate * (now - record.since), 0.0)
    record.since, record.rate = now, rate
    move(i, now + record.left / rate if rate > 0.0 else np.inf, size, task)
