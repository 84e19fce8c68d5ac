"""Memory before time: which layouts of a family can run, and which of them come near to fitting.

Memory needs no longest path and no passes, and most layouts that can run do not fit; they cost no
time terms. Layouts that differ in the order of their ranks alone need the same memory, so it is
computed once for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats, Ints
from simulator.cost.memory.peak import lasting_bytes
from simulator.cost.pricing import price_keys
from simulator.cost.step import CHUNK, Needs, least_steps_s, memory_needs
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
from simulator.layout.rules.rule import Setting as RuleSetting
from simulator.layout.rules.software_rules import sayable
from simulator.records import dataclass
from simulator.search.candidates import Family
from simulator.search.in_threads import in_threads
from simulator.search.stage_splits import worth_rebalancing
from simulator.software.profile import Software
from simulator.workload.recipe import Workload

HEADROOM = 1.1
"""Layouts within this much of usable memory are remembered as near misses."""

_KIND = 1 << 44
"""What the number of a layout grows by from one kind of recomputation to the next."""

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
    """Of each row of the base with the first kind, among all layouts of the search; rising."""
    alike: Ints
    """Rows of the base that differ in the order of their ranks alone have one number."""

    def __len__(self) -> int:
        return len(self.family)

    def table(self, kind: int, rows: NDArray[Any]) -> tuple[Layouts, Priced]:
        """Some rows of the base with one kind of recomputation, and their prices."""
        recomputed = self.family.kinds[kind]
        priced = self.priced.of(rows, self.modules.index(recomputed.modules))
        return self.family.of(recomputed, rows), priced

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
        return np.asarray(self.number[rows] + kind * _KIND)

    def has(self, numbers: Ints) -> NDArray[np.bool_]:
        """Which of the numbers are those of its rows."""
        row = np.searchsorted(self.number, numbers % _KIND)
        return np.asarray(self.number[np.minimum(row, len(self.number) - 1)] == numbers % _KIND)

    def named(self, numbers: Ints) -> Rows:
        """The rows of some such numbers."""
        row = np.searchsorted(self.number, numbers % _KIND)
        return replace(_rows(0, row), kind=numbers // _KIND)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Some layouts of a space, a row of its base and a kind of recomputation each."""

    kind: Ints
    row: Ints
    least_s: Floats
    """A lower bound on the step time."""
    dealt_s: Floats
    """The same with layers dealt so that all ranks take as long; inf where no others are dealt."""
    fits: NDArray[np.bool_]
    safe: NDArray[np.bool_]
    """Whether the P90 of memory fits too."""

    def __len__(self) -> int:
        return len(self.row)

    @property
    def lists(self) -> dict[str, NDArray[np.bool_]]:
        """Shortlists that each row is for, if all of them come near to fitting."""
        near = np.full(len(self), True)
        lists = {"fits": self.fits, "roomy": near, "near": ~self.fits, "safe": self.safe}
        return {**lists, "dealt": np.isfinite(self.dealt_s)}

    @property
    def bound_s(self) -> Floats:
        """A lower bound on what any list goes by."""
        return np.minimum(self.least_s, self.dealt_s)

    @staticmethod
    def joined(pieces: list[Rows]) -> Rows:
        """Put pieces one below the other."""
        names = ("kind", "row", "least_s", "dealt_s", "fits", "safe")
        columns = {name: [getattr(piece, name) for piece in pieces] for name in names}
        return Rows(**{name: np.concatenate(column) for name, column in columns.items()})

    def take(self, rows: Any) -> Rows:
        """Return some of the rows."""
        return Rows(
            kind=self.kind[rows],
            row=self.row[rows],
            least_s=self.least_s[rows],
            dealt_s=self.dealt_s[rows],
            fits=self.fits[rows],
            safe=self.safe[rows],
        )


def open_space(
    family: Family, setting: Setting, first: int, pinned: Mapping[str, Any]
) -> tuple[Space | None, Ints]:
    """The layouts of a family that can run, and how many fall by each of REASONS.

    `first` is the number of the first layout of the family's enumeration. Rules that do not look
    at recomputation are asked once for all kinds of it. What the software's command cannot say
    (``layout/rules/software_rules.py``) is left out, unless it is pinned: the last count is that of
    it.
    """
    at = RuleSetting(workload=setting[0], cluster=setting[1], software=setting[2])
    rules = tuple(rule for rule in RULES if rule not in DEPEND_ON_RECOMPUTATION)
    code = reasons(family.base, *setting, rules=rules)
    count = np.zeros(len(REASONS) + 1, dtype=np.int64)
    able = code == FEASIBLE
    place = np.cumsum(able) - 1
    kinds = []
    for kind in family.kinds:
        fallen = code[kind.rows]
        count += np.bincount(fallen[fallen != FEASIBLE], minlength=len(count))
        rows = kind.rows[fallen == FEASIBLE]
        table = family.of(kind, rows)
        recompute_code = reasons(table, *setting, rules=DEPEND_ON_RECOMPUTATION)
        unsaid = (recompute_code == FEASIBLE) & ~sayable(table, at, pinned)
        recompute_code = np.where(unsaid, len(REASONS), recompute_code)
        count += np.bincount(recompute_code, minlength=len(count))
        rows = place[rows[recompute_code == FEASIBLE]]
        if len(rows):
            kinds.append(replace(kind, layers=kind.layers[able], rows=rows))
    if not kinds:
        return None, count
    base = family.base[able]
    modules = sorted({kind.modules for kind in kinds})
    space = Space(
        family=Family(base=base, kinds=tuple(kinds), number=family.number[able]),
        priced=price_keys(base, *setting, modules=modules),
        modules=modules,
        number=first + family.number[able],
        alike=_alike(base),
    )
    return space, count


def every_row(space: Space) -> Rows:
    """All layouts of a space, with nothing known of them."""
    return Rows.joined([_rows(i, kind.rows) for i, kind in enumerate(space.family.kinds)])


@dataclass(frozen=True, kw_only=True, slots=True)
class Near:
    """What memory alone says of some layouts of a space."""

    rows: Rows
    """Layouts that need at most HEADROOM times the usable memory."""
    fitting: int
    """Layouts that fit."""


def light_rows(space: Space) -> Rows:
    """Layouts of a space but those whose states alone exceed HEADROOM times the usable memory.

    They are out without a look at what their passes hold.
    """
    light = _light(space, HEADROOM * float(space.priced.cluster.accelerator.memory.usable_bytes))
    kinds = enumerate(space.family.kinds)
    return Rows.joined([_rows(i, kind.rows[light[kind.rows]]) for i, kind in kinds])


def with_bounds(space: Space, rows: Rows) -> Rows:
    """The same rows, kind by kind, with a lower bound on the step time of each."""
    rows = _kind_by_kind(rows)
    bounds = np.hstack([np.zeros((2, 0)), *_each(space, rows, _bounds_s)])
    return replace(rows, least_s=bounds[0], dealt_s=bounds[1])


def _bounds_s(layouts: Layouts, priced: Priced) -> Floats:
    """Lower bounds of :class:`Rows`, least_s above dealt_s."""
    least_s, dealt_s = least_steps_s(layouts, priced)
    worth = worth_rebalancing(layouts, priced.workload, priced.software)
    return np.stack([least_s, np.where(worth, dealt_s, np.inf)])


def near_among(space: Space, rows: Rows) -> Near:
    """Find those of some layouts of a space that come near to fitting, kind by kind.

    Layouts that differ in the order of their ranks alone are asked about once.
    """
    if not len(rows):
        return Near(rows=rows, fitting=0)
    usable = float(space.priced.cluster.accelerator.memory.usable_bytes)
    rows = _kind_by_kind(rows)
    alike = unique_rows(rows.kind, space.alike[rows.row])
    needs = Needs.joined(_each(space, rows.take(alike.first), memory_needs))
    fits = needs.fits[alike.inverse]
    near = np.flatnonzero((needs.memory_bytes <= HEADROOM * usable)[alike.inverse])
    safe = needs.safe[alike.inverse[near]]
    return Near(rows=replace(rows.take(near), fits=fits[near], safe=safe), fitting=int(fits.sum()))


def _kind_by_kind(rows: Rows) -> Rows:
    return rows.take(np.argsort(rows.kind, kind="stable"))


def smallest_row(space: Space, below: float = np.inf) -> tuple[Layouts, float] | None:
    """The layout of a space that needs least memory, a table of one row, and its bytes.

    None where all need `below` bytes or more. Those whose states take least come first; where even
    the states take more than the least so far, no other layout can need less.
    """
    held, base = lasting_bytes(space.priced)[space.priced.state_key], space.family.base
    held = np.where((base.optimizer_offload > 0) | (base.parameter_offload > 0), 0.0, held)
    rows = every_row(space)
    smallest, least = None, below
    for block in least_first(held[rows.row], CHUNK):
        some = rows.take(block)
        if held[some.row[0]] >= least:
            break
        layouts, priced = space.mixed(some)
        needs = memory_needs(layouts, priced).memory_bytes
        at = int(np.argmin(needs))
        if needs[at] < least:
            smallest, least = layouts[at], float(needs[at])
    return None if smallest is None else (smallest, least)


def least_first(values: Floats, size: int) -> Iterator[Ints]:
    """Places of values in the order of a stable sort, `size` at a time.

    Of a million mostly the first few are asked for: what lies above them is not sorted.
    """
    rest, ordered, many = np.arange(len(values)), np.arange(0), size
    while len(rest) or len(ordered):
        if len(rest) and len(ordered) < size:
            low = np.full(len(rest), True)
            if many < len(rest):
                low = values[rest] <= np.partition(values[rest], many)[many]
            some, rest, many = rest[low], rest[~low], 8 * many
            ordered = np.concatenate([ordered, some[np.argsort(values[some], kind="stable")]])
        yield ordered[:size]
        ordered = ordered[size:]


def _light(space: Space, most_bytes: float) -> NDArray[np.bool_]:
    """Rows of the base whose states alone leave room, or wait elsewhere."""
    base = space.family.base
    away = (base.optimizer_offload > 0) | (base.parameter_offload > 0)
    return away | (lasting_bytes(space.priced)[space.priced.state_key] <= most_bytes)


def _rows(kind: int, rows: Ints, *, fits: Any = True, safe: Any = True) -> Rows:
    """Rows of one kind; nothing is known of their times."""
    size = len(rows)
    return Rows(
        kind=np.full(size, kind),
        row=rows,
        least_s=np.zeros(size),
        dealt_s=np.zeros(size),
        fits=np.broadcast_to(fits, size),
        safe=np.broadcast_to(safe, size),
    )


def _alike(base: Layouts) -> Ints:
    """Rows that differ in the order of their ranks alone have one number."""
    columns = base.columns()
    del columns["rank_order"]
    different = [x for x in columns.values() if len(x) and (x != x[0]).any()]
    return unique_rows(*different).inverse if different else np.zeros(len(base), dtype=np.intp)


def _each(space: Space, rows: Rows, work: Any) -> list[Any]:
    """What `work` says of rows, kind by kind: a cache-sized table at a time, in threads.

    Of few rows one table for all kinds: calls of NumPy take longer than what they do there.
    """
    if len(rows) <= CHUNK:
        return [work(*space.mixed(rows))] if len(rows) else []
    ends = np.searchsorted(rows.kind, np.arange(1, len(space.family.kinds)))
    pieces = [
        (kind, some[start : start + CHUNK])
        for kind, some in enumerate(np.split(rows.row, ends))
        for start in range(0, len(some), CHUNK)
    ]
    return list(in_threads(lambda piece: work(*space.table(*piece)), pieces))
