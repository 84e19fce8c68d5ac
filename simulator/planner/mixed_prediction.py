"""One layout on servers of several kinds: its step played on discrete events, and the whole run.

Stages on unlike servers have no closed form. What nobody gave of the layout takes the defaults that
it has on servers of the first kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from simulator.answers import Answer, encoded
from simulator.events.played import SimulatedStep
from simulator.events.simulated_step import simulate
from simulator.frames import DataFrame, frame_of_rows
from simulator.layout.layouts import Layouts
from simulator.planner.layout_row import layout_fields
from simulator.planner.mixed_servers import (
    KindUse,
    ServerGroups,
    asked_of,
    kinds_used,
    predict_first,
    worst_verdict,
)
from simulator.planner.mixed_totals import MixedTotals, mixed_totals
from simulator.scenario import Scenario
from simulator.units import show_seconds, show_usd


@dataclass(frozen=True, kw_only=True, repr=False)
class MixedPrediction(Answer):
    """What one layout costs on servers of several kinds."""

    COMMAND: ClassVar[str] = "predict"
    KEYS: ClassVar[tuple[str, ...]] = (
        *("*asked", "scenario=scenario.document", "layouts=rows", "groups"),
    )

    scenario: Scenario
    layouts: Layouts
    """One row."""
    defaults: Mapping[str, Any]
    """Layout fields that nobody gave, and the value they took."""
    step: SimulatedStep
    kinds: tuple[KindUse, ...]
    """What each kind of servers does in the step."""
    totals: MixedTotals
    memory_verdict: str
    """FITS, TIGHT or OOM, of the kind that is worst off."""

    @property
    def asked(self) -> dict[str, Any]:
        """What was asked: the head of its document."""
        return asked_of(self.scenario)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Its one layout, as JSON says it."""
        keys = (
            *("step_time_s", "p10_s=interval_s.0", "p90_s=interval_s.1", "terms_s=step.terms_s"),
            *(
                "hidden_s=step.hidden_s",
                "fits",
                "memory_verdict",
                "tokens_per_s_per_gpu",
                "*totals",
            ),
        )
        return [{"layout": layout_fields(self.scenario, self.layouts), **encoded(self, keys)}]

    @property
    def groups(self) -> ServerGroups:
        """Which ranks lie on which servers, and what each kind of servers does."""
        return ServerGroups(step=self.step, kinds=self.kinds)

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Of all servers together."""
        return self.totals.tokens_per_s / self.scenario.cluster.gpus

    @property
    def layout(self) -> dict[str, Any]:
        """The whole layout as plain numbers and words."""
        return self.layouts.row()

    @property
    def step_time_s(self) -> float:
        """Seconds of one optimizer step."""
        return self.step.step_time_s

    @property
    def interval_s(self) -> tuple[float, float]:
        """P10 and P90 of the step time."""
        return self.totals.interval_s

    @property
    def fits(self) -> bool:
        """Whether the fullest GPU of each kind is expected to stay within usable memory."""
        return self.memory_verdict != "OOM"

    @property
    def mfu(self) -> float:
        """Model FLOPs over the dense peaks of all servers."""
        return self.totals.mfu

    @property
    def days(self) -> float | None:
        """Days of the real run; None where the tokens are not known."""
        return self.totals.days

    @property
    def usd(self) -> float | None:
        """What it costs; None where tokens or a price are not known."""
        return self.totals.usd

    @property
    def kwh(self) -> float | None:
        """Energy at the meter; None where the tokens are not known."""
        return self.totals.kwh

    @property
    def line(self) -> str:
        """Servers, layout, step time, memory, days and money in a few words."""
        cluster = self.scenario.cluster
        words = [
            f"{self.scenario.workload.architecture.name} on {cluster.gpus:,} x {cluster.name}",
            self.layouts.describe(),
            f"{show_seconds(self.step_time_s)} a step",
            self.memory_verdict,
        ]
        words += [f"{self.days:,.1f} days"] if self.days is not None else []
        words += [show_usd(self.usd)] if self.usd is not None else []
        return ", ".join(words)

    def to_frame(self) -> DataFrame:
        """One row per kind of servers."""
        names = ("name", "gpus", "memory_bytes", "usable_bytes", "verdict", "alone_s",
                 "without_others_s", "usd_per_hour")  # fmt: skip
        return frame_of_rows(
            [
                {name: getattr(kind, name) for name in names}
                | {"computing_s": kind.busy_s["compute"]}
                for kind in self.kinds
            ]
        )


def predict_mixed(scenario: Scenario) -> MixedPrediction:
    """Play a scenario's layout on its servers of several kinds.

    Raises
    ------
    InputError
        If the layout cannot run on the servers of some kind, with the nearest value that can.
    """
    first = predict_first(scenario)
    made, row = first.scenario, first.estimate.layouts
    step = simulate(row, made.workload, made.cluster, made.software)
    mixed = step.mixed
    assert mixed is not None
    kinds = kinds_used(first, step)
    fullest = float((mixed.memory_bytes / mixed.usable_bytes).max())
    return MixedPrediction(
        scenario=made,
        layouts=row,
        defaults=first.defaults,
        step=step,
        kinds=tuple(kinds),
        totals=mixed_totals(made, row, step.step_time_s, memory_share=fullest),
        memory_verdict=worst_verdict(first, kinds),
    )
