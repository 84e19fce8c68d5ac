"""Fitting what only whole training steps show: figures of the profiles that name this module.

A kernel that is timed alone has a clock and a memory to itself that training does not grant it.
The few figures that training moves are fitted here to step times of calibration runs, each held by
a prior: what kernels alone show, and how far training may be from that. Every other figure stays
as the profiles have it. Priors are written down (``parameters.py``), not read from the
profiles, so that a second fit starts where the first one did.

``python -m workshop.fits.training.fit`` prints the figures and the errors they
leave.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator import catalogue
from simulator.arrays import Floats
from simulator.calibration.least_squares import Prior
from simulator.cost.step import evaluate
from simulator.errors import InputError
from simulator.files import Figure, with_figure
from simulator.hardware.cluster import load_accelerator, load_library
from simulator.measured.replay import Run, Tables, load_tables, replay
from simulator.measured.rows import MeasuredRun, number, read_runs
from simulator.software.profile import load_software
from workshop.facts import facts
from workshop.fits.fitting.gauss_newton import curvature, descend, soft_weights
from workshop.fits.training.parameters import PARAMETERS, Parameter

SPLIT = "calibrate"
"""The only split whose rows may move a figure."""

_CLUSTERS = tuple(facts(__file__)["clusters"])
"""Clusters whose steps the fit uses; of B300 there are two rows."""
_ALIKE = (
    *("source", "software", "gpu", "precision"),
    *("seq_len", "micro_batch", "tp", "pp", "recompute"),
)
"""What rows share that differ in little but their number of accelerators."""

_LOADERS: dict[str, Callable[[str], Any]] = {
    "accelerators": load_accelerator,
    "collectives": load_library,
    "software": load_software,
}
_SOFT_L1 = 0.04
_STEP = 0.1
_MANY = 4
_SAME = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingRun:
    """One row of the table, ready to be predicted."""

    row: MeasuredRun
    run: Run
    step_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingFit:
    """Fitted parameters, and log(predicted / measured) of every run before and after."""

    values: dict[str, float]
    runs: tuple[TrainingRun, ...]
    before: Floats
    """With every parameter at its prior."""
    after: Floats
    slopes: Floats
    """Change of log(predicted) of every run (rows) by one prior width of a parameter (columns)."""
    offsets: Floats
    """Fitted parameters, in prior widths from the prior."""
    bounds: tuple[Floats, Floats]
    """Least and largest values of `offsets`."""

    def figures(self) -> dict[str, dict[str, float]]:
        """Return the figures to put into the profiles: by profile, by dotted name."""
        found: dict[str, dict[str, float]] = {}
        for name, parameter in PARAMETERS.items():
            for figure, ratio in parameter.figures.items():
                value = float(f"{ratio * self.values[name]:.{parameter.digits}g}")
                for profile in parameter.profiles:
                    found.setdefault(profile, {})[figure] = value
        return found


def choose(path: Path | str) -> list[TrainingRun]:
    """Pick the runs of a table that the fit uses.

    Of rows that differ in little but the number of accelerators (`_ALIKE`) that of middle size
    counts, and the smallest and the largest one too where there are more than four: weak scaling
    repeats one layout many times.

    Raises
    ------
    InputError
        If any row of the table, used or not, belongs to another split than ``calibrate``.
    """
    rows = read_runs([path])
    wrong = [row for row in rows if row.get("split") != SPLIT]
    if wrong:
        raise InputError(
            f"{wrong[0].where}: split: must be {SPLIT!r}: nothing is ever fitted to other rows,"
            f" got {wrong[0].get('split')!r} ({len(wrong)} such rows)"
        )
    tables = load_tables()
    alike: dict[tuple[str, ...], list[MeasuredRun]] = {}
    for row in rows:
        known = tables.clusters.get(row.get("gpu")) in _CLUSTERS
        if known and row.get("step_time_s") and row.get("cp") in ("", "1"):
            model = row.get("model")
            model = model.rpartition("-l")[0] if _is_proxy(model) else model
            key = (model, *(row.get(name) for name in _ALIKE))
            alike.setdefault(key, []).append(row)
    chosen = [row for some in alike.values() for row in _thin(some)]
    return [_training_run(row, tables) for row in chosen]


def _is_proxy(model: str) -> bool:
    """Whether a name ends in ``-lN``: a model cut to N layers."""
    return model.rpartition("-l")[2].isdigit()


def _thin(rows: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    by_size = sorted(rows, key=lambda row: int(row.get("num_gpus")))
    middle = [by_size[len(by_size) // 2]]
    return [by_size[0], *middle, by_size[-1]] if len(by_size) > _MANY else middle


def _training_run(row: MeasuredRun, tables: Tables) -> TrainingRun:
    run = replay(row.fields, tables, where=row.where)
    return TrainingRun(row=row, run=run, step_s=number(row.fields, "step_time_s"))


def apply(run: Run, values: Mapping[str, float]) -> Run:
    """Return the run with every figure of a parameter set, whatever its profile says."""
    group, library, software = run.cluster.groups[0], run.cluster.library, run.software
    accelerator = group.accelerator
    for name, value in values.items():
        parameter = PARAMETERS[name]
        for figure, ratio in parameter.figures.items():
            path = figure.split(".")
            if parameter.reaches(accelerator.name):
                accelerator = _put(accelerator, path, ratio * value)
            elif parameter.reaches(library.name):
                library = _put(library, path, ratio * value)
            elif parameter.reaches(software.name):
                software = _put(software, path, ratio * value)
    group = dataclasses.replace(group, accelerator=accelerator)
    cluster = dataclasses.replace(run.cluster, groups=(group,), library=library)
    return dataclasses.replace(run, cluster=cluster, software=software)


def _put(record: Any, path: Sequence[str], value: float) -> Any:
    return with_figure(record, ".".join(path), Figure(value, "fitted", "fit_training"))


def fit_training(path: Path | str | None = None, *, processes: int | None = None) -> TrainingFit:
    """Fit every parameter to the calibration runs of a table; the shipped one by default.

    Least squares on log(predicted / measured) with a soft loss (an error beyond 4 % weighs less
    and less), and one squared term for each prior. Runs are predicted in so many `processes` (one
    for each core unless given); the result does not depend on it.
    """
    runs = choose(path or catalogue.folder("validation") / "runs" / "calibrate.csv")
    start = np.array([_widths(p.prior, p.start or p.prior.value) for p in PARAMETERS.values()])
    with _Predictor(runs, processes or os.cpu_count() or 1) as predictor:
        before = predictor.errors(np.zeros(len(PARAMETERS)))
        found = descend(predictor.errors, predictor.slopes, start, _bounds(), soft=_SOFT_L1)
    return TrainingFit(
        values=_values(found.at),
        runs=tuple(runs),
        before=before,
        after=found.errors,
        slopes=found.slopes,
        offsets=found.at,
        bounds=_bounds(),
    )


def as_shipped(path: Path | str | None = None, *, processes: int | None = None) -> TrainingFit:
    """Take the figures that the profiles hold for the fit: nothing is fitted, only differentiated.

    Much faster than a fit; how far left-out sources are off follows from it as well.
    """
    runs = choose(path or catalogue.folder("validation") / "runs" / "calibrate.csv")
    held = []
    for parameter in PARAMETERS.values():
        figure, ratio = next(iter(parameter.figures.items()))
        value = _shipped(parameter.profiles[0], figure.split("."))
        held.append(_widths(parameter.prior, value / ratio))
    at = np.array(held)
    with _Predictor(runs, processes or os.cpu_count() or 1) as predictor:
        before, after = (predictor.errors(x) for x in (np.zeros(len(at)), at))
        slopes = predictor.slopes(at, after)
    return TrainingFit(
        values=_values(at),
        runs=tuple(runs),
        before=before,
        after=after,
        slopes=slopes,
        offsets=at,
        bounds=_bounds(),
    )


def _values(at: Floats) -> dict[str, float]:
    """Parameters that are so many prior widths from their priors."""
    found = {}
    for (name, parameter), offset in zip(PARAMETERS.items(), at.tolist(), strict=True):
        prior = parameter.prior
        found[name] = prior.decode(prior.encode(prior.value) + prior.width * offset)
    return found


class _Predictor:
    """Errors of the runs, and their slopes, on several processes: each run is predicted alone."""

    def __init__(self, runs: Sequence[TrainingRun], processes: int) -> None:
        self._runs = runs
        self._reached = [
            [i for i, training in enumerate(runs) if _reached(parameter, training.run)]
            for parameter in PARAMETERS.values()
        ]
        self._pool = Pool(processes, _keep, (runs,)) if processes > 1 else None
        if self._pool is None:
            _keep(runs)

    def __enter__(self) -> _Predictor:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.terminate()

    def errors(self, at: Floats) -> Floats:
        """log(predicted / measured) of every run."""
        values = _values(at)
        return np.array(self._map([(values, i) for i in range(len(self._runs))]))

    def slopes(self, at: Floats, errors: Floats) -> Floats:
        """Move one parameter at a time; runs that it does not reach stay as they are."""
        jobs = []
        for k, rows in enumerate(self._reached):
            moved = at.copy()
            moved[k] += _STEP
            values = _values(moved)
            jobs += [(values, i) for i in rows]
        found, there = np.zeros((len(self._runs), len(at))), iter(self._map(jobs))
        for k, rows in enumerate(self._reached):
            for i in rows:
                found[i, k] = (next(there) - errors[i]) / _STEP
        return found

    def _map(self, jobs: list[tuple[dict[str, float], int]]) -> list[float]:
        if self._pool is None:
            return [_error(job) for job in jobs]
        return self._pool.map(_error, jobs, chunksize=8)


_kept: list[TrainingRun] = []
"""Runs of the fit, in every process that predicts them."""


def _keep(runs: Sequence[TrainingRun]) -> None:
    _kept[:] = runs


def _error(job: tuple[Mapping[str, float], int]) -> float:
    """log(predicted / measured) of one kept run with these parameters."""
    values, index = job
    training = _kept[index]
    run = apply(training.run, values)
    estimate = evaluate(run.layout, run.workload, run.cluster, run.software)
    return float(np.log(float(estimate.step_time_s[0]) / training.step_s))


def _bounds() -> tuple[Floats, Floats]:
    """Least and largest offset of every parameter."""
    priors = [parameter.prior for parameter in PARAMETERS.values()]
    low, high = (np.array([_widths(p, getattr(p, end)) for p in priors]) for end in ("low", "high"))
    return low, high


def left_out(fit: TrainingFit, group: Callable[[MeasuredRun], str]) -> Floats:
    """log(predicted / measured) of every run with its whole group left out of the fit.

    One Gauss-Newton step from the fit of all runs: without the group, the parameters move by
    ``(H - J' W J)^-1 (J' W r - g)`` of the group's residuals r and slopes J. H is the curvature of
    all runs and priors together, W the weights of the soft loss, g the gradient of the whole loss
    there, which rounding and an early stop leave. A parameter that no other group holds falls back
    to its prior.
    """
    names = np.array([group(training.row) for training in fit.runs])
    errors = fit.after.copy()
    for name in np.unique(names):
        out = names == name
        errors[out] += fit.slopes[out] @ (_offsets_without(fit, out) - fit.offsets)
    return errors


def values_without(fit: TrainingFit, out: Callable[[TrainingRun], bool]) -> dict[str, float]:
    """Parameters with some runs left out of the fit, by the step of :func:`left_out`."""
    return _values(_offsets_without(fit, np.array([out(training) for training in fit.runs])))


def _offsets_without(fit: TrainingFit, out: NDArray[np.bool_]) -> Floats:
    weight = soft_weights(fit.after, _SOFT_L1)
    weighted = fit.slopes * weight[:, None]
    without = curvature(fit.slopes, weight) - fit.slopes[out].T @ weighted[out]
    gradient = weighted.T @ fit.after + fit.offsets
    step = np.linalg.solve(without, weighted[out].T @ fit.after[out] - gradient)
    return np.asarray(np.clip(fit.offsets + step, *fit.bounds))


def _reached(parameter: Parameter, run: Run) -> bool:
    """Whether a parameter sets any figure of a run's profiles."""
    names = (run.cluster.accelerator.name, run.cluster.library.name, run.software.name)
    return any(parameter.reaches(name) for name in names)


def _widths(prior: Prior, value: float) -> float:
    """Distance of a value from the prior, in widths."""
    return (prior.encode(value) - prior.encode(prior.value)) / prior.width


def report(fit: TrainingFit) -> list[str]:
    """Word a fit: figures beside what the profiles hold now, errors by source and precision."""
    lines = [f"{'profile':<22} {'figure':<38} {'prior':>7} {'fit':>7} {'profile':>8}"]
    fitted = fit.figures()
    for parameter in PARAMETERS.values():
        for figure, ratio in parameter.figures.items():
            for profile in parameter.profiles:
                value, prior = fitted[profile][figure], ratio * parameter.prior.value
                now = _shipped(profile, figure.split("."))
                mark = "  differs" if abs(now - value) > _SAME * value else ""
                line = f"{profile:<22} {figure:<38} {prior:>7.3g} {value:>7.3g} {now:>8.3g}"
                lines.append(line + mark)
    lines.append(
        f"{'source':<15} {'precision':<12} {'runs':>4} {'|error| before':>15} {'after':>8}"
    )
    keys = [(t.row.get("source"), t.row.get("precision")) for t in fit.runs]
    for key in dict.fromkeys(keys):
        mask = np.array([other == key for other in keys])
        before, after = (100 * np.expm1(errors[mask]) for errors in (fit.before, fit.after))
        lines.append(
            f"{key[0]:<15} {key[1]:<12} {mask.sum():>4} {np.abs(before).mean():>13.1f} %"
            f" {np.abs(after).mean():>6.1f} %  (bias {after.mean():+.1f} %)"
        )
    return lines


def _shipped(profile: str, path: Sequence[str]) -> float:
    """The figure as the shipped profile has it now."""
    for kind, load in _LOADERS.items():
        if profile in catalogue.names(kind):
            value: Any = load(profile)
            for name in path:
                value = value[name] if isinstance(value, Mapping) else getattr(value, name)
            return float(value)
    return float("nan")


if __name__ == "__main__":
    print(*report(fit_training()), sep="\n")
