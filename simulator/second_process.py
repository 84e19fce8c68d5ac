"""Work in a second process beside this one: for what holds the interpreter, on two cores."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Out = TypeVar("Out")

_END_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of Linux' prctl(2)."""


@contextmanager
def run_in_process(work: Callable[[], Out]) -> Iterator[Callable[[], Out]]:
    """Begin `work` in a copy of this process; what is yielded waits for its result.

    Leaving ends the copy, whatever it is at: an interrupt or error here leaves none behind. The
    work is done here, when its result is asked for, where there is one core alone or no Linux,
    and where the copy ends without a result: its error is then raised here.

    Parameters
    ----------
    work : callable
        Without arguments; writes nothing and shows nothing. What it returns can be pickled.
    """
    try:
        if sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2:
            raise OSError
        pid, pipe = _copied(work)
    except OSError:  # also where no more processes or files may be opened
        pid = 0
    if not pid:
        yield work
        return
    try:
        yield lambda: _result(pipe, work)
    finally:
        os.close(pipe)
        os.kill(pid, signal.SIGKILL)  # not waited for yet: the number is still its own
        os.waitpid(pid, 0)


def _copied(work: Callable[[], object]) -> tuple[int, int]:
    """Start a copy of this process that works: its number and where its result is read."""
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)  # what is free here needs no second place in the copy
    read, write = os.pipe()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with warnings.catch_warnings():
            # Python 3.12 warns of threads that the copy lacks; ours wait for work and hold nothing
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            _work(work, read, write, before)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os.close(write)
    return pid, read


def _work(work: Callable[[], object], read: int, write: int, before: set[int]) -> None:
    """In the copy: work, hand over the result, end; an interrupt is for the first process."""
    try:
        ctypes.CDLL(None).prctl(_END_WITH_PARENT, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(read)
        result = pickle.dumps(work(), protocol=pickle.HIGHEST_PROTOCOL)
        with open(write, "wb") as out:
            out.write(result)
    finally:
        os._exit(0)  # no clean-up: files and screen belong to the first process


def _result(pipe: int, work: Callable[[], Out]) -> Out:
    """What the copy made; the first process works where it made nothing."""
    with open(pipe, "rb", closefd=False) as made:
        content = made.read()
    try:
        result: Out = pickle.loads(content)  # written by a copy of this process
    except (EOFError, pickle.UnpicklingError):
        return work()
    return result
