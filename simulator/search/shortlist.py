"""The fastest of the layouts that were shown, and what can still be among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats, Ints
from simulator.records import dataclass


@dataclass(slots=True)
class Shortlist:
    """The `keep` rows with the least of some value among all that were shown.

    Rows of equal value stand in the order of their numbers, whatever the order in which they came:
    what a search shows first does not change its answer.

    Examples
    --------
    >>> few = Shortlist(2)
    >>> few.show(np.array([3.0, 1.0, 2.0]), np.array([10, 11, 12]), np.array([True, True, True]))
    >>> few.numbers.tolist(), few.cut
    ([11, 12], 2.0)
    """

    keep: int
    values: Floats = field(default_factory=lambda: np.zeros(0))
    """Least first."""
    numbers: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Numbers of the rows."""

    @property
    def cut(self) -> float:
        """Rows above this cannot be among the least any more."""
        return float(self.values[-1]) if len(self.values) == self.keep else np.inf

    def show(self, value: Floats, number: Ints, rows: NDArray[Any]) -> None:
        """Take in the given rows of a table."""
        chosen = rows & (value <= self.cut)
        values = np.concatenate([self.values, value[chosen]])
        numbers = np.concatenate([self.numbers, number[chosen]])
        order = np.lexsort((numbers, values))[: self.keep]
        self.values, self.numbers = values[order], numbers[order]


def wanted(
    lists: Mapping[str, Sequence[Shortlist]],
    kinds: Mapping[str, NDArray[Any]],
    least: Mapping[str, Floats],
    part: Ints,
) -> NDArray[np.bool_]:
    """Rows that some list may still take, by lower bounds on their values; `kinds` by list.

    Of several lists of a kind `part` says which is for each row.
    """
    rows = np.zeros(len(part), dtype=bool)
    for name, several in lists.items():
        rows |= kinds[name] & (least[name] <= np.array([x.cut for x in several])[part])
    return rows
