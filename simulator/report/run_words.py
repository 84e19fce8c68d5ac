"""What becomes of a run in a line or two: goodput, its largest losses, when it ends."""

from __future__ import annotations

import datetime
import math

from simulator.arrays import Floats
from simulator.scenario import Scenario
from simulator.search.outcome import Outcome
from simulator.units import show_days, show_percent, show_seconds

_MOST = 3


def goodput_words(outcome: Outcome, i: int = 0) -> str:
    """Goodput of a layout, the three phases that take most, and how often it is interrupted.

    Blank where nobody asked what goes wrong.
    """
    if outcome.real is None:
        return ""
    losses = ", ".join(
        f"{name} {show_percent(share)}" for name, share in outcome.real.largest_losses(i, _MOST)
    )
    days = float(outcome.days_ideal[i])
    ideal = f" ({show_days(days)} without failures)" if math.isfinite(days) else ""
    each = float(outcome.real.failures[i].sum())
    often = f"; an interruption every {show_seconds(1.0 / each)}" if each > 0.0 else ""
    return f"goodput {show_percent(float(outcome.goodput[i]))}{ideal}: {losses}{often}"


def end_words(outcome: Outcome, scenario: Scenario, days: tuple[Floats, Floats], i: int = 0) -> str:
    """The day on which a run ends that begins on `run.start`; blank where nobody says when."""
    start, last = scenario.run.start, float(outcome.days[i])
    if start is None or not math.isfinite(last):
        return ""
    try:
        ends = [
            (start + datetime.timedelta(days=math.ceil(float(day)))).isoformat()
            for day in (last, days[0][i], days[1][i])
        ]
    except OverflowError:  # beyond the year 9999
        return "ends later than any calendar goes"
    return f"begun on {start.isoformat()} it ends on {ends[0]} ({ends[1]} to {ends[2]})"
