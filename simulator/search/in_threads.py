"""Work on pieces of tables in threads: NumPy lets go of the interpreter inside its loops."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

_MOST = 8
"""Beyond so many threads the interpreter between two loops sets the pace."""

In = TypeVar("In")
Out = TypeVar("Out")


_alone: ContextVar[bool] = ContextVar("_alone", default=False)


@contextmanager
def one_thread() -> Iterator[None]:
    """Start no threads inside: where other processes have the other cores already.

    Threads hand the interpreter to and fro, which costs a search of a small space a sixth more of
    the processor's time.
    """
    before = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(before)


def in_threads(work: Callable[[In], Out], pieces: Sequence[In]) -> Iterator[Out]:
    """What `work` makes of every piece, in their order, on as many cores as there are."""
    workers = 1 if _alone.get() else min(len(os.sched_getaffinity(0)), _MOST, len(pieces))
    if workers < 2:
        yield from map(work, pieces)
        return
    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(work, pieces)
