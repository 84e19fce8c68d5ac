"""Memory before time: which layouts of a family can run, and which of them come near to fitting.

Memory needs no longest path and no passes, and most layouts that can run do not fit; they cost no
time terms. Layouts that differ in the order of their ranks alone need the same memory, so it is
computed once for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats, Ints
from simulator.cost.pricing import price_keys
from simulator.cost.step import CHUNK, Needs, least_step_s, memory_needs
from simulator.cost.tables import Priced
from simulator.hardware.cluster import Cluster
from simulator.layout.keys import unique_rows
from simulator.layout.layouts import Layouts
from simulator.layout.rules.feasibility import (
    DEPEND_ON_RECOMPUTATION,
    FEASIBLE,
    REASONS,
    RULES,
    reasons,
)
from simulator.planner.candidates import Family
from simulator.planner.in_threads import in_threads
from simulator.software.profile import Software
from simulator.workload.recipe import Workload

__all__ = ["ROOM", "Rows", "Space", "every_row", "near_rows", "open_space"]

ROOM = 1.1
"""Layouts within this much of usable memory are remembered as near misses."""

Setting = tuple[Workload, Cluster, Software]


@dataclass(frozen=True, kw_only=True, slots=True)
class Space:
    """The layouts of a family that can run, with the prices that they share."""

    family: Family
    priced: Priced
    """Of the base, with each of `modules`."""
    modules: list[int]
    """Sets of modules that kinds of recomputation name."""
    number: Ints
    """Number of each row of the base among all layouts of the search, with the first kind."""
    stride: int
    """What the number of the same row grows by from kind to kind."""

    def __len__(self) -> int:
        return len(self.family)

    def table(self, kind: int, rows: NDArray[Any]) -> tuple[Layouts, Priced]:
        """Some rows of the base with one kind of recomputation, and their prices."""
        one = self.family.kinds[kind]
        priced = self.priced.of(rows, self.modules.index(one.modules))
        return self.family.of(one, rows), priced

    def mixed(self, rows: Rows) -> tuple[Layouts, Priced]:
        """Rows of several kinds of recomputation, and their prices."""
        kinds = self.family.kinds
        layers = np.zeros(len(rows), dtype=np.int32)
        for i in np.unique(rows.kind).tolist():
            some = rows.kind == i
            layers[some] = kinds[i].layers[rows.row[some]]
        masks = np.array([kind.modules for kind in kinds], dtype=np.int32)
        modes = np.array([kind.recompute for kind in kinds], dtype=np.int32)
        where = np.array([self.modules.index(kind.modules) for kind in kinds])
        layouts = replace(
            self.family.base[rows.row],
            recompute=modes[rows.kind],
            recompute_layers=layers,
            recompute_modules=masks[rows.kind],
        )
        return layouts, self.priced.of(rows.row, where[rows.kind])

    def numbers(self, kind: Any, rows: NDArray[Any]) -> Ints:
        """Numbers of rows among all layouts of the search."""
        return np.asarray(self.number[rows] + kind * self.stride)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Some layouts of a space, a row of its base and a kind of recomputation each."""

    kind: Ints
    row: Ints
    least_s: Floats
    """A lower bound on the step time."""
    fits: NDArray[np.bool_]
    safe: NDArray[np.bool_]
    """Whether the P90 of memory fits too."""

    def __len__(self) -> int:
        return len(self.row)

    @property
    def lists(self) -> dict[str, NDArray[np.bool_]]:
        """Shortlists that each row is for, if all of them come near to fitting."""
        near = np.full(len(self), True)
        return {"best": self.fits, "roomy": near, "near": ~self.fits, "safe": self.safe}

    def take(self, rows: Any) -> Rows:
        """Return some of the rows."""
        return Rows(
            kind=self.kind[rows],
            row=self.row[rows],
            least_s=self.least_s[rows],
            fits=self.fits[rows],
            safe=self.safe[rows],
        )


def open_space(family: Family, setting: Setting, first: int) -> tuple[Space | None, Ints]:
    """The layouts of a family that can run, and how many fall by each of REASONS.

    `first` is the number of the family's first layout. Rules that do not look at recomputation are
    asked once for all kinds of it.
    """
    rules = tuple(rule for rule in RULES if rule not in DEPEND_ON_RECOMPUTATION)
    code = reasons(family.base, *setting, rules=rules)
    count = np.zeros(len(REASONS), dtype=np.int64)
    able = code == FEASIBLE
    place = np.cumsum(able) - 1
    kinds = []
    for kind in family.kinds:
        fallen = code[kind.rows]
        count += np.bincount(fallen[fallen != FEASIBLE], minlength=len(REASONS))
        rows = kind.rows[fallen == FEASIBLE]
        own = reasons(family.of(kind, rows), *setting, rules=DEPEND_ON_RECOMPUTATION)
        count += np.bincount(own, minlength=len(REASONS))
        rows = place[rows[own == FEASIBLE]]
        if len(rows):
            kinds.append(replace(kind, layers=kind.layers[able], rows=rows))
    if not kinds:
        return None, count
    base = family.base[able]
    modules = sorted({kind.modules for kind in kinds})
    space = Space(
        family=Family(base=base, kinds=tuple(kinds)),
        priced=price_keys(base, *setting, modules=modules),
        modules=modules,
        number=first + np.flatnonzero(able),
        stride=len(able),
    )
    return space, count


def every_row(space: Space) -> Rows:
    """All layouts of a space, with nothing known of them."""
    kinds = space.family.kinds
    size = len(space)
    return Rows(
        kind=np.repeat(np.arange(len(kinds)), [len(kind.rows) for kind in kinds]),
        row=np.concatenate([kind.rows for kind in kinds]),
        least_s=np.zeros(size),
        fits=np.full(size, True),
        safe=np.full(size, True),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Near:
    """What memory alone says of a space."""

    rows: Rows
    """Layouts that need at most ROOM times the usable memory."""
    fitting: int
    """Layouts that fit."""
    smallest: tuple[Layouts, Floats, Ints] | None
    """Of those that do not, the one that needs least, its bytes and its number; a row each."""


def near_rows(space: Space) -> Near:
    """Find the layouts of a space that come near to fitting, with a lower bound on their time."""
    alike = _alike(space.family.base)
    owners = [unique_rows(alike[kind.rows]) for kind in space.family.kinds]
    speakers = [
        kind.rows[own.first] for kind, own in zip(space.family.kinds, owners, strict=True)
    ]
    needs = _by_kind(space, speakers, memory_needs)
    usable = float(space.priced.cluster.accelerator.memory.usable_bytes)
    rows, fitting, smallest = [], 0, None
    for i, (kind, own) in enumerate(zip(space.family.kinds, owners, strict=True)):
        held = Needs.joined(needs[i])
        fits = held.fits[own.inverse]
        fitting += int(fits.sum())
        smallest = _smaller(smallest, space, i, speakers[i], held)
        near = np.flatnonzero((held.memory_bytes <= ROOM * usable)[own.inverse])
        rows.append(
            Rows(
                kind=np.full(len(near), i),
                row=kind.rows[near],
                least_s=np.zeros(len(near)),
                fits=fits[near],
                safe=held.safe[own.inverse[near]],
            )
        )
    bounds = _by_kind(space, [some.row for some in rows], least_step_s)
    least_s = [x for pieces in bounds for x in pieces]
    joined = Rows(
        kind=np.concatenate([some.kind for some in rows]),
        row=np.concatenate([some.row for some in rows]),
        least_s=np.concatenate([*least_s, np.zeros(0)]),
        fits=np.concatenate([some.fits for some in rows]),
        safe=np.concatenate([some.safe for some in rows]),
    )
    return Near(rows=joined, fitting=fitting, smallest=smallest)


def _alike(base: Layouts) -> Ints:
    """Rows that differ in the order of their ranks alone have one number."""
    columns = base.columns()
    del columns["rank_order"]
    different = [x for x in columns.values() if len(x) and (x != x[0]).any()]
    return unique_rows(*different).inverse if different else np.zeros(len(base), dtype=np.intp)


def _by_kind(space: Space, rows: list[Ints], work: Any) -> list[list[Any]]:
    """What `work` says of the rows of every kind, a cache-sized table at a time, in threads."""
    pieces = [
        (kind, some[start : start + CHUNK])
        for kind, some in enumerate(rows)
        for start in range(0, len(some), CHUNK)
    ]
    found: list[list[Any]] = [[] for _ in rows]
    done: Iterator[Any] = in_threads(lambda piece: work(*space.table(*piece)), pieces)
    for (kind, _), result in zip(pieces, done, strict=True):
        found[kind].append(result)
    return found


def _smaller(
    least: tuple[Layouts, Floats, Ints] | None,
    space: Space,
    kind: int,
    rows: Ints,
    held: Needs,
) -> tuple[Layouts, Floats, Ints] | None:
    """The smaller of what does not fit, of `least` and of rows of a kind."""
    needs = np.where(held.fits, np.inf, held.memory_bytes)
    at = int(np.argmin(needs))
    if not np.isfinite(needs[at]) or (least is not None and needs[at] >= least[1][0]):
        return least
    row = rows[[at]]
    return space.table(kind, row)[0], needs[[at]], space.numbers(kind, row)
