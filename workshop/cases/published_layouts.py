"""Published decisions: whether the search finds what those chose who trained the model.

validation/decisions.toml says which run, and which layout its authors chose. The search is given
model, cluster, batch, precision and software, and not the layout. The published layout should fit,
and lie near our best.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from simulator import catalogue
from simulator.cost.estimate import Estimate
from simulator.errors import InfeasibleError, InputError
from simulator.files import Number, build, read_toml, record
from simulator.reinforcement.rl_step import rl_step
from simulator.scenario import Scenario, make_scenario
from simulator.search.explore import SearchResult, explore

NEAR = 0.05
"""A published layout within this of our best is as good as found."""


@record
class Decision:
    """One published run and the layout that was chosen for it."""

    name: str
    """Model, and what tells the run from others."""
    source: str
    """Authors, year, arXiv number, and the table or section."""
    verified: bool
    """Whether the figures were read in the text of the source, not recalled."""
    model: dict[str, Any]
    """Section [model] of a scenario."""
    training: dict[str, Any]
    """Section [training]."""
    cluster: dict[str, Any]
    """Section [cluster], with the software."""
    search: dict[str, Any] = field(default_factory=dict)
    """What the search is told of the layout: nothing but which fields are free ("any")."""
    layout: dict[str, Any]
    """The published layout, as far as it was published; the rest is searched."""
    reported_step_s: Number | None = None
    """Seconds of a step, where they were published."""
    reported_flop_per_s: Number | None = None
    """Model FLOP/s of one accelerator, where these were."""
    remark: str = ""
    """What stands in for what is not known, why ours is better, and what would show it."""

    def scenario(self) -> Scenario:
        """The run, without its layout."""
        sections = {"model": self.model, "training": self.training, "cluster": self.cluster}
        return make_scenario(sections, where=f"decision {self.name!r}")


@record
class RLMemory:
    """A published step of reinforcement learning that ran, or ran out of memory."""

    name: str
    """Model, trainer and accelerators."""
    source: str
    """Repository, issue or script."""
    model: dict[str, Any]
    """Section [model] of a scenario."""
    training: dict[str, Any]
    """Section [training]."""
    cluster: dict[str, Any]
    """Section [cluster], with the trainer's software."""
    layout: dict[str, Any]
    """Section [layout]."""
    rl: dict[str, Any]
    """Section [rl]."""
    ran: bool
    """False: out of memory."""
    remark: str = ""
    """What stands in for what was not said, and why ours is another answer where it is."""

    def fits(self) -> bool:
        """Whether every phase of the step fits by our prediction."""
        names = ("model", "training", "cluster", "layout", "rl")
        sections = {name: getattr(self, name) for name in names}
        try:
            step = rl_step(make_scenario(sections, where=f"rl_memory {self.name!r}"))
        except InfeasibleError:
            return False
        return step.verdict != "OOM"


@record
class _Decisions:
    """validation/decisions.toml."""

    decisions: tuple[Decision, ...]
    """Every decision."""
    rl_memory: tuple[RLMemory, ...]
    """Steps of reinforcement learning that ran, or ran out of memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decided:
    """A decision beside our search."""

    decision: Decision
    published: Estimate
    """The published layout; where it leaves something open, the best of what fits, or else of what
    comes nearest; a single row."""
    found: SearchResult
    """Our search, which was not told."""
    model_flop_per_s: float
    """Model FLOP/s of one accelerator with the published layout."""

    @property
    def slower(self) -> float:
        """Step time of the published layout over that of our best, minus 1."""
        return float(self.published.step_time_s[0] / self.found.best.step_time_s[0]) - 1.0

    @property
    def near(self) -> bool:
        """Whether it fits and lies within NEAR of our best."""
        return bool(self.published.fits[0]) and self.slower <= NEAR

    def figures(self) -> dict[str, Any]:
        """Plain numbers and words, as docs/accuracy.json has them."""
        one, published = self.decision, self.published
        names = ("name", "source", "verified", "reported_step_s", "reported_flop_per_s", "remark")
        return {
            **{name: getattr(one, name) for name in names},
            "published": published.layouts.describe(),
            "memory_verdict": published.verdict_word(),
            "memory_bytes": float(published.memory_total_bytes[0]),
            "usable_bytes": published.usable_bytes,
            "published_step_s": float(published.step_time_s[0]),
            "flop_per_s": self.model_flop_per_s,
            "best": self.found.best.layouts.describe(),
            "best_step_s": float(self.found.best.step_time_s[0]),
            "slower": self.slower,
        }


def load_decisions() -> tuple[Decision, ...]:
    """Read the layouts of validation/decisions.toml."""
    return _read().decisions


def load_rl_memory() -> tuple[RLMemory, ...]:
    """Read its steps of reinforcement learning."""
    return _read().rl_memory


def _read() -> _Decisions:
    path = catalogue.folder("validation") / "decisions.toml"
    return build(_Decisions, read_toml(path), where=str(path))


def decide(decision: Decision) -> Decided:
    """Predict the published layout, and search for a better one without being told of it.

    Raises
    ------
    InputError
        If the decision describes no run.
    """
    scenario = decision.scenario()
    parts = scenario.workload, scenario.cluster, scenario.software
    told = explore(*parts, decision.layout, keep=1, allow_tight=True)  # it did run
    published = _published(decision, told)
    step_s = float(published.step_time_s[0])
    return Decided(
        decision=decision,
        published=published,
        found=explore(*parts, decision.search, keep=8, allow_tight=True),
        model_flop_per_s=published.model_flop / step_s / scenario.cluster.gpus,
    )


def _published(decision: Decision, search_result: SearchResult) -> Estimate:
    """The published layout: what fits of it, what nearly fits, or what needs least memory."""
    for found in (search_result.best, search_result.roomy, search_result.nearest_miss):
        if found is not None and len(found):
            return found.take(slice(0, 1))
    raise InputError(f"decision {decision.name!r}: its layout cannot run: {search_result.dropped}")
