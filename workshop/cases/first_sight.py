"""Tables of runs at first sight, as they were written then, and as they stand: errors and edits.

``validation/first_seen/TABLE.csv`` holds what was predicted before anybody looked at the rows,
``TABLE.as_first_written.csv`` the rows; ``validation/runs/TABLE.csv`` is the table as it stands,
where it joined the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simulator import catalogue
from simulator.files import read_csv
from simulator.measured.rows import MeasuredRun
from simulator.measured.table_kinds import table_kind
from simulator.scoring.first_sight import AS_WRITTEN, as_written
from simulator.scoring.scores import ScoredRow
from simulator.scoring.validation import validate

_TEXT = ("notes", "assumed", "source", "split")
"""Columns that bear on no prediction."""


def written_tables() -> list[Path]:
    """Tables of training runs as they were at first sight, in the order of their names."""
    folder = catalogue.folder("validation") / "first_seen"
    return [path for path in sorted(folder.glob(f"*{AS_WRITTEN}")) if table_kind(path) == "runs"]


def read_first_sight(path: Path) -> dict[str, tuple[float, float, float, str]]:
    """Read step, P10, P90 (seconds) and grade at first sight, by run; refused runs are left out."""
    return {
        row["run_id"]: (
            float(row["predicted_step_s"]),
            float(row["p10_s"]),
            float(row["p90_s"]),
            row["grade"],
        )
        for _, row in read_csv(path)
        if row["predicted_step_s"]
    }


def first_sight() -> list[dict[str, Any]]:
    """Score every table that was kept at first sight, in the order of their names.

    Returns
    -------
    list of dict
        ``table``, ``commit``, ``rows``, ``sources``; ``first``, ``as_written``, ``standing``: runs,
        mean and median of absolute errors, bias and share inside P10 to P90 of the predictions at
        first sight, of today's on the rows as first written, and of today's on the rows as they
        stand (None where the table joined no other); ``changes``: every kind of later exclusion and
        edit, with its runs and their mean error before and after.
    """
    paths = written_tables()
    return [_table(path.with_name(path.name.replace(AS_WRITTEN, ".csv"))) for path in paths]


def _table(path: Path) -> dict[str, Any]:
    written = validate(as_written(path)).rows
    today = catalogue.folder("validation") / "runs" / path.name
    standing = validate(today).rows if today.is_file() else ()
    seen = read_first_sight(path)
    lines = [row for _, row in read_csv(path)]
    return {
        "table": path.stem,
        "commit": lines[0]["commit"],
        "rows": len(lines),
        "sources": len({row.run.get("source") for row in written}),
        "first": _seen_figures(written, seen),
        "as_written": _figures(written),
        "standing": _figures(standing) if standing else None,
        "changes": _changes(written, standing),
    }


def _seen_figures(
    rows: Iterable[ScoredRow], seen: Mapping[str, tuple[float, float, float, str]]
) -> dict[str, Any]:
    """Figures of the predictions at first sight."""
    known = [
        (seen[row.run.get("run_id")], row.measured_step_s)
        for row in rows
        if row.run.get("run_id") in seen and row.measured_step_s is not None
    ]
    errors = [step_s / measured_s - 1.0 for (step_s, *_), measured_s in known]
    inside = [low_s <= measured_s <= high_s for (_, low_s, high_s, _), measured_s in known]
    return _errors(errors, inside)


def _figures(rows: Sequence[ScoredRow]) -> dict[str, Any]:
    """Figures of the predictions of today."""
    known = [row for row in rows if row.step_error is not None and row.interval is not None]
    errors = [row.step_error for row in known if row.step_error is not None]
    inside = [low <= 1.0 <= high for row in known if row.interval for low, high in [row.interval]]
    return _errors(errors, inside)


def _errors(errors: Sequence[float], inside: Sequence[bool]) -> dict[str, Any]:
    if not errors:
        return {"n": 0, "mape": None, "median_ape": None, "bias": None, "inside": None}
    size = np.abs(errors)
    return {
        "n": len(errors),
        "mape": float(size.mean()),
        "median_ape": float(np.median(size)),
        "bias": float(np.mean(errors)),
        "inside": float(np.mean(inside)),
    }


def _changes(written: Sequence[ScoredRow], standing: Sequence[ScoredRow]) -> list[dict[str, Any]]:
    """Kinds of exclusions and edits, the most runs first; empty where nothing can be compared."""
    if not standing:
        return []
    now = {row.run.get("run_id"): row for row in standing}
    before = {row.run.get("run_id"): row for row in written}
    kinds: dict[str, list[tuple[ScoredRow | None, ScoredRow | None]]] = {}
    for name in (*before, *(name for name in now if name not in before)):
        what = _change(before.get(name), now.get(name))
        if what:
            kinds.setdefault(what, []).append((before.get(name), now.get(name)))
    lines = [
        {"change": what, "runs": len(pairs)}
        | {"before": _mean(old for old, _ in pairs), "after": _mean(new for _, new in pairs)}
        for what, pairs in kinds.items()
    ]
    return sorted(lines, key=lambda line: (-line["runs"], line["change"]))


def _change(old: ScoredRow | None, new: ScoredRow | None) -> str:
    """What was done to a run, in words; empty where nothing that bears on a prediction was."""
    if old is None:
        return "added"
    if new is None:
        return "removed"
    if new.run.get("excluded") and not old.run.get("excluded"):
        return f"excluded: {new.run.get('excluded')}"
    edited = [name for name in _columns(old.run, new.run) if old.run.get(name) != new.run.get(name)]
    return ", ".join(f"{name} {_values(name, old.run, new.run)}" for name in edited)


def _columns(old: MeasuredRun, new: MeasuredRun) -> list[str]:
    names = Counter([*old.fields, *new.fields])
    return sorted(name for name in names if name not in _TEXT)


def _values(name: str, old: MeasuredRun, new: MeasuredRun) -> str:
    return f"{old.get(name) or 'blank'} -> {new.get(name) or 'blank'}"


def _mean(rows: Iterable[ScoredRow | None]) -> float | None:
    """Mean absolute error of today's predictions."""
    errors = [abs(row.step_error) for row in rows if row and row.step_error is not None]
    return float(np.mean(errors)) if errors else None
