"""Many searches at once: on the cores of this machine, with results in order.

The first is done here while workers start, so that a screen has its first row early.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

__all__ = ["cores", "done_in_order"]

T = TypeVar("T")

_WORTH = 3
"""Fewer searches are done one after another: workers take a second to start."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def done_in_order(
    work: Callable[..., T], arguments: Sequence[tuple[Any, ...]], *, jobs: int | None = None
) -> Iterator[T]:
    """Yield ``work(*arguments[i])`` for every i, in order, each as soon as it is there.

    Parameters
    ----------
    work : callable
        A function of a module; what it takes and returns is pickled.
    jobs : int, optional
        Processes; all cores unless given. Results do not depend on it.

    Examples
    --------
    >>> list(done_in_order(max, [(1, 2), (5, 4)]))
    [2, 5]
    """
    count = min(cores() if jobs is None else jobs, len(arguments))
    if count <= 1 or len(arguments) < _WORTH:
        for one in arguments:
            yield work(*one)
        return
    from joblib import Parallel, delayed  # a single search needs none of it

    pool = Parallel(n_jobs=count, return_as="generator", pre_dispatch="all")
    rest = pool(delayed(work)(*one) for one in arguments[1:])
    yield work(*arguments[0])
    yield from rest
