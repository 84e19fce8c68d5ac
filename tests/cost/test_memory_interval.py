"""P10, P90 and verdict of memory: the spread of the software, shared by all layouts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.estimate import VERDICTS, Estimate, memory_verdict
from simulator.cost.step import evaluate
from simulator.files import Figure
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

WORKLOAD = Workload(
    architecture=presets.load("llama-3.1-8b"),
    recipe=Recipe(sequence_length=8192, global_batch=64),
)
TABLE = Layouts.of(
    tp=[1, 2, 1, 1],
    pp=[1, 1, 2, 1],
    cp=[1, 1, 1, 2],
    dp=[8, 4, 4, 4],
    global_batch=64,
    sharding="zero1",
)


def estimate(software: str = "megatron-core", **allocator: Any) -> Estimate:
    loaded = load_software(software)
    given = replace(loaded, allocator=replace(loaded.allocator, **allocator))
    return evaluate(TABLE, WORKLOAD, load_cluster("dgx-h100", 8), given)


def test_p90_is_1_2816_standard_deviations_above_the_p50() -> None:
    """With a spread of 0.1: exp(0.12816) = 1.13674 above, 1 / 1.13674 = 0.87971 below."""
    found = estimate(reserved_spread=Figure(0.1))
    assert found.memory_p90_bytes == pytest.approx(1.136735 * found.memory_total_bytes, rel=1e-6)
    assert found.memory_p10_bytes == pytest.approx(0.879713 * found.memory_total_bytes, rel=1e-6)


def test_no_spread_no_interval_and_the_p50_decides() -> None:
    found = estimate(reserved_spread=None)
    assert np.isnan(found.memory_p10_bytes).all() and np.isnan(found.memory_p90_bytes).all()
    assert (found.verdict == np.where(found.fits, 0, 2)).all()


def test_split_layouts_have_a_spread_of_their_own_where_the_software_says_so() -> None:
    both = estimate(reserved_spread=Figure(0.02), split_reserved_spread=Figure(0.2))
    assert both.memory_spread.tolist() == [0.02, 0.2, 0.2, 0.02]
    assert estimate(reserved_spread=Figure(0.02)).memory_spread.tolist() == [0.02] * 4
    assert estimate("torchtitan").memory_spread.tolist() == [0.0068, 0.067, 0.067, 0.0068]


def test_the_verdict_is_by_p90_then_p50() -> None:
    """exp(0.12816) = 1.13674: 87.9 comes to 99.92 and 88.0 to 100.03."""
    p50 = np.array([87.9, 88.0, 100.0, 100.0, 100.1])
    spread = np.array([0.1, 0.1, 0.1, 0.0, 0.0])
    words = [VERDICTS[code] for code in memory_verdict(p50, spread, 100.0)]
    assert words == ["FITS", "TIGHT", "TIGHT", "FITS", "OOM"]


def test_rows_taken_keep_their_spread() -> None:
    found = estimate("torchtitan")
    assert found.take([1, 0]).memory_spread.tolist() == [0.067, 0.0068]


@pytest.mark.parametrize(
    "name",
    [
        "llm-foundry-2023",
        "plain-ddp",
        "torchtune-2024",
        "megatron-deepspeed-2022",
        "internevo-2023",
    ],
)
def test_frameworks_that_nobody_read_have_the_spread_between_frameworks(name: str) -> None:
    spread = load_software(name).allocator.reserved_spread
    assert spread is not None and spread == 0.067
    assert spread.grade == "assumed" and "nobody read" in spread.source
