"""Every shipped accelerator loads, says where each figure is from, and is physically possible."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from simulator import catalogue
from simulator.cost.kernels.gemm import NO_SPLIT_S
from simulator.files import GRADES, Figure, figures, read_profile
from simulator.hardware.accelerator import Accelerator, AttentionKernel, GemmKernel, StreamKernel
from tests.flat_kernels import attention_figures, attention_s, gemm_rates, gemm_s

NAMES = sorted(p.stem for p in (catalogue.folder("hardware_profiles") / "accelerators").iterdir())


def path_of(name: str) -> Path:
    return catalogue.folder("hardware_profiles") / "accelerators" / f"{name}.toml"


BLACKWELL = ["b200-sxm", "b300-sxm", "gb200", "gb300"]
TYPES = {
    "pascal": set(), "volta": set(), "turing": set(), "ampere": set(), "ampere-ga10x": set(),
    "ada": {"fp8"}, "blackwell-gb20x": {"fp8"},
    "hopper": {"fp8", "fp8_blockwise"},
    "blackwell": {"fp8", "mxfp8", "nvfp4"}, "rubin": {"fp8", "mxfp8", "nvfp4"},
    "cdna2": set(), "cdna3": {"fp8"}, "cdna4": {"fp8", "mxfp8"},
    "cdna5": {"fp8", "mxfp8"}, "tpu-v8": {"fp8"}, "trainium3": {"fp8", "mxfp8"},
    "gaudi2": {"fp8"}, "gaudi3": {"fp8"}, "da-vinci": set(),
    "tpu-v3": set(), "tpu-v4": set(), "tpu-v5": set(), "tpu-v6": set(), "tpu-v7": {"fp8"},
    "trainium1": set(), "trainium2": {"fp8"},
}  # fmt: skip
"""Types of fewer than 16 bits that have kernels, by generation."""
NO_BF16 = {"pascal", "volta", "turing"}


CLASSES = {"elementwise", "norm", "softmax", "loss", "optimizer", "copy"}


def accelerator(name: str) -> Accelerator:
    return read_profile(Accelerator, path_of(name), kind="accelerators")


def test_the_parts_people_train_on_are_there() -> None:
    assert {
        "a100-sxm-40",
        "a100-sxm-80",
        "a800-sxm-80",
        "b200-sxm",
        "b300-sxm",
        "gb200",
        "gb300",
        "h100-hbm2e-96",
        "h100-sxm",
        "h200-sxm",
        "h800-sxm",
        "l40s",
    } <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_inherited_figures_say_how_well_they_are_known_as_well(name: str) -> None:
    """Those of a profile itself, of every kind, are checked in test_profiles."""
    found = list(figures(accelerator(name)))
    assert len(found) > 30
    absent = {
        f.name: f.default
        for record in (Accelerator, AttentionKernel, GemmKernel, StreamKernel)
        for f in dataclasses.fields(record)
        if isinstance(f.default, Figure)
    }
    for field, figure in found:
        if figure.source == "user" and figure == absent.get(field.rsplit(".", 1)[-1]):
            continue  # a term that this library or class does not have
        assert figure.grade in GRADES, field
        assert len(figure.source) > 10 and figure.source != "user", field
        assert figure.date.startswith("2026-11-"), field
        assert figure.spread is None or 0.0 < figure.spread < 0.4, field


@pytest.mark.parametrize("name", NAMES)
def test_peaks_and_parameters_are_consistent(name: str) -> None:
    part = accelerator(name)
    peak = part.matrix_flop_per_s
    half = peak[part.sixteen_bit]
    assert ("bf16" in peak) == (part.generation not in NO_BF16)
    if part.vendor in ("NVIDIA", "AMD", "Huawei"):
        assert peak["fp16"] == half
    assert half >= 1.9 * peak.get("tf32", half / 2) >= 1.9 * peak.get("fp32", 0.0)
    assert set(peak) - {"fp32", "tf32", "fp16", "bf16"} == TYPES[part.generation]
    # the matrix units of Gaudi 3 gain nothing, those of Rubin 1,260 over 288 PFLOP/s of a rack,
    # those of a Trainium3 2,517 over 671 TFLOP/s
    times = {"gaudi3": 1.0, "vr200": 1260 / 288, "trainium3-core": 2517 / 671}.get(name, 2.0)
    for eight_bit in ("fp8", "fp8_blockwise", "mxfp8"):
        assert peak.get(eight_bit, times * half) == pytest.approx(times * half, rel=0.03)
    if "nvfp4" in peak:
        assert 2.0 * peak["fp8"] <= peak["nvfp4"] < 3.4 * peak["fp8"]
    for library, types in part.gemm.items():
        assert set(types) == set(peak) if library == "cublas" else set(types) < set(peak), library
    assert set(part.stream) >= CLASSES
    assert "flash" in part.attention


@pytest.mark.parametrize("name", NAMES)
def test_fractions_and_times_are_possible(name: str) -> None:
    for field, figure in figures(accelerator(name)):
        last = field.rsplit(".", 1)[-1]
        if last.endswith("_fraction"):
            nothing_waits = last.endswith("tail_fraction") and figure == 0.0
            assert nothing_waits or 0.0 < figure < 1.2, field
        if last == "launch_s":
            assert 0.1e-6 < figure <= 40e-6, field
        if last == "split_k_s":  # block-scaled kernels never split
            splits = not any(word in field for word in ("fp8_blockwise", "nvfp4", "vllm.fp8"))
            assert (0.1e-6 < figure < NO_SPLIT_S) == splits, field
        if last == "wave_quantisation":
            assert 0.0 <= figure <= 1.0, field
        if last == "small_tile_penalty":
            assert 0.0 <= figure <= (3.0 if "nvfp4" in field or "grouped" in field else 1.0), field
    part = accelerator(name)
    for library, types in part.gemm.items():
        most = 0.9 if library == "cublas" else 0.95  # elsewhere the clock of cuBLAS is assumed
        for kernel in types.values():
            assert kernel.peak_fraction * kernel.training_fraction < most


@pytest.mark.parametrize("name", NAMES)
def test_memory_is_what_an_allocator_gets(name: str) -> None:
    memory = accelerator(name).memory
    assert 0.87 * memory.capacity_bytes < memory.usable_bytes <= 1.1 * memory.capacity_bytes
    assert memory.usable_bytes / 2**20 > 1000.0
    assert memory.l2_bytes < 1e-2 * memory.capacity_bytes


@pytest.mark.parametrize("name", NAMES)
def test_power_rises_with_work(name: str) -> None:
    power = accelerator(name).power
    assert 5.0 < power.idle_watt < 0.25 * power.busy_watt


@pytest.mark.parametrize(
    ("cut", "whole"), [("a800-sxm-80", "a100-sxm-80"), ("h800-sxm", "h100-sxm")]
)
def test_export_parts_take_their_siblings_figures_and_say_so(cut: str, whole: str) -> None:
    ours, theirs = accelerator(cut), accelerator(whole)
    for field in dataclasses.fields(Accelerator):
        if field.name != "name":
            assert getattr(ours, field.name) == getattr(theirs, field.name), field.name
    peak = ours.gemm["cublas"]["bf16"].peak_fraction
    assert peak.grade == "assumed"
    assert whole in peak.source


@pytest.mark.parametrize(("ultra", "plain"), [("b300-sxm", "b200-sxm"), ("gb300", "gb200")])
def test_blackwell_ultra_adds_memory_and_four_bit_units_only(ultra: str, plain: str) -> None:
    ours, theirs = accelerator(ultra), accelerator(plain)
    assert ours.memory.capacity_bytes > 1.4 * theirs.memory.capacity_bytes
    for dtype in ("bf16", "fp8", "mxfp8"):
        assert ours.matrix_flop_per_s[dtype] == theirs.matrix_flop_per_s[dtype]
    ratio = ours.matrix_flop_per_s["nvfp4"] / theirs.matrix_flop_per_s["nvfp4"]
    assert ratio == pytest.approx(1.5, rel=0.05)


@pytest.mark.parametrize("name", BLACKWELL)
def test_untimed_mxfp8_is_said_to_be_fp8(name: str) -> None:
    kernels = accelerator(name).gemm["cublas"]
    for field in dataclasses.fields(kernels["mxfp8"]):
        mxfp8 = getattr(kernels["mxfp8"], field.name)
        if field.name == "training_fraction":  # whole steps were timed in both types
            assert mxfp8 <= 1.02 * kernels["fp8"].training_fraction
            continue
        assert mxfp8 == getattr(kernels["fp8"], field.name), field.name
        assert mxfp8.grade == "assumed", field.name


@pytest.mark.parametrize("name", BLACKWELL)
def test_blackwell_peaks_are_reached_at_a_possible_clock(name: str) -> None:
    """Twice the matrix units of Hopper; drivers show 152 SMs next to Grace and 148 on a board."""
    part = accelerator(name)
    assert part.compute_units == (152 if name.startswith("gb") else 148)
    clock_hz = part.matrix_flop_per_s["bf16"] / (2 * 1024 * 4 * part.compute_units)
    assert 1.8e9 < clock_hz < 2.1e9


def test_a_part_that_was_not_timed_claims_nothing_measured() -> None:
    ours, theirs = accelerator("h100-hbm2e-96"), accelerator("h100-sxm")
    assert ours.matrix_flop_per_s == theirs.matrix_flop_per_s
    assert ours.memory.bandwidth_bytes_per_s < 0.75 * theirs.memory.bandwidth_bytes_per_s
    assert ours.power.busy_watt < 500 < theirs.power.busy_watt
    for dtype, kernel in ours.gemm["cublas"].items():
        assert kernel.training_fraction < theirs.gemm["cublas"][dtype].training_fraction
    for field, figure in figures(ours):
        if not field.endswith("training_fraction"):  # from whole steps
            assert figure.grade not in ("measured", "fitted"), field


PUBLISHED = [
    ("a100-sxm-80", "sdpa", "both", (32, 64), 1024, [119, 140, 156, 165, 171]),
    ("a100-sxm-80", "flash1", "both", (32, 64), 1024, [70, 77, 87, 92, 97]),
    ("a100-sxm-80", "triton", "forward", (48, 64), 1024, [84.3, 102.1, 112.9, 119.1, 122.2]),
    ("a100-sxm-80", "triton", "backward", (48, 64), 1024, [48.7, 62.1, 71.7, 77.5, 80.6]),
    ("h100-sxm", "sdpa", "forward", (16, 128), 512, [191, 260, 298, 319, 333, 335]),
]
"""TFLOP/s of causal calls at lengths doubling from the one given: Dao 2023 (arXiv 2307.08691,
Figure 4, 16k tokens, 32 heads of 64), triton-lang/triton pull request 1917 (batch 4, 48 heads of
64), Shah 2024 (arXiv 2407.08608, Figure 5, 16k tokens, 16 heads of 128)."""


@pytest.mark.parametrize(("name", "library", "way", "head", "first", "rates"), PUBLISHED)
def test_attention_runs_at_published_rates(
    name: str, library: str, way: str, head: tuple[int, int], first: int, rates: list[float]
) -> None:
    figures = attention_figures(accelerator(name), library, accelerator(name).sixteen_bit)
    sequence = first * 2.0 ** np.arange(len(rates))
    heads = head[0] * (np.full(len(rates), 4.0) if library == "triton" else 16384.0 / sequence)
    ways = {"forward": (False,), "backward": (True,), "both": (False, True)}[way]
    width = 4.0 * heads * sequence * head[1]
    taken = sum(
        attention_s(
            heads=heads,
            queries=sequence,
            keys=sequence / 2,
            span=sequence,
            score_size=head[1],
            value_size=head[1],
            query_bytes=width,
            key_bytes=width,
            backward=backward,
            sustained=False,
            **figures,
        )
        for backward in ways
    )
    flop = {"forward": 1.0, "backward": 2.5, "both": 3.5}[way] * width * sequence / 2
    assert flop / taken == pytest.approx(np.array(rates) * 1e12, rel=0.09)


def trained_rate(name: str, library: str, *, backward: bool) -> float:
    """FLOP/s of a long causal call of 32 heads of 128, in training."""
    figures = attention_figures(accelerator(name), library, accelerator(name).sixteen_bit)
    seconds = attention_s(
        heads=32,
        queries=4096,
        keys=2048,
        span=4096,
        score_size=128,
        value_size=128,
        query_bytes=4.0 * 32 * 4096 * 128,
        key_bytes=4.0 * 8 * 4096 * 128,
        backward=backward,
        **figures,
    )
    return float((2.5 if backward else 1.0) * 2 * 32 * 4096 * 2048 * 256 / seconds)


FLASH2_ON_B200 = [
    (64, 32, False, 1024, [359.30, 380.99, 306.94, 343.07, 379.44]),
    (64, 32, True, 1024, [280.64, 301.61, 314.71, 329.09, 333.95]),
    (128, 128, False, 1024, [315.111, 352.104, 353.912, 361.591, 330.587]),
]
"""Head size, heads times sequences of 1k tokens in 32k (or in 8 sequences), backward, first length,
TFLOP/s without a mask: Dao-AILab/flash-attention#1589 and meta-pytorch/tritonbench#171."""


@pytest.mark.parametrize(("size", "heads", "backward", "first", "rates"), FLASH2_ON_B200)
def test_flash_attention_2_uses_little_of_blackwell(
    size: int, heads: int, backward: bool, first: int, rates: list[float]
) -> None:
    figures = attention_figures(accelerator("b200-sxm"), "flash2", "bf16")
    sequence = first * 2.0 ** np.arange(len(rates))
    calls = heads * 16384.0 / sequence if size == 64 else np.full(len(rates), float(heads))
    width = 4.0 * calls * sequence * size
    taken = attention_s(
        heads=calls,
        queries=sequence,
        keys=sequence,
        span=sequence,
        score_size=size,
        value_size=size,
        query_bytes=width,
        key_bytes=width,
        backward=backward,
        sustained=False,
        **figures,
    )
    flop = (2.5 if backward else 1.0) * width * sequence
    assert flop / taken == pytest.approx(np.array(rates) * 1e12, rel=0.21)


@pytest.mark.parametrize("name", [n for n in NAMES if "flash1" in accelerator(n).attention])
def test_attention_kernels_got_faster_over_the_years(name: str) -> None:
    """Forward and backward together at 4096 tokens, as 3.5 over 1 + 2.5 / backward.

    Two fits of the same kernel (flash, sdpa on Ampere) may differ by their errors.
    """
    rate = {}
    for library in ("flash", "sdpa", "triton", "flash1"):
        forward, backward = (trained_rate(name, library, backward=way) for way in (False, True))
        rate[library] = 3.5 / (1.0 / forward + 2.5 / backward)
    assert rate["sdpa"] > 1.5 * rate["flash1"]
    assert rate["sdpa"] > 1.5 * rate["triton"]
    assert rate["flash"] > 0.85 * rate["sdpa"]


@pytest.mark.parametrize("name", NAMES)
def test_attention_in_training_is_slower_than_the_dense_peak(name: str) -> None:
    """Between a sixth of the peak and 75 %, FlashAttention-3 at its best (arXiv 2407.08608).

    PyTorch's on ROCm is slower: 259 of 2,500 TFLOP/s at best in a backward pass (HipKittens).
    """
    part = accelerator(name)
    peak = part.matrix_flop_per_s[part.sixteen_bit]
    for library in ("flash", "sdpa") if part.platform != "rocm" else ("flash",):
        assert 0.16 < trained_rate(name, library, backward=False) / peak < 0.75
        assert 0.12 < trained_rate(name, library, backward=True) / peak < 0.6


def test_the_rate_of_attention_that_was_taken_over_is_said_to_be_assumed() -> None:
    for name in ("b300-sxm", "gb300", "a100-sxm-40", "h800-sxm"):
        figure = accelerator(name).attention["flash"].peak_fraction
        assert figure.grade == "assumed"
        assert figure.spread is not None and figure.spread >= 0.15


def test_datasheet_arithmetic_of_peaks() -> None:
    """Peak = 2 x FMA per matrix unit and clock x units x clock (4 units in an SM)."""
    assert accelerator("a100-sxm-80").matrix_flop_per_s["bf16"] == pytest.approx(
        2 * 256 * 108 * 4 * 1.41e9, rel=1e-3
    )
    assert accelerator("h100-sxm").matrix_flop_per_s["bf16"] == pytest.approx(
        2 * 512 * 132 * 4 * 1.83e9, rel=1e-3
    )


def test_an_accelerator_with_timed_kernels_is_toml_alone() -> None:
    """P100: a profile, a word of the tables of kernels, and `make profiles`; no Python names it."""
    device = accelerator("p100-sxm2-16")
    products = device.gemm["cublas"]["fp32"]
    assert products.peak_fraction.grade == "fitted"
    # best of DeepBench's products on P100: 9.1 TFLOP/s of fp32
    rate = products.peak_fraction * device.matrix_flop_per_s["fp32"]
    assert rate == pytest.approx(9.1e12, rel=0.03)
    # what nobody timed here is that of V100, and says so
    assert device.gemm["cublas"]["fp16"].peak_fraction.grade == "assumed"
    sources = (Path(__file__).parents[2] / "simulator").rglob("*.py")
    assert [path.name for path in sources if "p100" in path.read_text().lower()] == []


def test_a_sibling_follows_its_base() -> None:
    """H800 is an H100 whose NVLink is cut: figures equal, what was timed is assumed of it."""
    sibling, base = accelerator("h800-sxm"), accelerator("h100-sxm")
    ours, theirs = sibling.gemm["cublas"]["bf16"], base.gemm["cublas"]["bf16"]
    assert (ours.launch_s, ours.peak_fraction) == (theirs.launch_s, theirs.peak_fraction)
    assert (ours.launch_s.grade, theirs.launch_s.grade) == ("assumed", "fitted")
    assert ours.launch_s.source == f"as h100-sxm, same chip: {theirs.launch_s.source}"
    # the same chip with another memory: its own data sheet over that of its base
    small, large = accelerator("a100-sxm-40"), accelerator("a100-sxm-80")
    assert small.memory.bandwidth_bytes_per_s == 1555e9
    assert small.matrix_flop_per_s == large.matrix_flop_per_s


OF_A_BLOCK = [(4096, 12288), (4096, 4096), (4096, 16384), (16384, 4096)]
"""Inputs and outputs of the four linears."""

NVFP4_BY_CUBLAS = [
    ("b200-sxm", [(8192, 8192, 8192)], 2 * 8192**3 / 5.3e15, 0.04),
    ("b200-sxm", [(6144, 6144, 6144)], 84.4e-6, 0.09),
    ("b300-sxm", [(15872, n, k) for k, n in OF_A_BLOCK], 1.254e-3, 0.08),
    ("b300-sxm", [(15872, k, n) for k, n in OF_A_BLOCK], 1.305e-3, 0.1),
    ("b300-sxm", [(k, n, 15872) for k, n in OF_A_BLOCK], 1.205e-3, 0.2),
]
"""pytorch/ao#2427 and deepseek-ai/DeepGEMM#348; forward, data and weight gradients of a block,
operands cast before: NVIDIA/TransformerEngine docs/examples/gemm_profiling."""


@pytest.mark.parametrize(("name", "shapes", "seconds", "off"), NVFP4_BY_CUBLAS)
def test_nvfp4_products_of_training(
    name: str, shapes: list[tuple[int, int, int]], seconds: float, off: float
) -> None:
    kernel = accelerator(name).gemm["cublas"]["nvfp4"]
    given = {field: float(getattr(kernel, field)) for field in kernel.__dataclass_fields__}
    given |= {"quantise_bytes_per_element": 0.0, "quantise_row_s": 0.0, "launch_s": 0.0}
    rates = gemm_rates(accelerator(name), "nvfp4")
    m, n, k = np.array(shapes, dtype=float).T
    taken = gemm_s(m=m, n=n, k=k, result_bytes=2.0, **rates, **given).sum()
    assert taken == pytest.approx(seconds, rel=off)
