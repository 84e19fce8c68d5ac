"""Queries, keys and values, gate and up as linears of their own: products, sums of gradients."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.blocks.block_costs import PASS_TERMS
from simulator.cost.operators.block_operators import block
from simulator.cost.pricing import price
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.software.profile import Software, load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload
from tests.cost.test_low_precision import ranks
from tests.flat_kernels import gemm_rates, gemm_s

H100 = load_cluster("dgx-h100", 8)
LLAMA, MIXTRAL = presets.load("llama-3.1-8b"), presets.load("mixtral-8x7b")
H, F, S = 4096, 14336, 8192
WORK = Workload(architecture=LLAMA, recipe=Recipe(sequence_length=S, global_batch=1))
TITAN, EAGER = load_software("torchtitan"), load_software("torchtitan-eager")


def whole(software: Software) -> Software:
    return replace(software, kernels=replace(software.kernels, separate_linears=False))


def product_s(m: int, n: int, k: int) -> float:
    """One product alone, under the load of a training step."""
    kernel = H100.accelerator.gemm["cublas"]["bf16"]
    given: dict[str, Any] = {x.name: float(getattr(kernel, x.name)) for x in fields(kernel)}
    given["host_floor_s"] = 0.0
    rates = gemm_rates(H100.accelerator, "bf16")
    found = gemm_s(m=m, n=n, k=k, batch=1, result_bytes=2.0, sustained=True, **given, **rates)
    return float(found)


def gemms_s(software: Software, tp: int) -> tuple[float, float]:
    """Products of a block, forward and backward."""
    table = Layouts.of(tp=tp, sequence_parallel=True, global_batch=1)
    blocks = price(table, WORK, H100, software).blocks
    at = PASS_TERMS.index("gemm")
    return float(blocks.forward_s[at][0, 0]), float(blocks.backward_s[at][0, 0])


@pytest.mark.parametrize("tp", [1, 8])
def test_each_linear_is_a_product(tp: int) -> None:
    """Eight ranks: 512 queries, 128 keys, 128 values, 1792 gates and as many ups for each."""
    linears = (H // tp, 1024 // tp, 1024 // tp), (F // tp, F // tp)
    ways = (
        lambda n: product_s(S, n, H),
        lambda n: product_s(S, H, n) + product_s(H, n, S),
    )
    for own, joint, way in zip(gemms_s(TITAN, tp), gemms_s(whole(TITAN), tp), ways, strict=True):
        expected = sum(sum(map(way, some)) - way(sum(some)) for some in linears)
        assert expected > 0
        assert own - joint == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("software", "passes"), [(TITAN, 1), (EAGER, 3)])
@pytest.mark.parametrize("tp", [1, 8])
def test_gradients_of_a_shared_input_are_summed(software: Software, passes: int, tp: int) -> None:
    """Over all tokens that a rank's linears see, in 16 bit: two more of queries, keys and values,
    one more of gate and up. Eager autograd reads two and writes one each time."""
    recipe = Recipe(sequence_length=S, global_batch=8)
    ops = block(LLAMA.blocks[0], H, ranks(tp=tp), recipe, software.kernels)
    found = {s.name: s for s in ops.streams}
    for name, more in (("qkv", 2), ("fc1", 1)):
        one = found[f"sum of gradients for {name}"]
        assert float(one.forward_bytes) == 0.0
        assert float((one.backward_bytes + 0 * ranks(tp=tp).tp)[0]) == more * passes * 2 * S * H
        assert one.calls_back == (0 if passes == 1 else more)
    joint = block(LLAMA.blocks[0], H, ranks(tp=tp), recipe, whole(software).kernels)
    assert not any("sum of gradients" in s.name for s in joint.streams)


def test_experts_have_gates_of_their_own() -> None:
    recipe = Recipe(sequence_length=S, global_batch=8)
    ops = block(MIXTRAL.blocks[0], H, ranks(), recipe, TITAN.kernels)
    (gate_and_up,) = [g for g in ops.gemms if g.name == "expert fc1"]
    assert [float(np.max(width)) for width in gate_and_up.linears] == [F, F]
    one = next(s for s in ops.streams if s.name == "sum of gradients for expert fc1")
    tokens = 2 * S  # two experts for every token, all of them here
    assert float((one.backward_bytes + 0 * ranks().tp)[0]) == pytest.approx(2 * tokens * H)


def test_flop_do_not_depend_on_it() -> None:
    recipe = Recipe(sequence_length=S, global_batch=8)
    own, joint = (
        sum(g.flop for g in block(LLAMA.blocks[0], H, ranks(), recipe, x.kernels).gemms)
        for x in (TITAN, whole(TITAN))
    )
    assert own == pytest.approx(joint)
