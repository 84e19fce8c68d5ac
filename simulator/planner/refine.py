"""The best layouts of a plan once more, played on discrete events: `foreshard plan --refine N`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from simulator.cost.estimate import Estimate
from simulator.cost.terms import HIDDEN, TERMS
from simulator.events.played import SimulatedStep
from simulator.planner.plan import Plan, Refinement, ranked
from simulator.search.certainty import certainty
from simulator.search.with_failures import priced


def refine(plan: Plan, count: int, *, progress: Callable[[int, int], None] | None = None) -> Plan:
    """Simulate the best `count` layouts and rank them by what the events say.

    Step time and its terms become those of the simulation; memory stays that of the closed form.
    Layouts behind the first `count` keep their place behind them and their closed-form times.

    Parameters
    ----------
    plan : Plan
    count : int
        Layouts to play; all of the plan if it has fewer.
    progress : callable, optional
        Called with (layouts played, layouts to play).
    """
    count = min(count, len(plan.estimate))
    steps = []
    for i in range(count):
        steps.append(_numbers(plan, i))
        if progress is not None:
            progress(i + 1, count)
    scenario, closed = plan.scenario, plan.estimate
    estimate = with_times(closed, steps)
    cluster = scenario.cluster
    first = np.arange(count)
    best = estimate.take(first)
    order = ranked(best, priced(best, scenario), scenario)
    rows = np.concatenate([order, np.arange(count, len(estimate))])
    estimate = estimate.take(rows)
    return replace(
        plan,
        estimate=estimate,
        outcome=priced(estimate, scenario),
        certainty=certainty(estimate, scenario.workload, cluster, scenario.software, compared=True),
        refined=Refinement(
            closed_form_s=closed.step_time_s[order],
            places=order,
            steps=tuple(steps[i] for i in order.tolist()),
        ),
    )


def played(plan: Plan, i: int) -> SimulatedStep:
    """Simulate one layout of a plan, or hand back what --refine has simulated."""
    if plan.refined is not None and i < len(plan.refined.steps):
        return plan.refined.steps[i]
    from simulator.events.simulated_step import (
        simulate,  # brings the events along, which a plan starts without
    )

    scenario = plan.scenario
    return simulate(
        plan.estimate.layouts[i], scenario.workload, scenario.cluster, scenario.software
    )


def _numbers(plan: Plan, i: int) -> SimulatedStep:
    """Simulate one layout and keep its numbers; its timeline is simulated again when asked for.

    A played step of 60,000 tasks holds 5 MB, of which thousands of layouts would be too many.
    """
    return replace(
        played(plan, i),
        draw=lambda: played(plan, i).timeline,
        weigh=lambda: played(plan, i).memory,
    )


def with_times(estimate: Estimate, steps: list[SimulatedStep]) -> Estimate:
    """Put step times and terms of simulated steps into the first rows."""
    count = len(steps)
    total = estimate.step_time_s.copy()
    total[:count] = [step.step_time_s for step in steps]
    terms = {term.name: estimate.terms_s[term.name].copy() for term in TERMS}
    hidden = {name: estimate.hidden_s[name].copy() for name in HIDDEN}
    for i, step in enumerate(steps):
        for name in terms:
            terms[name][i] = step.terms_s[name]
        for name in hidden:
            hidden[name][i] = step.hidden_s[name]
    return replace(estimate, step_time_s=total, terms_s=terms, hidden_s=hidden)
