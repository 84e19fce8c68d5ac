"""What `simulate` and `plan --refine` play on discrete events: a layout, or the best of a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from simulator.assembly import Source, assemble
from simulator.errors import InputError
from simulator.events.played import SimulatedStep
from simulator.planner.prediction import Prediction, predict, with_times
from simulator.scenario import Scenario
from simulator.search.certainty import certainty
from simulator.search.with_failures import priced

if TYPE_CHECKING:
    from simulator.events.sharing.neighbour_jobs import Job
    from simulator.planner.plan import Plan


def predict_best(scenario: Scenario) -> Prediction:
    """Predict a scenario's layout, or the best there is where it names no field of one.

    Raises
    ------
    InputError
        If the layout cannot run at all.
    InfeasibleError
        If none is named, and none fits.
    """
    if scenario.pinned:
        return predict(scenario)
    from simulator.planner.plan import plan  # one layout is played without the search

    best, first = plan(scenario), np.array([0])
    made, estimate = best.scenario, best.estimate.take(first)
    return Prediction(
        scenario=made,
        estimate=estimate,
        outcome=best.outcome.take(first),
        certainty=certainty(estimate, made.workload, made.cluster, made.software),
        defaults={},
        searched=best.found.layouts,
    )


def predict_played(scenario: Scenario, *, search: bool = True) -> Prediction:
    """Do the same for a step; servers of several kinds take stated defaults.

    Parameters
    ----------
    search : bool
        Search where no layout is named; a schedule of the user's own fits only the one it is for.
    """
    if search and not scenario.cluster.kinds:
        return predict_best(scenario)
    from simulator.planner.mixed_prediction import predict_first  # brings the events along

    return predict_first(scenario)


def neighbour_job(source: Source) -> Job:
    """Describe another job by its scenario, for what shares a fabric with it."""
    from simulator.events.sharing.neighbour_jobs import Job  # brings the events along

    scenario = assemble(source, {})
    if scenario.cluster.kinds:
        rule = "must be left out of a job beside another: its servers are of one kind"
        raise InputError(f"{scenario.where}: cluster.groups: {rule}")
    prediction = predict_best(scenario)
    made = prediction.scenario
    return Job(
        layout=prediction.estimate.layouts,
        workload=made.workload,
        cluster=made.cluster,
        software=made.software,
    )


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
    from simulator.planner.plan import Refinement, ranked

    count = min(count, len(plan.estimate))
    steps = []
    for i in range(count):
        steps.append(_numbers(plan, i))
        if progress is not None:
            progress(i + 1, count)
    scenario, closed = plan.scenario, plan.estimate
    estimate = with_times(closed, steps)
    first = np.arange(count)
    best = estimate.take(first)
    order = ranked(best, priced(best, scenario), scenario)
    rows = np.concatenate([order, np.arange(count, len(estimate))])
    estimate = estimate.take(rows)
    return replace(
        plan,
        estimate=estimate,
        outcome=priced(estimate, scenario),
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
        weigh=lambda: played(plan, i).weigh(),
    )
