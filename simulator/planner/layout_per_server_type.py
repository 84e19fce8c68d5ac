"""Replicas of several kinds of servers, each kind with a layout of its own.

Every kind has its own degrees, stages, micro-batch and number of replicas, and a share of the batch
that it does while the others do theirs. All kinds meet once a step, where their gradients are
summed (``cost/mixed_gradient_sum.py``); from one meeting to the next each does its optimizer
step, its gather, its passes and its reduction by itself. So a step is that of the slowest kind on
its own servers, with its share, and the exchange.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.cost.mixed_gradient_sum import GradientSumPhases, mixed_gradient_sum
from simulator.cost.pricing import price_keys
from simulator.cost.step import evaluate
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import SHARDINGS, Layouts
from simulator.layout.rules.feasibility import FEASIBLE, reasons
from simulator.planner.mixed_outcome import gpus_by_kind
from simulator.planner.mixed_placement import first_of_each, servers_of_kind
from simulator.records import dataclass
from simulator.scenario import Scenario
from simulator.search.allowed import with_allowed
from simulator.search.fastest import explore_scenario
from simulator.workload.recipe import Workload

_KEEP = 256
"""Fastest layouts of each kind from which the best of each split of the model are taken."""

_PER_KIND, _ALIKE = 8, 2
"""Layouts of each kind that are tried with those of the others, and how many of these split batches
into the same pieces."""

_CLOSED = 8
"""Combinations whose closed form is worked out."""

_SCATTERS = [SHARDINGS.index(name) for name in ("zero1", "zero2")]
"""Shardings that leave every rank one piece of the gradients, after the last micro-batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutPerKind:
    """One layout of each kind, with the share of the batch that each does."""

    clusters: tuple[Cluster, ...]
    """The servers of each kind and no others."""
    rows: tuple[Layouts, ...]
    """One row each, whose batch is the kind's share."""
    micro_batches: tuple[int, ...]
    """Of a replica, by kind."""
    kind_s: tuple[float, ...]
    """Closed form of each kind's step by itself."""
    legs: GradientSumPhases

    @property
    def step_s(self) -> float:
        """Closed form: the slowest kind, and the exchange."""
        return max(self.kind_s) + self.legs.between_s


def with_batch(workload: Workload, batch: int) -> Workload:
    """Return the workload of servers that do `batch` sequences of every step: as many steps."""
    recipe = workload.recipe
    share = batch / recipe.global_batch
    tokens = None if recipe.tokens is None else share * recipe.tokens
    critical = None if recipe.critical_batch is None else share * recipe.critical_batch
    made = replace(recipe, global_batch=batch, tokens=tokens, critical_batch=critical)
    return replace(workload, recipe=made)


def layouts_per_kind(scenario: Scenario) -> list[LayoutPerKind]:
    """Find layouts for each kind, the fastest combinations by their closed form first."""
    if with_allowed(scenario).get("rank_order") == "tp-cp-dp-pp":
        return []
    cluster = scenario.cluster
    clusters = [servers_of_kind(cluster, i, n) for i, n in enumerate(gpus_by_kind(cluster))]
    tables = [_table(scenario, cluster) for cluster in clusters]
    if any(table is None for table in tables):
        return []
    rows = [table for table in tables if table is not None]
    settings = zip(clusters, rows, strict=True)
    paces = [_paces(scenario, cluster, table) for cluster, table in settings]
    combinations = []
    for counts, at in _splits(paces, scenario.workload.recipe.global_batch)[:_CLOSED]:
        row = [table[i] for table, i in zip(rows, at, strict=True)]
        layouts = _closed(scenario, clusters, row, counts)
        combinations += [] if layouts is None else [layouts]
    return _unlike(sorted(combinations, key=lambda layouts: layouts.step_s))


def _unlike(combinations: Sequence[LayoutPerKind]) -> list[LayoutPerKind]:
    """The first of all that split the model alike on every kind."""
    first: dict[tuple[int, ...], LayoutPerKind] = {}
    for layouts in combinations:
        rows = Layouts.concatenate(list(layouts.rows))
        split = (rows.tp, rows.pp, rows.cp, rows.dp, rows.micro_batch)
        first.setdefault(tuple(np.concatenate(split).tolist()), layouts)
    return list(first.values())


def _table(scenario: Scenario, cluster: Cluster) -> Layouts | None:
    """The best layout of each way to split the model, on one kind with about its share."""
    fixed = ("dp", "shard_group", "stages")
    free = {name: x for name, x in with_allowed(scenario).items() if name not in fixed}
    batch = _about(scenario.workload.recipe.global_batch, cluster.gpus, scenario.cluster.gpus)
    smaller = replace(scenario, workload=with_batch(scenario.workload, batch))
    best = explore_scenario(smaller, free, cluster=cluster, keep=_KEEP, counts=False).best
    table = best.layouts
    table = table[np.flatnonzero(_one_piece_a_rank(table))]
    return table[np.array(first_of_each(table))] if len(table) else None


def _about(batch: int, gpus: int, all_gpus: int) -> int:
    """A share of a batch that replicas on `gpus` of `all_gpus` accelerators divide.

    Examples
    --------
    >>> _about(128, 32, 64), _about(128, 24, 32), _about(4, 8, 64)
    (64, 96, 1)
    """
    odd = gpus // (gpus & -gpus)
    share = max(batch * gpus // all_gpus // odd, 1)
    return odd * (1 << (share.bit_length() - 1))


def _one_piece_a_rank(table: Layouts) -> NDArray[np.bool_]:
    """Whether each rank keeps gradients that no other rank has: all replicas share them."""
    both = table.dp * table.cp
    whole = np.isin(table.sharding, _SCATTERS) & (table.shard_group == both)
    return np.asarray((whole | (both == 1)) & (table.copies == 1))


def _paces(scenario: Scenario, cluster: Cluster, table: Layouts) -> list[Pace]:
    """Read off how long layouts take for any number of micro-batches: two numbers of them tell."""
    turns = np.where(table.vpp > 1, table.pp, 1)
    unit = table.dp * table.micro_batch
    few = np.maximum(table.micro_batches, table.pp)
    near, far = few * 1, few * 2
    step_s = []
    for count in (near, far):
        some = table.replace(global_batch=count * unit)
        step_s.append(evaluate(some, scenario.workload, cluster, scenario.software).step_time_s)
    micro_batch_s = (step_s[1] - step_s[0]) / (far - near)
    begin = step_s[0] - micro_batch_s * near
    columns = (begin, micro_batch_s, turns, unit)
    return [
        Pace(begin_s=b, micro_batch_s=m, turn=int(t), unit=int(u))
        for b, m, t, u in zip(*(column.tolist() for column in columns), strict=True)
    ]


def _splits(
    kinds: Sequence[Sequence[Pace]], batch: int
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Micro-batches and layouts of each kind, the soonest first."""
    seconds = soonest(kinds, batch)
    best = [_fastest(paces, seconds) for paces in kinds]
    splits = []
    for at in product(*best):
        split = split_batch([paces[i] for paces, i in zip(kinds, at, strict=True)], batch)
        if split is not None:
            splits.append((*split, at))
    return [(counts, at) for _, counts, at in sorted(splits)]


def _fastest(paces: Sequence[Pace], seconds: float) -> list[int]:
    """Layouts that do most in so many seconds, a few of every size of pieces."""
    order = np.argsort([-sequences_in(pace, seconds) for pace in paces], kind="stable")
    taken, alike = [], Counter[tuple[int, int]]()
    for i in order.tolist():
        piece = paces[i].unit, paces[i].turn
        alike[piece] += 1
        if alike[piece] <= _ALIKE:
            taken.append(i)
    return taken[:_PER_KIND]


def _closed(
    scenario: Scenario, clusters: Sequence[Cluster], table: Sequence[Layouts], counts: Sequence[int]
) -> LayoutPerKind | None:
    """Closed form of a combination; None where one of its layouts cannot run with its share."""
    rows, kind_s, priced = [], [], []
    for cluster, row, count in zip(clusters, table, counts, strict=True):
        batch = count * int(row.dp[0]) * int(row.micro_batch[0])
        array = row.replace(global_batch=np.array([batch]))
        setting = with_batch(scenario.workload, batch), cluster, scenario.software
        if int(reasons(array, *setting)[0]) != FEASIBLE:
            return None
        estimate = evaluate(array, *setting)
        if not estimate.fits[0]:
            return None
        rows.append(array)
        kind_s.append(float(estimate.step_time_s[0]))
        priced.append(price_keys(array, *setting))
    if any(keys.states.by_block[keys.state_key[0]] for keys in priced):
        return None  # reduced part by part, while passes run
    return LayoutPerKind(
        clusters=tuple(clusters),
        rows=tuple(rows),
        micro_batches=tuple(counts),
        kind_s=tuple(kind_s),
        legs=mixed_gradient_sum(priced, [cluster.gpus for cluster in clusters]),
    )


def runs_by_kind(scenario: Scenario, layouts: LayoutPerKind) -> Iterator[tuple[Scenario, Layouts]]:
    """What each kind trains on its own servers: its share of every step."""
    for cluster, row in zip(layouts.clusters, layouts.rows, strict=True):
        workload = with_batch(scenario.workload, int(row.global_batch[0]))
        yield replace(scenario, workload=workload, cluster=cluster), row


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """How long a kind of servers takes with one layout: linear in its micro-batches."""

    begin_s: float
    micro_batch_s: float
    """Of a micro-batch, of every replica."""
    turn: int
    """Micro-batches come in multiples of it: interleaved chunks take turns of all ranks."""
    unit: int
    """Sequences of a micro-batch of all replicas."""


def sequences_in(pace: Pace, seconds: float) -> float:
    """Sequences that are done in so many seconds, parts of a micro-batch counted."""
    return max((seconds - pace.begin_s) / pace.micro_batch_s, 0.0) * pace.unit


def soonest(kinds: Sequence[Sequence[Pace]], batch: int) -> float:
    """Seconds in which all kinds together do a batch, each with its fastest layout."""
    low, high = 0.0, 1e-3
    while _done(kinds, high) < batch:
        low, high = high, 2.0 * high
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if _done(kinds, middle) >= batch else (middle, high)
    return high


def _done(kinds: Sequence[Sequence[Pace]], seconds: float) -> float:
    return sum(max(sequences_in(pace, seconds) for pace in paces) for paces in kinds)


def split_batch(paces: Sequence[Pace], batch: int) -> tuple[float, tuple[int, ...]] | None:
    """Split exactly `batch` sequences, one layout per kind: dynamic programming over the kinds.

    Returns the seconds of the slowest kind and the micro-batches of a replica of each; None where
    no whole numbers of them add up to the batch.

    Examples
    --------
    >>> fast = Pace(begin_s=0.0, micro_batch_s=1.0, turn=1, unit=1)
    >>> slow = Pace(begin_s=0.0, micro_batch_s=3.0, turn=1, unit=1)
    >>> split_batch([fast, slow], 8)
    (6.0, (6, 2))
    """
    best: Floats = np.full(batch + 1, np.inf)
    best[0] = 0.0
    chosen = []
    for pace in paces:
        step = pace.unit * pace.turn
        after, count = np.full(batch + 1, np.inf), np.zeros(batch + 1, dtype=np.int64)
        for turns in range(1, batch // step + 1):
            share, micro_batches = turns * step, turns * pace.turn
            kind_s = pace.begin_s + pace.micro_batch_s * micro_batches
            seconds = np.maximum(best[: batch + 1 - share], kind_s)
            better = seconds < after[share:]
            after[share:][better] = seconds[better]
            count[share:][better] = micro_batches
        best = after
        chosen.append(count)
    if not np.isfinite(best[batch]):
        return None
    left, counts = batch, []
    for pace, count in zip(reversed(paces), reversed(chosen), strict=True):
        counts.append(int(count[left]))
        left -= counts[-1] * pace.unit
    return float(best[batch]), tuple(reversed(counts))
