"""What a simulated step hands back: its time term by term, and who did what when.

`SimulatedStep` holds the numbers; `Timeline` has one row per span, `MemoryCurve` one row per
moment at which a rank's memory changes. Both are made when first asked for: a step of 100,000
passes is simulated faster than its half a million spans are written down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from simulator.answers import Answer
from simulator.arrays import Floats
from simulator.cost.memory.peak import MEMORY_KINDS
from simulator.events.step.streams import CAUSES, SPAN_KINDS, STREAMS
from simulator.events.step.timeline import (
    Jittered,
    Loading,
    MemoryCurve,
    Mixed,
    Sharing,
    Timeline,
)
from simulator.frames import DataFrame, choose, frame
from simulator.records import dataclass
from simulator.units import show_seconds

if TYPE_CHECKING:  # brings the events along
    from simulator.events.sharing.contended import Contended


@dataclass(frozen=True, kw_only=True, repr=False)
class SimulatedStep(Answer):
    """One optimizer step, played."""

    step_time_s: float
    terms_s: Mapping[str, float]
    """By name (CAUSES), of the pacing rank: what it does, and what it waits for while idle. They
    add up to `step_time_s`."""
    hidden_s: Mapping[str, float]
    """Communication that runs beside compute of the pacing rank, by name (HIDDEN)."""
    pacing_rank: int
    """The simulated rank with the most work."""
    ranks_of: NDArray[np.int64]
    """GPUs that each simulated rank stands for."""
    busy_s: Floats
    """Seconds in which a stream of a rank works, shape (ranks, streams)."""
    exposed_s: Floats
    """Of these, seconds in which the rank's compute waits for that stream; all of compute's own."""
    idle_s: Floats
    """Seconds of the step in which the stream has nothing to do, shape (ranks, streams)."""
    critical_share: Mapping[str, float]
    """Share of the critical path that each cause takes, by name (CAUSES); they add up to 1."""
    links: Mapping[str, float] = field(default_factory=dict)
    """Share of the step in which the busiest rank's links carry each kind of traffic, by stream."""
    network: Contended | None = None
    """What worn links and crowded switches leave to each kind of groups, where that was asked."""
    jitter: Jittered | None = None
    """What durations that vary cost, where that was asked."""
    sharing: Sharing | None = None
    """What kinds of traffic cost one another, where that was asked."""
    mixed: Mixed | None = None
    """Where ranks lie and what that costs, where servers are of several kinds."""
    loading: Loading | None = None
    """What loaders let the ranks wait for before the step (in `step_time_s`, in no span), where the
    scenario has [data]."""
    tasks: int
    """Tasks of the graph."""
    build_seconds: float
    """Wall-clock time of pricing and building the graph."""
    run_seconds: float
    """Wall-clock time of the engine."""
    draw: Callable[[], Timeline]
    """Writes the timeline down; read :attr:`timeline`."""
    weigh: Callable[[], Iterable[MemoryCurve]]
    """Follows memory over time, rank by rank; read :attr:`memory`, or :attr:`memory_peaks`."""

    @property
    def line(self) -> str:
        """Step time, ranks, tasks and what takes longest."""
        longest = max(self.terms_s, key=lambda term: self.terms_s[term])
        return (
            f"{show_seconds(self.step_time_s)} a step, {len(self.ranks_of)} ranks simulated,"
            f" {self.tasks:,} tasks, longest: {longest}"
        )

    @cached_property
    def timeline(self) -> Timeline:
        """Every span of every simulated rank."""
        return self.draw()

    @cached_property
    def memory(self) -> MemoryCurve:
        """Memory of every simulated rank over time."""
        curves = list(self.weigh())
        columns = ("rank", "time_s", "kinds_bytes")
        return MemoryCurve(**{x: np.concatenate([getattr(y, x) for y in curves]) for x in columns})

    @cached_property
    def memory_peaks(self) -> list[tuple[float, float, dict[str, float]]]:
        """Of every simulated rank: when it is fullest, how full, and with what.

        Without the whole of :attr:`memory`, which is larger than the step.
        """
        peaks = {int(curve.rank[0]): curve.peak(int(curve.rank[0])) for curve in self.weigh()}
        return [peaks[rank] for rank in range(len(self.ranks_of))]

    def to_frame(self, table: Literal["terms", "timeline", "memory"] = "terms") -> DataFrame:
        """The step as a table.

        `terms`: one row per term, seconds of the pacing rank and share of the critical path;
        `timeline`: one row per span; `memory`: one row per moment at which a rank's memory changes,
        a column of bytes per kind.

        Raises
        ------
        InputError
            If there is no such table.
        """
        tables = {"terms": self._terms, "timeline": self._spans, "memory": self._moments}
        columns = choose(table, tables)()
        return frame(columns, index=list(self.terms_s) if table == "terms" else None)

    def _terms(self) -> dict[str, Any]:
        return {
            "seconds": list(self.terms_s.values()),
            "hidden_s": [self.hidden_s.get(term, 0.0) for term in self.terms_s],
            "critical_share": [self.critical_share.get(term, 0.0) for term in self.terms_s],
        }

    def _spans(self) -> dict[str, Any]:
        spans = self.timeline
        words = {"stream": STREAMS, "kind": SPAN_KINDS, "cause": CAUSES}
        columns = ("rank", "stream", "kind", "cause", "start_s", "end_s", "micro_batch", "chunk")
        return {
            name: np.array(words[name], dtype=object)[getattr(spans, name)]
            if name in words
            else getattr(spans, name)
            for name in (*columns, "critical")
        }

    def _moments(self) -> dict[str, Any]:
        curve = self.memory
        kinds = {f"{kind}_bytes": curve.kinds_bytes[:, i] for i, kind in enumerate(MEMORY_KINDS)}
        return {"rank": curve.rank, "time_s": curve.time_s, **kinds}

    @property
    def ranks(self) -> list[dict[str, Any]]:
        """Every simulated rank, as JSON says it: what its streams do, and its fullest moment."""
        streams = {name: getattr(self, name) for name in ("busy_s", "exposed_s", "idle_s")}
        ranks = []
        for rank, gpus in enumerate(self.ranks_of):
            when_s, total, held = self.memory_peaks[rank]
            seconds = {
                name: dict(zip(STREAMS, rows[rank], strict=True)) for name, rows in streams.items()
            }
            peak = {"time_s": when_s, "total_bytes": total, "memory_bytes": held}
            ranks.append({"rank": rank, "gpus": gpus, **seconds, "memory_peak": peak})
        return ranks

    def as_numbers(self) -> dict[str, Any]:
        """What the ``simulation`` entry of the JSON document holds, wall-clock times left out."""
        return {
            "step_time_s": self.step_time_s,
            "tasks": self.tasks,
            "build_seconds": None,
            "run_seconds": None,
        }
