"""A queue of events in compiled code: tasks by the time at which something happens to them.

A binary heap inside the records of the tasks: the n-th record holds which task stands n-th
(`heap`). A record also knows its own task's time (`key`), the counter that decides between equal
times (`order`) and where it stands (`place`), so that a task whose rate changes moves instead of
being entered twice.
"""

from __future__ import annotations

import numpy as np

from simulator.compiled import compiled

QUEUED = np.dtype([("key", "f8"), ("order", "i4"), ("place", "i4"), ("heap", "i4")], align=True)
"""What a record needs to stand in the queue."""


@compiled
def _before(task, a, b):  # type: ignore[no-untyped-def]
    """Whether task a leaves before task b."""
    one, other = task[a], task[b]
    return one.key < other.key or (one.key == other.key and one.order < other.order)


@compiled
def _rise(at, task):  # type: ignore[no-untyped-def]
    """Move an entry up to where it belongs."""
    i = task[at].heap
    while at > 0:
        above = (at - 1) // 2
        if not _before(task, i, task[above].heap):
            break
        task[at].heap = task[above].heap
        task[task[at].heap].place = at
        at = above
    task[at].heap = i
    task[i].place = at


@compiled
def _sink(at, size, task):  # type: ignore[no-untyped-def]
    """Move an entry down to where it belongs."""
    i = task[at].heap
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        if below + 1 < size and _before(task, task[below + 1].heap, task[below].heap):
            below += 1
        if not _before(task, task[below].heap, i):
            break
        task[at].heap = task[below].heap
        task[task[at].heap].place = at
        at = below
    task[at].heap = i
    task[i].place = at


@compiled
def enter(i, time, size, counter, task):  # type: ignore[no-untyped-def]
    """Enter a task; the queue then holds size + 1."""
    task[i].key, task[i].order = time, counter
    task[size].heap = i
    _rise(size, task)


@compiled
def move(i, time, size, task):  # type: ignore[no-untyped-def]
    """Give a task that stands in the queue another time."""
    sooner = time < task[i].key
    task[i].key = time
    if sooner:
        _rise(task[i].place, task)
    else:
        _sink(task[i].place, size, task)


@compiled
def leave(size, task):  # type: ignore[no-untyped-def]
    """Take the first task out; the queue then holds size - 1."""
    i = task[0].heap
    if size > 1:
        task[0].heap = task[size - 1].heap
        _sink(0, size - 1, task)
    return np.int64(i)
