"""Products of parallel degrees, and divisors."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.layout.layouts import Layouts, accelerators, data_parallel_degree, divisors


def test_a_layout_takes_one_accelerator_per_rank_of_its_grid() -> None:
    # Llama 3.1 405B on 16,384 GPUs: tp 8, cp 1, pp 16, dp 128 (Llama Team 2024, table 4)
    assert accelerators(tp=8, pp=16, cp=1, dp=128) == 16_384
    assert accelerators(tp=8, pp=16, cp=1) == 128
    assert data_parallel_degree(16_384, tp=8, pp=16, cp=1) == 128
    assert Layouts.of(tp=8, pp=16, dp=128).world[0] == 16_384


def test_fewer_accelerators_than_one_replica_hold_none() -> None:
    degree = data_parallel_degree(8, tp=np.array([4, 8, 16]), pp=2, cp=1)
    assert degree.tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("number", "expected"),
    [(1, [1]), (7, [1, 7]), (16, [1, 2, 4, 8, 16]), (36, [1, 2, 3, 4, 6, 9, 12, 18, 36])],
)
def test_divisors(number: int, expected: list[int]) -> None:
    assert divisors(number) == expected


def test_divisors_of_every_small_number() -> None:
    for number in range(1, 500):
        assert divisors(number) == [d for d in range(1, number + 1) if number % d == 0]
