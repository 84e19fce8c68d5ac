"""What a sweep writes: a document, a table as CSV and Parquet, and a page to sort."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.plain_files import write_files
from simulator.questions.compare.offers_page import offers_page
from simulator.units import show_kwh, show_number_of_days, show_percent, show_seconds, show_usd

if TYPE_CHECKING:
    from simulator.questions.sweep.answer import Sweep

_SHOWN = {
    "days_p50": "days",
    "days_p90": "P90",
    "usd_p50": "USD",
    "kwh_p50": "energy",
    "step_time_s": "step",
    "mfu": "MFU",
    "layout": "layout",
    "evidence": "evidence",
    "note": "note",
}
"""Columns of the page beside the fields that vary, and their names."""


def problem_lines(sweep: Sweep) -> list[str]:
    """Say what is wrong with points, once each: a field that all share is wrong in all of them."""
    points: dict[str, list[int]] = {}
    place = f"{sweep.grid.path}: "
    for row in sweep.rows:
        for line in str(row["problem"] or "").splitlines():
            said = line.removeprefix(f"{place}point {row['point']}: ")
            points.setdefault(said, []).append(row["point"])
    return [f"{place}{_numbers(numbers)}: {said}" for said, numbers in points.items()]


def _numbers(points: list[int]) -> str:
    """Numbers of points in order, those that follow one another as a range."""
    runs: list[list[int]] = []
    for point in points:
        if runs and point == runs[-1][-1] + 1:
            runs[-1].append(point)
        else:
            runs.append([point])
    words = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    return f"point{'s' * (len(points) > 1)} {', '.join(words)}"


def sweep_page(sweep: Sweep) -> str:
    """Write a sweep as a page whose table can be sorted."""
    fields = list(sweep.grid.fields)
    told = [
        row if row["layout"] else {**row, "layout": row["note"], "note": ""} for row in sweep.rows
    ]
    shown = [name for name in _SHOWN if name != "note" or any(row[name] for row in told)]
    rows = [[(row[n], _text(n, row[n]), "") for n in (*fields, *shown)] for row in told]
    bad = sum(row["problem"] is not None for row in sweep.rows)
    return offers_page(
        "sweep",
        f"{sweep.grid.path.stem}: {len(rows):,} points",
        f"{bad:,} of them bad; the best layout of each of the others",
        [
            *((_name(name, fields), isinstance(sweep.rows[0][name], str)) for name in fields),
            *((_SHOWN[name], name in _WORDS) for name in shown),
        ],
        rows,
        table="Points",
        problems=("Points that could not be searched", problem_lines(sweep)) if bad else None,
    )


_WORDS = ("layout", "evidence", "note")

_SHOW: dict[str, Callable[[float], str]] = {
    "days_p50": show_number_of_days,
    "days_p90": show_number_of_days,
    "usd_p50": lambda usd: show_usd(usd).removesuffix(" USD"),
    "kwh_p50": show_kwh,
    "step_time_s": show_seconds,
    "mfu": show_percent,
}


def _name(field: str, fields: list[str]) -> str:
    """The last part of a field's name, where that tells it from the others."""
    last = field.rpartition(".")[2]
    return last if sum(name.rpartition(".")[2] == last for name in fields) == 1 else field


def _text(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name in _SHOW:
        return _SHOW[name](float(value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def write_sweep(sweep: Sweep, out_dir: Path) -> list[Path]:
    """Write the document, the CSV and the page of a sweep, and Parquet where pyarrow is there."""
    table = sweep.to_frame()
    document = json.dumps(sweep.document(), indent=2, allow_nan=False) + "\n"
    contents = {
        "sweep.json": document.encode(),
        "sweep.csv": table.to_csv(index=False).encode(),
        "sweep.html": sweep_page(sweep).encode(),
    }
    if (parquet := _parquet(table)) is not None:
        contents["sweep.parquet"] = parquet
    placed = {out_dir / name: content for name, content in contents.items()}
    write_files(placed)
    return list(placed)


def _parquet(table: Any) -> bytes | None:
    """The table as Parquet; None without pyarrow, which is an optional extra."""
    import importlib.util

    if importlib.util.find_spec("pyarrow") is None:
        return None
    out = io.BytesIO()
    table.to_parquet(out, index=False)
    return out.getvalue()
