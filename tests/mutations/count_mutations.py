"""Count what mutated inputs of every importer come to: ``validation/mutations.csv``.

    python -m tests.mutations.count_mutations [--inputs 10000] [--more] [IMPORTER ...]

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

from tests.mutations.importers import IMPORTERS, ROOT, Room

TABLE = ROOT / "validation" / "mutations.csv"
COLUMNS = (
    *("importer", "inputs", "commands", "answered", "refused", "crashes"),
    *("slowest_s", "slowest_s_per_mb", "most_memory_mib", "date"),
)


_ADDED = COLUMNS[1:6]
_LARGEST = COLUMNS[6:9]


def counted(job: tuple[str, int, int]) -> tuple[dict[str, str], list[str]]:
    """Row of the next `inputs` of one importer after the first ones, and its crashes."""
    name, first, inputs = job
    with tempfile.TemporaryDirectory() as folder, Room(Path(folder), IMPORTERS[name]) as room:
        for number in range(first + 1, first + inputs + 1):
            room.run(number)
    tally = room.tally
    row = {
        "importer": name,
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


def _rows() -> dict[str, dict[str, str]]:
    if not TABLE.exists():
        return {}
    with TABLE.open(newline="") as file:
        return {row["importer"]: row for row in csv.DictReader(file)}


def _sum(before: dict[str, str], row: dict[str, str]) -> dict[str, str]:
    """Both rows in one: counts added, the larger of what is a most."""
    added = {name: str(int(before[name]) + int(row[name])) for name in _ADDED}
    return row | added | {name: max(before[name], row[name], key=float) for name in _LARGEST}


def _write(rows: dict[str, dict[str, str]]) -> None:
    with TABLE.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[name] for name in IMPORTERS if name in rows)


def main() -> int:
    """Count and write; 1 where anything crashed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="IMPORTER", default=[*IMPORTERS])
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--more", action="store_true", help="draw behind those of a row")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    rows = _rows()
    crashed = 0
    before = rows.copy() if given.more else {}
    reached = {name: int(row["inputs"]) for name, row in before.items()}
    jobs = [(name, reached.get(name, 0), given.inputs) for name in given.names]
    with get_context("spawn").Pool(given.processes, maxtasksperchild=1) as pool:
        for row, crashes in pool.imap_unordered(counted, jobs):
            name = row["importer"]
            rows[name] = _sum(before[name], row) if name in before else row
            _write(rows)
            crashed += len(crashes)
            for crash in crashes[:20]:
                sys.stderr.write(f"{name}: {crash}\n")
    return 1 if crashed else 0


if __name__ == "__main__":
    raise SystemExit(main())
