"""The fastest of the layouts that were shown, and what can still be among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats, Ints
from simulator.layout.layouts import Layouts

__all__ = ["Shortlist", "wanted"]


@dataclass(slots=True)
class Shortlist:
    """The `keep` rows with the least of some value among all that were shown.

    Rows of equal value stand in the order of their numbers, whatever the order in which they came:
    what a search shows first does not change its answer.
    """

    keep: int
    cut: float = np.inf
    """Rows above this cannot be among the least any more."""
    _tables: list[Layouts] = field(default_factory=list)
    _values: list[Floats] = field(default_factory=list)
    _numbers: list[Ints] = field(default_factory=list)

    def show(self, layouts: Layouts, value: Floats, number: Ints, rows: NDArray[Any]) -> None:
        """Take in the given rows of a table."""
        chosen = np.flatnonzero(rows & (value <= self.cut))
        if len(chosen) == 0:
            return
        self._tables.append(layouts[chosen])
        self._values.append(value[chosen])
        self._numbers.append(number[chosen])
        if sum(len(part) for part in self._values) > self.keep:
            self._sort()

    def _sort(self) -> None:
        value, number = np.concatenate(self._values), np.concatenate(self._numbers)
        order = np.lexsort((number, value))[: self.keep]
        self._tables = [Layouts.concatenate(self._tables)[order]]
        self._values, self._numbers = [value[order]], [number[order]]
        if len(order) == self.keep:
            self.cut = float(value[order[-1]])

    def rows(self) -> tuple[Layouts, Floats, Ints] | None:
        """The rows kept, least first, with values and numbers; None when none was shown."""
        if not self._tables:
            return None
        self._sort()
        return self._tables[0], self._values[0], self._numbers[0]


def wanted(
    lists: Mapping[str, Shortlist], kinds: Mapping[str, NDArray[Any]], least: Floats
) -> NDArray[np.bool_]:
    """Rows that some list may still take, by a lower bound on their value; `kinds` by list."""
    rows = np.zeros(len(least), dtype=bool)
    for name, kind in kinds.items():
        rows |= kind & (least <= lists[name].cut)
    return rows
