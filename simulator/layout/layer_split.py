"""Layers dealt to pipeline stages by dynamic programming over time and memory.

Stages may differ: in speed, in memory, in what they hold beside their layers (embedding, head), in
how many micro-batches wait on them, and in how they run their layers (with recomputation or
without). A step of a pipeline in which m micro-batches follow one another takes

    sum over stages of t_s  +  (m - 1) x the longest t_s

with t_s the time that one micro-batch spends on stage s (Narayanan et al. 2021, section 2.2). That
is exact where passes follow one another in one direction; where stages of 1F1B are unlike and
micro-batches few, an early stage has some slack, and a step is shorter. Both parts are made least
together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike, NDArray

from simulator.arrays import Floats, Ints
from simulator.records import dataclass

_CELLS = 1 << 18
"""Cells, by way, length and end, whose costs are computed together: bounds their memory."""

_BITS = 44
"""Seconds are rounded to this many bits of their sum, so that sums of them are exact."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerSplit:
    """How many layers each stage takes, in order, and how it runs them."""

    layers: Ints
    """Layers of each stage."""
    way: Ints
    """Index of the way in which each stage runs its layers; 0 where there is only one."""
    stage_s: Floats
    """What one micro-batch takes on each stage."""
    step_s: float
    """Their sum, and the longest of them for every further micro-batch."""


def split_layers(
    seconds: ArrayLike,
    held_bytes: ArrayLike = 0.0,
    limit_bytes: ArrayLike = np.inf,
    *,
    fixed_s: ArrayLike = 0.0,
    fixed_bytes: ArrayLike = 0.0,
    micro_batches: int = 1,
    fewest: ArrayLike = 1,
) -> LayerSplit | None:
    """Deal layers, in order, to stages so that a step is shortest and every stage fits.

    Parameters
    ----------
    seconds : array, shape (layers, stages) or (ways, layers, stages)
        What a micro-batch takes, forward and backward, on each layer if a stage holds it; with
        several ways to run layers (kinds of recomputation), each stage takes one of them.
    held_bytes : array, broadcast to the same shape
        What a layer holds on a stage: states and, times the micro-batches that wait there, what
        its passes keep.
    limit_bytes : array, broadcast to (stages,)
        Bytes that a stage has.
    fixed_s, fixed_bytes : array, broadcast to (stages,)
        What a stage takes and holds beside its layers: embedding, head, sends.
    micro_batches : int
        Micro-batches of a step.
    fewest : array, broadcast to (stages,)
        Fewest layers that a stage may hold.

    Returns
    -------
    LayerSplit or None
        The split with the least step; of several, the one whose stages are most alike. None where
        no split fits.

    Notes
    -----
    A stage holds few layers more than the mean, so that only stages of at most so many layers are
    looked at: ``cost[s, i, j]`` is what the layers before j take on stage s, of the length of row
    i, infinite where they do not fit; where all layers are alike it is the same for every j. The
    result stands where no longer stage can be part of a split that is as good, else longer ones are
    looked at as well (`_band`).
    Under a cap on the slowest stage the least sum is found stage by stage. A first pass finds the
    least cap, the next ones lower it from the largest that can pay: a solution whose slowest stage
    is t is best under every cap from its own down to t, so that the next cap lies below t. All
    caps are passed over that cannot pay, none else, so that the result is that of trying all. Of
    each stage those ends alone are looked at which leave the others what they can hold.

    Examples
    --------
    Five layers of one second on the first stage, of half a second on the second one.

    >>> import numpy as np
    >>> split = split_layers(np.array([[1.0, 0.5]] * 5), micro_batches=8)
    >>> split.layers.tolist(), split.stage_s.tolist(), split.step_s
    ([1, 4], [1.0, 2.0], 17.0)

    With room for three layers a stage, of which two are taken on the first one, four fit:

    >>> split_layers(np.ones((5, 2)), 1.0, 3.0, fixed_bytes=[2.0, 0.0]) is None
    True
    """
    times = np.atleast_2d(np.asarray(seconds, dtype=float))
    times = times[None] if times.ndim == 2 else times
    stages = times.shape[-1]
    return split_each(
        times[None],
        np.broadcast_to(np.asarray(held_bytes, dtype=float), times.shape)[None],
        _wide(limit_bytes, stages)[None],
        fixed_s=_wide(fixed_s, stages)[None],
        fixed_bytes=_wide(fixed_bytes, stages)[None],
        micro_batches=np.array([micro_batches]),
        fewest=fewest,
    )[0]


def split_each(
    seconds: Floats,
    held_bytes: Floats,
    limit_bytes: Floats,
    *,
    fixed_s: Floats,
    fixed_bytes: Floats,
    micro_batches: Ints,
    fewest: ArrayLike = 1,
) -> list[LayerSplit | None]:
    """Deal the layers of several problems of one shape, each as :func:`split_layers` does alone.

    Arrays are those of `split_layers`, not broadcast, with an axis of the problems before theirs;
    `fewest` is the same for all.
    """
    unit = _unit(seconds, fixed_s)
    whole_times = np.round(seconds / unit[:, None, None, None])
    problems = _Problems(
        times=whole_times,
        held=held_bytes,
        times_before=_before_layer(whole_times),
        held_before=_before_layer(held_bytes),
        fixed=np.round(fixed_s / unit[:, None]),
        limit=limit_bytes - fixed_bytes,
        fewest=_wide(fewest, seconds.shape[-1]),
        more=np.maximum(micro_batches - 1, 0),
    )
    done: list[LayerSplit | None] = [None] * len(seconds)
    longest, layers = _band(problems), problems.layers
    rows = np.arange(len(seconds))
    while len(rows):
        some = problems.take(rows)
        splits = _splits(some, longest, unit[rows])
        for i, split in zip(rows.tolist(), splits, strict=True):
            done[i] = split
        if longest >= layers:
            break
        steps = np.array([split.step_s if split else np.inf for split in splits]) / unit[rows]
        bounds = some.least_steps_of_a_stage_of(longest + 1)
        rows = rows[~((bounds > steps) | np.isinf(bounds))]
        longest = min(2 * longest, layers)
    return done


@dataclass(frozen=True, kw_only=True, slots=True)
class _Problems:
    """What is dealt, in whole units of time: arrays as `split_each` takes them."""

    times: Floats
    held: Floats
    times_before: Floats
    """Sums over all layers before each, and over all; (problems, ways, layers + 1, stages)."""
    held_before: Floats
    fixed: Floats
    limit: Floats
    fewest: Floats
    """Of every stage, the same in all problems."""
    more: Ints
    """Micro-batches after the first one."""

    @property
    def layers(self) -> int:
        """Layers that are dealt."""
        return self.times.shape[2]

    def take(self, rows: Any) -> _Problems:
        """Some of the problems."""
        names = ("times", "held", "times_before", "held_before", "fixed", "limit", "more")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})

    def least_steps_of_a_stage_of(self, layers: int) -> Floats:
        """No split of which a stage holds so many layers or more takes less; inf where none fits.

        It holds for lengths above, too, since a longer stage takes and holds what a part of it
        does, if nothing is negative.
        """
        taken = _runs(self.times_before, layers) + self.fixed[:, None, None]
        fits = _runs(self.held_before, layers) <= _room(self.limit)[:, None, None]
        slowest = np.where(fits & (layers >= self.fewest), taken, np.inf).min(axis=(1, 2, 3))
        least = self.times.min(axis=(1, 3)).sum(axis=1) + self.fixed.sum(axis=1)
        waits = np.full(len(least), np.inf)
        np.multiply(self.more, slowest, out=waits, where=np.isfinite(slowest))
        return np.where(self.rise, least + waits, 0.0)

    @property
    def rise(self) -> NDArray[np.bool_]:
        """Of which problems longer stages take and hold no less."""
        least = np.minimum(*(x.min(axis=(1, 2, 3)) for x in (self.times, self.held)))
        return np.asarray(least >= 0.0)


def _room(limit: Floats) -> Floats:
    """What stages may hold: a limit, and what sums are rounded by."""
    return limit + 1e-12 * np.where(np.isfinite(limit), np.abs(limit), 0.0)


def _band(problems: _Problems) -> int:
    """Layers of the longest stage that is looked at first."""
    layers, stages = problems.times.shape[2:]
    mean = -(-layers // stages)
    return int(min(layers, max(6, mean + mean // 2 + 1, problems.fewest.max())))


def _splits(problems: _Problems, longest: int, unit: Floats) -> list[LayerSplit | None]:
    """The best splits of which no stage holds more than `longest` layers."""
    count, ways, _, stages = problems.times.shape
    size = problems.layers + 1
    some = max(_CELLS // (ways * stages * size * (longest + 1)), 1)
    # where all stages take the same for a layer all splits have one sum, and the least cap is best
    same = ways == 1 and not np.ptp(problems.times, axis=3).any()
    done: list[LayerSplit | None] = []
    for start in range(0, count, some):
        at = slice(start, start + some)
        cost, way = _segments(problems.take(at), longest)
        if cost.shape[3] == 1 and np.all(problems.rise[at]):
            least = _least_caps(cost[..., 0], size)
        else:
            least = _deal(cost, size, np.maximum)[0][:, -1, -1]
        able = np.flatnonzero(np.isfinite(least))
        made: list[LayerSplit | None] = [None] * len(least)
        if len(able):
            cost, way, more = cost[able], way[able], problems.more[at][able]
            cap = least[able] if same else _best_caps(cost, size, least[able], more)
            first = np.zeros((len(able), stages + 1, size), dtype=np.int64)
            _deal(_capped(cost, cap), size, np.add, _sum_of_squares, first)
            for i, split in enumerate(_results(first, cost, way, unit[at][able], more)):
                made[able[i]] = split
        done += made
    return done


def _capped(cost: Floats, cap: Floats) -> Floats:
    """Costs of stages that take no longer than a cap of each problem; others are infinite."""
    return np.where(cost <= cap[:, None, None, None], cost, np.inf)


def _least_caps(cost: Floats, size: int) -> Floats:
    """The slowest stage at the least where layers are alike; infinite where no split fits.

    Of costs by problem, stage and row. A stage that is longer takes no less, so that every layer
    goes to the stage that then takes least.
    """
    longer = cost[..., ::-1]
    able = np.isfinite(longer)
    fewest = able.argmax(axis=2)
    least = np.take_along_axis(longer, fewest[..., None], axis=2).max(axis=(1, 2))
    further = able & (np.arange(longer.shape[2]) > fewest[..., None])
    taken = np.sort(np.where(further, longer, np.inf).reshape(len(cost), -1), axis=1)
    more = size - 1 - fewest.sum(axis=1)
    last = taken[np.arange(len(cost)), np.clip(more - 1, 0, taken.shape[1] - 1)]
    last = np.where(more > 0, np.where(more <= taken.shape[1], last, np.inf), least)
    return np.where(
        (more >= 0) & np.asarray(able.any(axis=2)).all(axis=1), np.maximum(least, last), np.inf
    )


def _best_caps(cost: Floats, size: int, least: Floats, more: Ints) -> Floats:
    """The slowest stage with which a step of `more` further micro-batches is shortest."""
    floor = _deal(cost, size, np.add)[0][:, -1, -1]

    def capped(rows: Any, cap: Floats) -> tuple[Floats, Floats]:
        best, tie = _deal(_capped(cost[rows], cap), size, np.add, np.maximum)
        slowest = tie[:, -1, -1]
        return slowest, best[:, -1, -1] + more[rows] * slowest

    cap_s, best = capped(slice(None), least)
    below, rows = np.full(len(cost), np.inf), np.arange(len(cost))
    while True:
        pays = np.full(len(rows), np.inf)
        np.divide(best[rows] - floor[rows], more[rows], out=pays, where=more[rows] > 0)
        pays = np.minimum(below[rows], pays)
        able = pays > least[rows]
        rows, pays = rows[able], pays[able]
        if not len(rows):
            return cap_s
        slowest, step = capped(rows, pays)
        better = rows[step < best[rows]]
        cap_s[better], best[better] = slowest[step < best[rows]], step[step < best[rows]]
        below[rows] = np.nextafter(slowest, 0.0)
        rows = rows[slowest > least[rows]]


def _deal(
    cost: Floats,
    size: int,
    join: Callable[[Any, Any], Any],
    tie: Callable[[Any, Any], Any] | None = None,
    start: Ints | None = None,
) -> tuple[Floats, Floats]:
    """Take in one stage after the other; `join` and `tie` add a stage to what is before it.

    `cost` is as `_segments` makes it, `size` is layers + 1. Returns the best values of the first
    layers on the first stages, shape (problems, stages + 1, size), and of equal ones the least of
    what decides between them. `start`, of that shape, takes the first layer of the last of these
    stages.
    """
    problems, stages, rows, ends = cost.shape
    best, ties = np.full((2, problems, stages + 1, rows - 1 + size), np.inf)
    # values at the first layer of stages, by row and end
    before, ties_before = (sliding_window_view(x, size, axis=2) for x in (best, ties))
    best[:, 0, rows - 1] = ties[:, 0, rows - 1] = 0.0
    for s, (first, last, low, high) in enumerate(_windows(cost, size)):
        here = np.s_[:, s, first:last, low:high]
        added = cost[here] if ends > 1 else cost[:, s, first:last]
        whole = join(before[here], added)
        into = np.s_[:, s + 1, rows - 1 + low : rows - 1 + high]
        best[into] = least = whole.min(axis=1)
        if tie is not None:
            equal = whole == least[:, None]
            whole = np.where(equal, tie(ties_before[here], added), np.inf)
            ties[into] = whole.min(axis=1)
        if start is not None:
            longest = np.arange(low, high) - (rows - 1 - first)  # where the longest stage begins
            start[:, s + 1, low:high] = longest + whole.argmin(axis=1)
    return best[..., rows - 1 :], ties[..., rows - 1 :]


def _windows(cost: Floats, size: int) -> list[tuple[int, int, int, int]]:
    """Of every stage the rows that it may have, and where it may end, each with one beyond.

    What other stages can hold, at the least and at the most, lies before it and behind it: those of
    all problems together.
    """
    able = np.asarray(np.isfinite(cost).any(axis=(0, 3)))
    longest = able.shape[1] - 1 - able.argmax(axis=1)
    fewest = np.where(able.any(axis=1), able[:, ::-1].argmax(axis=1), 0)
    most, least = longest.cumsum(), fewest.cumsum()
    low = np.maximum(least, size - 1 - (most[-1] - most))
    high = np.minimum(most, size - 1 - (least[-1] - least)) + 1
    rows = able.shape[1] - 1 - longest, able.shape[1] - fewest
    columns = (*rows, low, np.maximum(high, low))
    return list(zip(*(x.tolist() for x in columns), strict=True))


def _sum_of_squares(before: Floats, cost: Floats) -> Floats:
    """Least where stages are most alike, if their sum is one."""
    return before + cost * cost


def _segments(problems: _Problems, longest: int) -> tuple[Floats, Ints]:
    """Cost of stages of at most `longest` layers, and the way of running them that is fastest.

    Both of shape (problems, stages, longest + 1, ends): row i holds stages of longest - i layers,
    by their end, of 0 to all layers; by one end for all where the layers of each problem are alike.
    What would begin before the first layer is found to be infinite when stages are joined.
    """
    count, ways, layers, stages = problems.times.shape
    alike = all((x == x[:, :, :1]).all() for x in (problems.times, problems.held))
    ends = 1 if alike else layers + 1
    cost = np.full((count, stages, longest + 1, ends), np.inf)
    way = np.zeros((count, stages, longest + 1, ends), dtype=np.int64)
    befores = [np.moveaxis(x, -1, 1) for x in (problems.times_before, problems.held_before)]
    wide = np.pad(befores, ((0, 0), (0, 0), (0, 0), (0, 0), (longest, 0)))
    # problem, stage, way, row, end
    firsts = sliding_window_view(wide, layers + 1, axis=4)[..., -ends:]
    able = np.arange(longest, -1, -1)[:, None] >= problems.fewest[:, None, None]
    room = _room(problems.limit)[..., None, None, None]
    fixed = problems.fixed[..., None, None, None]
    some = max(_CELLS // (count * ways * ends * (longest + 1)), 1)
    for start in range(0, stages, some):
        at = np.s_[:, start : start + some]
        taken, held = (
            before[at][..., None, -ends:] - first[at]
            for before, first in zip(befores, firsts, strict=True)
        )
        fits = (held <= room[at]) & able[start : start + some, None]
        taken = np.where(fits, taken + fixed[at], np.inf)
        cost[at] = taken[:, :, 0] if ways == 1 else taken.min(axis=2)
        if ways > 1:
            way[at] = taken.argmin(axis=2)
    return cost, way


def _before_layer(values: Floats) -> Floats:
    """Sums over all layers before each one, and over all."""
    problems, ways, layers, stages = values.shape
    before = np.zeros((problems, ways, layers + 1, stages))
    np.cumsum(values, axis=2, out=before[:, :, 1:])
    return before


def _runs(before: Floats, layers: int) -> Floats:
    """Sums over every run of so many layers, shape (problems, ways, layers - run + 1, stages)."""
    return before[:, :, layers:] - before[:, :, : before.shape[2] - layers]


def _unit(times: Floats, fixed: Floats) -> Floats:
    """A power of two for each problem: the sum of all that may be taken is below 2^_BITS of it."""
    most = times.max(axis=1).sum(axis=(1, 2)) + fixed.sum(axis=1)
    some = np.where(most > 0.0, most, 1.0)
    return np.where(most > 0.0, 2.0 ** (np.ceil(np.log2(some)) - _BITS), 1.0)


def _wide(values: ArrayLike, stages: int) -> Floats:
    return np.array(np.broadcast_to(np.asarray(values, dtype=float), (stages,)))


def _results(
    start: Ints, cost: Floats, way: Ints, unit: Floats, more: Ints
) -> Iterator[LayerSplit]:
    """The splits that end with all layers, from the first layer of every stage at each end."""
    problem, (count, stages, rows, ends) = np.arange(len(start)), cost.shape
    ends_of = np.full((count, stages + 1), start.shape[2] - 1)
    for stage in range(stages, 0, -1):
        ends_of[:, stage - 1] = start[problem, stage, ends_of[:, stage]]
    layers = np.diff(ends_of)
    end = np.minimum(ends_of[:, 1:], ends - 1)
    place = problem[:, None], np.arange(stages), rows - 1 - layers, end
    stage_s = cost[place] * unit[:, None]
    step_s = stage_s.sum(axis=1) + more * stage_s.max(axis=1)
    for i in range(count):
        yield LayerSplit(
            layers=layers[i], way=way[place][i], stage_s=stage_s[i], step_s=float(step_s[i])
        )
