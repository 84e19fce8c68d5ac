"""Layouts on servers of several kinds: stages by capability, or replicas with unlike shares.

Ranks fill the groups of a cluster in order. With pipeline ranks outermost, stages lie on one kind
of servers each, and layers are dealt to them by how fast each kind is and what it holds. With
replicas outermost, each replica lies on one kind, and takes as many micro-batches as it does in the
time in which the others do theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from simulator.arrays import Floats
from simulator.cost.pricing import price_keys
from simulator.cost.step import evaluate
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import Layouts
from simulator.layout.rules.feasibility import FEASIBLE, reasons
from simulator.records import dataclass
from simulator.scenario import Scenario
from simulator.search.allowed import with_allowed
from simulator.search.fastest import explore_scenario
from simulator.search.stage_splits import RankCosts, balance_layers

BY_STAGE, BY_REPLICA = "tp-cp-dp-pp", "tp-cp-pp-dp"
"""Orders of ranks in which stages, or replicas, lie together."""

_KEEP = 512
"""Fastest layouts of each kind, as if all servers were of it, from which those are taken that are
tried on all of them: the best of each tp, pp, cp, size of micro-batches and recomputation."""


_CLOSED = 8
"""Layouts with unlike shares whose closed form is worked out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """A layout whose replicas take unlike numbers of micro-batches."""

    layouts: Layouts
    """With the batch as if all replicas had the first kind's number."""
    micro_batches: tuple[int, ...]
    """Of a replica, by kind."""
    replicas: tuple[int, ...]
    step_s: float
    """Closed form: the slowest kind with its share, and the longest reduction."""


def kinds_of_blocks(cluster: Cluster, size: int) -> list[int] | None:
    """Kind of every block of `size` ranks, in order; None where one would lie on several."""
    of_blocks: list[int] = []
    for group in cluster.groups:
        if group.gpus % size:
            return None
        of_blocks += [group.kind] * (group.gpus // size)
    return of_blocks


def candidate_rows(scenario: Scenario, order: str) -> Layouts | None:
    """The best layouts of each kind, as if all servers were of it; None where there are none."""
    allowed = with_allowed(scenario)
    if allowed.get("rank_order", order) != order:
        return None
    pinned = {"stages": (), **allowed, "rank_order": order}
    tables = []
    for kind in scenario.cluster.kinds:
        table = explore_scenario(scenario, pinned, cluster=kind, keep=_KEEP).best.layouts
        tables += [table] if len(table) else []
    if not tables:
        return None
    table = Layouts.concatenate(tables)
    return table[np.array(first_of_each(table))]


def first_of_each(table: Layouts) -> list[int]:
    """The first row of each way to split the model: tables hold the fastest first."""
    seen: dict[tuple[int, ...], int] = {}
    columns = (table.tp, table.pp, table.cp, table.dp, table.micro_batch, table.recompute)
    for i, key in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        seen.setdefault(key, i)
    return list(seen.values())


def staged(scenario: Scenario, table: Layouts) -> Iterator[tuple[Layouts, float]]:
    """Layouts with a pipeline, layers dealt to stages by kind; with the sum that was made least.

    A layout whose software has no uneven stages stays as it is dealt, and so do pinned stages.
    """
    cluster, software = scenario.cluster, scenario.software
    able = np.flatnonzero((table.pp > 1) & (table.copies == 1))
    if not len(able):
        return
    table = table[able]
    free = software.supports.uneven_stages and "stages" not in scenario.pinned
    if free:
        table = table.replace(stages=[()] * len(able))
    costs = [_rank_costs(scenario, kind, table) for kind in cluster.kinds]
    for i in range(len(table)):
        row = table[i]
        on = kinds_of_blocks(cluster, int(row.tp[0] * row.cp[0] * row.dp[0]))
        if on is None or any(cost is None for cost in costs):
            continue
        ranks = [cost for kind in on if (cost := costs[kind]) is not None]
        split = _balanced(scenario, ranks, i) if free else ()
        if split is None:
            continue
        balanced = row.replace(stages=[split]) if split else row
        if _allowed(scenario, balanced):
            yield balanced, _pace(ranks, i, balanced)


def _balanced(scenario: Scenario, ranks: list[RankCosts], i: int) -> tuple[int, ...] | None:
    """Layers of every piece so that all kinds FIT, or so that they fit where none lets them."""
    surely = None if scenario.allow_tight else balance_layers(ranks, i, surely=True)
    return surely or balance_layers(ranks, i, surely=False)


def _pace(ranks: list[RankCosts], i: int, row: Layouts) -> float:
    """Roughly the step: micro-batches of the slowest rank; only to choose which are played."""
    layers = np.full(len(ranks), float(ranks[0].layer_kinds.size)) / len(ranks)
    stages = row.row()["stages"]
    if stages:
        chunks = len(stages) // len(ranks)
        layers = np.array(stages).reshape(chunks, len(ranks)).sum(axis=0).astype(float)
    mean = np.array([rank.block_s[i, rank.layer_kinds].mean() for rank in ranks])
    fixed = np.array([rank.fixed_s[i, s] for s, rank in enumerate(ranks)])
    times = layers * mean + fixed
    return float((int(row.micro_batches[0]) - 1) * times.max() + times.sum())


def _rank_costs(scenario: Scenario, kind: Cluster, table: Layouts) -> RankCosts | None:
    setting = scenario.workload, kind, scenario.software
    if not (reasons(table, *setting) == FEASIBLE).all():
        return None
    return RankCosts.of(table, price_keys(table, *setting))


def _allowed(scenario: Scenario, row: Layouts) -> bool:
    """Whether a layout can run on the servers of every kind."""
    kinds = scenario.cluster.kinds
    codes = (reasons(row, scenario.workload, kind, scenario.software)[0] for kind in kinds)
    return all(int(code) == FEASIBLE for code in codes)


def shares_of(scenario: Scenario, table: Layouts) -> Iterator[Shares]:
    """Layouts with replicas apart, each kind with the micro-batches that it does in time.

    A replica's step is linear in its micro-batches once its pipeline is full, so that two numbers
    of them tell how many each kind does in any time; the least time in which all are done is found
    by halving. Of the shortest few the closed form is worked out with those numbers.
    """
    cluster = scenario.cluster
    if "stages" not in scenario.pinned:
        table = table.replace(stages=[()] * len(table))
    places = [kinds_of_blocks(cluster, int(n)) for n in table.tp * table.cp * table.pp]
    able = np.array([on is not None for on in places], dtype=bool)
    for kind in cluster.kinds:
        able &= reasons(table, scenario.workload, kind, scenario.software) == FEASIBLE
    some = np.flatnonzero(able)
    if not len(some):
        return
    table = table[some]
    counts = [np.bincount(places[i] or [], minlength=len(cluster.kinds)) for i in some]
    splits = _split_batches(scenario, table, np.array(counts))
    for i in np.argsort([seconds for seconds, _ in splits])[:_CLOSED]:
        seconds, shares = splits[i]
        step_s = _shared_step(scenario, table[int(i)], shares) if np.isfinite(seconds) else None
        if step_s is not None:
            replicas = tuple(int(x) for x in counts[i])
            row = table[int(i)]
            yield Shares(layouts=row, micro_batches=shares, replicas=replicas, step_s=step_s)


def _split_batches(
    scenario: Scenario, table: Layouts, replicas: Floats
) -> list[tuple[float, tuple[int, ...]]]:
    """Seconds and micro-batches of a replica by kind, for every layout; inf where one is short."""
    even = table.micro_batches
    turns = np.where(table.vpp > 1, table.pp, 1)  # interleaved chunks take turns of pp
    far = 2 * even
    near_s, far_s, fits = [], [], []
    for kind in scenario.cluster.kinds:
        near = evaluate(table, scenario.workload, kind, scenario.software)
        batched = table.replace(global_batch=far * table.dp * table.micro_batch)
        more = evaluate(batched, scenario.workload, kind, scenario.software)
        near_s.append(near.step_time_s)
        far_s.append(more.step_time_s)
        fits.append(near.fits)
    micro_batch_s = (np.array(far_s) - np.array(near_s)) / (far - even)
    begin = np.array(near_s) - micro_batch_s * even
    total = even * table.dp
    low = np.zeros(len(table))
    high = begin.max(axis=0) + micro_batch_s.max(axis=0) * (total + turns)
    for _ in range(60):
        middle = 0.5 * (low + high)
        done = (_counts(middle, begin, micro_batch_s, turns) * replicas.T).sum(axis=0) >= total
        low, high = np.where(done, low, middle), np.where(done, middle, high)
    shares = np.maximum(_counts(high, begin, micro_batch_s, turns), turns).astype(int)
    high = np.where(np.all(fits, axis=0), high, np.inf)
    return [(float(high[i]), tuple(map(int, shares[:, i]))) for i in range(len(table))]


def _counts(seconds: Floats, begin: Floats, micro_batch_s: Floats, turns: Floats) -> Floats:
    """Micro-batches that are done in so many seconds, in whole turns."""
    count = np.floor((seconds - begin) / (micro_batch_s * turns) + 1e-9) * turns
    return np.asarray(np.maximum(count, 0.0))


def _batched(row: Layouts, micro_batches: int) -> Layouts:
    """The same layout with another number of micro-batches in every replica."""
    batch = micro_batches * int(row.dp[0]) * int(row.micro_batch[0])
    return Layouts.of(**{**row.row(), "global_batch": batch})


def _shared_step(scenario: Scenario, row: Layouts, shares: tuple[int, ...]) -> float | None:
    """Closed form: what each kind takes without its reduction, and the longest of those."""
    before, after = [], []
    for kind, count in zip(scenario.cluster.kinds, shares, strict=True):
        some = _batched(row, count)
        if int(reasons(some, scenario.workload, kind, scenario.software)[0]) != FEASIBLE:
            return None
        estimate = evaluate(some, scenario.workload, kind, scenario.software)
        if not estimate.fits[0]:
            return None
        tail = float(estimate.terms_s["dp"][0])
        before.append(float(estimate.step_time_s[0]) - tail)
        after.append(tail)
    return max(before) + max(after)


def servers_of_kind(cluster: Cluster, kind: int, gpus: int) -> Cluster:
    """The servers of one kind and no others."""
    servers = cluster.kinds[kind]
    return replace(servers, groups=(replace(servers.groups[0], gpus=gpus),))
