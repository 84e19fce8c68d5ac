"""How alike two runs are in what sets their time, and how far off a prediction may be by that.

Runs that were measured have an error at first sight (``hardware_profiles/uncertainty/runs.csv``).
The nearer one is to what is asked in hardware, software, work, layout and in what the step is made
of, the more its error says. Their weighted mean, pulled to the mean error of new runs where few are
near, is a power away from the error to expect (``hardware_profiles/uncertainty/likeness.toml``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from simulator import catalogue
from simulator.arrays import Floats
from simulator.evidence.evidence_runs import AXES, EvidenceRuns, load_evidence_runs
from simulator.files import Figure, read_profile, record

P90_T4 = 1.5332062740589438
"""The 90th percentile of Student's t with four degrees of freedom, whose mean size is 1."""

NEAR = 2.0
"""Distance up to which a run counts as the evidence of an answer."""

_YEAR = 12.0

_SOURCES = 3
"""Sources of runs from which on the fastest of them says what can be had."""

CAUSES = {
    "device": ("device", "generation"),
    "software": ("stack", "tuned"),
    "release": ("software", "years"),
    "precision": ("precision",),
    "kind": ("kind", "expert_share", "routing"),
    "work": ("sequence", "parameters", "tokens"),
    "scale": ("gpus", "uses", "leaves", "beyond"),
}
"""Why an interval is wider than that of a run that was measured: which parts of the distance."""


@record
class Likeness:
    """How much every difference counts, and the error that follows."""

    name: str
    differs: dict[str, Figure]
    """Distance where a word is another."""
    axis: dict[str, Figure]
    """Distance for each of tp, cp, pp and ep that one run uses, or takes out of a fast domain, and
    the other does not."""
    doubling: dict[str, Figure]
    """Distance for every doubling or halving of a size."""
    share: dict[str, Figure]
    """Distance for a difference of 1 in a share: of the step, of the memory."""
    year: Figure
    """Distance for every year between releases of one framework."""
    beyond: Figure
    """Distance for every doubling beyond the largest (or below the smallest) run of all."""
    prior_runs: Figure
    """Weight of `prior_error` against that of runs, each of which weighs exp(-distance)."""
    prior_error: Figure
    """Mean error of runs of which nothing alike was measured."""
    most_off: Figure
    """Errors of measured runs beyond this count as this."""
    spread: Figure
    """Expected error where the weighted error of the runs is `prior_error`."""
    power: Figure
    """By which it falls with that error."""
    least: Figure
    """Least expected error: two runs alike differ, and so do sites."""
    most: Figure
    """Largest expected error."""
    new_device: Figure
    """Least expected error on a device of which no run counts."""

    def expected(self, error: Floats) -> Floats:
        """Expected absolute error of the logarithm, by the weighted error of runs near."""
        size = float(self.spread) * (error / float(self.prior_error)) ** float(self.power)
        return np.clip(size, float(self.least), float(self.most))


@lru_cache(maxsize=1)
def load_likeness() -> Likeness:
    """Read ``hardware_profiles/uncertainty/likeness.toml``."""
    return read_profile(Likeness, catalogue.find("uncertainty", "likeness"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What sets the time of some layouts of one question."""

    words: Mapping[str, str]
    """By column of the table of runs (``evidence_runs.WORDS``)."""
    months: float
    """Of the software's release since the year 0; NaN where it has no date."""
    known: bool
    """Whether the software is what was asked for, not a release or framework that stands for it."""
    numbers: Mapping[str, Floats]
    """By column (``evidence_runs.NUMBERS``), a value a layout."""
    axes: Mapping[str, NDArray[np.bool_]]
    """``uses`` and ``leaves``: a row a layout, a column for each of AXES."""

    def take(self, i: int) -> Traits:
        """Those of one layout."""
        numbers = {name: values[i : i + 1] for name, values in self.numbers.items()}
        axes = {name: values[i : i + 1] for name, values in self.axes.items()}
        return Traits(
            words=self.words, months=self.months, known=self.known, numbers=numbers, axes=axes
        )


@dataclass(frozen=True, slots=True)
class Nearness:
    """Measured runs by how near they are to some layouts."""

    runs: EvidenceRuns
    parts: Mapping[str, Floats]
    """Addends of the distance, by name: arrays that broadcast to layouts x runs."""
    distance: Floats
    """Layouts x runs; infinite for runs that do not count."""
    error: Floats
    """Weighted mean error of the runs, with the prior."""
    own: Floats
    """Weighted mean error of runs within NEAR alone; NaN where there are none."""
    expected: Floats
    """Absolute error of the logarithm of the step time that is to be expected, by layout."""
    best: NDArray[np.intp]
    """The run with the highest MFU that was measured on the device with these products, of the same
    kind where there is one; -1 without any. By layout."""

    @property
    def best_mfu(self) -> Floats:
        """Its MFU; NaN without one."""
        known = self.best >= 0
        return np.where(known, self.runs.numbers["mfu"][self.best] if known.any() else 0.0, np.nan)

    def widened_by(self, i: int = 0) -> dict[str, float]:
        """How much narrower the interval of a layout would be had runs been alike, by cause."""
        causes = {}
        for cause, names in CAUSES.items():
            apart = sum(_row(self.parts[name], i) for name in names)
            alike = _expected(self.runs, self.distance[i : i + 1] - apart)[2]
            causes[cause] = max(1.0, float(self.expected[i] / alike[0]))
        return causes


def _row(part: Floats, i: int) -> Floats:
    return part[i : i + 1] if len(part) > 1 else part


def nearness(
    traits: Traits, without: Sequence[str] | str = "", among: EvidenceRuns | None = None
) -> Nearness:
    """Set all measured runs against some layouts.

    Parameters
    ----------
    without : str or sequence of str
        Family of sources (a name up to its first hyphen) that does not count, of all layouts or of
        each: that of the run which is predicted.
    among : EvidenceRuns, optional
        Runs that count; all unless given.
    """
    runs, rules = among or load_evidence_runs(), load_likeness()
    parts = _parts(traits, runs, rules)
    layouts = len(traits.numbers["gpus"])
    distance = np.broadcast_to(sum(parts.values()), (layouts, len(runs.error)))
    families = [without] * layouts if isinstance(without, str) else list(without)
    if any(families):
        out = np.array(families, dtype=object)[:, None]
        distance = np.where((runs.words["family"] == out) & (out != ""), np.inf, distance)
    error, own, expected = _expected(runs, distance)
    best = _best(traits, runs, families)
    found = Nearness(runs, parts, distance, error, own, expected, best)
    above = np.log(traits.numbers["mfu"] / found.best_mfu) / P90_T4
    ran = (np.isfinite(distance) & (runs.words["device"] == traits.words["device"])).any(axis=1)
    least = np.where(ran, 0.0, float(rules.new_device))
    return replace(found, expected=np.fmax(np.fmax(expected, least), above))


def _best(traits: Traits, runs: EvidenceRuns, families: Sequence[str]) -> NDArray[np.intp]:
    """Find the run of the highest MFU for each layout, without the family of each.

    Fewer than `_SOURCES` sources bound nothing: they may not have tried to be fast.
    """
    same = np.full(len(runs.error), True)
    for name in ("device", "precision"):
        same = same & (runs.words[name] == traits.words[name])
    kind = same & (runs.words["kind"] == traits.words["kind"])
    best = {}
    for family in dict.fromkeys(families):
        counts = runs.words["family"] != family
        some = next((some & counts for some in (kind, same) if _bounds(runs, some & counts)), None)
        best[family] = -1 if some is None else np.argmax(np.where(some, runs.numbers["mfu"], -1.0))
    return np.array([best[family] for family in families], dtype=np.intp)


def _bounds(runs: EvidenceRuns, some: NDArray[np.bool_]) -> bool:
    return len(set(runs.words["source"][some].tolist())) >= _SOURCES


def _expected(runs: EvidenceRuns, distance: Floats) -> tuple[Floats, Floats, Floats]:
    """Weighted error of all runs with the prior, that of runs within NEAR, the error to expect.

    P10 to P90 is never narrower than the error of runs within NEAR.
    """
    rules = load_likeness()
    weight = np.exp(-distance) * runs.weight
    sizes = np.minimum(np.abs(np.log1p(runs.error)), float(rules.most_off))
    prior = float(rules.prior_runs)
    total = (weight * sizes).sum(axis=1) + prior * float(rules.prior_error)
    error = total / (weight.sum(axis=1) + prior)
    weight = np.where(distance <= NEAR, weight, 0.0)
    with np.errstate(invalid="ignore"):
        own = (weight * sizes).sum(axis=1) / weight.sum(axis=1)
    return error, own, np.fmax(rules.expected(error), own / P90_T4)


def _parts(traits: Traits, runs: EvidenceRuns, rules: Likeness) -> dict[str, Floats]:
    """Addends of the distance."""
    parts: dict[str, Floats] = {}
    for name, weight in rules.differs.items():
        parts[name] = float(weight) * (runs.words[name] != traits.words[name])[None, :]
    for name, weight in rules.axis.items():
        apart = traits.axes[name][:, None, :] != runs.axes[name][None, :, :]
        parts[name] = float(weight) * apart.sum(axis=2)
    beyond = np.zeros((len(traits.numbers["gpus"]), 1))
    for name, weight in rules.doubling.items():
        size = np.log2(traits.numbers[name])[:, None]
        known = runs.doublings[name][None, :]
        parts[name] = float(weight) * np.abs(size - known)
        if known.size:
            beyond += np.maximum(size - known.max(), 0.0) + np.maximum(known.min() - size, 0.0)
    for name, weight in rules.share.items():
        parts[name] = float(weight) * np.abs(
            traits.numbers[name][:, None] - runs.numbers[name][None, :]
        )
    parts["beyond"] = float(rules.beyond) * beyond
    years = np.abs(traits.months - runs.months) / _YEAR
    same = runs.words["stack"] == traits.words["stack"]
    parts["years"] = float(rules.year) * np.where(same & np.isfinite(years), years, 0.0)[None, :]
    return parts


def axes_text(flags: NDArray[np.bool_]) -> str:
    """Name the axes that are set: ``tp+pp``."""
    return "+".join(name for name, used in zip(AXES, flags.tolist(), strict=True) if used)
