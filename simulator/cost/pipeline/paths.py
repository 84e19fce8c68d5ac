"""Which passes the longest path of a pipeline runs through: counts per part of the model.

The makespan of a fixed order of passes is linear in their costs as long as the same path stays the
longest one. So each pipeline plan is played at a few rounded costs, and a layout takes the path
found at the rounded costs nearest to its own, at its own exact costs. Rounding is by ratios to the
forward pass of the model's commonest block, on a fixed grid: a layout's path depends on nothing
but the layout.

Beyond two or three times as many micro-batches as ranks a pipeline is periodic (the steady state of
Narayanan et al. 2021, figure 4): each takes as much longer than the slowest rank's own passes as in
the last round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.cost.pipeline.longest import longest_paths
from simulator.cost.tables import Paths
from simulator.layout.keys import unique_rows
from simulator.layout.layouts import RECOMPUTE, Layouts
from simulator.layout.stages import Stages
from simulator.records import dataclass
from simulator.schedules.registry import SCHEDULES, SPLITS_BACKWARD, TAKES_ROUNDS, WORDS
from simulator.schedules.schedule import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, KINDS
from simulator.schedules.waits import Waits, waits

_ROUNDS, _FEW = (2, 3), 12
"""Micro-batches played, over ranks (of schedules with weight passes one round more, which they take
to fill the bubble), and at the least; with more the pipeline is periodic."""

_TABLES = 1 << 20
"""Rows of graphs played at once, times sets of costs."""

_KEPT = 1 << 17
"""Paths remembered from one table of layouts to the next."""


_FULL = RECOMPUTE.index("full")

_Graph = tuple[str, int, int, int]
"""Schedule, ranks, micro-batches and chunks per rank of a plan as it is played."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """A pipeline plan that is played."""

    schedule: str
    pp: int
    vpp: int
    micro_batches: int
    content: Floats
    """Blocks of each part on every chunk of every rank, shape (ranks x chunks, parts)."""
    chunks: int
    further: int
    """Micro-batches of a round where its growth matters, else 0."""
    beside: bool
    """Sends run beside compute."""

    @property
    def key(self) -> bytes:
        """What tells it from others."""
        words = (*self.graph, self.further, self.beside)
        return repr(words).encode() + self.content.tobytes()

    @property
    def waits(self) -> bool:
        """Whether ranks fill and drain."""
        return self.pp > 1 and SCHEDULES[self.schedule].flushes

    @property
    def graph(self) -> _Graph:
        """The schedule as it is played."""
        return self.schedule, self.pp, self.micro_batches, self.vpp

    @property
    def shorter(self) -> list[_Graph]:
        """The same with a round less, where its growth matters."""
        fewer = self.micro_batches - self.further
        return [(self.schedule, self.pp, fewer, self.vpp)] if self.further else []


def _most_played(layouts: Layouts) -> tuple[NDArray[Any], NDArray[Any]]:
    """Micro-batches that are played at the most, and those of a round."""
    m, pp = layouts.micro_batches, layouts.pp
    rounds = np.array(_ROUNDS)[SPLITS_BACKWARD[layouts.schedule].astype(np.int64)]
    longer = m // np.maximum(m // pp, 1)
    size = np.where(TAKES_ROUNDS[layouts.schedule] & (m >= pp), longer, pp)
    return size * np.maximum(rounds, -(-_FEW // pp)), size


def trace_paths(
    layouts: Layouts,
    plan: NDArray[Any],
    table: Stages,
    costs: tuple[NDArray[np.intp], Floats],
    *,
    beside: bool,
) -> Paths:
    """Find the longest path of every layout's pipeline at its rounded costs.

    Parameters
    ----------
    layouts : Layouts
    plan : ndarray
        Pipeline plan of each layout in `table`.
    table : Stages
        What every rank and chunk of the plans holds.
    costs
        Row of each layout in a grid of rounded costs, and the grid (``cost/pipeline/rounded.py``).
    beside : bool
        Whether sends of ranks with several chunks run beside compute.
    """
    price, grid = costs
    most, size = _most_played(layouts)
    few = np.minimum(layouts.micro_batches, most)
    further = np.where(few == most, size, 0)
    played_plans = unique_rows(plan, few, further)
    played = few[played_plans.first], further[played_plans.first]
    covered = np.where(layouts.recompute == _FULL, layouts.recompute_layers + 1, 0)
    route = unique_rows(played_plans.inverse, price, covered)
    listed = _plans(layouts[played_plans.first], plan[played_plans.first], played, table, beside)
    columns = (played_plans.inverse, price, covered)
    wanted = list(zip(*(x[route.first].tolist() for x in columns), strict=True))
    counts, pace = (np.array(x) for x in zip(*_found(listed, grid, wanted), strict=True))
    return Paths(
        route=route.inverse, counts=counts, pace=pace, played=few[route.first].astype(float)
    )


def _plans(
    layouts: Layouts,
    plan: NDArray[Any],
    played: tuple[NDArray[Any], NDArray[Any]],
    table: Stages,
    beside: bool,
) -> list[_Plan]:
    """The plans of layouts, each with as many micro-batches as are played."""
    content = np.column_stack([table.blocks, table.embedding, table.head]).astype(float)
    firsts, ends = (np.searchsorted(table.plan, plan, side=x) for x in ("left", "right"))
    held = layouts.vpp * layouts.copies
    columns = (layouts.schedule, layouts.pp, layouts.vpp, *played, held, firsts, ends)
    rows = zip(*(x.tolist() for x in columns), strict=True)
    return [
        _Plan(WORDS[code], pp, vpp, m, content[first:end], chunks, size, beside and chunks > 1)
        for code, pp, vpp, m, size, chunks, first, end in rows
    ]


_KNOWN: dict[tuple[bytes, bytes, int], tuple[Floats, float]] = {}
"""Counts and pace by plan, rounded costs and covered layers."""


def _found(
    plans: list[_Plan], grid: Floats, wanted: list[tuple[int, int, int]]
) -> list[tuple[Floats, float]]:
    """Counts and pace of the wanted routes: plan, row of the grid, covered layers + 1 or 0."""
    names, prices = [plan.key for plan in plans], [row.tobytes() for row in grid]
    keys = [(names[plan], prices[price], layers) for plan, price, layers in wanted]
    able = [i for i, (plan, _, _) in enumerate(wanted) if plans[plan].waits]
    missing = [i for i in able if keys[i] not in _KNOWN]
    if len(_KNOWN) + len(missing) > _KEPT:
        _KNOWN.clear()
        missing = able
    rows_of: dict[int, dict[int, list[int]]] = {}
    for i in missing:
        plan, row, layers = wanted[i]
        rows_of.setdefault(plan, {}).setdefault(row, []).append(layers)
    played = _played({i: (plans[i], grid[list(rows)]) for i, rows in rows_of.items()})
    for i, counts, sends, pace in played:
        every = sorted({layers_of for several in rows_of[i].values() for layers_of in several})
        per_part = _per_part(plans[i], counts, sends, every)
        for at, (row, several) in enumerate(rows_of[i].items()):
            for layers_of in several:
                k = every.index(layers_of)
                _KNOWN[names[i], prices[row], layers_of] = per_part[k, at], float(pace[at])
    none = np.zeros(6 * plans[0].content.shape[1] + 3)
    return [_KNOWN.get(key, (none, 1.0)) for key in keys]


@dataclass(frozen=True, slots=True)
class _Played:
    """A schedule that is played at some sets of costs, whichever plans have them."""

    plan: _Plan
    """One of those."""
    graph: Waits
    shorter: list[Waits]
    costs: NDArray[np.float32]
    """Of every operation and of a hop, shape (operations + 1, sets)."""


def _played(
    wanted: dict[int, tuple[_Plan, Floats]],
) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64], Floats]]:
    """Operations and sends on the longest paths of plans, each at its own rounded costs, and pace.

    Of each plan, shapes (rows of costs, operations) and twice (rows of costs,). Plans that differ
    in what their stages hold, but neither in their schedule nor in any cost of a pass, have one
    path.
    """
    sets: dict[tuple[_Graph, int], dict[bytes, int]] = {}
    users: dict[tuple[_Graph, int], list[tuple[int, list[int]]]] = {}
    for i, (plan, costs) in wanted.items():
        key = plan.graph, plan.further
        several, rows = sets.setdefault(key, {}), _costs(plan, costs)
        columns = [several.setdefault(row.tobytes(), len(several)) for row in rows]
        users.setdefault(key, []).append((i, columns))
    plans = {key: wanted[of_key[0][0]][0] for key, of_key in users.items()}
    drawn = [name for plan in plans.values() for name in (plan.graph, *plan.shorter)]
    graphs = dict(zip(drawn, waits(drawn), strict=True))
    schedules = {}
    for key, plan in plans.items():
        table = np.frombuffer(b"".join(sets[key]), dtype=np.float32).reshape(len(sets[key]), -1)
        shorter = [graphs[name] for name in plan.shorter]
        schedules[key] = _Played(plan, graphs[plan.graph], shorter, table.T)
    for batch in _batches(schedules):
        played = _paths([schedules[key] for key in batch])
        for key, (counts, sends, pace) in zip(batch, played, strict=True):
            for i, columns in users[key]:
                yield i, counts[columns], sends[columns], pace[columns]


def _batches(schedules: dict[tuple[_Graph, int], _Played]) -> list[list[tuple[_Graph, int]]]:
    """Schedules to play together: such with as many sets of costs, in tables of bounded size."""
    batches: list[list[tuple[_Graph, int]]] = []
    size = 0
    for key in sorted(schedules, key=lambda key: schedules[key].costs.shape[1]):
        played = schedules[key]
        cells = sum(graph.operation.size for graph in (played.graph, *played.shorter))
        size += cells
        if not batches or size * played.costs.shape[1] > _TABLES:
            batches.append([])
            size = cells
        batches[-1].append(key)
    return batches


def _paths(schedules: Sequence[_Played]) -> list[tuple[NDArray[Any], ...]]:
    """Operations, sends and pace of schedules at all of their costs."""
    most = max(played.costs.shape[1] for played in schedules)
    operations = max(played.graph.operations for played in schedules)
    seconds = np.zeros((len(schedules), operations, most), dtype=np.float32)
    hop_s = np.zeros((len(schedules), most), dtype=np.float32)
    for at, played in enumerate(schedules):
        # the last sets again, to as many as others have
        costs = played.costs[:, np.minimum(np.arange(most), played.costs.shape[1] - 1)]
        seconds[at, : played.graph.operations], hop_s[at] = costs[:-1], costs[-1]
    fewer = [(at, graph) for at, played in enumerate(schedules) for graph in played.shorter]
    graphs = [played.graph for played in schedules]
    counts, sends, span_s = longest_paths(graphs, seconds, hop_s, fewer)
    paces = np.ones((len(schedules), most))
    for (at, _), shorter_s in zip(fewer, span_s[len(schedules) :], strict=True):
        plan, graph = schedules[at].plan, graphs[at]
        slow_s = _slowest_s(plan, seconds[at, : graph.operations])
        paces[at] = np.maximum((span_s[at] - shorter_s) / plan.further / slow_s, 1.0)
    return list(zip(counts, sends, paces, strict=True))


def _costs(plan: _Plan, costs: Floats) -> NDArray[np.float32]:
    """Rounded costs of operations and of a hop, shape (rows of costs, operations + 1).

    In single precision: they and their sums are multiples of a power of two.
    """
    seconds = np.vstack([_seconds(plan, costs), plan.beside * costs[:, 1]])
    return np.ascontiguousarray(seconds.T, dtype=np.float32)


def _slowest_s(plan: _Plan, seconds: Floats) -> Floats:
    """Rounded costs of a micro-batch on the slowest rank, forward and whole backward pass.

    Breadth-first schedules run every pass alone.
    """
    places = len(plan.content)
    alone = int(SCHEDULES[plan.schedule].breadth_first)
    ways = seconds.reshape(2, len(KINDS), places, -1)[alone]
    both = ways[FORWARD] + ways[BACKWARD]
    ranks = both.reshape(plan.pp, plan.chunks, -1).sum(axis=1)
    return np.asarray(ranks.max(axis=0) / SCHEDULES[plan.schedule].copies)


def _seconds(plan: _Plan, costs: Floats) -> Floats:
    """Rounded costs of every operation, shape (operations, rows of costs)."""
    again, sent, alone, *part_s = costs.T
    forward, backward, weights = np.stack(part_s).reshape(3, -1, len(costs))
    blocks = plan.content[:, :-2]
    ahead, weight = plan.content @ forward, plan.content @ weights
    behind = plan.content @ backward
    if again.any():
        behind = behind + np.einsum("rpk,kr->pr", _repeated(plan, again), forward[:-2])
    send_s = 0.0 if plan.beside else sent
    kinds = [ahead + send_s, behind + send_s, behind - weight + send_s, weight]
    longer = blocks.sum(axis=1)[:, None] * alone
    return np.concatenate([*kinds, *(seconds + longer for seconds in kinds)])


def _repeated(plan: _Plan, again: Floats) -> Floats:
    """Blocks that are recomputed at rounded costs, shape (rows, places, kinds of blocks).

    `again` counts a rank's first chunks, or, negative, its first blocks.
    """
    values, row = np.unique(again, return_inverse=True)
    chunk = np.tile(np.arange(plan.chunks), plan.pp)[:, None]
    blocks = plan.content[:, :-2] * (chunk < values[:, None, None])
    if (few := values < 0).any():
        blocks[few] = _covered(plan, 1 - values[few])[:, :, :-2]
    return np.asarray(blocks[row])


def _per_part(
    plan: _Plan, played: NDArray[np.int64], sends: NDArray[np.int64], layers: list[int]
) -> Floats:
    """Counts in the order of `Paths.counts`, shape (layers, rows, columns)."""
    held, size = plan.content, 2 * len(KINDS) * len(plan.content)
    counts = played[:, :size].reshape(len(played), 2, len(KINDS), len(held)).astype(float)
    ways, lone = counts.sum(axis=1), counts[:, 1]
    back = ways[:, BACKWARD] + ways[:, BACKWARD_INPUT]
    repeated = np.moveaxis(_covered(plan, np.array(layers)), 0, 1)
    again = (back @ repeated.reshape(len(held), -1)).reshape(
        len(played), len(layers), held.shape[1]
    )
    before = (ways[:, FORWARD], back, ways[:, BACKWARD_WEIGHT] - ways[:, BACKWARD_INPUT])
    after = (lone[:, FORWARD], lone[:, BACKWARD] + lone[:, BACKWARD_INPUT])
    ends = [x.sum(axis=1, keepdims=True) for x in (ways[:, FORWARD], back)] + [sends[:, None]]
    columns = [np.concatenate([x @ held for x in before], axis=1), np.moveaxis(again, 1, 0)]
    columns.append(np.concatenate([*(x @ held for x in after), *ends], axis=1))
    shape = (len(layers), len(played))
    return np.concatenate([np.broadcast_to(x, (*shape, x.shape[-1])) for x in columns], axis=2)


def _covered(plan: _Plan, layers: NDArray[Any]) -> Floats:
    """Blocks of every chunk that full recomputation covers, the first ones of a rank first.

    `layers` is 0 for none, 1 for all, else one more than the blocks of a rank; shape (layers,
    places, parts).
    """
    ranks = plan.content.reshape(plan.pp, plan.chunks, -1)
    if not layers.any():
        return np.zeros((len(layers), *plan.content.shape))
    left = np.where(layers == 1, np.inf, np.maximum(layers - 1.0, 0.0))[:, None]
    covered = np.zeros((len(layers), *ranks.shape))
    for kind in range(ranks.shape[2] - 2):
        blocks = ranks[:, :, kind]
        whole = np.minimum(blocks.sum(axis=1), left)
        left = left - whole
        before = np.cumsum(blocks, axis=1) - blocks
        covered[..., kind] = np.minimum(np.maximum(whole[:, :, None] - before, 0.0), blocks)
    return covered.reshape(len(layers), *plan.content.shape)
