"""A rule that a layout must obey: the mask of rows it refuses, the reason, and its wording.

The mask serves a table of a million layouts, the reason their count by what refused them, and the
wording a person who typed one layout and wants to know which field to change, and to what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Bools
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import Layouts, divisors
from simulator.records import dataclass
from simulator.software.profile import Software
from simulator.workload.architecture import Architecture
from simulator.workload.recipe import Workload

Mask: TypeAlias = Bools


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What layouts are judged for: what is trained, on what, with what."""

    workload: Workload
    cluster: Cluster
    software: Software

    @property
    def architecture(self) -> Architecture:
        """The model that is trained."""
        return self.workload.architecture


@dataclass(frozen=True, kw_only=True, slots=True)
class Case(Setting):
    """One layout that cannot run, and what is needed to say so."""

    where: str
    """The scenario's name, which every message starts with."""
    given: Mapping[str, Any]
    """Layout fields that were typed; the others follow from them when a value is tried."""
    row: Mapping[str, Any]
    """The whole layout."""
    can_run: Callable[[str, list[int]], list[bool]]
    """Whether the layout can run with each of some values of a field, the defaults following it."""

    def line(self, field: str, must: str, got: Any = None, near: Iterable[Any] = ()) -> str:
        """One problem as every message is worded; `got` is the layout's own value if not given."""
        got = self.row[field.partition(".")[2]] if got is None else got
        shown = str(got).lower() if isinstance(got, bool) else got
        near = [str(value) for value in near]
        hint = f" (nearest: {' or '.join(near)})" if near else ""
        return f"{self.where}: {field}: {must}, got {shown}{hint}"

    def nearest(self, name: str, tries: Iterable[int], obeys: Callable[[int], bool]) -> list[int]:
        """The value (two where equally near) closest to the layout's with which it can run.

        Where no value of `tries` makes it run, those that obey the field's own rule are offered.
        """
        values = list(tries)
        runs = self.can_run(name, values)
        works = [value for value, good in zip(values, runs, strict=True) if good]
        return closest(self.row[name], works or [value for value in values if obeys(value)])


@dataclass(frozen=True, slots=True)
class Wording:
    """What one layout breaks."""

    must: str
    """What the field must be, and why."""
    got: Any = None
    """What it is, where that is not the layout's own value."""
    near: Iterable[Any] = ()
    """The nearest good values."""
    field: str = ""
    """The field to change where it is not the rule's own."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Rule:
    """One reason why layouts cannot run."""

    field: str
    """The field to change, as it is typed in a scenario."""
    reason: str
    """What the table of dropped layouts counts."""
    wrong: Callable[[Layouts, Setting], Mask]
    """The rows of a table that break the rule."""
    wording: Callable[[Case], Wording]
    """What one such row is told."""

    def sentence(self, case: Case) -> str:
        """Word why one layout cannot run, with the nearest value that can."""
        wording = self.wording(case)
        return case.line(wording.field or self.field, wording.must, wording.got, wording.near)


# --- masks ------------------------------------------------------------------------------------


def obeyed_by_all(columns: list[Any], size: int) -> Mask:
    """Rows of which every column is true; all rows if there are no columns."""
    return np.logical_and.reduce(columns) if columns else np.full(size, True)


def wide(sizes: Iterable[int]) -> list[np.int64]:
    """Sizes of a model, as numbers that a layout's columns of 32 bit may be divided into."""
    return [np.int64(size) for size in sizes]


def among(column: NDArray[Any], words: tuple[str, ...], allowed: Iterable[str]) -> Mask:
    """Rows whose code in `column`, an index into `words`, stands for one of the `allowed` words."""
    allowed = tuple(allowed)
    table = np.array([word in allowed for word in words])
    return np.asarray(table[column])


# --- wordings, and rules of one form --------------------------------------------------------


def must_be_one_of(field: str, allowed: str, when: str = "") -> Callable[[Case], Wording]:
    """Word a choice that the software does not have among its `supports.<allowed>`."""

    def wording(case: Case) -> Wording:
        choices = ", ".join(getattr(case.software.supports, allowed)) or "none"
        must = f"must be one of {choices}{when} in {case.software.name}"
        return Wording(must, repr(case.row[field]))

    return wording


def software_has(
    field: str,
    reason: str,
    words: tuple[str, ...],
    allowed: str,
    *,
    of: Callable[[Layouts], Mask] | None = None,
    when: str = "",
) -> Rule:
    """A word of a field must be among the software's `supports.<allowed>`, of layouts `of` or all.

    `when` says to a person which these are.
    """
    name = field.partition(".")[2]

    def wrong(x: Layouts, at: Setting) -> Mask:
        lacks = ~among(getattr(x, name), words, getattr(at.software.supports, allowed))
        return lacks if of is None else of(x) & lacks

    wording = must_be_one_of(name, allowed, when)
    return Rule(field=field, reason=reason, wrong=wrong, wording=wording)


def divides_sizes(
    field: str, reason: str, sizes: Callable[[Architecture], list[int]], must: str
) -> Rule:
    """A degree must divide all of some sizes of the model; `must` has a place for the size."""
    name = field.partition(".")[2]

    def wrong(x: Layouts, at: Setting) -> Mask:
        degree = getattr(x, name)
        columns = [size % degree == 0 for size in wide(sizes(at.architecture))]
        return ~obeyed_by_all(columns, len(x))

    def wording(case: Case) -> Wording:
        size = next(size for size in sizes(case.architecture) if size % case.row[name])
        near = case.nearest(name, divisors(case.cluster.gpus), lambda degree: size % degree == 0)
        return Wording(must.format(size), near=near)

    return Rule(field=field, reason=reason, wrong=wrong, wording=wording)


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
