"""Products of a rank's experts: one after another as Transformer Engine has them, or together."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.blocks.products import Products
from simulator.cost.operators.operations import Gemm, Operators
from simulator.cost.operators.roles import GemmRole
from simulator.files import Figure
from simulator.hardware.cluster import load_cluster
from simulator.software.profile import Software, load_software
from simulator.workload.recipe import Recipe
from tests.cost.test_operators import ranks

CORE = load_software("megatron-core")
B200 = load_cluster("dgx-b200", 8)
PEAK = 2250e12

MEASURED = [
    # experts, rows each, columns, reduction; share of the peak that forward, dgrad and wgrad (added
    # to fp32) reach: MooreThreads/SimuMax, configs/system/b200_bf16_ceperm.json, group_matmul
    (40, 616, 3072, 5120, 0.462, 0.321, 0.258),
    (40, 616, 5120, 1536, 0.326, 0.281, 0.272),
    (64, 512, 4096, 7168, 0.367, 0.405, 0.219),
    (64, 512, 7168, 2048, 0.427, 0.294, 0.215),
    (20, 1232, 3072, 5120, 0.513, 0.422, 0.328),
    (20, 1232, 5120, 1536, 0.397, 0.389, 0.320),
    (32, 1024, 4096, 7168, 0.457, 0.435, 0.289),
    (32, 1024, 7168, 2048, 0.384, 0.430, 0.274),
    (40, 2460, 3072, 5120, 0.487, 0.452, 0.417),
    (40, 2460, 5120, 1536, 0.496, 0.489, 0.403),
    (40, 9832, 3072, 5120, 0.475, 0.476, 0.419),
    (40, 9832, 5120, 1536, 0.445, 0.463, 0.413),
]


def together(way: Any) -> Software:
    return replace(CORE, kernels=replace(CORE.kernels, expert_products=way))


def product_s(software: Software, experts: int, m: int, n: int, k: int, result: int) -> float:
    """One grouped product in bf16, as a training step prices it."""
    recipe = Recipe(sequence_length=4096, global_batch=8)
    products = Products(B200.accelerator, software, recipe, ranks(), software.overlap)
    columns = [np.array([float(x)]) for x in (m, n, k, experts, result, 1.0, 1.0, 0.0)]
    return float(products.seconds("bf16", columns, True)[0])


def errors(software: Software) -> Any:
    """log(predicted / measured) of all products."""
    found = []
    for experts, m, n, k, *shares in MEASURED:
        shapes = ((m, n, k, 2), (m, k, n, 2), (k, n, m, 8))
        for shape, share in zip(shapes, shares, strict=True):
            measured = 2.0 * experts * m * n * k / PEAK / share
            found.append(np.log(product_s(software, experts, *shape) / measured))
    return np.array(found)


def test_products_one_by_one_come_near_those_that_were_timed_in_training() -> None:
    one_by_one, one_kernel = errors(together("streams")), errors(together("one_kernel"))
    assert abs(one_by_one.mean()) < 0.06
    assert one_by_one.std() < 0.15
    assert abs(one_kernel.mean()) > abs(one_by_one.mean()) + 0.03


def test_experts_that_start_within_tiles_work_on_the_shared_ones_twice() -> None:
    """1,024 rows at any place touch three tiles of 512 rows on average: 2 and 511 / 512."""
    xla, tpu = load_software("maxtext"), load_cluster("tpu7x", 4).accelerator
    assert float(xla.kernels.group_tile_rows) == 512.0
    plain = replace(xla, kernels=replace(xla.kernels, group_tile_rows=Figure(0.0)))
    recipe = Recipe(sequence_length=4096, global_batch=8)

    def layer_s(software: Software, tokens: float, **also: Any) -> float:
        product = Gemm(
            name="fc1", role=GemmRole.EXPERT_FC1, m=tokens, n=4096, k=4096, batch=64.0, grouped=True
        )
        ops = Operators(gemms=[product], **also)
        products = Products(tpu, software, recipe, ranks(), software.overlap)
        return float(sum(time[0] for time in products.times([ops])[0].values()))

    # a chip is two devices: 2,048 rows of it are 1,024 of each
    assert layer_s(xla, 2048.0) == layer_s(plain, 2048.0 + 2 * 512)
    assert layer_s(xla, 2048.0, padded_experts=True) == layer_s(plain, 2048.0)


def test_twice_the_experts_take_twice_as_long_but_for_one_start() -> None:
    software = together("streams")
    one, two, four = (product_s(software, e, 512, 4096, 4096, 2) for e in (1, 2, 4))
    assert four - two == pytest.approx(2 * (two - one))
    start = float(B200.accelerator.gemm["cublas"]["bf16"].launch_s)
    assert 2 * one - two == pytest.approx(start)
