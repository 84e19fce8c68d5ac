"""No layout that comes near to fitting is faster than its key is said to be at the least."""

from __future__ import annotations

import random

import numpy as np
import pytest

from simulator.cost.step import memory_needs
from simulator.layout.layouts import Layouts
from simulator.scenario import Scenario, make_scenario
from simulator.search.candidates import families
from simulator.search.explore import _at_their_largest, _may_grow
from simulator.search.key_bounds import Keys, bounded_keys
from simulator.search.memory_filter import (
    every_row,
    light_rows,
    near_among,
    open_space,
    smallest_row,
    with_bounds,
)

SAMPLE = {"sample": 15, "whole": 60}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("model", "cluster", "gpus", "software"),
    [
        ("llama-3.1-70b", "dgx-h100", 256, "megatron-core"),
        ("qwen3-30b-a3b", "dgx-a100", 64, "megatron-core"),
        ("llama-3.1-70b", "dgx-a100", 128, "torchtitan"),
        ("qwen3-30b-a3b", "dgx-h100", 64, "torchtitan"),
        ("llama-3.1-8b", "dgx-a100", 16, "deepspeed"),
        ("gemma-2-9b", "dgx-a100", 32, "nemo"),
    ],
)
def test_no_layout_is_faster_than_its_key(
    model: str, cluster: str, gpus: int, software: str, extent: str
) -> None:
    made = make_scenario(
        {
            "model": {"name": model},
            "cluster": {"name": cluster, "gpus": gpus, "software": software},
            "training": {"global_batch": 8 * gpus, "sequence_length": 4096, "tokens": 1e10},
        }
    )
    keys = bounded_keys((made.workload, made.cluster, made.software), {})
    assert np.isfinite(keys.least_s).any()
    count = min(SAMPLE[extent], len(keys.least_s))
    chosen = random.Random(1).sample(range(len(keys.least_s)), count)
    assert sum(_held_to(made, keys, key) for key in chosen)


def _held_to(made: Scenario, keys: Keys, key: int) -> int:
    """Hold the layouts of a key to its bounds; how many come near to fitting."""
    setting, near = (made.workload, made.cluster, made.software), 0
    for family in families(*setting, {}, pick=keys.rows_of(np.array([key]))):
        space, _ = open_space(family, setting, 0, {})
        if space is not None:
            rows = near_among(space, with_bounds(space, light_rows(space))).rows
            assert (rows.least_s >= keys.least_s[key]).all()
            near += len(rows)
    return near


@pytest.mark.parametrize("offload", ["none", "cpu"])
def test_the_smallest_row_is_the_smallest_of_all(offload: str) -> None:
    """With states on the device, and where they wait in host memory."""
    made = make_scenario(
        {
            "model": {"name": "llama-3.2-1b"},
            "training": {"sequence_length": 1024, "global_batch": 32},
            "cluster": {"name": "dgx-h100", "gpus": 16, "software": "megatron-core"},
            "layout": {"optimizer_offload": offload},
        }
    )
    setting, tried = (made.workload, made.cluster, made.software), 0
    for family in families(*setting, made.pinned):
        space, _ = open_space(family, setting, 0, made.pinned)
        if space is None:
            continue
        layouts, priced = space.mixed(every_row(space))
        needs = memory_needs(layouts, priced).memory_bytes
        found = smallest_row(space)
        below = smallest_row(space, 1.001 * needs.min())
        assert found is not None and below is not None
        assert found[1] == below[1] == needs.min()
        tried += len(needs)
    assert tried > 500


def test_keys_are_opened_in_turn_and_in_pieces_of_so_many_rows() -> None:
    """Keys of 3 and of 4 rows, 7 at a time: a piece ends where a multiple of 7 is reached."""
    many = [3, 4, 3, 3, 4, 4, 3]
    keys = Keys(
        least_s=np.array([7.0, 1.0, 2.0, 5.0, 3.0, 4.0, 6.0]),
        held_bytes=np.zeros(7),
        grid=np.array([n - 3 for n in many]),
        place=np.arange(7),
        largest=np.ones(7, dtype=bool),
        degrees=[],
        layouts=np.array([3, 4]),
        rows=sum(many),
    )
    pieces = [piece.tolist() for piece in keys.batches(keys.least_s, 7)]
    assert [key for piece in pieces for key in piece] == [1, 2, 4, 5, 3, 6, 0]
    # rows in that order: 4, 3, 4, 4, 3, 3, 3: sums 4, 7, 11, 15, 18, 21, 24
    assert pieces == [[1], [2, 4], [5, 3], [6, 0]]


def test_larger_micro_batches_are_tried_where_the_largest_comes_near_to_fitting() -> None:
    """Of tp 2 micro-batches of 1, 2 and 4, of tp 4 of 1 and 8; those of 2 and of 8 come near."""
    base = Layouts.of(
        tp=[2, 2, 2, 4, 4], dp=[4, 4, 4, 2, 2], micro_batch=[1, 2, 4, 1, 8], global_batch=64
    )
    near = np.array([1, 4])
    assert _at_their_largest(base, near) == {(4, 1, 1, 2)}
    assert _may_grow(base, near, np.array([0, 2, 3])).tolist() == [False, True, False]
    assert _may_grow(base, np.array([2]), np.array([0, 1, 4])).tolist() == [False, False, True]
