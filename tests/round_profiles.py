"""Profiles of round numbers, so that every prediction can be worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

GEMM = """
launch_s = 2e-6
peak_fraction = 1.0
sustained_fraction = {sustained}
training_fraction = 0.1
memory_fraction = 1.0
prologue_k = 0
wave_quantisation = 1.0
small_tile_penalty = 0
split_k_s = 50e-6
l2_refetch = 0
"""

ACCELERATOR = """
vendor = "none"
generation = "none"
compute_units = 100
[memory]
capacity_bytes = 80e9
usable_bytes = 80e9
bandwidth_bytes_per_s = {bandwidth}
l2_bytes = 50e6
[matrix_flop_per_s]
fp16 = 100e12
bf16 = 100e12
fp8 = 200e12
[gemm.cublas.bf16]
{bf16}
[gemm.cublas.fp8]
{fp8}
quantise_bytes_per_element = 2
[attention.flash]
launch_s = 5e-6
peak_fraction = 0.5
sustained_fraction = 1.0
training_fraction = 0.1
backward_fraction = 0.8
tile_rows = 128
softmax_width = 0
prologue_keys = 0
tail_fraction = 0.5
backward_tail_fraction = 0
narrow_head_factor = 1
wide_head_factor = 1
wide_head_step = 64
query_traffic = 1
key_traffic = 1
[stream.elementwise]
memory_fraction = 0.5
launch_s = 1e-6
[stream.norm]
memory_fraction = 0.5
launch_s = 1e-6
[stream.softmax]
memory_fraction = 0.5
launch_s = 1e-6
[stream.loss]
memory_fraction = 0.5
launch_s = 1e-6
[stream.optimizer]
memory_fraction = 0.5
launch_s = 1e-6
[stream.copy]
memory_fraction = 0.8
launch_s = 1e-6
[power]
idle_watt = 1
busy_watt = 1
"""

NODE = """
accelerator = "plain"
accelerators = 8
host_watt = 1
[scale_up]
kind = "nvlink"
domain = 8
bandwidth_bytes_per_s = 200e9
bus_bytes_per_s = 100e9
pair_fraction = 1.0
all_to_all_bytes_per_s = 100e9
send_bytes_per_s = 100e9
[scale_out]
adapters = 8
adapter_bytes_per_s = 50e9
kind = "infiniband"
"""

CLUSTER = """
node = "plain"
price = "neocloud-h100"
[fabric]
topology = "fat-tree"
usable_fraction = 1.0
"""


@pytest.fixture
def round_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to write tables in, and profiles in use.

    Accelerators of 100 units of 1 TFLOP/s: `plain` (memory never limits), `hot` (the same, a long
    call runs at half the clock), `narrow` (1 GB/s). Cluster `plain`: 8 of the first to a server,
    links of 200 GB/s that a ring uses half of, an adapter of 50 GB/s each.
    """
    for name, bandwidth, sustained in (("plain", 1e15, 1), ("hot", 1e15, 0.5), ("narrow", 1e9, 1)):
        gemm = GEMM.format(sustained=sustained)
        text = ACCELERATOR.format(bandwidth=bandwidth, bf16=gemm, fp8=gemm)
        write(tmp_path / "profiles" / "accelerators" / f"{name}.toml", text)
    write(tmp_path / "profiles" / "nodes" / "plain.toml", NODE)
    write(tmp_path / "profiles" / "clusters" / "plain.toml", CLUSTER)
    monkeypatch.setenv("FORESHARD_PROFILES", str(tmp_path / "profiles"))
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
