"""The slowest of many: order statistics, what a step waits for them, and all-reduces in between."""

from dataclasses import replace

import numpy as np
import pytest

from simulator.cost.blocks.block_costs import slowest_of
from simulator.cost.collectives.calls import all_reduce_s
from simulator.cost.step import Estimate, evaluate
from simulator.files import Figure
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import SHARDINGS, Layouts
from simulator.layout.placement import Group
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

ZERO1 = SHARDINGS.index("zero1")


@pytest.mark.parametrize("members", [2, 8, 64, 1024])
def test_slowest_is_the_mean_largest_draw(members: int) -> None:
    """Against numpy's normal draws."""
    draws = np.random.default_rng(1).standard_normal((4000, members)).max(axis=1)
    assert float(slowest_of(members)) == pytest.approx(draws.mean(), abs=0.05)


def test_exact_values() -> None:
    """Two draws: 1 / sqrt(pi); three: 3 / (2 sqrt(pi)) (Jones 1948)."""
    exact = np.array([0.0, 1 / np.sqrt(np.pi), 1.5 / np.sqrt(np.pi)])
    np.testing.assert_allclose(slowest_of([1, 2, 3]), exact, rtol=0.05)


def estimate(
    *,
    precision: str = "bf16",
    variation: float = 0.01,
    host: float = 0.0,
    maxima: bool = True,
    per_kernel_s: float = 0.0,
    gpus: int = 64,
    **degrees: int,
) -> Estimate:
    """A 70B step on 64 H100s whose host costs no time unless said."""
    cluster = load_cluster("dgx-h100", gpus)
    group = cluster.groups[0]
    device = replace(group.accelerator, time_variation=Figure(variation))
    cluster = replace(cluster, groups=(replace(group, accelerator=device),))
    software = load_software("megatron-core")
    software = replace(
        software,
        host=replace(
            software.host, seconds_per_kernel=Figure(per_kernel_s), time_variation=Figure(host)
        ),
        kernels=replace(
            software.kernels,
            transformer_engine=replace(software.kernels.transformer_engine, reduces_maxima=maxima),
        ),
    )
    recipe = Recipe(sequence_length=4096, global_batch=128, precision=precision)
    work = Workload(architecture=presets.load("llama-3.1-70b"), recipe=recipe)
    shape = {"tp": 8, "pp": 4, "vpp": 5} | degrees
    dp = gpus // (shape["tp"] * shape["pp"])
    table = Layouts.of(
        **shape, dp=dp, micro_batch=1, global_batch=128, sharding=ZERO1, sequence_parallel=True
    )
    return evaluate(table, work, cluster, software)


def test_compute_is_as_late_as_the_slowest_accelerator() -> None:
    found, none = estimate(), estimate(variation=0.0)
    compute_s = sum(none.terms_s[x] for x in ("gemm", "attention", "memory_bound"))
    late_s = 0.01 * slowest_of(64) * compute_s
    np.testing.assert_allclose(found.terms_s["stragglers"], late_s, rtol=1e-9)
    assert none.terms_s["stragglers"] == 0.0
    for name in ("gemm", "attention", "memory_bound"):
        np.testing.assert_allclose(found.terms_s[name], none.terms_s[name], rtol=1e-12)


def test_a_late_host_delays_only_where_it_is_behind() -> None:
    ahead = [estimate(per_kernel_s=1e-6, host=x).step_time_s[0] for x in (0.0, 0.05)]
    assert ahead[1] == ahead[0]
    behind = [estimate(per_kernel_s=1e-4, host=x) for x in (0.0, 0.05)]
    plain, late = (float(x.step_time_s[0]) for x in behind)
    # all blocks wait for the host, so that its time is nearly all of the step
    assert (
        1.0 + 0.9 * 0.05 * float(slowest_of(64)) < late / plain < 1.0 + 0.05 * float(slowest_of(64))
    )


def test_maxima_are_reduced_once_each_way_for_every_micro_batch_and_chunk() -> None:
    """64 micro-batches x 5 chunks x 2 ways of an all-reduce over tp x dp = 16 ranks, 2 servers."""
    found, none = estimate(precision="fp8"), estimate(precision="fp8", maxima=False)
    one_s = all_reduce_s(
        load_cluster("dgx-h100", 64), 48.0 * 4, Group(size=np.array([16]), local=np.array([8]))
    )
    more_s = found.terms_s["small_reductions"] - none.terms_s["small_reductions"]
    np.testing.assert_allclose(more_s, 64 * 5 * 2 * one_s, rtol=1e-3)


@pytest.mark.parametrize("precision", ["bf16", "fp8_current"])
def test_other_scales_need_no_maxima(precision: str) -> None:
    found = estimate(precision=precision).terms_s["small_reductions"]
    assert found == estimate(precision=precision, maxima=False).terms_s["small_reductions"]
    assert 0.0 < float(found[0]) < 1e-3  # the gradient norm over all ranks, once
