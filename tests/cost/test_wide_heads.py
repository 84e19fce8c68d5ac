"""Heads wider than 128 on Blackwell, where Transformer Engine has no backward pass of cuDNN's.

Expected values are Transformer Engine's own choice: common/fused_attn/fused_attn.cpp,
`nvte_get_fused_attn_backend`, at bee4649c (release 2.2) and on main, and
pytorch/attention/dot_product_attention/utils.py, `get_attention_backend`.
"""

from dataclasses import replace

import numpy as np
import pytest

from simulator.cost.operators.block_operators import model_parts
from simulator.cost.operators.operations import Operators, Ranks
from simulator.cost.step import evaluate
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.layout.placement import place
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

S = 4096
NEMO, BRIDGE = load_software("nemo-25.04"), load_software("megatron-bridge-26.04")
OLD_NEMO = load_software("nemo-24.07")


def attention_of(model: str, software: str, generation: str) -> Operators:
    """The first block of a model on one rank."""
    one = np.ones(1)
    ranks = Ranks(
        tp=one,
        cp=one,
        ep=one,
        etp=one,
        micro_batch=one,
        sequence_parallel=np.zeros(1, dtype=bool),
        groups=place(Layouts.of(global_batch=1), 1),
    )
    workload = Workload(
        architecture=presets.load(model), recipe=Recipe(sequence_length=S, global_batch=1)
    )
    kernels = load_software(software).on(generation).kernels
    return model_parts(workload, ranks, kernels)[0]


@pytest.mark.parametrize(
    ("model", "software", "generation", "fused"),
    [
        ("deepseek-v3", "nemo-25.04", "blackwell", False),  # sm_arch_ >= 100 and 192 > 128
        ("deepseek-v3", "nemo-25.04", "hopper", True),  # 90500 and newer
        ("deepseek-v3", "megatron-bridge-26.04", "blackwell", True),  # 91100 and newer
        ("llama-3.1-405b", "nemo-25.04", "blackwell", True),  # heads of 128
    ],
)
def test_what_is_fused(model: str, software: str, generation: str, fused: bool) -> None:
    ops = attention_of(model, software, generation)
    products = [g for g in ops.gemms if g.kind == "attention"]
    assert bool(ops.flash) is fused
    assert bool(products) is not fused
    if products:  # scores of every head stand in memory, in 16 bit
        kept = {tensor.name: float(np.sum(tensor.size_bytes)) for tensor in ops.saved}
        assert kept["attention weights"] == 2.0 * 128 * S * S


@pytest.mark.parametrize(
    ("software", "generation", "head", "value", "library"),
    [
        (NEMO, "blackwell", 192, 192, "flash2"),
        (NEMO, "hopper", 192, 192, "flash"),
        (NEMO, "blackwell", 128, 128, "flash"),
        (BRIDGE, "blackwell", 256, 256, "flash2"),
        (BRIDGE, "blackwell", 192, 128, "cudnn"),
        (BRIDGE, "hopper", 256, 256, "cudnn"),
        # flash-attention 2 everywhere, as NeMo's launcher had it until August 2024
        (OLD_NEMO, "hopper", 128, 128, "sdpa"),
        (OLD_NEMO, "ampere", 128, 128, "flash"),
    ],
)
def test_who_computes_it(
    software: object, generation: str, head: int, value: int, library: str
) -> None:
    kernels = software.on(generation).kernels  # type: ignore[attr-defined]
    assert kernels.attention_library_for(head, value) == library


def test_wide_heads_take_three_times_as_long_on_blackwell() -> None:
    """354 TFLOP/s of flash-attention 2 forward (tritonbench#171), 1170 of cuDNN 9.13 on B200."""
    arch = presets.load("llama-3.1-405b")
    blocks = tuple(
        replace(kind, attention=replace(kind.attention, head_dim=192))
        for kind in arch.blocks
        if kind.attention is not None
    )
    arch = replace(arch, blocks=blocks)
    workload = Workload(architecture=arch, recipe=Recipe(sequence_length=S, global_batch=16))
    cluster = load_cluster("gb200-nvl72", 8)
    layout = Layouts.of(global_batch=16, tp=8, sequence_parallel=True)
    slow = evaluate(layout, workload, cluster, NEMO).terms_s["attention"][0]
    without = replace(NEMO, kernels=replace(NEMO.kernels, wide_heads_of={}))
    fast = evaluate(layout, workload, cluster, without).terms_s["attention"][0]
    assert 2.5 < slow / fast < 4.5
