"""The verdict of a plan in sentences: what it takes, whether goals are met, whether memory holds.

Each is made here alone; the page and the document read them.
"""

from __future__ import annotations

import math

from simulator.economics.price import MARK
from simulator.planner.plan import Plan
from simulator.planner.sensitivity import lack_words
from simulator.report.wording import goal_words, planned_words
from simulator.search.outcome import spans
from simulator.units import (
    show_bytes,
    show_days_span,
    show_seconds,
    show_seconds_span,
    show_usd,
    show_usd_span,
)


def verdict_sentences(plan: Plan) -> list[str]:
    """What to expect of the best layout, a sentence each: run, what to plan for, goals, memory."""
    planned = planned_words(plan)
    goals = goal_words(plan.scenario.goal, plan.goal_chances)
    said = [f"{words[0].upper()}{words[1:]}." for words in (planned, *goals) if words]
    return [_run(plan), *said, _memory(plan)]


def _run(plan: Plan) -> str:
    """Days and money, or the step where nobody said how long the run is."""
    scenario, result = plan.scenario, plan.outcome
    name = scenario.workload.architecture.name
    head = f"{name} on {scenario.cluster.gpus:,} x {scenario.cluster.name}"
    days, usd = float(result.days[0]), float(result.usd[0])
    if not math.isfinite(days):
        span = show_seconds_span(*plan.interval_s)
        return f"{head}: {show_seconds(plan.step_time_s)} a step ({span})."
    whole = spans(plan.estimate, result, plan.certainty)
    low, high = (float(end[0]) for end in whole.days)
    words = [f"{head}: ready in {show_days_span(days, low, high)}"]
    if math.isfinite(usd):
        span = show_usd_span(float(whole.usd[0][0]), float(whole.usd[1][0]))
        words.append(f"{show_usd(usd)}{MARK * result.price.assumed} ({span})")
    return f"{', '.join(words)}."


def _memory(plan: Plan) -> str:
    """Whether memory holds, and with how much to spare."""
    estimate = plan.estimate
    if plan.memory_verdict == "TIGHT":
        return f"Memory is TIGHT: {lack_words(estimate, 0)}; make a trial run first."
    high = float(estimate.memory_p90_bytes[0])
    if not math.isfinite(high):
        free = estimate.usable_bytes - plan.memory_bytes
        return f"Memory fits with {show_bytes(free)} to spare; how sure that is nobody measured."
    return f"Memory FITS with {show_bytes(estimate.usable_bytes - high)} to spare at its P90."
