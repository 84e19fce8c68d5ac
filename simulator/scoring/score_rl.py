"""Measured steps of reinforcement learning beside what is predicted of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from simulator.errors import InfeasibleError, InputError
from simulator.measured.rows import MeasuredRun
from simulator.reinforcement.evidence import (
    RLRun,
    interval_s,
    read_rl_table,
    scenario_of,
    step_evidence,
)
from simulator.reinforcement.rl_step import rl_step
from simulator.scoring.scores import ScoredRow, step_errors


def score_rl(
    paths: Iterable[Path], progress: Callable[[int, int], None] | None = None
) -> tuple[list[ScoredRow], list[str]]:
    """Predict every row of such tables; returns the rows, and why a file could not be used."""
    runs: list[RLRun] = []
    problems: list[str] = []
    for path in paths:
        try:
            runs += read_rl_table(path)
        except InputError as error:
            problems += error.problems
    rows = []
    for done, run in enumerate(runs, start=1):
        rows.append(_score(run))
        if progress is not None:
            progress(done, len(runs))
    return rows, problems


def _score(run: RLRun) -> ScoredRow:
    row = MeasuredRun(where=run.where, fields=run.fields)
    try:
        scenario = scenario_of(run)
        step = rl_step(scenario)
        measured = run.measured_s
    except (InputError, InfeasibleError) as error:
        return ScoredRow(run=row, status="skipped", reason=str(error))
    card = step_evidence(scenario, step, without=run.fields["run_id"])
    p10_s, p90_s = interval_s(card, step.step_time_s)
    return ScoredRow(
        run=row,
        status="ok",
        predicted_step_s=step.step_time_s,
        measured_step_s=measured,
        p10_s=p10_s,
        p90_s=p90_s,
        evidence=card,
        terms_s=step.parts_s,
    )


def rl_summary(rows: Sequence[ScoredRow]) -> dict[str, Any] | None:
    """Errors of steps, and by what rows say; None without such a table.

    ``by_use`` tells rows that figures were fitted to from those that nothing was fitted to.
    """
    if not rows:
        return None
    return {
        **step_errors(rows),
        "by_use": _by(rows, lambda run: "fitted" if run.fitted else "not fitted"),
        "by_policy": _by(rows, lambda run: "on policy" if run.on_policy else "stale"),
        "by_device": _by(rows, lambda run: run.fields.get("section", "").split(" ")[0] or "H100"),
        "by_model": _by(rows, lambda run: run.fields["model"]),
        "skipped": sum(row.status == "skipped" for row in rows),
    }


def _by(rows: Sequence[ScoredRow], word: Callable[[RLRun], str]) -> dict[str, dict[str, Any]]:
    some: dict[str, list[ScoredRow]] = {}
    for row in rows:
        if row.status == "ok":
            run = RLRun(where=row.run.where, fields=row.run.fields)
            some.setdefault(word(run), []).append(row)
    return {name: step_errors(some[name]) for name in sorted(some)}
