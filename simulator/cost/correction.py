"""An estimate corrected by what measured runs of a site say of the errors of its terms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulator.arrays import Floats
from simulator.cost.estimate import Estimate
from simulator.cost.uncertainty import BEARS_ON, SHARED, Belief


def correct(estimate: Estimate, believed: Belief, shares: Floats) -> Estimate:
    """Scale every term by the factors that its errors are expected to need.

    A term is scaled by the error that bears on it and by those of whole steps; fill and drain of a
    pipeline as the steady terms are on average. The terms still add up to the step time.

    Parameters
    ----------
    shares : ndarray, shape (layouts, errors)
        As :func:`simulator.cost.uncertainty.bearing` returns them.
    """
    expected = dict(zip(SHARED, believed.mean.tolist(), strict=True))
    of_step = np.zeros(len(estimate))
    for name in ("scale", "experts", "software", "kernels", "layout"):
        of_step = of_step + expected[name] * shares[:, SHARED.index(name)]
    factor = {term: np.exp(expected[name]) for name, terms in BEARS_ON.items() for term in terms}
    steady = {name: s for name, s in estimate.terms_s.items() if name in factor}
    before_s = sum(steady.values(), np.zeros(len(estimate)))
    after_s = sum((factor[name] * s for name, s in steady.items()), np.zeros(len(estimate)))
    average = after_s / np.maximum(before_s, 1e-30)
    terms_s = {
        name: seconds * factor.get(name, average) * np.exp(of_step)
        for name, seconds in estimate.terms_s.items()
    }
    step_s = sum(terms_s.values(), np.zeros(len(estimate)))
    return replace(estimate, terms_s=terms_s, step_time_s=step_s)
