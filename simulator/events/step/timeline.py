"""Who did what when in a played step, how memory went, and what was found beside its time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.cost.memory.peak import MEMORY_KINDS
from simulator.records import dataclass

__all__ = ["MEMORY_KINDS"]


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """One row per span of a simulated rank.

    Spans of one rank and stream do not overlap, but for a pass (stream "compute") and what it
    waits for inside: a pass starts with its compute and ends with its exposed communication,
    which has spans of its own on the other streams; and but for the input of a pass (stream
    "copy") and activations on their way, where a pipeline offloads them. Gaps are idle time.
    """

    rank: NDArray[np.int32]
    """Simulated rank: replica x pp + pipeline rank."""
    stream: NDArray[np.int8]
    """Index into STREAMS."""
    start_s: Floats
    end_s: Floats
    kind: NDArray[np.int8]
    """Index into SPAN_KINDS."""
    micro_batch: NDArray[np.int32]
    """-1: of no micro-batch."""
    chunk: NDArray[np.int32]
    """-1: of no chunk."""
    cause: NDArray[np.int8]
    """Index into CAUSES: the term to which the span's time is charged."""
    critical: NDArray[np.bool_]
    """On the critical path of the step."""
    ranks_of: NDArray[np.int64]
    """GPUs that each simulated rank stands for."""
    flows: NDArray[np.int64]
    """Pairs of spans, shape (k, 2): a send and the pass that waits for it on the other rank."""
    micro_batches: int = 2**31
    """Of one step of a replica."""
    steps: int = 1
    """Steps one after the other without a flush: micro-batches count on from step to step."""

    def __len__(self) -> int:
        return len(self.rank)


@dataclass(frozen=True, kw_only=True)
class MemoryCurve:
    """Memory of every simulated rank over time: steps, sorted by rank, then time."""

    rank: NDArray[np.int32]
    time_s: Floats
    """From this moment on, until the rank's next row."""
    kinds_bytes: Floats
    """Shape (rows, kinds), kinds as in MEMORY_KINDS."""

    @property
    def total_bytes(self) -> Floats:
        """All kinds together, shape (rows,)."""
        total = self.kinds_bytes[:, 0]
        for kind in range(1, self.kinds_bytes.shape[1]):
            total = total + self.kinds_bytes[:, kind]
        return total

    def peak(self, rank: int) -> tuple[float, float, dict[str, float]]:
        """When a rank is fullest, how full, and with what."""
        rows = np.flatnonzero(self.rank == rank)
        at = rows[np.argmax(self.total_bytes[rows])]
        held = dict(zip(MEMORY_KINDS, self.kinds_bytes[at].tolist(), strict=True))
        return float(self.time_s[at]), float(self.total_bytes[at]), held


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """What it costs that kinds of traffic meet on the links."""

    KEYS: ClassVar[tuple[str, ...]] = ("plain_s", "alone_s", "lost_s", "links=fullest_links")

    plain_s: float
    """The step as it is played without: calls slow the passes that the closed form has beside
    them, and each kind has its links to itself."""
    alone_s: float
    """The step if calls slowed what runs beside them when they run, and each kind still had its
    links to itself."""
    lost_s: Mapping[str, float]
    """How much longer the step is, by name (CAUSES), of the pacing rank."""
    links: Mapping[str, tuple[str, float]]
    """By kind of link: the one that carries most, and the share of the step for which it would be
    full; of the traffic that passes, sends, reductions and copies are made of."""

    @property
    def fullest_links(self) -> dict[str, dict[str, object]]:
        """The same by name, as JSON says them."""
        return {
            kind: {"link": link, "utilisation": share} for kind, (link, share) in self.links.items()
        }


@dataclass(frozen=True, kw_only=True)
class Jittered:
    """What it costs that durations vary."""

    spread: float
    """Standard deviation of the logarithm of a duration."""
    seed: int
    steady_s: float
    """The step if none did."""
    lost_s: Mapping[str, float]
    """How much longer the step is, by name (CAUSES), of the pacing rank."""


@dataclass(frozen=True, kw_only=True)
class Loading:
    """What played loaders let the ranks wait for."""

    waiting_s: float
    """Mean of a step, once the loaders are in their stride."""
    waiting_p90_s: float
    """What nine steps in ten stay below."""
    first_batch_s: float
    """From the start of the loaders to the first batch."""
    spread: float
    """Standard deviation of the logarithm of the time that a worker takes for a batch."""
    steps: int
    """Steps played."""


@dataclass(frozen=True, kw_only=True)
class Mixed:
    """Servers of several kinds: where ranks lie, and what the step would be on each kind alone."""

    kinds: tuple[str, ...]
    """Cluster profiles, in the order of ranks."""
    gpus: NDArray[np.int64]
    """GPUs of each kind that each simulated rank stands for, (ranks, kinds)."""
    replicas: tuple[tuple[int, ...], ...]
    """Data-parallel replicas, from 0, that each simulated pipeline stands for."""
    memory_bytes: Floats
    """Of each simulated rank at its fullest, as the closed form has it."""
    usable_bytes: Floats
    """Of the device of each simulated rank; the smallest where it stands for several kinds."""
    alone_s: tuple[float, ...]
    """The step if all servers were of one kind, deviations as they are."""
    steady_s: float
    """The step on the servers as they are, if no duration varied."""

    def servers(self, rank: int) -> str:
        """Kinds of servers of a simulated rank, in words."""
        return " + ".join(self.kinds[i] for i in np.flatnonzero(self.gpus[rank]))

    def place(self, rank: int) -> tuple[int, list[tuple[int, int]]]:
        """Pipeline rank, and first and last of each run of replicas of a simulated rank."""
        pipeline, stage = divmod(rank, len(self.gpus) // len(self.replicas))
        numbers = np.array(self.replicas[pipeline])
        runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
        return stage, [(int(run[0]), int(run[-1])) for run in runs]

    @property
    def places(self) -> list[dict[str, object]]:
        """Where every simulated rank lies, as JSON says it."""
        return [
            {
                "rank": rank,
                "stage": self.place(rank)[0],
                "replicas": self.place(rank)[1],
                "gpus": dict(zip(self.kinds, self.gpus[rank].tolist(), strict=True)),
            }
            for rank in range(len(self.gpus))
        ]
