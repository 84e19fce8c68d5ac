"""Fitting how far step times are off: standard deviations of errors by what they belong to.

The residuals are those of calibration runs whose whole source was left out of the fit
(``fit_training.left_out``), because a run that a figure was fitted to says little about the next
one. Runs of one source on one device share the errors of its terms: their residuals are jointly
normal with covariance ``sum over errors of sd^2 w w' + sd_layout^2 I``, w being the shares of the
step times that an error bears on. Maximum likelihood, with a weak prior on every deviation; then
one factor for the tails, so that 80 % of the residuals lie inside.
"""

from __future__ import annotations

import numpy as np

from simulator.calibration import Floats
from simulator.calibration.fit_training import TrainingFit, apply, fit_training, left_out, report
from simulator.cost.step import evaluate
from simulator.cost.uncertainty import P90, SHARED, bearing, load_step_errors, stated_spreads
from simulator.measured.rows import MeasuredRun

__all__ = ["fit_errors", "left_out_report", "source_family"]

_PRIOR_SD = 0.08
"""Standard deviation of the half-normal prior of every deviation: few terms are off by more."""
_LEAST = 1e-3
_MOST_OFF = 0.25
"""Residuals beyond this count as this: single runs of which nobody knows what happened."""


def source_family(row: MeasuredRun) -> str:
    """Return the source of a run without its release: what is left out of the fit together."""
    return row.get("source").partition("-")[0]


def fit_errors(fit: TrainingFit) -> dict[str, float]:
    """Fit the figures of ``hardware_profiles/uncertainty/step.toml``; keys SHARED and ``tail``.

    How far two runs alike are apart (``run``) is measured, not fitted: it is part of what each
    run has of its own, the rest of which is the layout's.
    """
    from scipy.optimize import minimize  # type: ignore[import-untyped, unused-ignore]

    residuals = left_out(fit, source_family)
    bounded = np.clip(residuals, -_MOST_OFF, _MOST_OFF)
    shares, stated = _shares(fit)
    labels = [(source_family(t.row), t.row.get("gpu")) for t in fit.runs]
    groups = [np.array([label == one for label in labels]) for one in dict.fromkeys(labels)]

    def loss(at: Floats) -> float:
        deviations = np.exp(at)
        found = 0.5 * float(np.sum((deviations / _PRIOR_SD) ** 2))
        for group in groups:
            covariance = _covariance(shares[group], stated[group], deviations, run)
            found += _negative_log_likelihood(bounded[group], covariance)
        return found

    start = np.full(len(SHARED), np.log(0.03))
    run = float(load_step_errors().run)
    least = [(np.log(_LEAST), np.log(1.0))] * len(SHARED)
    found = minimize(loss, start, method="L-BFGS-B", bounds=least)
    deviations = np.exp(found.x)
    spread = np.sqrt(np.diag(_covariance(shares, stated, deviations, run)))
    fitted = dict(zip(SHARED, deviations.tolist(), strict=True))
    return {**fitted, "tail": _tail(residuals / spread, groups)}


def left_out_report(fit: TrainingFit) -> list[str]:
    """Word the errors of calibration runs whose source was left out, and those with it."""
    residuals = left_out(fit, source_family)
    names = np.array([source_family(training.row) for training in fit.runs])
    experts = np.array([bool(training.row.get("num_experts")) for training in fit.runs])
    groups = {name: names == name for name in dict.fromkeys(names.tolist())}
    groups |= {"all, dense": ~experts, "all, MoE": experts}
    lines = [f"{'left out':<15} {'runs':>4} {'|error| with it':>16} {'without':>8} {'bias':>8}"]
    for name, rows in groups.items():
        within, without = (100.0 * np.expm1(x[rows]) for x in (fit.after, residuals))
        lines.append(
            f"{name:<15} {rows.sum():>4} {np.abs(within).mean():>14.1f} %"
            f" {np.abs(without).mean():>6.1f} % {without.mean():>+6.1f} %"
        )
    return lines


def _tail(scaled: Floats, groups: list[Floats]) -> float:
    """Factor at which 80 % of scaled residuals lie between P10 and P90, every group weighing alike.

    A group of a hundred runs of one source says hardly more of the next source than one of ten.
    """
    weight = np.zeros(len(scaled))
    for group in groups:
        weight[group] = 1.0 / np.sqrt(group.sum())
    order = np.argsort(np.abs(scaled))
    inside = np.cumsum(weight[order]) / weight.sum()
    return float(np.abs(scaled)[order][np.searchsorted(inside, 0.8)] / P90)


def _shares(fit: TrainingFit) -> tuple[Floats, Floats]:
    """Shares of every run that each error bears on, and those times the spread figures state."""
    rows, known = [], []
    for training in fit.runs:
        run = apply(training.run, fit.values)
        estimate = evaluate(run.layout, run.workload, run.cluster, run.software)
        row = bearing(estimate, experts=run.workload.architecture.is_moe)
        before = training.run  # figures that `apply` put in state no spread
        spreads = stated_spreads(before.cluster, before.software, run.workload.recipe)
        rows.append(row)
        known.append(row * np.array([spreads.get(name, 0.0) for name in SHARED]))
    return np.concatenate(rows), np.concatenate(known)


def _covariance(shares: Floats, stated: Floats, deviations: Floats, run: float) -> Floats:
    """Of the residuals of some runs, every one taken for a layout of its own."""
    scaled = shares * deviations
    own = (deviations[-1] ** 2 + run**2) * np.eye(len(shares))
    return np.asarray(scaled @ scaled.T + stated @ stated.T + own)


def _negative_log_likelihood(residuals: Floats, covariance: Floats) -> float:
    """Of jointly normal residuals."""
    root = np.linalg.cholesky(covariance)
    white = np.linalg.solve(root, residuals)
    return float(np.sum(np.log(np.diag(root))) + 0.5 * white @ white)


if __name__ == "__main__":
    found = fit_training()
    print(*report(found), *left_out_report(found), sep="\n")
    print(*(f"{name} = {value:.3g}" for name, value in fit_errors(found).items()), sep="\n")
