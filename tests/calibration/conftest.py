"""Documents of measurements made by the formulas themselves, from figures that a test chooses."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.cost.collectives.calls import all_gather_s, all_reduce_s, all_to_all_s, send_s
from simulator.cost.kernels.memory_bound import stream_s
from simulator.hardware.accelerator import Accelerator
from simulator.hardware.cluster import Cluster, load_accelerator, load_cluster
from simulator.layout.placement import Group
from tests.flat_kernels import attention_figures, attention_s, gemm_rates, gemm_s

Document = dict[str, Any]

TRUTH = {
    "gemm": {"peak_fraction": 0.78, "launch_s": 4e-6, "memory_fraction": 0.7},
    "attention": {"peak_fraction": 0.30, "prologue_keys": 200.0, "backward_fraction": 0.75},
    "stream": {"memory_fraction": 0.6, "launch_s": 3e-6},
}
"""What the pretended device really does; h200-sxm has other figures in all of them."""


def record(kernel: str, shape: dict[str, Any], seconds: float, **more: Any) -> Document:
    given = {"dtype": "bf16", "direction": "forward", "cold": True} | more
    return {"kernel": kernel, "shape": shape, "times_s": [seconds] * 3, **given}


def head(part: Accelerator) -> Document:
    return {
        "schema": 1,
        "started": "2026-10-01T10:00:00+00:00",
        "device": {
            "kind": "cuda",
            "name": f"NVIDIA {part.name}",
            "count": 1,
            "sms": part.compute_units,
            "memory_bytes": float(part.memory.capacity_bytes),
        },
        "software": {"torch": "2.9.0", "cuda": "12.8", "nccl": None},
    }


def kernel_records(part: Accelerator, noise: float = 0.01) -> list[Document]:
    """Products in three directions, attention, norms and copies at the rates of TRUTH."""
    draw = np.random.default_rng(11)

    def jitter() -> float:
        return float(np.exp(draw.normal(0.0, noise)))

    found = []
    table = part.gemm["cublas"]["bf16"]
    figures = {f.name: float(getattr(table, f.name)) for f in dataclasses.fields(table)}
    for at in range(150):
        m, n, k = np.round(2.0 ** draw.uniform(7, 14, 3))
        seconds = float(
            gemm_s(
                m=m,
                n=n,
                k=k,
                result_bytes=2.0,
                sustained=False,
                **gemm_rates(part, "bf16"),
                **(figures | TRUTH["gemm"]),
            )
        )
        direction = ("forward", "dgrad", "wgrad")[at % 3]
        found.append(
            record(
                "gemm",
                {"m": m, "n": n, "k": k},
                seconds * jitter(),
                direction=direction,
                library="torch.mm",
            )
        )
    device = attention_figures(part, "sdpa", "bf16") | TRUTH["attention"]
    for length in (1024, 2048, 4096, 8192, 16384):
        for heads in (16, 32, 64):
            shape = {
                "batch": 4,
                "heads_q": heads,
                "heads_kv": heads,
                "seq_q": length,
                "seq_kv": length,
                "head_dim": 128,
                "head_dim_v": 128,
                "causal": True,
            }
            tensors = 2.0 * 4 * heads * length * 128 * 2.0  # two of 16 bit
            for backward, direction in ((False, "forward"), (True, "backward")):
                seconds = float(
                    attention_s(
                        heads=4 * heads,
                        queries=length,
                        keys=length / 2,
                        span=length,
                        score_size=128,
                        value_size=128,
                        query_bytes=tensors,
                        key_bytes=tensors,
                        backward=backward,
                        sustained=False,
                        **device,
                    )
                )
                found.append(
                    record(
                        "attention",
                        shape,
                        seconds * jitter(),
                        direction=direction,
                        library="torch.sdpa-flash",
                    )
                )
    for kernel in ("rms_norm", "copy"):
        for size in 2.0 ** np.arange(20, 31):
            rate = float(part.memory.bandwidth_bytes_per_s)
            seconds = float(
                stream_s(moved_bytes=size, bandwidth_bytes_per_s=rate, **TRUTH["stream"])
            )
            found.append(record(kernel, {"rows": 1, "columns": 1}, seconds * jitter(), bytes=size))
    return found


LINKS = {
    "bus_bytes_per_s": 300e9,
    "nvls_bytes_per_s": 400e9,
    "all_to_all_bytes_per_s": 250e9,
    "send_bytes_per_s": 260e9,
    "pair_fraction": 0.8,
}
USABLE = 0.7


def changed_cluster(name: str) -> Cluster:
    """The cluster `name` with the figures of LINKS and USABLE."""
    cluster = load_cluster(name, 32)
    node = cluster.node
    links = dataclasses.replace(node.scale_up, **LINKS)
    group = dataclasses.replace(cluster.groups[0], node=dataclasses.replace(node, scale_up=links))
    fabric = dataclasses.replace(cluster.fabric, usable_fraction=USABLE)
    return dataclasses.replace(cluster, groups=(group,), fabric=fabric)


def collective_s(cluster: Cluster, kernel: str, size: float, ranks: int, local: int) -> float:
    group = Group(size=np.array([ranks]), local=np.array([local]))
    if kernel == "send_recv":
        return float(send_s(cluster, size, ranks > local))
    formula = {"all_reduce": all_reduce_s, "all_to_all": all_to_all_s}.get(kernel, all_gather_s)
    return float(formula(cluster, size, group)[0])


@pytest.fixture
def h200() -> Accelerator:
    return load_accelerator("h200-sxm")


@pytest.fixture
def kernel_document(h200: Accelerator) -> Document:
    return head(h200) | {"records": kernel_records(h200)}


@pytest.fixture
def collective_document(h200: Accelerator) -> Document:
    """One server at 2, 4 and 8 ranks, and two and four servers."""
    cluster = changed_cluster("hgx-h200")
    records = []
    for kernel in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"):
        for ranks, nodes in ((2, 1), (4, 1), (8, 1), (16, 2), (32, 4)):
            for size in 4.0 ** np.arange(8, 15):
                shape = {"message_bytes": size, "ranks": ranks, "stride": 1, "nodes": nodes}
                seconds = collective_s(cluster, kernel, size, ranks, ranks // nodes)
                records.append(record(kernel, shape, seconds, library="nccl"))
    return head(h200) | {"records": records}


def printed(document: Document, kernel: str, ranks: int, hosts: int) -> str:
    """The calls of one collective over `ranks`, as nccl-tests prints them."""
    factor = {"all_reduce": 2.0 * (ranks - 1) / ranks}.get(kernel, (ranks - 1) / ranks)
    each = ranks // hosts
    lines = [f"# Collective test starting: {kernel}_perf", "# Using devices"] + [
        f"#  Rank {i:2d} Group  0 Pid   {700 + i} on      node{i // each} device {i % each:2d} "
        f"[0000:{i + 1:02x}:00] NVIDIA H200"
        for i in range(ranks)
    ]
    for one in document["records"]:
        shape = one["shape"]
        if (one["kernel"], shape["ranks"]) == (kernel, ranks):
            us, size = one["times_s"][0] * 1e6, int(shape["message_bytes"])
            rate = size / us / 1e3
            side = f"{us:7.2f}  {rate:6.2f}  {factor * rate:6.2f}       0"
            lines.append(
                f"{size:12d}  {size // 2:12d}  {'half':>8}  {'none':>6}      -1  {side}  {side}"
            )
    return "\n".join([*lines, "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 12.3"])


@pytest.fixture
def log_text() -> Callable[..., str]:
    return printed


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a document (or text) to a file of a name."""

    def writes(content: Document | str, name: str = "measurements.json") -> Path:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return writes
