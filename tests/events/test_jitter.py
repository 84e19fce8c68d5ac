"""Durations that vary: quantiles of the normal, the mean kept, the slowest of many."""

import math
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.events.engine.engine import longest_path
from simulator.events.engine.graph import TaskGraph, task_graph
from simulator.events.engine.jitter import _normal, slowest_factor
from simulator.events.step.programs import program, step_graph


def test_normal_deviates_are_those_of_the_standard_library() -> None:
    above = np.array([1e-15, 1e-9, 1e-4, 0.1, 0.3, 0.4999, 0.5, 0.7, 0.99, 1 - 1e-9])
    expected = [-NormalDist().inv_cdf(share) for share in above]
    assert _normal(above) == pytest.approx(expected, rel=1e-12, abs=1e-14)


def test_a_duration_keeps_its_mean_and_has_the_spread_that_is_given() -> None:
    drawn = slowest_factor(0.2, 3, tasks=200_000)
    # standard errors: 0.2 / sqrt(n) of the mean, 0.2 / sqrt(2n) of the spread; four of them
    assert drawn.mean() == pytest.approx(1.0, abs=4 * 0.2 / math.sqrt(200_000))
    assert np.log(drawn).std() == pytest.approx(0.2, abs=4 * 0.2 / math.sqrt(400_000))


def jittered(graph: TaskGraph, spread: Any, seed: int, slowest_of: Any = 1) -> TaskGraph:
    """The same graph with durations that are drawn."""
    factor = slowest_factor(spread, seed, slowest_of, len(graph))
    return replace(graph, duration_s=graph.duration_s * factor)


def expected_largest(k: int, sigma: float) -> float:
    """Mean of the largest of k lognormal factors: its quantiles u^(1/k), averaged over u."""
    u = (np.arange(20_000) + 0.5) / 20_000
    z = np.array([NormalDist().inv_cdf(min(share, 1 - 1e-16)) for share in u ** (1 / k)])
    return float(np.exp(sigma * z - sigma**2 / 2).mean())


@pytest.mark.parametrize("k", [2, 16, 1024])
def test_the_slowest_of_many_is_drawn_at_once(k: int) -> None:
    """As the largest of k draws is on average, and as drawing all k gives."""
    at_once = slowest_factor(0.1, 11, k, 20_000)
    assert at_once.mean() == pytest.approx(expected_largest(k, 0.1), rel=2e-3)
    each = slowest_factor(0.1, 12, tasks=2000 * k).reshape(2000, k).max(axis=1)
    assert at_once.mean() == pytest.approx(each.mean(), rel=5e-3)
    assert at_once.std() == pytest.approx(each.std(), rel=0.1)


def test_a_collective_waits_for_the_slowest_of_its_ranks() -> None:
    """64 ranks of 1 s that vary by 10 % and meet at a barrier, 400 times over."""
    ranks, rounds = 64, 400
    stream = np.tile(np.arange(ranks), rounds)
    barrier = [ranks * rounds + r for r in range(rounds)]
    edges = [(r * ranks + i, barrier[r]) for r in range(rounds) for i in range(ranks)]
    edges += [(barrier[r - 1], r * ranks + i) for r in range(1, rounds) for i in range(ranks)]
    graph = task_graph(
        [1.0] * (ranks * rounds) + [0.0] * rounds, [*stream, *[ranks] * rounds], edges
    )
    took = longest_path(jittered(graph, 0.1, seed=5)).makespan_s / rounds
    assert took == pytest.approx(expected_largest(ranks, 0.1), rel=5e-3)
    # one task that stands for all of them
    folded = task_graph([1.0] * rounds, [0] * rounds)
    alike = longest_path(jittered(folded, 0.1, seed=6, slowest_of=ranks)).makespan_s / rounds
    assert alike == pytest.approx(took, rel=5e-3)


def test_the_same_seed_gives_the_same_bytes_and_no_spread_the_same_graph() -> None:
    made = program("1f1b", 4, 8)
    graph = step_graph(made, np.full((4, 1, 4), 2.0), 0.5).graph
    one, same, other = (jittered(graph, 0.05, seed) for seed in (1, 1, 2))
    assert one.duration_s.tobytes() == same.duration_s.tobytes() != other.duration_s.tobytes()
    assert jittered(graph, 0.0, 9).duration_s.tolist() == graph.duration_s.tolist()
    assert longest_path(one).makespan_s > longest_path(graph).makespan_s * 0.99


def test_spreads_may_differ_by_task() -> None:
    graph = task_graph([1.0, 1.0, 1.0], [0, 1, 2])
    drawn = jittered(graph, [0.0, 0.3, 0.0], 4, slowest_of=[1, 1, 50]).duration_s
    assert drawn[0] == drawn[2] == 1.0 and drawn[1] != 1.0


@pytest.mark.parametrize(
    ("spread", "of", "said"),
    [
        (-0.1, 1, "spread must be finite and not negative, got -0.1"),
        (np.nan, 1, "spread must be finite"),
        (0.1, 0, "slowest_of must be 1 or more, got 0"),
    ],
)
def test_spreads_and_ranks_that_make_no_sense(spread: float, of: int, said: str) -> None:
    with pytest.raises(InputError, match=said):
        jittered(task_graph([1.0], [0]), spread, 1, of)
