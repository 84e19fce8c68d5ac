"""The assumptions that decide most: each priced by predicting the other choice.

An answer takes a software with its flags, a type of gradients, a way to the experts. The other
choice is predicted on the best layout; where that does not FIT so, or the software is another one,
on the fastest that does of the answer's other layouts and of those that a search finds. Those that
change the step most stand under the verdict.
"""

from __future__ import annotations

import numpy as np

from simulator.cost.step import Estimate, evaluate
from simulator.errors import InputError
from simulator.layout.layouts import Layouts
from simulator.layout.rules.feasibility import FEASIBLE, reasons
from simulator.planner.defaults_that_matter import Alternative, alternatives_of
from simulator.planner.variants import Variant, variant_of
from simulator.record_cache import for_same_records
from simulator.records import dataclass
from simulator.search.best_layout import BestLayout
from simulator.search.fastest import explore_scenario
from simulator.search.with_failures import priced
from simulator.units import show_bytes, show_signed_percent, show_usd_change

ASSUMED = "Assumed, and what the other choice would change"
"""Heading of what :func:`assumption_lines` says."""

MOST = 3
"""Assumptions that are told."""

_BRIEF = 2
"""Of them on a first screen."""

_KEPT = ("tp", "cp", "ep", "etp", "micro_batch")
"""Fields of the best layout that an alternative keeps where it looks for one that FITS: stages,
chunks and recomputation are what memory asks for."""

_LEAST = 0.001
"""Relative change of the step below which a choice decides nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Assumption(Variant):
    """What an answer takes for granted, and what the other choice would make of it."""

    KEYS: tuple[str, ...] = (
        *("assumed=name", "alternative=change", "step_time_s", "step_time_change=relative"),
        *("days", "usd", "usd_change", "verdict=memory_verdict", "layout", "doubt?"),
    )

    days: float | None = None
    usd: float | None = None
    """Of the run with the other choice; None where tokens or price are not known."""
    usd_change: float | None = None
    mark: str = ""
    """Behind money that rests on an assumed price."""

    @property
    def relative(self) -> float:
        """Change of the step time, relative."""
        return (self.step_time_s or 0.0) / self.before_s - 1.0

    @property
    def felt(self) -> bool:
        """Whether the other choice changes anything."""
        return abs(self.relative) >= _LEAST or self.layout is not None

    def words(self, *, brief: bool = False) -> str:
        """What is assumed, and the price of the other choice; `brief`: in few words."""
        changed = [f"{show_signed_percent(self.relative)} time"]
        if self.usd_change is not None:
            changed.append(f"{show_usd_change(self.usd_change)}{self.mark}")
        if self.memory_verdict != "FITS":
            changed.append(f"{self.memory_verdict}, {show_bytes(self.memory_total_bytes or 0.0)}")
        if self.layout is not None:
            whole = f"as {self.layout} (the best layout would not fit)"
            changed.append("another layout" if brief else whole)
        if self.doubt:
            changed.append(self.doubt)
        value = self.change.partition(" = ")[2]
        other = value if brief and value not in ("true", "false") else self.change
        return f"{self.name}{', or' if brief else ';'} {other}: {', '.join(changed)}"


@for_same_records(2)
def assumptions(answer: BestLayout) -> list[Assumption]:
    """Price what an answer takes for granted: MOST of it, the largest change of the step first."""
    nearest: dict[str, Assumption] = {}
    for other in alternatives_of(answer.scenario, answer.estimate.layouts[:1]):
        if other.assumed in nearest:
            continue  # of several other softwares the first listed: the same one, plain
        assumption = _priced(answer, other)
        if assumption is not None and assumption.felt:
            nearest[other.assumed] = assumption
    return sorted(nearest.values(), key=lambda other: -abs(other.relative))[:MOST]


def assumption_lines(answer: BestLayout, *, brief: bool = False) -> list[str]:
    """The same in words: always a line."""
    most = _BRIEF if brief else MOST
    told = [assumption.words(brief=brief) for assumption in assumptions(answer)[:most]]
    return told or ["no other choice that was tried changes the step by 0.1 %"]


def _priced(answer: BestLayout, other: Alternative) -> Assumption | None:
    """One alternative on the best layout; None where nothing can run so.

    Where it would not run so, or not FIT, on the fastest of the answer's that does, or searched.
    """
    scenario, table = other.scenario, answer.estimate.layouts
    estimate = _estimated(table[:1].replace(**other.fields), other)
    same = estimate is not None and bool(estimate.verdict[0] <= answer.estimate.verdict[0])
    if not same:
        near = [_fastest_listed(answer, other), _searched(answer, other)]
        able = [layouts for layouts in near if layouts is not None and len(layouts)]
        estimate, same = (min(able, key=_step_s), False) if able else (estimate, True)
    if estimate is None:
        return None
    result = priced(estimate, scenario)
    days, usd = _known(result.days[0]), _known(result.usd[0])
    before = _known(answer.outcome.usd[0])
    return variant_of(
        scenario,
        estimate,
        of=Assumption,
        change=other.change,
        name=other.assumed,
        doubt=other.doubt,
        before_s=answer.step_time_s,
        days=days,
        usd=usd,
        usd_change=None if usd is None or before is None else usd - before,
        mark=result.price.mark,
        layout=None if same else estimate.layouts.describe(),
    )


def _fastest_listed(answer: BestLayout, other: Alternative) -> Estimate | None:
    """The fastest layout of the answer that FITS so; None where none does, or of other software.

    An answer lists the fastest by hundreds, near one another in step time and far apart in memory.
    """
    table = answer.estimate.layouts[1:]
    if other.scenario.software.name != answer.scenario.software.name or not len(table):
        return None
    estimate = _estimated(table.replace(**other.fields), other)
    if estimate is None:
        return None
    able = np.flatnonzero(estimate.verdict <= answer.estimate.verdict[0])
    return estimate.take(able[[np.argmin(estimate.step_time_s[able])]]) if len(able) else None


def _searched(answer: BestLayout, other: Alternative) -> Estimate:
    """The fastest layout that FITS so, with the best one's degrees over which operators are cut.

    Another software is free in all: what suits one is not what suits the other. So is any choice
    where the answer lists no other layouts.
    """
    best = {**answer.layout, **other.fields}
    alike = other.scenario.software.name == answer.scenario.software.name
    kept = (*_KEPT, *other.fields) if alike and len(answer.estimate) > 1 else tuple(other.fields)
    pinned = {name: best[name] for name in kept} | answer.scenario.pinned
    return explore_scenario(other.scenario, pinned, keep=1, counts=False, near_miss=False).best


def _estimated(table: Layouts, other: Alternative) -> Estimate | None:
    """Estimates of the layouts that can run; None where none can."""
    scenario = other.scenario
    setting = scenario.workload, scenario.cluster, scenario.software
    table = table[reasons(table, *setting) == FEASIBLE]
    try:
        return evaluate(table, *setting) if len(table) else None
    except InputError:  # the device has no figures of that library
        return None


def _step_s(estimate: Estimate) -> float:
    return float(estimate.step_time_s[0])


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
