"""Work on pieces of tables in threads: NumPy lets go of the interpreter inside its loops."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Event
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


class Stopped(Exception):
    """Nobody waits for the answer any more."""


_stop: ContextVar[Event | None] = ContextVar("_stop", default=None)


@contextmanager
def stoppable(stop: Event) -> Iterator[None]:
    """End a search inside by :class:`Stopped` soon after `stop` is set: between two pieces."""
    before = _stop.set(stop)
    try:
        yield
    finally:
        _stop.reset(before)


def may_go_on() -> None:
    """Raise Stopped where the search that asks is to end."""
    stop = _stop.get()
    if stop is not None and stop.is_set():
        raise Stopped


def in_threads(work: Callable[[In], Out], pieces: Sequence[In]) -> Iterator[Out]:
    """What `work` makes of every piece, in their order, on as many cores as there are."""
    may_go_on()
    workers = 1 if _alone.get() else min(len(os.sched_getaffinity(0)), _MOST, len(pieces))
    if workers < 2:
        for piece in pieces:
            may_go_on()
            yield work(piece)
        return
    from concurrent.futures import ThreadPoolExecutor  # predict searches nothing

    with ThreadPoolExecutor(workers) as pool:
        try:
            for result in pool.map(work, pieces):
                may_go_on()
                yield result
        except Stopped:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
