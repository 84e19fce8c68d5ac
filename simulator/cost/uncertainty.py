"""How far predicted step times may be off, and what that leaves of a ranking.

An error belongs to what a term is priced by: the rate of a library on this device, a fabric, this
software's host work. Layouts that use the term share the error, so that it hardly matters between
two layouts whose time goes to the same places, and much between two that split it differently. The
logarithm of a step time is off by the sum, over errors, of the error and the share of the step that
it bears on.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    "StepErrors",
    "bearing",
    "chance_of_beating",
    "errors_of",
    "interval",
    "load_step_errors",
    "log_spread",
    "probability_fastest",
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

ERRORS = (*BEARS_ON, "hidden", "experts", "software", "layout")
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
    hidden: Figure
    """Of the communication that is hidden: the share of it that may show after all."""
    experts: Figure
    """Of a step with experts, for what routing, permutation and uneven loads add."""
    software: Figure
    """Of a whole step, shared by everything that one release of a software runs on a device."""
    layout: Figure
    """Of a whole step, apart for every layout: what is left between two runs alike."""
    tail: Figure
    """Factor on the standard deviation at which 80 % of left-out calibration runs lie between P10
    and P90: errors have heavier tails than a normal distribution."""


def load_step_errors() -> StepErrors:
    """Read ``hardware_profiles/uncertainty/step.toml``."""
    return read_profile(StepErrors, catalogue.find("uncertainty", "step"))


def errors_of(cluster: Cluster, software: Software, recipe: Recipe) -> dict[str, float]:
    """Return the standard deviation of every error (ERRORS) on this machine with this software.

    What a term's own figure states (its fit's spread) and what steps show beyond it add as
    squares. A figure that states none adds nothing: then only what steps show counts. All are
    widened by `tail`.
    """
    steps = load_step_errors()
    found = {name: float(getattr(steps, name)) for name in ERRORS}
    for name, stated in stated_spreads(cluster, software, recipe).items():
        found[name] = float(np.hypot(found[name], stated))
    return {name: float(steps.tail) * value for name, value in found.items()}


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


def bearing(estimate: Estimate, *, experts: bool) -> dict[str, Floats]:
    """Return the share of each layout's step that every error bears on.

    Parameters
    ----------
    estimate : Estimate
        Terms and what is hidden.
    experts : bool
        Whether the model has experts.
    """
    step_s = estimate.step_time_s
    idle_s = sum((estimate.terms_s[name] for name in _IDLE), np.zeros_like(step_s))
    whole = step_s / np.maximum(step_s - idle_s, 1e-30)
    shares = {
        name: sum((estimate.terms_s[term] for term in terms), np.zeros_like(step_s)) / step_s
        for name, terms in BEARS_ON.items()
    }
    shares = {name: share * whole for name, share in shares.items()}
    hidden_s = sum(estimate.hidden_s.values(), np.zeros_like(step_s))
    one = np.ones_like(step_s)
    return {
        **shares,
        "hidden": hidden_s / step_s,
        "experts": one * float(experts),
        "software": one,
        "layout": one,
    }


def log_spread(shares: Mapping[str, Floats], errors: Mapping[str, float]) -> Floats:
    """Standard deviation of the logarithm of each step time: shares times errors, as squares."""
    variance = sum((share * errors[name]) ** 2 for name, share in shares.items())
    return np.asarray(np.sqrt(variance))


def interval(
    values: Any, shares: Mapping[str, Floats], errors: Mapping[str, float]
) -> tuple[Floats, Floats]:
    """P10 and P90 of values that grow with the step time (seconds, days, USD)."""
    reach = np.exp(P90 * log_spread(shares, errors))
    return np.asarray(values) / reach, np.asarray(values) * reach


def chance_of_beating(
    step_s: Floats, shares: Mapping[str, Floats], errors: Mapping[str, float], *, best: int = 0
) -> Floats:
    """Probability that each layout is faster than the layout `best`; one half for itself.

    The logarithm of the ratio of two step times is off by the errors times the differences of their
    shares, and by the two errors of the layouts themselves.
    """
    variance = sum(((share - share[best]) * errors[name]) ** 2 for name, share in shares.items())
    variance = variance + 2.0 * errors["layout"] ** 2
    behind = np.log(step_s / step_s[best]) / np.sqrt(2.0 * variance)
    chance = np.array([0.5 * (1.0 - erf(value)) for value in behind.tolist()])
    chance[best] = 0.5
    return chance


def probability_fastest(
    step_s: Floats, shares: Mapping[str, Floats], errors: Mapping[str, float]
) -> Floats:
    """Probability that each layout is the fastest of the table.

    Errors are drawn `DRAWS` times from a fixed seed; those of terms are the same for all layouts of
    a draw, that of ``layout`` is drawn for each.
    """
    draw = np.random.default_rng(SEED)
    logs = np.broadcast_to(np.log(step_s), (DRAWS, len(step_s))).copy()
    for name, share in shares.items():
        columns = len(step_s) if name == "layout" else 1
        logs += errors[name] * share * draw.standard_normal((DRAWS, columns))
    wins = np.bincount(np.argmin(logs, axis=1), minlength=len(step_s))
    return np.asarray(wins / DRAWS)
