"""What linears of fewer than 16 bit keep: inputs in their own type, copies of weights."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.operators.casts import quantise_saved
from simulator.cost.operators.operations import Gemm, Operators, Saved
from simulator.cost.operators.roles import GemmRole, SavedRole
from simulator.cost.step import Estimate, evaluate
from simulator.files import Figure
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.software.profile import Software, load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

CORE, TITAN = load_software("megatron-core"), load_software("torchtitan")
LLAMA = presets.load("llama-3.1-8b")  # 32 layers, h 4096, f 14336, 32 heads and 8 of keys, 128 wide
T, H, F, HEADS, KV = 8192, 4096, 14336, 32 * 128, 8 * 128
# bytes of an element: TransformerEngine keeps 8 bits, or 4, and scales of 4 B for 128 or of 1 B for
# 32 or 16 elements
BYTES = {
    "fp8": 1,
    "fp8_current": 1,
    "fp8_blockwise": 1 + 4 / 128,
    "mxfp8": 1 + 1 / 32,
    "nvfp4": 1 / 2 + 1 / 16,
}


def recipe(precision: Any) -> Recipe:
    return Recipe(sequence_length=T, global_batch=8, precision=precision)


ONE_SCALE = ("fp8", "fp8_current")


def run(software: Software, precision: str, cluster: str = "", **layout: Any) -> Estimate:
    work = Workload(architecture=LLAMA, recipe=recipe(precision))
    table = Layouts.of(global_batch=8, **layout)
    cluster = cluster or ("dgx-h100" if precision == "fp8_blockwise" else "dgx-b200")
    return evaluate(table, work, load_cluster(cluster, 8), software)


def kept(precision: str, *saved: Saved, software: Software = CORE) -> list[Saved]:
    return quantise_saved(Operators(saved=list(saved)), recipe(precision), software.kernels)


@pytest.mark.parametrize("precision", BYTES)
def test_one_linear_keeps_its_input_in_the_type_of_its_product(precision: str) -> None:
    given = Saved("mlp input", 2.0 * T * H, SavedRole.LINEAR_INPUT, module="norm")
    (small,) = kept(precision, given)
    assert small.module == "norm" and small.role is SavedRole.LINEAR_INPUT
    assert small.size_bytes == pytest.approx(BYTES[precision] * T * H, rel=1e-12)
    assert given.size_bytes == 2.0 * T * H


def test_what_no_linear_reads_stays_in_16_bit() -> None:
    others = [
        Saved("norm1 input", 4.0, SavedRole.NORM_INPUT),
        Saved("queries", 4.0, SavedRole.QUERIES),
        Saved("fc1 output", 4.0, SavedRole.ACTIVATION_INPUT, module="mlp"),
        Saved("router", 4.0, SavedRole.ROUTER),
    ]
    assert kept("fp8", *others) == others
    # a rectifier's output alone tells the rectifier's gradient: it stays
    rectified = Saved("fc activation output", 4.0, SavedRole.RECTIFIED_OUTPUT, module="mlp")
    assert kept("fp8", rectified) == [rectified]


def test_what_attention_or_router_read_too_is_there_twice() -> None:
    output = Saved("attention output", 2.0 * T * HEADS, SavedRole.ATTENTION_OUTPUT)
    assert [x.size_bytes for x in kept("fp8", output)] == [2.0 * T * HEADS, 1.0 * T * HEADS]
    routed = Saved("moe input", 8.0, SavedRole.ROUTED_INPUT, module="norm")
    assert kept("fp8", routed) == [routed]
    shared = Gemm(name="shared fc1", role=GemmRole.SHARED_FC1, m=1, n=1, k=1)
    ops = Operators(saved=[routed], gemms=[shared])
    found = quantise_saved(ops, recipe("fp8"), CORE.kernels)
    assert [x.size_bytes for x in found] == [8.0, 4.0]


@pytest.mark.parametrize("precision", BYTES)
def test_a_block_by_hand(precision: str) -> None:
    """Inputs of qkv, fc1 and fc2 shrink from 2 bytes, that of the projection is added."""
    plain, low = (run(CORE, each).memory_bytes["activations"][0] for each in ("bf16", precision))
    each = BYTES[precision]
    change = (each - 2) * (H + H + F) + each * HEADS
    assert low - plain == pytest.approx(32 * T * change, rel=1e-9)


@pytest.mark.parametrize("precision", BYTES)
def test_two_copies_of_the_weights_of_the_blocks(precision: str) -> None:
    """On Hopper; Blackwell's products read fp8 with one scale along rows and along columns."""
    cluster = "dgx-h100" if precision in ONE_SCALE else ""
    plain, low = (
        run(CORE, each, cluster).memory_bytes["weights"][0] for each in ("bf16", precision)
    )
    linears = 32 * (H * (HEADS + 2 * KV) + HEADS * H + 3 * H * F)
    assert low - plain == pytest.approx(2 * BYTES[precision] * linears, rel=1e-9)


def test_tensor_parallel_ranks_share_the_copies() -> None:
    whole, half = (
        run(CORE, "fp8", tp=tp).memory_bytes["weights"][0]
        - run(CORE, "bf16", tp=tp).memory_bytes["weights"][0]
        for tp in (1, 2)
    )
    assert half == pytest.approx(whole / 2, rel=1e-9)


def test_torchtitan_keeps_16_bit_inputs_and_no_copies() -> None:
    plain, low = (run(TITAN, each, dp=8, sharding="zero3").memory_bytes for each in ("bf16", "fp8"))
    for kind in ("weights", "activations", "optimizer"):
        assert np.array_equal(plain[kind], low[kind])


@pytest.mark.parametrize("precision", BYTES)
def test_no_time_depends_on_it(precision: str) -> None:
    kernels = replace(
        CORE.kernels,
        transformer_engine=replace(CORE.kernels.transformer_engine, saves_quantised_inputs=False),
    )
    states = replace(CORE.states, quantised_weight_copies=Figure(0.0))
    without = run(replace(CORE, kernels=kernels, states=states), precision)
    assert np.array_equal(run(CORE, precision).step_time_s, without.step_time_s)
