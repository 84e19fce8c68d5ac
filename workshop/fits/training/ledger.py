"""Writing ``hardware_profiles/uncertainty/runs.csv``: measured runs, how far off each was unseen.

Rows of new tables have the error of their first prediction (``validation/first_seen``), which no
later change touches; runs that figures were fitted to that with their source left out of the fit
(``errors.py``), all others that of today. ``python -m workshop.fits.training.ledger`` keeps the
errors of calibration runs, writes the rest again and fits what ``likeness.toml`` says of new runs.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tomlkit

from simulator import catalogue
from simulator.cost.step import evaluate
from simulator.cost.uncertainty import traits
from simulator.errors import InputError
from simulator.evidence.evidence_runs import COLUMNS, NUMBERS, load_evidence_runs
from simulator.evidence.likeness import Traits, axes_text, load_likeness
from simulator.files import read_csv
from simulator.measured.checks import readings
from simulator.measured.replay import NotReplayable, Run, Tables, load_tables, replay
from simulator.measured.rows import MeasuredRun, flag, read_runs
from simulator.scoring.first_sight import AS_WRITTEN
from workshop.cases.first_sight import read_first_sight, written_tables
from workshop.cases.interval_fit import (
    fitted_device,
    fitted_spread,
    fitted_stand_in,
    fitted_untuned_experts,
)

TABLES = ("calibrate", "test", "second_calibrate", "second_test", "vendor_test", "second_memory")
"""Of ``validation/runs``, in the order in which they joined; tables of first sight come after."""


def write_ledger(left_out: Mapping[str, float]) -> Path:
    """Write the table; `left_out` has errors (predicted over measured, less 1) of fitted runs."""
    path = catalogue.folder("hardware_profiles") / "uncertainty" / "runs.csv"
    rows = [*_of_shipped_tables(left_out), *_of_first_sight()]
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    load_evidence_runs.cache_clear()
    return path


def _of_shipped_tables(left_out: Mapping[str, float]) -> Iterator[dict[str, Any]]:
    words = load_tables()
    for name in TABLES:
        for row in read_runs([catalogue.folder("validation") / "runs" / f"{name}.csv"]):
            if row.get("excluded") or flag(row.fields, "composed"):
                continue
            run, measured_s = _run(row, words), _measured(row)
            if run is not None and measured_s is not None:
                step_s, known = _traits(row, run, measured_s)
                error = left_out.get(row.get("run_id"), step_s / measured_s - 1.0)
                yield _line(row, name, known, error)


def _of_first_sight() -> Iterator[dict[str, Any]]:
    """Rows as first written; the name of their software as it stands, which may be known better."""
    words = load_tables()
    for path in written_tables():
        name = path.name.removesuffix(AS_WRITTEN)
        seen = read_first_sight(path.with_name(f"{name}.csv"))
        today = catalogue.folder("validation") / "runs" / f"{name}.csv"
        rows = read_runs([today]) if today.is_file() else []
        standing = {row.get("run_id"): row for row in rows}
        for row in read_runs([path]):
            run, measured_s = _run(row, words), _measured(row)
            first = seen.get(row.get("run_id"))
            if run is None or measured_s is None or first is None:
                continue
            named = standing.get(row.get("run_id"))
            known = _run(named, words) if named is not None else None
            if known is not None:
                run = replace(run, software=_named(run, known))
            yield _line(row, name, _traits(row, run, measured_s)[1], first[0] / measured_s - 1.0)


def _named(run: Run, known: Run) -> Any:
    """The software of a run under the name that it is known by."""
    return replace(
        run.software, framework=known.software.framework, stands_for=known.software.stands_for
    )


def _run(row: MeasuredRun, words: Tables) -> Run | None:
    try:
        return replay(row.fields, words, where=row.where) if row.fault is None else None
    except (InputError, NotReplayable):
        return None


def _measured(row: MeasuredRun) -> float | None:
    try:
        return readings(row).step_time_s
    except InputError:
        return None


def _traits(row: MeasuredRun, run: Run, measured_s: float) -> tuple[float, Traits]:
    """Predicted step in seconds, and what sets it, with the MFU that was measured."""
    estimate = evaluate(run.layout, run.workload, run.cluster, run.software)
    known = traits(estimate, run.workload, run.cluster, run.software)
    if row.get("moe_balanced").lower() == "false" and run.workload.architecture.is_moe:
        known = replace(known, words={**known.words, "routing": "natural"})
    step_s = float(estimate.step_time_s[0])
    mfu = known.numbers["mfu"] * step_s / measured_s
    return step_s, replace(known, numbers={**known.numbers, "mfu": mfu})


def _line(row: MeasuredRun, table: str, known: Traits, error: float) -> dict[str, Any]:
    return {
        "run_id": row.get("run_id"),
        "source": row.get("source"),
        "table": table,
        **known.words,
        "months": "" if np.isnan(known.months) else f"{known.months:.0f}",
        **{name: f"{float(known.numbers[name][0]):.4g}" for name in NUMBERS},
        **{name: axes_text(known.axes[name][0]) for name in ("uses", "leaves")},
        "error": f"{error:.4f}",
    }


def kept_errors() -> dict[str, float]:
    """Errors of calibration runs that the table holds: the fit that left their source out."""
    path = catalogue.folder("hardware_profiles") / "uncertainty" / "runs.csv"
    return {
        row["run_id"]: float(row["error"])
        for _, row in read_csv(path)
        if row["table"] == "calibrate"
    }


def write_rules() -> dict[str, float]:
    """Fit what runs at first sight say of new ones, and write it into ``likeness.toml``."""
    fitted = {
        "spread": fitted_spread(),
        "stand_in": fitted_stand_in(),
        "untuned_experts": fitted_untuned_experts(),
        "untimed_device": fitted_device(),
    }
    path = catalogue.find("uncertainty", "likeness")
    document = tomlkit.parse(path.read_text(encoding="utf-8"))
    for name, value in fitted.items():
        document[name]["value"] = float(
            f"{value:.3g}" if name == "untimed_device" else f"{value:.2g}"
        )
    path.write_text(tomlkit.dumps(document), encoding="utf-8")
    load_likeness.cache_clear()
    return fitted


if __name__ == "__main__":
    print("written:", write_ledger(kept_errors()))
    print("fitted:", write_rules())
