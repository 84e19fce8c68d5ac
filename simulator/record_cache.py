"""Results that are kept for as long as the very same records are asked about."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from threading import Lock
from typing import Any, TypeVar

T = TypeVar("T")


def for_same_records(most: int) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Keep what a function makes of its arguments, told apart by which objects they are.

    Records are frozen, but hold dicts, so that they have no hash; and profiles are read once, so
    that the same one is asked about again and again. Texts, bytes and numbers count by their
    value.

    Parameters
    ----------
    most : int
        Results that are kept; those asked for longest ago are left out. What they were made of is
        kept with them, so that no other object takes its place in memory.

    Examples
    --------
    >>> calls = []
    >>> count = for_same_records(2)(lambda record: calls.append(record) or len(calls))
    >>> record, alike = {}, {}
    >>> count(record), count(record), count(alike)
    (1, 1, 2)
    """

    def around(function: Callable[..., T]) -> Callable[..., T]:
        known: OrderedDict[tuple[Any, ...], tuple[tuple[Any, ...], T]] = OrderedDict()
        lock = Lock()

        @wraps(function)
        def cached(*records: Any) -> T:
            identities = list[Any]()
            for item in records:  # a loop: this is called again and again
                identities.append(item if isinstance(item, (str, bytes, int, float)) else id(item))
            key = tuple(identities)
            with lock:
                if key in known:
                    known.move_to_end(key)
                    return known[key][1]
            made = function(*records)
            with lock:
                known[key] = records, made
                if len(known) > most:
                    known.popitem(last=False)
            return made

        return cached

    return around
