"""Predictions of every sixth shipped run as they stood when somebody last looked at what moved.

``python -m tests.scoring.held_runs`` predicts them again, says what moved and writes the file.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from simulator import catalogue
from simulator.plain_files import write_files
from simulator.scoring.validation import validate

PATH = Path(__file__).resolve().parents[1] / "data" / "held_runs.csv"
HEAD = ("run_id", "step_s", "p10_s", "p90_s", "memory_gib")
EVERY = 6

Held = dict[str, tuple[float, ...]]


def predicted() -> Held:
    """Step, P10, P90 in seconds and memory in GiB by run, of all that are predicted."""
    return of_tables(tables())


def tables() -> list[Path]:
    """The shipped tables of runs."""
    return sorted((catalogue.folder("validation") / "runs").glob("*.csv"))


def of_tables(tables: Iterable[Path]) -> Held:
    """The same of some tables."""
    with tempfile.TemporaryDirectory() as folder:
        places = []
        for table in tables:
            with table.open(newline="", encoding="utf-8") as file:
                head, *rows = csv.reader(file)
            places.append(Path(folder) / table.name)
            with places[-1].open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([head, *rows[::EVERY]])
        rows = validate(places).predicted
    return {
        row.run_id: (row.predicted_step_s, row.p10_s, row.p90_s, row.predicted_memory_gib)
        for row in rows
        if row.predicted_step_s and row.p10_s and row.p90_s and row.predicted_memory_gib
    }


def held(path: Path = PATH) -> Held:
    """The same as a file has them."""
    with path.open(newline="", encoding="utf-8") as file:
        _, *rows = csv.reader(file)
    return {name: tuple(map(float, values)) for name, *values in rows}


def moved(now: Held, before: Held, head: tuple[str, ...]) -> list[str]:
    """A line for each prediction that moved by more than rounding."""
    lines = []
    for name in sorted(now.keys() & before.keys()):
        ratio = np.array(now[name]) / np.array(before[name])
        if np.abs(ratio - 1.0).max() > 1e-6:
            shown = zip(head[1:], 100.0 * (ratio - 1.0), strict=True)
            lines.append(f"{name}: {', '.join(f'{what} {by:+.4f} %' for what, by in shown)}")
    return lines


def write(now: Held, path: Path, head: tuple[str, ...]) -> None:
    """Write a file, after a line for each prediction that moved."""
    print(*moved(now, held(path) if path.is_file() else {}, head), sep="\n")
    lines = [",".join((name, *(f"{value:.8g}" for value in now[name]))) for name in sorted(now)]
    write_files({path: ("\n".join([",".join(head), *lines]) + "\n").encode()})
    print(f"{len(now)} lines in {path}")


if __name__ == "__main__":
    write(predicted(), PATH, HEAD)
