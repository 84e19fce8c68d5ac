"""The engine against simpy, an event simulator of another design, on random task graphs.

In simpy every stream is a process that waits for its next task's predecessors and then for the
task's time; shared resources are a pool whose members are interrupted when their rate changes.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from simulator.events.engine.demands import demands
from simulator.events.engine.engine import longest_path, play
from simulator.events.engine.graph import TaskGraph, task_graph


@dataclass(frozen=True)
class Drawn:
    """A graph as lists: times in eighths of a second, so that sums are exact."""

    graph: TaskGraph
    edges: list[tuple[int, int]]
    lags: list[float]


@st.composite
def graphs(draw: Any, lagged: bool = True) -> Drawn:
    """Tasks in a hidden order that makes them acyclic; numbers run stream by stream."""
    n = draw(st.integers(1, 40))
    stream = draw(st.lists(st.integers(0, 6), min_size=n, max_size=n))
    eighths = draw(st.lists(st.integers(0, 40), min_size=n, max_size=n))
    number = np.argsort(np.argsort(stream, kind="stable"))
    pairs = draw(
        st.lists(
            st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=3 * n, unique=True
        )
    )
    edges = [(int(number[a]), int(number[b])) for a, b in pairs if a < b]
    late = st.integers(0, 16) if lagged else st.just(0)
    lags = [draw(late) / 8 for _ in edges]
    order = np.argsort(number)
    duration = np.array(eighths)[order] / 8
    return Drawn(task_graph(duration, np.array(stream)[order], edges, lags), edges, lags)


Serve = Callable[[int], Generator[Any, Any, None]]


def simulated(drawn: Drawn, serving: Callable[[simpy.Environment], Serve]) -> tuple[Any, Any]:
    """Start and end of every task by simpy; `serving` makes what a task does for its time."""
    env = simpy.Environment()
    serve = serving(env)
    n = len(drawn.graph)
    done = [env.event() for _ in range(n)]
    start, end = np.zeros(n), np.zeros(n)
    before: dict[int, list[tuple[int, float]]] = {i: [] for i in range(n)}
    for (earlier, later), lag in zip(drawn.edges, drawn.lags, strict=True):
        before[later].append((earlier, lag))

    def run(tasks: list[int]) -> Generator[Any, Any, None]:
        for task in tasks:
            yield env.all_of([done[p] for p, _ in before[task]])
            ready = max([env.now, *(end[p] + lag for p, lag in before[task])])
            yield env.timeout(ready - env.now)
            start[task] = env.now
            yield from serve(task)
            end[task] = env.now
            done[task].succeed()

    stream = drawn.graph.stream
    for s in np.unique(stream):
        env.process(run(np.flatnonzero(stream == s).tolist()))
    env.run()
    return start, end


def alone(drawn: Drawn) -> Callable[[simpy.Environment], Serve]:
    """Every task takes its own time."""

    def serving(env: simpy.Environment) -> Serve:
        def serve(task: int) -> Generator[Any, Any, None]:
            yield env.timeout(drawn.graph.duration_s[task])

        return serve

    return serving


@given(graphs())
def test_without_sharing_every_task_runs_when_simpy_runs_it(drawn: Drawn) -> None:
    start, end = simulated(drawn, alone(drawn))
    played = play(drawn.graph, demands(drawn.graph.duration_s, [1.0]))
    for times in (longest_path(drawn.graph), played):
        assert times.start_s.tolist() == start.tolist()
        assert times.end_s.tolist() == end.tolist()
    assert played.cause.tolist() == longest_path(drawn.graph).cause.tolist()


@given(graphs(), st.integers(0, 2**32 - 1))
def test_resources_that_nobody_exhausts_change_nothing(drawn: Drawn, seed: int) -> None:
    n, rng = len(drawn.graph), np.random.default_rng(seed)
    entries = [(i, int(r), 0.125) for i in range(n) for r in rng.choice(4, 2, replace=False)]
    held = rng.random(len(entries)) < 0.3
    given_ = demands(drawn.graph.duration_s, [2.0] * 4, entries, held=held)  # 7 streams at most
    assert play(drawn.graph, given_).end_s.tolist() == longest_path(drawn.graph).end_s.tolist()


class Pool:
    """Tasks in service; whenever one comes or goes, all others are told to reckon again."""

    def __init__(self, env: simpy.Environment, rate: Callable[[int, list[int]], float]) -> None:
        self.env, self.rate = env, rate
        self.members: dict[int, simpy.Event] = {}

    def _changed(self) -> None:
        for task, told in list(self.members.items()):
            self.members[task] = self.env.event()
            told.succeed()

    def serve(self, task: int, work: float) -> Generator[Any, Any, None]:
        if work == 0:
            return
        self._changed()
        self.members[task] = self.env.event()
        while work > 1e-12:
            speed, since = self.rate(task, list(self.members)), self.env.now
            due = self.env.timeout(work / speed) if speed > 0 else self.env.event()
            told = self.members[task]
            yield due | told
            work = 0.0 if due.processed else work - speed * (self.env.now - since)
        del self.members[task]
        self._changed()


def pooled(
    drawn: Drawn, rate: Callable[[int, list[int]], float]
) -> Callable[[simpy.Environment], Serve]:
    def serving(env: simpy.Environment) -> Serve:
        pool = Pool(env, rate)
        return lambda task: pool.serve(task, float(drawn.graph.duration_s[task]))

    return serving


@given(graphs(), st.sampled_from([0.5, 1.0, 2.0, 3.0]))
def test_one_resource_shared_evenly(drawn: Drawn, capacity: float) -> None:
    """k tasks that would each take 1 get capacity / k, at most 1."""
    n = len(drawn.graph)
    _, end = simulated(drawn, pooled(drawn, lambda _, all_: min(1.0, capacity / len(all_))))
    entries = [(i, 0, 1.0) for i in range(n)]
    times = play(drawn.graph, demands(drawn.graph.duration_s, [capacity], entries))
    assert times.end_s == pytest.approx(end, rel=1e-9, abs=1e-9)


@given(graphs(), st.lists(st.booleans(), min_size=7, max_size=7))
def test_compute_beside_collectives_that_hold_their_units(
    drawn: Drawn, collective: list[bool]
) -> None:
    """Streams of collectives hold an eighth each; the others share what is left evenly."""
    n = len(drawn.graph)
    holds = np.array(collective)[drawn.graph.stream]

    def rate(task: int, all_: list[int]) -> float:
        if holds[task]:
            return 1.0
        held = int(holds[all_].sum())
        return min(1.0, (1 - held / 8) / (len(all_) - held))

    _, end = simulated(drawn, pooled(drawn, rate))
    entries = [(i, 0, 0.125 if holds[i] else 1.0) for i in range(n)]
    times = play(drawn.graph, demands(drawn.graph.duration_s, [1.0], entries, held=holds))
    assert times.end_s == pytest.approx(end, rel=1e-9, abs=1e-9)


def even(asked: list[float]) -> float:
    """What each has at most of a link of 1 where who asks for less leaves the rest to others."""
    level, left = 1.0, 1.0
    for i, share in enumerate(sorted(asked)):
        level = left / (len(asked) - i)
        if share > level:
            return level
        left -= share
    return 1.0


@given(graphs(), st.lists(st.sampled_from([0.25, 0.5, 0.75, 1.0]), min_size=7, max_size=7))
def test_a_link_shared_by_its_bytes(drawn: Drawn, asked: list[float]) -> None:
    """Streams ask for different shares of one link; even shares, the rest to who asks for more."""
    n = len(drawn.graph)
    share = np.array(asked)[drawn.graph.stream]

    def rate(task: int, all_: list[int]) -> float:
        return float(min(1.0, even(share[all_].tolist()) / share[task]))

    _, end = simulated(drawn, pooled(drawn, rate))
    entries = [(i, 0, share[i]) for i in range(n)]
    times = play(drawn.graph, demands(drawn.graph.duration_s, [1.0], entries, weight=share))
    assert times.end_s == pytest.approx(end, rel=1e-9, abs=1e-9)
