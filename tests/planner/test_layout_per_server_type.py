"""A layout of its own for each kind of servers: the batch dealt, legs of gradients, totals."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import catalogue
from simulator.cost.collectives.calls import all_reduce_s
from simulator.cost.mixed_gradient_sum import mixed_gradient_sum
from simulator.cost.pricing import price_keys
from simulator.cost.step import evaluate
from simulator.events.simulated_step import simulate
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.layout.placement import Group
from simulator.planner.mixed_plan import (
    Pace,
    _paces,
    layouts_per_kind,
    plan_mixed,
    runs_by_kind,
    soonest,
    split_batch,
    with_batch,
)
from simulator.planner.mixed_prediction import mixed_outcome, outcome_of_kinds
from simulator.scenario import Scenario, make_scenario

H, A = "dgx-h100", "dgx-a100"


def made(*groups: tuple[str, int], batch: int = 32, **layout: Any) -> Scenario:
    return make_scenario(
        {
            "model": {"name": "llama-3.2-1b"},
            "training": {"sequence_length": 4096, "global_batch": batch, "tokens": 1e10},
            "cluster": {
                "groups": [{"name": name, "gpus": gpus} for name, gpus in groups],
                "software": "megatron-core",
            },
            "layout": {"recompute": "none", "sharding": "zero1", **layout},
        },
        where="run.toml",
    )


@pytest.fixture
def twin(tmp_path: Path) -> str:
    """The same servers under another name."""
    path = tmp_path / "twin.toml"
    path.write_text(catalogue.find("clusters", H).read_text())
    return str(path)


# --- the batch ------------------------------------------------------------------------------------

PACES = st.builds(
    Pace,
    begin_s=st.floats(0.0, 3.0),
    micro_batch_s=st.floats(0.1, 5.0),
    turn=st.integers(1, 3),
    unit=st.integers(1, 4),
)


@given(paces=st.lists(PACES, min_size=1, max_size=3), batch=st.integers(1, 24))
def test_the_batch_is_dealt_as_trying_all_deals_it(paces: list[Pace], batch: int) -> None:
    every = []
    for counts in product(range(1, batch + 1), repeat=len(paces)):
        whole = all(n % pace.turn == 0 for n, pace in zip(counts, paces, strict=True))
        if whole and sum(n * p.unit for n, p in zip(counts, paces, strict=True)) == batch:
            every.append(
                max(p.begin_s + p.micro_batch_s * n for n, p in zip(counts, paces, strict=True))
            )
    found = split_batch(paces, batch)
    if not every:
        assert found is None
        return
    assert found is not None
    seconds, counts = found
    assert seconds == min(every)
    assert sum(n * pace.unit for n, pace in zip(counts, paces, strict=True)) == batch
    assert seconds >= soonest([[pace] for pace in paces], batch) * (1.0 - 1e-9)


def test_a_pace_foretells_a_number_of_micro_batches_that_was_not_priced() -> None:
    """Two numbers of micro-batches tell a line; a third one lies on it."""
    scenario = made((H, 8), batch=8)
    table = Layouts.of(tp=[2, 1], dp=[4, 4], pp=[1, 2], micro_batch=1, global_batch=8)
    parts = (scenario.workload, scenario.cluster, scenario.software)
    for pace, row in zip(_paces(scenario, scenario.cluster, table), (0, 1), strict=True):
        many = table[row].replace(global_batch=4 * 12)
        step_s = float(evaluate(many, *parts).step_time_s[0])
        assert pace.begin_s + 12 * pace.micro_batch_s == pytest.approx(step_s, rel=1e-3)


@settings(max_examples=20)
@given(paces=st.lists(PACES, min_size=2, max_size=4), batch=st.integers(1, 24))
def test_more_layouts_to_choose_from_are_never_later(paces: list[Pace], batch: int) -> None:
    one, *more = paces
    assert soonest([[one], [one, *more]], batch) <= soonest([[one], [one]], batch) * (1.0 + 1e-9)


@pytest.mark.parametrize("seconds", [1e-4, 0.7, 5_000.0])
def test_the_soonest_of_two_kinds_by_hand(seconds: float) -> None:
    """In T one kind does T / a - 3 micro-batches of two, the other T / a / 3 of one, a = T / 30."""
    one = Pace(begin_s=seconds / 10.0, micro_batch_s=seconds / 30.0, turn=1, unit=2)
    other = Pace(begin_s=0.0, micro_batch_s=seconds / 10.0, turn=1, unit=1)
    assert soonest([[one], [other]], 2 * 27 + 10) == pytest.approx(seconds)


# --- the legs -------------------------------------------------------------------------------------


def on_one_kind(name: str, gpus: int, **layout: Any) -> tuple[Layouts, Any]:
    """A layout on some servers, and its scenario."""
    whole = {"recompute": "none", "sharding": "zero1", "global_batch": 32, **layout}
    made_of = make_scenario(
        {
            "model": {"name": "llama-3.2-1b"},
            "training": {"sequence_length": 4096, "global_batch": 32},
            "cluster": {"name": name, "gpus": gpus, "software": "megatron-core"},
        }
    )
    return Layouts.of(**whole), made_of


def test_three_legs_of_equal_kinds_are_hybrid_sharding_on_all_of_them() -> None:
    """Scatter within each half, then sum over the two: what `shard_group` of half the ranks does.

    Its sum is one call for every bucket, that of the kinds one in all.
    """
    row, half = on_one_kind(H, 8, tp=2, dp=4, shard_group=4, micro_batch=1)
    priced = price_keys(row, half.workload, half.cluster, half.software)
    legs = mixed_gradient_sum([priced, priced], [8, 8])
    both, whole = on_one_kind(H, 16, tp=2, dp=8, shard_group=4, micro_batch=1)
    hybrid = price_keys(both, whole.workload, whole.cluster, whole.software)
    reduce_s = float(hybrid.states.reduce_s[hybrid.state_key[0]].max())
    buckets = float(hybrid.states.reduce_buckets[hybrid.state_key[0]].max())
    pair = Group(size=np.array([2]), local=np.array([1]))
    of_bucket = all_reduce_s(hybrid.cluster, np.array([legs.piece_bytes[0] / buckets]), pair)
    in_all = reduce_s - buckets * float(of_bucket[0]) + legs.between_s
    assert legs.reduce_scatter_s[0] + legs.between_s == pytest.approx(in_all, rel=1e-9)
    assert 0.0 < reduce_s - in_all < 0.1 * reduce_s  # what the other calls' latencies take
    gather_s = float(hybrid.states.gather_s[hybrid.state_key[0]].max())
    assert legs.gather_s[0] == pytest.approx(gather_s, rel=1e-9)
    # the whole step: the played one hides a part of that sum behind its backward passes
    own = evaluate(row.replace(global_batch=np.array([16])), half.workload, half.cluster,
                   half.software)  # fmt: skip
    setting = whole.workload, whole.cluster, whole.software
    hybrid_step = evaluate(both, *setting)
    # twice the accelerators wait for a slower one, and its second sum is enqueued for every bucket
    more_s = sum(
        float(hybrid_step.terms_s[name][0] - own.terms_s[name][0])
        for name in ("stragglers", "launch")
    )
    step_s = float(own.step_time_s[0]) + legs.between_s + more_s
    for other_s in (
        float(hybrid_step.step_time_s[0]),
        simulate(both, *setting).step_time_s,
    ):
        assert 0.0 <= step_s - other_s <= legs.between_s + more_s


def test_the_exchange_by_hand() -> None:
    """H100 with tp 2 pp 1, A100 with tp 1 pp 2: every rank holds an eighth of 1.24 B gradients.

    In bf16 some 309 MB, each way through one adapter: 50 GB/s and 25 GB/s. The slower decides. The
    first stage holds the embedding (a fifth of the model), the last the tied head beside it.
    """
    fast, h = on_one_kind(H, 8, tp=2, dp=4, shard_group=4, micro_batch=1)
    slow, a = on_one_kind(A, 8, tp=1, pp=2, dp=4, shard_group=4, micro_batch=1)
    priced = [price_keys(row, one.workload, one.cluster, one.software) for row, one in
              ((fast, h), (slow, a))]  # fmt: skip
    legs = mixed_gradient_sum(priced, [8, 8])
    eighth = 2.0 * 1.2358e9 / 8
    assert legs.piece_bytes[0] == pytest.approx(eighth, rel=1e-3)
    assert eighth < legs.piece_bytes[1] < 1.25 * eighth
    for piece, seconds, rate in zip(legs.piece_bytes, legs.exchange_s, (50e9, 25e9), strict=True):
        assert piece / rate < seconds < 1.25 * piece / rate
    assert legs.between_s == legs.exchange_s[1]


def test_a_kind_with_few_ranks_holds_large_pieces_and_calls_more_often() -> None:
    few, a = on_one_kind(A, 8, dp=8, shard_group=8, micro_batch=1)
    many, h = on_one_kind(H, 32, dp=32, shard_group=32, micro_batch=1)
    priced = [price_keys(row, one.workload, one.cluster, one.software) for row, one in
              ((many, h), (few, a))]  # fmt: skip
    legs = mixed_gradient_sum(priced, [32, 8])
    assert legs.piece_bytes[1] == pytest.approx(4 * legs.piece_bytes[0], rel=1e-9)
    assert legs.exchange_s[1] > 7 * legs.exchange_s[0]  # four times the bytes at half the rate


# --- the plan -------------------------------------------------------------------------------------


def test_the_whole_batch_is_dealt_and_closed_form_and_played_step_agree() -> None:
    scenario = made((H, 16), (A, 8), cp=1, pp=1)
    found = layouts_per_kind(scenario)
    assert found
    for one in found:
        assert sum(int(row.global_batch[0]) for row in one.rows) == 32
        assert [int(row.world[0]) for row in one.rows] == [16, 8]
        for row, count in zip(one.rows, one.micro_batches, strict=True):
            assert int(row.micro_batches[0]) == count
    best = found[0]
    played = [
        simulate(row, own.workload, own.cluster, own.software).step_time_s
        for own, row in runs_by_kind(scenario, best)
    ]
    assert max(played) + best.legs.between_s == pytest.approx(best.step_s, rel=0.01)


def test_freedom_of_each_kind_is_never_slower_than_one_tensor_degree_for_both() -> None:
    free = layouts_per_kind(made((H, 16), (A, 8), cp=1, pp=1))[0]
    for tp in (1, 2, 4, 8):
        pinned = layouts_per_kind(made((H, 16), (A, 8), cp=1, pp=1, tp=tp))
        assert all(free.step_s <= one.step_s * (1.0 + 1e-9) for one in pinned)


def test_a_kind_too_small_for_the_layout_of_the_other_is_no_bar() -> None:
    """Three servers and one: no number of replicas of one layout on both divides the batch so."""
    scenario = made((H, 24), (A, 8), cp=1, pp=1, tp=1)
    (best, *_) = layouts_per_kind(scenario)
    assert [int(row.dp[0]) for row in best.rows] == [24, 8]
    assert sum(int(row.global_batch[0]) for row in best.rows) == 32


def test_totals_of_two_equal_kinds_are_those_of_both_together(twin: str) -> None:
    """Days, money, energy, MFU and tokens: each kind on its own servers, or all as of one kind."""
    scenario = made((H, 8), (twin, 8), cp=1, pp=1, tp=1, micro_batch=1)
    (one, *_) = layouts_per_kind(scenario)
    assert len({row.describe() for row in one.rows}) == 1
    own = outcome_of_kinds(scenario, runs_by_kind(scenario, one), one.step_s)
    row = Layouts.of(dp=16, sharding="zero1", global_batch=32, micro_batch=1)
    both = mixed_outcome(scenario, row, one.step_s)
    assert own.outcome.tokens_per_s == both.outcome.tokens_per_s
    assert own.outcome.mfu == pytest.approx(both.outcome.mfu, rel=1e-9)
    for name, rel in (("days", 0.01), ("goodput", 0.01), ("kwh", 0.03), ("usd", 0.03)):
        assert getattr(own.outcome, name) == pytest.approx(getattr(both.outcome, name), rel=rel), (
            name
        )


def test_a_share_of_the_batch_is_as_many_steps() -> None:
    whole = made((H, 8), (A, 8)).workload
    part = with_batch(whole, 12)
    assert part.recipe.steps == pytest.approx(whole.recipe.steps)
    assert part.recipe.tokens_per_step * 32 == whole.recipe.tokens_per_step * 12


@pytest.mark.evidence
def test_kinds_of_unlike_memory_and_speed_are_used_where_one_layout_fits_none() -> None:
    """Three H200 servers and eight of L40S for 8 B: nothing that both can do alike is worth it.

    L40S needs its states cut over more ranks than H200 has use for.
    """
    scenario = make_scenario(
        {
            "model": {"name": "llama-3.1-8b"},
            "training": {"sequence_length": 8192, "global_batch": 128},
            "cluster": {
                "groups": [{"name": "hgx-h200", "gpus": 24}, {"name": "l40s-pcie", "gpus": 64}],
                "software": "megatron-core",
            },
        }
    )
    found = plan_mixed(scenario)
    best = {way: min(o.step_s for o in found.options if o.way == way)
            for way in {o.way for o in found.options}}  # fmt: skip
    assert found.best.way == "own layouts" and found.left_out == ()
    assert best["own layouts"] < 0.8 * min(s for way, s in best.items() if way != "own layouts")
    # two kinds are no faster than their speeds added up
    alone = [best["hgx-h200 alone"], best["l40s-pcie alone"]]
    assert best["own layouts"] > 0.95 / sum(1.0 / s for s in alone)


def test_servers_of_a_loaded_profile_are_the_same_alone() -> None:
    """What a kind does by itself is what a scenario on its servers alone says."""
    scenario = made((H, 16), (A, 8), cp=1, pp=1)
    one = layouts_per_kind(scenario)[0]
    for (own, row), name, seconds in zip(
        runs_by_kind(scenario, one), (H, A), one.kind_s, strict=True
    ):
        cluster = load_cluster(name, int(row.world[0]), where="test")
        found = evaluate(row, own.workload, cluster, scenario.software)
        assert float(found.step_time_s[0]) == pytest.approx(seconds, rel=1e-12)
