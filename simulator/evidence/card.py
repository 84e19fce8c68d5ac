"""What stands behind an answer: how many measured runs are like it, and how far off they were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from simulator.answers import Encoded
from simulator.arrays import Bools, Floats
from simulator.evidence.likeness import NEAR, Nearness, axes_text, says
from simulator.records import dataclass

GRADES = ("measured here", "measured like it", "extrapolated", "unmeasured")
"""In words, in the order of the errors to expect."""

LARGEST = (0.10, 0.16, 0.25)
"""Expected error up to which the first three hold."""

_ENOUGH = (3, 3, 0)
"""Runs near that each needs besides, alike in some columns."""
_SAME = (("device", "stack", "kind", "precision"), (), ())
_ON_DEVICE = (1, 1, 0)
"""Runs near that each needs on the device itself."""
_MOST_TOLD = 3
"""Differences from the nearest run that are told in words."""
_TOLD = 0.1
"""Addend of the distance from which on a difference is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card(Encoded):
    """The evidence of one answer."""

    KEYS: ClassVar[tuple[str, ...]] = (
        *("grade", "runs", "mean_error", "runs_error", "nearest_run", "nearest_error"),
        *("nearest_distance", "differs=named_differences", "borrowed=borrowed_figures"),
        *("assumed", "widened_by", "remarks"),
    )

    grade: str
    """One of GRADES."""
    runs: int
    """Measured runs that are near (``likeness.NEAR``)."""
    mean_error: float | None
    """Absolute error that is to be expected, of the logarithm of the step time."""
    runs_error: float | None = None
    """Mean of the absolute errors of the runs near, the nearest weighing most; each was predicted
    without its source, or before anybody looked at it. None without such a run."""
    nearest_run: str | None
    nearest_error: float | None
    """Predicted over measured step time of that run, less 1."""
    nearest_distance: str
    """In words, what it has in common with the answer and what not."""
    differs: tuple[tuple[str, float], ...] = ()
    """The same by difference, and how much it adds to the distance, largest first."""
    borrowed: tuple[tuple[str, str], ...]
    """Figures of the accelerator that are another's, and whose."""
    assumed: int
    """Figures of the profiles that bear on the answer and were neither measured nor fitted."""
    widened_by: Mapping[str, float]
    """Factors on the interval because no run near was alike, by cause; 1 where some were."""
    remarks: tuple[str, ...] = ()
    """What else makes it doubtful."""

    @property
    def borrowed_figures(self) -> list[dict[str, str]]:
        """The same by name, as JSON says them."""
        return [{"figure": name, "from": other} for name, other in self.borrowed]

    @property
    def named_differences(self) -> list[dict[str, Any]]:
        """In what the nearest run is not alike, as JSON says it."""
        return [{"what": what, "distance": distance} for what, distance in self.differs]

    @property
    def low_confidence(self) -> str:
        """Why an answer of the last grade is doubtful: by its error, with or without runs near."""
        if self.grade != GRADES[-1]:
            return ""
        return "low confidence" if self.runs else "no comparable benchmark, low confidence"

    def sentences(self) -> list[str]:
        """What a reader has to know, most important first."""
        said = [f"Evidence: {self.low_confidence or self.grade}"]
        if self.mean_error is not None:
            said[0] += f"; error to expect {100 * self.mean_error:.0f} %"
        if self.runs_error is not None:
            said[0] += (
                f" ({self.runs} run{'s' if self.runs > 1 else ''} near it"
                f" {100 * self.runs_error:.0f} % off)"
            )
        if self.nearest_run is not None and self.nearest_error is not None:
            off = f"{100 * abs(self.nearest_error):.1f} % too {_side(self.nearest_error)}"
            said.append(
                f"Nearest run: {self.nearest_run} ({self.nearest_distance}), predicted {off}"
            )
        others = sorted({other for _, other in self.borrowed})
        if others:
            said.append(f"Kernel efficiency taken from {', '.join(others)}")
        grown = [f"{name} x {f:.3g}" for name, f in self.widened_by.items() if f >= 1.05]
        if grown:
            why = "" if self.runs else ", no benchmark like it"
            said.append(f"Range widened{why}: {', '.join(grown)}")
        return [*said, *self.remarks]


def _side(error: float) -> str:
    """On which side of the measured step a prediction lies."""
    return "short" if error < 0.0 else "long"


def evidence_card(likened: Nearness, *, assumed: int, least: float = 0.0) -> Card:
    """Say which measured runs stand behind an answer.

    Parameters
    ----------
    likened : Nearness
        Of measured runs to the layout of the answer.
    assumed : int
        Figures behind the answer that were neither measured nor fitted.
    least : float
        Least error to expect: of the interval that the spreads of its figures give.
    """
    expected = max(float(likened.expected[0]), least)
    apart = likened.distance[0]
    known = bool(np.isfinite(apart).any())
    nearest = int(np.argmin(apart)) if known else None
    own, parts = float(likened.own[0]), likened.parts()
    differs = _differs(likened, nearest, parts) if nearest is not None else ()
    return Card(
        grade=grade_of(likened, expected),
        runs=int((apart <= NEAR).sum()),
        mean_error=expected,
        runs_error=None if np.isnan(own) else own,
        nearest_run=str(likened.runs.words["run_id"][nearest]) if known else None,
        nearest_error=float(likened.runs.error[nearest]) if known else None,
        nearest_distance=_in_words(likened, nearest, differs) if nearest is not None else "",
        differs=differs,
        borrowed=likened.borrowed,
        assumed=assumed,
        widened_by=likened.widened_by(parts),
        remarks=(*_too_fast(likened), *_never_run(likened)),
    )


def _too_fast(nearness: Nearness) -> tuple[str, ...]:
    """A remark where no run on the device has made as much of it."""
    predicted, best = float(nearness.traits.numbers["mfu"][0]), float(nearness.best_mfu[0])
    if not predicted > best:
        return ()
    run, words = nearness.runs.words, nearness.traits.words
    i, share = int(nearness.best[0]), float(nearness.of_kind[0])
    fastest = f"{run['kind'][i]}: {100.0 * best / share:.1f} %, {run['run_id'][i]}"
    if share < 1.0:
        fastest += f"; elsewhere {words['kind']} reached {share:.2f} of the best of other kinds"
    return (
        f"MFU {100.0 * predicted:.1f} %: above the best that was measured on {words['device']} in"
        f" {words['precision']} ({fastest}); the interval reaches {100.0 * best:.1f} %",
    )


def _never_run(nearness: Nearness) -> tuple[str, ...]:
    """A remark where nobody measured a run on the device, or none of this kind."""
    asked, words = nearness.traits.words, nearness.runs.words
    device, kind, apart = asked["device"], asked["kind"], nearness.distance[0]
    here = says(words["device"], device)
    if not (here & np.isfinite(apart)).any():
        return (f"No run was measured on {device}",)
    if not (here & says(words["kind"], kind) & (apart <= NEAR)).any():
        kinds = _KINDS.get(kind, f"of kind {kind}")
        return (f"No run {kinds} on {device} is near it",)
    return ()


_KINDS = {
    "dense": "of a dense model",
    "experts": "with experts",
    "adapter": "of adapters",
}


def grade_of(nearness: Nearness, expected: float) -> str:
    """The strongest grade whose error is not exceeded and of which there are enough runs."""
    rules = zip(GRADES, LARGEST, _SAME, _ENOUGH, _ON_DEVICE, strict=False)
    for grade, largest, names, enough, here in rules:
        exact = nearness.traits.known or grade != GRADES[0]
        sure = exact and _same(nearness, ("device",)).sum() >= here
        if sure and expected <= largest and _same(nearness, names).sum() >= enough:
            return grade
    return GRADES[-1]


def _same(nearness: Nearness, names: tuple[str, ...]) -> Bools:
    """Which runs near agree in some columns."""
    alike = nearness.distance[0] <= NEAR
    for name in names:
        alike = alike & says(nearness.runs.words[name], nearness.traits.words[name])
    return np.asarray(alike)


_SIZES = {
    "gpus": "{:,.0f} GPUs",
    "parameters": "{:.3g} B parameters a token",
    "expert_share": "{:.3g} times as many parameters as a token passes",
    "sequence": "sequence length {:,.0f}",
    "tokens": "{:,.0f} tokens a micro-batch",
}
_SHARES = {
    "launch": "host launches {:.0f} % of the step",
    "communication": "communication {:.0f} % of the step",
    "attention": "attention {:.0f} % of the step",
    "memory_bound": "memory-bound kernels {:.0f} % of the step",
    "fullness": "memory {:.0f} % full",
}
_AXES = {"uses": "axes", "leaves": "between servers"}


def _differs(
    nearness: Nearness, i: int, parts: Mapping[str, Floats]
) -> tuple[tuple[str, float], ...]:
    """In what a run is not alike, the largest addend of its distance first."""
    names = [*nearness.traits.words, *_SIZES, *_SHARES, *_AXES]
    apart = {name: float(parts[name][0, i if parts[name].shape[1] > 1 else 0]) for name in names}
    told = sorted((name for name in names if apart[name] >= _TOLD), key=lambda n: -apart[n])
    return tuple((_word(name, nearness, i), apart[name]) for name in told)


def _word(name: str, nearness: Nearness, i: int) -> str:
    """What a run is, in words."""
    runs = nearness.runs
    if name in _SIZES:
        size = float(runs.numbers[name][i])
        return _SIZES[name].format(size / 1e9 if name == "parameters" else size)
    if name in _SHARES:
        return _SHARES[name].format(100.0 * float(runs.numbers[name][i]))
    if name in _AXES:
        return f"{_AXES[name]} {axes_text(runs.axes[name][i]) or 'none'}"
    return f"{name} {runs.words[name][i]}"


def _in_words(nearness: Nearness, i: int, differs: tuple[tuple[str, float], ...]) -> str:
    """What a run is that the answer is not, and its size."""
    alike = (
        f"same, except {', '.join(what for what, _ in differs[:_MOST_TOLD])}"
        if differs
        else "alike"
    )
    gpus = int(nearness.runs.numbers["gpus"][i])
    size = f"{gpus:,} GPU{'s' if gpus > 1 else ''}"
    return alike if size in alike else f"{alike}; {size}"
