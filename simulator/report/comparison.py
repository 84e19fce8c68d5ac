"""Why the best layout wins: its step, term by term, beside runner-up and data parallelism alone."""

from __future__ import annotations

from dataclasses import replace

from simulator.cost.step import Estimate
from simulator.cost.terms import LABELS
from simulator.planner.plan import Plan, pinned_words
from simulator.records import dataclass
from simulator.search.certainty import Certainty, certainty
from simulator.units import show_percent, show_seconds

ROLES = ("best layout", "runner-up", "data parallel only")
"""Layouts whose time is compared term by term."""

_SAME = 1e-4
"""Share of a step below which two take as long as each other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeBar:
    """The step of one layout, term by term; the terms add up to the step."""

    role: str
    layout: str
    step_time_s: float
    p10_s: float
    p90_s: float
    terms_s: dict[str, float]
    hidden_s: dict[str, float]
    fits: bool
    verdict: str
    """FITS, TIGHT or OOM."""
    ruled_out: str = ""
    """Why it could not have won, whatever its time: ``tp = 2 is pinned``; blank where it could."""

    @property
    def named(self) -> str:
        """Its role, and why it could not have won."""
        return f"{self.role} ({self.ruled_out})" if self.ruled_out else self.role


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeChange:
    """One term of the best layout beside the same term of the others."""

    name: str
    seconds: dict[str, float]
    """By role."""
    saved_s: dict[str, float]
    """By role: the other's seconds less the best layout's."""


def time_bars(plan: Plan) -> list[TimeBar]:
    """Steps of the best layout, the runner-up and plain data parallelism, as far as they exist."""
    shown = range(min(2, len(plan.estimate)))
    bars = [_bar(ROLES[i], plan.estimate, plan.certainty, i) for i in shown]
    if plan.naive is not None:
        scenario = plan.scenario
        sure = certainty(plan.naive, scenario.workload, scenario.cluster, scenario.software)
        bars.append(_bar(ROLES[2], plan.naive, sure, 0))
    return [replace(bar, ruled_out=_ruled_out(plan, bar)) for bar in bars]


def _ruled_out(plan: Plan, bar: TimeBar) -> str:
    """Why a bar could not have won: its memory, or what the scenario pins."""
    if bar.role == ROLES[0]:
        return ""
    if not bar.fits:
        return "it does not fit"
    naive = plan.naive if bar.role == ROLES[2] else None
    if naive is not None and (pinned := pinned_words(plan.scenario, naive.layouts.row())):
        return f"{pinned} {'is' if pinned.count('=') == 1 else 'are'} pinned"
    if bar.verdict == "TIGHT" and plan.memory_verdict == "FITS":
        return "TIGHT: it may not fit"
    return ""


def time_changes(bars: list[TimeBar]) -> list[TimeChange]:
    """Compare the first bar with the others by term; all-zero terms are left out."""
    changes = []
    for name in bars[0].terms_s:
        seconds = {bar.role: bar.terms_s[name] for bar in bars}
        if any(seconds.values()):
            terms = bars[0].terms_s[name]
            saved = {role: value - terms for role, value in seconds.items() if role != bars[0].role}
            changes.append(TimeChange(name=name, seconds=seconds, saved_s=saved))
    return changes


def why_it_wins(bars: list[TimeBar], most: int = 4) -> list[str]:
    """Say for every other bar how much slower it is, and which terms make the difference."""
    best = bars[0]
    sentences = []
    for bar in bars[1:]:
        name = f"{bar.role.capitalize()} ({bar.layout})"
        if bar.layout == best.layout:
            sentences.append(f"{name} is the best layout itself.")
            continue
        more = bar.step_time_s - best.step_time_s
        same = abs(more) < _SAME * best.step_time_s
        word = "as long" if same else "slower" if more > 0 else "faster"
        if bar.ruled_out and word != "slower":
            word += f", but {bar.ruled_out}"
        share = show_percent(abs(more) / best.step_time_s)
        terms = _largest_changes(bar, best, most)
        verb = "takes" if same else f"is {show_seconds(abs(more))} ({share})"
        sentences.append(f"{name} {verb} {word}: {terms}.")
    return sentences


def _largest_changes(bar: TimeBar, best: TimeBar, most: int) -> str:
    """Name the terms that differ most; those below a fiftieth of the first are left out."""
    saved = {k: v - best.terms_s[k] for k, v in bar.terms_s.items()}
    largest = sorted(saved, key=lambda k: -abs(saved[k]))[:most]
    worth = [k for k in largest if abs(saved[k]) > 0.02 * abs(saved[largest[0]])]
    return (
        ", ".join(f"{LABELS.get(k, k)} {show_change(saved[k])}" for k in worth) or "no term differs"
    )


def show_change(seconds: float) -> str:
    """Format a difference with its sign.

    >>> show_change(-0.25)
    '-250 ms'
    """
    return ("+" if seconds >= 0 else "-") + show_seconds(abs(seconds))


def _bar(role: str, estimate: Estimate, sure: Certainty, i: int) -> TimeBar:
    return TimeBar(
        role=role,
        layout=estimate.layouts.describe(i),
        step_time_s=float(estimate.step_time_s[i]),
        p10_s=float(sure.p10_s[i]),
        p90_s=float(sure.p90_s[i]),
        terms_s={name: float(seconds[i]) for name, seconds in estimate.terms_s.items()},
        hidden_s={name: float(seconds[i]) for name, seconds in estimate.hidden_s.items()},
        fits=bool(estimate.fits[i]),
        verdict=estimate.verdict_word(i),
    )
