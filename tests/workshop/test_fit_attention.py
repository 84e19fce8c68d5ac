"""Fits of attention and of memory-bound kernels recover what made the data; figures are honest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulator.calibration.least_squares import Prior, Rows
from simulator.cost.kernels.memory_bound import stream_s
from workshop.fits.attention.fit import fit_serving, fit_timed
from workshop.fits.attention.residual import residual
from workshop.fits.attention.rows import attention_calls, predicted_s
from workshop.fits.fitting.devices import Device, devices, same_chip
from workshop.fits.fitting.pooled import Pool, Shared, deal, fit_pooled
from workshop.fits.stream import fit_stream, stream_calls

TRUTH = {
    "launch_s": 9e-6, "peak_fraction": 0.75, "sustained_fraction": 0.93, "training_fraction": 1.0,
    "backward_fraction": 0.7, "backward_tail_fraction": 0.3, "tile_rows": 128.0,
    "softmax_width": 50.0, "prologue_keys": 200.0, "tail_fraction": 0.6, "narrow_head_factor": 1.2,
    "wide_head_factor": 1.1, "wide_head_step": 64.0, "query_traffic": 1.5, "key_traffic": 3.0,
}  # fmt: skip


def made_calls(count: int, *, backward: bool = False) -> Rows:
    draw = np.random.default_rng(5)
    length = 2.0 ** draw.integers(7, 15, count)
    heads = 2.0 ** draw.integers(2, 10, count)
    size = draw.choice([64.0, 128.0, 256.0], count)
    width = 4.0 * heads * length * size
    way = draw.random(count) < 0.5 if backward else np.zeros(count, bool)
    return {
        "heads": heads,
        "queries": length,
        "keys": length / 2,
        "span": length,
        "score_size": size,
        "value_size": size,
        "query_bytes": width,
        "key_bytes": width / 8,
        "forward": 1.0 - way,
        "backward": way.astype(float),
        "peak_flop_per_s": np.full(count, 989e12),
        "compute_units": np.full(count, 132.0),
        "bandwidth_bytes_per_s": np.full(count, 3.35e12),
    }


def pool(rows: Rows, device: np.ndarray | None = None, variant: np.ndarray | None = None) -> Pool:
    count = len(rows["seconds"])
    return Pool(
        rows=rows,
        device=np.full(count, "one") if device is None else device,
        variant=np.full(count, "fa3") if variant is None else variant,
    )


def test_the_fit_recovers_the_parameters_that_made_the_times() -> None:
    rows = made_calls(400)
    rows["seconds"] = predicted_s(TRUTH, rows)
    found = fit_serving(pool(rows), "fa3").values("one", "fa3")
    for name in (
        "peak_fraction",
        "prologue_keys",
        "softmax_width",
        "tail_fraction",
        "launch_s",
        "key_traffic",
        "narrow_head_factor",
        "tile_rows",
    ):
        assert found[name] == pytest.approx(TRUTH[name], rel=0.1), name


@pytest.mark.evidence
def test_devices_and_variants_keep_rates_of_their_own() -> None:
    rows = made_calls(600)
    device = np.where(np.arange(600) % 2 == 0, "one", "two")
    variant = np.where(np.arange(600) % 3 == 0, "fa3_fp8_cache", "fa3")
    rows["seconds"] = predicted_s(TRUTH, rows)
    faster = rows["seconds"] / predicted_s(TRUTH | {"peak_fraction": 0.9}, rows)
    rows["seconds"] = rows["seconds"] / np.where(device == "two", faster, 1.0)
    other = predicted_s(TRUTH | {"key_traffic": 12.0}, rows) / predicted_s(TRUTH, rows)
    rows["seconds"] = rows["seconds"] * np.where(variant == "fa3", 1.0, other)
    fit = fit_serving(pool(rows, device, variant), "fa3")
    one, two, new = (fit.values(name, "fa3")["peak_fraction"] for name in ("one", "two", "new"))
    assert two / one == pytest.approx(0.9 / 0.75, rel=0.03)
    assert one < new < two
    cached = fit.values("one", "fa3_fp8_cache")["key_traffic"]
    assert cached / fit.values("one", "fa3")["key_traffic"] > 2.5


def test_the_backward_pass_is_fitted_where_it_was_timed() -> None:
    rows = made_calls(200, backward=True)
    truth = TRUTH | {"launch_s": 6e-6, "query_traffic": 0.7, "key_traffic": 0.5}
    rows["seconds"] = predicted_s(truth, rows)
    found = fit_timed(pool(rows), truth)
    assert found.values["backward_fraction"] == pytest.approx(0.7, rel=0.05)
    assert found.values["backward_tail_fraction"] == pytest.approx(0.3, abs=0.1)
    assert found.score.median < 0.03


def test_a_pool_draws_a_device_with_few_rows_to_the_others() -> None:
    """Forty rows of one device say 2; what another says, 4, is believed when it says it often."""

    def believed(times: int) -> float:
        said = np.r_[np.full(40, 2.0), np.full(times, 4.0)]
        rows: Rows = {"x": np.ones(40 + times), "seconds": said}
        device = np.r_[np.full(40, "first"), np.full(times, "other")]
        prior = Prior(value=1.0, width=2.0, low=0.1, high=10.0)
        shared = {"slope": Shared(prior=prior, device=0.05)}
        calls = Pool(rows=rows, device=device, variant=np.full(40 + times, ""))
        fit = fit_pooled(shared, lambda v, r: v["slope"] * r["x"], calls)
        assert fit.values("first")["slope"] == pytest.approx(2.0, rel=0.02)
        return fit.values("other")["slope"]

    assert 2.0 < believed(1) < 3.4
    assert believed(20) == pytest.approx(4.0, rel=0.02)


def test_a_shape_lies_in_one_fold_wherever_it_was_timed() -> None:
    shapes = [(float(k % 50), 1.0) for k in range(200)]
    fold = deal(shapes)
    assert set(fold.tolist()) == {0, 1, 2, 3, 4}
    assert all(fold[k] == fold[k % 50] for k in range(200))


def test_the_residual_is_learnt_from_neighbours_of_the_same_generation() -> None:
    rows = made_calls(40)
    rows["seconds"] = np.ones(40)
    calls = pool(rows)
    generation = np.where(np.arange(40) < 20, "new", "old")
    for name, column in rows.items():
        column[20:] = column[:20] if name != "seconds" else 1.0
    left = np.where(generation == "new", 0.1, 0.0)
    seen = np.ones(40, bool)
    found = residual(calls, generation, left, seen, np.arange(40) == 0)
    assert 0.05 < found[0] <= 0.1
    assert residual(calls, generation, left, generation == "old", np.arange(40) == 0)[0] == 0.0


def test_the_stream_fit_recovers_waves_and_rate() -> None:
    draw = np.random.default_rng(2)
    tokens, row = 2.0 ** draw.uniform(3, 15, 200), draw.choice([8192.0, 16384.0, 32768.0], 200)
    device = {
        "bandwidth_bytes_per_s": np.full(200, 2e12),
        "l2_bytes": np.full(200, 40e6),
        "compute_units": np.full(200, 108.0),
    }
    rows: Rows = {"moved_bytes": np.round(tokens) * row, "row_bytes": row} | device
    truth = {
        "memory_fraction": 0.8,
        "launch_s": 2e-6,
        "row_s_per_byte": 1.5e-10,
        "sharpness": 3.0,
        "cached_gain": 0.3,
    }
    rows["seconds"] = stream_s(**rows, **truth, rows_per_unit=2.0)
    calls = Pool(rows=rows, device=np.full(200, "one"), variant=np.full(200, "vllm_norm"))
    found = fit_stream(calls, "vllm_norm").values("one")
    assert found["rows_per_unit"] == 2.0
    for name in ("memory_fraction", "row_s_per_byte", "sharpness"):
        assert found[name] == pytest.approx(truth[name], rel=0.1), name


def test_the_shipped_tables_are_read_with_their_units() -> None:
    """One row by hand: SimuMax A100, 64 heads of 8, 4k tokens, 370.346 TFLOP/s without the mask."""
    calls = attention_calls(devices())
    own = (calls.variant == "flash") & (calls.rows["forward"] == 1) & (calls.rows["heads"] == 64)
    own &= (calls.rows["compute_units"] == 108) & (calls.rows["score_size"] == 128)
    assert calls.rows["seconds"][own].tolist() == pytest.approx(
        [4 * 64 * 4096**2 * 128 / 370.346e12]
    )
    streams = stream_calls(devices())
    assert set(streams.variant.tolist()) == {
        "vllm_add",
        "vllm_activation",
        "vllm_rotary",
        "vllm_norm",
        "trtllm_amax",
    }
    assert (streams.rows["moved_bytes"] / streams.rows["seconds"] < 8.5e12).all()


def test_an_export_part_is_the_same_chip_and_a_faster_one_is_not() -> None:
    known = devices()
    timed = [known["a100-sxm-80"], known["h100-sxm"], known["b200-sxm"]]
    assert same_chip(known["h800-sxm"], timed) == "h100-sxm"
    assert same_chip(known["gb200"], timed) == ""
    other: Device = replace(known["h800-sxm"], compute_units=114.0)
    assert same_chip(other, timed) == ""
