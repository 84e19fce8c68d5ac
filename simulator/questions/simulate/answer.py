"""A simulated step beside what the closed form says of the same layout: `simulate --json`."""

from __future__ import annotations

from typing import Any, ClassVar

from simulator.answers import Answer
from simulator.events.played import SimulatedStep
from simulator.frames import DataFrame
from simulator.planner.mixed_prediction import KindUse, ServerGroups, kinds_used, worst_verdict
from simulator.planner.prediction import Prediction
from simulator.records import dataclass
from simulator.search.defaults import layout_fields


@dataclass(frozen=True, kw_only=True, repr=False)
class StepAndPrediction(Answer):
    """On servers of several kinds there is no closed form: what it says is None."""

    COMMAND: ClassVar[str] = "simulate"
    KEYS: ClassVar[tuple[str, ...]] = (
        *("*prediction.asked", "layout", "searched=prediction.searched"),
        *("step_time_s=step.step_time_s", "undisturbed_s", "closed_form_s", "terms_s=step.terms_s"),
        *("closed_form_terms_s", "hidden_s=step.hidden_s", "critical_share=step.critical_share"),
        *("pacing_rank=step.pacing_rank", "ranks=step.ranks", "verdict=memory_verdict"),
        *("links=step.links", "network=step.network", "jitter=step.jitter"),
        *("loading=step.loading", "sharing=step.sharing", "groups", "tasks=step.tasks"),
        *("deadline_chance=prediction.deadline_chance", "budget_chance=prediction.budget_chance"),
        *("build_seconds", "run_seconds", "caveats"),
    )
    build_seconds: ClassVar[None] = None
    run_seconds: ClassVar[None] = None

    prediction: Prediction
    step: SimulatedStep
    undisturbed_s: float | None = None
    """The same step played without what disturbs it; None where nothing does."""

    @property
    def line(self) -> str:
        """What the played step says."""
        return self.step.line

    @property
    def caveats(self) -> tuple[str, ...]:
        """Those of the closed form, whose kernels and machine the step is played with."""
        return self.prediction.caveats

    def to_frame(self) -> DataFrame:
        """The played step's."""
        return self.step.to_frame()

    @property
    def kinds(self) -> list[KindUse]:
        """What each kind of servers does; none where they are of one kind."""
        return kinds_used(self.prediction, self.step)

    @property
    def layout(self) -> dict[str, Any]:
        """As `predict` takes it back."""
        return layout_fields(self.prediction.scenario, self.prediction.estimate.layouts)

    @property
    def closed_form_s(self) -> float | None:
        """Step time in closed form."""
        return None if self.step.mixed else self.prediction.step_time_s

    @property
    def closed_form_terms_s(self) -> dict[str, float] | None:
        """Its terms."""
        if self.step.mixed:
            return None
        return {name: x[0] for name, x in self.prediction.estimate.terms_s.items()}

    @property
    def memory_verdict(self) -> str:
        """FITS, TIGHT or OOM, of the kind of servers that is worst off."""
        return worst_verdict(self.prediction, self.kinds)

    @property
    def groups(self) -> ServerGroups | None:
        """Which ranks lie on which servers, where they are of several kinds."""
        if self.step.mixed is None:
            return None
        return ServerGroups(step=self.step, kinds=tuple(self.kinds))
