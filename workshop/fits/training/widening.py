"""Fitting what intervals grow by where no calibration run was alike.

Each cause is left out whole: experts with their source, a kind of work, releases by those that came
after the last that was fitted, types of matrix products of which there are few, frameworks, sizes
beyond the rest. An accelerator left out of the fit still has kernel tables of its own; one that
nobody timed has those of another generation, so its runs are predicted with these. So is a
framework left out still described by its own profile; one that has none has another's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, reduce
from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.cost.step import evaluate
from simulator.cost.uncertainty import OUTSIDE, load_step_errors
from simulator.errors import InputError
from simulator.hardware.accelerator import Accelerator
from simulator.hardware.cluster import load_accelerator
from simulator.measured.replay import NotReplayable, Run, load_tables, replay
from simulator.software.releases import load_releases, stack_of
from workshop.fits.training.fit import TrainingFit, TrainingRun, values_without
from workshop.fits.training.holdout_runs import (
    Unseen,
    error_shares,
    matrix_type,
    predicted,
    source_family,
    without_group,
)

_LENDERS = ("h100-sxm", "a100-sxm-80")
"""Whose kernel tables an accelerator gets that counts as never timed: the first of another
generation."""
STATED = {"compute": 0.29, "attention": 0.35, "memory_bound": 0.25}
"""Spreads that borrowed tables state at the least (profiles that borrow theirs)."""
STAND_INS = {
    "llm-foundry-2023": "torchtitan-2024.12-eager",
    "torchtitan": "llm-foundry-2023",
    "megatron-core": "simumax-megatron-2026",
    "megatron-core-defaults": "nemo-25.02",
    "megatron-lm-2022": "simumax-megatron-2026",
}
"""What one would take for each framework if it had no profile: the nearest of another by how they
shard (FSDP for FSDP, Megatron for Megatron) and whether they compile."""
_FRONTIER = 512
"""Accelerators; runs with more are predicted from those with fewer. A twentieth has more."""


def fit_widening(fit: TrainingFit, newer: Unseen, fitted: Mapping[str, float]) -> dict[str, float]:
    """Fit the factors of :class:`simulator.cost.uncertainty.Widening`.

    Parameters
    ----------
    newer : Unseen
        Runs of releases that came after those of the fit.
    fitted : mapping
        Deviations and ``tail``, as :func:`workshop.fits.training.errors.fit_errors`
        returns them.
    """
    sources = without_group(fit, _source)
    sizes = without_group(fit, lambda training: "large" if _large(training) else "small")
    few = runs_of_types(fit.runs)

    def rare(training: TrainingRun) -> bool:
        return few.get(matrix_type(training), 0) < int(load_step_errors().widening.few_runs)

    def common(training: TrainingRun) -> bool:
        return not _has_experts(training) and not rare(training)

    def experts(training: TrainingRun) -> bool:
        return _has_experts(training) and not rare(training)

    release = _grown(fitted, newer.some(common))
    stacks = without_group(fit, _framework).joined(_unheard(fit, newer, _framework))
    kinds = without_group(fit, _kind).joined(_unheard(fit, newer, _kind))
    software = _grown(fitted, stacks.some(common), by=_framework)
    lent = lent_software(fit, newer).some(common)
    return {
        "kind": _grown(fitted, sources.some(experts), _unheard(fit, newer, _source).some(experts)),
        "work": _grown(fitted, kinds.some(experts)),
        "release": release,
        "software": software,
        "stand_in": _grown(fitted, lent, but=(software,), by=_framework),
        "precision": _grown(fitted, sources.some(rare), newer.some(rare), but=(1.0, release)),
        "scale": _grown(fitted, sizes.some(_large)),
        "device": widening_by_device(untimed_devices(fit.runs), fitted),
    }


def runs_of_types(runs: Sequence[TrainingRun]) -> dict[str, int]:
    """By type of matrix products, how many runs had it."""
    types = [matrix_type(training) for training in runs]
    return {name: types.count(name) for name in sorted(set(types))}


def runs_of_kinds(runs: Sequence[TrainingRun]) -> dict[str, int]:
    """By kind of work, how many runs were of it."""
    kinds = [training.run.workload.kind for training in runs]
    return {name: kinds.count(name) for name in sorted(set(kinds))}


def _unheard(fit: TrainingFit, newer: Unseen, group: Callable[[TrainingRun], str]) -> Unseen:
    """Newer runs, each predicted without the calibration runs of its group."""
    parts = []
    for name in sorted(set(map(group, newer.runs))):
        values = values_without(fit, lambda training, out=name: group(training) == out)  # type: ignore[misc]
        parts.append(predicted([run for run in newer.runs if group(run) == name], values))
    return reduce(Unseen.joined, parts)


def lent_software(fit: TrainingFit, newer: Unseen) -> Unseen:
    """Runs, each predicted as if its framework had no profile: with another's that stands in.

    Calibration runs of its framework are left out of the fit. Runs that the other cannot do stay
    away.
    """
    words, parts = load_tables(), []
    for name, other in STAND_INS.items():
        lent = []
        for one in (*fit.runs, *newer.runs):
            if _framework(one) != name:
                continue
            try:
                run = replay({**one.row.fields, "software": other}, words)
            except (InputError, NotReplayable):
                continue
            lent.append(replace(one, run=run))
        values = values_without(fit, lambda training, out=name: _framework(training) == out)  # type: ignore[misc]
        parts.append(predicted(lent, values))
    return reduce(Unseen.joined, parts)


def _framework(training: TrainingRun) -> str:
    """Of what the row names, whatever stands in for it."""
    return stack_of(_profile_of(training.row.get("software")))


@lru_cache(maxsize=64)
def _profile_of(word: str) -> str:
    return load_releases().nearest(word, where="software").profile


def _source(training: TrainingRun) -> str:
    return source_family(training.row)


def _kind(training: TrainingRun) -> str:
    return training.run.workload.kind


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
        for other in map(load_accelerator, _LENDERS)
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


def _large(training: TrainingRun) -> bool:
    return training.run.cluster.gpus > _FRONTIER


def _has_experts(training: TrainingRun) -> bool:
    return training.run.workload.architecture.is_moe


def _grown(
    fitted: Mapping[str, float],
    *parts: Unseen,
    but: Sequence[float] | None = None,
    by: Callable[[TrainingRun], str] | None = None,
) -> float:
    """Factor with which 80 % of some runs lie inside, shrunk by one group that shows nothing.

    `but` are factors that the runs of each part have for another cause, `by` says what is a group.
    """
    other = but or [1.0] * len(parts)
    ratios = np.concatenate(
        [
            np.sqrt(np.maximum(part.over_reach(fitted) ** 2 - (factor**2 - 1.0), 0.0))
            for part, factor in zip(parts, other, strict=True)
        ]
    )
    groups = {group for part in parts for group in part.groups(by)}
    weights = np.concatenate([part.weights(by) for part in parts])
    return _shrunk(_quantile(ratios, weights), len(groups))


def widening_by_device(unseen: Unseen, fitted: Mapping[str, float]) -> float:
    """Fit the factor of devices, each weighing as much: what is asked is one more of them."""
    names = [training.run.cluster.accelerator.name for training in unseen.runs]
    weights = np.array([1.0 / names.count(name) for name in names])
    ratios = unseen.over_reach(fitted, STATED)
    return _shrunk(_quantile(ratios, weights), len(set(names)))


def _shrunk(ratio: float, groups: int) -> float:
    """A factor that `groups` groups showed, and one more did not; intervals never shrink."""
    return float(max(ratio, 1.0) ** (groups / (groups + 1.0)))


def _quantile(ratios: Floats, weights: Floats) -> float:
    """The weighted quantile that P10 to P90 is to hold; 1 of nothing."""
    if not len(ratios):
        return 1.0
    order = np.argsort(ratios, kind="stable")
    reached = np.cumsum(weights[order])
    return float(ratios[order][int(np.searchsorted(reached, (1.0 - OUTSIDE) * reached[-1]))])
