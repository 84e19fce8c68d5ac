"""Weight gradients that add to fp32 in memory: what of that traffic shows."""

import csv
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from simulator.hardware.accelerator import GemmKernel
from simulator.hardware.cluster import load_accelerator
from simulator.measured.kernel_calls import GEMM_COLUMNS
from simulator.measured.microbenchmarks import Sieve, Table, read_table
from tests.flat_kernels import gemm_rates, gemm_s
from workshop.fits.gemm.backward import backward_rates
from workshop.fits.gemm.series import shipped_table

DEVICE = "a100-sxm-80"
WAYS = {"fwd": "acc=False out=bf16", "dgrad": "acc=False out=bf16", "wgrad": "acc=True out=fp32"}


def figures(device: str) -> dict[str, float]:
    kernel = load_accelerator(device).gemm["cublas"]["bf16"]
    names = [f.name for f in fields(GemmKernel) if f.name != "training_fraction"]
    return {name: float(getattr(kernel, name)) for name in names}


def test_a_slow_machine_and_what_its_sums_show_are_told_apart(tmp_path: Path) -> None:
    accelerator, rows = load_accelerator(DEVICE), []
    rng = np.random.default_rng(3)
    for way, impl in WAYS.items():
        for k in (1024, 2048, 4096, 16384):
            m, n = (int(x) for x in 1024 * rng.integers(4, 24, 2))
            formula = gemm_s(
                m=m,
                n=n,
                k=k,
                result_bytes=2.0,
                **gemm_rates(accelerator, "bf16"),
                **figures(DEVICE),
            )
            # an fp32 sum is read and written: 6 B more than a 16-bit result
            added = 6.0 * m * n / float(accelerator.memory.bandwidth_bytes_per_s)
            seconds = 1.3 * float(formula) + 0.4 * added * (way == "wgrad")
            rows.append(
                {
                    "kernel": "simumax_matmul",
                    "gpu": "a100_pcie",
                    "dtype": "bf16",
                    "direction": way,
                    "impl": impl,
                    "M": m,
                    "N": n,
                    "K": k,
                    "time_us": seconds * 1e6,
                }
            )
    with (tmp_path / "t.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    table = read_table(tmp_path / "t.csv", "kernels")
    found = backward_rates({DEVICE: figures(DEVICE)}, table)[DEVICE]
    assert found.rows == 11  # one is below 1e11 FLOP
    assert found.exposed == pytest.approx(0.4, abs=0.06)  # drawn to its prior
    assert found.dgrad == pytest.approx(1.0, abs=1e-6)


@pytest.fixture(scope="module")
def shipped() -> Table:
    return read_table(shipped_table(), "kernels")


@pytest.mark.parametrize(("device", "gpu"), [(DEVICE, "a100_pcie"), ("b200-sxm", "b200_sxm")])
def test_short_reductions_are_slower_as_timed(shipped: Table, device: str, gpu: str) -> None:
    """Both timed devices: over the formula without the sums, short ones lie above long ones; over
    the formula with them, at the same level."""
    sieve, text = Sieve(shipped), shipped.text
    match = sieve.kept & (text("kernel") == "simumax_matmul") & (text("gpu") == gpu)
    match &= (text("direction") == "wgrad") & (np.char.find(text("impl"), "out=fp32") >= 0)
    m, n, k = (sieve.positive(column, match)[match] for column in GEMM_COLUMNS.values())
    seconds = sieve.positive("time_us", match)[match] * 1e-6
    given = dict(m=m, n=n, k=k, **gemm_rates(load_accelerator(device), "bf16"))
    given |= figures(device)
    large = 2.0 * m * n * k >= 1e11

    def apart(result_bytes: float) -> float:
        over = seconds / gemm_s(**given, result_bytes=result_bytes)
        short, long = (np.median(over[large & side]) for side in (k <= 4096, k >= 16384))
        return float(short / long)

    assert apart(2.0) > 1.05
    assert abs(apart(8.0) - 1.0) < abs(apart(2.0) - 1.0) - 0.03
