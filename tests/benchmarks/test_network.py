"""How fast rates are solved and how large a cluster of contending groups may be.

``make bench`` times them; without ``--benchmark-enable`` each runs once. Times are only shown, but
for memory and time of the largest case, which have a ceiling far above what they take.
"""

import resource
import sys
import time
from typing import Any

import numpy as np
import pytest
from numba import njit

from simulator.events.engine.fair_shares import Crossings, fill, link_load, scratch
from simulator.events.network.collective_phases import unfold
from simulator.events.network.flows import joined
from simulator.events.network.links import degraded
from simulator.events.network.topology import topology
from simulator.events.network.transfer import Transfer, transfer
from simulator.events.sharing.contended import Network
from simulator.events.simulated_step import simulate
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

SOLVES = 2000


@njit
def repeated(number, crossings, active, rate, work):  # type: ignore[no-untyped-def]
    for _ in range(number):
        fill(crossings, active, len(active), rate, work)


@pytest.mark.benchmark(group="network")
@pytest.mark.parametrize("crossed", [4, 6, 8])
def test_rates_of_64_classes_on_256_links(benchmark: Any, crossed: int) -> None:
    """Random links, so that rates differ and few links fill together: the slow case."""
    rng = np.random.default_rng(0)
    classes, links = 64, 256
    first = np.arange(classes + 1) * crossed
    link = np.concatenate([rng.choice(links, crossed, replace=False) for _ in range(classes)])
    capacity = rng.uniform(1.0, 100.0, links)
    flows = rng.integers(1, 9, classes).astype(float)
    share, rate = np.ones(len(link)), np.zeros(classes)
    crossings = Crossings(capacity, first, link, share, flows, np.full(classes, np.inf))
    benchmark.pedantic(
        repeated,
        args=(SOLVES, crossings, np.arange(classes), rate, scratch(links, classes, len(link))),
        rounds=10,
        warmup_rounds=1,
    )
    load = link_load(rate, first, link, share, flows, links)
    assert (load <= capacity * (1 + 1e-9)).all()
    assert len(np.unique(rate)) > 30
    if benchmark.enabled:
        seconds = benchmark.stats.stats.min
        benchmark.extra_info["solves_per_s"] = round(SOLVES / seconds)


def contend(gpus: int, worn: dict[str, float]) -> Transfer:
    """Every data-parallel ring and every expert exchange of 64 at once; tp 8, pp 8."""
    cluster = load_cluster("dgx-h100", gpus)
    network = degraded(topology(cluster), worn)
    stages, replica = 8, gpus // 8
    ranks = np.arange(gpus).reshape(stages, replica // 8, 8)
    rings = ranks.transpose(0, 2, 1).reshape(-1, replica // 8)
    experts = ranks.reshape(-1, 64)
    both = joined(
        unfold(cluster, network, "all_reduce", rings, 1e9),
        unfold(cluster, network, "all_to_all", experts, 2e8, algorithm="direct"),
    )
    return transfer(both, network.capacity_bytes_per_s)


@pytest.mark.benchmark(group="network")
@pytest.mark.parametrize(
    "worn", [{}, {"adapter-up 5.3": 0.5, "leaf-up 9": 0.0, "gpu-up 77": 0.3}], ids=["sound", "worn"]
)
def test_every_group_of_16384_gpus_contends(benchmark: Any, worn: dict[str, float]) -> None:
    """By hand, sound: an adapter carries 2 x 255/256 of 1 GB of its ring and 56/64 of 0.2 GB of its
    exchange at 47 GB/s; what the exchange has moved when the ring's latency of 510 hops is over
    does not delay the ring."""
    contend(512, worn)  # compiled
    began = time.process_time()
    found = benchmark.pedantic(contend, args=(16384, worn), rounds=1)
    seconds = time.process_time() - began
    assert len(found.end_s) == 64 + 256 * 64 * 63  # a flow for each ring and each pair of experts
    if not worn:
        lag = found.start_s[: 8 * 8].max()
        moved = 2 * 255 / 256 / 47 + max(56 / 64 * 0.2 / 47 - lag, 0.0)
        assert found.makespan_s - lag == pytest.approx(moved, rel=0.01)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak_bytes = peak * (1 if sys.platform == "darwin" else 1024)
    benchmark.extra_info["process_s"] = round(seconds, 2)
    benchmark.extra_info["peak_bytes"] = peak_bytes
    assert seconds < 30.0 or not benchmark.enabled
    assert peak_bytes < 4e9


@pytest.mark.benchmark(group="network")
def test_a_step_of_16384_gpus_on_the_links_of_its_cluster(benchmark: Any) -> None:
    """DeepSeek-V3, 64 ranks of experts, every kind of groups; a worn adapter, a worn port, and a
    spine that is narrower than what leaves its leaves."""
    names = ("adapter-up 700.1", "gpu-up 77", "leaf-up 3")
    network = Network(link_degradation=dict.fromkeys(names, 0.5), contention=True)
    table = Layouts.of(pp=16, dp=1024, ep=64, global_batch=8192, rank_order="tp-cp-pp-dp")
    recipe = Recipe(sequence_length=4096, global_batch=8192)
    work = Workload(architecture=presets.load("deepseek-v3"), recipe=recipe)
    given = (table, work, load_cluster("dgx-h100", 16384), load_software("megatron-core"))
    began = time.process_time()
    step = benchmark.pedantic(simulate, args=given, kwargs={"network": network}, rounds=1)
    seconds = time.process_time() - began
    assert step.network.slowdown["edp"] == pytest.approx(2.0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    benchmark.extra_info["process_s"] = round(seconds, 2)
    assert seconds < 30.0 or not benchmark.enabled
    assert peak * (1 if sys.platform == "darwin" else 1024) < 4e9
