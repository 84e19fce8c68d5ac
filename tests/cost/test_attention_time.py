"""Fused attention by hand: tiles, tails, head sizes, traffic; and laws that always hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator.hardware.cluster import load_accelerator
from tests.flat_kernels import attention_figures, attention_s

# 100 units of 1 TFLOP/s each, tiles of 128 queries, nothing but products
PLAIN: dict[str, Any] = {
    "peak_flop_per_s": 100e12, "bandwidth_bytes_per_s": 1e12, "compute_units": 100, "launch_s": 0.0,
    "peak_fraction": 1.0, "sustained_fraction": 1.0, "training_fraction": 1.0,
    "backward_fraction": 1.0, "tile_rows": 128, "softmax_width": 0.0, "prologue_keys": 0.0,
    "tail_fraction": 0.0, "backward_tail_fraction": 0.0, "narrow_head_factor": 1.0,
    "wide_head_factor": 1.0, "wide_head_step": 64, "query_traffic": 0.0, "key_traffic": 0.0,
}  # fmt: skip
KEY_S = 4 * 128 * 128 / 1e12
"""A tile of 128 queries and one key: two products of 128 x 128, two FLOPs each."""


def call_s(length: float = 1024, heads: float = 1000, size: float = 128, **changed: Any) -> float:
    """Seconds of a causal call; keys of the call may be changed like figures."""
    sizes = {
        "heads": heads,
        "queries": length,
        "keys": length / 2,
        "span": length,
        "score_size": size,
        "value_size": size,
        "query_bytes": 0.0,
        "key_bytes": 0.0,
    }
    return float(attention_s(**(sizes | PLAIN | changed)))


def test_tiles_of_a_causal_call_pass_half_the_keys_and_half_a_tile() -> None:
    # 1000 heads of 8 tiles on 100 units: 80 tiles each, 512 + 64 keys each
    assert call_s() == pytest.approx(80 * (512 + 64) * KEY_S)
    # the ninth tile of 1025 queries is as wide as the others
    assert call_s(1025) == pytest.approx(90 * (512.5 + 64) * KEY_S)


def test_without_a_mask_every_tile_passes_all_keys() -> None:
    assert call_s(keys=1024) == pytest.approx(80 * 1024 * KEY_S)


def test_a_window_ends_the_keys_of_a_tile() -> None:
    assert call_s(keys=200, span=256) == pytest.approx(80 * 256 * KEY_S)
    assert call_s(keys=100, span=256) == pytest.approx(80 * 164 * KEY_S)


def test_blocks_that_a_window_cuts_are_worked_on_whole() -> None:
    # tiles of 256 queries, a window of 128 keys: two blocks of 256 keys, the tile's own and the
    # one before it; a window over all queries cuts nothing
    sizes: dict[str, Any] = {"tile_rows": 256, "window_block": 256.0, "backward_tile_rows": 256.0}
    sizes |= {"keys": 128, "span": 128}
    assert call_s(4096, **sizes) == pytest.approx(1000 * 16 / 100 * 512 * 2 * KEY_S)
    assert call_s(4096, **sizes, backward=True) == pytest.approx(2.5 * call_s(4096, **sizes))
    assert call_s(window_block=256.0) == call_s()


def test_a_device_that_is_not_filled_waits_for_its_longest_tile() -> None:
    # one head: 8 tiles, the last of which meets all 1024 keys
    assert call_s(heads=1) == pytest.approx(1024 * KEY_S)
    # and a filled one for a share of it
    assert call_s(tail_fraction=0.5) == pytest.approx((80 * 576 + 0.5 * 1024) * KEY_S)


def test_prologue_makes_short_sequences_slow() -> None:
    """With many tiles the rate is s / (s + tile + 2 prologue)."""
    for length in (1024, 4096, 16384):
        flop = 2 * 1e6 * length**2 * 128
        rate = flop / call_s(length, heads=1e6, prologue_keys=100)
        assert rate == pytest.approx(100e12 * length / (length + 128 + 200), rel=1e-9)


def test_softmax_weighs_more_on_narrow_heads() -> None:
    whole = call_s(softmax_width=32)
    assert whole == pytest.approx(call_s())  # the rate is stated at 128, softmax included
    assert call_s(size=64, softmax_width=32) == pytest.approx(whole * (64 + 32) / (128 + 32))


def test_heads_are_padded_to_sizes_that_kernels_have() -> None:
    assert call_s(size=72) == pytest.approx(call_s() * 96 / 128)
    # wider heads come in tiles of half as many queries: 16 of 512 + 32 keys
    wide = 160 * (512 + 32) * 4 * 64 * 192 / 1e12
    assert call_s(size=150) == pytest.approx(wide)
    assert call_s(size=150, wide_head_step=256) == pytest.approx(wide * 256 / 192)
    # where only queries and keys are wide, the accumulator is not
    assert call_s(score_size=192) == pytest.approx(call_s() * 160 / 128)


def test_head_factors_count_octaves_from_128() -> None:
    assert call_s(size=32, narrow_head_factor=1.1) == pytest.approx(1.21 * call_s(size=32))
    assert call_s(size=256, wide_head_factor=1.5) == pytest.approx(1.5 * call_s(size=256))


def test_the_backward_pass_has_five_products_and_a_tail_of_its_own() -> None:
    back = call_s(backward=True, backward_fraction=0.8, tile_rows=64)
    assert back == pytest.approx(2.5 / 0.8 * call_s())
    tailed = call_s(backward=True, backward_tail_fraction=1.0, tail_fraction=9.0)
    assert tailed == pytest.approx(2.5 * (80 * 576 + 1024) * KEY_S)
    moved = {"query_bytes": 1e9, "query_traffic": 1.0}
    assert call_s(backward=True, **moved) - call_s(backward=True) == pytest.approx(2e-3)


def test_queries_and_keys_pass_the_memory() -> None:
    traffic = {"query_bytes": 2e9, "query_traffic": 1.5, "key_bytes": 1e9, "key_traffic": 4.0}
    assert call_s(**traffic) - call_s() == pytest.approx(7e-3)


def test_training_has_its_own_clock_and_a_burst_falls_to_the_sustained_one() -> None:
    clocks = {"training_fraction": 0.5, "sustained_fraction": 0.8, "launch_s": 1e-5}
    assert call_s(**clocks) == pytest.approx(1e-5 + 2 * call_s())
    taken = call_s()
    burst = taken * (1.0 + 0.25 * taken / (taken + 1.5e-3))
    assert call_s(**clocks, sustained=False) == pytest.approx(1e-5 + burst)


def test_laws() -> None:
    """More keys, queries or heads never take less time; a faster device never more."""
    real = {"softmax_width": 60, "prologue_keys": 150, "tail_fraction": 0.8, "tile_rows": 256}
    lengths = np.arange(64, 20000, 64)
    seconds = [call_s(float(length), heads=16, **real) for length in lengths]
    assert (np.diff(seconds) > 0).all()
    for field in ("peak_flop_per_s", "training_fraction"):
        changed = real | {field: 2.0 * PLAIN[field]}
        assert call_s(4096, heads=16, **changed) <= call_s(4096, heads=16, **real)
    whole = call_s(4096, heads=16, **real)
    assert call_s(4096, heads=32, **real) > whole
    shared = call_s(
        4096,
        heads=16,
        **real | {"bandwidth_bytes_per_s": 2e12, "query_bytes": 1e9, "query_traffic": 1.0},
    )
    assert shared > whole


@pytest.mark.parametrize(("library", "measured_s"), [("sdpa", 11.8879e-3), ("flash", 7.4875e-3)])
def test_both_libraries_on_hopper_take_what_transformer_engine_prints(
    library: str, measured_s: float
) -> None:
    """flash-attn 2.4.2 and cuDNN 9.3 on an H100, forward and backward, 2 sequences of 8,192 tokens,
    32 heads of 128, 4 of keys (NVIDIA/TransformerEngine v1.12 docs/examples/attention)."""
    row_bytes = 2 * 2 * 8192 * 128 * 2.0  # two tensors of a head in 16 bit, two sequences
    sizes = {"heads": 64, "queries": 8192, "keys": 4096, "span": 8192, "score_size": 128}
    sizes |= {"value_size": 128, "query_bytes": 32 * row_bytes, "key_bytes": 4 * row_bytes}
    figures = attention_figures(load_accelerator("h100-sxm"), library, "bf16")
    call_s = [
        float(attention_s(**sizes, **figures, backward=way, sustained=False))
        for way in (False, True)
    ]
    assert sum(call_s) == pytest.approx(measured_s, rel=0.05)


def test_a_backward_pass_that_ignores_the_window_works_on_all_keys() -> None:
    window: dict[str, Any] = {"keys": 128, "span": 128, "backward": True}
    assert call_s(**window, backward_ignores_window=1.0) == call_s(backward=True)
    assert call_s(**window) < call_s(backward=True)
    assert call_s(keys=128, span=128, backward_ignores_window=1.0) == call_s(keys=128, span=128)


@pytest.mark.parametrize(
    ("device", "length", "measured"),
    [("gb200", 4096, 2.08e-3), ("gb200", 16384, 27.9e-3), ("gb300", 8192, 6.65e-3)],
)
def test_windows_in_mxfp8_take_what_cudnn_takes(device: str, length: int, measured: float) -> None:
    """GPT-OSS's heads with windows of 128, backward (cudnn-frontend, results/gpt_oss).

    In 16 bit the same calls take 0.47, 1.8 and 0.86 ms.
    """
    heads, bytes_ = 2 * 128, 2.0 * 2 * length * 128 * 128
    call = {"heads": heads, "queries": length, "keys": 128, "span": 128, "score_size": 64}
    call |= {"value_size": 64, "query_bytes": bytes_, "key_bytes": bytes_}
    seconds = {}
    for library, dtype in (("cudnn_mxfp8", "mxfp8"), ("cudnn", "bf16")):
        figures = attention_figures(load_accelerator(device), library, dtype)
        found = attention_s(**call, **figures, backward=True, sustained=False)
        seconds[library] = float(found)
    assert seconds["cudnn_mxfp8"] == pytest.approx(measured, rel=0.15)
    assert seconds["cudnn"] < measured / 4
