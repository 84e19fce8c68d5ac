"""How fast the event engine is. Counts are asserted; of times only a wide bound, for any machine.

``make bench`` times them; without ``--benchmark-enable`` each runs once. The first call compiles
(kept between runs), so that one call is made before the clock starts. `process_s` is the least
processor time of one process, which other work on the machine lengthens less than the wall clock.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from simulator.events.engine.demands import Demands, demands
from simulator.events.engine.engine import Times, longest_path, play
from simulator.events.engine.graph import TaskGraph
from simulator.events.sharing.contended import Network
from simulator.events.simulated_step import Jitter, simulate
from simulator.events.step.programs import Program, StepGraph, program, step_graph
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

PP, VPP, MICRO_BATCHES = 32, 3, 512
"""GPT-3 175B: 96 layers on 32 ranks of 3 chunks, tensor-parallel ranks folded into one."""

TASKS = 2 * MICRO_BATCHES * (PP * VPP + PP * VPP - 1)
"""Passes each way through every piece, and a send across every boundary."""


def passes(made: Program) -> Any:
    """Even stages but for the last, which has the head."""
    table = np.empty((made.ranks, made.chunks, 4))
    table[...] = (1e-3, 2e-3, 1e-3, 1e-3)
    table[-1, -1] *= 1.25
    return table


def gpt3() -> StepGraph:
    made = program("interleaved", PP, MICRO_BATCHES, VPP)
    return step_graph(made, passes(made), 1e-4)


def whole_step() -> Times:
    """Schedule, graph and engine: everything from three numbers to the times of all tasks."""
    return longest_path(gpt3().graph)


def show(benchmark: Any, tasks: int, work: Callable[[], Any], most_s: float) -> None:
    """Add the rate to the report and hold the least processor time of a few calls to a bound."""
    least = min(_process_s(work) for _ in range(5))
    benchmark.extra_info["tasks"] = tasks
    benchmark.extra_info["process_s"] = round(least, 5)
    benchmark.extra_info["tasks_per_process_s"] = round(tasks / least)
    assert least < most_s


def _process_s(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


@pytest.mark.benchmark(group="events")
def test_longest_path_of_gpt3(benchmark: Any) -> None:
    """Target: 50 million completions per second."""
    graph = gpt3().graph
    times = benchmark.pedantic(longest_path, args=(graph,), rounds=20, warmup_rounds=2)
    assert len(times.end_s) == len(graph) == TASKS
    show(benchmark, TASKS, lambda: longest_path(graph), TASKS / 5e6)


@pytest.mark.benchmark(group="events")
def test_graph_and_longest_path_of_gpt3(benchmark: Any) -> None:
    """Target: 10 million completions per second, building included."""
    made = program("interleaved", PP, MICRO_BATCHES, VPP)
    pass_s = passes(made)

    def build_and_run() -> Times:
        return longest_path(step_graph(made, pass_s, 1e-4).graph)

    benchmark.pedantic(build_and_run, rounds=20, warmup_rounds=2)
    show(benchmark, TASKS, build_and_run, TASKS / 2e6)


@pytest.mark.benchmark(group="events")
def test_whole_step_of_gpt3(benchmark: Any) -> None:
    """Target: 0.2 s, listing the schedule and building the graph included."""
    times = benchmark.pedantic(whole_step, rounds=20, warmup_rounds=2)
    # no shorter than the slowest rank's own work
    assert times.makespan_s > MICRO_BATCHES * (2 + 1.25) * 3e-3
    show(benchmark, TASKS, whole_step, 0.2)


def contended(step: StepGraph) -> Demands:
    """Compute takes its rank's units; a send holds a tenth of its sender's while it runs."""
    n = len(step.graph)
    sends = step.stream != 0
    entries = np.column_stack([np.arange(n), step.rank, np.where(sends, 0.1, 1.0)])
    return demands(step.graph.duration_s, np.ones(PP), entries, held=sends)


@pytest.mark.benchmark(group="events")
def test_event_queue_of_gpt3_without_sharing(benchmark: Any) -> None:
    graph = gpt3().graph
    free = demands(graph.duration_s, [1.0])
    times = benchmark.pedantic(play, args=(graph, free), rounds=5, warmup_rounds=1)
    assert times.end_s.tobytes() == longest_path(graph).end_s.tobytes()
    show(benchmark, TASKS, lambda: play(graph, free), TASKS / 5e5)


@pytest.mark.benchmark(group="events")
def test_event_queue_of_gpt3_with_sends_that_take_compute_units(benchmark: Any) -> None:
    step = gpt3()
    shared = contended(step)
    times = benchmark.pedantic(play, args=(step.graph, shared), rounds=5, warmup_rounds=1)
    assert times.makespan_s > longest_path(step.graph).makespan_s
    show(benchmark, TASKS, lambda: play(step.graph, shared), TASKS / 3e5)


@pytest.mark.benchmark(group="events")
def test_longest_path_of_a_million_random_tasks(benchmark: Any) -> None:
    """Two earlier tasks anywhere: what memory that is not in order costs."""
    n = 1_000_000
    graph = random_graph(n)
    times = benchmark.pedantic(longest_path, args=(graph,), rounds=3, warmup_rounds=1)
    assert (times.end_s >= times.start_s).all()
    show(benchmark, n, lambda: longest_path(graph), n / 1e6)


def random_graph(n: int) -> TaskGraph:
    """Every task but the first waits for two earlier ones, drawn evenly."""
    rng = np.random.default_rng(1)
    earlier = (rng.random((n, 2)) * np.arange(n)[:, None]).astype(np.int32)
    first = 2 * np.maximum(np.arange(n + 1) - 1, 0)
    return TaskGraph(
        duration_s=rng.random(n),
        stream=rng.integers(0, 512, n),
        first=first,
        predecessor=earlier[1:].ravel(),
    )


@pytest.mark.benchmark(group="events")
@pytest.mark.parametrize("played", ["plain", "contention", "jitter"])
def test_simulated_step_of_gpt3(benchmark: Any, played: str) -> None:
    """Pricing, schedule, graph, engine and terms of 512 micro-batches: as it is; with links shared
    and compute units held, in phases (twice through the event queue); each replica drawn."""
    layout = Layouts.of(tp=8, pp=PP, vpp=VPP, dp=4, global_batch=4 * MICRO_BATCHES)
    recipe = Recipe(sequence_length=2048, global_batch=4 * MICRO_BATCHES)
    work = Workload(architecture=presets.load("gpt3-175b"), recipe=recipe)
    given = (layout, work, load_cluster("dgx-h100", 1024), load_software("megatron-core"))
    more: dict[str, Any] = {
        "plain": {},
        "contention": {"network": Network(contention=True)},
        "jitter": {"jitter": Jitter(spread=0.02)},
    }[played]
    step = benchmark.pedantic(simulate, args=given, kwargs=more, rounds=3, warmup_rounds=1)
    assert step.tasks >= TASKS
    show(benchmark, TASKS, lambda: simulate(*given, **more), 0.5 if played == "plain" else 5.0)
