"""Rates that belong to a site: machines of one kind run training at speeds of their own.

Cooling, power caps and boards differ between sites: SimuMax's B200s and NVIDIA's are 1.35 times
apart under load. Rows of one source come from one site, so that a hundred of them tell one machine,
not a hundred. Each site therefore has its own deviation from a rate of the kind, held by a prior,
and a profile takes what the sites have in common: random effects (Laird and Ware 1982).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.calibration import Floats
from simulator.calibration.gauss_newton import soft_weights
from simulator.calibration.training_parameters import PARAMETERS
from simulator.measured.rows import MeasuredRun

__all__ = ["MOST", "SPREAD", "Site", "at_site", "settled", "site_columns", "sites", "source_family"]

SPREAD = 0.04
"""Standard deviation of a site's rate, of its logarithm: half of the 8 % by which accelerators of
one kind differ (Sinha et al. 2022), since a site averages over many."""

MOST = 10.0
"""Bound of a deviation, in spreads: none in effect."""

_ROUNDS = 50


@dataclass(frozen=True, slots=True)
class Site:
    """One source of runs, and the rate that it has a deviation of."""

    parameter: str
    family: str


def source_family(row: MeasuredRun) -> str:
    """Return the source of a run without its release: what is left out of the fit together."""
    return row.get("source").partition("-")[0]


def sites(families: Sequence[str], reached: Mapping[str, Sequence[int]]) -> tuple[Site, ...]:
    """List the sites of every rate that differs by site; `reached` has the runs of a parameter."""
    return tuple(
        Site(name, family)
        for name, parameter in PARAMETERS.items()
        if parameter.by_site
        for family in sorted({families[i] for i in reached[name]})
    )


def at_site(
    values: Mapping[str, float], family: str, known: Sequence[Site], offsets: Floats
) -> dict[str, float]:
    """Return the parameters as one site has them; `offsets` are in spreads."""
    found = dict(values)
    for site, offset in zip(known, offsets.tolist(), strict=True):
        if site.family == family:
            found[site.parameter] *= float(np.exp(SPREAD * offset))
    return found


def site_columns(slopes: Floats, families: Sequence[str], known: Sequence[Site]) -> Floats:
    """Change of log(predicted) of every run by one spread of each site.

    `slopes` are those by one prior width of each parameter; both are steps of a logarithm.
    """
    names, own = list(PARAMETERS), np.array(families)
    columns = np.zeros((len(slopes), len(known)))
    for k, site in enumerate(known):
        at, width = names.index(site.parameter), PARAMETERS[site.parameter].prior.width
        columns[:, k] = np.where(own == site.family, slopes[:, at] * SPREAD / width, 0.0)
    return columns


def settled(errors: Floats, columns: Floats, soft: float) -> Floats:
    """Find deviations of the sites where all other parameters stay: reweighted least squares."""
    offsets: Floats = np.zeros(columns.shape[1])
    for _ in range(_ROUNDS):
        weighted = columns * soft_weights(errors + columns @ offsets, soft)[:, None]
        bent = weighted.T @ columns + np.eye(len(offsets))
        offsets = np.asarray(-np.linalg.solve(bent, weighted.T @ errors))
    return offsets
