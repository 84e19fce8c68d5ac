"""Measured runs that a fit did not see, how far off they are, and what every error bears on."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simulator import catalogue
from simulator.arrays import Floats
from simulator.cost.estimate import Estimate
from simulator.cost.step import evaluate
from simulator.cost.uncertainty import SHARED, bearing
from simulator.errors import InputError
from simulator.measured.checks import readings
from simulator.measured.replay import NotReplayable, load_tables, replay
from simulator.measured.rows import MeasuredRun, flag, read_runs
from workshop.fits.training.fit import TrainingFit, TrainingRun, apply, left_out


def source_family(row: MeasuredRun) -> str:
    """Return the source of a run without its release: what is left out of the fit together."""
    return row.get("source").partition("-")[0]


def matrix_type(training: TrainingRun) -> str:
    """Type of a run's GEMMs."""
    return training.run.workload.recipe.matrix_type


def error_shares(estimates: Sequence[Estimate], runs: Sequence[TrainingRun]) -> Floats:
    """Shares of every run that each error bears on; one row a run, columns SHARED.

    Those of ``kernels`` and ``layout`` are one: which runs share them, is another's to know.
    """
    pairs = zip(estimates, runs, strict=True)
    rows = [bearing(e, experts=t.run.workload.architecture.is_moe) for e, t in pairs]
    shares = np.concatenate(rows)
    shares[:, -2:] = 1.0
    return shares


def scaled(deviations: Floats, tails: Mapping[str, float]) -> Floats:
    """Deviations of SHARED with their tails, as :func:`simulator.cost.uncertainty.belief` does."""
    factors = np.full(len(SHARED), tails["tail"])
    factors[SHARED.index("links")] = tails["links_tail"]
    return np.asarray(deviations * factors)


@dataclass(frozen=True, slots=True)
class Unseen:
    """Runs that no figure was fitted to, by the way in which they were kept out."""

    runs: Sequence[TrainingRun]
    errors: Floats
    """log(predicted / measured)."""
    shares: Floats
    """See :func:`error_shares`."""

    def some(self, wanted: Callable[[TrainingRun], bool]) -> Unseen:
        """Those of a kind."""
        rows = [i for i, training in enumerate(self.runs) if wanted(training)]
        return Unseen([self.runs[i] for i in rows], self.errors[rows], self.shares[rows])

    def joined(self, other: Unseen) -> Unseen:
        """These, then others."""
        runs = [*self.runs, *other.runs]
        errors = np.concatenate([self.errors, other.errors])
        return Unseen(runs, errors, np.concatenate([self.shares, other.shares]))

    def groups(self, by: Callable[[TrainingRun], str] | None = None) -> list[Hashable]:
        """Of every run, what it shares its fortune with: its source and GPU, or what is given."""
        if by is not None:
            return [by(training) for training in self.runs]
        return [(source_family(training.row), training.row.get("gpu")) for training in self.runs]


def without_group(fit: TrainingFit, group: Callable[[TrainingRun], str]) -> Unseen:
    """Calibration runs, each predicted with its whole group left out of the fit."""
    names = {id(training.row): group(training) for training in fit.runs}
    errors = left_out(fit, lambda row: names[id(row)])
    estimates = [_estimate(training, fit.values) for training in fit.runs]
    return Unseen(fit.runs, errors, error_shares(estimates, fit.runs))


def kept_back(*tables: str, values: Mapping[str, float] | None = None) -> Unseen:
    """Rows of tables of ``validation/runs`` that no figure was fitted to, as the profiles predict.

    With `values` of parameters of the fit, as those predict. Rows that are excluded, composed,
    without a step time or refused are left away.
    """
    words, runs = load_tables(), []
    for row in read_runs([catalogue.folder("validation") / "runs" / name for name in tables]):
        if row.get("excluded") or flag(row.fields, "composed"):
            continue
        try:
            step_s = readings(row).step_time_s
            run = replay(row.fields, words, where=row.where)
        except (InputError, NotReplayable):
            continue
        if step_s is not None:
            runs.append(TrainingRun(row=row, run=run, step_s=step_s))
    return predicted(runs, values or {})


def predicted(runs: Sequence[TrainingRun], values: Mapping[str, float]) -> Unseen:
    """Runs as these values of parameters of the fit predict them; of those not given, profiles."""
    estimates = [_estimate(training, values) for training in runs]
    ratios = [e.step_time_s[0] / t.step_s for e, t in zip(estimates, runs, strict=True)]
    return Unseen(runs, np.log(np.array(ratios)), error_shares(estimates, runs))


def _estimate(training: TrainingRun, values: Mapping[str, float]) -> Estimate:
    """The prediction of a run, with values of parameters put in place of what profiles hold."""
    run = apply(training.run, values) if values else training.run
    return evaluate(run.layout, run.workload, run.cluster, run.software)
