"""Scaling series: hand-made rows, so that every member and every rate is known."""

from __future__ import annotations

import pytest

from simulator.measured.rows import MeasuredRun
from simulator.scoring.scores import ScoredRow
from simulator.scoring.series import Series, _shard_groups, series

WORDS = {
    "source": "lab", "split": "test", "model": "tiny", "gpu": "H100", "software": "stack-1",
    "precision": "bf16", "optimizer": "adamw", "seq_len": "1000", "tp": "2", "pp": "1",
    "micro_batch": "1", "sharding": "zero1", "recompute": "none",
}  # fmt: skip
SIZES = (8, 16, 32, 64)


def row(gpus: int, batch: int, measured_s: float = 2.0, /, **fields: str) -> ScoredRow:
    """Make one run, predicted 10 % slower than it was, unless `fields` say otherwise."""
    named = {**WORDS, "num_gpus": str(gpus), "dp": str(gpus // 2), "global_batch": str(batch)}
    run = MeasuredRun(where="runs.csv: line 2", fields={**named, **fields})
    return ScoredRow(
        run=run, status="ok", predicted_step_s=1.1 * measured_s, measured_step_s=measured_s
    )


def only(rows: list[ScoredRow]) -> Series:
    (found,) = series(rows)
    return found


def test_weak_scaling_by_hand() -> None:
    rows = [row(gpus, 4 * gpus, 2.0 + gpus / 64) for gpus in (64, 8, 32, 16)]
    found = only(rows)
    assert (found.kind, found.sequences) == ("weak", 4.0)
    assert found.gpus.tolist() == [8, 16, 32, 64]
    assert found.rows == (rows[1], rows[3], rows[2], rows[0])
    assert found.measured_s.tolist() == [2.125, 2.25, 2.5, 3.0]
    assert found.predicted_s == pytest.approx([2.3375, 2.475, 2.75, 3.3])
    # 4 sequences of 1000 tokens per GPU and step
    measured = [4000 / 2.125, 4000 / 2.25, 1600.0, 4000 / 3.0]
    assert found.tokens_per_s_per_gpu == pytest.approx(measured)
    expected = [rate / 1.1 for rate in measured]
    assert found.predicted_tokens_per_s_per_gpu == pytest.approx(expected)


def test_strong_scaling_by_hand() -> None:
    found = only([row(gpus, 256, 64.0 / gpus) for gpus in SIZES])
    assert (found.kind, found.sequences) == ("strong", 256.0)
    assert found.measured_s.tolist() == [8.0, 4.0, 2.0, 1.0]
    # perfect: 256,000 tokens over 8 GPUs x 8 s, and so at every size
    assert found.tokens_per_s_per_gpu.tolist() == [4000.0] * 4


def test_four_sizes_are_needed_and_repeats_are_no_size() -> None:
    three = [row(gpus, 4 * gpus) for gpus in SIZES[:3]]
    again = row(32, 128, 2.1)
    assert series([*three, again]) == ()
    found = only([*three, again, row(64, 256)])
    assert found.gpus.tolist() == [8, 16, 32, 32, 64]
    assert found.measured_s.tolist() == [2.0, 2.0, 2.0, 2.1, 2.0]


@pytest.mark.parametrize(
    "field",
    ["source", "split", "model", "gpu", "software", "precision", "optimizer", "seq_len", "tp",
     "pp", "vpp", "cp", "ep", "etp", "micro_batch", "sharding", "sequence_parallel", "recompute",
     "recompute_layers", "flash_attention", "overlap_grad_reduce", "cuda_graphs"],
)  # fmt: skip
def test_one_row_of_another_kind_breaks_a_series(field: str) -> None:
    rows = [row(gpus, 4 * gpus) for gpus in SIZES]
    assert len(series(rows)) == 1
    assert series([*rows[:3], row(64, 256, **{field: "3"})]) == ()


def test_the_network_of_a_single_node_does_not_break_a_series() -> None:
    fabrics = ("single-node", "infiniband", "infiniband", "infiniband")
    rows = [row(n, n, fabric=fabric) for n, fabric in zip(SIZES, fabrics, strict=True)]
    assert len(series(rows)) == 1


def test_composed_rows_make_their_own_series() -> None:
    measured = [row(gpus, gpus) for gpus in SIZES]
    composed = [row(gpus, gpus, composed="true") for gpus in SIZES]
    assert [one.rows[0].composed for one in series(measured + composed)] == [False, True]
    assert series(measured[:2] + composed[2:]) == ()


def test_rows_without_a_time_or_a_prediction_are_left_out() -> None:
    rows = [row(gpus, gpus) for gpus in SIZES[:3]]
    skipped = ScoredRow(run=row(64, 64).run, status="skipped", measured_step_s=2.0)
    unmeasured = ScoredRow(run=row(64, 64).run, status="ok", predicted_step_s=2.0)
    assert series([*rows, skipped, unmeasured]) == ()


def test_sharding_over_all_ranks_and_over_groups_are_two_series() -> None:
    # 8 GPUs are 4 ranks of tp 2: a group of 4 is all of them, and stands in both series
    both = row(8, 8, shard_group="4")
    everywhere = [row(n, n, 3.0, shard_group=str(n // 2)) for n in SIZES[1:]]
    in_groups = [row(n, n, 2.0, shard_group="4") for n in SIZES[1:]]
    one, other = series([both, *everywhere, *in_groups])
    assert one.rows == (both, *everywhere)
    assert other.rows == (both, *in_groups)
    # blank stands for all ranks
    blank = [row(n, n) for n in SIZES[:2]]
    assert len(series([*blank, *everywhere[1:]])) == 1


@pytest.mark.parametrize(
    ("fields", "groups"),
    [
        ({"dp": "", "shard_group": "1"}, [None, 1]), ({"dp": "", "shard_group": "2"}, [2]),
        ({"dp": "", "cp": "2", "shard_group": "2"}, [None, 2]), ({"dp": "3"}, [None, 3]),
        ({"dp": "3", "cp": "2", "shard_group": "3"}, [3]),
        ({"dp": "3", "cp": "2", "shard_group": "6"}, [None, 6]),
    ],
)  # fmt: skip
def test_a_degree_that_is_not_said_is_one(fields: dict[str, str], groups: list[int | None]) -> None:
    assert list(_shard_groups(row(8, 8, **fields))) == groups
