"""How alike two runs are in what sets their time, and how far off a prediction may be by that.

Runs that were measured have an error at first sight (``hardware_profiles/uncertainty/runs.csv``).
The nearer one is to what is asked in hardware, software, work, layout and in what the step is made
of, the more its error says. Their weighted mean, pulled to the mean error of new runs where few are
near, is a power away from the error to expect (``hardware_profiles/uncertainty/likeness.toml``).
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator import catalogue
from simulator.arrays import Bools, Floats
from simulator.evidence.evidence_runs import AXES, EvidenceRuns, load_evidence_runs
from simulator.files import Figure, read_profile, read_toml, record
from simulator.record_cache import for_same_records
from simulator.records import dataclass

P90_T4 = 1.5332062740589438
"""The 90th percentile of Student's t with four degrees of freedom, whose mean size is 1."""

NEAR = 2.0
"""Distance up to which a run counts as the evidence of an answer."""

_TOGETHER = 32
"""Layouts whose distances are found together: their addends stay in a processor's cache."""

_FEW = 8
"""Layouts whose addends are kept: what is said of each names them."""

_YEAR = 12.0

_SOURCES = 3
"""Sources of runs from which on the fastest of them says what can be had."""

STOOD_IN = "another's"
"""In the column `tuned`: the figures of the software are those of another one."""

TUNED = "vendor"
"""In the same column: the vendor of the device tunes the software for it."""

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
    untimed_device: Figure
    """Least expected error on a device with the kernels of another one and no run of its own."""
    stand_in: Figure
    """Mean size of what a trainer whose figures are another's is off in all its runs alike."""
    untuned_experts: Figure
    """The same of any trainer that no vendor tunes, in its runs with experts."""

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
    axes: Mapping[str, Bools]
    """``uses`` and ``leaves``: a row a layout, a column for each of AXES."""

    def take(self, first: int, count: int = 1) -> Traits:
        """Those of some layouts."""
        some = slice(first, first + count)
        numbers = {name: values[some] for name, values in self.numbers.items()}
        axes = {name: values[some] for name, values in self.axes.items()}
        return Traits(
            words=self.words, months=self.months, known=self.known, numbers=numbers, axes=axes
        )


@dataclass(frozen=True, slots=True)
class Nearness:
    """Measured runs by how near they are to some layouts."""

    traits: Traits
    """Of the layouts."""
    runs: EvidenceRuns
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
    of_kind: Floats
    """The best MFU of this kind over that of `best`: 1 where that is of the kind, elsewhere what it
    is on the devices where both were measured."""
    borrowed: tuple[tuple[str, str], ...]
    """Tables of the profile of the device that are another's, and whose."""
    addends: Mapping[str, Floats] | None
    """Of the distance, by name, where layouts are few: they broadcast to layouts x runs."""

    @property
    def best_mfu(self) -> Floats:
        """Highest MFU that measured runs say can be had; NaN without one."""
        known = self.best >= 0
        best = self.runs.numbers["mfu"][self.best] if known.any() else 0.0
        return np.where(known, best * self.of_kind, np.nan)

    def take(self, layout: int) -> Nearness:
        """The same of one layout."""
        row = slice(layout, layout + 1)
        names = ("distance", "error", "own", "expected", "best", "of_kind")
        columns = {name: getattr(self, name)[row] for name in names}
        addends = self.addends and {
            name: part if len(part) == 1 else part[row] for name, part in self.addends.items()
        }
        return replace(self, traits=self.traits.take(layout), addends=addends, **columns)

    def parts(self) -> Mapping[str, Floats]:
        """Addends of the distance of the first layout, by name: they broadcast to 1 x runs."""
        if self.addends is None:
            return _parts(self.traits.take(0), self.runs, load_likeness())
        return {name: part[:1] for name, part in self.addends.items()}

    def widened_by(self, parts: Mapping[str, Floats]) -> dict[str, float]:
        """How much narrower the interval of the first layout would be had runs been alike.

        `parts` are the addends of its distance.
        """
        near = self.distance[:1]
        apart = [near - sum(parts[name] for name in names) for names in CAUSES.values()]
        usual, *alike = _expected(self.runs, np.concatenate([near, *apart]))[2]
        causes = {
            cause: max(1.0, float(usual / without))
            for cause, without in zip(CAUSES, alike, strict=True)
        }
        for cause, widened in self.unlike_any(np.array([usual])).items():
            causes[cause] *= float(widened[0] / usual)
        return causes

    def unlike_any(self, expected: Floats, rules: Likeness | None = None) -> dict[str, Floats]:
        """Error to expect where no run near can tell what the device, or the trainer, is off.

        A device that has the kernels of another one is off by `untimed_device`, less as far as runs
        of its own are near. A trainer with the figures of another one is off in all its runs alike,
        beyond what runs of others show, and so is one that no vendor tunes where it has experts,
        each its own way: variances add.

        Parameters
        ----------
        expected : ndarray
            Error to expect of each layout by the runs near.
        rules : Likeness, optional
            In place of the shipped ones.

        Returns
        -------
        dict
            By cause (CAUSES); those alone that bear on it.
        """
        rules, widened = rules or load_likeness(), {}
        if self.borrowed:
            alike = says(self.runs.words["device"], self.traits.words["device"])
            near = (np.exp(-self.distance) * self.runs.weight * alike).sum(axis=1)
            least = float(rules.untimed_device) * np.maximum(1.0 - near, 0.0)
            widened["device"] = np.fmax(expected, least)
        tuned, sizes = self.traits.words["tuned"], []
        if tuned == STOOD_IN:
            sizes.append(float(rules.stand_in))
        if tuned != TUNED and self.traits.words["kind"] == "experts":
            sizes.append(float(rules.untuned_experts))
        if sizes:
            widened["software"] = np.hypot(expected, float(np.linalg.norm(sizes)))
        return widened


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
    runs = load_evidence_runs() if among is None else among
    known = _known(runs, load_likeness())
    key = pickle.dumps((traits, without))  # compared, never loaded
    known[key] = likened = known.pop(key, None) or _nearness(traits, without, runs)
    if len(known) > _MOST_KNOWN:
        known.popitem(last=False)
    return likened


_MOST_KNOWN = 16
"""Answers whose runs stay known: prices, budgets and deadlines of a search ask for them again."""


@for_same_records(2)
def _known(runs: EvidenceRuns, rules: Likeness) -> OrderedDict[bytes, Nearness]:
    """What was set against these runs by these rules last."""
    return OrderedDict()


def _nearness(traits: Traits, without: Sequence[str] | str, runs: EvidenceRuns) -> Nearness:
    """The same, not known yet."""
    rules = load_likeness()
    layouts = len(traits.numbers["gpus"])
    distance, addends = np.empty((layouts, len(runs.error))), dict[str, Floats]()
    for first in range(0, layouts, _TOGETHER):
        addends = _parts(traits.take(first, _TOGETHER), runs, rules)
        distance[first : first + _TOGETHER] = sum(addends.values())
    families = [without] * layouts if isinstance(without, str) else list(without)
    for row, family in enumerate(families):
        if family:
            distance[row, says(runs.words["family"], family)] = np.inf
    error, own, expected = _expected(runs, distance)
    best, of_kind = _best(traits, runs, families)
    borrowed = borrowed_tables(traits.words["device"])
    few = addends if 0 < layouts <= _FEW else None
    near = Nearness(traits, runs, distance, error, own, expected, best, of_kind, borrowed, few)
    for widened in near.unlike_any(expected).values():
        expected = np.fmax(expected, widened)
    above = np.log(traits.numbers["mfu"] / near.best_mfu) / P90_T4
    return replace(near, expected=np.fmax(expected, above))


def borrowed_tables(device: str) -> tuple[tuple[str, str], ...]:
    """Tables of the profile of an accelerator that are another's, and whose."""
    if not catalogue.has("accelerators", device):
        return ()
    path = catalogue.find("accelerators", device)
    stamp = path.stat()
    return _borrowed_tables(path, (stamp.st_mtime_ns, stamp.st_size))


@lru_cache(maxsize=64)
def _borrowed_tables(path: Path, stamp: tuple[int, int]) -> tuple[tuple[str, str], ...]:
    """The same of a profile, read once for every state of its file."""
    raw = read_toml(path)
    lent, base = raw.get("borrowed"), raw.get("base")
    tables = [(str(table), str(lent["of"])) for table in lent["tables"]] if lent else []
    return tuple(tables + ([("all that it does not state", str(base))] if base else []))


def _best(
    traits: Traits, runs: EvidenceRuns, families: Sequence[str]
) -> tuple[NDArray[np.intp], Floats]:
    """Find the run of the highest MFU for each layout, without the family of each.

    Fewer than `_SOURCES` sources bound nothing: they may not have tried to be fast. Where none of
    the kind is bound, the best of any kind times what that kind reaches of it elsewhere.
    """
    words, kind = runs.words, traits.words["kind"]
    same = says(words["device"], traits.words["device"])
    same = same & says(words["precision"], traits.words["precision"])
    fastest = {}
    for family in dict.fromkeys(families):
        counts = same & ~says(words["family"], family)
        of_kind = counts & says(words["kind"], kind)
        if _bounds(runs, of_kind):
            fastest[family] = (_fastest(runs, of_kind), 1.0)
        elif _bounds(runs, counts):
            fastest[family] = (_fastest(runs, counts), _share_of_kind(runs, kind))
        else:
            fastest[family] = (-1, 1.0)
    best, share = zip(*(fastest[family] for family in families), strict=True)
    return np.array(best, dtype=np.intp), np.array(share, dtype=float)


def _fastest(runs: EvidenceRuns, some: Bools) -> int:
    return int(np.argmax(np.where(some, runs.numbers["mfu"], -1.0)))


@for_same_records(16)
def _share_of_kind(runs: EvidenceRuns, kind: str) -> float:
    """What runs of a kind reach of the best MFU of any: the median over devices and types.

    Of those where enough sources measured the kind, and enough measured others.
    """
    words, shares = runs.words, []
    for device, precision in sorted(set(zip(words["device"], words["precision"], strict=True))):
        same = (words["device"] == device) & (words["precision"] == precision)
        inside, outside = same & (words["kind"] == kind), same & (words["kind"] != kind)
        if _bounds(runs, inside) and _bounds(runs, outside):
            mfu = (runs.numbers["mfu"][_fastest(runs, some)] for some in (inside, outside))
            shares.append(float(next(mfu) / next(mfu)))
    return min(1.0, float(np.median(shares))) if shares else 1.0


def _bounds(runs: EvidenceRuns, some: Bools) -> bool:
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


@for_same_records(256)
def says(column: NDArray[Any], word: str) -> Bools:
    """Where a column of the table says a word: asked of the same ones by every answer."""
    return np.asarray(column == word)


@for_same_records(256)
def _differing(column: NDArray[Any], word: str, weight: float) -> Floats:
    """A weight where a column does not say a word, shape (1, runs)."""
    return np.asarray(float(weight) * ~says(column, word))[None, :]


@for_same_records(4)
def _as_floats(flags: Bools) -> Floats:
    return flags.astype(float)


def _parts(traits: Traits, runs: EvidenceRuns, rules: Likeness) -> dict[str, Floats]:
    """Addends of the distance."""
    parts: dict[str, Floats] = {}
    for name, weight in rules.differs.items():
        parts[name] = _differing(runs.words[name], traits.words[name], weight)
    for name, weight in rules.axis.items():
        here, there = traits.axes[name].astype(float), _as_floats(runs.axes[name])
        alike = here @ there.T  # axes that both have, whole numbers
        apart = here.sum(axis=1)[:, None] + there.sum(axis=1)[None, :] - 2.0 * alike
        parts[name] = float(weight) * apart
    numbers = {
        name: values[: 1 if (values == values[:1]).all() else None, None]  # once where all alike
        for name, values in traits.numbers.items()
    }
    beyond = np.zeros((len(traits.numbers["gpus"]), 1))
    for name, weight in rules.doubling.items():
        size, known = np.log2(numbers[name]), runs.doublings[name][None, :]
        parts[name] = float(weight) * np.abs(size - known)
        if known.size:
            beyond += np.maximum(size - known.max(), 0.0) + np.maximum(known.min() - size, 0.0)
    for name, weight in rules.share.items():
        parts[name] = float(weight) * np.abs(numbers[name] - runs.numbers[name][None, :])
    parts["beyond"] = float(rules.beyond) * beyond
    years = np.abs(traits.months - runs.months) / _YEAR
    same = says(runs.words["stack"], traits.words["stack"])
    parts["years"] = float(rules.year) * np.where(same & np.isfinite(years), years, 0.0)[None, :]
    return parts


def axes_text(flags: Bools) -> str:
    """Name the axes that are set: ``tp+pp``."""
    return "+".join(name for name, used in zip(AXES, flags.tolist(), strict=True) if used)
