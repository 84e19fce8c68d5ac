"""A profile that cannot be true is told so, field by field; the shipped ones pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator import catalogue
from simulator.errors import InputError
from simulator.evidence.likeness import borrowed_tables
from simulator.files import read_profile
from simulator.hardware.accelerator import Accelerator
from simulator.profiles import KINDS
from simulator.profiles.check import check, kind_of

ALL = [(kind, name) for kind in KINDS for name in catalogue.names(kind)]
SOURCE = '[sources.own]\ntext = "measured by us"\ndate = "2026-11-21"\n'


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_what_is_shipped_passes(kind: str, name: str) -> None:
    assert check(catalogue.find(kind, name), kind) == []


def own(tmp_path: Path, kind: str, text: str) -> Path:
    (tmp_path / kind).mkdir(exist_ok=True)
    path = tmp_path / kind / "mine.toml"
    path.write_text(text)
    return path


WRONG = [
    ("accelerators", 'base = "h100-sxm"\n[memory]\nusable_bytes = 99e9\n',
     "memory.usable_bytes: must be at most the capacity, 8.58993e+10, got 9.9e+10"),
    ("accelerators", 'base = "h100-sxm"\n[gemm.cublas.bf16]\npeak_fraction = 1.2\n',
     "gemm.cublas.bf16.peak_fraction: must be at most 1.05 (a share of a physical limit), got 1.2"),
    ("accelerators", 'base = "h100-sxm"\n[gemm.cublas.bf16]\nlaunch_s = 2.5\n',
     "gemm.cublas.bf16.launch_s: must lie between 0 and 0.001 seconds, got 2.5"),
    ("accelerators", 'base = "h100-sxm"\n[matrix_flop_per_s]\nbf16 = 989.4\n',
     "matrix_flop_per_s.bf16: must be FLOP per second, got 989.4"),
    ("accelerators", 'base = "h100-sxm"\n[power]\nidle_watt = 800\n',
     "power.idle_watt: must be below busy_watt"),
    ("nodes", 'base = "dgx-h100"\n[scale_up]\nbus_bytes_per_s = 500e9\n',
     "scale_up.bus_bytes_per_s: must be at most 4.5e+11, what the links carry, got 5e+11"),
    ("nodes", 'base = "dgx-h100"\naccelerator = "h1000-sxm"\n',
     "accelerator: unknown accelerator 'h1000-sxm' (did you mean 'h100-sxm'?)"),
    ("nodes", 'base = "dgx-h100"\n[scale_up]\ndomain = 12\n',
     "scale_up.domain: must be a multiple of the server's 8 accelerators, got 12"),
    ("nodes", 'base = "tpu-v4"\n[scale_up]\ntorus = [16, 16, 8]\n',
     "scale_up.torus: must multiply to the domain's 4096 accelerators, got 16 x 16 x 8 = 2048"),
    ("nodes", 'base = "a10-pcie"\n[scale_up]\npcie_switch_accelerators = 3\n',
     "scale_up.pcie_switch_accelerators: must divide the server's 8 accelerators, got 3"),
    ("clusters", 'base = "dgx-h100"\n[fabric]\noversubscription = 0.5\n',
     "fabric.oversubscription: must be at least 1"),
    ("clusters", 'base = "dgx-h100"\n[fabric]\npod_servers = 50\n',
     "fabric.pod_servers: must be a multiple of leaf_servers, 32, got 50 (nearest: 64)"),
    ("clusters", 'base = "dgx-h100"\n[fabric]\npod_oversubscription = 0.5\n',
     "fabric.pod_oversubscription: must be at least 1 (non-blocking), got 0.5"),
    ("clusters", 'base = "dgx-h100"\n[fabric]\ntopology = "dragonfly"\n',
     "fabric.pod_servers: a dragonfly must have it, the servers of one group"),
    ("clusters", 'base = "dgx-h100"\nnode = "mi300x-8"\n',
     "collectives: nccl has no latencies of xgmi links"),
    ("prices", 'usd_per_gpu_hour = 5000\nincluded_power = true\n',
     "usd_per_gpu_hour: must be US dollars"),
    ("collectives", 'base = "nccl"\nnvls_base_s = 60.0\n',
     "nvls_base_s: must be seconds (microseconds are e-6), got 60"),
    ("sites", 'base = "default"\npower_usage_effectiveness = 0.8\n', "must be at least 1, got 0.8"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "message"), WRONG)
def test_what_cannot_be_is_named(tmp_path: Path, kind: str, text: str, message: str) -> None:
    path = own(tmp_path, kind, text)
    (problem,) = check(path)
    assert problem.startswith(f"{path}: ") and message in problem


H100, DGX = 'base = "h100-sxm"\n', 'base = "dgx-h100"\n'
LIMITS = [
    # 80 GiB; clocks boost and data sheets round by a twentieth
    ("accelerators", H100 + "[memory]\nusable_bytes = {}\n", 83.99 * 2**30, 84.01 * 2**30),
    ("accelerators", H100 + "[memory]\nl2_bytes = {}\n", 7.99 * 2**30, 8.01 * 2**30),
    ("accelerators", H100 + "[memory]\nbandwidth_bytes_per_s = {}\n", 9.99e13, 1e14),
    ("accelerators", H100 + "[memory]\nbandwidth_bytes_per_s = {}\n", 1.001e9, 1e9),
    ("accelerators", H100 + "[matrix_flop_per_s]\nbf16 = {}\n", 9.99e17, 1e18),
    ("accelerators", H100 + "[matrix_flop_per_s]\nbf16 = {}\n", 1.001e10, 1e10),
    ("accelerators", H100 + "[power]\nidle_watt = {}\nbusy_watt = 700\n", 699.9, 700.0),
    ("accelerators", H100 + "[gemm.cublas.bf16]\npeak_fraction = {}\n", 1.05, 1.0501),
    ("accelerators", H100 + "[gemm.cublas.bf16]\nlaunch_s = {}\n", 9.99e-4, 1e-3),
    ("accelerators", H100 + "[attention.flash]\nbackward_fraction = {}\n", 1.3, 1.301),
    ("accelerators", H100 + "[attention.flash]\ntraining_fraction = {}\n", 1.25, 1.251),
    ("accelerators", H100 + "[attention.flash]\ntail_fraction = {}\n", 2.0, 2.001),
    # links of 450 GB/s each way; a switch that reduces halves what passes them
    ("nodes", DGX + "[scale_up]\nbus_bytes_per_s = {}\n", 1.05 * 450e9, 1.0501 * 450e9),
    ("nodes", DGX + "[scale_up]\nsend_bytes_per_s = {}\n", 1.05 * 450e9, 1.0501 * 450e9),
    ("nodes", DGX + "[scale_up]\nall_to_all_bytes_per_s = {}\n", 1.05 * 450e9, 1.0501 * 450e9),
    ("nodes", DGX + "[scale_up]\nnvls_bytes_per_s = {}\n", 1.05 * 900e9, 1.0501 * 900e9),
    ("nodes", DGX + "[scale_up]\ndomain = {:.0f}\n", 16, 15),
    ("clusters", DGX + "[fabric]\noversubscription = {}\n", 1.0, 0.999),
    ("clusters", DGX + "[fabric]\npod_oversubscription = {}\n", 1.0, 0.999),
    ("clusters", DGX + "[fabric]\npod_servers = {:.0f}\n", 64, 65),
    ("prices", "usd_per_gpu_hour = {}\nincluded_power = true\n", 999.9, 1000.0),
    ("prices", "usd_per_gpu_hour = {}\nincluded_power = true\n", 0.001, 0.0),
    ("nodes", 'base = "dgx-a100-40"\n[scale_up]\npair_fraction = {}\n', 20.0, 20.01),
    ("collectives", 'base = "nccl"\n[releases."2.23"]\ntime_fraction = {}\n', 2.0, 2.001),
    ("collectives", 'base = "nccl"\n[releases."2.23"]\nll_time_fraction = {}\n', 2.0, 2.001),
    ("collectives", 'base = "nccl"\n[dispatch.hybridep.hopper.combine]\nlink_fraction = {}\n',
     2.0, 2.001),
    ("software", 'base = "megatron-core"\n[allocator]\nfragmentation_fraction = {}\n', 2.0, 2.001),
    ("sites", 'base = "default"\npower_usage_effectiveness = {}\n', 1.0, 0.999),
    ("sites", 'base = "default"\npower_usage_effectiveness = {}\n', 4.999, 5.0),
    ("collectives", 'base = "nccl"\nnvls_base_s = {}\n', 1e-2, 1.001e-2),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "most", "beyond"), LIMITS)
def test_figures_up_to_a_limit_pass_and_no_others(
    tmp_path: Path, kind: str, text: str, most: float, beyond: float
) -> None:
    assert check(own(tmp_path, kind, text.format(most))) == []
    (problem,) = check(own(tmp_path, kind, text.format(beyond)))
    assert f"got {beyond:g}" in problem


@pytest.mark.parametrize(("pod", "nearest"), [(5, 32), (33, 32), (50, 64), (100, 96)])
def test_a_pod_of_whole_leaves_is_named_beside_a_wrong_one(
    tmp_path: Path, pod: int, nearest: int
) -> None:
    """A leaf of dgx-h100 joins 32 servers: their nearest multiple, and one leaf at least."""
    (problem,) = check(own(tmp_path, "clusters", DGX + f"[fabric]\npod_servers = {pod}\n"))
    assert problem.endswith(f"of leaf_servers, 32, got {pod} (nearest: {nearest})")


def test_all_problems_of_a_file_come_at_once(tmp_path: Path) -> None:
    text = 'base = "h100-sxm"\n[power]\nidle_watt = 800\n[gemm.cublas.bf16]\nlaunch_s = 2\n'
    assert len(check(own(tmp_path, "accelerators", text))) == 2
    wrong = 'base = "h100-sxm"\ncompute_unit = 3\n[power]\nbusy_watt = "much"\n'
    assert len(check(own(tmp_path, "accelerators", wrong))) == 2


@pytest.mark.parametrize("date", ["yesterday", "21.11.2026"])
def test_a_date_is_a_date(tmp_path: Path, date: str) -> None:
    text = (
        'base = "dgx-h100"\nhost_watt = { value = 2000, grade = "measured", source = "own" }\n'
        + SOURCE.replace("2026-11-21", date)
    )
    (problem,) = check(own(tmp_path, "nodes", text))
    assert f"host_watt: date must be year-month-day, got {date!r}" in problem


def test_the_kind_is_told_by_folder_or_by_content(tmp_path: Path) -> None:
    assert kind_of(own(tmp_path, "sites", 'base = "default"\n')) == "sites"
    loose = tmp_path / "mine.toml"
    loose.write_text("usd_per_gpu_hour = 2\nincluded_power = true\n")
    assert kind_of(loose) == "prices"
    loose.write_text('base = "h100-sxm"\n')
    with pytest.raises(InputError, match="cannot tell what kind of profile this is"):
        kind_of(loose)


BORROWED = """
vendor = "NVIDIA"
platform = "cuda"
generation = "hopper"
compute_units = 100
[sources.like]
text = "like an H100"
date = "2026-11-21"
[borrowed]
of = "h100-sxm"
tables = ["gemm", "attention", "stream", "power"]
spread = 0.3
source = "like"
[memory]
capacity_bytes = 80e9
usable_bytes = 79e9
bandwidth_bytes_per_s = 2e12
l2_bytes = 50e6
[matrix_flop_per_s]
fp32 = 50e12
tf32 = 300e12
fp16 = 600e12
bf16 = 600e12
fp8 = 1200e12
fp8_blockwise = 1200e12
"""


def test_borrowed_tables_are_the_lenders_but_graded_assumed(tmp_path: Path) -> None:
    path = own(tmp_path, "accelerators", BORROWED)
    part = read_profile(Accelerator, path, kind="accelerators")
    lender = read_profile(Accelerator, catalogue.find("accelerators", "h100-sxm"))
    ours, theirs = part.gemm["cublas"]["bf16"], lender.gemm["cublas"]["bf16"]
    assert (ours.peak_fraction, theirs.peak_fraction.grade) == (theirs.peak_fraction, "fitted")
    assert (ours.peak_fraction.grade, ours.peak_fraction.source) == ("assumed", "like an H100")
    assert theirs.peak_fraction.spread is not None
    wide = (theirs.peak_fraction.spread**2 + 0.3**2) ** 0.5
    assert ours.peak_fraction.spread == pytest.approx(wide)
    assert ours.launch_s.spread is None  # the lender states none


def test_what_is_borrowed_follows_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = own(tmp_path, "accelerators", BORROWED)
    monkeypatch.setenv("FORESHARD_PROFILES", str(tmp_path))
    assert {lender for _, lender in borrowed_tables(path.stem)} == {"h100-sxm"}
    path.write_text(BORROWED.replace('of = "h100-sxm"', 'of = "h200"'))
    assert {lender for _, lender in borrowed_tables(path.stem)} == {"h200"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"power"]', '"powers"]', "borrowed: h100-sxm has no powers"),
        ("spread = 0.3", 'spread = 0.3\nwithout = ["gemm.cublas.bf61"]', "has no gemm.cublas.bf61"),
        ('of = "h100-sxm"', 'of = "h100"', "borrowed.of: unknown accelerator 'h100'"),
        ("spread = 0.3\n", "", "borrowed.spread: required field is missing"),
        ('source = "like"', 'source = "alike"', "has no 'alike' (did you mean 'like'?)"),
    ],
)
def test_a_wrong_loan_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in BORROWED
    problems = check(own(tmp_path, "accelerators", BORROWED.replace(old, new)))
    assert any(message in problem for problem in problems), problems


def test_nobody_borrows_from_himself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORESHARD_PROFILES", str(tmp_path))
    path = own(tmp_path, "accelerators", BORROWED.replace("h100-sxm", "mine"))
    assert check(path) == [f"{path}: borrowed.of: must name another profile, got 'mine'"]
