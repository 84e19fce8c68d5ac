"""The layout that `simulate` plays: as given, else the best that the search finds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simulator.assembly import Source, assemble
from simulator.errors import InputError
from simulator.planner.mixed_servers import predict_first
from simulator.planner.plan import plan
from simulator.planner.prediction import Prediction, predict
from simulator.scenario import Scenario
from simulator.search.certainty import certainty

if TYPE_CHECKING:
    from simulator.events.sharing.neighbour_jobs import Job


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
    return predict_first(scenario)


def neighbour_job(source: Source) -> Job:
    """Describe another job by its scenario, for what shares a fabric with it."""
    from simulator.events.sharing.neighbour_jobs import Job  # brings the events along

    scenario = assemble(source, {})[0]
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
