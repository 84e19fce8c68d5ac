"""Two layouts of one run against each other: term by term, and how sure it is which is faster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, ClassVar

from simulator.answers import SCENARIO, Answer, encoded
from simulator.cost.estimate import Estimate, concatenate
from simulator.economics.planning_factor import Span
from simulator.errors import InfeasibleError, InputError, problem
from simulator.files import build
from simulator.frames import DataFrame, Table
from simulator.layout.layout_section import LayoutSection
from simulator.planner.assumptions import Assumption, assumptions
from simulator.planner.layout_row import layout_rows
from simulator.planner.prediction import Prediction, predict, refuse_mixed
from simulator.records import dataclass
from simulator.scenario import Scenario
from simulator.search.best_layout import factor_of
from simulator.search.certainty import TIE, Certainty, certainty, changed_total, ratio_span
from simulator.search.defaults import layout_fields
from simulator.search.fastest import explore_scenario
from simulator.search.outcome import Outcome, answer_frame, spans
from simulator.search.with_failures import priced
from simulator.units import show_chance, show_seconds

_PLANNED = (
    *("verdict=memory_verdict", "memory_p90_bytes", "usable_bytes", "goodput", "checkpoint"),
    "days_ideal",
    *("planning_factor", "planned_days", "planned_usd", "planned_kwh"),
    *("deadline_chance", "budget_chance"),
    *("deadline_chance_without_factor", "budget_chance_without_factor"),
)
"""Of each side, as a document of a layout has them."""

_KEEP = 64
"""Fastest layouts of each side that are priced finely."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Versus(Answer):
    """Both sides; rows of the tables are a and b."""

    COMMAND: ClassVar[str] = "versus"
    KEYS: ClassVar[tuple[str, ...]] = (
        *SCENARIO,
        *("searched", "*both", "chance_a_faster", "tie", "terms", "within_error"),
        *("step_time_ratio=ratio", "step_time_ratio_p10=span.0", "step_time_ratio_p90=span.1"),
        *("days_change", "usd_change", "summary", "assumptions", "caveats"),
    )

    scenario: Scenario
    sides: tuple[dict[str, Any], dict[str, Any]]
    """Layout fields as given."""
    searched: bool
    """The other fields were searched; otherwise they took their stated defaults."""
    estimate: Estimate
    outcome: Outcome
    certainty: Certainty

    @property
    def caveats(self) -> tuple[str, ...]:
        """How what the sides leave open was filled, and the caveats of the faster one."""
        how = "searched: each is the best of its kind" if self.searched else "stated defaults"
        return (f"What the sides do not say was {how}.", *self.predictions[self.faster].caveats)

    @property
    def line(self) -> str:
        """Both layouts, their step times and the chance that a is the faster one."""
        names = [self.estimate.layouts.describe(i) for i in (0, 1)]
        times = [show_seconds(float(step_s)) for step_s in self.estimate.step_time_s]
        sides = (f"{name} {time}" for name, time in zip(names, times, strict=True))
        return f"{' against '.join(sides)}, a is faster with {show_chance(self.chance_a_faster)}"

    def to_frame(self, table: Table = "layouts") -> DataFrame:
        """One row per side, a and b: what it costs; or seconds by term; or bytes by kind."""
        factor = factor_of(self.scenario)
        return answer_frame(self.estimate, self.outcome, self.certainty, table, factor)

    @property
    def both(self) -> dict[str, dict[str, Any]]:
        """The sides as JSON says them."""
        estimate, sure = self.estimate, self.certainty
        whole, result = spans(estimate, self.outcome, sure), self.outcome
        planned = [layout_rows(side)[0] for side in self.predictions]
        return {
            name: {
                "asked": self.sides[i],
                "layout": layout_fields(self.scenario, estimate.layouts, i),
                "step_time_s": estimate.step_time_s[i],
                "p10_s": sure.p10_s[i],
                "p90_s": sure.p90_s[i],
                "mfu": result.mfu[i],
                "days": _ends(whole.days, result.days, i),
                "usd": _ends(whole.usd, result.usd, i),
                "price": result.price.origin,
                "memory_total_bytes": estimate.memory_total_bytes[i],
                "fits": estimate.fits[i],
                **encoded(planned[i], _PLANNED),
            }
            for i, name in enumerate(("a", "b"))
        }

    @property
    def predictions(self) -> tuple[Prediction, Prediction]:
        """Both sides, each as the prediction that it is."""
        sure = self.certainty
        columns = {field.name: getattr(sure, field.name) for field in fields(sure)}

        def side(i: int) -> Prediction:
            return Prediction(
                scenario=replace(self.scenario, pinned={**self.scenario.pinned, **self.sides[i]}),
                estimate=self.estimate.take([i]),
                outcome=self.outcome.take([i]),
                certainty=Certainty(**{name: column[[i]] for name, column in columns.items()}),
                defaults={},
            )

        return side(0), side(1)

    @property
    def faster(self) -> int:
        """0 where a is the faster side, as predicted; else 1."""
        return int(self.estimate.step_time_s[1] < self.estimate.step_time_s[0])

    @property
    def ratio(self) -> float:
        """Step time of b over that of a."""
        return float(self.estimate.step_time_s[1] / self.estimate.step_time_s[0])

    @property
    def span(self) -> tuple[float, float]:
        """P10 and P90 of that ratio: errors that both sides share cancel."""
        made, (a, b) = self.scenario, (self.estimate.take([i]) for i in (0, 1))
        return ratio_span(a, b, made.workload, made.cluster, made.software)

    @property
    def days_change(self) -> dict[str, float | None]:
        """P10, P50 and P90 of the days that b takes more than a."""
        a, b = self.predictions
        return changed_total(a.days, b.days, self.ratio, self.span)

    @property
    def usd_change(self) -> dict[str, float | None]:
        """The same of the money."""
        a, b = self.predictions
        return changed_total(a.usd, b.usd, self.ratio, self.span)

    @property
    def verdict(self) -> str:
        """Which side is faster, by how much and how sure that is."""
        if self.estimate.layouts.row(0) == self.estimate.layouts.row(1):
            return "A tie: both are the same layout"
        first = self.faster
        sides = [", ".join(f"{n} = {v}" for n, v in side.items()) for side in self.sides]
        ahead = float(self.estimate.step_time_s[1 - first] / self.estimate.step_time_s[first])
        sure = self.chance_a_faster if first == 0 else 1.0 - self.chance_a_faster
        return (
            f"{'A tie, either may be faster: ' * self.tie}{sides[first]} is faster by x"
            f" {ahead:.3f}, with a chance of {show_chance(sure)}"
        )

    @property
    def summary(self) -> list[str]:
        """The verdict, as JSON says it."""
        return [f"{self.verdict}."]

    @property
    def assumptions(self) -> list[Assumption]:
        """What the faster side takes for granted and bears on it most."""
        return assumptions(self.predictions[self.faster])

    @property
    def chance_a_faster(self) -> float:
        """Probability that a step of a takes less time than one of b."""
        return 1.0 - float(self.certainty.beats_best[1])

    @property
    def tie(self) -> bool:
        """Either may well be the faster one."""
        return TIE <= self.chance_a_faster <= 1.0 - TIE

    @property
    def within_error(self) -> bool:
        """Whether the difference of the sides may well be none: what a tie is."""
        return self.tie

    @property
    def run_within_error(self) -> bool:
        """The same of the whole run: both sides have the same steps."""
        return self.within_error

    @property
    def terms(self) -> dict[str, tuple[float, float]]:
        """Seconds of each term, a and b."""
        columns = self.estimate.terms_s
        return {name: (float(s[0]), float(s[1])) for name, s in columns.items() if s.any()}


def _ends(ends: tuple[Any, Any], middle: Any, i: int) -> dict[str, Any]:
    """P10, P50 and P90 of one side; null where they are not known."""
    return dict(zip(Span.KEYS, (ends[0][i], middle[i], ends[1][i]), strict=True))


def parse_side(text: str, *, where: str = "command line") -> dict[str, Any]:
    """Read one side: layout fields by name, ``tp=4,pp=8,sequence_parallel=false``.

    Raises
    ------
    InputError
        If it is none, or a field is unknown or wrong.

    Examples
    --------
    >>> parse_side("tp=4,schedule=1f1b")
    {'tp': 4, 'schedule': '1f1b'}
    """
    said: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not (equals and name and value):
            raise InputError(problem(where, "side", "must be field=value[,field=value]", text))
        said[name] = _value(value)
    return build(LayoutSection, said, where=where, prefix="layout").pinned()


def _value(text: str) -> Any:
    words = {"true": True, "false": False}
    if text in words:
        return words[text]
    return int(text) if text.isdigit() and len(text) < 18 else text


def versus(
    scenario: Scenario, a: Mapping[str, Any], b: Mapping[str, Any], *, search: bool = True
) -> Versus:
    """Compare two layouts of a scenario.

    Parameters
    ----------
    a, b : mapping
        Layout fields of each side, over those that the scenario pins.
    search : bool
        Search what neither says, so that each side is the best of its kind; otherwise take the
        stated defaults, as `predict` does.

    Raises
    ------
    InputError
        If a side cannot run at all.
    InfeasibleError
        If a side is searched and nothing of it fits.
    """
    refuse_mixed(scenario)
    workload, cluster, software = scenario.workload, scenario.cluster, scenario.software
    both = [_best(scenario, side) if search else _given(scenario, side) for side in (a, b)]
    estimate = concatenate(both)
    return Versus(
        scenario=scenario,
        sides=(dict(a), dict(b)),
        searched=search,
        estimate=estimate,
        outcome=priced(estimate, scenario),
        certainty=certainty(estimate, workload, cluster, software, compared=True),
    )


def _given(scenario: Scenario, side: Mapping[str, Any]) -> Estimate:
    return predict(scenario, **side).estimate


def _best(scenario: Scenario, side: Mapping[str, Any]) -> Estimate:
    """The fastest layout of one side."""
    pinned = {**scenario.pinned, **side}
    section = build(LayoutSection, pinned, where=scenario.where, prefix="layout").pinned()
    made = replace(scenario, pinned=section)
    found = explore_scenario(made, section, keep=_KEEP, counts=False)
    if len(found.best):
        return found.best.take([0])
    words = ", ".join(f"{name} = {value}" for name, value in side.items())
    text = f"{scenario.where}: no layout with {words} can run and fit"
    if found.nearest_miss is None:
        predict(made)  # says by its field what is wrong with the side
    reasons = sorted(found.dropped.items(), key=lambda item: -item[1])[:3]
    lines = [f"  {count:,} layouts: {reason}" for reason, count in reasons]
    raise InfeasibleError("\n".join([text, *lines]))
