"""Rounds of a parameter server played on discrete events: every worker, message and sum.

Each worker computes, pushes in pieces, and pulls a piece when it was applied. Links and memory of
the servers are shared evenly; a worker's own link bounds what its messages take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import ClassVar

import numpy as np

from simulator.arrays import Floats
from simulator.errors import InputError
from simulator.events.engine.demands import demands
from simulator.events.engine.engine import play
from simulator.events.engine.graph import task_graph
from simulator.events.engine.jitter import slowest_factor
from simulator.parameter_servers.rounds import (
    SyncRound,
    WorkerGroup,
    asynchronous_rounds,
    stale_synchronous_s,
    synchronous_s,
)
from simulator.parameter_servers.server_section import Consistency
from simulator.records import dataclass

MOST_PIECES = 8
"""Pieces of a push that are played; more of them change a round by less than an eighth of what its
messages take one after the other."""

_MOST_TASKS = 2_000_000
_IN, _MEMORY, _OUT = range(3)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlayedServers:
    """A round of the mean worker, played and in closed form with as many pieces."""

    KEYS: ClassVar[tuple[str, ...]] = ("round_s=played_s", "closed_form_s", "pieces")

    played_s: float
    closed_form_s: float
    pieces: int


def play_servers(
    crew: WorkerGroup,
    sync_round: SyncRound,
    kind: Consistency,
    *,
    staleness: int = 0,
    seed: int = 0,
) -> PlayedServers:
    """Play some rounds of all workers.

    Raises
    ------
    InputError
        If there were too many messages to play.
    """
    few = replace(sync_round, pieces=min(int(sync_round.pieces), MOST_PIECES))
    steps = [float(s) for s, n in zip(crew.step_s, crew.workers, strict=True) for _ in range(n)]
    if kind == "synchronous":
        closed = float(synchronous_s(crew.ready_s, few))
    elif kind == "stale-synchronous":
        closed = float(stale_synchronous_s(crew, staleness, few))
    else:
        rounds = asynchronous_rounds(crew, few)
        closed = float(crew.workers.sum() / (rounds * crew.workers).sum())
    bound = {"synchronous": 0, "stale-synchronous": staleness, "asynchronous": None}[kind]
    played_s = play_rounds(
        steps,
        few,
        staleness=bound,
        sums_first=kind == "synchronous",
        spread=crew.spread,
        seed=seed,
    )
    return PlayedServers(played_s=played_s, closed_form_s=closed, pieces=int(few.pieces))


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
    sync_round: SyncRound,
    *,
    staleness: int | None,
    sums_first: bool = False,
    spread: float = 0.0,
    seed: int = 0,
    rounds: int = 40,
) -> float:
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
    pieces = int(sync_round.pieces)
    fastest = min(step_s)
    worker_rounds = [rounds if staleness is not None else max(8, round(rounds * fastest / s))
            for s in step_s]  # fmt: skip
    if (count := sum(worker_rounds) * (1 + 3 * pieces)) > _MOST_TASKS:
        raise InputError(f"parameter server: {count:,} messages are too many to play")
    tasks, computed = _graph(
        step_s,
        sync_round,
        worker_rounds,
        staleness=staleness,
        sums_first=sums_first,
        spread=spread,
        seed=seed,
    )
    capacity = [sync_round.servers_bytes_per_s, 1.0, sync_round.servers_bytes_per_s]
    graph = task_graph(np.zeros(len(tasks.work)), tasks.stream, tasks.edges)
    times = play(graph, demands(tasks.work, capacity, tasks.entries, limit=tasks.limit))
    rates = []
    for rounds_of_worker in computed:
        first = len(rounds_of_worker) // 4
        span = times.start_s[rounds_of_worker[-1]] - times.start_s[rounds_of_worker[first]]
        rates.append((len(rounds_of_worker) - 1 - first) / span)
    return float(1.0 / np.mean(rates))


@dataclass(slots=True)
class _Rounds:
    """Rounds under construction, one after the other."""

    sync_round: SyncRound
    step_s: Sequence[float]
    staleness: int | None
    sums_first: bool
    draws: list[Floats]
    """Of every worker, what its steps take over the mean."""
    tasks: _Tasks = field(default_factory=_Tasks)
    computed: list[list[int]] = field(default_factory=list)
    """Of every worker, its tasks that compute."""
    pulled: list[list[int]] = field(default_factory=list)
    """Of every worker, the pieces of its last pull."""
    applied: list[int] = field(default_factory=list)
    """Of every round, a task that ends when all workers' updates have."""
    free: int = 0
    """The next stream: those below are workers, their links out, and in."""

    def add(self, i: int, begun: Sequence[int]) -> None:
        """Add a round of the workers that have `begun` it."""
        pushed = {w: self._pushed(i, w) for w in begun}
        ends = self._summed(pushed)
        workers, size = len(self.step_s), self.sync_round.pull_bytes / int(self.sync_round.pieces)
        rate = self.sync_round.worker_bytes_per_s
        for w in begun:
            self.pulled[w] = [
                self.tasks.add(size, 2 * workers + w, [end], limit=rate, resource=_OUT)
                for end in ends[w]
            ]
        if self.staleness is not None:
            self.applied.append(self._alone(0.0, sorted({x for w in begun for x in ends[w]})))

    def _pushed(self, i: int, w: int) -> list[int]:
        """A worker's step, and the pieces of its push."""
        sync_round, workers, pieces = self.sync_round, len(self.step_s), int(self.sync_round.pieces)
        after = list(self.pulled[w])
        if self.staleness is not None and i > self.staleness:
            after.append(self.applied[i - 1 - self.staleness])
        # who waits for nobody begins anywhere in a step: in step they would stay in step
        part = w / workers if self.staleness is None and i == 0 else 1.0
        work = part * self.step_s[w] * float(self.draws[w][i]) + 2.0 * float(sync_round.latency_s)
        step = self.tasks.add(work, w, after)
        self.computed[w].append(step)
        size, rate = sync_round.push_bytes / pieces, sync_round.worker_bytes_per_s
        return [
            self.tasks.add(size, workers + w, [step], limit=rate, resource=_IN)
            for _ in range(pieces)
        ]

    def _summed(self, pushed: dict[int, list[int]]) -> dict[int, list[int]]:
        """What every worker's pull waits for, piece by piece."""
        sync_round, pieces = self.sync_round, int(self.sync_round.pieces)
        work = (sync_round.sum_s + (0.0 if self.sums_first else sync_round.update_s)) / pieces
        ends = {
            w: [self._alone(work, [x], _MEMORY) for x in pushes] for w, pushes in pushed.items()
        }
        if not self.sums_first:
            return ends
        piece_update_s = sync_round.update_s / pieces
        whole = [self._alone(piece_update_s, [pushes[j] for pushes in ends.values()], _MEMORY)
                 for j in range(pieces)]  # fmt: skip
        return dict.fromkeys(ends, whole)

    def _alone(self, work: float, after: Sequence[int], resource: int | None = None) -> int:
        """Add a task on a stream of its own."""
        self.free += 1
        return self.tasks.add(work, self.free - 1, after, resource=resource)


def _graph(
    step_s: Sequence[float],
    sync_round: SyncRound,
    worker_rounds: Sequence[int],
    *,
    staleness: int | None,
    sums_first: bool,
    spread: float,
    seed: int,
) -> tuple[_Tasks, list[list[int]]]:
    """All tasks, and those of every worker that compute."""
    draws = [slowest_factor(spread, (seed, w), 1, n) if spread else np.ones(n)
             for w, n in enumerate(worker_rounds)]  # fmt: skip
    rounds = _Rounds(
        sync_round=sync_round,
        step_s=step_s,
        staleness=staleness,
        sums_first=sums_first,
        draws=draws,
        computed=[[] for _ in step_s],
        pulled=[[] for _ in step_s],
        free=3 * len(step_s),
    )
    for i in range(max(worker_rounds)):
        rounds.add(i, [w for w in range(len(step_s)) if i < worker_rounds[w]])
    return rounds.tasks, rounds.computed
