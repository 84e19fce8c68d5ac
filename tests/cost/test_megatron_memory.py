"""Allocated memory of every stage under Megatron-Core and Transformer Engine, against SimuMax."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.rank_memory import RankMemory, rank_memory
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.software.profile import load_software
from simulator.units import GIB
from simulator.workload import presets
from simulator.workload.architecture import MoE
from simulator.workload.recipe import Recipe, Workload

DEFAULTS = load_software("megatron-core-defaults")
MIB = 2**20


def by_rank(model: str, layers: int, batch: int, length: int = 4096, **layout: Any) -> RankMemory:
    arch = presets.load(model)
    arch = replace(arch, layer_kinds=arch.layer_kinds[:layers])
    if model == "llama-3.1-405b":  # as measured
        (kind,) = arch.blocks
        arch = replace(
            arch, blocks=(replace(kind, attention=replace(kind.attention, kv_heads=16)),)
        )
    work = Workload(architecture=arch, recipe=Recipe(sequence_length=length, global_batch=batch))
    table = Layouts.of(global_batch=batch, **layout)
    return rank_memory(table, work, load_cluster("dgx-b200", 8), DEFAULTS)


@pytest.mark.parametrize(
    ("model", "layers", "batch", "layout", "measured_gib"),
    [  # MooreThreads/SimuMax, B200, 8 GPUs: validation/runs, simumax-b200-001 to 004, 025 to 028
        ("llama-3.1-70b", 12, 16, {"dp": 4, "pp": 2}, [66.55, 62.97]),
        ("llama-3.1-70b", 12, 16, {"dp": 4, "tp": 2}, [60.68]),
        ("llama-3.1-70b", 12, 8, {"dp": 2, "tp": 4}, [39.07]),
        ("llama-3.1-70b", 12, 4, {"tp": 8}, [28.29]),
        ("llama-3.1-405b", 4, 16, {"dp": 4, "pp": 2}, [86.61, 87.08]),
        ("llama-3.1-405b", 4, 16, {"dp": 4, "tp": 2}, [81.59]),
        ("llama-3.1-405b", 4, 8, {"dp": 2, "tp": 4}, [52.89]),
        ("llama-3.1-405b", 4, 4, {"tp": 8}, [38.57]),
    ],
)
def test_allocated_memory_of_every_stage(
    model: str, layers: int, batch: int, layout: dict[str, Any], measured_gib: list[float]
) -> None:
    found = by_rank(model, layers, batch, sharding="zero1", **layout)
    kinds = ("communicators", "fragmentation", "context")
    outside = np.sum([found.kinds_bytes[kind] for kind in kinds], axis=0)
    assert (found.total_bytes - outside) / GIB == pytest.approx(measured_gib, rel=1e-3)


def test_dummy_gradients_of_every_shape_on_the_rank() -> None:
    """DeepSeek-V3 from its third layer on: a dense one on the first rank, experts on both."""
    h, f, e = 7168, 18432, 2048
    latent = h * 1536 + 1536 * 128 * 192 + h * 576 + 512 * 128 * 256 + 128 * 128 * h
    arch = presets.load("deepseek-v3")
    sparse = next(kind for kind in arch.blocks if isinstance(kind.mlp, MoE))
    assert sparse.mlp.ffn_hidden == e
    arch = replace(arch, layer_kinds=arch.layer_kinds[2:6])
    work = Workload(architecture=arch, recipe=Recipe(sequence_length=4096, global_batch=8))
    table = Layouts.of(global_batch=8, dp=4, ep=4, pp=2)
    found = rank_memory(table, work, load_cluster("dgx-b200", 8), DEFAULTS).kinds_bytes["workspace"]
    experts = latent + 3 * h * e  # the shared expert has the shapes of a routed one
    assert found[0] - found[1] == pytest.approx(
        2 * (experts + 3 * h * f) - 2 * experts - 2 * 4096 * h - 2 * 8.125 * MIB, rel=1e-9
    )
    assert found[0] == pytest.approx(33.6e6 + 4 * 32 * MIB + 2 * (experts + 3 * h * f), rel=1e-9)


def test_the_input_gradient_outlives_a_backward_pass_behind_the_first_stage() -> None:
    several, one = (
        by_rank("llama-3.1-70b", 12, batch, pp=4).kinds_bytes["workspace"] for batch in (8, 1)
    )
    assert several - one == pytest.approx([0.0, *[2 * 4096 * 8192] * 3])


def test_the_workspace_of_a_dense_rank_by_hand() -> None:
    dense = by_rank("llama-3.1-8b", 4, 8, dp=8).kinds_bytes["workspace"]
    linears = 2 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336)
    assert dense == pytest.approx([33.6e6 + 2 * 8.125 * MIB + linears], rel=1e-9)
