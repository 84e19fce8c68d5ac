"""What another training would take: numbers of fewer bytes, states of fewer bytes, adapters.

They change the result of the training, so that a search never chooses them. Where nothing fits
those that save memory are tried; beside a plan those that `[search] allow` names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from simulator.goal import OFFERED
from simulator.planner.plan import Plan
from simulator.record_cache import for_same_records
from simulator.scenario import Scenario
from simulator.search.explore import explore
from simulator.search.training_choices import training_choices
from simulator.units import show_bytes, show_seconds, show_signed_percent


@dataclass(frozen=True, kw_only=True, slots=True)
class OtherTraining:
    """The fastest layout of one of them that fits."""

    change: str
    """How to ask for it: ``training.precision = mxfp8``."""
    layout: str | None
    """None where no layout fits."""
    step_time_s: float | None
    memory_total_bytes: float | None
    memory_verdict: str | None

    def sentence(self, step_s: float) -> str:
        """One line, beside the plan's own step time."""
        if self.step_time_s is None or self.memory_total_bytes is None:
            return f"{self.change}: no layout fits"
        change = show_signed_percent(self.step_time_s / step_s - 1.0)
        step, memory = show_seconds(self.step_time_s), show_bytes(self.memory_total_bytes)
        return f"{self.change}: {step} ({change}), {memory}, {self.memory_verdict}, {self.layout}"


@for_same_records(1)
def other_trainings(plan: Plan, words: Iterable[str] | None = None) -> list[OtherTraining]:
    """Search each training that `[search] allow` names, or `words` of OFFERED; fastest first.

    Screen, document and page of one plan ask for the same: it is searched once.
    """
    scenario = plan.scenario
    named = (scenario.allow or ()) if words is None else words
    choices = training_choices(scenario, [word for word in named if word in OFFERED])
    found = [_searched(scenario, change, fields) for change, fields in choices.items()]
    return sorted(found, key=lambda one: one.step_time_s or float("inf"))


def _searched(scenario: Scenario, change: str, fields: Mapping[str, Any]) -> OtherTraining:
    recipe = replace(scenario.workload.recipe, **fields)
    workload = replace(scenario.workload, recipe=recipe)
    parts = (workload, scenario.cluster, scenario.software, scenario.pinned)
    best = explore(*parts, keep=1, counts=False).best
    if not len(best):
        return OtherTraining(
            change=change,
            layout=None,
            step_time_s=None,
            memory_total_bytes=None,
            memory_verdict=None,
        )
    return OtherTraining(
        change=change,
        layout=best.layouts.describe(),
        step_time_s=float(best.step_time_s[0]),
        memory_total_bytes=float(best.memory_total_bytes[0]),
        memory_verdict=best.verdict_word(),
    )
