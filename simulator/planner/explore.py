"""Find the fastest layouts that fit, the near misses and why others fell.

Memory comes first: what cannot fit is known from memory alone. Of the rest, those with the least
lower bound on their step time are timed first; a layout whose bound lies above the slowest that is
kept is not timed at all. The answer is that of timing every layout (`exhaustive`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.cost.estimate import concatenate
from simulator.cost.pricing import with_paths
from simulator.cost.step import CHUNK, Estimate, evaluate, priced_estimate
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import Layouts
from simulator.layout.rules.feasibility import FEASIBLE, REASONS
from simulator.planner.candidates import Family, count, families
from simulator.planner.in_threads import in_threads
from simulator.planner.memory_first import (
    ROOM,
    Rows,
    Setting,
    Space,
    every_row,
    near_rows,
    open_space,
)
from simulator.planner.shortlist import Shortlist, wanted
from simulator.software.profile import Software
from simulator.workload.recipe import Workload

__all__ = ["KEEP", "ROOM", "TOO_LARGE", "Found", "explore"]


TOO_LARGE = "more memory than usable on the fullest GPU"
"""Reason of layouts that were evaluated but do not fit."""

KEEP = 512
"""How many of the fastest layouts are remembered."""

PIECE = 1 << 18
"""Layouts without recomputation judged at once; bounds the memory of a search over millions."""


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
    """Layouts that can run: their memory was computed."""
    timed: int
    """Of them, those with every time term computed; the others cannot be among the best."""
    dropped: dict[str, int]
    """Layouts dropped, by reason."""
    nearest_miss: Estimate | None
    """The evaluated layout that needs least memory, when none fits."""
    fastest_too_large: Estimate | None
    """The fastest of the near misses: it does not fit but needs at most ROOM times the usable
    memory, or its server has no room for what it keeps in host memory or on drives."""
    fastest_safe: Estimate | None
    """The fastest layout whose P90 of memory fits too."""
    seconds: float


_SPARE = 4
"""Times as many layouts as asked for are kept until they are priced finely: coarse times of
pipelines are up to some 8 % too short (``cost/pipeline/rounded.py``)."""

_FEW = 8
"""How many are remembered of those of which one is told."""

_BLOCKS = (2048, 16384)
"""Layouts that are timed together: few at first, to know early how fast the best ones are."""


class _Search:
    """One exploration: families of layouts come in, the fastest of them stay."""

    def __init__(self, setting: Setting, keep: int, exhaustive: bool) -> None:
        self.setting, self.exhaustive = setting, exhaustive
        sizes = {"best": keep, "roomy": keep, "near": _FEW, "safe": _FEW}
        self.lists = {name: Shortlist(_SPARE * size) for name, size in sizes.items()}
        self.smallest = Shortlist(1)
        self.dropped = np.zeros(len(REASONS), dtype=np.int64)
        self.layouts = self.fitting = self.timed = 0

    def take(self, family: Family) -> None:
        """Judge a family, look at the memory of what can run, and time what may be among the best.

        No row is left out that a list would take: its time is no less than its lower bound, which
        lies above the slowest that the full list holds.
        """
        space, count = open_space(family, self.setting, self.layouts)
        self.layouts += len(family)
        self.dropped += count
        if space is None:
            return
        if self.exhaustive or space.family.base.offload_layers.any():
            rows = every_row(space)
            fresh = True
        else:
            near = near_rows(space)
            rows, fresh = near.rows, False
            self.fitting += near.fitting
            if near.smallest is not None:
                self.smallest.show(*near.smallest, np.full(1, True))
        start, order = 0, np.argsort(rows.least_s, kind="stable")
        while start < len(order):
            size = _BLOCKS[start > 0]
            some = rows.take(order[start : start + size])
            start += size
            some = some.take(wanted(self.lists, some.lists, some.least_s))
            if len(some):
                self._time(space, some, fresh)

    def _time(self, space: Space, rows: Rows, fresh: bool) -> None:
        """Price rows in full, with coarse costs of pipelines; `fresh`: nothing is counted yet."""
        layouts, priced = space.mixed(rows)
        priced = with_paths(priced, layouts, coarse=True)
        numbers = space.numbers(rows.kind, rows.row)
        self.timed += len(rows)
        starts = range(0, len(rows), CHUNK)
        pieces = [slice(start, start + CHUNK) for start in starts]

        def timed(piece: slice) -> Estimate:
            return priced_estimate(layouts, priced, piece)

        for piece, e in zip(pieces, in_threads(timed, pieces), strict=True):
            fits, needs, step_s = e.fits, e.memory_total_bytes, e.step_time_s
            near = needs <= ROOM * e.usable_bytes
            kinds = {"best": fits, "roomy": near, "near": near & ~fits, "safe": e.verdict == 0}
            for name, some in kinds.items():
                self.lists[name].show(e.layouts, step_s, numbers[piece], some)
            if fresh:
                self.fitting += int(fits.sum())
                self.smallest.show(e.layouts, needs, numbers[piece], ~fits)

    def fine(self, name: str, most: int) -> Estimate | None:
        """The fastest of a list by fine costs of pipelines; None where it is empty.

        Coarse times are too short, not too long: where the slowest of the `most` fastest was priced
        finely, no layout comes among them whose coarse time is longer.
        """
        kept = self.lists[name].rows()
        if kept is None:
            return None
        layouts, coarse_s, _ = kept
        first = evaluate(layouts[:most], *self.setting)
        rest = np.flatnonzero(coarse_s[most:] <= first.step_time_s.max())
        if len(rest):
            first = concatenate([first, evaluate(layouts[most:][rest], *self.setting)])
        return first.take(np.argsort(first.step_time_s, kind="stable")[:most])


def explore(
    workload: Workload,
    cluster: Cluster,
    software: Software,
    pinned: Mapping[str, Any] | None = None,
    *,
    keep: int = KEEP,
    exhaustive: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Found:
    """Search all layouts and keep the fastest that fit.

    Parameters
    ----------
    pinned : mapping, optional
        Layout fields with a fixed value.
    keep : int
        How many of the fastest to return, and of those that nearly fit.
    exhaustive : bool
        Compute every term of every layout that can run: the same answer, proven the long way.
    progress : callable, optional
        Called with (candidates done, candidates in all) after every piece.
    """
    begun = time.perf_counter()
    search = _Search((workload, cluster, software), keep, exhaustive)
    whole = count(workload, cluster, software, pinned)
    for family in families(workload, cluster, software, pinned, most=PIECE):
        search.take(family)
        if progress is not None:
            progress(search.layouts, max(whole, search.layouts))
    if progress is not None and search.layouts < whole:
        progress(search.layouts, search.layouts)
    counts = {REASONS[i]: int(n) for i, n in enumerate(search.dropped) if n and i != FEASIBLE}
    evaluated = int(search.dropped[FEASIBLE])
    if evaluated > search.fitting:
        counts[TOO_LARGE] = evaluated - search.fitting
    nothing = Layouts.of(dp=cluster.gpus)
    none = evaluate(nothing, workload, cluster, software).take(slice(0, 0))
    smallest = search.smallest.rows() if not search.fitting else None
    return Found(
        best=search.fine("best", keep) or none,
        roomy=search.fine("roomy", keep) or none,
        layouts=search.layouts,
        feasible=search.fitting,
        evaluated=evaluated,
        timed=search.timed,
        dropped=counts,
        nearest_miss=evaluate(smallest[0], *search.setting) if smallest is not None else None,
        fastest_too_large=search.fine("near", 1),
        fastest_safe=search.fine("safe", 1),
        seconds=time.perf_counter() - begun,
    )
