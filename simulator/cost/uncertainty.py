"""How far predicted step times may be off, and what that leaves of a ranking.

An error belongs to what a term is priced by: the rate of a library on this device, a fabric, this
software's host work. Layouts that use the term share the error, so that it hardly matters between
two layouts whose time goes to the same places, and much between two that split it differently. The
logarithm of a step time is off by the sum, over errors, of the error and the share of the step that
it bears on.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import erf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator import catalogue
from simulator.cost.estimate import Estimate
from simulator.files import Figure, read_profile, record
from simulator.hardware.cluster import Cluster
from simulator.software import Software
from simulator.workload.recipe import Recipe

__all__ = [
    "ERRORS",
    "SHARED",
    "Belief",
    "StepErrors",
    "bearing",
    "belief",
    "load_step_errors",
    "stated_spreads",
]

Floats = NDArray[np.float64]

BEARS_ON = {
    "compute": ("gemm", "recompute"),
    "attention": ("attention",),
    "memory_bound": ("memory_bound", "optimizer"),
    "launch": ("launch",),
    "links": ("tp", "cp", "ep", "pp", "fsdp", "dp", "offload", "slowdown"),
}
"""Which terms of a step time an error bears on. Fill and drain of a pipeline are passes of the same
work and bear the errors of the steady terms in proportion."""

_IDLE = ("bubble_warmup", "bubble_drain")

SHARED = (*BEARS_ON, "scale", "experts", "software", "layout")
"""Errors that two step times may share; ``layout`` only if they are of one layout, on other sizes
of a cluster."""

ERRORS = (*SHARED, "run")
"""All errors, each with a standard deviation in ``hardware_profiles/uncertainty/step.toml``."""

P90 = 1.2815515655446004
"""The 90th percentile of a standard normal distribution; the 10th is its negative."""

DRAWS = 4000
SEED = 20261121


@record
class StepErrors:
    """Standard deviations of the logarithm, beyond the spread that a term's own figures state."""

    name: str
    compute: Figure
    """Of the time of matrix products under training load."""
    attention: Figure
    memory_bound: Figure
    """Of memory-bound kernels and the optimizer."""
    launch: Figure
    """Of the host time that shows."""
    links: Figure
    """Of the communication that shows."""
    scale: Figure
    """Of a whole step for every doubling of the number of accelerators: jitter, stragglers and
    shared fabrics, which no term stands for."""
    experts: Figure
    """Of a step with experts, for what routing, permutation and uneven loads add."""
    software: Figure
    """Of a whole step, shared by everything that one release of a software runs on a device."""
    layout: Figure
    """Of a whole step, apart for every layout: what no term explains."""
    run: Figure
    """Of a whole step, apart for every run: how far two runs alike are apart."""
    tail: Figure
    """Factor on the standard deviation at which 80 % of left-out calibration runs lie between P10
    and P90: errors have heavier tails than a normal distribution."""


def load_step_errors() -> StepErrors:
    """Read ``hardware_profiles/uncertainty/step.toml``."""
    return read_profile(StepErrors, catalogue.find("uncertainty", "step"))


def stated_spreads(cluster: Cluster, software: Software, recipe: Recipe) -> dict[str, float]:
    """Return the spreads that the figures behind a term state themselves, by error."""
    device, kernels = cluster.accelerator, software.kernels
    product = device.gemm.get(kernels.gemm_library, {}).get(recipe.matrix_type)
    fused = device.attention.get(kernels.attention_library) or device.attention.get("flash")
    return {
        "compute": _spread(product, "training_fraction"),
        "attention": _spread(fused, "peak_fraction", "backward_fraction"),
        "memory_bound": _spread(device.stream.get("elementwise"), "memory_fraction"),
        "launch": _spread(software.host, "seconds_per_kernel"),
    }


def _spread(holder: Any, *names: str) -> float:
    """Spreads of some figures of a record as one; 0 for what is missing or states none."""
    found = [getattr(getattr(holder, name, None), "spread", None) or 0.0 for name in names]
    return float(np.sqrt(sum(value**2 for value in found)))


def bearing(estimate: Estimate, *, experts: bool) -> Floats:
    """Return the share of each layout's step that every shared error bears on.

    Parameters
    ----------
    estimate : Estimate
        Its terms.
    experts : bool
        Whether the model has experts.

    Returns
    -------
    ndarray, shape (layouts, errors)
        Columns in the order of SHARED; that of ``layout`` is zero: one where a layout is the same
        as that of a measured run.
    """
    step_s = estimate.step_time_s
    idle_s = sum((estimate.terms_s[name] for name in _IDLE), np.zeros_like(step_s))
    whole = step_s / np.maximum(step_s - idle_s, 1e-30)
    columns = []
    for terms in BEARS_ON.values():
        term_s = sum((estimate.terms_s[term] for term in terms), np.zeros_like(step_s))
        columns.append(term_s / step_s * whole)
    columns.append(np.log2(estimate.layouts.world.astype(float)))
    columns += [np.full_like(step_s, float(experts)), np.ones_like(step_s), np.zeros_like(step_s)]
    return np.stack(columns, axis=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """What is believed of the errors: jointly normal, zero on average until a run corrects them.

    `shares` of the methods are those that :func:`bearing` returns, one row per layout.
    """

    mean: Floats
    """Of the errors in SHARED."""
    covariance: Floats
    """Of the same."""
    layout: float
    """Standard deviation of what is each layout's own, unless a run of the same was measured."""
    run: float
    """Standard deviation of what is each run's own."""

    def own_variance(self, shares: Floats) -> Floats:
        """Variance of what no other step time shares, by layout."""
        return np.asarray(self.run**2 + (1.0 - shares[:, -1]) * self.layout**2)

    def shift(self, shares: Floats) -> Floats:
        """Logarithm of the factor that each step time is expected to need."""
        return np.asarray(_times(shares, self.mean))

    def log_spread(self, shares: Floats) -> Floats:
        """Standard deviation of the logarithm of each step time."""
        variance = np.sum(_times(shares, self.covariance) * shares, axis=-1)
        return np.asarray(np.sqrt(np.maximum(variance + self.own_variance(shares), 0.0)))

    def interval(self, step_s: Floats, shares: Floats) -> tuple[Floats, Floats]:
        """P10 and P90 of step times that are corrected already."""
        reach = np.exp(P90 * self.log_spread(shares))
        return step_s / reach, step_s * reach

    def beats(self, step_s: Floats, shares: Floats, *, best: int = 0) -> Floats:
        """Probability that each layout is faster than the layout `best`; one half for itself.

        The logarithm of the ratio of two step times is off by the shared errors times the
        differences of their shares, and by the two errors of the layouts themselves. Errors of
        runs do not count: the question is which is faster, not which run.
        """
        apart, own = shares - shares[best], self.own_variance(shares) - self.run**2
        variance = np.sum(_times(apart, self.covariance) * apart, axis=-1) + own + own[best]
        variance = np.maximum(variance, 1e-18)
        behind = np.log(step_s / step_s[best]) / np.sqrt(2.0 * variance)
        chance = np.array([0.5 * (1.0 - erf(value)) for value in behind.tolist()])
        chance[best] = 0.5
        return chance

    def fastest(self, step_s: Floats, shares: Floats) -> Floats:
        """Probability that each layout is the fastest of the table.

        Errors are drawn `DRAWS` times from a fixed seed; shared ones are the same for all layouts
        of a draw, what is each layout's own is drawn for each.
        """
        draw = np.random.default_rng(SEED)
        values, vectors = np.linalg.eigh(self.covariance)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        shared = draw.standard_normal((DRAWS, len(self.mean))) @ (shares @ root).T
        own_spread = np.sqrt(np.maximum(self.own_variance(shares) - self.run**2, 0.0))
        own = own_spread * draw.standard_normal((DRAWS, len(step_s)))
        wins = np.bincount(np.argmin(np.log(step_s) + shared + own, 1), minlength=len(step_s))
        return np.asarray(wins / DRAWS)

    def corrected(self, shares: Floats, log_ratio: Floats) -> Belief:
        """Return the belief after runs were measured.

        Parameters
        ----------
        shares : ndarray, shape (runs, errors)
            Of the runs that were measured; one in the last column where their layouts are the same.
        log_ratio : ndarray, shape (runs,)
            Logarithm of measured over predicted step time, the prediction as it was uncorrected.

        Notes
        -----
        Conditioning of a normal distribution on linear observations, each with an error of its
        own. What the runs do not exercise stays as uncertain as it was.
        """
        heard = shares @ self.covariance @ shares.T + np.diag(self.own_variance(shares))
        gain = np.linalg.solve(heard, shares @ self.covariance).T
        return Belief(
            mean=self.mean + gain @ (log_ratio - shares @ self.mean),
            covariance=self.covariance - gain @ shares @ self.covariance,
            layout=self.layout,
            run=self.run,
        )


def _times(rows: Floats, matrix: Floats) -> Floats:
    """``rows @ matrix`` in a fixed order of addition, whatever the number of rows."""
    columns = matrix[:, None] if matrix.ndim == 1 else matrix
    found = sum(rows[:, k, None] * columns[k] for k in range(len(columns)))
    product = np.asarray(found)
    return product[:, 0] if matrix.ndim == 1 else product


def belief(cluster: Cluster, software: Software, recipe: Recipe) -> Belief:
    """Return what is believed of the errors on this machine with this software, nothing measured.

    What a term's own figure states (its fit's spread) and what steps show beyond it add as
    squares. A figure that states none adds nothing: then only what steps show counts. All are
    widened by `tail`.
    """
    steps = load_step_errors()
    spread = {name: float(getattr(steps, name)) for name in ERRORS}
    for name, stated in stated_spreads(cluster, software, recipe).items():
        spread[name] = float(np.hypot(spread[name], stated))
    tail = float(steps.tail)
    return Belief(
        mean=np.zeros(len(SHARED)),
        covariance=np.diag([(tail * spread[name]) ** 2 for name in SHARED]),
        layout=tail * spread["layout"],
        run=tail * spread["run"],
    )
