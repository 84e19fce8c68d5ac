"""Predictions of every sixth shipped run as they stood when somebody last looked at what moved.

``python -m tests.scoring.held_runs`` predicts them again, says what moved and writes the file.
"""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path

from simulator import catalogue
from simulator.plain_files import write_files
from simulator.scoring.validation import validate

PATH = Path(__file__).resolve().parents[1] / "data" / "held_runs.csv"
HEAD = ("run_id", "step_s", "p10_s", "p90_s", "memory_gib")
EVERY = 6

Held = dict[str, tuple[float, ...]]


def predicted() -> Held:
    """Step, P10, P90 in seconds and memory in GiB by run, of all that are predicted."""
    with tempfile.TemporaryDirectory() as folder:
        places = []
        for table in sorted((catalogue.folder("validation") / "runs").glob("*.csv")):
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


def held() -> Held:
    """The same as the file has them."""
    with PATH.open(newline="", encoding="utf-8") as file:
        return {
            row["run_id"]: tuple(float(row[name]) for name in HEAD[1:])
            for row in csv.DictReader(file)
        }


def main() -> None:
    """Write the file, after a line for each prediction that moved."""
    now, before = predicted(), held() if PATH.is_file() else Held()
    for run, values in now.items():
        if run in before and max(map(_moved, values, before[run])) > 1e-6:
            shown = " ".join(
                f"{100 * (a / b - 1):+.3f} %" for a, b in zip(values, before[run], strict=True)
            )
            print(f"{run}: {' '.join(HEAD[1:])} {shown}")
    lines = [",".join((run, *(f"{value:.8g}" for value in now[run]))) for run in sorted(now)]
    write_files({PATH: ("\n".join([",".join(HEAD), *lines]) + "\n").encode()})
    print(f"{len(now)} runs in {PATH}")


def _moved(value: float, before: float) -> float:
    return abs(value / before - 1.0)


if __name__ == "__main__":
    main()
