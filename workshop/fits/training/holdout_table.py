"""Writing ``hardware_profiles/uncertainty/left_out.csv``: groups of runs that no fit has seen.

Errors with the group left out of the fit of training figures. What intervals hold on tables left
out is in ``workshop/cases/intervals_left_out.py``.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator import catalogue
from simulator.arrays import Floats
from simulator.cost.step import evaluate
from simulator.hardware.accelerator import Accelerator
from simulator.hardware.cluster import load_accelerator
from simulator.measured.replay import Run
from simulator.software.releases import stack_of
from workshop.cases.holdout_groups import COLUMNS, TABLE
from workshop.facts import facts
from workshop.fits.training.fit import TrainingFit, TrainingRun, values_without
from workshop.fits.training.holdout_runs import (
    Unseen,
    error_shares,
    kept_back,
    source_family,
    without_group,
)

_TABLES = ("test.csv", "second_calibrate.csv", "second_test.csv")
_ALL = "all"

Group = Callable[[TrainingRun], str]


def write_left_out(fit: TrainingFit) -> Path:
    """Write the table anew and return its path; see :func:`left_out_lines`."""
    path = catalogue.folder("hardware_profiles") / TABLE
    lines = list(left_out_lines(fit))
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(lines)
    return path


def left_out_lines(fit: TrainingFit) -> Iterator[dict[str, Any]]:
    """Score every group in turn, and all of a kind together."""
    for what, group in (("source", _source), ("framework", _stack), ("generation", _generation)):
        yield from _lines(what, without_group(fit, group), group)
    yield from _lines("release", _later_releases(fit), _release)
    yield from _lines("device", untimed_devices(fit.runs), _device)


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


def _later_releases(fit: TrainingFit) -> Unseen:
    """Runs of later releases, on both sides, predicted from the earlier ones."""

    def later(training: TrainingRun) -> bool:
        return _release(training).startswith(facts(__file__, "holdout")["later"])

    seen = without_group(fit, lambda training: "later" if later(training) else "")
    values = values_without(fit, later)
    return seen.some(later).joined(kept_back(*_TABLES, values=values).some(later))


def untimed_devices(runs: Sequence[TrainingRun]) -> Unseen:
    """Runs, each predicted as if nobody had timed a kernel of its accelerator's generation."""
    lent = [lent_kernels(training.run) for training in runs]
    estimates = [evaluate(run.layout, run.workload, run.cluster, run.software) for run in lent]
    ratios = [e.step_time_s[0] / t.step_s for e, t in zip(estimates, runs, strict=True)]
    return Unseen(runs, np.log(np.array(ratios)), error_shares(estimates, runs))


def lent_kernels(run: Run) -> Run:
    """Give a run's accelerator the kernel tables of another generation; peaks and memory stay.

    A type that the lender has no table of takes that of its 16-bit products.
    """
    group = run.cluster.groups[0]
    accelerator = group.accelerator
    lender = next(
        other
        for other in map(load_accelerator, facts(__file__, "holdout")["lenders"])
        if other.generation != accelerator.generation
    )
    libraries = {
        name: _lent_types(table, lender.gemm[name])
        for name, table in accelerator.gemm.items()
        if name in lender.gemm
    }
    changed: Accelerator = replace(
        accelerator,
        gemm=libraries or accelerator.gemm,
        attention={**accelerator.attention, **lender.attention},
        stream=lender.stream,
    )
    cluster = replace(run.cluster, groups=(replace(group, accelerator=changed),))
    return replace(run, cluster=cluster)


def _lent_types(own: Mapping[str, Any], lender: Mapping[str, Any]) -> dict[str, Any]:
    rest = {name: lender["bf16"] for name in own if name not in lender and "bf16" in lender}
    return {**lender, **rest}


def _lines(what: str, unseen: Unseen, group: Group) -> Iterator[dict[str, Any]]:
    """A line for every group, and one for all."""
    names = np.array([group(training) for training in unseen.runs])
    ratio = np.exp(unseen.errors)
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
