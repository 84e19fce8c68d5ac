"""The table of layouts: defaults, words, slices, and what it refuses."""

from typing import Any

import numpy as np
import pytest

from simulator.layout.layouts import RANK_ORDERS, RECOMPUTE, SHARDINGS, Layouts
from simulator.schedules.registry import WORDS


def test_defaults_are_one_accelerator_with_nothing_split() -> None:
    assert Layouts.of().row() == {
        "tp": 1,
        "pp": 1,
        "vpp": 1,
        "cp": 1,
        "cp_kind": "ring",
        "cp_a2a": 1,
        "dp": 1,
        "ep": 1,
        "etp": 1,
        "dispatcher": "alltoall",
        "micro_batch": 1,
        "global_batch": 1,
        "sharding": "ddp",
        "shard_group": 1,
        "reshard_after_forward": True,
        "sequence_parallel": False,
        "recompute": "none",
        "recompute_layers": 0,
        "recompute_modules": "",
        "offload_layers": 0,
        "optimizer_offload": "none",
        "parameter_offload": "none",
        "schedule": "1f1b",
        "rank_order": "tp-cp-dp-pp",
        "stages": [],
    }


def test_splits_of_layers_go_with_their_rows() -> None:
    one = Layouts.of(pp=[2, 2], stages=[[5, 3], []])
    other = Layouts.of(pp=2, stages=[3, 5])
    both = Layouts.concatenate([other, one, other])
    assert [both.row(i)["stages"] for i in range(4)] == [[3, 5], [5, 3], [], [3, 5]]
    assert both[np.array([1, 3])].row(1)["stages"] == [3, 5]
    assert both.replace(stages=[4, 4]).row(2)["stages"] == [4, 4]
    assert "stages:3+5" in both.describe(0) and "stages" not in both.describe(2)
    assert both.to_frame()["stages"].tolist() == ["3+5", "5+3", "", "3+5"]


def test_defaults_that_follow_from_other_fields() -> None:
    row = Layouts.of(tp=4, vpp=2, pp=2, dp=6, cp=2, micro_batch=3).row()
    assert row["global_batch"] == 6 * 3
    assert row["shard_group"] == 6 * 2
    assert row["sequence_parallel"] is True
    assert row["schedule"] == "interleaved"


@pytest.mark.parametrize(
    ("given", "sharding", "group"),
    [(True, "zero3", True), (False, "zero2", True), (1, "zero2", True), (8, "zero3", True),
     (4, "zero3", 4)],
)  # fmt: skip
def test_resharding_says_what_fsdp2_means_by_it(given: Any, sharding: str, group: Any) -> None:
    """Torch: a number of 1 is false, the size of the whole group is true."""
    row = Layouts.of(dp=8, sharding="zero3", reshard_after_forward=given).row()
    assert (row["sharding"], row["reshard_after_forward"]) == (sharding, group)
    assert Layouts.of(**row).row() == row


def test_numbers_broadcast_against_sequences() -> None:
    table = Layouts.of(tp=[1, 2, 4], dp=8, sharding=["ddp", "zero1", "zero3"])
    assert len(table) == 3
    assert table.dp.tolist() == [8, 8, 8]
    assert [SHARDINGS[code] for code in table.sharding] == ["ddp", "zero1", "zero3"]
    assert table.sequence_parallel.tolist() == [0, 1, 1]


def test_world_and_micro_batches_worked_by_hand() -> None:
    table = Layouts.of(
        tp=[8, 2], pp=[4, 3], cp=[1, 2], dp=[32, 5], micro_batch=[2, 1], global_batch=[2048, 60]
    )
    assert table.world.tolist() == [1024, 60]
    assert table.micro_batches.tolist() == [2048 // (32 * 2), 60 // 5]


@pytest.mark.parametrize("index", [0, 2, -1, -3])
def test_one_index_gives_a_table_of_one_row(index: int) -> None:
    table = Layouts.of(tp=[1, 2, 4], dp=[4, 2, 1])
    assert len(table[index]) == 1
    assert table[index].row() == table.row(index)


def test_slices_masks_and_index_arrays_pick_the_same_rows() -> None:
    table = Layouts.of(tp=[1, 2, 4, 8])
    for rows in (slice(1, 3), np.array([False, True, True, False]), np.array([1, 2])):
        assert table[rows].tp.tolist() == [2, 4]


def test_stacked_tables_are_the_rows_one_below_the_other() -> None:
    parts = [Layouts.of(tp=2, recompute="full"), Layouts.of(pp=[2, 4], micro_batch=2)]
    whole = Layouts.concatenate(parts)
    assert [whole.row(i) for i in range(3)] == [parts[0].row(), parts[1].row(0), parts[1].row(1)]


def test_replace_changes_the_named_columns_only() -> None:
    table = Layouts.of(tp=[1, 2], dp=4)
    other = table.replace(recompute="selective", dp=2)
    assert other.dp.tolist() == [2, 2]
    assert [other.row(i)["recompute"] for i in range(2)] == ["selective", "selective"]
    assert other.tp.tolist() == [1, 2]
    assert table.dp.tolist() == [4, 4]


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("sharding", SHARDINGS),
        ("recompute", RECOMPUTE),
        ("schedule", WORDS),
        ("rank_order", RANK_ORDERS),
    ],
)
def test_every_word_survives_the_round_trip(field: str, words: tuple[str, ...]) -> None:
    table = Layouts.of(**{field: list(words)})
    assert tuple(table.row(i)[field] for i in range(len(words))) == words


def test_there_is_a_rank_order_for_every_permutation() -> None:
    assert len(set(RANK_ORDERS)) == 24
    assert {frozenset(order.split("-")) for order in RANK_ORDERS} == {
        frozenset(("tp", "cp", "dp", "pp"))
    }


def test_a_wrong_word_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"sharding: must be one of ddp, zero1.*'zero4'"):
        Layouts.of(sharding="zero4")


def test_an_unknown_field_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="'tpp'"):
        Layouts.of(tpp=2)


def test_description_leaves_out_degrees_of_one() -> None:
    table = Layouts.of(
        tp=2,
        pp=4,
        vpp=3,
        dp=8,
        ep=4,
        micro_batch=2,
        sharding="zero1",
        recompute="full",
        recompute_layers=5,
        rank_order="tp-cp-pp-dp",
    )
    assert table.describe() == "tp2 pp4 vpp3 dp8 ep4 mb2 sp zero1 full:5 tp-cp-pp-dp"
    assert Layouts.of(dp=8).describe() == "dp8 mb1 ddp"


def test_columns_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Layouts.of().tp = np.array([2])  # type: ignore[misc]
