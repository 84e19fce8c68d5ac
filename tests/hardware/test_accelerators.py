"""Every shipped accelerator loads, says where each figure is from, and is physically possible."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from simulator import catalogue
from simulator.files import GRADES, figures, read_profile, read_toml
from simulator.hardware.accelerator import Accelerator

NAMES = sorted(p.stem for p in (catalogue.folder("hardware_profiles") / "accelerators").iterdir())
CLASSES = {"elementwise", "norm", "softmax", "loss", "optimizer", "copy"}


def path(name: str) -> Path:
    return catalogue.folder("hardware_profiles") / "accelerators" / f"{name}.toml"


def accelerator(name: str) -> Accelerator:
    return read_profile(Accelerator, path(name))


def test_the_parts_people_train_on_are_there() -> None:
    assert {
        "a100-sxm-40", "a100-sxm-80", "a800-sxm-80", "b200-sxm", "gb200", "h100-sxm", "h200-sxm",
        "h800-sxm", "l40s",
    } <= set(NAMES)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_says_how_well_it_is_known(name: str) -> None:
    found = list(figures(accelerator(name)))
    assert len(found) > 60
    defaults = {
        f"gemm.cublas.{t}.quantise_bytes_per_element" for t in ("fp32", "tf32", "fp16", "bf16")
    }
    for field, figure in found:
        if field in defaults:
            continue
        assert figure.grade in GRADES, field
        assert len(figure.source) > 10 and figure.source != "user", field
        assert figure.date.startswith("2026-11-"), field
        assert figure.spread is None or 0.0 < figure.spread <= 0.3, field


@pytest.mark.parametrize("name", NAMES)
def test_every_source_is_used(name: str) -> None:
    raw = read_toml(path(name))
    text = path(name).read_text()
    for key in raw["sources"]:
        assert f'source = "{key}"' in text, key
    assert "shared/" not in text


@pytest.mark.parametrize("name", NAMES)
def test_peaks_and_parameters_are_consistent(name: str) -> None:
    part = accelerator(name)
    peak = part.matrix_flop_per_s
    assert peak["fp16"] == peak["bf16"] >= 1.9 * peak["tf32"] > peak["fp32"]
    assert peak.get("fp8", 2 * peak["bf16"]) == pytest.approx(2 * peak["bf16"], rel=0.02)
    for library, types in part.gemm.items():
        assert set(types) == set(peak), library
    assert set(part.stream) >= CLASSES
    assert "flash" in part.attention


@pytest.mark.parametrize("name", NAMES)
def test_fractions_and_times_are_possible(name: str) -> None:
    for field, figure in figures(accelerator(name)):
        last = field.rsplit(".", 1)[-1]
        if last.endswith("_fraction"):
            assert 0.0 < figure < 1.2, field
        if last in ("launch_s", "split_k_s"):
            assert 0.1e-6 < figure < 40e-6, field
        if last in ("wave_quantisation", "small_tile_penalty"):
            assert 0.0 <= figure <= 1.0, field
    part = accelerator(name)
    for types in part.gemm.values():
        for kernel in types.values():
            assert kernel.peak_fraction * kernel.training_fraction < 0.9


@pytest.mark.parametrize("name", NAMES)
def test_memory_is_what_an_allocator_gets(name: str) -> None:
    memory = accelerator(name).memory
    assert 0.9 * memory.capacity_bytes < memory.usable_bytes <= 1.1 * memory.capacity_bytes
    assert memory.usable_bytes / 2**20 > 1000.0
    assert memory.l2_bytes < 1e-2 * memory.capacity_bytes


@pytest.mark.parametrize("name", NAMES)
def test_power_rises_with_work(name: str) -> None:
    power = accelerator(name).power
    assert 20.0 < power.idle_watt < 0.25 * power.busy_watt


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


def test_ampere_has_no_fp8() -> None:
    assert "fp8" not in accelerator("a100-sxm-80").matrix_flop_per_s


def test_datasheet_arithmetic_of_peaks() -> None:
    """Peak = 2 x FMA per matrix unit and clock x units x clock (4 units in an SM)."""
    assert accelerator("a100-sxm-80").matrix_flop_per_s["bf16"] == pytest.approx(
        2 * 256 * 108 * 4 * 1.41e9, rel=1e-3
    )
    assert accelerator("h100-sxm").matrix_flop_per_s["bf16"] == pytest.approx(
        2 * 512 * 132 * 4 * 1.83e9, rel=1e-3
    )
