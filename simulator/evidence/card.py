"""What stands behind an answer: how many measured runs are like it, and how far off they were."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from simulator import catalogue
from simulator.answers import Encoded
from simulator.evidence.evidence_runs import EvidenceRuns, Flags, RunKind, load_evidence_runs
from simulator.files import read_toml
from simulator.hardware.accelerator import Accelerator
from simulator.software.profile import Software
from simulator.workload.recipe import Workload

GRADES = ("measured here", "measured like it", "extrapolated", "unmeasured")
"""In words, strongest first: runs of this device, framework, kind and precision at such a size; of
its generation, kind, class of model and framework or precision; of its generation; none."""

_ENOUGH = 3
"""Runs from which on a grade holds: fewer may agree by chance."""
_SAME_SIZE = 2.0
"""Doublings: four times as many accelerators or parameters, or as few, are still a run's size."""
_SAME_CLASS = 4.0
"""Doublings: a model sixteen times as large, or as small, keeps other parts of a machine busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card(Encoded):
    """The evidence of one answer."""

    KEYS: ClassVar[tuple[str, ...]] = (
        *("grade", "runs", "mean_error", "nearest_run", "nearest_error", "nearest_distance"),
        *("borrowed=borrowed_figures", "assumed", "widened_by"),
    )

    grade: str
    """One of GRADES."""
    runs: int
    """Measured runs of that grade."""
    mean_error: float | None
    """Mean of their absolute errors, each run predicted without its source."""
    nearest_run: str | None
    nearest_error: float | None
    """Predicted over measured step time of that run, less 1."""
    nearest_distance: str
    """In words, what it has in common with the answer and what not."""
    borrowed: tuple[tuple[str, str], ...]
    """Figures of the accelerator that are another's, and whose."""
    assumed: int
    """Figures of the profiles that bear on the answer and were neither measured nor fitted."""
    widened_by: Mapping[str, float]
    """Factors on the interval because no calibration run was alike, by cause; 1 where some were."""

    @property
    def borrowed_figures(self) -> list[dict[str, str]]:
        """The same by name, as JSON says them."""
        return [{"figure": name, "from": other} for name, other in self.borrowed]

    def sentences(self) -> list[str]:
        """What a reader has to know, most important first."""
        words = {"unmeasured": "nobody has measured anything like it"}
        said = [f"Evidence: {words.get(self.grade, self.grade)}"]
        if self.mean_error is not None:
            said[0] += (
                f"; {self.runs} such runs were {100 * self.mean_error:.1f} % off in the mean,"
                " predicted without their source"
            )
        if self.nearest_run is not None and self.nearest_error is not None:
            off = f"{100 * abs(self.nearest_error):.1f} % too {_side(self.nearest_error)}"
            said.append(
                f"Nearest run: {self.nearest_run} ({self.nearest_distance}), predicted {off}"
            )
        others = sorted({other for _, other in self.borrowed})
        if others:
            said.append(f"Figures borrowed from {', '.join(others)}")
        grown = [f"{name} x {f:.3g}" for name, f in self.widened_by.items() if f > 1.0]
        if grown:
            said.append(f"Intervals widened, no calibration run was alike: {', '.join(grown)}")
        return said


def _side(error: float) -> str:
    """On which side of the measured step a prediction lies."""
    return "short" if error < 0.0 else "long"


def evidence_card(
    workload: Workload,
    accelerator: Accelerator,
    software: Software,
    gpus: int,
    *,
    widened_by: Mapping[str, float],
    assumed: int,
    without: str = "",
) -> Card:
    """Find the measured runs that stand behind an answer.

    Parameters
    ----------
    workload, accelerator, software
        What is trained, on what, with what.
    gpus : int
        Accelerators of the run.
    widened_by : mapping
        See ``cost/uncertainty.py``.
    assumed : int
        Figures behind the answer that were neither measured nor fitted.
    without : str
        Name of a run that does not count: that which is predicted.
    """
    asked, runs = run_kind(workload, accelerator, software, gpus), load_evidence_runs()
    others = runs.words["run_id"] != without
    grade, alike = _graded(asked, runs, others, exact=not software.stands_for)
    nearest = _nearest(asked, runs, others)
    known = nearest is not None
    return Card(
        grade=grade,
        runs=int(alike.sum()),
        mean_error=float(np.abs(runs.error[alike]).mean()) if alike.any() else None,
        nearest_run=str(runs.words["run_id"][nearest]) if known else None,
        nearest_error=float(runs.error[nearest]) if known else None,
        nearest_distance=_in_words(asked, runs.kind_of(nearest)) if nearest is not None else "",
        borrowed=_borrowed(accelerator),
        assumed=assumed,
        widened_by=dict(widened_by),
    )


def run_kind(
    workload: Workload, accelerator: Accelerator, software: Software, gpus: int
) -> RunKind:
    """What counts of a run where others are looked for that are alike."""
    return RunKind(
        device=accelerator.name,
        generation=accelerator.generation,
        stack=software.stack,
        software=software.framework or software.name,
        kind=workload.kind,
        precision=workload.recipe.matrix_type,
        gpus=gpus,
        parameters=workload.architecture.active_parameters,
    )


def _graded(asked: RunKind, runs: EvidenceRuns, others: Flags, *, exact: bool) -> tuple[str, Flags]:
    """The strongest grade of which there are enough runs, and which they are."""
    generation = others & runs.same(asked, "generation")
    like = generation & runs.same(asked, "kind")
    here = like & runs.same(asked, "device", "stack", "precision") & exact
    model = runs.doublings(asked, "parameters")
    sized = (runs.doublings(asked, "gpus") <= _SAME_SIZE) & (model <= _SAME_SIZE)
    half = runs.same(asked, "stack") | runs.same(asked, "precision")
    classed = like & half & (model <= _SAME_CLASS)
    levels = ((here & sized, _ENOUGH), (classed, _ENOUGH), (generation, 1))
    for grade, (alike, enough) in zip(GRADES, levels, strict=False):
        if alike.sum() >= enough:
            return grade, alike
    return GRADES[-1], np.zeros_like(others)


_UNLIKE = {
    **{"generation": 4.0, "kind": 3.0, "stack": 2.0, "precision": 1.5},
    **{"device": 1.0, "software": 0.5},
}
"""How much it counts that a run is another in this."""
_A_DOUBLING = {"gpus": 0.1, "parameters": 0.3}
"""How much it counts that a run has twice as many, or half."""


def _nearest(asked: RunKind, runs: EvidenceRuns, others: Flags) -> int | None:
    """The run that is least unlike, the first by name of several; None without any."""
    if not others.any():
        return None
    unlike = np.zeros(len(runs.error))
    for name, weight in _A_DOUBLING.items():
        unlike = unlike + weight * runs.doublings(asked, name)
    for name, weight in _UNLIKE.items():
        unlike = unlike + weight * ~runs.same(asked, name)
    return int(np.argmin(np.where(others, unlike, np.inf)))


def _in_words(asked: RunKind, run: RunKind) -> str:
    """What a run is that the answer is not, and its size."""
    names = ("device", "software", "kind", "precision")
    unlike = [f"{n} {getattr(run, n)}" for n in names if getattr(run, n) != getattr(asked, n)]
    alike = f"alike but for {', '.join(unlike)}" if unlike else "alike"
    size = f"{run.parameters / 1e9:.3g} B parameters a token, " if _other_size(asked, run) else ""
    return f"{alike}; {size}{run.gpus:,} GPU{'s' if run.gpus > 1 else ''}"


def _other_size(asked: RunKind, run: RunKind) -> bool:
    """Whether a run trained a model of a size that is not the answer's."""
    return abs(np.log2(run.parameters / asked.parameters)) > _SAME_SIZE


def _borrowed(accelerator: Accelerator) -> tuple[tuple[str, str], ...]:
    """Tables of an accelerator's profile that are another's."""
    if accelerator.name not in catalogue.names("accelerators"):
        return ()
    raw = read_toml(catalogue.find("accelerators", accelerator.name))
    lent, base = raw.get("borrowed"), raw.get("base")
    found = [(str(table), str(lent["of"])) for table in lent["tables"]] if lent else []
    return tuple(found + ([("all that it does not state", str(base))] if base else []))
