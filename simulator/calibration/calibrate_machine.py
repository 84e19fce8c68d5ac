"""From measurements of a machine to its profile: fits with the base profile as prior.

What is refused: another device than the base, calls faster than the device can be, times in
another unit. What is left out with its reason: kernels that no figure follows from, classes of too
few calls. Figures that were fitted are graded so, with the spread on shapes left out.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import numpy as np
import tomlkit

from simulator import catalogue
from simulator.arrays import Floats
from simulator.calibration.classes import FitClass, Skipped, accelerator_classes
from simulator.calibration.least_squares import Fit, fit_and_score
from simulator.calibration.link_classes import link_classes, network_classes
from simulator.calibration.profile_text import FigureText, Section, with_sections
from simulator.errors import InputError
from simulator.files import Figure, read_profile
from simulator.hardware.accelerator import Accelerator
from simulator.hardware.cluster import Cluster
from simulator.measured.measurements import COLLECTIVES, Call, Measurements
from simulator.profiles import KINDS
from simulator.profiles.check import check
from simulator.quoting import comment_line
from simulator.records import dataclass

Progress = Callable[[int, int], None]

_ABOVE_LIMIT = 1.05
"""Clocks boost and timers are coarse: a call may pass the data sheet by this."""
_OTHER_UNIT = 100.0
"""The median of a class this far from the base is no other machine but another unit."""
_MOST_PLACES = 3
_MOST_LEFT = 0.2
"""Median error of shapes left out of a fit above which its figures say nothing of the machine."""


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Errors of predicted times, |predicted / measured - 1|."""

    median: float
    p90: float


@dataclass(frozen=True, kw_only=True)
class ClassFit:
    """One class of calls: errors by the base, by the fit, and on shapes left out of it."""

    name: str
    path: tuple[str, ...]
    calls: int
    before: Errors
    after: Errors
    left_out: Errors
    spread: float
    parts: Mapping[str, tuple[int, Errors, Errors]]
    """Direction or collective -> calls, errors before and after."""
    figures: Mapping[str, tuple[float, float]]
    """Figure -> base, fitted."""
    headline: str
    measured_s: Floats
    before_s: Floats
    after_s: Floats
    at_end: tuple[str, ...] = ()
    """Figures that stand at an end of the range in which they were sought."""

    @property
    def misfit(self) -> str:
        """What does not fit: more than a fifth is left over, or links that no figure explains."""
        said = []
        if self.left_out.median > _MOST_LEFT:
            said.append(f"{self.left_out.median:.0%} are left over (at most {_MOST_LEFT:.0%})")
        if self.path[0] in ("scale_up", "fabric"):
            said += [
                f"{name} stands at the end of its range ({self.figures[name][1]:.3g})"
                for name in self.at_end
            ]
        return f"{self.name}: {', '.join(said)}" if said else ""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What measurements say of a machine: new tables for up to three profiles."""

    accelerator: tuple[ClassFit, ...]
    node: tuple[ClassFit, ...]
    fabric: tuple[ClassFit, ...]
    left_out: Mapping[str, int]
    """Reason -> calls that entered no fit."""
    source: str
    date: str
    """Day of the last measurement."""

    @property
    def misfits(self) -> list[str]:
        """Classes that no figures of the base explain, each with what is wrong."""
        fits = (*self.accelerator, *self.node, *self.fabric)
        return [fit.misfit for fit in fits if fit.misfit]

    def sections(self, fits: Iterable[ClassFit]) -> list[Section]:
        """Tables of a profile with what was fitted; the same key names one source for a class."""
        return [self._section(fit) for fit in fits]

    def _section(self, fit: ClassFit) -> Section:
        figures = {
            name: FigureText(
                value=new, grade="fitted", spread=fit.spread if name == fit.headline else None
            )
            for name, (_, new) in fit.figures.items()
        }
        text = (
            f"foreshard calibrate: {fit.calls} calls ({fit.name}) of {self.source}; shapes left out"
            f" of the fit: median {100 * fit.left_out.median:.1f} %, p90"
            f" {100 * fit.left_out.p90:.0f} %; with the figures of the base: median"
            f" {100 * fit.before.median:.1f} %"
        )
        key = "calibrated_" + "_".join("".join(c if c.isalnum() else " " for c in fit.name).split())
        return Section(path=fit.path, figures=figures, source=key, text=text, date=self.date)


def calibrate(
    documents: Sequence[Measurements],
    *,
    accelerator: Accelerator | None = None,
    cluster: Cluster | None = None,
    progress: Progress | None = None,
) -> Calibration:
    """Fit the figures of a base accelerator, its server's links and its network.

    Parameters
    ----------
    documents : sequence of Measurements
        What was measured, of one machine.
    accelerator : Accelerator, optional
        Base of kernels; without one, kernels are left out.
    cluster : Cluster, optional
        Base of collectives; without one, collectives are left out.

    Raises
    ------
    InputError
        If the device or the servers are others, a call is impossible, or nothing can be fitted.
    """
    if accelerator is not None:
        _check_device(documents, accelerator)
    if cluster is not None:
        _check_servers(documents, cluster)
    calls = [call for document in documents for call in document.calls]
    kernels = [call for call in calls if call.kernel not in COLLECTIVES]
    collectives = [call for call in calls if call.kernel in COLLECTIVES]
    classes, skipped = _sorted_kernels(kernels, accelerator)
    node, more = _sorted_collectives(collectives, cluster)
    network = [] if cluster is None else network_classes(collectives, cluster)
    left_out = {**skipped, **more}
    _check_possible([*classes, *node, *network])
    _check_units([*classes, *node, *network])
    steps = _Steps(len(classes) + len(node) + len(network), progress)
    fits = [_fitted(group, left_out, steps) for group in (classes, node)]
    if cluster is not None:  # the network is seen through the links as they were just fitted
        network = network_classes(collectives, _with_links(cluster, fits[1]))
    fits.append(_fitted(network, left_out, steps))
    left_out = dict(sorted(left_out.items(), key=lambda item: -item[1]))
    if not any(fits):
        files = ", ".join(document.path for document in documents)
        reasons = [f"{count} calls: {why}" for why, count in left_out.items()]
        found = reasons[:20] or ["there are no timed calls"]
        raise InputError(f"{files}: nothing to fit: {reason}" for reason in found)
    return Calibration(
        accelerator=tuple(fits[0]),
        node=tuple(fits[1]),
        fabric=tuple(fits[2]),
        left_out=left_out,
        source="; ".join(document.source for document in documents),
        date=max(document.date for document in documents),
    )


def _sorted_kernels(calls: list[Call], base: Accelerator | None) -> tuple[list[FitClass], Skipped]:
    if base is not None:
        return accelerator_classes(calls, base)
    return [], {"kernels, without --base and --out": len(calls)} if calls else {}


def _sorted_collectives(calls: list[Call], base: Cluster | None) -> tuple[list[FitClass], Skipped]:
    if base is not None:
        return link_classes(calls, base)
    return [], {"collectives, without --base-cluster": len(calls)} if calls else {}


def _with_links(cluster: Cluster, fits: Iterable[ClassFit]) -> Cluster:
    """The cluster with the links of its servers as they were fitted."""
    rates: dict[str, Any] = {
        name: Figure(new) for fit in fits for name, (_, new) in fit.figures.items()
    }
    node = replace(cluster.node, scale_up=replace(cluster.node.scale_up, **rates))
    return replace(cluster, groups=(replace(cluster.groups[0], node=node),))


# --- what is refused --------------------------------------------------------------------------


def _check_device(documents: Iterable[Measurements], base: Accelerator) -> None:
    """Refuse documents of another device: by kind, compute units and memory."""
    problems = []
    for document in documents:
        device = document.device
        if device is None:
            continue
        where = f"{document.path}: device"
        is_cpu = base.generation == "cpu"
        if (device.kind == "cpu") != is_cpu:
            what = "a CPU" if device.kind == "cpu" else "a GPU"
            problems.append(f"{where}: {device.name} is {what}, the base {base.name} is not")
            continue
        units, size = device.compute_units, device.memory_bytes
        if units is not None and not is_cpu and units != base.compute_units:
            problems.append(
                f"{where}: {device.name} has {units} compute units, the base {base.name}"
                f" {base.compute_units}"
            )
        capacity = float(base.memory.capacity_bytes)
        if not is_cpu and size is not None and not 0.85 < size / capacity < 1.1:
            problems.append(
                f"{where}: {device.name} has {size / 1e9:.1f} GB of memory, the base {base.name}"
                f" {capacity / 1e9:.1f}"
            )
    if problems:
        raise InputError(problems)


def _check_servers(documents: Iterable[Measurements], base: Cluster) -> None:
    """Refuse collectives of servers that hold more ranks than the base's have accelerators."""
    most = base.node.accelerators
    for document in documents:
        for call in document.calls:
            ranks, nodes = call.shape.get("ranks", 0.0), call.shape.get("nodes", 0.0)
            if call.kernel in COLLECTIVES and nodes >= 1 and ranks > most * nodes:
                rule = f"{ranks / nodes:g} ranks in a server, but one of {base.name} has {most}"
                cure = "--base-cluster with such servers (foreshard profiles list clusters)"
                raise InputError(f"{call.place}: {rule}: {cure}")


def _check_possible(classes: Iterable[FitClass]) -> None:
    """Refuse calls that are faster than the peak, the memory or the links of the device."""
    problems = []
    for one in classes:
        ratio = one.least_s / one.rows["seconds"]
        wrong = np.flatnonzero(ratio > _ABOVE_LIMIT)
        problems += [
            f"{one.places[i]}: {one.name}: {ratio[i]:.3g} times as fast as the limit of the device"
            " (dense peak, memory or link rate)"
            for i in wrong[:_MOST_PLACES]
        ]
        if len(wrong) > _MOST_PLACES:
            problems.append(f"{one.name}: and {len(wrong) - _MOST_PLACES} more such calls")
    if problems:
        raise InputError(problems)


def _check_units(classes: Iterable[FitClass]) -> None:
    """Refuse classes whose times are in another unit than seconds, by the base's prediction."""
    problems = []
    for one in classes:
        ratio = float(np.median(one.rows["seconds"] / one.predict({}, one.rows)))
        if not 1.0 / _OTHER_UNIT < ratio < _OTHER_UNIT:
            units = {1e3: "milliseconds", 1e6: "microseconds"}
            near = min(units, key=lambda unit: abs(np.log(ratio / unit)))
            problems.append(
                f"{one.places[0]}: {one.name}: calls take {ratio:.3g} times what the base predicts"
                f" (median): are the times in {units[near]}? They must be seconds"
            )
    if problems:
        raise InputError(problems)


# --- fits -------------------------------------------------------------------------------------


class _Steps:
    """Tells how many classes are done."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.done, self.total, self.progress = 0, total, progress

    def step(self) -> None:
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, self.total)


def _fitted(classes: Iterable[FitClass], left_out: dict[str, int], steps: _Steps) -> list[ClassFit]:
    """Fit class by class; one of too few calls is left out. A table's earlier figures hold."""
    class_fits: list[ClassFit] = []
    tables: dict[tuple[str, ...], dict[str, float]] = {}
    for one in classes:
        known = tables.setdefault(one.path, {})

        def predict(
            values: Mapping[str, float],
            rows: Any,
            fit_class: FitClass = one,
            known: dict[str, float] = known,
        ) -> Floats:
            return fit_class.predict({**known, **values}, rows)

        try:
            fit = fit_and_score(one.priors, predict, one.rows, one.scored)
        except InputError as error:
            left_out[f"{one.name}: {error.problems[0].removeprefix('fit: ')}"] = len(one.places)
        else:
            class_fits.append(_class_fit(one, fit, one.predict({}, one.rows), predict))
            known.update(fit.values)
        steps.step()
    return class_fits


def _class_fit(fit_class: FitClass, fit: Fit, before_s: Floats, predict: Any) -> ClassFit:
    measured = fit_class.rows["seconds"]
    after_s = predict(fit.values, fit_class.rows)
    names = np.array(fit_class.parts)
    parts = {}
    for name in sorted(set(fit_class.parts)):
        which = (names == name) & fit_class.scored
        if which.any():
            both = [_errors(s[which], measured[which]) for s in (before_s, after_s)]
            parts[name] = (int((names == name).sum()), both[0], both[1])
    scored = fit_class.scored
    return ClassFit(
        name=fit_class.name,
        path=fit_class.path,
        calls=len(measured),
        before=_errors(before_s[scored], measured[scored]),
        after=_errors(after_s[scored], measured[scored]),
        left_out=Errors(median=fit.median_error, p90=fit.p90_error),
        spread=max(fit.spread, 0.005),
        parts=parts,
        headline=fit_class.headline,
        measured_s=measured,
        before_s=before_s,
        after_s=after_s,
        figures={name: (fit_class.base[name], value) for name, value in fit.values.items()},
        at_end=tuple(
            name
            for name, prior in fit_class.priors.items()
            if not prior.low * 1.01 < fit.values[name] < prior.high * 0.999
        ),
    )


def _errors(predicted_s: Floats, measured_s: Floats) -> Errors:
    error = np.abs(predicted_s / measured_s - 1.0)
    return Errors(median=float(np.median(error)), p90=float(np.percentile(error, 90)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A profile to write."""

    kind: str
    base: str
    """Profile that it starts from."""
    path: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    """What it states beside figures: the names of the other new profiles."""


def new_profiles(calibration: Calibration, targets: Mapping[str, Target]) -> dict[Path, str]:
    """Return the text of every target by its path.

    Parameters
    ----------
    found : Calibration
        What was fitted.
    targets : mapping
        ``accelerator``, ``node``, ``fabric``: whose figures -> where they go.

    Raises
    ------
    InputError
        If a new profile cannot be read or passes a physical limit.
    """
    texts = {}
    for part, target in targets.items():
        text = _text(calibration, getattr(calibration, part), target)
        _check(text, target)
        texts[target.path] = text
    return texts


def _text(calibration: Calibration, fits: tuple[ClassFit, ...], target: Target) -> str:
    source = catalogue.find(target.kind, target.base)
    text = with_sections(source.read_text(encoding="utf-8-sig"), calibration.sections(fits))
    document = tomlkit.parse(text)
    for key, value in target.settings.items():
        document[key] = value
    what = f"fitted to {calibration.source} ({calibration.date})" if fits else "not measured itself"
    head = comment_line(f"{target.path.stem}: {target.base}, {what}.")
    return f"{head}\n{tomlkit.dumps(document)}"


def _check(text: str, target: Target) -> None:
    """Read the new profile from a place of its own; names of other new profiles are not there."""
    with tempfile.TemporaryDirectory() as folder:
        trial = Path(folder) / target.kind / target.path.name
        trial.parent.mkdir()
        trial.write_text(text)
        try:
            if target.kind == "accelerators":
                problems = check(trial, target.kind)
            else:
                read_profile(KINDS[target.kind], trial, kind=target.kind)
                problems = []
        except InputError as error:
            problems = list(error.problems)
    if problems:
        raise InputError([problem.replace(str(trial), str(target.path)) for problem in problems])
