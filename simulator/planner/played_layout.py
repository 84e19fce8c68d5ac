"""The layout that `simulate` plays: as given, else the best that the search finds."""

from __future__ import annotations

import numpy as np

from simulator.planner.certainty import certainty
from simulator.planner.prediction import Prediction, predict
from simulator.planner.search import plan
from simulator.planner.server_kinds import predict_first
from simulator.scenario import Scenario

__all__ = ["predict_best", "predict_played"]


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
