"""What mutated files of every importer came to: ``validation/mutations.csv``.

``tests/mutations/count_mutations.py`` writes the table.
"""

from __future__ import annotations

from typing import Any

from simulator import catalogue
from simulator.files import read_csv

_COUNTS = ("inputs", "commands", "answered", "refused", "crashes")
_SIZES = ("slowest_s", "slowest_s_per_mb", "most_memory_mib")


def mutated_inputs() -> list[dict[str, Any]]:
    """Rows of the table, counts and sizes as numbers; none where it is not there."""
    path = catalogue.folder("validation") / "mutations.csv"
    if not path.exists():
        return []
    return [
        {
            **row,
            **{name: int(row[name]) for name in _COUNTS},
            **{name: float(row[name]) for name in _SIZES},
        }
        for _, row in read_csv(path)
    ]
