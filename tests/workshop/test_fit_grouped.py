"""Layers of experts: the formula part by part, fits, contradicted calls, residuals on shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator.calibration.least_squares import Rows
from simulator.cost.kernels.expert_layer import expert_layer_s
from simulator.cost.kernels.gemm import DeviceRates
from simulator.cost.kernels.residual import features, residual_factor
from simulator.hardware.residuals import SIZES, TimedShapes
from workshop.fits.experts.fit import LAYER, fit_layers, layer_s
from workshop.fits.experts.rows import SHAPE, ExpertPool, busiest_load, contradicted
from workshop.fits.fitting.pooled import Pool
from workshop.fits.fitting.smoothing import Points, Spread, mean_at, pulls, weight_lines

TILE_S = 2 * 64**3 / 1e12

RATES = {
    "operand_bytes": 2.0,
    "peak_flop_per_s": 2e12,
    "bandwidth_bytes_per_s": 1e9,
    "l2_bytes": 1.0,
    "compute_units": 2.0,
}

FIGURES = {
    "peak_fraction": 1.0, "memory_fraction": 1e9, "prologue_k": 0.0, "wave_quantisation": 1.0,
    "small_tile_penalty": 0.0, "launch_s": 1.0, "per_expert_s": 10.0, "routed_s": 0.5,
    "choice_s": 7.0, "score_s": 0.25, "token_passes": 1.0, "hidden_passes": 2.0, "ffn_passes": 3.0,
    "cached_gain": 4.0,
}  # fmt: skip

TWO = {
    "tokens": 64,
    "experts": 2,
    "hidden": 64,
    "ffn": 64,
    "gated": 0,
    "all_tokens": 128,
    "all_experts": 2,
    "top_k": 1,
}
"""Two experts of one tile each, on two units of 1 TFLOP/s; every pass at 1 GB/s."""


def layer(**other: Any) -> float:
    rates = {name: other.pop(name, value) for name, value in RATES.items()}
    return float(expert_layer_s(**(TWO | other), rates=DeviceRates(**rates), figures=FIGURES))


def test_an_expert_layer_is_the_sum_of_its_parts() -> None:
    hidden, ffn = 64 * 2 * 4 * 64 / 1e9, 64 * 2 * 2 * 2 * 64 / 1e9
    tokens = 2 * 128 * 64 / 1e9
    expected = 1.0 + 2 * 10.0 + 0.5 * 128 + 2 * hidden + 3 * ffn + tokens + 2 * TILE_S
    assert layer() == pytest.approx(expected, rel=1e-12)
    wider = 3 * 64 * 2 * 2 * 64 / 1e9
    assert layer(gated=1) - layer() == pytest.approx(wider + TILE_S, rel=1e-9)


def test_more_than_sixteen_experts_a_token_are_chosen_by_another_kernel() -> None:
    """128 tokens of 16 and of 17 choices among 32: one more copy sorted, and all scores read."""
    most, more = (layer(all_experts=32, top_k=k) for k in (16, 17))
    assert more - most == pytest.approx(0.5 * 128 + 7.0 + 0.25 * 128 * 32, rel=1e-12)


def test_a_layer_that_fits_into_the_cache_moves_five_times_faster() -> None:
    """40 kB of weights and copies in a cache of 1 GB; at 90 % of the cache, half of the gain."""
    moved = layer() - 1.0 - 20.0 - 64.0 - 2 * TILE_S
    cached = layer(l2_bytes=1e9) - 1.0 - 20.0 - 64.0 - 2 * TILE_S
    assert cached == pytest.approx(moved / 5.0, rel=1e-6)
    touched = 2.0 * (2 * 64 * 64 * 2 + 128 * 128) + 2.0 * 128 * 128
    half = layer(l2_bytes=touched / 0.9) - 1.0 - 20.0 - 64.0 - 2 * TILE_S
    assert half == pytest.approx(moved / 3.0, rel=1e-6)


def test_the_busiest_rank_of_a_power_law() -> None:
    """All of one rank's; no skew, no load; more ranks, more load, up to all tokens on one."""
    assert busiest_load(1.2, 64, 1) == 1.0
    assert busiest_load(0.0, 64, 8) == 1.0
    loads = [busiest_load(1.2, 64, ranks) for ranks in (2, 8, 64)]
    assert 1.0 < loads[0] < loads[1] < loads[2] <= 64.0
    assert busiest_load(1.01, 64, 8) > 1.0


def made(count: int = 240, seed: int = 3) -> ExpertPool:
    """Layers of two types on one device, evenly routed; seconds are one each."""
    draw = np.random.default_rng(seed)
    experts, ranks = 2.0 ** draw.integers(0, 7, count), 2.0 ** draw.integers(0, 4, count)
    rows: Rows = {
        "tokens": 2.0 ** draw.integers(2, 12, count),
        "experts": experts,
        "hidden": 1024.0 * draw.integers(2, 9, count),
        "ffn": 2.0 ** draw.integers(8, 13, count),
        "gated": draw.integers(0, 2, count).astype(float),
        "top_k": draw.choice([1.0, 4.0, 8.0, 22.0], count),
        "all_experts": experts * ranks,
        "skew": np.zeros(count),
        "seconds": np.ones(count),
        "bandwidth_bytes_per_s": np.full(count, 3.35e12),
        "l2_bytes": np.full(count, 50e6),
        "compute_units": np.full(count, 132.0),
        "sustained_fraction": np.ones(count),
        "clock_exponent": np.zeros(count),
    }
    rows["all_tokens"] = np.ceil(rows["tokens"] * rows["all_experts"] / rows["top_k"])
    small = np.arange(count) % 2 == 0
    rows["operand_bytes"] = np.where(small, 1.0, 2.0)
    rows["peak_flop_per_s"] = np.where(small, 1979e12, 989e12)
    calls = Pool(rows=rows, device=np.full(count, "one"), variant=np.where(small, "fp8", "bf16"))
    return ExpertPool(generation="hopper", accelerators={}, calls=calls)


def test_the_fit_recovers_the_parameters_that_made_the_times() -> None:
    pool = made()
    truth = {name: each.prior.value for name, each in LAYER.items()}
    truth |= {"memory_fraction": 0.9, "hidden_passes": 2.5, "launch_s": 30e-6, "score_s": 2e-11}
    rows = pool.calls.rows
    rows["seconds"] = layer_s({name: np.array(x) for name, x in truth.items()}, rows)
    fit = fit_layers(pool, np.ones(len(pool.calls), bool))
    for kind in ("bf16", "fp8"):
        found = fit.values("one", kind)
        for name in ("memory_fraction", "hidden_passes", "launch_s", "score_s"):
            assert found[name] == pytest.approx(truth[name], rel=0.1), name


def test_a_call_that_takes_longer_than_a_larger_one_is_contradicted() -> None:
    """Third call: twice the second one's time, which is larger in all; of another type, no word."""
    pool = made(4)
    rows = pool.calls.rows
    for name in SHAPE:
        rows[name][:] = [64.0, 64.0, 32.0, 32.0]
    rows["gated"][:] = 1.0
    rows["peak_flop_per_s"][:] = 1e15
    rows["seconds"][:] = [1.0, 1.0, 2.0, 2.0]
    kinds = np.array(["fp8", "fp8", "fp8", "bf16"])
    calls = Pool(rows=rows, device=pool.calls.device, variant=kinds)
    alike = ExpertPool(generation="hopper", accelerators={}, calls=calls)
    assert contradicted(alike).tolist() == [False, False, True, False]
    rows["seconds"][2] = 1.2
    assert not contradicted(alike).any()
    rows["seconds"][2] = 2.0
    rows["bandwidth_bytes_per_s"][2] = 3.35e12 / 2.0  # a device of half the bandwidth
    assert not contradicted(alike).any()


def test_lines_of_a_file_say_what_the_process_says() -> None:
    """Two types, the second timed on one device alone; weights of three digits."""
    calls, spread = made(80).calls, Spread(shared=0.1, library=0.1, own=0.1, noise=0.05, most=0.5)
    owner = np.where(np.arange(80) % 3 == 0, "two|", "one|")
    points = Points(
        place=features("experts", calls.rows),
        library=calls.variant,
        owner=np.char.add(owner, calls.variant),
    )
    left = 0.1 * np.sin(np.arange(80.0))
    pull = pulls(points, left, spread)
    sizes = np.stack([calls.rows[name] for name in SIZES["experts"]], axis=1)
    lines = weight_lines(points, sizes, pull, spread, [("one|fp8", "fp8", "cublas", "fp8")])
    numbers = np.array([line.split(",")[2:] for line in lines], dtype=float)
    assert {tuple(line.split(",")[:2]) for line in lines} == {("*", "*"), ("cublas", "fp8")}
    timed = TimedShapes(
        kernel="experts",
        sizes=dict(zip(SIZES["experts"], numbers.T[:-1], strict=True)),
        weight=numbers[:, -1],
    )
    own = points.owner == "one|fp8"
    asked = {name: calls.rows[name][own] for name in SIZES["experts"]}
    expected = mean_at(points.take(own), points, pull, spread)
    assert np.log(residual_factor(timed, **asked)) == pytest.approx(expected, abs=2e-3)


def test_a_call_beyond_belief_teaches_nothing() -> None:
    points = Points(
        place=np.zeros((2, 1)), library=np.array(["a", "a"]), owner=np.array(["a", "a"])
    )
    spread = Spread(shared=1.0, library=0.0, own=0.0, noise=1.0, most=0.2, other=0.4)
    assert pulls(points, np.array([0.1, 3.0]), spread).tolist() == pytest.approx([0.05, 0.0])
    assert pulls(points, np.array([0.3, 3.0]), spread).tolist() == pytest.approx([0.1, 0.0])
