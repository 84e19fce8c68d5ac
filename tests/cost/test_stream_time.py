"""Memory-bound kernels by hand: start-up, rows in waves, the cache, and how they join."""

import numpy as np
import pytest

from simulator.cost.kernels.memory_bound import stream_figures, stream_s
from simulator.hardware.cluster import load_accelerator

RATE = {"bandwidth_bytes_per_s": 2e12, "memory_fraction": 0.5, "launch_s": 2e-6}
ROWS = RATE | {"row_s_per_byte": 1e-10, "rows_per_unit": 2, "compute_units": 100}


def test_start_up_and_traffic_add_up() -> None:
    assert stream_s(moved_bytes=1e9, calls=3, **RATE) == pytest.approx(1e-3 + 6e-6)
    assert stream_s(moved_bytes=1e9, calls=0, **RATE) == pytest.approx(1e-3)


def test_rows_come_in_waves() -> None:
    # rows of 1e4 bytes take 1 us; 200 at a time
    for rows, waves in ((1, 1), (200, 1), (201, 2), (1000, 5)):
        seconds = stream_s(moved_bytes=1e4 * rows, row_bytes=1e4, **ROWS)
        assert seconds == pytest.approx(2e-6 + waves * 1e-6 + rows * 1e4 / 1e12)
    # two calls of half the rows each
    split = stream_s(moved_bytes=4e6, row_bytes=1e4, calls=2, **ROWS)
    assert split == pytest.approx(2 * 3e-6 + 4e-6)


def test_without_a_row_there_are_no_waves() -> None:
    assert stream_s(moved_bytes=1e9, **ROWS) == stream_s(moved_bytes=1e9, **RATE)


def test_a_sharp_mean_hides_the_shorter_part() -> None:
    joined = stream_s(moved_bytes=1.5e6, **RATE, sharpness=2.0)
    assert joined == pytest.approx(2.5e-6)  # 2 us of start-up, 1.5 us of traffic
    assert stream_s(moved_bytes=2e8, **RATE, sharpness=20.0) == pytest.approx(2e-4, rel=1e-6)


def test_what_fits_into_the_cache_moves_faster() -> None:
    cached = RATE | {"cached_gain": 1.0, "l2_bytes": 100e6}
    small, half, large = stream_s(moved_bytes=np.array([1e5, 6e7, 6e9]), **cached) - 2e-6
    assert small == pytest.approx(1e-7 / 2, rel=1e-6)
    assert half == pytest.approx(6e-5 / 1.5)  # 60 % of the cache: half of the gain
    assert large == pytest.approx(6e-3, rel=2e-6)


def test_more_bytes_never_take_less_time() -> None:
    kernel = ROWS | {"cached_gain": 0.3, "l2_bytes": 40e6, "sharpness": 3.0}
    moved = np.geomspace(1e4, 1e9, 300)
    seconds = stream_s(moved_bytes=moved, row_bytes=16384.0, **kernel)
    assert (np.diff(seconds) >= -1e-12).all()


@pytest.mark.parametrize(
    ("input_bytes", "weight_bytes", "kernels", "measured_ms"),
    [
        (2 + 2 * 33 / 32, 2 + 33 / 32, 2, 8.984 - 7.161),  # mxfp8
        (4 + 2 * 9 / 16, 4 + 9 / 16, 6, 6.453 - 3.764),  # nvfp4: and once more for the maximum
        (4 + 1, 4 + 1, 8, 9.147 - 6.812),  # fp8 with a present scale: no transposed copy
    ],
)
def test_casts_take_what_transformer_engine_shows(
    input_bytes: float, weight_bytes: float, kernels: int, measured_ms: float
) -> None:
    """12 linears of 15,872 tokens and hidden 4096 on B300, with casts less without.

    Inputs are cast along rows and columns, weights along rows, whatever product a linear stands
    for (NVIDIA/TransformerEngine docs/examples/gemm_profiling, benchmarks/gemm/benchmark_gemm.py).
    """
    m, h, i = 15872, 4096, 16384
    forward = [(m, h, 3 * h), (m, h, h), (m, h, i), (m, i, h)]
    backward = [(m, n, k) for _, k, n in forward] + [(k, m, n) for _, k, n in forward]
    linears = forward + backward
    inputs = sum(rows * k for rows, k, _ in linears)
    weights = sum(k * n for _, k, n in linears)
    moved = inputs * input_bytes + weights * weight_bytes
    figures = stream_figures(load_accelerator("b300-sxm"), "cast")
    seconds = float(stream_s(moved_bytes=moved, calls=12 * kernels, **figures))
    assert 1e3 * seconds == pytest.approx(measured_ms, rel=0.16)


def test_atomic_sums_take_what_others_timed() -> None:
    """2,048 tokens, two experts each, rows of 4,096 on an H200: 0.20 ms with the weights of routing
    (tile-ai/TileOPs#608, its torch column). The gradient of 196,608 rows of 2,048 on a B200 takes
    1.85 ms (pytorch/ao#4623).
    """
    rows = 2048 * 2 * 4096 * 2.0  # bytes
    h200, b200 = (load_accelerator(name) for name in ("h200-sxm", "b200-sxm"))
    added_s = stream_s(moved_bytes=3 * rows, **stream_figures(h200, "scatter_add"))
    weighed_s = stream_s(moved_bytes=2 * rows, **stream_figures(h200, "elementwise"))
    assert float(added_s + weighed_s) == pytest.approx(0.20e-3, rel=0.2)
    wide = 3 * 196_608 * 2048 * 2.0
    assert float(stream_s(moved_bytes=wide, **stream_figures(b200, "scatter_add"))) == (
        pytest.approx(1.85e-3, rel=0.05)
    )
