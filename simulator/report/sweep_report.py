"""What a sweep writes: a document, a table as CSV and Parquet, and a page to sort."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator._version import __version__
from simulator.plain_files import write_files
from simulator.report.document import SCHEMA, plain
from simulator.report.page import environment
from simulator.report.palette import PALETTE

if TYPE_CHECKING:
    from simulator.decisions.sweeping import Sweep

__all__ = ["sweep_document", "sweep_page", "write_sweep"]

_SHOWN = {
    "feasible": "can run",
    "layout": "layout",
    "step_time_s": "step, s",
    "mfu": "MFU",
    "days_p50": "days",
    "days_p90": "days P90",
    "usd_p50": "USD",
    "kwh_p50": "kWh",
    "evidence": "evidence",
    "note": "note",
}
"""Columns of the page beside the fields that vary, and their names."""


def sweep_document(found: Sweep) -> dict[str, Any]:
    """Write a sweep as a document: the grid, and a row per point."""
    return {
        "schema": SCHEMA,
        "version": __version__,
        "command": "sweep",
        "grid": plain(found.grid.fields),
        "common": plain(found.grid.common),
        "rows": [plain(row) for row in found.rows],
    }


def sweep_page(found: Sweep) -> str:
    """Write a sweep as a page whose table can be sorted."""
    fields = list(found.grid.fields)
    rows = [[(row[name], _text(row[name])) for name in (*fields, *_SHOWN)] for row in found.rows]
    problems = [row["problem"] for row in found.rows if row["problem"]]
    sections = {"problems": "Points that could not be searched", "points": "Points"}
    if not problems:
        del sections["problems"]
    return (
        environment()
        .get_template("offers_page.html.j2")
        .render(
            title=f"{found.grid.path.stem}: {len(rows):,} points",
            lead=f"{len(problems):,} of them bad; the best layout of each of the others",
            columns=[*fields, *_SHOWN.values()],
            rows=rows,
            problems=problems,
            sections=sections,
            figures=[],
            palette={name: {"light": c.light, "dark": c.dark} for name, c in PALETTE.items()},
        )
    )


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def write_sweep(found: Sweep, out_dir: Path) -> list[Path]:
    """Write the document, the CSV and the page of a sweep, and Parquet where pyarrow is there."""
    table = found.to_frame()
    document = json.dumps(sweep_document(found), indent=2, allow_nan=False) + "\n"
    contents = {
        "sweep.json": document.encode(),
        "sweep.csv": table.to_csv(index=False).encode(),
        "sweep.html": sweep_page(found).encode(),
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
