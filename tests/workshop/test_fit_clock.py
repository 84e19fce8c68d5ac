"""The clock under a power cap, from timings: long calls of shapes that no fit has seen."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from simulator.arrays import Floats
from simulator.calibration.least_squares import pick
from simulator.hardware.accelerator import GemmKernel
from simulator.hardware.cluster import load_accelerator
from simulator.measured.microbenchmarks import Sieve, Table, read_table
from tests.flat_kernels import gemm_rates, gemm_s
from workshop.fits.gemm import fit as fit_gemm
from workshop.fits.gemm.fit import ONE_CLOCK, fit_parameters, gemm_model
from workshop.fits.gemm.holdout import shape_folds
from workshop.fits.gemm.series import Series, load_series, shipped_table
from workshop.fits.training.parameters import PARAMETERS


@pytest.fixture(scope="module")
def timed() -> dict[tuple[str, str, str], Series]:
    return {one.key: one for one in load_series()}


def figures(kernel: GemmKernel) -> dict[str, float]:
    return {field.name: float(getattr(kernel, field.name)) for field in fields(kernel)}


def unseen_error(one: Series) -> Floats:
    """|log(predicted / measured)| of calls over 1 ms, each by a fit without its shape."""
    (fold,), found = shape_folds([one]), np.empty(len(one.flop))
    for number in np.unique(fold):
        out = fold == number
        rows = pick(one.rows, one.used & ~out)
        values = fit_parameters(rows, one.accelerator, dtype=one.dtype, library=one.library)
        found[out] = gemm_model(values, one.rows, one.accelerator, one.dtype)[out]
    long = one.large & (one.rows["seconds"] > 1e-3)
    return np.asarray(np.abs(np.log(found / one.rows["seconds"]))[long])


@pytest.mark.evidence
@pytest.mark.parametrize("device", ["a100-sxm-80", "h100-sxm", "h200-sxm"])
def test_long_calls_of_unseen_shapes_come_out_better_than_at_one_clock(
    device: str, timed: dict[tuple[str, str, str], Series], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Timings of cuBLAS (aiconfigurator) decide, the other figures fitted again either way."""
    one = timed[device, "bf16", "cublas"]
    capped = unseen_error(one)
    monkeypatch.setattr(fit_gemm, "ONE_CLOCK", ((one.accelerator.generation, "cublas", "bf16"),))
    alike = unseen_error(one)
    assert len(capped) > 60
    assert capped.mean() < 0.95 * alike.mean() < 0.05


def test_calls_that_fill_the_device_slow_down_most(
    timed: dict[tuple[str, str, str], Series],
) -> None:
    """A100, calls over 1 ms: what the cap takes from those that reach less than 0.9 of the rate of
    full waves and from those that reach more than 0.95. No exponent enters."""
    one = timed["a100-sxm-80", "bf16", "cublas"]
    kernel = one.accelerator.gemm["cublas"]["bf16"]
    values = figures(kernel)
    burst = gemm_model(values | {"sustained_fraction": 1.0}, one.rows, one.accelerator, "bf16")
    full = float(one.accelerator.matrix_flop_per_s["bf16"]) * values["peak_fraction"]
    activity, slower = one.flop / full / burst, one.rows["seconds"] / burst
    long = one.large & (one.rows["seconds"] > 1e-3)
    chosen = [long & (activity < 0.9), long & (activity > 0.95)]
    assert min(rows.sum() for rows in chosen) >= 10
    some, all_ = (float(np.median(slower[rows])) for rows in chosen)
    assert some + 0.05 < all_


@pytest.fixture(scope="module")
def shipped() -> Table:
    return read_table(shipped_table(), "kernels")


@pytest.mark.parametrize("direction", ["fwd", "dgrad"])
def test_another_machine_and_program_show_the_same_exponent(shipped: Table, direction: str) -> None:
    """SimuMax timed training products on an A100 card, none of them in the fit: with the shipped
    exponent and a clock of its own, the card comes out better than with a clock alone."""
    device = load_accelerator("a100-sxm-80")
    sieve, text = Sieve(shipped), shipped.text
    match = sieve.kept & (text("kernel") == "simumax_matmul") & (text("gpu") == "a100_pcie")
    match &= (text("direction") == direction) & (np.char.find(text("impl"), "out=bf16") >= 0)
    sizes = {name: sieve.positive(name.upper(), match)[match] for name in ("m", "n", "k")}
    seconds = sieve.positive("time_us", match)[match] * 1e-6
    long = sizes["m"] * sizes["n"] * sizes["k"] >= 5e10
    kernel = device.gemm["cublas"]["bf16"]
    given = figures(kernel)
    given |= gemm_rates(device, "bf16")
    errors = []
    for exponent in (0.0, given["clock_exponent"]):
        other = {
            "clock_exponent": exponent,
            "training_fraction": np.arange(0.6, 1.0, 0.01)[:, None],
        }
        predicted = gemm_s(**sizes, result_bytes=2.0, **given | other)
        errors.append(np.abs(np.log(predicted / seconds))[:, long].mean(axis=1).min())
    assert long.sum() > 30
    assert errors[1] < 0.8 * errors[0] < 0.02


def test_long_products_in_a_loop_hold_the_prior_of_what_training_fits(shipped: Table) -> None:
    """SimuMax timed training products on a B200 one after another: how far those of 1e12 FLOP and
    more are from the burst clock of other timings, one by one and all together."""
    device, prior = load_accelerator("b200-sxm"), PARAMETERS["b200_rate"].prior
    sieve, text = Sieve(shipped), shipped.text
    match = sieve.kept & (text("kernel") == "simumax_matmul") & (text("gpu") == "b200_sxm")
    sizes = {name: sieve.positive(name.upper(), match)[match] for name in ("m", "n", "k")}
    seconds = sieve.positive("time_us", match)[match] * 1e-6
    sums = np.char.find(text("impl")[match], "acc=True out=fp32") >= 0
    given = figures(device.gemm["cublas"]["bf16"]) | gemm_rates(device, "bf16")
    burst = gemm_s(
        **sizes, result_bytes=np.where(sums, 8.0, 2.0), **given | {"training_fraction": 1.0}
    )
    long = 2.0 * sizes["m"] * sizes["n"] * sizes["k"] >= 1e12
    assert long.sum() > 150
    reached = np.median(burst[long] / seconds[long]), burst[long].sum() / seconds[long].sum()
    assert reached == pytest.approx([prior.value] * 2, abs=prior.width * prior.value / 2)


def test_the_fit_finds_the_exponent_that_made_the_times() -> None:
    device = load_accelerator("a100-sxm-80")
    m, n, k = np.round(2.0 ** np.random.default_rng(5).uniform(9, 14, (3, 400)))
    kernel = device.gemm["cublas"]["bf16"]
    truth = figures(kernel)
    for exponent in (0.2, 0.8):
        truth |= {"sustained_fraction": 0.7, "clock_exponent": exponent}
        rows = {"m": m, "n": n, "k": k}
        rows["seconds"] = gemm_model(truth, rows, device, "bf16")
        found = fit_parameters(rows, device, dtype="bf16")
        assert found["clock_exponent"] == pytest.approx(exponent, abs=0.1)
        assert found["sustained_fraction"] == pytest.approx(0.7, abs=0.02)


def test_series_at_one_clock_are_timed_ones_and_their_profiles_say_so(
    timed: dict[tuple[str, str, str], Series],
) -> None:
    kinds = {(one.accelerator.generation, one.library, one.dtype) for one in timed.values()}
    assert set(ONE_CLOCK) <= kinds
    for (device, dtype, library), one in timed.items():
        kernel = load_accelerator(device).gemm[library].get(dtype)
        if kernel is None:  # a type whose peak the profile does not state
            continue
        alike = (one.accelerator.generation, library, dtype) in ONE_CLOCK
        assert (float(kernel.clock_exponent) == 0.0) == alike, one.key
        if not alike:
            assert kernel.clock_exponent.grade == "fitted", one.key
