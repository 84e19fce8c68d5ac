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

from simulator.arrays import Floats, by_key
from simulator.cost.passes import over_parts
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

_CELLS = 1 << 16
"""Blocks of chunks of plans that are counted at once, by part."""

_KEPT = 1 << 17
"""Paths remembered from one table of layouts to the next."""


_FULL = RECOMPUTE.index("full")

_Graph = tuple[str, int, int, int]
"""Schedule, ranks, micro-batches and chunks per rank of a plan as it is played."""

_Key = tuple[_Graph, int]
"""The same, and the micro-batches of a round where its growth matters."""


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
    rows = _found(listed, grid, wanted)
    return Paths(
        route=route.inverse,
        counts=np.asfortranarray(rows[:, :-1]),
        pace=rows[:, -1].copy(),
        played=few[route.first].astype(float),
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


_KNOWN: dict[tuple[bytes, bytes, int], bytes] = {}
"""Counts and pace by plan, rounded costs and covered layers."""


def _found(plans: list[_Plan], grid: Floats, wanted: list[tuple[int, int, int]]) -> Floats:
    """Counts and pace of the wanted routes: plan, row of the grid, covered layers + 1 or 0.

    Shape (wanted, counts and pace).
    """
    names, prices = [plan.key for plan in plans], [row.tobytes() for row in grid]
    keys = [(names[plan], prices[price], layers) for plan, price, layers in wanted]
    able = {number for number, plan in enumerate(plans) if plan.waits}
    missing = [i for i, key in enumerate(keys) if key not in _KNOWN and wanted[i][0] in able]
    if len(_KNOWN) + len(missing) > _KEPT:
        _KNOWN.clear()
        missing = [i for i, route in enumerate(wanted) if route[0] in able]
    if missing:
        for places, rows in _counted(plans, grid, [wanted[i] for i in missing]):
            _KNOWN.update(zip((keys[missing[i]] for i in places), map(bytes, rows), strict=True))
    columns = 6 * plans[0].content.shape[1] + 4
    none = bytes(np.r_[np.zeros(columns - 1), 1.0])
    return np.frombuffer(b"".join(_KNOWN.get(key, none) for key in keys)).reshape(-1, columns)


def _counted(
    plans: list[_Plan], grid: Floats, routes: list[tuple[int, int, int]]
) -> Iterator[tuple[list[int], Floats]]:
    """Play routes: places of some of them, and what `_found` gives of each.

    Plans of one schedule are played together, those of one shape counted together.
    """
    keys = [(plan.graph, plan.further) for plan in plans]
    groups: dict[_Key, dict[tuple[int, int], list[int]]] = {}
    for i, (plan, row, _) in enumerate(routes):
        groups.setdefault(keys[plan], {}).setdefault((plan, row), []).append(i)
    firsts = [plans[next(iter(members))[0]] for members in groups.values()]
    drawn = [name for plan in firsts for name in (plan.graph, *plan.shorter)]
    graphs = dict(zip(drawn, waits(drawn), strict=True))
    costs = iter(_costs_of(plans, grid, [pair for members in groups.values() for pair in members]))
    alike = [
        _Alike.of(plan, graphs, members, [next(costs) for _ in members])
        for plan, members in zip(firsts, groups.values(), strict=True)
    ]
    played = _played(alike)
    shapes: dict[tuple[int, int], list[int]] = {}
    for i, first in enumerate(firsts):
        shapes.setdefault((first.pp, first.chunks), []).append(i)
    for some in shapes.values():
        yield from _of_shape(plans, routes, [alike[i] for i in some], [played[i] for i in some])


def _of_shape(
    plans: list[_Plan],
    routes: list[tuple[int, int, int]],
    alike: list[_Alike],
    played: list[tuple[NDArray[Any], ...]],
) -> Iterator[tuple[list[int], Floats]]:
    """The same of schedules with as many ranks and chunks, of which these paths were found."""
    plan, sets = alike[0].plan, np.cumsum([0, *(len(paths[0]) for paths in played)])
    pairs = [pair for schedule in alike for pair in schedule.members]
    members = [places for schedule in alike for places in schedule.members.values()]
    content, held = _contents(plans, pairs)
    pair = np.repeat(np.arange(len(pairs)), [len(places) for places in members])
    at = [i for places in members for i in places]
    layers = np.array([routes[i][2] for i in at])
    column = np.concatenate([x.columns + first for x, first in zip(alike, sets, strict=False)])
    size = 2 * len(KINDS) * len(plan.content)
    counts = np.concatenate([paths[0][:, :size] for paths in played])
    ends = [np.concatenate(x) for x in zip(*(paths[1:] for paths in played), strict=True)]
    passes, beside = _passes(counts, *ends)
    for some in _slices(len(at), plan.content):
        blocks, on_path = content[held[pair[some]]], column[pair[some]]
        yield at[some], _per_part(plan, blocks, (passes[on_path], beside[on_path]), layers[some])


def _contents(plans: list[_Plan], pairs: list[tuple[int, int]]) -> tuple[Floats, NDArray[np.intp]]:
    """Distinct contents of the plans of some pairs, and which of them each has."""
    number = np.array([plan for plan, _ in pairs], dtype=np.intp)
    distinct, held = np.unique(number, return_inverse=True)
    return np.stack([plans[i].content for i in distinct.tolist()]), held


@dataclass(frozen=True, kw_only=True, slots=True)
class _Alike:
    """Plans that differ in what their stages hold, not in their schedule, each at its costs.

    Those among them that differ in no cost of a pass have one path.
    """

    plan: _Plan
    """One of those."""
    graph: Waits
    shorter: list[Waits]
    """With a round less, where its growth matters."""
    members: dict[tuple[int, int], list[int]]
    """Routes of each pair of a plan and its rounded costs."""
    costs: NDArray[np.float32]
    """Distinct costs of every operation and of a hop, shape (operations + 1, sets)."""
    columns: NDArray[np.intp]
    """Set of each pair."""

    @staticmethod
    def of(
        plan: _Plan,
        graphs: dict[_Graph, Waits],
        members: dict[tuple[int, int], list[int]],
        costs: list[bytes],
    ) -> _Alike:
        """Those of some pairs of a plan and a row of the grid of costs, and what each costs."""
        sets = dict[bytes, int]()
        columns = [sets.setdefault(row, len(sets)) for row in costs]
        return _Alike(
            plan=plan,
            graph=graphs[plan.graph],
            shorter=[graphs[name] for name in plan.shorter],
            members=members,
            costs=np.frombuffer(b"".join(sets), dtype=np.float32).reshape(len(sets), -1).T,
            columns=np.array(columns),
        )


def _costs_of(plans: list[_Plan], grid: Floats, pairs: list[tuple[int, int]]) -> list[bytes]:
    """Rounded costs of operations and of a hop of each pair of a plan and a row of the grid."""
    shapes: dict[tuple[int, int, bool], list[int]] = {}
    for i, (number, _) in enumerate(pairs):
        plan = plans[number]
        shapes.setdefault((plan.pp, plan.chunks, plan.beside), []).append(i)
    costs = [b""] * len(pairs)
    for members in shapes.values():
        content, held = _contents(plans, [pairs[i] for i in members])
        row = np.array([pairs[i][1] for i in members])
        plan = plans[pairs[members[0]][0]]
        for some in _slices(len(members), plan.content):
            of_each = _costs(plan, by_key(content, held[some]), by_key(grid, row[some]))
            for i, seconds in zip(members[some], of_each, strict=True):
                costs[i] = seconds.tobytes()
    return costs


def _slices(count: int, content: Floats) -> Iterator[slice]:
    """Pieces of so many routes of plans that hold as much as one, each of bounded size."""
    size = max(_CELLS // content.size, 1)
    return (slice(start, start + size) for start in range(0, count, size))


def _played(alike: Sequence[_Alike]) -> list[tuple[NDArray[Any], ...]]:
    """Operations and sends on the longest path of every set of costs, and pace.

    Of each of `alike`, shapes (sets, operations) and twice (sets,).
    """
    played: dict[int, tuple[NDArray[Any], ...]] = {}
    for batch in _batches(alike):
        played.update(zip(batch, _paths([alike[i] for i in batch]), strict=True))
    return [played[i] for i in range(len(alike))]


def _batches(schedules: Sequence[_Alike]) -> list[list[int]]:
    """Places of schedules to play together: with as many sets of costs, in bounded tables."""
    batches: list[list[int]] = []
    size = 0
    for i in sorted(range(len(schedules)), key=lambda i: schedules[i].costs.shape[1]):
        played = schedules[i]
        cells = sum(graph.operation.size for graph in (played.graph, *played.shorter))
        size += cells
        if not batches or size * played.costs.shape[1] > _TABLES:
            batches.append([])
            size = cells
        batches[-1].append(i)
    return batches


def _paths(schedules: Sequence[_Alike]) -> list[tuple[NDArray[Any], ...]]:
    """Operations, sends and pace of schedules at all of their costs."""
    most = max(played.costs.shape[1] for played in schedules)
    operations = max(played.graph.operations for played in schedules)
    seconds = np.zeros((len(schedules), operations + 1, most), dtype=np.float32)
    hop_s = np.zeros((len(schedules), most), dtype=np.float32)
    for at, played in enumerate(schedules):
        few, last = played.costs.shape[1], played.costs[:, -1:]
        for some, costs in ((slice(few), played.costs), (slice(few, most), last)):  # as many sets
            seconds[at, : played.graph.operations, some], hop_s[at, some] = costs[:-1], costs[-1]
    fewer = [(at, graph) for at, played in enumerate(schedules) for graph in played.shorter]
    graphs = [played.graph for played in schedules]
    counts, sends, span_s = longest_paths(graphs, seconds, hop_s, fewer)
    paces = np.ones((len(schedules), most))
    for (at, _), shorter_s in zip(fewer, span_s[len(schedules) :], strict=True):
        plan, graph = schedules[at].plan, graphs[at]
        slow_s = _slowest_s(plan, seconds[at, : graph.operations])
        paces[at] = np.maximum((span_s[at] - shorter_s) / plan.further / slow_s, 1.0)
    return list(zip(counts, sends, paces, strict=True))


def _costs(plan: _Plan, content: Floats, costs: Floats) -> NDArray[np.float32]:
    """Rounded costs of operations and of a hop, shape (rows of costs, operations + 1).

    `content` is that of each row. In single precision: they and their sums are multiples of a power
    of two.
    """
    seconds = [*_seconds(plan, content, costs), plan.beside * costs[:, 1:2]]
    table = np.concatenate([x.T for x in seconds], dtype=np.float32, casting="same_kind")
    return np.ascontiguousarray(table.T)


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


def _seconds(plan: _Plan, content: Floats, costs: Floats) -> list[Floats]:
    """Rounded costs of every operation, each of shape (rows of costs, places)."""
    again, sent, alone = costs.T[:3]
    forward, backward, weights = (x.T[:, None] for x in np.split(costs.T[3:], 3))
    ahead, weight = over_parts(content, forward), over_parts(content, weights)
    behind = over_parts(content, backward)
    if again.any():
        behind = behind + over_parts(_repeated(plan, content, again), forward[..., :-2])
    send_s = 0.0 if plan.beside else sent[:, None]
    kinds = [ahead + send_s, behind + send_s, behind - weight + send_s, weight]
    if not alone.any():
        return [*kinds, *kinds]
    longer = content[..., :-2].sum(axis=2) * alone[:, None]
    return [*kinds, *(seconds + longer for seconds in kinds)]


def _repeated(plan: _Plan, content: Floats, again: Floats) -> Floats:
    """Blocks that are recomputed at rounded costs, shape (rows, places, kinds of blocks).

    `again` counts a rank's first chunks, or, negative, its first blocks.
    """
    chunk = np.tile(np.arange(plan.chunks), plan.pp)[:, None]
    blocks = content[..., :-2] * (chunk < again[:, None, None])
    if (few := again < 0).any():
        blocks[few] = _covered(plan, content[few], 1 - again[few])[..., :-2]
    return np.asarray(blocks)


def _passes(counts: NDArray[Any], sends: NDArray[Any], pace: Floats) -> tuple[Floats, Floats]:
    """What lies on paths, by place: forward, backward, weight, lone forward and lone backward.

    Shape (sets, 5, places); and forward and backward passes, sends and pace of each set.
    """
    ways = counts.reshape(len(counts), 2, len(KINDS), -1)
    every, lone = ways.sum(axis=1), ways[:, 1]
    back = every[:, BACKWARD] + every[:, BACKWARD_INPUT]
    weights = every[:, BACKWARD_WEIGHT] - every[:, BACKWARD_INPUT]
    lone_back = lone[:, BACKWARD] + lone[:, BACKWARD_INPUT]
    passes = [every[:, FORWARD], back, weights, lone[:, FORWARD], lone_back]
    ends = np.column_stack([every[:, FORWARD].sum(axis=1), back.sum(axis=1), sends, pace])
    return np.stack(passes, axis=1).astype(float), ends


def _per_part(
    plan: _Plan, content: Floats, paths: tuple[Floats, Floats], layers: NDArray[Any]
) -> Floats:
    """Counts of routes in the order of `Paths.counts`, and pace, from what lies on their paths."""
    passes, ends = paths
    held = (passes @ content).reshape(len(content), -1)
    again = (passes[:, 1:2] @ _covered(plan, content, layers))[:, 0]
    whole = 3 * content.shape[2]
    return np.column_stack([held[:, :whole], again, held[:, whole:], ends])


def _covered(plan: _Plan, content: Floats, layers: NDArray[Any]) -> Floats:
    """Blocks of every chunk that full recomputation covers, the first ones of a rank first.

    `layers` of each row is 0 for none, 1 for all, else one more than the blocks of a rank; shape
    that of `content`, (rows, places, parts).
    """
    covered = np.zeros((len(content), plan.pp, plan.chunks, content.shape[2]))
    if not layers.any():
        return covered.reshape(content.shape)
    ranks = content.reshape(covered.shape)
    left = np.where(layers == 1, np.inf, np.maximum(layers - 1.0, 0.0))[:, None]
    for kind in range(ranks.shape[3] - 2):
        blocks = ranks[..., kind]
        whole = np.minimum(blocks.sum(axis=2), left)
        left = left - whole
        before = np.cumsum(blocks, axis=2) - blocks
        covered[..., kind] = np.minimum(np.maximum(whole[..., None] - before, 0.0), blocks)
    return covered.reshape(content.shape)
