"""One layout that cannot run: its message, and the nearest values with which it could."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from simulator.layout.layouts import Layouts
from simulator.layout.rules.feasibility import FEASIBLE, reasons
from simulator.planner.defaults import complete
from simulator.scenario import Scenario

__all__ = ["Case", "around", "closest"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One layout that cannot run, and what is needed to say so."""

    scenario: Scenario
    given: Mapping[str, Any]
    row: Mapping[str, Any]

    def line(self, field: str, rule: str, got: Any = None, near: Iterable[Any] = ()) -> str:
        """One problem as every message is worded; `got` is the layout's own value if not given."""
        got = self.row[field.partition(".")[2]] if got is None else got
        shown = str(got).lower() if isinstance(got, bool) else got
        near = [str(value) for value in near]
        hint = f" (nearest: {' or '.join(near)})" if near else ""
        return f"{self.scenario.where}: {field}: {rule}, got {shown}{hint}"

    def nearest(self, name: str, tries: Iterable[int], own: Callable[[int], bool]) -> list[int]:
        """The value (two where equally near) closest to the layout's with which it can run.

        Where no value of `tries` makes it run, those that obey the field's `own` rule are offered.
        """
        values = list(tries)
        works = [value for value, good in zip(values, self._run(name, values), strict=True) if good]
        return closest(self.row[name], works or [value for value in values if own(value)])

    def _run(self, name: str, values: list[int]) -> list[bool]:
        """Whether the layout can run with each value of one field, the defaults following it."""
        if not values:
            return []
        scenario = self.scenario
        rows = [complete(scenario, {**self.given, name: value})[0] for value in values]
        table = Layouts.of(**{key: [row[key] for row in rows] for key in rows[0]})
        codes = reasons(table, scenario.workload, scenario.cluster, scenario.software)
        return [bool(code == FEASIBLE) for code in codes]


def closest(value: int, choices: Iterable[int]) -> list[int]:
    """Return the choice nearest to a value, or the two that are equally near.

    >>> closest(7, [1, 2, 4, 8]), closest(6, [4, 8]), closest(5, [])
    ([8], [4, 8], [])
    """
    others = sorted(set(choices) - {value})
    distance = min((abs(x - value) for x in others), default=0)
    return [x for x in others if abs(x - value) == distance]


def around(value: int, step: int) -> list[int]:
    """Return the multiples of a step below and above a value.

    >>> around(2048, 96), around(10, 64)
    ([2016, 2112], [64])
    """
    below = value // step * step
    return [x for x in (below, below + step) if x > 0]
