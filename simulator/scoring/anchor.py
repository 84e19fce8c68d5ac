"""What one measured run of a site says of the next, larger one: ``predict --anchored-by``.

The measured run is predicted like any other; the ratio of measured to predicted corrects the errors
of the terms that the run exercises, each as far as it may be off (``cost/uncertainty.py``). Nothing
is fitted: where the run says nothing, for instance of links between servers when it had one server,
the prediction stays as it was, and as uncertain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from simulator.answers import Encoded
from simulator.arrays import Floats
from simulator.cost.estimate import Estimate
from simulator.cost.step import evaluate
from simulator.cost.uncertainty import (
    BEARS_ON,
    SHARED,
    Belief,
    bearing,
    belief,
    evidence_spread,
    same_kernels,
)
from simulator.errors import InputError
from simulator.layout.layouts import Layouts
from simulator.measured.checks import readings
from simulator.measured.replay import NotReplayable, Run, load_tables, replay
from simulator.measured.rows import MeasuredRun, read_runs
from simulator.planner.prediction import Prediction
from simulator.records import dataclass
from simulator.scoring.logs import LogComparison
from simulator.search.certainty import Certainty, certainty
from simulator.search.with_failures import priced

_SIZE = ("dp", "global_batch", "shard_group")
"""Fields in which runs of one layout on other numbers of GPUs may differ."""

_EXPERTS, _LINKS = SHARED.index("experts"), SHARED.index("links")
_OWN = [SHARED.index("kernels"), SHARED.index("layout")]
"""Errors that belong to certain shapes or to one layout."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Anchor:
    """One measured run and its prediction."""

    where: str
    """File and line, or file."""
    run: Run
    estimate: Estimate
    """One row."""
    measured_s: float

    @property
    def log_ratio(self) -> float:
        """Logarithm of measured over predicted step time."""
        return float(np.log(self.measured_s / self.estimate.step_time_s[0]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Correction(Encoded):
    """What measured runs make of an estimate."""

    KEYS: ClassVar[tuple[str, ...]] = (
        *("uncorrected_s", "uncorrected_p10_s=uncorrected_span_s.0"),
        *("uncorrected_p90_s=uncorrected_span_s.1", "runs=named_runs", "errors"),
    )

    estimate: Estimate
    """Its terms are corrected."""
    certainty: Certainty
    """Of the corrected step times."""
    factors: Mapping[str, tuple[float, float, float]]
    """By error: the factor on its terms, and the standard deviation of its logarithm before and
    after."""
    uncorrected_s: float
    """Step time before."""
    uncorrected_span_s: tuple[float, float]
    """Its P10 and P90."""
    runs: tuple[tuple[str, float, float], ...]
    """Of every measured run: file and line, measured and predicted step time."""

    @property
    def named_runs(self) -> list[dict[str, Any]]:
        """The runs as JSON says them."""
        keys = ("where", "measured_s", "predicted_s")
        return [dict(zip(keys, run, strict=True)) for run in self.runs]

    @property
    def errors(self) -> dict[str, dict[str, float]]:
        """The factors as JSON says them."""
        keys = ("factor", "spread_before", "spread_after")
        return {name: dict(zip(keys, values, strict=True)) for name, values in self.factors.items()}


def anchors_of_table(path: Path | str) -> tuple[Anchor, ...]:
    """Read measured runs (CSV, the columns of validation/README.md) and predict each.

    Raises
    ------
    InputError
        If the table cannot be used, or a row has no step time or cannot be predicted.
    """
    tables = load_tables()
    found, problems = [], []
    for row in read_runs([path]):
        try:
            found.append(anchor_of_row(row, replay(row.fields, tables, where=row.where)))
        except NotReplayable as error:
            problems.append(f"{row.where}: {error}")
    if problems:
        raise InputError(problems)
    return tuple(found)


def anchor_of_row(row: MeasuredRun, run: Run) -> Anchor:
    """Predict the run of one row of a table.

    Raises
    ------
    InputError
        If the row has no step time.
    """
    measured_s = readings(row).step_time_s
    if measured_s is None:
        raise InputError(f"{row.where}: step_time_s: must be given to anchor a prediction")
    estimate = evaluate(run.layout, run.workload, run.cluster, run.software)
    return Anchor(where=row.where, run=run, estimate=estimate, measured_s=measured_s)


def anchor_of_log(compared: LogComparison) -> Anchor:
    """Take the run of a training log that was compared with its prediction."""
    scenario, estimate = compared.prediction.scenario, compared.prediction.estimate
    run = Run(
        workload=scenario.workload,
        cluster=scenario.cluster,
        software=scenario.software,
        layout=estimate.layouts,
    )
    measured_s = compared.log.median_step_s
    return Anchor(where=compared.log.path, run=run, estimate=estimate, measured_s=measured_s)


def anchored(prediction: Prediction, anchors: Sequence[Anchor]) -> tuple[Prediction, Correction]:
    """Correct a prediction by measured runs of the same device, software and precision.

    Raises
    ------
    InputError
        If a run is of another: it would correct other errors.
    """
    scenario = prediction.scenario
    run = Run(
        workload=scenario.workload,
        cluster=scenario.cluster,
        software=scenario.software,
        layout=prediction.estimate.layouts,
    )
    if problems := [line for anchor in anchors for line in _others(anchor, run)]:
        raise InputError(problems)
    found = correction(prediction.estimate, run, anchors)
    corrected = replace(
        prediction,
        estimate=found.estimate,
        outcome=priced(found.estimate, scenario),
        certainty=found.certainty,
    )
    return corrected, found


def correction(estimate: Estimate, run: Run, anchors: Sequence[Anchor]) -> Correction:
    """Correct the estimate (one row) of a run by measured runs."""
    machine = run.cluster, run.software, run.workload
    target = bearing(estimate, experts=run.workload.architecture.is_moe)
    parts = [_heard(anchor, run) for anchor in anchors]
    heard, others = (np.concatenate(part) for part in zip(*parts, strict=True))
    terms = belief(*machine).log_spread(heard).min()
    wide = max(_wide(estimate, run), *(_wide(anchor.estimate, anchor.run) for anchor in anchors))
    prior = belief(*machine, spread=float(np.sqrt(max(wide**2 - terms**2, 0.0))))
    alone = certainty(estimate, run.workload, run.cluster, run.software)
    target[:, _OWN] = heard[:, _OWN].max(axis=0)
    ratios = np.array([anchor.log_ratio for anchor in anchors])
    posterior = prior.corrected(heard, ratios, others**2 @ np.diag(prior.covariance))
    corrected = correct(estimate, posterior, target)
    return Correction(
        estimate=corrected,
        certainty=certainty(
            corrected, run.workload, run.cluster, run.software, believed=posterior, shares=target
        ),
        factors=_factors(prior, posterior, target),
        uncorrected_s=float(estimate.step_time_s[0]),
        uncorrected_span_s=(float(alone.p10_s[0]), float(alone.p90_s[0])),
        runs=tuple((a.where, a.measured_s, float(a.estimate.step_time_s[0])) for a in anchors),
    )


def _wide(estimate: Estimate, run: Run) -> float:
    """How far off runs near one were, as standard deviation of the logarithm."""
    return float(evidence_spread(estimate, run.workload, run.cluster, run.software)[0])


def _factors(
    prior: Belief, posterior: Belief, shares: Floats
) -> dict[str, tuple[float, float, float]]:
    """Factor and spread of every error that bears on the prediction."""
    before, after = (np.sqrt(np.diag(one.covariance)) for one in (prior, posterior))
    return {
        name: (float(np.exp(posterior.mean[k])), float(before[k]), float(after[k]))
        for k, name in enumerate(SHARED)
        if shares[0, k] > 0.0
    }


def _heard(anchor: Anchor, run: Run) -> tuple[Floats, Floats]:
    """Shares of a measured run that the same errors bear on as on another run, and that others do.

    Experts of another model are others; so are links that never left a fast domain, where the other
    run leaves it. Kernels are the same where ranks compute with the same shapes of one model.
    """
    measured = anchor.run
    shares = bearing(anchor.estimate, experts=measured.workload.architecture.is_moe)
    model = measured.workload.architecture == run.workload.architecture
    others = np.zeros_like(shares)
    if not model:
        others[:, _EXPERTS] = shares[:, _EXPERTS]
    if _inside(measured) and not _inside(run):
        others[:, _LINKS] = shares[:, _LINKS]
    sequence = measured.workload.recipe.sequence_length == run.workload.recipe.sequence_length
    kernels = same_kernels(Layouts.concatenate([measured.layout, run.layout]))
    shapes = model and sequence and bool(kernels[0] == kernels[1])
    heard = shares - others
    heard[:, _OWN] = [shapes, shapes and _alike(measured.layout, run.layout)]
    return heard, others


def _inside(run: Run) -> bool:
    """Whether all accelerators of a run share one fast domain."""
    return run.cluster.gpus <= run.cluster.domain


def _alike(layouts: Layouts, other: Layouts) -> bool:
    """Whether two layouts differ in nothing but the size of the job."""
    left, right = layouts.row(), other.row()
    return all(left[name] == right[name] for name in left if name not in _SIZE)


def _others(anchor: Anchor, run: Run) -> list[str]:
    """Say in what a measured run is of another kind than the one that it is to correct."""
    kinds = (_kinds(anchor.run), _kinds(run))
    return [
        f"{anchor.where}: {name}: must be {wanted} as in the scenario, got {found}"
        for (name, found), wanted in zip(kinds[0].items(), kinds[1].values(), strict=True)
        if found != wanted
    ]


def _kinds(run: Run) -> dict[str, str]:
    return {
        "accelerator": run.cluster.accelerator.name,
        "software": run.software.name,
        "precision": run.workload.recipe.precision,
    }


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
