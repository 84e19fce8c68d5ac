"""Rounds of a parameter server played on discrete events: every worker, message and sum.

Each worker computes, pushes in pieces, and pulls a piece when it was applied. Links and memory of
the servers are shared evenly; a worker's own link bounds what its messages take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from simulator.arrays import Floats
from simulator.errors import InputError
from simulator.events.engine.demands import demands
from simulator.events.engine.engine import play
from simulator.events.engine.graph import task_graph
from simulator.events.engine.jitter import slowest_factor
from simulator.push_pull.rounds import Round

__all__ = ["PlayedRounds", "play_rounds"]

_MOST_TASKS = 2_000_000
_IN, _MEMORY, _OUT = range(3)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlayedRounds:
    """What came of it."""

    rounds_per_s: Floats
    """Of every worker, once under way."""
    period_s: float
    """Seconds between two rounds of the mean worker."""


@dataclass(slots=True)
class _Tasks:
    """A graph under construction."""

    work: list[float] = field(default_factory=list)
    limit: list[float] = field(default_factory=list)
    stream: list[int] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)
    entries: list[tuple[int, int, float]] = field(default_factory=list)

    def add(
        self,
        work: float,
        stream: int,
        after: Sequence[int] = (),
        *,
        limit: float = 1.0,
        resource: int | None = None,
    ) -> int:
        """Add a task and return its number."""
        number = len(self.work)
        self.work.append(work)
        self.limit.append(limit)
        self.stream.append(stream)
        self.edges += [(other, number) for other in after]
        if resource is not None:
            self.entries.append((number, resource, 1.0))
        return number


def play_rounds(
    step_s: Sequence[float],
    one: Round,
    *,
    staleness: int | None,
    sums_first: bool = False,
    spread: float = 0.0,
    seed: int = 0,
    rounds: int = 40,
) -> PlayedRounds:
    """Play rounds of workers until they are under way, and count.

    Parameters
    ----------
    step_s : sequence of float
        Mean compute of every worker.
    staleness : int or None
        A worker starts a round when all have been applied up to so many and one before it; None:
        it waits for nobody, and fast workers go more rounds.
    sums_first : bool
        All pushes of a round are summed and applied at once; with staleness 0 alone.
    spread : float
        Standard deviation of the logarithm of a step.
    rounds : int
        Of the fastest worker; the first quarter is not counted.

    Raises
    ------
    InputError
        If there were too many messages to play.
    """
    pieces = int(one.pieces)
    fastest = min(step_s)
    each = [rounds if staleness is not None else max(8, round(rounds * fastest / s))
            for s in step_s]  # fmt: skip
    if (count := sum(each) * (1 + 3 * pieces)) > _MOST_TASKS:
        raise InputError(f"parameter server: {count:,} messages are too many to play")
    tasks, computed = _graph(
        step_s, one, each, staleness=staleness, sums_first=sums_first, spread=spread, seed=seed
    )
    capacity = [one.servers_bytes_per_s, 1.0, one.servers_bytes_per_s]
    graph = task_graph(np.zeros(len(tasks.work)), tasks.stream, tasks.edges)
    times = play(graph, demands(tasks.work, capacity, tasks.entries, limit=tasks.limit))
    rates = []
    for own in computed:
        first = len(own) // 4
        span = times.start_s[own[-1]] - times.start_s[own[first]]
        rates.append((len(own) - 1 - first) / span)
    found = np.array(rates)
    return PlayedRounds(rounds_per_s=found, period_s=float(1.0 / found.mean()))


def _graph(
    step_s: Sequence[float],
    one: Round,
    each: Sequence[int],
    *,
    staleness: int | None,
    sums_first: bool,
    spread: float,
    seed: int,
) -> tuple[_Tasks, list[list[int]]]:
    """All tasks, and those of every worker that compute."""
    tasks, pieces, workers = _Tasks(), int(one.pieces), len(step_s)
    computed: list[list[int]] = [[] for _ in step_s]
    pulled: list[list[int]] = [[] for _ in step_s]
    applied: list[int] = []  # of every round, a task that ends when all workers' updates have
    free = 3 * workers  # streams below are workers, their links out, and in
    draws = [slowest_factor(spread, (seed, w), 1, n) if spread else np.ones(n)
             for w, n in enumerate(each)]  # fmt: skip
    sent = one.push_bytes / pieces, one.pull_bytes / pieces
    for i in range(max(each)):
        begun = [w for w in range(workers) if i < each[w]]
        pushed: dict[int, list[int]] = {}
        for w in begun:
            after = list(pulled[w])
            if staleness is not None and i > staleness:
                after.append(applied[i - 1 - staleness])
            # who waits for nobody begins anywhere in a step: in step they would stay in step
            part = w / workers if staleness is None and i == 0 else 1.0
            work = part * step_s[w] * float(draws[w][i]) + 2.0 * float(one.latency_s)
            computed[w].append(tasks.add(work, w, after))
            pushed[w] = [
                tasks.add(
                    sent[0], workers + w, [computed[w][-1]], limit=one.worker_bytes_per_s,
                    resource=_IN,
                )
                for _ in range(pieces)
            ]  # fmt: skip
        ends: dict[int, list[int]] = {w: [] for w in begun}
        work = (one.sum_s + (0.0 if sums_first else one.update_s)) / pieces
        for w in begun:
            for j in range(pieces):
                ends[w].append(tasks.add(work, free, [pushed[w][j]], resource=_MEMORY))
                free += 1
        if sums_first:
            whole = []
            for j in range(pieces):
                after = [ends[w][j] for w in begun]
                whole.append(tasks.add(one.update_s / pieces, free, after, resource=_MEMORY))
                free += 1
            ends = dict.fromkeys(begun, whole)
        for w in begun:
            pulled[w] = [
                tasks.add(
                    sent[1], 2 * workers + w, [end], limit=one.worker_bytes_per_s, resource=_OUT
                )
                for end in ends[w]
            ]
        if staleness is not None:
            every = sorted({end for w in begun for end in ends[w]})
            applied.append(tasks.add(0.0, free, every))
            free += 1
    return tasks, computed
