"""Two layouts of one run against each other: term by term, and how sure it is which is faster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from simulator.answers import SCENARIO, Answer
from simulator.cost.estimate import Estimate, concatenate
from simulator.economics.unsure_totals import Span
from simulator.errors import InfeasibleError, InputError, problem
from simulator.files import build
from simulator.frames import DataFrame, Table
from simulator.layout.layout_section import LayoutSection
from simulator.planner.layout_row import layout_fields
from simulator.planner.prediction import predict, refuse_mixed
from simulator.records import dataclass
from simulator.scenario import Scenario
from simulator.search.certainty import TIE, Certainty, certainty
from simulator.search.fastest import explore_scenario
from simulator.search.outcome import Outcome, answer_frame, spans
from simulator.search.with_failures import priced
from simulator.units import show_percent, show_seconds

_KEEP = 64
"""Fastest layouts of each side that are priced finely."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Versus(Answer):
    """Both sides; rows of the tables are a and b."""

    COMMAND: ClassVar[str] = "versus"
    KEYS: ClassVar[tuple[str, ...]] = (
        *SCENARIO,
        *("searched", "*both", "chance_a_faster", "tie", "terms"),
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
    def line(self) -> str:
        """Both layouts, their step times and the chance that a is the faster one."""
        names = [self.estimate.layouts.describe(i) for i in (0, 1)]
        times = [show_seconds(float(step_s)) for step_s in self.estimate.step_time_s]
        sides = (f"{name} {time}" for name, time in zip(names, times, strict=True))
        return f"{' against '.join(sides)}, a is faster with {show_percent(self.chance_a_faster)}"

    def to_frame(self, table: Table = "layouts") -> DataFrame:
        """One row per side, a and b: what it costs; or seconds by term; or bytes by kind."""
        return answer_frame(self.estimate, self.outcome, self.certainty, table)

    @property
    def both(self) -> dict[str, dict[str, Any]]:
        """The sides as JSON says them."""
        estimate, sure = self.estimate, self.certainty
        whole = spans(estimate, self.outcome, sure)
        return {
            name: {
                "asked": self.sides[i],
                "layout": layout_fields(self.scenario, estimate.layouts, i),
                "step_time_s": estimate.step_time_s[i],
                "p10_s": sure.p10_s[i],
                "p90_s": sure.p90_s[i],
                "mfu": self.outcome.mfu[i],
                "days": _ends(whole.days, self.outcome.days, i),
                "usd": _ends(whole.usd, self.outcome.usd, i),
                "price": self.outcome.price.origin,
                "memory_total_bytes": estimate.memory_total_bytes[i],
                "fits": estimate.fits[i],
            }
            for i, name in enumerate(("a", "b"))
        }

    @property
    def chance_a_faster(self) -> float:
        """Probability that a step of a takes less time than one of b."""
        return 1.0 - float(self.certainty.beats_best[1])

    @property
    def tie(self) -> bool:
        """Either may well be the faster one."""
        return TIE <= self.chance_a_faster <= 1.0 - TIE

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
    fields: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not (equals and name and value):
            raise InputError(problem(where, "side", "must be field=value[,field=value]", text))
        fields[name] = _value(value)
    return build(LayoutSection, fields, where=where, prefix="layout").pinned()


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
