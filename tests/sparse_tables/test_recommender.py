"""Embedding tables: rows read, shards dealt, a step by hand, bad input."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.cost.collectives.calls import all_to_all_s
from simulator.errors import InfeasibleError, InputError
from simulator.files import Figure, with_figure
from simulator.layout.placement import Group
from simulator.questions.sparse.answer import Recommended, recommender
from simulator.scenario import Scenario, make_scenario
from simulator.sparse_tables.dense_model import (
    bottom_flop_fraction,
    dense_architecture,
    interacted,
    table_parameters,
)
from simulator.sparse_tables.sharding import deal, distinct_rows_read, hit_fraction
from simulator.sparse_tables.sparse_section import Sparse, read_sparse

TABLES = [{"rows": 1_000_000, "count": 4}, {"rows": 1000, "count": 12, "pooling": 3}]
SECTION: dict[str, Any] = {
    "width": 64, "dense_features": 16, "bottom": [64], "tasks": [{"top": [128, 1]}],
    "tables": TABLES,
}  # fmt: skip


def scenario(gpus: int = 8, batch: int = 8192, **sparse: Any) -> Scenario:
    return make_scenario({
        "sparse": {**SECTION, **sparse},
        "training": {"sequence_length": 1, "global_batch": batch, "precision": "fp16",
                     "optimizer": "sgd"},
        "cluster": {"name": "dgx-a100", "gpus": gpus, "software": "plain-ddp"},
        "layout": {"micro_batch": batch // gpus, "sharding": "ddp"},
    })  # fmt: skip


def answer(**given: Any) -> Recommended:
    return recommender(scenario(**given))


def section(**given: Any) -> Sparse:
    return read_sparse({**SECTION, **given}, where="scenario")


# --- which rows are read ------------------------------------------------------------------------


@pytest.mark.parametrize("skew", [0.0, 0.7, 1.2])
def test_distinct_rows_are_those_that_are_drawn(skew: float) -> None:
    draw, rows, reads = np.random.default_rng(1), 50_000, 30_000
    weight = np.arange(1.0, rows + 1) ** -skew
    drawn = [len(np.unique(draw.choice(rows, reads, p=weight / weight.sum()))) for _ in range(5)]
    assert distinct_rows_read(rows, reads, skew) == pytest.approx(np.mean(drawn), rel=0.01)


@pytest.mark.parametrize("skew", [0.5, 1.0, 1.5])
def test_a_cache_answers_the_share_of_its_rows(skew: float) -> None:
    weight = np.arange(1.0, 200_001) ** -skew
    exact = weight[:20_000].sum() / weight.sum()
    assert hit_fraction(200_000, 0.1, skew) == pytest.approx(exact, rel=0.005)


# --- the dense model and the shards -------------------------------------------------------------


def test_parameters_of_dlrm() -> None:
    """MLPerf's: 187,767,399 rows of 128 (HugeCTR's vocabulary_size), and the layers'.

    13 x 512 + 512 x 256 + 256 x 128 and 479 x 1024 + 1024 x 1024 + 1024 x 512 + 512 x 256 + 256,
    with biases 896 and 2,817.
    """
    found = read_sparse({"name": "dlrm-mlperf"}, where="scenario")
    bottom = 13 * 512 + 512 * 256 + 256 * 128 + 896
    top = 479 * 1024 + 1024 * 1024 + 1024 * 512 + 512 * 256 + 256 + 2817
    assert table_parameters(found) == 187_767_399 * 128
    assert dense_architecture(found).parameters == bottom + top


def test_tables_are_dealt_evenly() -> None:
    """Twelve tables of 3 x 64 reads and four of 64 on four ranks: three and one on each."""
    found = deal(section(), 4, 1e12)
    assert [sorted(s.table.pooling for s in own) for own in found.shards] == [[1, 3, 3, 3]] * 4
    assert found.widths.tolist() == [256.0] * 4
    assert found.kept_bytes.sum() == (4e6 + 12e3) * (64 * 4 + 4)


def test_what_does_not_fit_is_cut() -> None:
    """A table of 260 MB: into two parts with room for 150 MB, by rows with room for 10 MB."""
    by_column = deal(section(), 8, 150e6)
    assert sorted({s.width for own in by_column.shards for s in own}) == [32, 64]
    assert len(deal(section(), 8, 10e6).by_row) == 4
    assert len(deal(section(sharding="row"), 8, 1e12).by_row) == 16
    assert {s.width for own in deal(section(sharding="column"), 4, 1e12).shards for s in own} == {
        16
    }


@given(
    tables=st.lists(
        st.tuples(st.integers(1, 50), st.integers(1, 3), st.integers(1, 9)), min_size=1, max_size=6
    ),
    ranks=st.integers(1, 6),
    room=st.floats(0.05, 2.0),
    sharding=st.sampled_from(["auto", "table", "column", "row"]),
)
def test_shards_are_all_of_every_table_and_no_rank_reads_far_more_than_the_mean(
    tables: list[tuple[int, int, int]], ranks: int, room: float, sharding: str
) -> None:
    """Graham 1969: whoever deals to the least busy exceeds the mean by less than one shard."""
    given = [{"rows": 100 * r, "count": n, "pooling": p} for r, n, p in tables]
    sparse = section(tables=given, sharding=sharding)
    whole = sum(100 * r * n * (64 * 4 + 4) for r, n, _ in tables)
    room_bytes = 1e12 if room > 1.0 else room * whole / ranks
    found = deal(sparse, ranks, room_bytes)
    shards = [shard for own in found.shards for shard in own]
    cut = len(shards) + len(found.by_row) - sum(n for _, n, _ in tables)  # a state more for each
    assert sum(s.width for s in (*shards, *found.by_row)) == 64 * sum(n for _, n, _ in tables)
    states = sum(100 * r * 4 for r, _, _ in tables)
    kept = found.kept_bytes.sum()
    assert whole <= kept * (1 + 1e-12)
    assert kept <= (whole + cut * states) * (1 + 1e-12)
    widths = {s.width for s in shards}
    assert all(16 <= width <= 64 for width in widths)
    by_rank = [sum(s.width for s in own) for own in found.shards]
    assert found.widths.tolist() == by_rank
    assert found.row_width == sum(s.width for s in found.by_row)
    if sharding == "table":
        assert widths == {64} and not found.by_row
    if sharding == "row":
        assert not shards and np.ptp(found.kept_bytes) == 0.0
    if room > 1.0 and shards:  # room for all: no rank waits for memory
        reads = [sum(s.width * s.table.pooling for s in own) for own in found.shards]
        largest = max(s.width * s.table.pooling for s in shards)
        assert max(reads) <= sum(reads) / ranks + (1 - 1 / ranks) * largest + 1e-9


def test_a_table_goes_to_the_rank_with_room_else_to_the_emptiest() -> None:
    """Tables of 26, 13, 7.8 and 2.6 kB, read once, twice, three and nine times, on two ranks."""
    given = [
        {"rows": rows, "pooling": times} for rows, times in ((100, 1), (50, 2), (30, 3), (10, 9))
    ]

    def rows(room_bytes: float, **more: str) -> list[list[int]]:
        found = deal(section(tables=given, **more), 2, room_bytes)
        return [[s.table.rows for s in own] for own in found.shards]

    assert rows(1e9) == rows(46_800.0) == [[10], [30, 50, 100]]
    assert rows(46_799.0) == [[10, 100], [30, 50]]  # a byte is missing where fewest are read
    assert rows(28_000.0) == [[10, 100], [30, 50]]  # no room for it: to the emptiest
    assert rows(1.0, sharding="table") == [[10, 50], [30, 100]]  # none for any


def test_side_by_side_the_top_reads_what_there_is() -> None:
    """48 of the bottom, three rows of 8 and two of 20: 112; layers of 16 x 48, 112 x 32, 32 x 1."""
    tables = [{"rows": 1000, "count": 3, "width": 8}, {"rows": 70, "count": 2, "width": 20}]
    one = section(
        interaction="concat", bottom=[48], tasks=[{"top": [32, 1]}], tables=tables, width=64
    )
    assert interacted(one) == 48 + 3 * 8 + 2 * 20
    assert table_parameters(one) == 3 * 1000 * 8 + 2 * 70 * 20
    arch = dense_architecture(one)
    bottom, top = 17 * 48, 113 * 32 + 33
    assert arch.parameters == bottom + top
    share = 16 * 48 / (16 * 48 + 112 * 32 + 32)
    assert bottom_flop_fraction(arch) == pytest.approx(share)


def test_bytes_of_the_dense_layers_by_hand() -> None:
    """16 bit: rectifiers read and write their outputs, backward one time more; dot reads again."""
    parts = [block.traced for block in dense_architecture(section()).blocks]
    bottom, top = (part for part in parts if part is not None)
    assert bottom.streams[0].forward_bytes.per_sample == 2 * 2 * 64
    assert bottom.streams[0].backward_bytes.per_sample == 3 * 2 * 64
    assert bottom.saved_bytes.per_sample == 2 * (16 + 64) and bottom.input_bytes.per_sample == 32
    sums = 64 + 16 * 64  # of the bottom and of sixteen tables
    pairs = 64 + 17 * 16 // 2
    kernel, rectifiers = top.streams
    assert kernel.forward_bytes.per_sample == 2 * (sums + pairs)
    assert kernel.backward_bytes.per_sample == 2 * (sums + pairs) + 2 * sums
    assert rectifiers.forward_bytes.per_sample == 2 * 2 * (128 + 1)
    assert (kernel.calls, rectifiers.calls, bottom.streams[0].calls) == (1, 2, 1)
    assert top.saved_bytes.per_sample == 2 * sums + 2 * (pairs + 128 + 128 + 1)
    assert top.input_bytes.per_sample == 2 * sums
    assert top.transient_bytes.per_sample == 2 * 2 * sums  # wider than any layer after it
    assert bottom.transient_bytes.per_sample == 2 * 2 * 64


# --- a step -------------------------------------------------------------------------------------


def test_a_step_by_hand() -> None:
    """Eight ranks, two tables each: sums of 8,192 samples x 128 elements x 2 B leave each of them.

    With 1 or 3 rows of 256 B read of each table, the busiest rank has two tables of three rows.
    """
    found = answer()
    cluster = found.scenario.cluster
    assert found.deal.widths.max() == 128
    sent = np.array([8192 * 128 * 2.0])
    group = Group(size=np.array([8]), local=np.array([8]))
    whole = float(all_to_all_s(cluster, sent, group)[0])
    both = ("sums to their samples", "gradients of sums back")
    for name in both:
        assert found.terms_s[name] + found.hidden_s[name] == pytest.approx(whole)
    forward = 2 * 8192 * (3 * 256 + 64 * 2 + 3 * 8)
    rate = float(cluster.accelerator.memory.bandwidth_bytes_per_s)
    assert forward / rate < found.terms_s["lookups"] < 3 * forward / rate + 2e-5
    assert found.step_time_s == pytest.approx(sum(found.terms_s.values()))
    assert found.terms_s["dense model"] == pytest.approx(found.dense.step_time_s)


def test_asynchronous_updates_show_what_is_longer_than_the_dense_model() -> None:
    late, sync = answer(updates="asynchronous"), answer()
    rows = sum(s for n, s in sync.terms_s.items() if n != "dense model")
    rows += sum(sync.hidden_s.values())
    assert late.step_time_s == pytest.approx(max(late.dense.step_time_s, rows))
    assert late.step_time_s <= sync.step_time_s


def test_caches_cost_copies_and_save_memory() -> None:
    whole, tenth = answer(), answer(cache_fraction=0.1)
    assert tenth.kept_bytes == pytest.approx(0.1 * whole.kept_bytes)
    assert tenth.host_bytes == pytest.approx((4e6 + 12e3) * 260)
    assert tenth.terms_s["rows from and to the host"] > 0.0
    assert 0.1 < tenth.hit_fraction < 1.0
    assert answer(cache_fraction=0.5).step_time_s < tenth.step_time_s


def test_tasks_share_the_trunk_and_have_their_samples() -> None:
    task = {"top": [128, 1]}
    one, two = (
        dense_architecture(section(tasks=tasks))
        for tasks in ([task], [task, {**task, "batch_fraction": 0.25}])
    )
    top = (64 + 17 * 16 // 2 + 1) * 128 + 129
    assert two.parameters - one.parameters == top
    flop = [sum(b.traced.flop(1000) for b in arch.blocks if b.traced) for arch in (one, two)]
    assert flop[1] - flop[0] == pytest.approx(0.25 * 2000 * (top - 129))


# --- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"bottom": [32]}, "sparse.bottom: must end with sparse.width, 64"),
        ({"tables": [{"rows": 0}]}, "sparse.tables.0.rows: must be greater than 0, got 0"),
        ({"tables": [{"rows": 9, "width": 8}]}, "sparse.tables.0.width: must be sparse.width, 64"),
        ({"tables": []}, "sparse.tables: "),
        ({"name": "dlrn-mlperf"}, "(did you mean 'dlrm-mlperf'?)"),
        ({"cache_fraction": 0}, "sparse.cache_fraction: must be greater than 0"),
        ({"exchange": "rpc", "cache_fraction": 0.5}, "sparse.cache_fraction: must be 1"),
        ({"tasks": [{"top": [1], "batch_fraction": 1.5}]}, "sparse.tasks.0.batch_fraction"),
    ],
)
def test_wrong_fields(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        scenario(**given)
    assert sum(said in line for line in caught.value.problems) == 1


def test_a_table_larger_than_all_memory() -> None:
    """1e11 rows of 260 B are 23.6 TiB; eight A100 have 0.6 TiB."""
    with pytest.raises(InfeasibleError, match=r"sparse\.tables\.0\.rows: a table of 23\.6 TiB is"):
        answer(tables=[{"rows": 10**11}])
    with pytest.raises(InfeasibleError, match="are more than the accelerators' memory"):
        answer(tables=[{"rows": 10**9, "count": 5}])


def test_other_commands_leave_it_alone() -> None:
    from simulator.planner.plan import plan
    from simulator.planner.prediction import predict

    for command in (predict, plan):
        with pytest.raises(InputError, match="sparse: its tables are priced by"):
            command(scenario())
    with pytest.raises(InputError, match="model: must be left out with"):
        make_scenario({**scenario().document, "model": {"name": "gpt2-small"}})


def test_sums_of_hosts_pass_the_network_of_a_server() -> None:
    """16 tables of 64 numbers in 16 bit for 65,536 samples, an eighth of them by each server."""
    made = scenario(gpus=64, batch=65536, exchange="rpc")
    found, cluster = recommender(made), made.cluster
    rate = min(8 * float(cluster.network_bytes_per_s_per_gpu), float(cluster.node.host_bytes_per_s))
    there_s = 16 * 64 * 2 * 65536 / 8 / rate + float(cluster.library.all_to_all_peer_s["network"])
    for name in ("sums to their samples", "gradients of sums back"):
        assert found.terms_s[name] + found.hidden_s[name] == pytest.approx(there_s, rel=1e-9)
    assert found.kept_bytes == 0.0
    assert found.host_bytes == pytest.approx((4e6 + 12e3) * (64 * 4 + 4) / 8)


def test_rows_in_hosts_pass_at_the_rate_of_their_memory() -> None:
    """Twice as fast, rows are read and updated in half the time, and sums take as long."""
    made = scenario(gpus=64, batch=65536, exchange="rpc")
    (group,) = made.cluster.groups
    rate = 2.0 * float(group.node.host_adam_parameters_per_s)
    node = with_figure(group.node, "host_adam_parameters_per_s", Figure(rate))
    faster = replace(made, cluster=replace(made.cluster, groups=(replace(group, node=node),)))
    for name in ("lookups", "updates of rows", "sums to their samples"):
        slow, fast = (
            found.terms_s[name] + found.hidden_s[name] for found in map(recommender, (made, faster))
        )
        assert slow == pytest.approx((1.0 if name.startswith("sums") else 2.0) * fast)
        assert 0.0 < fast < 1.0
