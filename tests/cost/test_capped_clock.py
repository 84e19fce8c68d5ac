"""A power cap on products: idle units leave power to the others, and the clock stays higher."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.cost.kernels.expert_layer import as_grouped, expert_layer_s
from simulator.cost.kernels.gemm import DeviceRates
from simulator.errors import InputError
from simulator.files import Figure, build
from simulator.hardware.accelerator import GemmKernel
from simulator.hardware.cluster import load_accelerator
from tests.flat_kernels import gemm_rates, gemm_s

SIDES = st.integers(min_value=1, max_value=20_000)
SHARES = st.floats(min_value=0.3, max_value=1.0)

UNITS: dict[str, Any] = {
    "operand_bytes": 2.0, "result_bytes": 2.0, "peak_flop_per_s": 100e12, "l2_bytes": 40e6,
    "bandwidth_bytes_per_s": 1e15, "compute_units": 100, "launch_s": 0.0, "peak_fraction": 1.0,
    "sustained_fraction": 0.8, "memory_fraction": 1.0, "prologue_k": 0.0, "wave_quantisation": 1.0,
    "small_tile_penalty": 10.0, "split_k_s": 50e-6, "l2_refetch": 0.0,
}  # fmt: skip
"""100 units of 1 TFLOP/s each that fall to 0.8 of the clock when all are busy; tiles of 128 x 256
alone."""

WAVE_S = 2 * 128 * 256 * 1024 / 1e12
FULL = {"m": 1280, "n": 2560, "k": 1024}
"""100 tiles: one full wave."""
HALF_EMPTY = {"m": 1280, "n": 3840, "k": 1024}
"""150 tiles: two waves, of which the second keeps half of the units busy; activity 3/4."""


def h100(**other: Any) -> dict[str, Any]:
    part = load_accelerator("h100-sxm")
    kernel = part.gemm["cublas"]["bf16"]
    own = {field.name: float(getattr(kernel, field.name)) for field in fields(kernel)}
    return own | gemm_rates(part, "bf16") | {"result_bytes": 2.0} | other


def test_a_half_empty_wave_pays_less_for_it_under_the_cap() -> None:
    """Power as the square of the clock: 3/4 of the units may run sqrt(4/3) faster than all."""
    square = UNITS | {"clock_exponent": 0.5}
    assert gemm_s(**FULL, **square) == pytest.approx(WAVE_S / 0.8)
    assert gemm_s(**HALF_EMPTY, **square) == pytest.approx(2 * WAVE_S / (0.8 * (4 / 3) ** 0.5))
    cold = UNITS | {"sustained_fraction": 1.0}
    lost = [gemm_s(**HALF_EMPTY, **x) / gemm_s(**FULL, **x) for x in (cold, square)]
    assert lost[0] == pytest.approx(2.0) and lost[1] == pytest.approx(2.0 * 0.75**0.5)


def test_power_in_step_with_the_clock_leaves_the_rate_to_the_cap() -> None:
    """Exponent 1: whatever idles, the cap allows 80 % of the FLOPs of all units, and 3/4 are
    fewer: the burst clock."""
    linear = UNITS | {"clock_exponent": 1.0}
    assert gemm_s(**HALF_EMPTY, **linear) == pytest.approx(2 * WAVE_S)
    low = linear | {"sustained_fraction": 0.6}
    assert gemm_s(**HALF_EMPTY, **low) == pytest.approx(1.5 * WAVE_S / 0.6)


def test_without_an_exponent_all_calls_have_one_clock() -> None:
    for sizes, waves in ((FULL, 1), (HALF_EMPTY, 2)):
        assert gemm_s(**sizes, **UNITS) == pytest.approx(waves * WAVE_S / 0.8)


def test_a_call_that_waits_for_memory_keeps_the_burst_clock() -> None:
    """One row, 4 MB at 1 GB/s."""
    slow = UNITS | {"bandwidth_bytes_per_s": 1e9, "clock_exponent": 1 / 3}
    burst_s = gemm_s(m=1, n=2048, k=1024, **slow | {"sustained_fraction": 1.0})
    assert gemm_s(m=1, n=2048, k=1024, **slow) == pytest.approx(burst_s, rel=1e-12)
    assert burst_s == pytest.approx(2 * (1024 * 2049 + 2048) / 1e9, rel=1e-3)


def test_products_off_the_tensor_cores_are_as_busy_as_others() -> None:
    off = UNITS | {"unaligned_fraction": 0.1, "clock_exponent": 0.5}
    assert gemm_s(**FULL, aligned=False, **off) == pytest.approx(10 * WAVE_S / 0.8)
    assert gemm_s(**HALF_EMPTY, aligned=False, **off) == pytest.approx(
        10 * gemm_s(**HALF_EMPTY, **off)
    )


def test_a_clock_above_that_of_short_calls_is_the_clock_of_all() -> None:
    """Training runs may show a machine faster than the one that was timed."""
    fast = UNITS | {"training_fraction": 1.1, "clock_exponent": 0.5}
    assert gemm_s(**FULL, **fast) == pytest.approx(WAVE_S / 1.1)
    assert gemm_s(**HALF_EMPTY, **fast) == pytest.approx(2 * WAVE_S / 1.1)


@given(m=SIDES, n=SIDES, k=SIDES, hot=SHARES, exponent=st.floats(0.0, 1.0))
@pytest.mark.parametrize("sustained", [True, False])
def test_no_call_is_faster_than_the_burst_clock_or_slower_than_the_sustained_one(
    sustained: bool, m: int, n: int, k: int, hot: float, exponent: float
) -> None:
    given_ = h100(sustained=sustained, launch_s=0.0, training_fraction=hot, sustained_fraction=hot)
    burst_s, one_s, capped_s = (
        float(gemm_s(m=m, n=n, k=k, **given_ | other))
        for other in (
            {"training_fraction": 1.0, "sustained_fraction": 1.0},
            {"clock_exponent": 0.0},
            {"clock_exponent": exponent},
        )
    )
    assert burst_s * (1 - 1e-12) <= capped_s <= one_s * (1 + 1e-12)


@given(m=SIDES, n=SIDES, k=SIDES)
def test_a_call_is_never_slower_for_a_larger_exponent(m: int, n: int, k: int) -> None:
    seconds = gemm_s(m=m, n=n, k=k, **h100(clock_exponent=np.linspace(0.0, 1.0, 6)))
    assert seconds.shape == (6,) and (np.diff(seconds) <= 1e-12 * seconds[0]).all()


def test_clocks_and_exponents_broadcast_against_sizes() -> None:
    hot, exponent = np.array([0.7, 0.8, 0.9]), np.array([[0.0], [0.5]])
    table = gemm_s(**HALF_EMPTY, **UNITS | {"sustained_fraction": hot, "clock_exponent": exponent})
    alone = [
        [
            gemm_s(**HALF_EMPTY, **UNITS | {"sustained_fraction": x, "clock_exponent": y})
            for x in hot
        ]
        for y in exponent[:, 0]
    ]
    assert table.tolist() == pytest.approx(np.array(alone), rel=1e-12)


def test_a_timed_call_heats_up_to_the_clock_of_its_activity() -> None:
    """1.5 ms: half way. 3/4 of the units, power as the square of the clock."""
    sizes = HALF_EMPTY | {"k": 1024 * 64 * 8}
    burst_s = 2 * WAVE_S * 64 * 8
    seconds = gemm_s(**sizes, **UNITS | {"clock_exponent": 0.5}, sustained=False)
    slower = 1.0 / (0.8 * (4 / 3) ** 0.5) - 1.0
    assert seconds == pytest.approx(burst_s * (1.0 + slower * burst_s / (burst_s + 1.5e-3)))


# --- who else prices products ------------------------------------------------------------


def test_a_grouped_product_has_the_exponent_of_plain_ones() -> None:
    part = load_accelerator("h100-sxm")
    plain = replace(part.gemm["cublas"]["bf16"], clock_exponent=Figure(0.4))
    assert as_grouped(plain, part.grouped["cublas"]["bf16"], 8.0).clock_exponent == 0.4


def test_a_layer_of_experts_keeps_more_of_the_clock_where_units_idle() -> None:
    """Experts of one tile each, two units at 1 MFLOP/s, half the clock with both busy."""
    figures = dict.fromkeys(
        (
            "prologue_k",
            "small_tile_penalty",
            "launch_s",
            "per_expert_s",
            "routed_s",
            "choice_s",
            "score_s",
            "token_passes",
            "hidden_passes",
            "ffn_passes",
            "cached_gain",
        ),
        0.0,
    ) | {"peak_fraction": 1.0, "memory_fraction": 1e9, "wave_quantisation": 1.0}
    rates = {
        "operand_bytes": 2.0,
        "peak_flop_per_s": 2e6,
        "bandwidth_bytes_per_s": 1e9,
        "l2_bytes": 1.0,
        "compute_units": 2.0,
    }
    one, two = (
        float(
            expert_layer_s(
                tokens=64,
                experts=experts,
                hidden=64,
                ffn=64,
                gated=0,
                all_tokens=64,
                all_experts=2,
                top_k=1,
                rates=DeviceRates(**rates),
                figures=figures,
                sustained_fraction=0.5,
                clock_exponent=1.0,
            )
        )
        for experts in (1, 2)
    )
    burst_s = 2 * 2 * 64**3 / 1e6
    assert one == pytest.approx(burst_s, rel=1e-6)
    heat = (burst_s / 2) / (burst_s / 2 + 1.5e-3)
    assert two == pytest.approx(burst_s * (1.0 + heat), rel=1e-6)


def test_an_exponent_above_one_is_no_physics() -> None:
    kernel = load_accelerator("h100-sxm").gemm["cublas"]["bf16"]
    text = {field.name: float(getattr(kernel, field.name)) for field in fields(kernel)}
    assert build(GemmKernel, text, where="h.toml") == replace(
        kernel, **{name: Figure(value) for name, value in text.items()}
    )
    with pytest.raises(InputError, match="clock_exponent: must be less than or equal to 1, got 3"):
        build(GemmKernel, text | {"clock_exponent": 3.0}, where="h.toml")
