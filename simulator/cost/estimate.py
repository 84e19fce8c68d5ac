"""What each layout of a table costs: step time and memory, term by term."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.layout.layout import Layouts

__all__ = ["Estimate", "concatenate"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What each layout of a table costs; arrays over layouts."""

    layouts: Layouts
    step_time_s: Floats
    terms_s: dict[str, Floats]
    """Critical-path terms by name (TERMS); they add up to `step_time_s`."""
    hidden_s: dict[str, Floats]
    """Communication hidden under compute."""
    memory_bytes: dict[str, Floats]
    """Memory of the fullest rank by kind (MEMORY_KINDS)."""
    memory_total_bytes: Floats
    peak_stage: NDArray[Any]
    """Pipeline rank that is fullest."""
    peak_moment: NDArray[Any]
    """Index into MOMENTS."""
    slowest_stage: NDArray[Any]
    """Pipeline rank that paces the step."""
    imbalance_s: Floats
    """Time that the slowest stage spends above the mean stage (inside the terms, a memo)."""
    model_flop: float
    """Model FLOPs of one step over all accelerators."""
    executed_flop: Floats
    """The same with what recomputation repeats."""
    usable_bytes: float
    away_bytes: dict[str, Floats]
    """Bytes that a server keeps in host memory ("host") and on local drives ("nvme")."""
    room_bytes: dict[str, float]
    """What host memory and drives of a server hold; infinite where not known."""

    @property
    def fits(self) -> NDArray[np.bool_]:
        """Whether the fullest rank stays within usable memory, and offload within the server's."""
        found = self.memory_total_bytes <= self.usable_bytes
        for tier, room in self.room_bytes.items():
            found = found & (self.away_bytes[tier] <= room)
        return found

    def __len__(self) -> int:
        return len(self.step_time_s)

    def take(self, rows: Any) -> Estimate:
        """Return the estimate of some of the layouts."""

        def pick(columns: dict[str, Floats]) -> dict[str, Floats]:
            return {name: column[rows] for name, column in columns.items()}

        return Estimate(
            layouts=self.layouts[rows],
            step_time_s=self.step_time_s[rows],
            terms_s=pick(self.terms_s),
            hidden_s=pick(self.hidden_s),
            memory_bytes=pick(self.memory_bytes),
            memory_total_bytes=self.memory_total_bytes[rows],
            peak_stage=self.peak_stage[rows],
            peak_moment=self.peak_moment[rows],
            slowest_stage=self.slowest_stage[rows],
            imbalance_s=self.imbalance_s[rows],
            model_flop=self.model_flop,
            executed_flop=self.executed_flop[rows],
            usable_bytes=self.usable_bytes,
            away_bytes=pick(self.away_bytes),
            room_bytes=self.room_bytes,
        )


def concatenate(pieces: list[Estimate]) -> Estimate:
    """Join the estimates of consecutive chunks."""

    def join(name: str) -> Any:
        return np.concatenate([getattr(piece, name) for piece in pieces])

    def join_columns(name: str) -> dict[str, Floats]:
        columns = getattr(pieces[0], name)
        return {k: np.concatenate([getattr(piece, name)[k] for piece in pieces]) for k in columns}

    arrays = (
        "step_time_s", "memory_total_bytes", "peak_stage", "peak_moment", "slowest_stage",
        "imbalance_s",
        "executed_flop",
    )  # fmt: skip
    return Estimate(
        layouts=Layouts.concatenate([piece.layouts for piece in pieces]),
        terms_s=join_columns("terms_s"),
        hidden_s=join_columns("hidden_s"),
        memory_bytes=join_columns("memory_bytes"),
        model_flop=pieces[0].model_flop,
        usable_bytes=pieces[0].usable_bytes,
        away_bytes=join_columns("away_bytes"),
        room_bytes=pieces[0].room_bytes,
        **{name: join(name) for name in arrays},
    )
