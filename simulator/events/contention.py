"""Tasks that share resources, in compiled code: events, and rates that change at them.

At each moment everything that happens then is done first: tasks end, streams go on, tasks start.
Then the rates are solved again, only of tasks that share something, directly or through others,
with what has started or ended; and the end of every task whose rate has changed moves.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from simulator.events.event_queue import enter, leave, move
from simulator.events.network import fill

__all__ = ["run_events"]

READY, SIZE, COUNTER, DONE, DIRTY, SERIAL = range(6)
"""Where the counters stand: streams to look at, queue, ties, tasks done, resources to solve."""

NONE_LEFT = 1e-12
"""Share of a capacity below which what is left of it counts as nothing: rounding."""


@njit(cache=True)
def run_events(tasks, sharing, times, streams, queue, lists, scratch):  # type: ignore[no-untyped-def]
    """Run all tasks; return how many have ended: fewer than all if they wait for one another.

    Parameters
    ----------
    tasks : tuple
        work, stream, first, predecessor, lag, and the next task of each one's stream.
    sharing : tuple
        capacity; first, resource, amount, held of all entries; first, resource, amount of those
        that grow with the rate; limit, priority.
    times : tuple
        start, end, cause, work left, since when, rate: filled here.
    streams : tuple
        head, edge, clock, why, other, ready of each stream; and who waits for each task.
    queue : tuple
        heap, place, key, order.
    lists : tuple
        Entries of running tasks by resource, and marks; see `_join`.
    """
    heap, _, key, _ = queue
    start, ready = times[0], streams[5]
    counters = np.zeros(6, np.int64)
    counters[READY] = len(ready)
    now = 0.0
    while True:
        while counters[READY] > 0:
            counters[READY] -= 1
            s = ready[counters[READY]]
            _advance(s, now, tasks, sharing, times, streams, queue, lists, counters)
        if counters[DIRTY] > 0:
            _solve(now, sharing, times, queue, lists, scratch, counters)
        if counters[SIZE] == 0 or key[heap[0]] == np.inf:
            return counters[DONE]
        now = key[heap[0]]
        while counters[SIZE] > 0 and key[heap[0]] == now:
            i = leave(counters[SIZE], *queue)
            counters[SIZE] -= 1
            if start[i] < 0.0:
                _start(i, now, tasks, sharing, times, streams, queue, lists, counters)
            else:
                _finish(i, now, tasks, sharing, times, streams, lists, counters)


@njit(cache=True)
def _advance(  # type: ignore[no-untyped-def]
    s, now, tasks, sharing, times, streams, queue, lists, counters
):
    """Start the task at which a stream stands, enter its start, or note what it waits for."""
    _, _, first, predecessor, lag, _ = tasks
    head, edge, clock, why, other, _, waiting = streams
    end, cause = times[1], times[2]
    i = head[s]
    if i < 0:
        return
    k, begin, reason, last = edge[s], clock[s], why[s], first[i + 1]
    while k < last:
        p = predecessor[k]
        until = end[p]
        if until < 0.0:
            other[s] = waiting[p]
            waiting[p] = s
            break
        if len(lag) > 0:
            until += lag[k]
        if until > begin:
            begin, reason = until, p
        k += 1
    edge[s], clock[s], why[s] = k, begin, reason
    if k < last:
        return
    cause[i] = reason
    if begin > now:
        enter(i, begin, counters[SIZE], counters[COUNTER], *queue)
        counters[SIZE] += 1
        counters[COUNTER] += 1
    else:
        _start(i, now, tasks, sharing, times, streams, queue, lists, counters)


@njit(cache=True)
def _start(  # type: ignore[no-untyped-def]
    i, now, tasks, sharing, times, streams, queue, lists, counters
):
    """Start a task: one without work ends at once, one that shares nothing runs at its limit."""
    start, _, _, left, since, rate = times
    first, limit = sharing[1], sharing[8]
    start[i], since[i], left[i] = now, now, tasks[0][i]
    if left[i] == 0.0:
        _finish(i, now, tasks, sharing, times, streams, lists, counters)
        return
    alone = first[i] == first[i + 1]
    rate[i] = limit[i] if alone else -1.0
    due = now + left[i] / limit[i] if alone else np.inf
    enter(i, due, counters[SIZE], counters[COUNTER], *queue)
    counters[SIZE] += 1
    counters[COUNTER] += 1
    if not alone:
        _join(i, sharing, lists, counters)


@njit(cache=True)
def _finish(  # type: ignore[no-untyped-def]
    i, now, tasks, sharing, times, streams, lists, counters
):
    """End a task; its stream and the streams that wait for it are to be looked at again."""
    work, stream, first, _, _, following = tasks
    head, edge, clock, why, other, ready, waiting = streams
    times[1][i] = now
    counters[DONE] += 1
    if work[i] > 0.0:
        _part(i, sharing, lists, counters)
    w = waiting[i]
    while w >= 0:
        ready[counters[READY]] = w
        counters[READY] += 1
        w = other[w]
    s = stream[i]
    head[s], clock[s], why[s] = following[i], now, i
    if head[s] >= 0:
        edge[s] = first[head[s]]
        ready[counters[READY]] = s
        counters[READY] += 1


@njit(cache=True)
def _join(i, sharing, lists, counters):  # type: ignore[no-untyped-def]
    """Enter a running task in the lists of what it takes; these are to be solved again."""
    first, resource = sharing[1], sharing[2]
    top, after, before = lists[0], lists[1], lists[2]
    for k in range(first[i], first[i + 1]):
        r = resource[k]
        after[k], before[k] = top[r], -1
        if top[r] >= 0:
            before[top[r]] = k
        top[r] = k
        _mark(r, lists, counters)


@njit(cache=True)
def _part(i, sharing, lists, counters):  # type: ignore[no-untyped-def]
    """Take a task out of the lists of what it took."""
    first, resource = sharing[1], sharing[2]
    top, after, before = lists[0], lists[1], lists[2]
    for k in range(first[i], first[i + 1]):
        if before[k] >= 0:
            after[before[k]] = after[k]
        else:
            top[resource[k]] = after[k]
        if after[k] >= 0:
            before[after[k]] = before[k]
        _mark(resource[k], lists, counters)


@njit(cache=True)
def _mark(r, lists, counters):  # type: ignore[no-untyped-def]
    """Note that a resource is to be solved again."""
    dirty, listed = lists[4], lists[5]
    if not listed[r]:
        listed[r] = True
        dirty[counters[DIRTY]] = r
        counters[DIRTY] += 1


@njit(cache=True)
def _solve(now, sharing, times, queue, lists, scratch, counters):  # type: ignore[no-untyped-def]
    """Solve the rates of everything that hangs together with a marked resource."""
    dirty, listed, seen = lists[4], lists[5], lists[6]
    counters[SERIAL] += 1
    for d in range(counters[DIRTY]):
        listed[dirty[d]] = False
        if seen[dirty[d]] != counters[SERIAL]:
            tasks, resources = _together(dirty[d], sharing, lists, counters[SERIAL])
            if tasks > 0:
                _share(tasks, resources, sharing, times, lists, scratch)
                _reschedule(now, tasks, times, queue, lists, counters[SIZE])
    counters[DIRTY] = 0


@njit(cache=True)
def _together(r, sharing, lists, serial):  # type: ignore[no-untyped-def]
    """Collect the running tasks and the resources that hang together with one resource."""
    first, resource = sharing[1], sharing[2]
    top, after, _, owner, _, _, seen, met, members, reached = lists[:10]
    tasks, resources, looked = 0, 1, 0
    reached[0], seen[r] = r, serial
    while looked < resources:
        k = top[reached[looked]]
        looked += 1
        while k >= 0:
            i = owner[k]
            if met[i] != serial:
                met[i] = serial
                members[tasks] = i
                tasks += 1
                for e in range(first[i], first[i + 1]):
                    if seen[resource[e]] != serial:
                        seen[resource[e]] = serial
                        reached[resources] = resource[e]
                        resources += 1
            k = after[k]
    return tasks, resources


@njit(cache=True)
def _share(tasks, resources, sharing, times, lists, scratch):  # type: ignore[no-untyped-def]
    """Find the rates of some tasks: what is held goes first, then one priority after the other."""
    capacity, first, resource, amount, held = sharing[:5]
    share_first, share_resource, share_amount, limit, priority = sharing[5:]
    members, reached, room, fresh, active, flows = lists[8:]
    for n in range(resources):
        room[reached[n]] = capacity[reached[n]]
    highest = 0
    for n in range(tasks):
        i = members[n]
        highest = max(highest, priority[i])
        for k in range(first[i], first[i + 1]):
            if held[k]:
                _take(room, capacity, resource[k], amount[k])
    for level in range(highest + 1):
        count = 0
        for n in range(tasks):
            i = members[n]
            if priority[i] != level:
                continue
            if share_first[i] == share_first[i + 1]:
                fresh[i] = limit[i]
            else:
                active[count] = i
                count += 1
        if count == 0:
            continue
        fill(
            room, share_first, share_resource, share_amount, flows, limit, active, count, fresh,
            scratch,
        )  # fmt: skip
        if level < highest:
            for n in range(count):
                i = active[n]
                for k in range(share_first[i], share_first[i + 1]):
                    _take(room, capacity, share_resource[k], share_amount[k] * fresh[i])


@njit(cache=True)
def _take(room, capacity, r, amount):  # type: ignore[no-untyped-def]
    """Take an amount from what is left of a resource."""
    room[r] -= amount
    if room[r] < NONE_LEFT * capacity[r]:
        room[r] = 0.0


@njit(cache=True)
def _reschedule(now, tasks, times, queue, lists, size):  # type: ignore[no-untyped-def]
    """Move the end of every task whose rate has changed."""
    _, _, _, left, since, rate = times
    members, fresh = lists[8], lists[11]
    for n in range(tasks):
        i = members[n]
        if fresh[i] == rate[i]:
            continue
        if now > since[i]:
            left[i] = max(left[i] - rate[i] * (now - since[i]), 0.0)
        since[i], rate[i] = now, fresh[i]
        due = now + left[i] / rate[i] if rate[i] > 0.0 else np.inf
        move(i, due, size, *queue)
