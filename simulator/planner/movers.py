"""What moves the money and days of a plan: price, errors, software, parts of the machine, failures.

One thing at a time, the rest as predicted; each says by how much it was moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, isfinite

from simulator.economics.planning_factor import quantile
from simulator.files import Figure
from simulator.planner.assumptions import assumptions
from simulator.planner.plan import Plan
from simulator.planner.variants import Variant
from simulator.records import dataclass
from simulator.search.with_failures import priced
from simulator.units import show_usd

MOST = 8
"""Movers that are told."""

_LEAST = 0.002
"""Share of the money, or of the days, below which a mover is left out."""

_FAILURES = 3.0
"""By how many times failures are made more frequent."""

_Pair = tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Mover:
    """One thing, and what the run takes more or less with it: USD and days at either end."""

    name: str
    change: str
    """By how much it was moved."""
    days: _Pair
    usd: _Pair | None
    """None where no price is known."""

    def words(self, *, money: bool) -> list[str]:
        """Both ends: money, then days.

        >>> Mover(name="", change="", days=(-15.0, 16.0), usd=(-1e6, 1.2e6)).words(money=True)
        ['-1.00 / +1.20 M', '-15 / +16 days']
        """
        ends = [f"{end:+,.{0 if abs(end) >= 10 else 1}f}" for end in self.days if end]
        said = [f"{' / '.join(ends)} days"] if ends else []
        return [_usd_words(self.usd), *said] if money and self.usd is not None else said


def _usd_words(pair: _Pair) -> str:
    shown = [(value, show_usd(abs(value)).removesuffix(" USD")) for value in pair if value]
    ends = [("+" if value > 0.0 else "-") + words for value, words in shown]
    unit = ends[-1].partition(" ")[2]
    return " / ".join([*(end.removesuffix(f" {unit}") for end in ends[:-1]), ends[-1]])


def movers(plan: Plan, upgrades: Sequence[Variant]) -> list[Mover]:
    """List what moves the answer most, first what moves it most; nothing without a length.

    Parameters
    ----------
    upgrades : sequence of Variant
        What ``sensitivity(plan)`` gave.
    """
    days, usd = float(plan.outcome.days[0]), float(plan.outcome.usd[0])
    if not isfinite(days):
        return []
    known = usd if isfinite(usd) else None
    every = [
        *_price(plan, known),
        *_errors(plan, days, known),
        *_assumed(plan, days),
        *(
            _scaled(u.name, u.change, (1.0 / (1.0 + u.gain) - 1.0, 0.0), days, known)
            for u in upgrades
        ),
        *_failures(plan, days, known),
    ]
    least = _LEAST * (known or days)
    felt = [mover for mover in every if _size(mover) >= least]
    return sorted(felt, key=_size, reverse=True)[:MOST]


def _size(mover: Mover) -> float:
    return max(map(abs, mover.days if mover.usd is None else mover.usd))


def _scaled(name: str, change: str, shares: _Pair, days: float, usd: float | None) -> Mover:
    """A mover of days and money by the same shares."""
    low, high = shares
    money = None if usd is None else (low * usd, high * usd)
    return Mover(name=name, change=change, days=(low * days, high * days), usd=money)


def _price(plan: Plan, usd: float | None) -> list[Mover]:
    """The price of an hour, from its P10 to its P90."""
    rate = plan.outcome.price.usd_per_gpu_hour
    if usd is None or rate is None or not rate.spread:
        return []
    low, high = (exp(quantile(end) * rate.spread) - 1.0 for end in (0.1, 0.9))
    ends = " to ".join(f"{float(rate) * (1.0 + end):.2f}" for end in (low, high))
    part = min(float(rate) * float(plan.outcome.gpu_hours[0]) / usd, 1.0)
    change = f"{ends} USD (P10 to P90)"
    money = (low * part * usd, high * part * usd)
    return [Mover(name="price of a GPU-hour", change=change, days=(0.0, 0.0), usd=money)]


def _errors(plan: Plan, days: float, usd: float | None) -> list[Mover]:
    """The error of the step time, and what published runs took on top, from P10 to P90."""
    step_s, (fast, slow) = plan.step_time_s, plan.interval_s
    shares = fast / step_s - 1.0, slow / step_s - 1.0
    found = [_scaled("error of the step time", "P10 to P90", shares, days, usd)]
    if (factor := plan.planning_factor) is not None:
        change = f"x {factor.p10:.2f} to {factor.p90:.2f} in published runs"
        shares = factor.p10 - 1.0, factor.p90 - 1.0
        found.append(_scaled("restarts, lost and repeated work", change, shares, days, usd))
    return found


def _assumed(plan: Plan, days: float) -> list[Mover]:
    """Choices that nobody made, otherwise: software, type of gradients."""
    return [
        Mover(
            name=choice.name,
            change=f"or {_other(choice.change)}",
            days=_side(choice.days - days),
            usd=None if choice.usd_change is None else _side(choice.usd_change),
        )
        for choice in assumptions(plan)
        if choice.days is not None
    ]


def _other(change: str) -> str:
    """The other choice: its value, with the field where that alone says nothing.

    >>> _other("cluster.software = megatron-core-defaults"), _other("software.fused_rope = true")
    ('megatron-core-defaults', 'software.fused_rope = true')
    """
    value = change.partition(" = ")[2]
    return change if value in ("true", "false") else value


def _failures(plan: Plan, days: float, usd: float | None) -> list[Mover]:
    """Failures more often than the profile of reliability says."""
    scenario = plan.scenario
    if scenario.goal.ideal:
        return []
    often = Figure(_FAILURES * float(scenario.run.rate_factor), "assumed", "what-if")
    worse = replace(scenario, run=replace(scenario.run, rate_factor=often))
    result = priced(plan.estimate.take([0]), worse)
    later, dearer = float(result.days[0]) - days, float(result.usd[0]) - (usd or 0.0)
    if not isfinite(later):
        return []
    money = _side(dearer) if usd is not None and isfinite(dearer) else None
    name, change = "failures", f"{_FAILURES:g} times as often"
    return [Mover(name=name, change=change, days=_side(later), usd=money)]


def _side(change: float) -> _Pair:
    return (change, 0.0) if change < 0.0 else (0.0, change)
