"""Predicted against measured: every row of tables of measured runs, and the errors by source.

Rows that share model, machine and software are predicted together. A row that cannot be predicted
is kept with the reason. Runs whose step time was composed of profiled parts, not read off a whole
step (their notes say COMPOSED), stay out of every pooled figure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from simulator import catalogue
from simulator.cost.step import Estimate, evaluate
from simulator.errors import InputError
from simulator.layout.layout import Layouts
from simulator.measured.replay import NotReplayable, Run, load_tables, replay
from simulator.measured.rows import (
    LABEL_COLUMNS,
    LAYOUT_COLUMNS,
    MeasuredRun,
    assumed_fields,
    number,
    read_runs,
)
from simulator.planner.outcome import weakest_evidence
from simulator.scoring.scores import BASELINE_EFFICIENCY, ScoredRow, summary
from simulator.units import GIB

__all__ = ["Validation", "validate"]

_DEFAULT_FILES = ("calibrate.csv", "test.csv")
_SAME_TIME = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class Validation:
    """All rows in the order of their files."""

    rows: tuple[ScoredRow, ...]

    @property
    def predicted(self) -> tuple[ScoredRow, ...]:
        """Rows that were predicted."""
        return tuple(row for row in self.rows if row.status == "ok")

    def document(self) -> dict[str, Any]:
        """Return rows and summary as plain dicts, with the keys that stay."""
        return {"rows": [row.document() for row in self.rows], "summary": self.summary()}

    def summary(self) -> dict[str, Any]:
        """Summarise errors and rankings, see :func:`simulator.scoring.scores.summary`."""
        return summary(self.rows)


def validate(
    paths: Sequence[PathLike[str] | str] | PathLike[str] | str = (),
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Validation:
    """Predict every row of tables of measured runs, and score the predictions.

    Parameters
    ----------
    paths : paths, optional
        CSV files as validation/README.md describes them. Without any, the shipped runs: those that
        figures may be fitted on (split ``calibrate``) and those that none ever was (``test``).
    progress : callable, optional
        Told how many rows are done, of how many.

    Raises
    ------
    InputError
        If a file cannot be read as a table of measured runs. What is wrong with one row only is
        the reason why that row is skipped.

    Examples
    --------
    >>> runs = catalogue.folder("validation") / "runs"
    >>> found = validate(runs / "analytic_memory.csv")
    >>> len(found.rows), found.summary()["step"]["n"]
    (8, 0)
    """
    given = [paths] if isinstance(paths, (str, PathLike)) else list(paths)
    folder = catalogue.folder("validation") / "runs"
    files = [Path(path) for path in given] or [folder / name for name in _DEFAULT_FILES]
    runs = read_runs(files)
    rows: dict[int, ScoredRow] = {}
    groups: dict[Any, list[tuple[int, Run]]] = {}
    tables = load_tables()
    for index, run in enumerate(runs):
        try:
            _measured(run)
            replayed = replay(run.fields, tables, where=run.where)
        except (NotReplayable, InputError) as error:
            rows[index] = _skipped(run, error)
        else:
            groups.setdefault(_shared(run), []).append((index, replayed))
    for members in groups.values():
        rows |= _predict([runs[index] for index, _ in members], members)
        if progress is not None:
            progress(len(rows), len(runs))
    return Validation(rows=tuple(rows[index] for index in range(len(runs))))


# --- one row -----------------------------------------------------------------------------


def _measured(run: MeasuredRun) -> dict[str, Any]:
    """What was measured, as fields of a ScoredRow."""
    fields, found = run.fields, dict[str, Any]()
    if run.get("step_time_s"):
        found["measured_step_s"] = number(fields, "step_time_s")
    if run.get("step_time_s") and run.get("tokens_per_s_per_gpu"):
        tokens = number(fields, "global_batch") * number(fields, "seq_len")
        rate = tokens / found["measured_step_s"] / number(fields, "num_gpus")
        stated = number(fields, "tokens_per_s_per_gpu")
        if abs(rate / stated - 1.0) > _SAME_TIME:
            rule = f"must agree with tokens_per_s_per_gpu ({stated:g}, not {rate:.4g})"
            raise InputError(f"{run.where}: step_time_s: {rule}, got {fields['step_time_s']!r}")
    if run.get("peak_memory_gib"):
        found["measured_memory_gib"] = number(fields, "peak_memory_gib")
        found["memory_kind"] = run.get("memory_kind") or "unknown"
    return found


def _skipped(run: MeasuredRun, error: Exception) -> ScoredRow:
    try:
        measured = _measured(run)
    except InputError:
        measured = {}
    return ScoredRow(run=run, status="skipped", reason=str(error), **measured)


def _shared(run: MeasuredRun) -> tuple[tuple[str, str], ...]:
    """Everything that a row says but its layout and its labels."""
    own = {*LAYOUT_COLUMNS, *LABEL_COLUMNS}
    return tuple(sorted((k, v) for k, v in run.fields.items() if v and k not in own))


def _predict(
    runs: Sequence[MeasuredRun], members: Sequence[tuple[int, Run]]
) -> dict[int, ScoredRow]:
    """Predict rows that share model, machine and software."""
    one = members[0][1]
    layouts = Layouts.concatenate(run.layout for _, run in members)
    try:
        estimate = evaluate(layouts, one.workload, one.cluster, one.software)
    except InputError as error:  # the profile lacks a library or type that the row needs
        return {index: _skipped(run, error) for run, (index, _) in zip(runs, members, strict=True)}
    peak = float(one.cluster.accelerator.matrix_flop_per_s[one.workload.recipe.precision])
    baseline_s = estimate.executed_flop / (BASELINE_EFFICIENCY * peak * layouts.world)
    grade = weakest_evidence(one.cluster, one.software)
    rows = {}
    for i, (run, (index, _)) in enumerate(zip(runs, members, strict=True)):
        measured = _measured(run)
        rows[index] = ScoredRow(
            run=run,
            status="ok",
            predicted_step_s=float(estimate.step_time_s[i]),
            predicted_memory_gib=_memory_gib(estimate, i, measured.get("memory_kind")),
            evidence=grade,
            baseline_step_s=float(baseline_s[i]),
            terms_s={name: float(seconds[i]) for name, seconds in estimate.terms_s.items()},
            hidden_s={name: float(seconds[i]) for name, seconds in estimate.hidden_s.items()},
            memory_bytes={kind: float(size[i]) for kind, size in estimate.memory_bytes.items()},
            **_utilisation(estimate, i, one, measured.get("measured_step_s")),
            assumed=assumed_fields(run.fields),
            **measured,
        )
    return rows


def _utilisation(
    estimate: Estimate, i: int, run: Run, measured_s: float | None
) -> dict[str, Any]:
    """MFU of the measured step, over the bf16 peak and over that of the run's own precision."""
    if measured_s is None:
        return {}
    peaks = run.cluster.accelerator.matrix_flop_per_s
    rate = estimate.model_flop / measured_s / float(estimate.layouts.world[i])
    return {
        "measured_mfu": rate / float(peaks["bf16"]),
        "measured_mfu_own": rate / float(peaks[run.workload.recipe.precision]),
    }


def _memory_gib(estimate: Estimate, i: int, kind: str | None) -> float:
    """Memory of the fullest rank as a reading of this kind would show it.

    torch counts neither communicators as allocated nor as reserved; fragmentation is what it
    reserves above what it allocates.
    """
    without = {"allocated": ("communicators", "fragmentation"), "reserved": ("communicators",)}
    left_out = sum(float(estimate.memory_bytes[name][i]) for name in without.get(kind or "", ()))
    return (float(estimate.memory_total_bytes[i]) - left_out) / GIB
