"""Products that add to results of four bytes: what is written beyond two bytes is on top."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.flat_kernels import gemm_s

UNIT: dict[str, Any] = {
    "peak_flop_per_s": 1e15, "bandwidth_bytes_per_s": 3e12, "compute_units": 100, "l2_bytes": 5e7,
    "operand_bytes": 2.0, "peak_fraction": 0.8, "clock_exponent": 0.5, "sustained_fraction": 0.8,
    "unaligned_fraction": 1.0, "prologue_k": 0.0, "wave_quantisation": 0.0,
    "small_tile_penalty": 0.0, "split_k_s": 1.0, "l2_refetch": 0.0, "launch_s": 0.0,
    "memory_fraction": 1.0,
}  # fmt: skip


@pytest.mark.parametrize("batch", [1.0, 3.0])
def test_what_is_added_grows_with_the_batch(batch: float) -> None:
    """8 bytes an element where the sum is read too: 6 of them over the memory's rate."""
    sizes = {"m": 4096, "n": 4096, "k": 8192, "batch": batch, "result_bytes": 8.0}
    plain, whole = (
        float(np.asarray(gemm_s(**UNIT, accumulate_exposed=exposed, **sizes)))
        for exposed in (0.0, 1.0)
    )
    assert whole - plain == pytest.approx(6.0 * batch * 4096**2 / 3e12, rel=1e-9)
