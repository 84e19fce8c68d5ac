"""Fits recover what made the data, score unseen shapes honestly, and refuse what is no data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from simulator import catalogue
from simulator.calibration import Floats, Prior, Rows, fit_and_score
from simulator.calibration.fit_gemm import fit_gemm, read_gemm
from simulator.calibration.fit_kernels import (
    backward_fraction,
    fit_attention,
    fit_stream,
    read_attention,
    read_stream,
)
from simulator.cost.kernels import NO_SPLIT_S, attention_s, gemm_rates, gemm_s, stream_s
from simulator.errors import InputError
from simulator.files import read_profile
from simulator.hardware.accelerator import Accelerator

SAMPLE = Path(__file__).parents[1] / "data" / "gemm_sample.csv"
PROFILES = {"a100_sxm": "a100-sxm-80", "h100_sxm": "h100-sxm", "b200_sxm": "b200-sxm"}
BLOCK_SCALED = {
    ("b200-sxm", "nvfp4"): [
        (4096, 3072, 6144, 63.986), (4096, 16384, 8192, 271.981), (2817, 16384, 16384, 367.445),
        (1537, 3584, 51200, 242.784), (769, 10240, 16384, 80.712), (769, 7168, 10240, 50.915),
        (8192, 1024, 3584, 46.342),
    ],
    ("b300-sxm", "nvfp4"): [
        (2561, 8192, 2048, 38.523), (513, 12288, 16384, 73.539), (2561, 12288, 6144, 95.981),
        (1537, 7168, 65536, 365.835), (1536, 51200, 16384, 477.669), (8192, 65536, 3584, 891.859),
    ],
    ("gb300", "nvfp4"): [
        (4096, 2560, 8192, 68.19), (1281, 12288, 16384, 125.147), (4097, 16384, 8192, 215.728),
        (4353, 65536, 3584, 462.141), (4097, 65536, 7168, 704.885), (1025, 65536, 51200, 1269.669),
    ],
}  # fmt: skip
"""M, N, K, microseconds: TRT-LLM calls of ai-dynamo/aiconfigurator@095f58a5 (Apache-2.0), the cast
of the first operand included."""


def accelerator(name: str) -> Accelerator:
    return read_profile(Accelerator, catalogue.find("accelerators", name))


def gemm_seconds(rows: Rows, device: Accelerator, dtype: str, **changed: float) -> Floats:
    kernel = device.gemm["cublas"][dtype]
    own = {field.name: float(getattr(kernel, field.name)) for field in dataclasses.fields(kernel)}
    return gemm_s(
        m=rows["m"], n=rows["n"], k=rows["k"], result_bytes=2.0, sustained=False,
        **gemm_rates(device, dtype), **(own | changed),
    )  # fmt: skip


def made_shapes(count: int = 300) -> Rows:
    draw = np.random.default_rng(7)
    sides = 2.0 ** draw.uniform(6, 15, (3, count))
    return dict(zip("mnk", np.round(sides), strict=True))


@pytest.mark.parametrize(
    ("name", "dtype", "share", "prologue_k"),
    [
        ("h100-sxm", "bf16", 0.78, 220.0),
        ("h100-sxm", "fp8", 0.78, 220.0),
        ("h100-sxm", "fp8_blockwise", 0.78, 600.0),
        ("b200-sxm", "nvfp4", 0.55, 800.0),
    ],
)
def test_gemm_fit_recovers_the_parameters_that_made_the_times(
    name: str, dtype: str, share: float, prologue_k: float
) -> None:
    device = accelerator(name)
    truth = {"peak_fraction": share, "sustained_fraction": 0.9, "prologue_k": prologue_k,
             "memory_fraction": 0.9, "wave_quantisation": 0.7, "launch_s": 4e-6}  # fmt: skip
    rows = made_shapes()
    noise = np.exp(np.random.default_rng(1).normal(0.0, 0.01, 300))
    rows["seconds"] = gemm_seconds(rows, device, dtype, **truth) * noise

    fit = fit_gemm(rows, device, dtype=dtype)

    assert fit.rows == 300
    assert fit.median_error < 0.015
    assert fit.spread < 0.03
    product = fit.values["peak_fraction"] * fit.values["sustained_fraction"]
    assert product == pytest.approx(share * 0.9, rel=0.04)
    for parameter, value in truth.items():
        assert fit.values[parameter] == pytest.approx(value, rel=0.1), parameter
    assert set(fit.values) <= {f.name for f in dataclasses.fields(device.gemm["cublas"][dtype])}


def test_gemm_fit_shrugs_off_a_few_wild_rows() -> None:
    device = accelerator("a100-sxm-80")
    rows = made_shapes()
    rows["seconds"] = gemm_seconds(rows, device, "bf16", peak_fraction=0.95)
    rows["seconds"][::30] *= 3.0
    assert fit_gemm(rows, device, dtype="bf16").values["peak_fraction"] == pytest.approx(
        0.95, rel=0.02
    )


def test_attention_fit_recovers_peak_and_half_length() -> None:
    device = accelerator("h100-sxm")
    draw = np.random.default_rng(3)
    rows: Rows = {
        "batch": np.full(60, 4.0),
        "heads": draw.choice([16.0, 32.0, 64.0], 60),
        "kv_heads": np.full(60, 8.0),
        "sequence": draw.choice([1024.0, 2048.0, 4096.0, 8192.0, 16384.0], 60),
        "head_size": np.full(60, 128.0),
    }
    rows["seconds"] = attention_s(
        flop=2 * 4.0 * rows["heads"] * rows["sequence"] ** 2 * 128,
        moved_bytes=2 * 4.0 * rows["sequence"] * 128 * (2 * rows["heads"] + 4 * 8),
        sequence=rows["sequence"], peak_flop_per_s=989.4e12, bandwidth_bytes_per_s=3.35e12,
        peak_fraction=0.65, half_length=900.0,
    )  # fmt: skip
    fit = fit_attention(rows, device)
    assert fit.values["peak_fraction"] == pytest.approx(0.65, rel=0.01)
    assert fit.values["half_length"] == pytest.approx(900.0, rel=0.02)


def test_stream_fit_recovers_share_and_launch() -> None:
    device = accelerator("h100-sxm")
    rows: Rows = {"moved_bytes": np.geomspace(1e6, 1e9, 40)}
    rows["seconds"] = stream_s(
        moved_bytes=rows["moved_bytes"], bandwidth_bytes_per_s=3.35e12,
        memory_fraction=0.4, launch_s=3e-6,
    )  # fmt: skip
    fit = fit_stream(rows, device)
    assert fit.values == pytest.approx({"memory_fraction": 0.4, "launch_s": 3e-6}, rel=0.01)


def test_errors_are_those_of_shapes_left_out() -> None:
    """A parameter that only one shape can tell is not scored on that shape's own rows."""
    rows: Rows = {"shape": np.repeat(np.arange(1.0, 11.0), 3)}
    rows["seconds"] = np.where(rows["shape"] == 10.0, 4.0, 1.0)
    priors = {"odd": Prior(value=1.0, width=5.0, low=0.1, high=10.0)}

    def predict(values: Mapping[str, float], rows: Rows) -> Floats:
        return np.where(rows["shape"] == 10.0, values["odd"], 1.0)

    fit = fit_and_score(priors, predict, rows, rows["shape"] == 10.0)
    assert fit.values["odd"] == pytest.approx(4.0, rel=0.01)
    assert fit.median_error == pytest.approx(0.75, abs=0.01)


def test_no_more_than_600_rows_are_fitted() -> None:
    rows: Rows = {"x": np.arange(1.0, 2001.0), "seconds": np.arange(2.0, 4002.0, 2.0)}
    priors = {"slope": Prior(value=1.0, width=1.0, low=0.1, high=10.0)}
    fit = fit_and_score(priors, lambda v, r: v["slope"] * r["x"], rows, rows["x"] > 0)
    assert fit.rows == 600
    assert fit.values["slope"] == pytest.approx(2.0, rel=1e-3)
    assert fit.p90_error == pytest.approx(0.0, abs=1e-3)
    assert fit.spread == pytest.approx(0.0, abs=1e-6)


def test_backward_fraction_counts_shapes_that_fill_the_device() -> None:
    shape = {"batch": np.ones(3), "heads": np.array([64.0, 32.0, 1.0]), "kv_heads": np.ones(3),
             "sequence": np.full(3, 4096.0), "head_size": np.full(3, 128.0)}  # fmt: skip
    forward: Rows = shape | {"seconds": np.array([1.0, 1.0, 1.0])}
    backward: Rows = shape | {"seconds": np.array([3.125, 3.125, 100.0])}
    middle, spread = backward_fraction(forward, backward, compute_units=108)
    assert (middle, spread) == (0.8, 0.0)
    with pytest.raises(InputError, match="no shape that fills the device"):
        backward_fraction(forward, backward, compute_units=10_000)


@pytest.mark.parametrize(
    ("gpu", "limit"), [("a100_sxm", 0.05), ("h100_sxm", 0.06), ("b200_sxm", 0.12)]
)
def test_shipped_profiles_predict_the_measured_sample(gpu: str, limit: float) -> None:
    """The B200 clock is set between two machines, the sample comes from the faster one."""
    rows = read_gemm(SAMPLE, gpu=gpu, dtype="bf16")
    seconds = gemm_seconds(rows, accelerator(PROFILES[gpu]), "bf16")
    error = np.abs(seconds / rows["seconds"] - 1.0)
    assert len(error) == 22
    assert np.median(error) < limit


def test_shipped_profiles_predict_the_whole_sample_within_six_percent() -> None:
    errors = []
    for gpu, profile in PROFILES.items():
        rows = read_gemm(SAMPLE, gpu=gpu, dtype="bf16")
        errors.append(gemm_seconds(rows, accelerator(profile), "bf16") / rows["seconds"] - 1.0)
    assert np.median(np.abs(np.concatenate(errors))) < 0.06
    assert abs(np.median(np.concatenate(errors))) < 0.03


@pytest.mark.parametrize(("name", "dtype"), BLOCK_SCALED)
def test_shipped_profiles_predict_block_scaled_products(name: str, dtype: str) -> None:
    m, n, k, taken_us = np.array(BLOCK_SCALED[name, dtype]).T
    seconds = gemm_seconds({"m": m, "n": n, "k": k}, accelerator(name), dtype)
    error = np.abs(seconds * 1e6 / taken_us - 1.0)
    assert np.median(error) < 0.1
    assert error.max() < 0.3


def test_a_library_that_never_splits_is_fitted_so() -> None:
    """Products with few tiles and a long K are where a split would pay."""
    device, rows = accelerator("h100-sxm"), made_shapes()
    rows["seconds"] = gemm_seconds(rows, device, "fp8_blockwise")
    values = fit_gemm(rows, device, dtype="fp8_blockwise").values
    assert values["split_k_s"] > NO_SPLIT_S
    long: Rows = {"m": np.array([256.0]), "n": np.array([256.0]), "k": np.array([65536.0])}
    never = gemm_seconds(long, device, "fp8_blockwise", **values)
    assert never > 1.5 * gemm_seconds(long, device, "fp8_blockwise", **values | {"split_k_s": 2e-6})


def test_a_table_without_such_rows_is_refused() -> None:
    with pytest.raises(InputError) as refused:
        read_gemm(SAMPLE, gpu="h100-sxm", dtype="bf16")
    assert str(refused.value) == (
        f"{SAMPLE}: no gemm bfloat16 trtllm rows of gpu 'h100-sxm' (did you mean 'h100_sxm'?)"
    )
    with pytest.raises(InputError, match=r"no gemm fp8 trtllm rows"):
        read_gemm(SAMPLE, gpu="h100_sxm", dtype="fp8")
    with pytest.raises(InputError, match=r"no attention_prefill bfloat16 vllm rows"):
        read_attention(SAMPLE, gpu="h100_sxm", library="vllm")
    with pytest.raises(InputError, match=r"no membound_add rows"):
        read_stream(SAMPLE, gpu="h100_sxm", kernel="membound_add")


def test_a_library_or_type_that_is_not_known_is_refused() -> None:
    with pytest.raises(InputError, match=r"library: must be one of .*got 'cublass'"):
        read_gemm(SAMPLE, gpu="h100_sxm", dtype="bf16", library="cublass")
    with pytest.raises(InputError, match=r"dtype: must be one of .*got 'int8'"):
        read_gemm(SAMPLE, gpu="h100_sxm", dtype="int8")
    with pytest.raises(InputError, match=r"dtype: must be one of .*got 'mxfp8'"):
        fit_gemm(made_shapes(), accelerator("b200-sxm"), dtype="mxfp8")


def test_too_few_rows_are_refused() -> None:
    rows = {name: column[:5] for name, column in made_shapes().items()}
    rows["seconds"] = np.ones(5)
    with pytest.raises(InputError, match="needs at least 27 rows for 9 parameters"):
        fit_gemm(rows, accelerator("h100-sxm"), dtype="bf16")


def test_a_time_that_is_no_positive_number_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "times.csv"
    head = "kernel,gpu,dtype,impl,M,N,K,time_us,framework\n"
    table.write_text(f"{head}gemm,x,bfloat16,,64,64,64,-1,trtllm\n")
    with pytest.raises(InputError, match=r"line 2: time_us: must be a positive number, got '-1'"):
        read_gemm(table, gpu="x", dtype="bf16")


def test_both_ways_of_writing_attention_rates(tmp_path: Path) -> None:
    """Serving tables give seconds; training tables give rates over FLOPs without the mask."""
    table = tmp_path / "times.csv"
    head = "kernel,gpu,dtype,impl,batch,seq_q,heads_q,heads_kv,head_dim,time_us,tflops,framework\n"
    shape = "1,4096,64,8,128"
    table.write_text(
        f"{head}attention_prefill,x,bfloat16,a/kv=bfloat16,{shape},500,0.0,vllm\n"
        f"attention_prefill,x,bfloat16,a/kv=fp8,{shape},300,0.0,vllm\n"
        f"simumax_sdp_fwd,x,bf16,,{shape},,500,SimuMax measured\n"
        f"simumax_sdp_bwd,x,bf16,,{shape},,400,SimuMax measured\n"
    )
    serving = read_attention(table, gpu="x", library="vllm")
    assert serving["seconds"].tolist() == pytest.approx([500e-6])
    unmasked = 4 * 64 * 4096**2 * 128
    forward = read_attention(table, gpu="x", library="te")
    assert forward["seconds"].tolist() == pytest.approx([unmasked / 500e12])
    backward = read_attention(table, gpu="x", library="te", backward=True)
    assert backward["seconds"].tolist() == pytest.approx([2.5 * unmasked / 400e12])
