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
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from simulator.arrays import Floats, Ints

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
    ``cost[i, j, s]`` is what layers i to j - 1 take on stage s, infinite where they do not fit.
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
    cost, way = _segments(
        np.round(times / unit),
        np.broadcast_to(np.asarray(held_bytes, dtype=float), times.shape),
        np.round(fixed / unit),
        _wide(limit_bytes, stages) - _wide(fixed_bytes, stages),
        _wide(fewest, stages),
    )
    last = cost.shape[1] - 1
    least = float(_deal(cost, np.maximum).best[-1, last])
    if not np.isfinite(least):
        return None
    cap = _best_cap(cost, least, max(micro_batches - 1, 0))
    dealt = _deal(np.where(cost <= cap, cost, np.inf), np.add, _sum_of_squares)
    return _result(dealt.starts(last), cost, way, unit, micro_batches)


def _best_cap(cost: Floats, least: float, more: int) -> float:
    """The slowest stage with which a step of `more` further micro-batches is shortest."""
    floor = float(_deal(cost, np.add).best[-1, -1])

    def capped(cap: float) -> tuple[float, float]:
        dealt = _deal(np.where(cost <= cap, cost, np.inf), np.add, np.maximum)
        slowest = float(dealt.tie[-1, -1])
        return slowest, float(dealt.best[-1, -1]) + more * slowest

    found, best = capped(least)
    below = np.inf
    while (pays := min(below, (best - floor) / more if more else np.inf)) > least:
        slowest, step = capped(pays)
        if step < best:
            found, best = slowest, step
        if slowest <= least:
            break
        below = float(np.nextafter(slowest, 0.0))
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class _Dealt:
    """Best values of the first layers on the first stages, shape (stages + 1, layers + 1)."""

    best: Floats
    tie: Floats
    """Of equal ones, the least of what decides between them."""
    start: Ints
    """First layer of the last of these stages."""

    def starts(self, last: int) -> list[int]:
        """First layers of the stages, and the end."""
        ends = [last]
        for stage in range(len(self.start) - 1, 0, -1):
            ends.append(int(self.start[stage, ends[-1]]))
        return ends[::-1]


def _deal(
    cost: Floats,
    join: Callable[[Any, Any], Any],
    tie: Callable[[Any, Any], Any] | None = None,
) -> _Dealt:
    """Take in one stage after the other; `join` and `tie` add a stage to what is before it.

    `cost` is of shape (layers + 1, layers + 1, stages): first layer, end, stage.
    """
    size, stages = cost.shape[1], cost.shape[2]
    best, ties = np.full((stages + 1, size), np.inf), np.full((stages + 1, size), np.inf)
    start = np.zeros((stages + 1, size), dtype=np.int64)
    best[0, 0] = ties[0, 0] = 0.0
    for s in range(stages):
        whole = join(best[s][:, None], cost[:, :, s])
        best[s + 1] = whole.min(axis=0)
        if tie is None:
            start[s + 1] = whole.argmin(axis=0)
            continue
        second = np.where(whole == best[s + 1], tie(ties[s][:, None], cost[:, :, s]), np.inf)
        start[s + 1] = second.argmin(axis=0)
        ties[s + 1] = second.min(axis=0)
    return _Dealt(best=best, tie=ties, start=start)


def _sum_of_squares(before: Floats, cost: Floats) -> Floats:
    """Least where stages are most alike, if their sum is one."""
    return before + cost * cost


def _segments(
    times: Floats, held: Floats, fixed: Floats, limit: Floats, fewest: Floats
) -> tuple[Floats, Ints]:
    """Cost of layers i to j - 1 on every stage, and the way of running them that is fastest."""
    size, stages = times.shape[1] + 1, times.shape[2]
    count = np.arange(size) - np.arange(size)[:, None]
    cost = np.full((size, size, stages), np.inf)
    way = np.zeros((size, size, stages), dtype=np.int64)
    for w, (seconds, data) in enumerate(zip(times, held, strict=True)):
        taken, bytes_held = _between(seconds) + fixed, _between(data)
        room = limit + 1e-12 * np.where(np.isfinite(limit), np.abs(limit), 0.0)
        able = (count[:, :, None] >= fewest) & (count >= 0)[:, :, None] & (bytes_held <= room)
        better = able & (taken < cost)
        cost[better], way[better] = taken[better], w
    return cost, way


def _between(values: Floats) -> Floats:
    """Sums over layers i to j - 1, shape (layers + 1, layers + 1, stages)."""
    before = np.zeros((values.shape[0] + 1, values.shape[1]))
    np.cumsum(values, axis=0, out=before[1:])
    return np.asarray(before[None] - before[:, None])


def _unit(times: Floats, fixed: Floats) -> float:
    """A power of two of which the sum of all that may be taken is below 2^_BITS."""
    most = float(times.max(axis=0).sum() + fixed.sum())
    return 2.0 ** (np.ceil(np.log2(most)) - _BITS) if most > 0 else 1.0


def _wide(values: ArrayLike, stages: int) -> Floats:
    return np.array(np.broadcast_to(np.asarray(values, dtype=float), (stages,)))


def _result(
    starts: list[int], cost: Floats, way: Ints, unit: float, micro_batches: int
) -> LayerSplit:
    first, end = np.array(starts[:-1]), np.array(starts[1:])
    stage = np.arange(len(first))
    stage_s = cost[first, end, stage] * unit
    return LayerSplit(
        layers=end - first,
        way=way[first, end, stage],
        stage_s=stage_s,
        step_s=float(stage_s.sum() + max(micro_batches - 1, 0) * stage_s.max()),
    )
