"""Numbers of a scenario that may be several: one, a list, or a range written "256..4096"."""

from __future__ import annotations

import re
from typing import Any

from simulator.errors import brief
from simulator.records import dataclass

_RANGE = re.compile(r"\s*(\d{1,15})\s*(\.\.|to|[-:\u2013\u2026]|\.{3})\s*(\d{1,15})\s*")
"""A range, or what reads like one: ``1024 to 8192``."""

_MOST = 64
"""Values of a list."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What a number may be: each of `values`, or all from the first to the last of them."""

    values: tuple[int, ...]
    """Smallest first."""
    is_range: bool
    """Whether what lies between the two counts too."""


def is_several(value: Any) -> bool:
    """Whether what was typed stands for more than one number."""
    if isinstance(value, str):
        return ".." in value or _RANGE.fullmatch(value) is not None
    return isinstance(value, (list, tuple))


def read_choice(value: Any) -> Choice:
    """Read a list of numbers, or a range.

    Raises
    ------
    ValueError
        With what it must be, and the nearest that is.

    Examples
    --------
    >>> read_choice("256..4096").values, read_choice([64, 32, 64]).values
    ((256, 4096), (32, 64))
    """
    if isinstance(value, str):
        ends = _RANGE.fullmatch(value)
        if not ends:
            raise ValueError(
                f"must be two whole numbers and two dots (256..4096), got {brief(value)}"
            )
        low, high = int(ends[1]), int(ends[3])
        if low > high:
            rule = "must rise, the smaller number first: this range is upside down"
            raise ValueError(f"{rule}, got {value!r} (nearest: '{max(high, 1)}..{low}')")
        if low < 1:
            raise ValueError(f"must begin at 1 or more, got {value!r} (nearest: '1..{high}')")
        if ends[2] != "..":
            rule = "must have two dots between its ends"
            raise ValueError(f"{rule}, got {value!r} (nearest: '{low}..{high}')")
        return Choice(values=(low, high), is_range=True)
    numbers = list(value)
    if not numbers or len(numbers) > _MOST:
        raise ValueError(f"must list 1 to {_MOST} numbers, got {len(numbers)}")
    for number in numbers:
        if type(number) is not int or number < 1:
            raise ValueError(f"must be whole numbers of 1 or more, got {brief(number)}")
    return Choice(values=tuple(sorted(set(numbers))), is_range=False)
