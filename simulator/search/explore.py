"""Find the fastest layouts that fit, the near misses and why others fell.

Memory comes first: what cannot fit is known from memory alone. Of the rest, those with the least
lower bound on their step time are timed first; a layout whose bound lies above the slowest that is
kept is not timed at all. The answer is that of timing every layout (`exhaustive`). At last, layers
of the fastest layouts are dealt anew (``search/stage_splits.py``).

What is recommended FITS: the P90 of its memory is within the usable bytes. TIGHT layouts, whose P50
alone is, are kept beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats, Ints
from simulator.cost.estimate import VERDICTS, concatenate
from simulator.cost.pricing import with_paths
from simulator.cost.step import CHUNK, Estimate, evaluate, priced_estimate
from simulator.cost.tables import Priced
from simulator.hardware.cluster import Cluster
from simulator.layout.keys import UniqueRows, unique_rows
from simulator.layout.layouts import Layouts, accelerators
from simulator.layout.rules.feasibility import FEASIBLE, REASONS
from simulator.layout.rules.software_rules import UNSAID
from simulator.records import dataclass
from simulator.search.candidates import (
    EVERY,
    Degrees,
    Family,
    Memo,
    Range,
    count,
    degrees,
    families,
)
from simulator.search.certainty import CLOSE, by_expectation
from simulator.search.in_threads import in_threads, may_go_on
from simulator.search.key_bounds import bounded_keys
from simulator.search.memory_filter import (
    HEADROOM,
    Rows,
    Setting,
    Space,
    every_row,
    least_first,
    light_rows,
    near_among,
    open_space,
    smallest_row,
    with_bounds,
)
from simulator.search.neighbours import Round, Walk, by_step, walk, walk_each
from simulator.search.shortlist import Shortlist, wanted
from simulator.search.stage_splits import MOST_REBALANCED, rebalanced_stages, worth_rebalancing
from simulator.software.profile import Software
from simulator.workload.recipe import Workload

__all__ = ["HEADROOM"]


TOO_LARGE = "peak memory of the worst rank above what is usable"
"""Reason of layouts that were evaluated but do not fit."""

KEEP = 512
"""How many of the fastest layouts are remembered."""

PIECE = 1 << 19
"""Layouts without recomputation judged at once; bounds the memory of a search over millions."""


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """What one exploration of the layout space saw."""

    best: Estimate
    """The fastest layouts that FIT; TIGHT ones where none does. Where TIGHT ones are allowed, the
    fastest of both. The first by what is to be expected of them
    (``search/certainty.py: by_expectation``), the others by their step times."""
    tight: Estimate
    """The fastest TIGHT layouts beside `best`, none of which is; empty where `best` may hold
    them."""
    roomy: Estimate
    """The fastest layouts that would fit with HEADROOM times the usable memory, best first."""
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
    """The fastest of the near misses: it does not fit but needs at most HEADROOM times the usable
    memory, or its server has no room for what it keeps in host memory or on drives."""
    fastest_safe: Estimate | None
    """The fastest layout that FITS."""
    seconds: float
    surely: bool = False
    """Whether `best` holds layouts that FIT alone, not the fastest of all that fit."""
    walked: int = 0
    """Layouts beside the grid, a step in a field from the best, that were looked at."""
    rounds: dict[bytes, Round] = field(default_factory=dict, repr=False)
    """Of walks by goals, whose neighbours are not priced again for another price or limit."""
    near: Sequence[tuple[Space, Rows]] = field(default=(), repr=False)
    """All layouts that come near to fitting, with their bounds, where they were to be kept."""

    @cached_property
    def every(self) -> Estimate:
        """The best layouts, then the TIGHT ones."""
        return concatenate([self.best, self.tight])

    def with_walk(self, walk: Walk, places: Ints) -> SearchResult:
        """The same with what a walk from its best layouts came to.

        `places` are those of all of the walk's better layouts and the best ones, in that order, of
        which as many are kept as there were.
        """
        if walk.better is None:
            return replace(self, walked=walk.tried)
        both = concatenate([walk.better, self.best]).take(places)
        safe = np.flatnonzero(both.verdict == 0)
        fastest_safe = self.fastest_safe
        if fastest_safe is not None and len(safe):
            several = concatenate([fastest_safe, both.take(safe)])
            fastest_safe = several.take(np.argsort(several.step_time_s, kind="stable")[:1])
        return replace(self, best=both, fastest_safe=fastest_safe, walked=walk.tried)


_SPARE = 4
"""Times as many layouts as asked for are kept until they are priced finely: coarse times of
pipelines are up to some 8 % too short (``cost/pipeline/rounded.py``)."""

_FEW = 8
"""How many are remembered of those of which one is told."""

UNTRIED = "a smaller micro-batch is out of memory already"
"""Reason of layouts that were not looked at: the next smaller micro-batches that their tp, pp and
cp allow fit in no way at all."""

_MICRO_BATCH, _TIMES = 16, 128
"""Micro-batches that are tried in any case; where the largest of them comes near to fitting, those
up to so many times as large are tried, and so on."""

_MANY, _OPENED = 1 << 17, 1 << 15
"""Layouts above which their keys are bounded first (``search/key_bounds.py``) where it is not
counted what fits, and rows, what they recompute not told apart, that are opened together then."""

_BLOCK = 4096
"""Layouts that are timed together: few, to know early how fast the best ones are."""

_LOOKED_AT = 16384
"""Layouts whose memory is looked at together where it is not counted how many fit."""


class _Search:
    """One exploration: families of layouts come in, the fastest of them stay."""

    def __init__(
        self,
        setting: Setting,
        pinned: Mapping[str, Any],
        *,
        keep: int,
        exhaustive: bool = False,
        counts: bool = False,
        keep_near: bool = False,
        pairs: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.setting, self.pinned = setting, pinned
        self.exhaustive, self.counts, self.keep_near = exhaustive, counts, keep_near
        self.pairs = {pair: place for place, pair in enumerate(pairs)}
        parts = range(max(len(pairs), len(setting[1].sizes), 1))
        self.sizes = {"fits": keep, "safe": keep, "roomy": keep} | ({"near": 1} if counts else {})
        if "stages" not in self.pinned:
            self.sizes["dealt"] = _SPARE * MOST_REBALANCED
        self.lists = {
            name: [Shortlist(size if name == "dealt" else _SPARE * max(size, _FEW)) for _ in parts]
            for name, size in self.sizes.items()
        }
        self.fits = np.full(len(parts), False)
        self.spaces: list[Space] = []
        self.near: list[tuple[Space, Rows]] = []
        self.dropped = np.zeros(len(REASONS) + 1, dtype=np.int64)
        self.layouts = self.numbered = self.fitting = self.timed = 0
        self.memo: Memo = {}

    def sweep(
        self,
        pinned: Mapping[str, Any] | None,
        progress: Callable[[int, int], None] | None,
        *,
        wide: bool = False,
    ) -> int:
        """Take in all families, larger micro-batches where they can fit; count those left out.

        With `wide`, those of degrees that are not tried otherwise.
        """
        span: Range = EVERY if self.exhaustive else (0, _MICRO_BATCH)
        outer = self._missing(wide=wide) if self.pairs else None
        untried = whole = 0
        while outer is None or outer:
            shared: dict[str, Any] = {"memo": self.memo, "wide": wide}
            ranges = {"micro": span, "outer": outer, **shared}
            listed = count(*self.setting, pinned, **ranges)
            whole = self.layouts + listed
            if not (self.exhaustive or self.counts) and _large(listed, pinned):
                grown = self._take_keys(pinned, ranges)
                self.layouts = whole
            else:
                grown = self._take_all(pinned, ranges, progress, whole)
            rest: Range = (span[1], EVERY[1])
            larger = count(*self.setting, pinned, micro=rest, outer=grown, **shared)
            untried += count(*self.setting, pinned, micro=rest, outer=outer, **shared) - larger
            span, outer = (span[1], span[1] * _TIMES), grown if larger else set()
        if progress is not None and whole != self.layouts:
            progress(self.layouts, self.layouts)
        return untried

    def _missing(self, *, wide: bool) -> set[Degrees]:
        """Degrees of those pairs that are searched of which nothing fits yet."""
        every = degrees(*self.setting, self.pinned, wide)
        places = ((grid, self.pairs.get(grid[:2])) for grid in every)
        return {grid for grid, place in places if place is not None and not self.fits[place]}

    def part(self, tp: Ints, pp: Ints, cp: Ints, dp: Ints) -> Ints:
        """Which of the pairs or sizes each row is of, -1: none; 0 where all are searched as one."""
        if sizes := self.setting[1].sizes:
            return np.searchsorted(sizes, accelerators(tp, pp, cp, dp))
        if not self.pairs:
            return np.zeros(len(tp), dtype=np.intp)
        rows = unique_rows(tp, pp)
        columns = (tp[rows.first].tolist(), pp[rows.first].tolist())
        pairs = zip(*columns, strict=True)
        return np.array([self.pairs.get(pair, -1) for pair in pairs], dtype=np.intp)[rows.inverse]

    def _take_all(
        self,
        pinned: Mapping[str, Any] | None,
        ranges: Mapping[str, Any],
        progress: Callable[[int, int], None] | None,
        whole: int,
    ) -> set[Degrees]:
        """Take in all families of an enumeration; degrees as `take` says."""
        grown, last = set[Degrees](), self.numbered
        for family in families(*self.setting, pinned, most=PIECE, **ranges):
            space = self.take(family)
            if space is not None:
                grown |= self._timed(space)
            self.layouts += len(family)
            last = max(last, self.numbered + 1 + int(family.number.max(initial=0)))
            if progress is not None:
                progress(self.layouts, max(whole, self.layouts))
        self.numbered = last
        return grown

    def _take_keys(
        self, pinned: Mapping[str, Any] | None, ranges: Mapping[str, Any]
    ) -> set[Degrees]:
        """Take in the families of those keys alone whose bounds lie below what is held.

        Degrees are those of `take`, and those of which not all was opened.
        """
        keys = bounded_keys(self.setting, pinned, **ranges)
        light = keys.light(HEADROOM * float(self.setting[1].accelerator.memory.usable_bytes))
        grown, opened = set[Degrees](), np.full(len(light.least_s), False)
        part = self.part(*np.array(light.degrees, dtype=np.int64).reshape(-1, 4).T)[light.grid]
        unit_s = self._units(light.least_s, part)
        bound = light.least_s / unit_s[part]
        for some in light.batches(bound, _OPENED):
            cuts = self.cuts / unit_s
            if bound[some[0]] > cuts.max():
                break
            some = some[bound[some] <= cuts[part[some]]]
            opened[some] = True
            for family in families(*self.setting, pinned, pick=light.rows_of(some), **ranges):
                space = self.take(family)
                if space is not None:
                    grown |= self._timed(space, grows=False)
        self.numbered += keys.rows
        return grown | light.may_grow(~opened)

    def judge(self, pinned: Mapping[str, Any] | None) -> None:
        """Count by which rules all layouts fall, where none can run and not all were listed."""
        if not self.counts and _large(self.layouts, pinned):
            self.dropped[:] = 0
            for family in families(*self.setting, pinned, most=PIECE):
                self.take(family)

    @property
    def cuts(self) -> Floats:
        """Layouts of each pair whose bounds lie above are of no use to any list."""
        parts = zip(*self.lists.values(), strict=True)
        return np.array([max(x.cut for x in lists) for lists in parts])

    def _units(self, least_s: Floats, part: Ints) -> Floats:
        """What bounds of each part are told in, so that several are looked at side by side.

        The least bound of it, since steps on more accelerators are shorter; a second where all is
        one part.
        """
        if len(self.fits) == 1:
            return np.ones(1)
        unit_s = np.full(len(self.fits), np.inf)
        np.minimum.at(unit_s, part, least_s)
        return np.where((unit_s > 0.0) & np.isfinite(unit_s), unit_s, 1.0)

    def take(self, family: Family) -> Space | None:
        """Judge a family: the layouts of it that can run."""
        may_go_on()
        space, fallen = open_space(family, self.setting, self.numbered, self.pinned)
        self.dropped += fallen
        return space

    def _part(self, space: Space, rows: Rows) -> Ints:
        """Which of the pairs each of some rows is of."""
        base = space.family.base
        return self.part(*(x[rows.row] for x in (base.tp, base.pp, base.cp, base.dp)))

    def _timed(self, space: Space, *, grows: bool = True) -> set[Degrees]:
        """Look at the memory of what can run, and time what may be among the best.

        No row is left out that a list would take: its time is no less than its lower bound, which
        lies above the slowest that the full list holds. Returns the degrees (tp, pp, cp) whose
        largest micro-batch comes near to fitting, where it `grows` all of them.
        """
        if self.exhaustive or space.family.base.offload_layers.any():
            near = every_row(space)
            self._time_all(space, near, counted=False)
            self.forget_near()
        elif self.counts:
            near_rows = near_among(space, light_rows(space))
            near, self.fitting = (
                with_bounds(space, near_rows.rows),
                self.fitting + near_rows.fitting,
            )
            self._time_all(space, near, counted=True)
            self.near += [(space, near)] * self.keep_near
        else:
            near = self._time_the_fastest(space, grows=grows)
        self._remember(space)
        return _at_their_largest(space.family.base, near.row)

    def _remember(self, space: Space) -> None:
        """Keep a space for as long as some list holds a row of it."""
        self.spaces = [kept for kept in (*self.spaces, space) if len(self._listed(kept))]

    def time_near(self, near: Sequence[tuple[Space, Rows]]) -> None:
        """Take in what another search of the same saw come near to fitting: of those pairs."""
        for space, every in near:
            part = self._part(space, every)
            self.fits[part[every.fits & (part >= 0)]] = True
            self._time_all(space, every.take(part >= 0), counted=True)
            self._remember(space)
            self.numbered = max(self.numbered, int(space.number[-1]) + 1)

    def forget_near(self) -> None:
        """Keep nothing for other searches: it would not be all that they look at."""
        self.keep_near, self.near = False, []

    def _time_all(self, space: Space, rows: Rows, *, counted: bool) -> None:
        """Price rows whose lower bounds lie below what the lists hold, those with the least first.

        `counted`: what fits is known.
        """
        part = self._part(space, rows)
        for block in least_first(rows.bound_s / self._units(rows.bound_s, part)[part], _BLOCK):
            some = rows.take(block)
            least_s = dict.fromkeys(self.lists, some.least_s) | {"dealt": some.dealt_s}
            some = some.take(wanted(self.lists, some.lists, least_s, part[block]))
            if len(some):
                self._time(space, some, counted)

    def _time_the_fastest(self, space: Space, *, grows: bool) -> Rows:
        """The same with a look at the memory of those alone whose bounds lie below what is held.

        Returns those that come near to fitting of what was looked at; where it `grows`, of every
        tp, pp and cp that is all with the largest micro-batch, or one of it at the least.
        """
        rows = with_bounds(space, light_rows(space))
        looked, seen = list[Rows](), np.zeros(len(rows), dtype=bool)
        part = self._part(space, rows)
        unit_s = self._units(rows.bound_s, part)
        bound = rows.bound_s / unit_s[part]
        for block in least_first(bound, _LOOKED_AT):
            cuts = self.cuts / unit_s
            if bound[block[0]] > cuts.max():
                break
            some = block[bound[block] <= cuts[part[block]]]
            if not len(some):
                continue
            near_rows = near_among(space, rows.take(some))
            self.fitting += near_rows.fitting
            self.fits[self._part(space, near_rows.rows)[near_rows.rows.fits]] = True
            self._time_all(space, near_rows.rows, counted=True)
            looked.append(near_rows.rows)
            seen[some] = True
        near = Rows.joined([rows.take(slice(0, 0)), *looked])
        if not grows:
            return near
        rest = rows.take(~seen)
        rest = rest.take(_may_grow(space.family.base, near.row, rest.row))
        return Rows.joined([near, near_among(space, rest).rows])

    def _time(self, space: Space, rows: Rows, counted: bool) -> None:
        """Price rows in full, with coarse costs of pipelines; `counted`: what fits is known."""
        layouts, priced = space.mixed(rows)
        priced = with_paths(priced.narrowed(), layouts, coarse=True)
        numbers, part = space.numbers(rows.kind, rows.row), self._part(space, rows)
        self.timed += len(rows)
        for piece, e in _estimated(layouts, priced):
            fits, step_s = e.fits, e.step_time_s
            near = e.memory_total_bytes <= HEADROOM * e.usable_bytes
            kinds = {"fits": fits, "roomy": near, "near": near & ~fits, "safe": e.verdict == 0}
            kinds["dealt"] = near & worth_rebalancing(e.layouts, self.setting[0], self.setting[2])
            values = dict.fromkeys(kinds, step_s) | {"dealt": step_s - e.imbalance_s}
            for place in np.unique(part[piece]).tolist():
                mine = part[piece] == place
                for name, lists in self.lists.items():
                    lists[place].show(values[name], numbers[piece], kinds[name] & mine)
            self.fitting += 0 if counted else int(fits.sum())
            self.fits[part[piece][fits]] = True

    def fine(self) -> list[dict[str, _Known]]:
        """The fastest of every list by fine costs of pipelines; lists that are empty left out.

        Those of each pair, all priced together.

        Coarse times are too short, not too long: where the slowest of the fastest asked for was
        priced finely, no layout comes among them whose coarse time is longer. Those that are
        fastest with ranks all alike are taken as they are.
        """
        finest: list[dict[str, _Known]] = [{} for _ in self.fits]
        lists = {
            (place, name): x
            for name, several in self.lists.items()
            for place, x in enumerate(several)
            if len(x.numbers)
        }
        if not lists:
            return finest
        wanted_of = {at: x.numbers[: self.sizes[at[1]]] for at, x in lists.items()}
        known = self._priced(wanted_of.values())
        for at, x in lists.items():
            if at[1] == "dealt":
                continue
            slowest = known.of(wanted_of[at]).step_time_s.max()
            wanted_of[at] = x.numbers[
                (x.values <= slowest) | (np.arange(len(x.numbers)) < self.sizes[at[1]])
            ]
        known = self._priced(wanted_of.values(), known)
        for (place, name), numbers in wanted_of.items():
            every = known.of(numbers)
            order = np.lexsort((numbers, every.step_time_s))[: self.sizes[name]]
            finest[place][name] = _Known(numbers=numbers[order], estimate=every.take(order))
        return finest

    def rebalanced(self, numbers: Ints) -> _Known | None:
        """Some layouts with their layers dealt anew, by the numbers of those they were.

        Those that are dealt one way to FIT and another to be TIGHT stand there twice. None where no
        other has a split of its own.
        """
        pieces, taken = [], []
        for space in self.spaces:
            number = numbers[space.has(numbers)]
            if len(number) and (split := rebalanced_stages(*space.mixed(space.named(number)))):
                taken.append(number[split[0]])
                pieces.append(split[1])
        if not pieces:
            return None
        return _Known(numbers=np.concatenate(taken), estimate=concatenate(pieces))

    def worth(self, known: _Known, slowest_s: float) -> Ints:
        """Numbers of the layouts of a list that are worth rebalancing.

        No split makes the slowest rank faster than the mean of all is now: that is a bound on what
        it can bring, and those that it leaves above `slowest_s` are not dealt.
        """
        workload, _, software = self.setting
        bound = known.estimate.step_time_s - known.estimate.imbalance_s
        able = worth_rebalancing(known.estimate.layouts, workload, software) & (bound < slowest_s)
        some = np.flatnonzero(able)
        orders = (np.argsort(x[some], kind="stable") for x in (bound, known.estimate.step_time_s))
        return known.numbers[np.concatenate([some[order[:MOST_REBALANCED]] for order in orders])]

    def _listed(self, space: Space) -> Ints:
        """Numbers of a space's rows that some list holds."""
        every = [x.numbers for lists in self.lists.values() for x in lists]
        numbers = np.unique(np.concatenate(every))
        return numbers[space.has(numbers)]

    def _priced(self, listed: Iterable[Ints], known: _Known | None = None) -> _Known:
        """Estimates of rows of the lists by fine costs of pipelines, beside what is known."""
        numbers = np.unique(np.concatenate([np.zeros(0, np.int64), *listed]))
        if known is not None:
            numbers = np.setdiff1d(numbers, known.numbers)
        pieces, order = [], []
        for space in self.spaces:
            number = numbers[space.has(numbers)]
            if len(number):
                layouts, priced = space.mixed(space.named(number))
                priced = with_paths(priced.narrowed(), layouts, coarse=False)
                pieces += [e for _, e in _estimated(layouts, priced)]
                order.append(number)
        if known is not None:
            pieces, order = [known.estimate, *pieces], [known.numbers, *order]
        return _Known(numbers=np.concatenate(order), estimate=concatenate(pieces))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Known:
    """Estimates by the numbers of their layouts."""

    numbers: Ints
    estimate: Estimate

    def of(self, numbers: Ints) -> Estimate:
        """The estimates of some of the layouts."""
        order = np.argsort(self.numbers)
        return self.estimate.take(order[np.searchsorted(self.numbers, numbers, sorter=order)])

    def take(self, rows: Ints) -> _Known:
        """Some of them, by their places."""
        return _Known(numbers=self.numbers[rows], estimate=self.estimate.take(rows))

    @staticmethod
    def joined(several: list[_Known]) -> _Known:
        """Put several one below the other."""
        return _Known(
            numbers=np.concatenate([known.numbers for known in several]),
            estimate=concatenate([known.estimate for known in several]),
        )


def _with_rebalanced(
    search: _Search, several: list[dict[str, _Known]], keep: int
) -> list[dict[str, _Known]]:
    """Put layouts whose layers are dealt anew into the lists where they beat the even ones.

    Dealt are the fastest of those that FIT, of those that come near to it, and of those that do not
    fit at all: of each pair, all together.
    """
    numbers = [_worth(search, known) for known in several]
    new = search.rebalanced(np.unique(np.concatenate(numbers)))
    if new is None:
        return several
    mine = [new.take(np.flatnonzero(np.isin(new.numbers, some))) for some in numbers]
    return [_with_new(*both, keep) for both in zip(several, mine, strict=True)]


def _worth(search: _Search, known: dict[str, _Known]) -> Ints:
    """Numbers of the layouts of a pair's lists that are worth rebalancing."""
    if "roomy" not in known:
        return np.zeros(0, dtype=np.int64)
    safe, fits, roomy = known.get("safe"), known.get("fits"), known["roomy"]
    fastest_s = np.inf if safe is None else float(safe.estimate.step_time_s[0])
    lists = [listed for listed in (safe, fits) if listed is not None]
    for listed, codes in ((roomy, (1, 2)), (known.get("dealt", roomy), (0, 1, 2))):
        lists += [listed.take(np.flatnonzero(listed.estimate.verdict == code)) for code in codes]
    return np.unique(np.concatenate([search.worth(listed, fastest_s) for listed in lists]))


def _with_new(known: dict[str, _Known], new: _Known, keep: int) -> dict[str, _Known]:
    """The lists of a pair with layouts that were dealt anew."""
    near = new.estimate.memory_total_bytes <= HEADROOM * new.estimate.usable_bytes
    kinds = {"fits": new.estimate.fits, "safe": new.estimate.verdict == 0, "roomy": near}
    merged = dict(known)
    for name, some in kinds.items():
        if some.any():
            merged[name] = _merged(known.get(name), new.take(np.flatnonzero(some)), keep)
    return merged


def _merged(known: _Known | None, new: _Known, keep: int) -> _Known:
    """The fastest of both; of a layout and itself dealt anew, the faster one alone."""
    both = new if known is None else _Known.joined([known, new])
    order = np.argsort(both.estimate.step_time_s, kind="stable")
    _, first = np.unique(both.numbers[order], return_index=True)
    return both.take(order[np.sort(first)][:keep])


def _large(listed: int, pinned: Mapping[str, Any] | None) -> bool:
    """Whether keys are worth bounding; words of "any" are listed one after the other."""
    return listed > _MANY and "any" not in (pinned or {}).values()


def _at_their_largest(base: Layouts, near: Ints) -> set[Degrees]:
    """Degrees of which a `near` row has the largest micro-batch that can run."""
    degrees, largest = _largest(base)
    first = degrees.first[np.unique(degrees.inverse[near[largest[near]]])]
    columns = (x[first].tolist() for x in (base.tp, base.pp, base.cp, base.dp))
    return set(zip(*columns, strict=True))


def _may_grow(base: Layouts, near: Ints, rest: Ints) -> NDArray[np.bool_]:
    """Which of the `rest` have the largest micro-batch of degrees that no `near` row has it of."""
    degrees, largest = _largest(base)
    known = np.zeros(len(degrees.first), dtype=bool)
    known[degrees.inverse[near[largest[near]]]] = True
    return np.asarray(largest[rest] & ~known[degrees.inverse[rest]])


def _largest(base: Layouts) -> tuple[UniqueRows, NDArray[np.bool_]]:
    """Degrees of every row, and whether it has the largest micro-batch of them."""
    degrees = unique_rows(base.tp, base.pp, base.cp, base.dp)
    largest = np.zeros(len(degrees.first), dtype=np.int64)
    np.maximum.at(largest, degrees.inverse, base.micro_batch)
    return degrees, np.asarray(base.micro_batch == largest[degrees.inverse])


def _estimated(layouts: Layouts, priced: Priced) -> Iterator[tuple[slice, Estimate]]:
    """Estimates of consecutive rows, in threads."""
    pieces = [slice(start, start + CHUNK) for start in range(0, len(layouts), CHUNK)]
    threads = in_threads(lambda piece: priced_estimate(layouts, priced, piece), pieces)
    return zip(pieces, threads, strict=True)


def _smallest(setting: Setting, pinned: Mapping[str, Any] | None) -> Estimate | None:
    """The layout that needs least memory of those that can run; None where none can."""
    smallest: Layouts | None = None
    least = np.inf
    for held_bytes, family in _lightest_first(setting, pinned):
        may_go_on()
        if held_bytes >= least:
            break
        space, _ = open_space(family, setting, 0, pinned or {})
        if space is None:
            continue
        candidate: tuple[Layouts, float] | None
        if space.family.base.offload_layers.any():
            estimate = evaluate(space.family.table(), *setting)
            row = int(np.argmin(estimate.memory_total_bytes))
            candidate = estimate.layouts[row], float(estimate.memory_total_bytes[row])
        else:
            candidate = smallest_row(space, least)
        if candidate is not None and candidate[1] < least:
            smallest, least = candidate
    return evaluate(smallest, *setting) if smallest is not None else None


def _lightest_first(
    setting: Setting, pinned: Mapping[str, Any] | None
) -> Iterator[tuple[float, Family]]:
    """Families of all layouts, and what lasts on their fullest ranks at the least.

    Of a large space those of keys that hold least come first.
    """
    if not _large(count(*setting, pinned), pinned):
        for family in families(*setting, pinned, most=PIECE):
            yield 0.0, family
        return
    keys = bounded_keys(setting, pinned)
    for some in keys.batches(keys.held_bytes, _OPENED):
        for family in families(*setting, pinned, pick=keys.rows_of(some)):
            yield float(keys.held_bytes[some[0]]), family


def explore(
    workload: Workload,
    cluster: Cluster,
    software: Software,
    pinned: Mapping[str, Any] | None = None,
    *,
    keep: int = KEEP,
    exhaustive: bool = False,
    counts: bool = True,
    allow_tight: bool = False,
    walks: bool = True,
    near_miss: bool = True,
    keep_near: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> SearchResult:
    """Search all layouts and keep the fastest that FIT.

    Parameters
    ----------
    pinned : mapping, optional
        Layout fields with a fixed value.
    keep : int
        How many of the fastest to return, and of those that nearly fit.
    exhaustive : bool
        Compute every term of every layout that can run: the same answer, proven the long way.
    counts : bool
        Count what fits, and find the fastest of the near misses. Without, memory is looked at only
        of layouts whose lower bound on time lies below what is kept: `best`, `tight` and `roomy`
        are the same, `feasible` is no more than 0 or not, and what does not fit is counted among
        the dropped only where nothing fits.
    allow_tight : bool
        Rank layouts whose P90 of memory is more than is usable as if they fitted.
    walks : bool
        Walk on from the fastest, a step in a field at a time (``search/neighbours.py``), until none
        is faster. Without, the best are those of the grid.
    near_miss : bool
        Where nothing fits, look for the layout that needs least memory.
    keep_near : bool
        Keep what comes near to fitting (`near`), for :func:`fastest_of_pairs`.
    progress : callable, optional
        Called with (candidates done, candidates in all) after every piece.
    """
    begun = time.perf_counter()
    decides = "stages" not in (pinned or {})
    wide = max(keep, CLOSE)
    search = _Search(
        (workload, cluster, software),
        pinned or {},
        keep=wide,
        exhaustive=exhaustive,
        counts=counts,
        keep_near=keep_near,
    )
    untried = search.sweep(pinned, progress)
    if not search.fitting:
        search.forget_near()
        untried += search.sweep(pinned, progress, wide=True)
    miss = None
    if near_miss and not search.fitting:
        miss = _smallest(search.setting, pinned)
        if miss is None:
            search.judge(pinned)
    every = search.fine()
    if decides:
        every = _with_rebalanced(search, every, wide)
    result = SearchResult(
        **_answers(every[0], search.setting, keep=keep, allow_tight=allow_tight),
        layouts=search.layouts + untried,
        feasible=search.fitting,
        evaluated=int(search.dropped[FEASIBLE]),
        timed=search.timed,
        dropped=_dropped(search, untried, counts=counts),
        nearest_miss=miss,
        near=search.near,
        seconds=time.perf_counter() - begun,
    )
    if walks and len(result.best):
        walked = walk(result.best, search.setting, pinned or {}, by_step, surely=result.surely)
        result = _walked(result, walked)
    return _expected_first(result, search.setting, keep)


def _answers(
    every: Mapping[str, _Known], setting: Setting, *, keep: int, allow_tight: bool
) -> dict[str, Any]:
    """The fastest layouts of a search's lists, by what a SearchResult calls them."""
    fine = {name: listed.estimate for name, listed in every.items()}
    some = next(iter(fine.values()), None)
    if some is None:
        some = evaluate(Layouts.of(dp=setting[1].gpus), *setting)
    none = some.take(slice(0, 0))
    fits, safe = fine.get("fits", none), fine.get("safe")
    best = fits if safe is None or allow_tight else safe
    tight = none if best is fits else fits.take(fits.verdict == VERDICTS.index("TIGHT"))
    return {
        "best": best.take(slice(0, max(keep, CLOSE))),
        "tight": tight.take(slice(0, keep)),
        "roomy": fine.get("roomy", none).take(slice(0, keep)),
        "fastest_too_large": fine.get("near"),
        "fastest_safe": None if safe is None else safe.take(slice(0, 1)),
        "surely": best is not fits,
    }


def _expected_first(result: SearchResult, setting: Setting, keep: int) -> SearchResult:
    """The same with its best layouts by what is to be expected of them first."""
    order = by_expectation(result.best.step_time_s, result.best, *setting)
    return replace(result, best=result.best.take(order[:keep]))


def _dropped(search: _Search, untried: int, *, counts: bool) -> dict[str, int]:
    """Layouts by the reason for which they were left out."""
    names = (*REASONS, UNSAID)
    dropped = {names[i]: int(n) for i, n in enumerate(search.dropped) if n and i != FEASIBLE}
    evaluated = int(search.dropped[FEASIBLE])
    if evaluated > search.fitting and (counts or not search.fitting):
        dropped[TOO_LARGE] = evaluated - search.fitting
    if untried:
        dropped[UNTRIED] = untried
    return dropped


def _walked(result: SearchResult, walked: Walk) -> SearchResult:
    """The same with what a walk from the fastest came to."""
    if walked.better is None:
        return result.with_walk(walked, np.arange(0))
    size, keep = len(walked.better), len(result.best)
    return result.with_walk(walked, np.arange(size + keep)[:keep])


def cluster_of_sizes(clusters: Sequence[Cluster]) -> Cluster:
    """The largest of some clusters, which stands for all of these sizes in a table."""
    return replace(clusters[-1], sizes=tuple(cluster.gpus for cluster in clusters))


def explore_sizes(
    workload: Workload,
    clusters: Sequence[Cluster],
    software: Software,
    pinned: Mapping[str, Any],
    *,
    keep: int,
    allow_tight: bool = False,
) -> list[SearchResult | None]:
    """Search several sizes of a cluster in one table; None for those of which nothing fits.

    As ``explore(..., counts=False)`` says of each alone, but for how many were looked at. Clusters
    differ in nothing but their sizes, the smallest first, and prices take nothing of them that
    hangs on these (:func:`simulator.search.fastest.search_together`).
    """
    begun = time.perf_counter()
    several = cluster_of_sizes(clusters)
    search = _Search((workload, several, software), pinned, keep=max(keep, CLOSE))
    search.sweep(pinned, None)
    every = search.fine()
    if "stages" not in pinned:
        every = _with_rebalanced(search, every, max(keep, CLOSE))
    settings = [(workload, cluster, software) for cluster in clusters]
    results = {
        i: SearchResult(
            **_answers(every[i], settings[i], keep=keep, allow_tight=allow_tight),
            layouts=count(*settings[i], pinned, memo=search.memo),
            feasible=1,
            evaluated=int(search.dropped[FEASIBLE]),
            timed=search.timed,
            dropped={},
            nearest_miss=None,
            seconds=time.perf_counter() - begun,
        )
        for i in np.flatnonzero(search.fits).tolist()
    }
    starts = [(x.best, by_step, {"surely": x.surely}) for x in results.values()]
    walks = walk_each(starts, search.setting, pinned)
    for (i, result), walked in zip(results.items(), walks, strict=True):
        results[i] = _expected_first(_walked(result, walked), settings[i], keep)
    return [results.get(i) for i in range(len(clusters))]


def fastest_of_pairs(
    setting: Setting,
    pinned: Mapping[str, Any],
    pairs: Sequence[tuple[int, int]],
    *,
    near: Sequence[tuple[Space, Rows]] = (),
    allow_tight: bool = False,
) -> list[Estimate]:
    """The fastest layout of each of some pairs (tp, pp), without a walk; empty where none fits.

    The fastest of what ``explore(..., {**pinned, "tp": tp, "pp": pp}, walks=False)`` says of each
    alone, in one search: what pairs share is listed, judged and priced once. No more of each are
    remembered than have their layers dealt anew.

    Parameters
    ----------
    pinned : mapping
        Layout fields with a fixed value, tp and pp not among them.
    near : sequence
        What a search of all pairs kept (`SearchResult.near`), which is not searched again.
    allow_tight : bool
        As in :func:`explore`.
    """
    search = _Search(setting, pinned, keep=MOST_REBALANCED, pairs=pairs)
    if near:
        search.time_near(near)
    else:
        search.sweep(pinned, None)
    if not search.fits.all():
        search.sweep(pinned, None, wide=True)
    known = search.fine()
    if "stages" not in pinned:
        known = _with_rebalanced(search, known, MOST_REBALANCED)
    order = ("fits", "safe") if allow_tight else ("safe", "fits")
    listed = [next((x[name] for name in order if name in x), None) for x in known]
    none = evaluate(Layouts.of(dp=setting[1].gpus), *setting).take(slice(0, 0))
    return [none if x is None else x.estimate.take(slice(0, 1)) for x in listed]
