"""A scenario with something changed, priced again: what it takes then, and the difference.

All that an answer says of "if X, then Y" is a `Variant`: upgrades, defaults that nobody chose,
other trainings, what would make a layout fit, a moved figure, another fabric.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field, replace
from typing import Any, TypeVar

from simulator.answers import encoded
from simulator.cost.step import Estimate
from simulator.goal import OFFERED
from simulator.planner.changes import training_changes
from simulator.record_cache import for_same_records
from simulator.records import dataclass
from simulator.scenario import Scenario
from simulator.search.defaults import stated_layout
from simulator.units import show_bytes, show_seconds, show_signed_percent


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """A change, and what the changed scenario takes; all None where nothing runs and fits."""

    KEYS: tuple[str, ...] = ()
    """What documents say of it (``answers.py``)."""

    change: str
    """What is changed, or how to ask for it: ``training.precision = mxfp8``."""
    scenario: Scenario
    """The changed one; it pins the layout, where there is one."""
    name: str = ""
    """Of what is changed, or what stands without the change: ``gradients in bf16``."""
    fields: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """Layout fields that change: before and after."""
    before_s: float = float("inf")
    """Step time without the change; infinite where that does not fit."""
    step_time_s: float | None = None
    memory_total_bytes: float | None = None
    memory_verdict: str | None = None
    """FITS, TIGHT or OOM."""
    layout: str | None = None
    """In a few words; None where it is the one that stands without the change."""
    reason: str | None = None
    """Why it cannot run."""
    same_layout_s: float | None = None
    """Step time of the layout that is the fastest without the change."""
    doubt: str = ""
    """What measured pairs of it say against its price; blank: nothing."""
    another_training: bool = False
    """What is trained changes, or the numbers it is trained in: never made silently."""

    @property
    def gpus(self) -> int:
        """Accelerators of the changed scenario."""
        return self.scenario.cluster.gpus

    @property
    def gain(self) -> float:
        """Tokens/s over those without the change, minus 1."""
        return self.before_s / (self.step_time_s or float("inf")) - 1.0

    @property
    def added_s(self) -> float:
        """Step time above that without the change; below zero where it is faster."""
        return (self.step_time_s or float("inf")) - self.before_s

    @property
    def set(self) -> dict[str, Any]:
        """Layout fields that change and their new values."""
        return {name: after for name, (_, after) in self.fields.items()}

    def document(self) -> dict[str, Any]:
        """Return plain values under keys that stay."""
        return encoded(self)

    def sentence(self, step_s: float) -> str:
        """One line, beside the step time without the change."""
        head = f"{self.name}; with {self.change}" if self.name else f"{self.change}:"
        if self.step_time_s is None or self.memory_total_bytes is None:
            return f"{head} " + (
                f"this layout cannot run: {self.reason}" if self.reason else "no layout fits"
            )
        ratio = show_signed_percent(self.step_time_s / step_s - 1.0)
        words = [
            f"{show_seconds(self.step_time_s)} ({ratio})",
            show_bytes(self.memory_total_bytes),
            str(self.memory_verdict),
            *([self.layout] if self.layout else []),
            *([self.doubt] if self.doubt else []),
        ]
        return f"{head} {', '.join(words)}"


V = TypeVar("V", bound=Variant)


def variant_of(
    scenario: Scenario,
    estimate: Estimate,
    row: int = 0,
    *,
    of: type[V] = Variant,  # type: ignore[assignment]
    change: str = "",
    **known: Any,
) -> V:
    """The variant whose layout is a row of what was priced of the changed scenario."""
    pinned = stated_layout(estimate.layouts.row(row), scenario.software)
    values = {
        "layout": estimate.layouts.describe(row),
        "step_time_s": float(estimate.step_time_s[row]),
        "memory_total_bytes": float(estimate.memory_total_bytes[row]),
        "memory_verdict": estimate.verdict_word(row),
    }
    return of(change=change, scenario=replace(scenario, pinned=pinned), **{**values, **known})


def priced_variant(scenario: Scenario, *, change: str, **known: Any) -> Variant:
    """Price a changed scenario with the fastest layout that fits among all."""
    from simulator.search.fastest import explore_scenario  # a prediction starts without

    best = explore_scenario(scenario, scenario.pinned, keep=1, counts=False, near_miss=False).best
    if len(best):
        return variant_of(scenario, best, change=change, **known)
    return Variant(change=change, scenario=scenario, **known)


_OTHER_TRAINING = (
    *("change", "layout", "step_time_s", "memory_total_bytes"),
    "verdict=memory_verdict",
)


@for_same_records(1)
def other_trainings(scenario: Scenario, words: Iterable[str] | None = None) -> list[Variant]:
    """Search each training that `[search] allow` names, or `words` of OFFERED; fastest first.

    Fewer bytes for numbers and states, or adapters, change the result of a training, so that a
    search never chooses them. Screen, document and page of a plan ask with the same scenario: it is
    searched once.
    """
    named = (scenario.allow or ()) if words is None else words
    changes = training_changes(scenario, [word for word in named if word in OFFERED])
    variants = [
        priced_variant(made, change=change, KEYS=_OTHER_TRAINING)
        for change, made in changes.items()
    ]
    return sorted(variants, key=lambda variant: variant.step_time_s or float("inf"))
