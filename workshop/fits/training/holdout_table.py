"""Writing ``hardware_profiles/uncertainty/left_out.csv``: groups of runs that no fit has seen.

Errors with the group left out of the fit of training figures, and how many of these runs lie inside
the P10 to P90 that the other groups give them.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator import catalogue
from simulator.arrays import Floats
from simulator.cost.uncertainty import interval_scores, load_step_errors
from simulator.software.releases import stack_of
from workshop.cases.holdout_groups import COLUMNS, TABLE
from workshop.fits.training.fit import TrainingFit, TrainingRun, values_without
from workshop.fits.training.holdout_runs import (
    Unseen,
    kept_back,
    matrix_type,
    source_family,
    without_group,
)
from workshop.fits.training.widening import STATED, untimed_devices, widening_by_device

_LATER = "megatron-bridge-26"
"""Words of releases that came after those that figures are fitted to here."""
_TABLES = ("test.csv", "second_calibrate.csv", "second_test.csv")
_WIDTHS = np.linspace(0.01, 0.6, 296)
_ALL = "all"

Group = Callable[[TrainingRun], str]
Refit = Callable[[Callable[[TrainingRun], bool]], Mapping[str, float]]
"""Deviations and ``tail`` fitted to the runs that are asked for."""


def write_left_out(fit: TrainingFit, fitted: Mapping[str, float], refit: Refit) -> Path:
    """Write the table anew and return its path; see :func:`left_out_lines`."""
    path = catalogue.folder("hardware_profiles") / TABLE
    lines = list(left_out_lines(fit, fitted, refit))
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(lines)
    return path


def left_out_lines(
    fit: TrainingFit, fitted: Mapping[str, float], refit: Refit
) -> Iterator[dict[str, Any]]:
    """Score every group in turn, and all of a kind together.

    Parameters
    ----------
    fitted : mapping
        Deviations and ``tail`` of all runs.
    refit : callable
        The same of some runs alone.
    """
    yield from _each("source", without_group(fit, _source), _source, refit)
    yield from _each("framework", without_group(fit, _stack), _stack, refit)
    yield from _each("generation", without_group(fit, _generation), _generation, refit)
    yield from _releases(fit, fitted)
    yield from _devices(fit, fitted)


def _source(training: TrainingRun) -> str:
    return source_family(training.row)


def _stack(training: TrainingRun) -> str:
    return stack_of(training.run.software.name)


def _generation(training: TrainingRun) -> str:
    """Of the device; Grace beside it or not, the chip is the same."""
    return training.run.cluster.accelerator.generation.partition("-")[0]


def _release(training: TrainingRun) -> str:
    return training.row.get("software")


def _device(training: TrainingRun) -> str:
    return training.run.cluster.accelerator.name


def _each(what: str, unseen: Unseen, group: Group, refit: Refit) -> Iterator[dict[str, Any]]:
    """Groups whose deviations are fitted to the others."""
    names = np.array([group(training) for training in unseen.runs])
    reach, grown = np.zeros(len(names)), _grown(unseen.runs, ("kind",))
    for name in dict.fromkeys(names.tolist()):
        found = refit(lambda training, out=name: group(training) != out)  # type: ignore[misc]
        reach[names == name] = unseen.reach(found, grown=grown)[names == name]
    yield from _lines(what, unseen, names, reach)


def _releases(fit: TrainingFit, fitted: Mapping[str, float]) -> Iterator[dict[str, Any]]:
    """Runs of later releases, on both sides, predicted from the earlier ones."""

    def later(training: TrainingRun) -> bool:
        return _release(training).startswith(_LATER)

    seen = without_group(fit, lambda training: "later" if later(training) else "")
    values = values_without(fit, later)
    unseen = seen.some(later).joined(kept_back(*_TABLES, values=values).some(later))
    names = np.array([_release(training) for training in unseen.runs])
    grown = _grown(unseen.runs, ("kind", "precision", "release"))
    reach = unseen.reach(fitted, grown=grown)
    yield from _lines("release", unseen, names, reach)


def _devices(fit: TrainingFit, fitted: Mapping[str, float]) -> Iterator[dict[str, Any]]:
    unseen = untimed_devices(fit.runs)
    names = np.array([_device(training) for training in unseen.runs])
    reach = np.zeros(len(names))
    for name in dict.fromkeys(names.tolist()):
        others = unseen.some(lambda training, out=name: _device(training) != out)  # type: ignore[misc]
        wider = unseen.reach(fitted, STATED, grown=widening_by_device(others, fitted))
        reach[names == name] = wider[names == name]
    yield from _lines("device", unseen, names, reach)


def _grown(runs: Sequence[TrainingRun], causes: Sequence[str]) -> Floats:
    """Factors on the widths of some runs, of causes that this leaving out does not replace."""
    widening, few = load_step_errors().widening, load_step_errors().runs_of_types

    def factor(training: TrainingRun) -> float:
        unlike = {
            "kind": _has_experts(training),
            "precision": few.get(matrix_type(training), 0) < widening.few_runs,
            "release": True,
        }
        some = [float(getattr(widening, name)) for name in causes if unlike[name]]
        return float(np.sqrt(1.0 + sum(value**2 - 1.0 for value in some)))

    return np.array([factor(training) for training in runs])


def _lines(what: str, unseen: Unseen, names: Any, reach: Floats) -> Iterator[dict[str, Any]]:
    """A line for every group, and one for all, beside one width that is best for the others."""
    ratio, weight = np.exp(unseen.errors), unseen.weights()
    low, high = ratio * np.exp(-reach), ratio * np.exp(reach)
    alike = np.zeros(len(names))
    for name in dict.fromkeys(names.tolist()):
        out = names == name
        rest = ~out if not out.all() else out
        scores = [np.average(_constant(ratio[rest], w), weights=weight[rest]) for w in _WIDTHS]
        alike[out] = _constant(ratio[out], float(_WIDTHS[int(np.argmin(scores))]))
    ours, inside = interval_scores(low, high), (low <= 1.0) & (high >= 1.0)
    experts = np.array([_has_experts(training) for training in unseen.runs])
    for name in (*dict.fromkeys(names.tolist()), _ALL):
        rows = names == name if name != _ALL else np.full(len(names), True)
        yield {
            "left_out": what,
            "group": name,
            "runs": int(rows.sum()),
            **_by_kind(ratio[rows], experts[rows]),
            "mape": f"{np.abs(ratio[rows] - 1.0).mean():.4f}",
            "bias": f"{(ratio[rows] - 1.0).mean():.4f}",
            "inside": f"{inside[rows].mean():.4f}",
            "score": f"{ours[rows].mean():.4f}",
            "constant_score": f"{alike[rows].mean():.4f}",
        }


def _by_kind(ratio: Floats, experts: NDArray[np.bool_]) -> dict[str, Any]:
    """Runs and errors of dense models and of models with experts; blank where there are none."""
    found: dict[str, Any] = {}
    for kind, rows in (("dense", ~experts), ("expert", experts)):
        error = f"{np.abs(ratio[rows] - 1.0).mean():.4f}" if rows.any() else ""
        found |= {f"{kind}_runs": int(rows.sum()), f"{kind}_mape": error}
    return found


def _has_experts(training: TrainingRun) -> bool:
    return bool(training.run.workload.architecture.is_moe)


def _constant(ratio: Floats, width: float) -> Floats:
    """Scores of intervals that reach as far for every run."""
    return interval_scores(ratio * np.exp(-width), ratio * np.exp(width))
