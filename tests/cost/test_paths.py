"""The longest path of a pipeline: against every schedule played, and by hand."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.pipeline import longest
from simulator.cost.pricing import price
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.schedules.action_tables import actions
from simulator.schedules.dependencies import awaited
from simulator.schedules.registry import SCHEDULES
from simulator.schedules.schedule import KINDS
from simulator.schedules.waits import Waits, waits
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

VPP = {
    word: max(schedule.fewest_chunks, 3 * (word == "interleaved"))
    for word, schedule in SCHEDULES.items()
}


def paths_at(
    graphs: list[Waits], seconds: Any, hop_s: Any, timed: Sequence[tuple[int, Waits]] = ()
) -> longest.LongestPaths:
    """Longest paths at seconds of operations; an operation that is none takes none."""
    return longest.longest_paths(graphs, np.pad(seconds, ((0, 0), (0, 1), (0, 0))), hop_s, timed)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seed", [1, 2])
def test_what_lies_on_the_path_lasts_as_long_as_the_schedule_played(
    schedule: str, seed: int, play: Any
) -> None:
    """Stages of random length; three sets of costs at once."""
    p, m, v = 4, 12, VPP[schedule]
    rng = np.random.default_rng(seed)
    count = p * v
    costs = rng.uniform(0.2, 3.0, (3, 3, count))  # sets; forward, input, weight; pieces
    held = SCHEDULES[schedule].chunks(v)
    rank, chunk = (x.ravel() for x in np.indices((p, held)))
    at = SCHEDULES[schedule].piece(p, rank, chunk)
    forward, back, weight = costs[:, 0, at], costs[:, 1, at], costs[:, 2, at]
    kinds = np.stack([forward, back + weight, back, weight], axis=1)  # sets, kinds, places
    assert kinds.shape[1] == len(KINDS)
    seconds = np.concatenate([kinds, kinds], axis=1).reshape(3, -1).T
    counts, hops, span_s = paths_at(waits([(schedule, p, m, v)]), seconds[None], np.zeros((1, 3)))
    table = actions(schedule, p, m, v)
    for i in range(3):
        _, end = play(table, *(costs[i, k].tolist() for k in range(3)))
        assert counts[0, i] @ seconds[:, i] == pytest.approx(end.max(), rel=1e-12)
        assert span_s[0, i] == pytest.approx(end.max(), rel=1e-12)
    assert hops.shape == (1, 3)


def test_the_path_of_equal_stages_is_the_textbooks() -> None:
    """1F1B of 4 ranks and 8 micro-batches: 8 + 3 passes each way on it."""
    graphs = waits([("1f1b", 4, 8, 1)])
    seconds = np.repeat([1.0, 2.0, 1.0, 1.0] * 2, 4)[None, :, None]
    counts, hops, _ = paths_at(graphs, seconds, np.full((1, 1), 0.01))
    ways = counts[0, 0].reshape(2, len(KINDS), 4).sum(axis=(0, 2))
    assert ways.tolist() == [11, 11, 0, 0]
    # fill and drain cross three boundaries each; while ranks alternate, round trips show more
    assert hops[0, 0] >= 6


def test_chunks_that_are_slow_on_one_half_of_the_ranks_each_pace_in_turn() -> None:
    """Of 8 ranks the first half is slow in its first chunk, the others in their second.

    Every rank works 4 forward and 8 backward for a micro-batch, but while one half runs its slow
    chunk the other waits: a further round takes longer than any rank works.
    """
    p, spans = 8, []
    rank, chunk = (x.ravel() for x in np.indices((p, 2)))
    work = np.where((rank < p // 2) == (chunk == 0), 3.0, 1.0)
    seconds = np.concatenate([work, 2.0 * work, 2.0 * work, 0.0 * work] * 2)
    for m in (4 * p, 5 * p):
        graphs = waits([("interleaved", p, m, 2)])
        counts, _, _ = paths_at(graphs, seconds[None, :, None], np.zeros((1, 1)))
        spans.append(float(counts[0, 0] @ seconds))
    assert (spans[1] - spans[0]) / p > 1.05 * 12.0


def path_by_hand(
    plan: tuple[str, int, int, int], seconds: list[float], hop_s: float
) -> tuple[list[int], int, float]:
    """Counts, sends and length of the longest path, pass by pass.

    A pass is said to wait for the one before it on its rank where another ends no later.
    """
    schedule, p, _, v = plan
    table, held = actions(*plan), SCHEDULES[schedule].chunks(v)
    taken, rank = awaited(table, p * v).tolist(), table.rank.tolist()
    place = (table.rank * held + table.chunk + table.kind * p * held).tolist()
    before = [i - 1 if table.position[i] > 0 else -1 for i in range(len(rank))]
    end: dict[int, float] = {-1: -1.0}
    level = {-1: -1}
    while len(end) <= len(rank):
        for i in range(len(rank)):
            if i not in end and before[i] in end and (taken[i] < 0 or taken[i] in end):
                other = max(taken[i], -1)
                hop = hop_s * (other >= 0 and rank[other] != rank[i])
                end[i] = max(end[before[i]], end[other] + hop, 0.0) + seconds[place[i]]
                level[i] = 1 + max(level[before[i]], level[other])
    longest = max(end.values())
    at = min((level[i], rank[i], i) for i in level if i >= 0 and end[i] == longest)[2]
    counts, hops = [0] * len(seconds), 0
    while at >= 0:
        counts[place[at]] += 1
        other = max(taken[at], -1)
        far = int(other >= 0 and rank[other] != rank[at])
        waited = end[other] + far * hop_s > end[before[at]]
        hops += far * waited
        at = other if waited else before[at]
    return counts, hops, longest


@pytest.mark.sampled(2)
@pytest.mark.parametrize("played", ["compiled", "in arrays"])
@pytest.mark.parametrize("hop_s", [0.0, 0.5])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zb_h1", "zb_v"])
def test_of_equally_long_paths_the_one_that_stays_on_its_rank_is_taken(
    schedule: str, hop_s: float, played: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole costs, alike and 0, so that many paths tie; all schedules beside each other."""
    ways = {"compiled": longest._played.dispatcher, "in arrays": longest._in_arrays}
    monkeypatch.setattr(longest, "_played", ways[played])
    rng = np.random.default_rng(5)
    v = VPP[schedule]
    plans = [(schedule, 4, 8, v), (schedule, 3, 5 if v == 1 else 6, v), (schedule, 4, 4, v)]
    graphs, sets = waits(plans), 4
    seconds = np.zeros((2, max(graph.operations for graph in graphs), sets))
    for graph, costs in zip(graphs, seconds, strict=False):
        half = graph.operations // 2
        costs[:half, 1:] = rng.integers(0, 3, (half, sets - 1))
        costs[:half, 0] = 1.0
        costs[half : 2 * half] = costs[:half]
    counts, hops, span_s = paths_at(
        graphs[:2], seconds, np.full((2, sets), hop_s), [(0, graphs[2])]
    )
    for at, (plan, graph) in enumerate(zip(plans, graphs, strict=True)):
        half, costs = graph.operations // 2, seconds[at % 2]
        for i in range(sets):
            ways, sends, longest_s = path_by_hand(plan, costs[:half, i].tolist(), hop_s)
            assert span_s[at, i] == longest_s
            if at < 2:
                found = counts[at, i, : 2 * half].reshape(2, half).sum(axis=0)
                assert found.tolist() == ways
                assert hops[at, i] == sends


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_both_ways_of_playing_find_the_same_paths(
    schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Costs in single precision, rounded as those of layouts; sends that take time and none."""
    v = VPP[schedule]
    plans = [(schedule, 4, 12, v), (schedule, 6, 12, v), (schedule, 4, 8, v)]
    graphs, sets = waits(plans), 5
    rng = np.random.default_rng(3)
    operations = max(graph.operations for graph in graphs)
    seconds = (rng.integers(0, 96, (2, operations, sets)) / 32).astype(np.float32)
    found = []
    for way in (longest._played.dispatcher, longest._in_arrays):
        monkeypatch.setattr(longest, "_played", way)
        for hop_s in (0.0, 0.25):
            hops_s = np.full((2, sets), hop_s, dtype=np.float32)
            found.append(paths_at(graphs[:2], seconds, hops_s, [(0, graphs[2])]))
    for some, others in zip(found[:2], found[2:], strict=True):
        for one, other in zip(some, others, strict=True):
            assert np.array_equal(one, other)
    assert found[0][0].any()


def llama(layers: int, m: int) -> tuple[Workload, Any, Any]:
    arch = replace(presets.load("llama-3.1-8b"), layer_kinds=(0,) * layers)
    work = Workload(architecture=arch, recipe=Recipe(sequence_length=4096, global_batch=m))
    return work, load_cluster("dgx-h100", 8), load_software("megatron-core")


def test_paths_of_a_layout_do_not_depend_on_the_table_it_stands_in() -> None:
    m = 32
    setting = llama(30, m)
    table = Layouts.of(
        pp=8,
        vpp=[1, 2, 2, 3],
        schedule=["1f1b", "interleaved", "interleaved", "interleaved"],
        recompute=["none", "full", "selective", "none"],
        global_batch=m,
    )
    whole = price(table, *setting).paths
    for i in range(len(table)):
        alone = price(table[i], *setting).paths
        route = whole.route[i]
        assert alone.counts[0].tolist() == whole.counts[route].tolist()
        assert alone.pace[0] == whole.pace[route]


def test_every_micro_batch_passes_the_slowest_rank() -> None:
    """Counts hold at least the blocks of a rank for each micro-batch that is played."""
    m = 16
    paths = price(Layouts.of(pp=8, vpp=2, global_batch=m), *llama(32, m)).paths
    assert paths.played.tolist() == [16]
    assert paths.counts[0, 0] >= 16 * 32 / 8
    assert paths.pace[0] >= 1
