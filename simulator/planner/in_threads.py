"""Work on pieces of tables in threads: NumPy lets go of the interpreter inside its loops."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["in_threads"]

_MOST = 8
"""Beyond so many threads the interpreter between two loops sets the pace."""

In = TypeVar("In")
Out = TypeVar("Out")


def in_threads(work: Callable[[In], Out], pieces: Sequence[In]) -> Iterator[Out]:
    """What `work` makes of every piece, in their order, on as many cores as there are."""
    workers = min(len(os.sched_getaffinity(0)), _MOST, len(pieces))
    if workers < 2:
        yield from map(work, pieces)
        return
    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(work, pieces)
