"""Functions that numba compiles when first called, or that run as they are for little work.

To import numba and to load what it has compiled takes half a second, a step of a few thousand tasks
in plain Python a twentieth of that: a report that plays one step starts without it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from threading import Lock
from typing import Any

import numpy as np

PLAIN = 60_000
"""Numbers in arrays up to which a `short` function runs as it is: 0.1 s of plain Python at most."""

_loading = Lock()


class Compiled:
    """A function as Python has it, and as numba has it once that is asked for.

    Functions that numba compiles may call it: it looks to them like what ``njit`` returns.

    Parameters
    ----------
    function : callable
    options : mapping
        What ``njit`` takes.
    plain : int
        Called from Python with arrays of no more numbers in all, the function runs as it is for as
        long as it was not compiled for others.
    """

    def __init__(self, function: Callable[..., Any], options: dict[str, Any], plain: float) -> None:
        self.function = function
        self._options, self._plain, self._made = options, plain, None
        update_wrapper(self, function)

    def __call__(self, *given: Any) -> Any:
        """Run it, compiled or not."""
        if self._plain and self._made is None and _numbers(given) <= self._plain:
            return self.function(*given)
        return self.dispatcher(*given)

    @property
    def dispatcher(self) -> Any:
        """What ``njit`` makes of it."""
        if self._made is None:
            with _loading:
                if self._made is None:
                    from numba import njit

                    self._made = njit(**self._options)(self.function)
        return self._made

    @property
    def _numba_type_(self) -> Any:
        return self.dispatcher._numba_type_


def _numbers(given: tuple[Any, ...]) -> int:
    return sum(_numbers(x) if isinstance(x, tuple) else np.size(x) for x in given)


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """Compile a function when it is first called; what was compiled is kept beside its file."""
    return Compiled(function, {"cache": True, **options}, 0)


def bare(function: Callable[..., Any], **options: Any) -> Any:
    """Compile without reference counts: for what is called once per event and allocates nothing.

    numba raises and lowers an atomic count of every array that it hands to a function, which took
    two thirds of the time of an event. A function that allocates does not compile under it (numba's
    ``core/extending.py`` shows the option).
    """
    return compiled(function, _nrt=False, **options)


def short(function: Callable[..., Any]) -> Any:
    """Compile for large arrays alone: what gives the same numbers in plain Python."""
    return Compiled(function, {"cache": True}, PLAIN)


def within(function: Callable[..., Any]) -> Any:
    """A part of `short` functions: runs as it is where they do."""
    return Compiled(function, {"cache": True}, np.inf)
