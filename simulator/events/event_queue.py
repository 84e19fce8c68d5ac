"""A queue of events in compiled code: tasks by the time at which something happens to them.

A binary heap that knows where each task stands in it, so that a task whose rate changes moves
instead of being entered twice. Equal times leave in the order of a counter.
"""

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = ["enter", "leave", "move"]


@njit(cache=True)
def _before(a, b, key, order):  # type: ignore[no-untyped-def]
    """Whether task a leaves before task b."""
    return key[a] < key[b] or (key[a] == key[b] and order[a] < order[b])


@njit(cache=True)
def _rise(at, heap, place, key, order):  # type: ignore[no-untyped-def]
    """Move an entry up to where it belongs."""
    task = heap[at]
    while at > 0:
        above = (at - 1) // 2
        if not _before(task, heap[above], key, order):
            break
        heap[at] = heap[above]
        place[heap[at]] = at
        at = above
    heap[at] = task
    place[task] = at


@njit(cache=True)
def _sink(at, size, heap, place, key, order):  # type: ignore[no-untyped-def]
    """Move an entry down to where it belongs."""
    task = heap[at]
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        if below + 1 < size and _before(heap[below + 1], heap[below], key, order):
            below += 1
        if not _before(heap[below], task, key, order):
            break
        heap[at] = heap[below]
        place[heap[at]] = at
        at = below
    heap[at] = task
    place[task] = at


@njit(cache=True)
def enter(task, time, size, counter, heap, place, key, order):  # type: ignore[no-untyped-def]
    """Enter a task; the queue then holds size + 1."""
    key[task], order[task] = time, counter
    heap[size] = task
    _rise(size, heap, place, key, order)


@njit(cache=True)
def move(task, time, size, heap, place, key, order):  # type: ignore[no-untyped-def]
    """Give a task that stands in the queue another time."""
    sooner = time < key[task]
    key[task] = time
    if sooner:
        _rise(place[task], heap, place, key, order)
    else:
        _sink(place[task], size, heap, place, key, order)


@njit(cache=True)
def leave(size, heap, place, key, order):  # type: ignore[no-untyped-def]
    """Take the first task out; the queue then holds size - 1."""
    task = heap[0]
    place[task] = -1
    if size > 1:
        heap[0] = heap[size - 1]
        place[heap[0]] = 0
        _sink(0, size - 1, heap, place, key, order)
    return np.int64(task)
