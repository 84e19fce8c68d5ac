"""Evaluate every layout and remember the fastest that fit, the near misses and why others fell."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.cost.step import Estimate, estimates, evaluate
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import Layouts
from simulator.layout.rules.feasibility import FEASIBLE, REASONS, reasons
from simulator.planner.candidates import candidates
from simulator.software.profile import Software
from simulator.workload.recipe import Workload

__all__ = ["KEEP", "ROOM", "TOO_LARGE", "Found", "explore"]


TOO_LARGE = "more memory than usable on the fullest GPU"
"""Reason of layouts that were evaluated but do not fit."""

ROOM = 1.1
"""Layouts within this much of usable memory are remembered as near misses."""

KEEP = 512
"""How many of the fastest layouts are remembered."""

PIECE = 1 << 18
"""Candidates judged and evaluated at once; bounds the memory of a search over millions."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What one exploration of the layout space saw."""

    best: Estimate
    """The fastest layouts that fit, best first."""
    roomy: Estimate
    """The fastest layouts that would fit with ROOM times the usable memory, best first."""
    layouts: int
    """Distinct layouts enumerated."""
    feasible: int
    """Layouts that can run and fit."""
    evaluated: int
    """Layouts with every time and memory term computed."""
    dropped: dict[str, int]
    """Layouts dropped, by reason."""
    nearest_miss: Estimate | None
    """The evaluated layout that needs least memory, when none fits."""
    fastest_too_large: Estimate | None
    """The fastest layout that was dropped for memory."""
    fastest_safe: Estimate | None
    """The fastest layout whose P90 of memory fits too."""
    seconds: float


_SPARE = 4
"""Times as many layouts as asked for are kept until they are priced finely: coarse times of
pipelines are up to some 8 % too short (``cost/pipeline/rounded.py``)."""


@dataclass(slots=True)
class _Least:
    """The rows with the least of some value among all that were shown, ties in order of arrival."""

    keep: int
    tables: list[Layouts] = field(default_factory=list)
    values: list[Floats] = field(default_factory=list)
    cut: float = np.inf
    """Rows at or above this cannot be among the least any more."""

    def show(self, layouts: Layouts, value: Floats, rows: NDArray[np.bool_]) -> None:
        """Take in the given rows of a table."""
        chosen = np.flatnonzero(rows & (value < self.cut))
        if len(chosen) == 0:
            return
        self.tables.append(layouts[chosen])
        self.values.append(value[chosen])
        if sum(len(part) for part in self.values) > 8 * self.keep:
            self._sort()

    def _sort(self) -> None:
        value = np.concatenate(self.values)
        order = np.argsort(value, kind="stable")[: self.keep]
        self.tables = [Layouts.concatenate(self.tables)[order]]
        self.values = [value[order]]
        if len(order) == self.keep:
            self.cut = float(value[order[-1]])

    def layouts(self) -> Layouts | None:
        """The rows kept, least first; None when none was shown."""
        if not self.tables:
            return None
        self._sort()
        return self.tables[0]


def _coarse(
    layouts: Layouts, workload: Workload, cluster: Cluster, software: Software
) -> Iterator[Estimate]:
    """Estimates by coarse costs, a table at a time; none of no layouts."""
    if len(layouts):
        yield from estimates(layouts, workload, cluster, software, coarse=True)


def explore(
    workload: Workload,
    cluster: Cluster,
    software: Software,
    pinned: Mapping[str, Any] | None = None,
    *,
    keep: int = KEEP,
    progress: Callable[[int, int], None] | None = None,
) -> Found:
    """Evaluate every layout and keep the fastest that fit.

    Parameters
    ----------
    pinned : mapping, optional
        Layout fields with a fixed value.
    keep : int
        How many of the fastest to return, and of those that nearly fit.
    progress : callable, optional
        Called with (candidates done, candidates in all) after every piece.
    """
    begun = time.perf_counter()
    table = candidates(workload, cluster, software, pinned)
    dropped = np.zeros(len(REASONS), dtype=np.int64)
    best, roomy, too_large, safe = (_Least(_SPARE * n) for n in (keep, keep, 8, 8))
    smallest = _Least(1)
    evaluated = fitting = 0
    for start in range(0, len(table), PIECE):
        piece = table[start : start + PIECE]
        code = reasons(piece, workload, cluster, software)
        dropped += np.bincount(code, minlength=len(REASONS))
        possible = piece[code == FEASIBLE]
        for e in _coarse(possible, workload, cluster, software):
            fits, needs = e.fits, e.memory_total_bytes
            evaluated, fitting = evaluated + len(e), fitting + int(fits.sum())
            best.show(e.layouts, e.step_time_s, fits)
            safe.show(e.layouts, e.step_time_s, e.verdict == 0)
            roomy.show(e.layouts, e.step_time_s, needs <= ROOM * e.usable_bytes)
            too_large.show(e.layouts, e.step_time_s, ~fits)
            smallest.show(e.layouts, needs, ~fits)
        if progress is not None:
            progress(start + len(piece), len(table))
    counts = {REASONS[i]: int(n) for i, n in enumerate(dropped) if n and i != FEASIBLE}
    if evaluated > fitting:
        counts[TOO_LARGE] = evaluated - fitting

    def again(kept: _Least, most: int) -> Estimate | None:
        rows = kept.layouts()
        if rows is None:
            return None
        fine = evaluate(rows, workload, cluster, software)
        return fine.take(np.argsort(fine.step_time_s, kind="stable")[:most])

    nothing = Layouts.of(dp=cluster.gpus)
    none = evaluate(nothing, workload, cluster, software).take(slice(0, 0))
    return Found(
        best=again(best, keep) or none,
        roomy=again(roomy, keep) or none,
        layouts=len(table),
        feasible=fitting,
        evaluated=evaluated,
        dropped=counts,
        nearest_miss=again(smallest, 1) if not fitting else None,
        fastest_too_large=again(too_large, 1),
        fastest_safe=again(safe, 1),
        seconds=time.perf_counter() - begun,
    )
