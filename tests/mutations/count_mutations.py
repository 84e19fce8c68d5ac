"""Count what mutated inputs of every importer come to: ``validation/mutations.csv``.

    python -m tests.mutations.count_mutations [--mutator drawn] [--inputs 10000] [--more]
        [IMPORTER ...]

Rows of importers that are not named stay as they are; with ``--more`` so many inputs are drawn
behind those of a row, and added to it. Seconds are those of the processor.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path

from tests.mutations.importers import IMPORTERS, MUTATORS, ROOT, Room

TABLE = ROOT / "validation" / "mutations.csv"
COLUMNS = (
    *("importer", "mutator", "inputs", "commands", "answered", "refused", "crashes"),
    *("slowest_s", "slowest_s_per_mb", "most_memory_mib", "date"),
)


_ADDED = COLUMNS[2:7]
_LARGEST = COLUMNS[7:10]
Rows = dict[tuple[str, str], dict[str, str]]
"""By importer and mutator."""


def counted(job: tuple[str, str, int, int]) -> tuple[dict[str, str], list[str]]:
    """Row of the next `inputs` of one importer after the first ones, and its crashes."""
    name, mutator, first, inputs = job
    with (
        tempfile.TemporaryDirectory() as folder,
        Room(Path(folder), IMPORTERS[name], mutator=mutator) as room,
    ):
        for number in range(first + 1, first + inputs + 1):
            room.run(number)
    tally = room.tally
    row = {
        "importer": name,
        "mutator": mutator,
        "inputs": str(tally.inputs),
        "commands": str(tally.whole),
        "answered": str(tally.taken),
        "refused": str(tally.refused),
        "crashes": str(len(tally.crashes)),
        "slowest_s": f"{tally.slowest_s:.2f}",
        "slowest_s_per_mb": f"{tally.slowest_s_per_mb:.2f}",
        "most_memory_mib": f"{tally.most_memory_bytes / 2**20:.0f}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    return row, tally.crashes


def _rows() -> Rows:
    if not TABLE.exists():
        return {}
    with TABLE.open(newline="") as file:
        return {(row["importer"], row["mutator"]): row for row in csv.DictReader(file)}


def _sum(before: dict[str, str], row: dict[str, str]) -> dict[str, str]:
    """Both rows in one: counts added, the larger of what is a most."""
    added = {name: str(int(before[name]) + int(row[name])) for name in _ADDED}
    return row | added | {name: max(before[name], row[name], key=float) for name in _LARGEST}


def _write(rows: Rows) -> None:
    order = ((name, mutator) for mutator in MUTATORS for name in IMPORTERS)
    with TABLE.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[key] for key in order if key in rows)


def main() -> int:
    """Count and write; 1 where anything crashed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="IMPORTER", default=[*IMPORTERS])
    parser.add_argument("--mutator", choices=MUTATORS, default=MUTATORS[0])
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--more", action="store_true", help="draw behind those of a row")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    rows = _rows()
    crashed = 0
    before = rows.copy() if given.more else {}
    reached = {key: int(row["inputs"]) for key, row in before.items()}
    keys = [(name, given.mutator) for name in given.names]
    jobs = [(*key, reached.get(key, 0), given.inputs) for key in keys]
    with get_context("spawn").Pool(given.processes, maxtasksperchild=1) as pool:
        for row, crashes in pool.imap_unordered(counted, jobs):
            key = name, _ = row["importer"], row["mutator"]
            rows[key] = _sum(before[key], row) if key in before else row
            _write(rows)
            crashed += len(crashes)
            for crash in crashes[:20]:
                sys.stderr.write(f"{name}: {crash}\n")
    return 1 if crashed else 0


if __name__ == "__main__":
    raise SystemExit(main())
