"""First sight: what was predicted of measured runs before anybody looked at them.

``foreshard validate TABLE --first-seen OUT.csv`` writes the predictions once, and the table as it
was beside them. Neither is edited afterwards: errors at first sight are what a new run may expect.
"""

from __future__ import annotations

import csv
import io
import subprocess
from collections.abc import Iterable
from pathlib import Path

from simulator import catalogue
from simulator._version import __version__
from simulator.errors import InputError
from simulator.plain_files import read_text, write_files
from simulator.scoring.scores import ScoredRow

COLUMNS = ("run_id", "commit", "predicted_step_s", "p10_s", "p90_s", "grade", "reason")

AS_WRITTEN = ".as_first_written.csv"
"""What follows the name of a table that is kept as it was at first sight."""


def as_written(predictions: Path) -> Path:
    """Where the table of runs stands whose first predictions a file holds."""
    return predictions.with_name(predictions.stem + AS_WRITTEN)


def check_unwritten(option: str, path: Path, tables: Iterable[Path]) -> None:
    """Refuse a place that holds predictions already, and more or less than one table."""
    places = list(tables)
    if len(places) != 1:
        found = ", ".join(map(str, places)) or "none"
        raise InputError(f"{option}: must come with exactly one table of runs, got {found}")
    if path.suffix != ".csv":
        raise InputError(f"{option}: must be a CSV file, got {str(path)!r}")
    for place in (path, as_written(path)):
        if place.exists() and place.resolve() != places[0].resolve():
            raise InputError(
                f"{option}: must be a new file: what was said at first sight is never written"
                f" again, got {str(place)!r}"
            )


def write_first_sight(rows: Iterable[ScoredRow], path: Path, table: Path) -> list[Path]:
    """Write what was predicted of `rows`, and their table beside it; return both paths."""
    commit = current_commit()
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(COLUMNS)
    for row in rows:
        numbers = ["" if x is None else x for x in (row.predicted_step_s, row.p10_s, row.p90_s)]
        grade = row.evidence.grade if row.evidence else ""
        reason = (row.reason or "").partition("\n")[0]
        lines.writerow([row.run.get("run_id"), commit, *numbers, grade, reason])
    copy = as_written(path)
    contents = {path: text.getvalue().encode()}
    if copy.resolve() != table.resolve():
        contents[copy] = read_text(table).encode()
    write_files(contents)
    return [path, copy]


def current_commit() -> str:
    """Short name of the commit that predicts, marked where files differ; else the release."""
    words = ("git", "describe", "--always", "--dirty", "--abbrev=8", "--exclude=*")
    root = catalogue.folder("hardware_profiles").parent
    if not (root / ".git").exists():  # installed: a repository around it is another's
        return __version__
    try:
        said = subprocess.run(words, cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return __version__
    return said.stdout.strip() or __version__
