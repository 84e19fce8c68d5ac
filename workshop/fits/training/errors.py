"""Fitting how far step times are off: standard deviations of errors by what they belong to.

The residuals are those of runs that no figure was fitted to, because one that was says little about
the next: calibration runs whose whole source was left out of the fit (``fit_training.left_out``),
and those of releases and sites that came after it (``second_calibrate.csv``). Runs of one source
on one device share the errors of its terms, those of one model that of its experts, those whose
ranks compute with the same shapes that of their kernels, those of one layout on several sizes of a
cluster that of the layout: their residuals are jointly normal. Maximum likelihood, with a weak
prior on every deviation; then one factor for the tails, and one for those of links, with which the
residuals have the best interval score.

``python -m workshop.fits.training.errors`` takes the figures of training that the
profiles hold (three to five minutes) and writes ``hardware_profiles/uncertainty/step.toml`` again,
the errors of groups left out and the table of measured runs. These spreads say what a ranking of
layouts is worth and what a measured run corrects; how wide an interval is, follows from the errors
of measured runs near (``workshop/cases/interval_fit.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np
import tomlkit

from simulator import catalogue
from simulator.arrays import Bools, Floats
from simulator.cost.uncertainty import SHARED, load_step_errors
from simulator.measured.rows import MeasuredRun
from simulator.units import P90
from workshop.cases.interval_fit import interval_scores
from workshop.fits.training.fit import TrainingFit, TrainingRun, as_shipped
from workshop.fits.training.holdout_runs import (
    Unseen,
    kept_back,
    matrix_type,
    scaled,
    source_family,
    without_group,
)
from workshop.fits.training.holdout_table import write_left_out
from workshop.fits.training.ledger import write_ledger, write_rules

_PRIOR_SD = 0.15
"""Standard deviation of the half-normal prior of every deviation: few terms are off by more."""
_LEAST = 1e-3
_MOST_OFF = 0.4
"""Residuals beyond this count as this: single runs of which nobody knows what happened."""
_TAILS = np.linspace(0.3, 2.0, 86)
_LINKS_TAILS = np.linspace(0.5, 6.0, 23)
_SHAPES = (
    *("tp", "sequence_parallel", "cp", "ep", "etp", "micro_batch", "recompute"),
    *("recompute_layers", "recompute_modules", "precision", "seq_len"),
)
"""Columns of the table of runs that decide which shapes a rank computes with."""
_SPLIT = (*_SHAPES, "pp", "vpp", "sharding", "software")
"""Columns in which runs of one layout agree."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Runs of one source on one device; residuals of different groups are independent."""

    residuals: Floats
    parts: Floats
    """By error (SHARED): the product of the shares of every pair of runs that share it."""

    @property
    def own(self) -> Floats:
        """Squares of every run's shares: a row a run, a column an error."""
        return np.asarray(np.diagonal(self.parts, axis1=1, axis2=2).T)

    def covariance(self, deviations: Floats, run: float) -> Floats:
        """Of the residuals."""
        tensordot = np.tensordot(deviations**2, self.parts, axes=1)
        return np.asarray(tensordot + run**2 * np.eye(len(self.residuals)))

    def loss(self, deviations: Floats, run: float) -> float:
        """Negative logarithm of the likelihood."""
        root = np.linalg.cholesky(self.covariance(deviations, run))
        white = np.linalg.solve(root, np.clip(self.residuals, -_MOST_OFF, _MOST_OFF))
        return float(np.sum(np.log(np.diag(root))) + 0.5 * white @ white)


def fit_errors(*unseen: Unseen) -> dict[str, float]:
    """Fit the figures of ``hardware_profiles/uncertainty/step.toml``, tails too.

    Parameters
    ----------
    unseen : Unseen
        Runs that no figure was fitted to; runs of one source and device that were kept out in
        different ways are groups of their own.

    Notes
    -----
    How far two runs alike are apart (``run``) is measured, not fitted: it is part of what each
    run has of its own, the rest of which is the layout's.
    """
    return _fitted(_groups(*unseen))


def covered(runs: Sequence[TrainingRun]) -> dict[str, tuple[str, ...]]:
    """By accelerator, the types of GEMMs that some runs had."""
    found: dict[str, set[str]] = {}
    for run in runs:
        found.setdefault(run.run.cluster.accelerator.name, set()).add(matrix_type(run))
    return {name: tuple(sorted(types)) for name, types in sorted(found.items())}


def _fitted(groups: Sequence[_Group]) -> dict[str, float]:
    from scipy.optimize import minimize  # type: ignore[import-untyped, unused-ignore]

    run = float(load_step_errors().run)

    def loss(at: Floats) -> float:
        deviations = np.exp(at)
        prior = 0.5 * float(np.sum((deviations / _PRIOR_SD) ** 2))
        return prior + sum(group.loss(deviations, run) for group in groups)

    start = np.full(len(SHARED), np.log(0.03))
    least = [(np.log(_LEAST), np.log(1.0))] * len(SHARED)
    deviations = np.exp(minimize(loss, start, method="L-BFGS-B", bounds=least).x)
    tails = [{"tail": a, "links_tail": b} for a in _TAILS.tolist() for b in _LINKS_TAILS.tolist()]
    best = min(tails, key=lambda some: _score(groups, scaled(deviations, some), run)[0])
    return {**dict(zip(SHARED, deviations.tolist(), strict=True)), **best}


def _score(groups: Sequence[_Group], deviations: Floats, run: float) -> tuple[float, float]:
    """Mean interval score and share inside P10 to P90, a group of n runs weighing as root n.

    A group of a hundred runs of one source says hardly more of the next source than one of ten.
    """
    total = inside = weight = 0.0
    for group in groups:
        reach = P90 * np.sqrt(group.own @ deviations**2 + run**2)
        ratio = np.exp(group.residuals)
        low, high = ratio * np.exp(-reach), ratio * np.exp(reach)
        each = 1.0 / np.sqrt(len(ratio))
        total += each * float(np.sum(interval_scores(low, high)))
        inside += each * float(np.sum((low <= 1.0) & (high >= 1.0)))
        weight += each * len(ratio)
    return total / weight, inside / weight


def _groups(*unseen: Unseen) -> list[_Group]:
    """Residuals of runs that no figure was fitted to, and what every error bears on them.

    Spreads that figures state are not taken off: with them, intervals of runs whose device no other
    source has were too wide, and their score worse.
    """
    return [group for one in unseen for group in _groups_of(one)]


def _groups_of(unseen: Unseen) -> Iterator[_Group]:
    labels = unseen.groups()
    for label in dict.fromkeys(labels):
        some = [i for i, other in enumerate(labels) if other == label]
        rows = [unseen.runs[i].row for i in some]
        same = {
            "experts": _same(rows, ("model",)),
            "kernels": _same(rows, ("model", *_SHAPES)),
            "layout": _same(rows, ("model", *_SPLIT)),
        }
        parts = [np.outer(column, column) for column in unseen.shares[some].T]
        for name, pairs in same.items():
            parts[SHARED.index(name)] *= pairs
        yield _Group(unseen.errors[some], np.stack(parts))


def _same(rows: Sequence[MeasuredRun], columns: Sequence[str]) -> Bools:
    """Which pairs of rows agree in some columns."""
    keys = [tuple(row.get(name) for name in columns) for row in rows]
    return np.array([[one == other for other in keys] for one in keys])


def left_out_report(fit: TrainingFit, residuals: Floats) -> list[str]:
    """Word the errors of calibration runs whose source was left out, and those with it."""
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


def with_deviations(
    text: str,
    fitted: Mapping[str, float],
    runs: Sequence[TrainingRun],
) -> str:
    """Return the text of ``step.toml`` with fitted deviations and what calibration runs had."""
    document = tomlkit.parse(text)
    for name, value in fitted.items():
        document[name]["value"] = float(f"{value:.3g}")
    document["covered"] = {name: list(found) for name, found in covered(runs).items()}
    document["sources"]["left_out"]["date"] = f"{date.today()}"
    return tomlkit.dumps(document)


def main() -> None:
    """Fit again, print how far left-out sources are off, and write profile and evidence."""
    shipped = as_shipped()
    unseen = without_group(shipped, lambda training: source_family(training.row))
    newer = kept_back("second_calibrate.csv")
    print(*left_out_report(shipped, unseen.errors), sep="\n", flush=True)
    path = catalogue.find("uncertainty", "step")
    fitted = fit_errors(unseen, newer)
    text = with_deviations(path.read_text(encoding="utf-8"), fitted, shipped.runs)
    path.write_text(text, encoding="utf-8")
    for name, value in fitted.items():
        print(f"deviation {name} = {value:.3g}")
    print("written:", write_left_out(shipped))
    names = [training.row.get("run_id") for training in unseen.runs]
    print("written:", path, write_ledger(dict(zip(names, np.expm1(unseen.errors), strict=True))))
    print("fitted:", write_rules())


if __name__ == "__main__":
    main()
