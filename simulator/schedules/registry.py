"""All pipeline schedules: by word, and as layouts store them, as positions in this list."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.schedules import (
    asynchronous,
    breadth_first,
    controllable_memory,
    dualpipe,
    one_f_one_b,
    zero_bubble,
)
from simulator.schedules.schedule import Schedule

SCHEDULES: dict[str, Schedule] = {
    schedule.word: schedule
    for family in (
        one_f_one_b.SCHEDULES,
        breadth_first.SCHEDULES,
        zero_bubble.SCHEDULES,
        dualpipe.SCHEDULES,
        asynchronous.SCHEDULES,
        controllable_memory.SCHEDULES,
    )
    for schedule in family
}
"""Record of every word, in the order of their codes."""

WORDS = tuple(SCHEDULES)
"""Word of every code."""


def by_code(trait: Callable[[Schedule], Any]) -> NDArray[Any]:
    """A trait of every schedule, to be looked up with codes.

    Examples
    --------
    >>> by_code(lambda s: s.copies)[[WORDS.index("1f1b"), WORDS.index("dualpipe")]].tolist()
    [1, 2]
    """
    return np.array([trait(schedule) for schedule in SCHEDULES.values()])


SPLITS_BACKWARD = by_code(attrgetter("splits_backward"))
"""Whether input and weight gradients are passes of their own, by code."""

BREADTH_FIRST = by_code(attrgetter("breadth_first"))
"""Whether all forward passes come before all backward passes, by code."""

TAKES_ROUNDS = by_code(attrgetter("takes_rounds"))
"""Whether micro-batches go through a rank's chunks in rounds of about pp, by code."""

FLUSHES = by_code(attrgetter("flushes"))
"""Whether a step ends before the next one begins, by code."""


def usual(vpp: int) -> str:
    """The schedule of a layout that names none.

    Examples
    --------
    >>> usual(1), usual(2)
    ('1f1b', 'interleaved')
    """
    return next(
        schedule.word
        for schedule in SCHEDULES.values()
        if schedule.by_default and schedule.fewest_chunks <= vpp <= schedule.most_chunks
    )


def usual_codes(vpp: NDArray[Any]) -> NDArray[np.int32]:
    """The codes of :func:`usual` for many layouts."""
    one, several = (WORDS.index(usual(chunks)) for chunks in (1, 2))
    return np.where(vpp > 1, several, one).astype(np.int32)
