"""Series, folds, residuals and sections of products; typical figures."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from simulator.calibration.least_squares import Rows
from simulator.cost.kernels.residual import residual_factor
from simulator.hardware.accelerator import GemmKernel
from simulator.hardware.cluster import load_accelerator
from tests.flat_kernels import gemm_s
from workshop.fits.gemm.fit import fit_parameters, gemm_model
from workshop.fits.gemm.holdout import shape_folds
from workshop.fits.gemm.profiles import typical_gemm
from workshop.fits.gemm.residual import residual_weights
from workshop.fits.gemm.series import Series, load_series
from workshop.fits.gemm.typical import typical_values

ONE_TILE = {
    "m": 64, "n": 64, "k": 64, "operand_bytes": 2.0, "result_bytes": 2.0, "launch_s": 0.0,
    "peak_flop_per_s": 1e12, "bandwidth_bytes_per_s": 1e15, "l2_bytes": 50e6, "compute_units": 1.0,
    "peak_fraction": 1.0, "sustained_fraction": 1.0, "memory_fraction": 1.0, "prologue_k": 0.0,
    "wave_quantisation": 1.0, "small_tile_penalty": 0.0, "split_k_s": 1.0, "l2_refetch": 0.0,
}  # fmt: skip
TILE_S = 2 * 64**3 / 1e12


def made(device: str, library: str, factor: float = 1.0, count: int = 200, seed: int = 1) -> Series:
    """Times by the formula of cuBLAS in bf16, times a factor."""
    accelerator = load_accelerator(device)
    m, n, k = np.round(2.0 ** np.random.default_rng(seed).uniform(9, 14, (3, count)))
    rows: Rows = {"m": m, "n": n, "k": k}
    kernel = accelerator.gemm["cublas"]["bf16"]
    values = {f.name: float(getattr(kernel, f.name)) for f in dataclasses.fields(GemmKernel)}
    rows["seconds"] = gemm_model(values, rows, accelerator, "bf16") * factor
    return Series(
        device=device,
        dtype="bf16",
        library=library,
        framework="made",
        accelerator=accelerator,
        rows=rows,
        dropped=np.zeros(count, bool),
        reason="",
    )


def test_terms_of_a_call_that_casts_adds_or_waits_for_its_host() -> None:
    """A scan of 1 TB/s and 3 us a row meet at right angles; half of what fp32 sums move shows."""
    assert gemm_s(**ONE_TILE) == pytest.approx(TILE_S, rel=1e-9)
    scan_s, rows_s = 4.0 * 64 * 64 / 1e15, 64 * 1e-9
    cast = gemm_s(**ONE_TILE, quantise_bytes_per_element=4.0, quantise_row_s=1e-9)
    assert cast == pytest.approx(TILE_S + np.hypot(scan_s, rows_s), rel=1e-9)
    held = gemm_s(**ONE_TILE, quantise_bytes_per_element=4e6, quantise_refetch=3.0)
    share = 1.0 / (1.0 + 3.0 / (1.0 + (4.0 * 64 * 64 / 50e6) ** 2))
    assert held == pytest.approx(TILE_S + 4e6 * 64 * 64 / 1e15 * share, rel=1e-9)
    # 6 B of each sum beyond a 16-bit result: half of their time shows, but never less than traffic
    summed = ONE_TILE | {"result_bytes": 8.0, "accumulate_exposed": 0.5}
    added_s = 6.0 * 64 * 64 / 1e15
    assert gemm_s(**summed) == pytest.approx(TILE_S + 0.5 * added_s, rel=1e-9)
    slow = summed | {"bandwidth_bytes_per_s": 1e9}
    moved_s = (2.0 * 2 * 64 * 64 + 8.0 * 64 * 64) / 1e9
    assert gemm_s(**slow) == pytest.approx(moved_s, rel=1e-6)
    assert gemm_s(**ONE_TILE, accumulate_exposed=0.5) == pytest.approx(TILE_S, rel=1e-9)
    equal = gemm_s(**ONE_TILE, host_floor_s=TILE_S)
    assert equal == pytest.approx(2**0.25 * TILE_S, rel=1e-9)
    assert gemm_s(**ONE_TILE, host_floor_s=1.0) == pytest.approx(1.0, rel=1e-6)


def test_a_shape_is_left_out_on_every_device_and_library_at_once() -> None:
    series = [made("h100-sxm", "cublas"), made("b200-sxm", "vllm"), made("h100-sxm", "vllm", 2.0)]
    first, second, third = shape_folds(series)
    assert first.tolist() == second.tolist() == third.tolist()
    assert set(first.tolist()) == set(range(5))


def test_the_shipped_table_holds_a_series_for_every_device_and_library() -> None:
    series = {one.key: one for one in load_series()}
    for device in ("a100-sxm-80", "h100-sxm", "h200-sxm", "b200-sxm", "b300-sxm", "gb200", "gb300"):
        for library in ("cublas", "vllm"):
            assert len(series[device, "bf16", library].rows["m"]) > 400
    noisy = series["gb200", "bf16", "vllm"]
    assert noisy.rows["seconds"][noisy.dropped].min() > 200e-6
    assert noisy.rows["seconds"][~noisy.dropped].max() <= 200e-6
    assert all(one.reason for one in series.values() if one.dropped.any())


def test_a_series_that_is_slower_throughout_is_fitted_so() -> None:
    series = made("h100-sxm", "cublas", factor=1.2)
    values = fit_parameters(series.rows, series.accelerator, dtype="bf16")
    found = gemm_model(values, series.rows, series.accelerator, "bf16")
    assert np.median(found / series.rows["seconds"]) == pytest.approx(1.0, abs=0.01)


def test_residuals_are_learnt_from_the_other_library_too() -> None:
    """Both libraries lose 20 % on long K; one has not been timed there."""
    series = [made("h100-sxm", "cublas"), made("h100-sxm", "vllm", seed=2)]
    logs = [np.where(one.rows["k"] > 4096, 0.2, 0.0) for one in series]
    used = [np.ones(200, bool), series[1].rows["k"] < 2048]
    own, other = residual_weights(series, logs, used)
    rows = {name: series[0].rows[name] for name in ("m", "n", "k")}
    factor = residual_factor(own, **rows)
    assert np.log(factor[rows["k"] > 6000]).mean() == pytest.approx(0.2, abs=0.03)
    assert np.log(factor[rows["k"] < 2500]).mean() == pytest.approx(0.0, abs=0.03)
    # of the generation's variance each shape shares 0.06^2 of 0.06^2 + 0.1^2 + 0.035^2 across
    # libraries: the other learns part of it, where it has no timings of its own
    told = np.log(residual_factor(other, **rows)[rows["k"] > 6000]).mean()
    assert 0.2 * 0.1 < told < 0.2 * 0.5
    alone = residual_weights(series[1:], logs[1:], used[1:])
    assert np.abs(alone[0].weight).max() < 1e-12  # what it was timed on has nothing left over


def test_weights_of_a_series_give_the_mean_of_the_process() -> None:
    """Two series timed at one shape alone: the mean there is worked out by hand.

    Both have variance 0.06^2 + 0.1^2 + 0.035^2 and share 0.06^2; a timing adds 0.05^2.
    """
    series = [made("h100-sxm", name, seed=seed) for name, seed in (("cublas", 1), ("vllm", 1))]
    one = np.arange(200) == 0
    logs = [np.where(one, 0.2, 0.0), np.where(one, 0.1, 0.0)]
    own, other = residual_weights(series, logs, [one, one])
    variance, shared = 0.06**2 + 0.1**2 + 0.035**2, 0.06**2
    pull = np.linalg.solve([[variance + 0.05**2, shared], [shared, variance + 0.05**2]], [0.2, 0.1])
    at = {name: series[0].rows[name][one] for name in ("m", "n", "k")}
    for timed, mean in ((own, [variance, shared] @ pull), (other, [shared, variance] @ pull)):
        assert len(timed.weight) == 1
        assert np.log(residual_factor(timed, **at))[0] == pytest.approx(mean, rel=1e-9)


def test_typical_figures_are_those_of_devices_alike() -> None:
    hopper, ada = load_accelerator("h100-sxm"), load_accelerator("l40s")
    fits = [(hopper, {"peak_fraction": 0.9}), (ada, {"peak_fraction": 0.6})]
    assert typical_values(fits, "hopper", stacked=True) == {"peak_fraction": 0.9}
    assert typical_values(fits, "rdna", stacked=False) == {"peak_fraction": 0.6}
    assert typical_values(fits[:1], "rdna", stacked=False) == {"peak_fraction": 0.9}


@pytest.mark.parametrize("dtype", ["bf16", "fp8", "mxfp8", "fp32"])
def test_typical_figures_make_a_kernel_and_are_wider(dtype: str) -> None:
    figures = typical_gemm("blackwell", dtype)
    assert set(figures) == {f.name for f in dataclasses.fields(GemmKernel)} - {"training_fraction"}
    assert {figure.grade for figure in figures.values()} == {"assumed"}
    fitted = load_accelerator("b200-sxm").gemm["cublas"]["bf16"].peak_fraction
    spread = figures["peak_fraction"].spread
    assert spread is not None and fitted.spread is not None and spread > fitted.spread
