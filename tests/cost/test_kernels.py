"""Kernel times: hand-worked waves, laws that hold on any device, and measured bands."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator import catalogue
from simulator.files import read_profile
from simulator.hardware.accelerator import Accelerator
from tests.flat_kernels import gemm_s

PLAIN: dict[str, Any] = {
    "operand_bytes": 2.0,
    "result_bytes": 2.0,
    "peak_flop_per_s": 100e12,
    "bandwidth_bytes_per_s": 1e15,
    "l2_bytes": 40e6,
    "compute_units": 100,
    "launch_s": 0.0,
    "peak_fraction": 1.0,
    "sustained_fraction": 1.0,
    "memory_fraction": 1.0,
    "prologue_k": 0.0,
    "wave_quantisation": 1.0,
    "small_tile_penalty": 0.0,
    "split_k_s": 50e-6,
    "l2_refetch": 0.0,
}
"""100 units of 1 TFLOP/s each, no overheads, memory that never limits, no split-K."""

SIDES = st.integers(min_value=1, max_value=20_000)


def device(name: str, dtype: str = "bf16") -> dict[str, Any]:
    part = read_profile(Accelerator, catalogue.find("accelerators", name))
    kernel = part.gemm["cublas"][dtype]
    own = {field.name: float(getattr(kernel, field.name)) for field in dataclasses.fields(kernel)}
    return own | {
        "operand_bytes": 1.0 if dtype == "fp8" else 2.0,
        "result_bytes": 2.0,
        "peak_flop_per_s": float(part.matrix_flop_per_s[dtype]),
        "bandwidth_bytes_per_s": float(part.memory.bandwidth_bytes_per_s),
        "l2_bytes": float(part.memory.l2_bytes),
        "compute_units": part.compute_units,
    }


def test_one_full_wave_by_hand() -> None:
    # 1280 x 1280 in 128 x 128 tiles: 100 tiles on 100 units, each 2 128^2 1024 FLOP at 1 TFLOP/s
    seconds = gemm_s(m=1280, n=1280, k=1024, **PLAIN)
    assert seconds == pytest.approx(2 * 128**2 * 1024 / 1e12, rel=1e-9)


def test_one_tile_more_costs_the_cheapest_next_wave() -> None:
    # 1281 rows: 110 tiles of 128 x 128 are two waves (2 x 16384 outputs a unit); 128 x 256 or
    # 256 x 128 tiles are 55 or 60, one wave of 32768; 64 x 64 tiles are 420, five waves of 4096.
    seconds = gemm_s(m=1281, n=1280, k=1024, **PLAIN)
    assert seconds == pytest.approx(5 * 2 * 64 * 64 * 1024 / 1e12, rel=1e-9)


def test_without_quantisation_a_partial_wave_costs_its_share() -> None:
    seconds = gemm_s(m=1280, n=1920, k=1024, **PLAIN | {"wave_quantisation": 0.0})
    assert seconds == pytest.approx(1.5 * 2 * 128**2 * 1024 / 1e12, rel=1e-9)


def test_prologue_adds_reduction_length_and_k_rounds_to_64() -> None:
    seconds = gemm_s(m=1280, n=1280, k=1000, **PLAIN | {"prologue_k": 256.0})
    assert seconds == pytest.approx(2 * 128**2 * (1024 + 256) / 1e12, rel=1e-9)


def test_split_k_fills_the_device_when_there_are_few_tiles() -> None:
    # one 128 x 128 output, k = 16384: with 16 parts each takes k = 1024 and the sum costs 1 us
    split = gemm_s(m=128, n=128, k=16384, **PLAIN | {"split_k_s": 1e-6})
    # 64 x 64 tiles: four at a time on their own units, a quarter of the work each
    assert split == pytest.approx(2 * 64**2 * 1024 / 1e12 + 1e-6, rel=1e-3)
    assert gemm_s(m=128, n=128, k=16384, **PLAIN) == pytest.approx(2 * 64**2 * 16384 / 1e12)


def test_memory_bound_product_by_hand() -> None:
    # one row times a 8192 x 8192 matrix: 134 MB at 1 TB/s, half of it used
    slow = PLAIN | {"bandwidth_bytes_per_s": 1e12, "memory_fraction": 0.5, "peak_flop_per_s": 1e18}
    assert gemm_s(m=1, n=8192, k=8192, **slow) == pytest.approx(2 * 134.2e6 / 1e12, rel=1e-3)


def test_operands_that_fit_the_cache_move_faster() -> None:
    slow = PLAIN | {"bandwidth_bytes_per_s": 1e12, "peak_flop_per_s": 1e18, "l2_bytes": 1e12}
    plain, held = (gemm_s(m=1, n=8192, k=8192, **slow | {"l2_refetch": x}) for x in (0.0, 1.0))
    assert held == pytest.approx(plain / 2, rel=1e-3)
    tiny = slow | {"l2_bytes": 1.0}
    assert gemm_s(m=1, n=8192, k=8192, **tiny | {"l2_refetch": 1.0}) == pytest.approx(plain)


def test_cast_adds_its_traffic() -> None:
    cast = PLAIN | {"bandwidth_bytes_per_s": 1e12, "quantise_bytes_per_element": 8.0}
    added = gemm_s(m=4096, n=4096, k=4096, **cast) - gemm_s(
        m=4096, n=4096, k=4096, **cast | {"quantise_bytes_per_element": 0.0}
    )
    assert added == pytest.approx(8 * 4096**2 / 1e12)


def test_the_clock_falls_with_the_length_of_a_burst_and_under_load_at_once() -> None:
    hot = PLAIN | {"sustained_fraction": 0.8}
    cold_s = gemm_s(m=1280, n=1280, k=4096, **PLAIN)
    assert gemm_s(m=1280, n=1280, k=4096, **hot) == pytest.approx(cold_s / 0.8)
    assert cold_s < gemm_s(m=1280, n=1280, k=4096, **hot, sustained=False) < cold_s / 0.8
    long_s = gemm_s(m=128_000, n=128_000, k=65_536, **PLAIN)
    assert gemm_s(m=128_000, n=128_000, k=65_536, **hot, sustained=False) == pytest.approx(
        long_s / 0.8, rel=1e-3
    )


@given(m=st.integers(1, 40), n=SIDES, k=SIDES, name=st.sampled_from(["a100-sxm-80", "b200-sxm"]))
def test_more_rows_are_never_faster_in_steps_of_whole_tiles(
    m: int, n: int, k: int, name: str
) -> None:
    seconds = gemm_s(m=256.0 * np.array([m, m + 1, 2 * m + 1]), n=n, k=k, **device(name))
    assert (np.diff(seconds) >= -1e-12).all()


@given(m=SIDES, n=SIDES, k=SIDES, dtype=st.sampled_from(["bf16", "fp8"]))
@pytest.mark.parametrize(
    "field", ["peak_flop_per_s", "bandwidth_bytes_per_s", "peak_fraction", "memory_fraction"]
)
def test_a_better_device_is_never_slower(field: str, m: int, n: int, k: int, dtype: str) -> None:
    base = device("h100-sxm", dtype)
    assert gemm_s(m=m, n=n, k=k, **base | {field: 1.3 * base[field]}) <= gemm_s(
        m=m, n=n, k=k, **base
    )


@given(m=SIDES, n=SIDES, k=SIDES)
def test_no_product_beats_the_peak(m: int, n: int, k: int) -> None:
    h100 = device("h100-sxm")
    seconds = gemm_s(m=m, n=n, k=k, **h100, sustained=False)
    assert 2.0 * m * n * k / seconds < h100["peak_flop_per_s"]
    assert seconds <= gemm_s(m=m, n=n, k=k, **h100, sustained=True)


@given(st.lists(st.tuples(SIDES, SIDES, SIDES), min_size=2, max_size=8))
def test_a_table_gives_what_its_rows_give_alone(shapes: list[tuple[int, int, int]]) -> None:
    m, n, k = np.array(shapes, dtype=float).T
    b200 = device("b200-sxm")
    alone = [float(gemm_s(m=x, n=y, k=z, **b200)) for x, y, z in shapes]
    assert gemm_s(m=m, n=n, k=k, **b200).tolist() == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "dtype", "low", "high"),
    [
        ("a100-sxm-80", "bf16", 239, 287),
        ("h100-sxm", "bf16", 702, 838),
        ("h200-sxm", "bf16", 684, 814),
        ("b200-sxm", "bf16", 1338, 1657),
        ("gb200", "bf16", 1006, 1792),
        ("l40s", "bf16", 185, 264),
        ("h100-sxm", "fp8", 781, 1366),
        ("b200-sxm", "fp8", 1534, 2870),
    ],
)
@pytest.mark.parametrize("side", [4096, 8192])
def test_large_square_products_lie_in_the_measured_band(
    name: str, dtype: str, low: float, high: float, side: int
) -> None:
    """p10 to p90 of shapes with M, N, K >= 2048 in bursts (aiconfigurator, three libraries)."""
    seconds = gemm_s(m=side, n=side, k=side, **device(name, dtype), sustained=False)
    assert low <= 2e-12 * side**3 / seconds <= high
