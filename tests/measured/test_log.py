"""Warm-up, ranks and restarts, on columns worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.measured.log import LogReading, warm_up
from simulator.workload.recipe import Recipe

RECIPE = Recipe(sequence_length=128, global_batch=16)


@pytest.mark.parametrize(
    ("times_s", "dropped"),
    [
        ([1.0], 0),
        ([9.0, 1.0], 1),
        ([1.0, 1.0], 1),
        ([1.0] * 30, 3),
        ([9.0, 5.0, 1.6, 1.0, 1.0, 1.0], 3),  # each over 1.5 x the median of those after it
        ([9.0, 1.5, 1.0, 1.0, 1.0], 1),  # 1.5 is not over 1.5
        ([1.0, 1.0, 9.0, 1.0, 1.0], 1),  # a checkpoint later on is no warm-up
        ([9.0, 8.0], 1),
    ],
)
def test_warm_up(times_s: list[float], dropped: int) -> None:
    found, rule = warm_up(np.array(times_s), None, "train.log")
    assert found == dropped
    assert ("over 1.5 x" in rule) == (dropped > max(len(times_s) // 10, 1))


@pytest.mark.parametrize("wanted", [0, 2])
def test_warm_up_as_asked(wanted: int) -> None:
    assert warm_up(np.array([9.0, 5.0, 1.0]), wanted, "train.log") == (wanted, "as asked")


def test_warm_up_of_everything() -> None:
    with pytest.raises(InputError, match=r"^train.log: warm-up: must leave at least one of the 3"):
        warm_up(np.ones(3), 3, "train.log")


def reading(*lines: tuple[int, float, int | None]) -> LogReading:
    """Step lines as (step, seconds, rank)."""
    found = LogReading("megatron", "a Megatron-LM log", "train.log")
    for number, (step, seconds, rank) in enumerate(lines, 1):
        found.add(step, seconds, line=number, rank=rank)
    return found


def test_the_slowest_rank_makes_the_step() -> None:
    log = reading((1, 9.0, 0), (1, 8.0, 1), (2, 1.0, 1), (2, 3.0, 0), (3, 2.0, 0)).finish(
        RECIPE, 8, 0
    )
    assert list(log.steps) == [1, 2, 3]
    assert list(log.step_times_s) == [9.0, 3.0, 2.0]
    assert list(log.lines) == [1, 4, 5]
    assert log.ranks == (0, 1)


def test_after_a_restart_the_later_line_counts() -> None:
    log = reading((1, 9.0, None), (2, 1.0, None), (3, 1.1, None), (2, 1.2, None), (3, 1.3, None))
    found = log.finish(RECIPE, 8, 0)
    assert list(found.steps) == [1, 2, 3]
    assert list(found.step_times_s) == [9.0, 1.2, 1.3]
    assert found.ranks == ()


def test_a_pause_does_not_move_the_median() -> None:
    log = reading(*((step, 60.0 if step == 7 else 2.0, None) for step in range(1, 12)))
    found = log.finish(RECIPE, 8, None)
    assert (found.dropped, found.median_step_s) == (1, 2.0)
    # 128 x 16 tokens / 8 GPUs / 2 s
    assert found.tokens_per_s_per_gpu == 128.0


def test_percentiles_by_hand() -> None:
    log = reading(*((step, float(step), None) for step in range(1, 12))).finish(RECIPE, 8, 0)
    assert (log.median_step_s, log.spread_s) == (6.0, (2.0, 10.0))


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_time_is_counted(seconds: float) -> None:
    log = reading((1, 2.0, None), (2, seconds, None)).finish(RECIPE, 8, None)
    assert list(log.steps) == [1]
    assert log.notes == ("step lines that cannot be read: 1, the first is line 2",)


def test_memory_is_that_of_the_fullest_rank() -> None:
    found = reading((1, 2.0, None))
    for size in (5.0, 7.0, 6.0):
        found.peak("reserved", size)
    found.peak("allocated", 0.0)
    assert found.finish(RECIPE, 8, None).memory_bytes == {"reserved": 7.0}


def test_steps_of_the_last_batch_count_where_it_shrinks() -> None:
    found = LogReading("megatron", "a Megatron-LM log", "train.log")
    for number, (step, seconds, batch) in enumerate(
        [(1, 4.0, 64), (2, 4.0, 64), (3, 2.0, 32), (4, 2.2, 32)], 1
    ):
        found.add(step, seconds, line=number, batch=batch)
    log = found.finish(Recipe(sequence_length=128, global_batch=32), 8, 0)
    assert list(log.steps) == [3, 4] and list(log.step_times_s) == [2.0, 2.2]
    assert any("another global batch than 32" in note for note in log.notes)
