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

from collections.abc import Callable
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

    @property
    def slowest_s(self) -> float:
        """The longest of the stages."""
        return float(self.stage_s.max())


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
    caps are passed over that cannot pay, none else, so that the result is that of trying all.

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
    fixed = _wide(fixed_s, stages)
    unit = _unit(times, fixed)
    whole_times = np.round(times / unit)
    held = np.broadcast_to(np.asarray(held_bytes, dtype=float), times.shape)
    problem = _Problem(
        times=whole_times,
        held=held,
        times_before=_before_layer(whole_times),
        held_before=_before_layer(held),
        fixed=np.round(fixed / unit),
        limit=_wide(limit_bytes, stages) - _wide(fixed_bytes, stages),
        fewest=_wide(fewest, stages),
        more=max(micro_batches - 1, 0),
    )
    longest, layers = _band(problem), problem.layers
    while longest < layers:
        split = _split(problem, longest, unit)
        step = split.step_s / unit if split else np.inf
        bound = problem.least_step_of_a_stage_of(longest + 1)
        if bound > step or np.isinf(bound):
            return split
        longest = min(2 * longest, layers)
    return _split(problem, layers, unit)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Problem:
    """What is dealt, in whole units of time: arrays as `split_layers` takes them."""

    times: Floats
    held: Floats
    times_before: Floats
    """Sums over all layers before each, and over all; shape (ways, layers + 1, stages)."""
    held_before: Floats
    fixed: Floats
    limit: Floats
    fewest: Floats
    more: int
    """Micro-batches after the first one."""

    @property
    def layers(self) -> int:
        """Layers that are dealt."""
        return self.times.shape[1]

    def least_step_of_a_stage_of(self, layers: int) -> float:
        """No split of which a stage holds so many layers or more takes less; inf where none fits.

        It holds for lengths above, too, since a longer stage takes and holds what a part of it
        does, if nothing is negative.
        """
        if min(self.times.min(), self.held.min()) < 0.0:
            return 0.0
        taken, fits = _of_length(self, layers)
        slowest = float(np.where(fits, taken, np.inf).min())
        return float(self.times.min(axis=(0, 2)).sum() + self.fixed.sum()) + self.more * slowest


def _of_length(problem: _Problem, layers: int) -> tuple[Floats, NDArray[np.bool_]]:
    """Time of so many layers, and whether they fit: shape (ways, first layers, stages)."""
    taken = _runs(problem.times_before, layers) + problem.fixed
    held = _runs(problem.held_before, layers)
    return taken, (held <= _room(problem.limit)) & (layers >= problem.fewest)


def _room(limit: Floats) -> Floats:
    """What stages may hold: a limit, and what sums are rounded by."""
    return limit + 1e-12 * np.where(np.isfinite(limit), np.abs(limit), 0.0)


def _band(problem: _Problem) -> int:
    """Layers of the longest stage that is looked at first."""
    _, layers, stages = problem.times.shape
    mean = -(-layers // stages)
    return int(min(layers, max(6, mean + mean // 2 + 1, problem.fewest.max())))


def _split(problem: _Problem, longest: int, unit: float) -> LayerSplit | None:
    """The best split of which no stage holds more than `longest` layers."""
    (cost, way), size = _segments(problem, longest), problem.layers + 1
    least = float(_deal(cost, size, np.maximum)[0][-1, -1])
    if not np.isfinite(least):
        return None
    cap = _best_cap(cost, size, least, problem.more)
    start = np.zeros((len(cost) + 1, size), dtype=np.int64)
    _deal(np.where(cost <= cap, cost, np.inf), size, np.add, _sum_of_squares, start)
    return _result(_starts(start), cost, way, unit, problem.more)


def _best_cap(cost: Floats, size: int, least: float, more: int) -> float:
    """The slowest stage with which a step of `more` further micro-batches is shortest."""
    floor = float(_deal(cost, size, np.add)[0][-1, -1])

    def capped(cap: float) -> tuple[float, float]:
        best, tie = _deal(np.where(cost <= cap, cost, np.inf), size, np.add, np.maximum)
        slowest = float(tie[-1, -1])
        return slowest, float(best[-1, -1]) + more * slowest

    cap_s, best = capped(least)
    below = np.inf
    while (pays := min(below, (best - floor) / more if more else np.inf)) > least:
        slowest, step = capped(pays)
        if step < best:
            cap_s, best = slowest, step
        if slowest <= least:
            break
        below = float(np.nextafter(slowest, 0.0))
    return cap_s


def _starts(start: Ints) -> list[int]:
    """First layers of the stages, and the end."""
    ends = [start.shape[1] - 1]
    for stage in range(len(start) - 1, 0, -1):
        ends.append(int(start[stage, ends[-1]]))
    return ends[::-1]


def _deal(
    cost: Floats,
    size: int,
    join: Callable[[Any, Any], Any],
    tie: Callable[[Any, Any], Any] | None = None,
    start: Ints | None = None,
) -> tuple[Floats, Floats]:
    """Take in one stage after the other; `join` and `tie` add a stage to what is before it.

    `cost` is as `_segments` makes it, `size` is layers + 1. Returns the best values of the first
    layers on the first stages, shape (stages + 1, size), and of equal ones the least of what
    decides between them. `start`, of that shape, takes the first layer of the last of these stages.
    """
    stages, rows, _ = cost.shape
    best, ties = np.full((2, stages + 1, rows - 1 + size), np.inf)
    # values at the first layer of stages, by row and end
    before, ties_before = (sliding_window_view(x, size, axis=1) for x in (best, ties))
    end = np.arange(size)
    best[0, rows - 1] = ties[0, rows - 1] = 0.0
    for s in range(stages):
        whole = join(before[s], cost[s])
        best[s + 1, rows - 1 :] = least = whole.min(axis=0)
        if tie is not None:
            whole = np.where(whole == least, tie(ties_before[s], cost[s]), np.inf)
            ties[s + 1, rows - 1 :] = whole.min(axis=0)
        if start is not None:
            start[s + 1] = end - (rows - 1 - whole.argmin(axis=0))
    return best[:, rows - 1 :], ties[:, rows - 1 :]


def _sum_of_squares(before: Floats, cost: Floats) -> Floats:
    """Least where stages are most alike, if their sum is one."""
    return before + cost * cost


def _segments(problem: _Problem, longest: int) -> tuple[Floats, Ints]:
    """Cost of stages of at most `longest` layers, and the way of running them that is fastest.

    Both of shape (stages, longest + 1, ends): row i holds stages of longest - i layers, by their
    end, of 0 to all layers; by one end for all where layers are alike. What would begin before the
    first layer is found to be infinite when stages are joined.
    """
    ways, layers, stages = problem.times.shape
    alike = all((x == x[:, :1]).all() for x in (problem.times, problem.held))
    ends = 1 if alike else layers + 1
    cost = np.full((stages, longest + 1, ends), np.inf)
    way = np.zeros((stages, longest + 1, ends), dtype=np.int64)
    befores = [np.moveaxis(x, -1, 0) for x in (problem.times_before, problem.held_before)]
    wide = np.pad(befores, ((0, 0), (0, 0), (0, 0), (longest, 0)))
    firsts = sliding_window_view(wide, layers + 1, axis=3)[..., -ends:]  # stage, way, row, end
    able = np.arange(longest, -1, -1)[:, None] >= problem.fewest[:, None, None]
    some = max(_CELLS // (ways * ends * (longest + 1)), 1)
    for start in range(0, stages, some):
        at = slice(start, start + some)
        taken, held = (
            before[at, :, None, -ends:] - first[at]
            for before, first in zip(befores, firsts, strict=True)
        )
        fits = (held <= _room(problem.limit[at, None, None, None])) & able[at, None]
        taken = np.where(fits, taken + problem.fixed[at, None, None, None], np.inf)
        cost[at] = taken[:, 0] if ways == 1 else taken.min(axis=1)
        if ways > 1:
            way[at] = taken.argmin(axis=1)
    return cost, way


def _before_layer(values: Floats) -> Floats:
    """Sums over all layers before each one."""
    before = np.zeros((values.shape[0], values.shape[1] + 1, values.shape[2]))
    np.cumsum(values, axis=1, out=before[:, 1:])
    return before


def _runs(before: Floats, layers: int) -> Floats:
    """Sums over every run of so many layers, shape (ways, layers - run + 1, stages)."""
    return before[:, layers:] - before[:, : before.shape[1] - layers]


def _unit(times: Floats, fixed: Floats) -> float:
    """A power of two of which the sum of all that may be taken is below 2^_BITS."""
    most = float(times.max(axis=0).sum() + fixed.sum())
    return 2.0 ** (np.ceil(np.log2(most)) - _BITS) if most > 0 else 1.0


def _wide(values: ArrayLike, stages: int) -> Floats:
    return np.array(np.broadcast_to(np.asarray(values, dtype=float), (stages,)))


def _result(starts: list[int], cost: Floats, way: Ints, unit: float, more: int) -> LayerSplit:
    first, end = np.array(starts[:-1]), np.array(starts[1:])
    place = (
        np.arange(len(first)),
        cost.shape[1] - 1 - (end - first),
        np.minimum(end, cost.shape[2] - 1),
    )
    stage_s = cost[place] * unit
    return LayerSplit(
        layers=end - first,
        way=way[place],
        stage_s=stage_s,
        step_s=float(stage_s.sum() + more * stage_s.max()),
    )
