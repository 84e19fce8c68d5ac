"""What a round of a parameter server takes, in closed form.

A worker computes for a while, pushes its gradient to all shards, and pulls the new weights. All
shards are alike, so they are one server of `servers` times the rate. Its incoming link, its memory
and its outgoing link are shared evenly among the messages that are there. Played on events in
``events/ps_simulation.py``.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.records import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerGroup:
    """Workers by how long their steps take."""

    step_s: Floats
    """Mean step of each class, shape (classes,)."""
    workers: Floats
    """How many there are of each, shape (classes,)."""
    spread: float
    """Standard deviation of the logarithm of a step."""

    @property
    def largest(self) -> Floats:
        """Expected largest standard normal draw among the workers of each class."""
        return np.array([expected_draws(int(n))[-1] for n in self.workers])

    @property
    def ready_s(self) -> Floats:
        """When every worker is expected to have computed, the first one first."""
        late = []
        for step, n in zip(self.step_s, self.workers, strict=True):
            mean = 0.5 * self.spread**2 if n > 1 else 0.0
            late.append(step * np.exp(self.spread * expected_draws(int(n)) - mean))
        return np.sort(np.concatenate(late))


def expected_draws(count: int) -> Floats:
    """Expected standard normal draws by rank, least first (Blom 1958).

    Examples
    --------
    >>> expected_draws(3).round(2).tolist()
    [-0.87, 0.0, 0.87]
    """
    normal = NormalDist()
    return np.array([normal.inv_cdf((j - 0.375) / (count + 0.25)) for j in range(1, count + 1)])


@dataclass(frozen=True, kw_only=True, slots=True)
class SyncRound:
    """One worker's round and the servers it meets; sizes in bytes and seconds."""

    push_bytes: Any
    pull_bytes: Any
    worker_bytes_per_s: Any
    """Rate of a worker's link, one direction."""
    servers_bytes_per_s: Any
    """Rate of all servers' links together, one direction."""
    sum_s: Any
    """Of one push, all servers at work."""
    update_s: Any
    """Of one optimizer step, all servers at work."""
    latency_s: Any
    """Of a push, and of a pull."""
    pieces: Any = 1
    """Pieces of a push: while one is summed the next one travels."""

    @property
    def stations_s(self) -> tuple[Any, Any, Any]:
        """What a push, its update and a pull take of the servers: in, memory, out."""
        rate = self.servers_bytes_per_s
        return self.push_bytes / rate, self.sum_s, self.pull_bytes / rate

    @property
    def own_s(self) -> tuple[Any, Any]:
        """What a push and a pull take of a worker's link beyond the servers' share of it."""
        rate, there = self.worker_bytes_per_s, self.servers_bytes_per_s
        return tuple(
            np.maximum(0.0, size / rate - size / there)
            for size in (self.push_bytes, self.pull_bytes)
        )


def in_pieces(stages_s: Any, pieces: Any) -> Floats:
    """Seconds of stages one after the other, in pieces that follow each other through them.

    Parameters
    ----------
    stages_s : array_like
        Seconds of each stage for the whole, along the first axis.
    pieces : array_like

    Examples
    --------
    Stages of 4, 2 and 6 s in four pieces: 12 / 4, and three more of the slowest.

    >>> in_pieces([4.0, 2.0, 6.0], 4).item(), in_pieces([4.0, 2.0, 6.0], 1).item()
    (7.5, 12.0)
    """
    stages, pieces = np.asarray(stages_s, float), np.asarray(pieces, float)
    return np.asarray(stages.sum(axis=0) / pieces + (1.0 - 1.0 / pieces) * stages.max(axis=0))


_LENGTHS = np.unique(np.round(np.geomspace(1, 4096, 60)))
"""Rounds that a path may stay with one worker."""


def stale_period_s(crew: WorkerGroup, staleness: Any, exchange_s: Any = 0.0) -> Floats:
    """Seconds between rounds of workers that may be some steps ahead of the slowest.

    A round ends with the longest path through the rounds before it. One that stays with a worker
    for L rounds and then moves to another one skips `staleness` rounds; the worst of the workers
    is its choice. So the period is the greatest of L (mean of L draws of the worst worker) /
    (L + staleness), and no less than the mean. With staleness 0 this is the mean of the slowest.

    Parameters
    ----------
    crew : WorkerGroup
    staleness : float
        Steps that a worker may be ahead.
    exchange_s : float
        Push, update and pull of a round, which do not vary.

    Notes
    -----
    The mean of L lognormal draws is taken for lognormal with its own variance (Fenton 1960).

    Examples
    --------
    Sixteen workers of 4 s, 20 %: all wait for every step, then one or three steps apart.

    >>> crew = WorkerGroup(step_s=np.array([4.0]), workers=np.array([16]), spread=0.2)
    >>> [stale_period_s(crew, s).round(2).item() for s in (0, 1, 3)]
    [5.58, 4.13, 4.04]
    """
    variance = np.log1p(np.expm1(crew.spread**2) / _LENGTHS)[:, None]
    worst = np.exp(np.sqrt(variance) * crew.largest - 0.5 * variance)
    worst = np.where(crew.largest > 0.0, worst, 1.0) * crew.step_s + exchange_s
    along = (_LENGTHS[:, None] * worst / (_LENGTHS[:, None] + staleness)).max(axis=0)
    return np.asarray(np.maximum(along, crew.step_s + exchange_s).max(axis=0))


def synchronous_s(
    ready_s: Any, sync_round: SyncRound, *, together: bool = True, backups: int = 0
) -> Floats:
    """Seconds of a step in which all gradients are summed, then applied, then all pull.

    The servers are done with the pushes when they are done with what is left from some worker on,
    whichever is latest: a queue that is never idle while there is work. Those that computed fast
    have pushed by the time that the last one is ready.

    Parameters
    ----------
    ready_s : array_like, (workers, ...)
        When each worker has computed, the first one first.
    together : bool
        All pull when all were summed; else each pulls when its own push was applied.
    backups : int
        Workers at the end that are not waited for; their gradients are dropped when they come
        (Chen et al. 2016, arXiv 1604.00981). All begin the next step together here: that one who
        comes late begins late is not in it (``tests/events/test_ps_simulation.py`` has its size).

    Examples
    --------
    Four workers, 1 GB each way at 1 GB/s of their own and 2 GB/s of two servers: 2 s in, 2 s out;
    sums of 0.1 s each and an update of 0.2 s between. With one of them 1.5 s late, 1 s in for the
    last, its sum, the update, 2 s out.

    >>> one = SyncRound(push_bytes=1e9, pull_bytes=1e9, worker_bytes_per_s=1e9,
    ...             servers_bytes_per_s=2e9, sum_s=0.1, update_s=0.2, latency_s=0.0)
    >>> [synchronous_s([3.0, 3.0, 3.0, last], one).item() for last in (3.0, 4.5)]
    [7.6, 7.8]
    """
    ready = np.asarray(ready_s, float)
    ready = ready[: len(ready) - backups]
    workers = len(ready)
    left = np.arange(workers, 0, -1.0).reshape(-1, *[1] * (ready.ndim - 1))
    push, sums, pull = (np.asarray(x, float) for x in sync_round.stations_s)
    rate = np.asarray(sync_round.worker_bytes_per_s, float)
    stages = np.broadcast_arrays(
        np.maximum(left * push, sync_round.push_bytes / rate),
        left * sums + sync_round.update_s,
        np.maximum((workers if together else left) * pull, sync_round.pull_bytes / rate),
        ready,
    )[:3]
    done = ready + in_pieces(stages, sync_round.pieces)
    return np.asarray(done.max(axis=0) + 2.0 * np.asarray(sync_round.latency_s))


_ROUNDS = 10_000
_CLOSE = 1e-10


def asynchronous_rounds(crew: WorkerGroup, sync_round: SyncRound) -> Floats:
    """Rounds per second of every class of workers that wait for nobody.

    A closed network of the servers' three stations, shared evenly, and of time that workers spend
    by themselves, by Schweitzer's approximation of mean value analysis: a message meets what the
    other workers have there on average. Distributions of times do not matter (Baskett et al. 1975).

    Returns
    -------
    ndarray, (classes,)

    Examples
    --------
    One worker meets nobody: 1 s, and 0.5 s, 0.1 s and 0.5 s.

    >>> one = SyncRound(push_bytes=1e9, pull_bytes=1e9, worker_bytes_per_s=2e9,
    ...             servers_bytes_per_s=2e9, sum_s=0.0, update_s=0.1, latency_s=0.0)
    >>> alone = WorkerGroup(step_s=np.array([1.0]), workers=np.array([1]), spread=0.0)
    >>> asynchronous_rounds(alone, one).round(6).tolist()
    [0.47619]
    """
    step, count = crew.step_s.astype(float), crew.workers.astype(float)
    push, sums, pull = sync_round.stations_s
    demand = np.array([push, sums + sync_round.update_s, pull], float)[:, None]
    own_push, own_pull = sync_round.own_s
    alone = step + 2.0 * float(sync_round.latency_s)
    there = np.tile(count / 3.0, (3, 1))  # messages of each class at each station
    for _ in range(_ROUNDS):
        met = there.sum(axis=1, keepdims=True) - there / count
        stays = demand * (1.0 + met)
        stages = stays + np.array([own_push, 0.0, own_pull], float)[:, None]
        rate = count / (alone + in_pieces(stages, sync_round.pieces))
        new = np.minimum(rate * stays, count)
        if np.abs(new - there).max() < _CLOSE:
            break
        there = 0.5 * (there + new)
    return np.asarray(rate / count)


def stale_synchronous_s(crew: WorkerGroup, staleness: int, sync_round: SyncRound) -> Floats:
    """Seconds between rounds of stale-synchronous workers, with what they wait for servers.

    With staleness 0 all push in the same round, as synchronous workers do, but each push is applied
    and pulled by itself, so that messages of different workers follow each other as pieces do. Else
    an exchange takes what it takes of workers that come as rarely as these.
    """
    if staleness == 0:
        apart = sync_round.pieces * float(crew.workers.sum())
        each = replace(
            sync_round, sum_s=sync_round.sum_s + sync_round.update_s, update_s=0.0, pieces=apart
        )
        return synchronous_s(crew.ready_s, each, together=False)
    rarely = float(stale_period_s(crew, staleness))
    alike = replace(crew, step_s=np.array([rarely]), workers=np.array([crew.workers.sum()]))
    exchange = 1.0 / float(asynchronous_rounds(alike, sync_round)[0]) - rarely
    return stale_period_s(crew, staleness, exchange)


def ring_s(gradient_bytes: Any, members: Any, bytes_per_s: Any) -> Floats:
    """Seconds of an all-reduce over rings, latencies left out.

    Examples
    --------
    >>> ring_s(1e9, 4, 1e9).item()
    1.5
    """
    members = np.asarray(members, float)
    return np.asarray(2.0 * (members - 1.0) / members * gradient_bytes / bytes_per_s)


def broadcast_s(gradient_bytes: Any, members: Any, bytes_per_s: Any) -> Floats:
    """Seconds in which every worker sends its whole gradient to every other one.

    Examples
    --------
    >>> broadcast_s(1e9, 4, 1e9).item()
    3.0
    """
    return np.asarray((np.asarray(members, float) - 1.0) * gradient_bytes / bytes_per_s)
