"""AMD's 16-bit products under a load that lasts, against what was published of hipBLASLt."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from simulator.arrays import Floats
from simulator.hardware.cluster import load_accelerator
from tests.flat_kernels import gemm_rates, gemm_s

LARGEST = (4096, 4864, 32896)
"""Where AMD finds the most FLOP/s (ROCm blogs, Measuring Max-Achievable FLOPs, part 2)."""


def tflops(device: str, dtype: str, *shapes: tuple[int, int, int], **figures: float) -> Floats:
    """Return the rate of each product as a training step has it, with other `figures`."""
    part = load_accelerator(device)
    kernel = part.gemm["cublas"][dtype]
    own = {field.name: float(getattr(kernel, field.name)) for field in fields(kernel)} | figures
    m, n, k = np.array(shapes, dtype=float).T
    rates = gemm_rates(part, dtype)
    return np.asarray(2e-12 * m * n * k / gemm_s(m=m, n=n, k=k, result_bytes=2.0, **rates, **own))


@pytest.mark.parametrize(
    ("device", "shape", "published"),
    [
        # normal values, 30 s at 1,000 W (ROCm blogs, Typical Attained FLOPs, October 2026)
        ("mi325x", LARGEST, 831.4),
        # after 500 warm calls (HazyResearch/HipKittens analysis/bf16_gemm/mi325x)
        ("mi325x", (4096, 4096, 4096), 751.7),
        ("mi325x", (8192, 8192, 8192), 785.5),
        ("mi325x", (16384, 16384, 16384), 748.7),
        # best of a sweep (stas00/ml-engineering)
        ("mi325x", (13312, 10240, 8192), 784.9),
        ("mi300x", (10240, 15360, 8192), 668.4),
        ("mi300x", LARGEST, 708.0),
    ],
)
def test_bf16_products(device: str, shape: tuple[int, int, int], published: float) -> None:
    assert tflops(device, "bf16", shape)[0] == pytest.approx(published, rel=0.08)


def test_a_lasting_load_is_what_was_timed() -> None:
    """The cap had set the clock already: training takes nothing off."""
    for device in ("mi300x", "mi325x"):
        kernel = load_accelerator(device).gemm["cublas"]["bf16"]
        assert float(kernel.training_fraction or 0.0) == float(kernel.sustained_fraction) == 1.0


@pytest.mark.parametrize(
    ("device", "size", "published", "within"),
    [
        # after 500 warm calls (HazyResearch/HipKittens analysis/fp8_gemm/mi350x)
        ("mi355x", 2048, 1172.7, 0.01),
        ("mi355x", 4096, 2748.8, 0.01),
        ("mi355x", 8192, 3233.2, 0.01),
        ("mi355x", 16384, 3293.2, 0.01),
        ("mi350x", 4096, 1977.2, 0.06),
        ("mi350x", 8192, 2660.2, 0.10),
        ("mi350x", 16384, 2294.3, 0.10),
    ],
)
def test_fp8_products(device: str, size: int, published: float, within: float) -> None:
    """Operands are cast before; starts of the timed calls are by least squares, too."""
    timed = {"training_fraction": 1.0, "launch_s": {"mi355x": 8.6e-6, "mi350x": 12e-6}[device]}
    apart = {"quantise_bytes_per_element": 0.0, "quantise_row_s": 0.0}
    (found,) = tflops(device, "fp8", (size,) * 3, **timed, **apart)
    assert found == pytest.approx(published, rel=within)
