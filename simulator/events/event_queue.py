"""A queue of events in compiled code: tasks by the time at which something happens to them.

A binary heap of task numbers. The records of the tasks know their time (`key`), the counter that
decides between equal times (`order`) and where they stand in the heap (`place`), so that a task
whose rate changes moves instead of being entered twice.
"""

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = ["enter", "leave", "move"]


@njit(cache=True)
def _before(task, a, b):  # type: ignore[no-untyped-def]
    """Whether task a leaves before task b."""
    one, other = task[a], task[b]
    return one.key < other.key or (one.key == other.key and one.order < other.order)


@njit(cache=True)
def _rise(at, heap, task):  # type: ignore[no-untyped-def]
    """Move an entry up to where it belongs."""
    i = heap[at]
    while at > 0:
        above = (at - 1) // 2
        if not _before(task, i, heap[above]):
            break
        heap[at] = heap[above]
        task[heap[at]].place = at
        at = above
    heap[at] = i
    task[i].place = at


@njit(cache=True)
def _sink(at, size, heap, task):  # type: ignore[no-untyped-def]
    """Move an entry down to where it belongs."""
    i = heap[at]
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        if below + 1 < size and _before(task, heap[below + 1], heap[below]):
            below += 1
        if not _before(task, heap[below], i):
            break
        heap[at] = heap[below]
        task[heap[at]].place = at
        at = below
    heap[at] = i
    task[i].place = at


@njit(cache=True)
def enter(i, time, size, counter, heap, task):  # type: ignore[no-untyped-def]
    """Enter a task; the queue then holds size + 1."""
    task[i].key, task[i].order = time, counter
    heap[size] = i
    _rise(size, heap, task)


@njit(cache=True)
def move(i, time, size, heap, task):  # type: ignore[no-untyped-def]
    """Give a task that stands in the queue another time."""
    sooner = time < task[i].key
    task[i].key = time
    if sooner:
        _rise(task[i].place, heap, task)
    else:
        _sink(task[i].place, size, heap, task)


@njit(cache=True)
def leave(size, heap, task):  # type: ignore[no-untyped-def]
    """Take the first task out; the queue then holds size - 1."""
    i = heap[0]
    if size > 1:
        heap[0] = heap[size - 1]
        _sink(0, size - 1, heap, task)
    return np.int64(i)
