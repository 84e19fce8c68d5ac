"""Errors of runs whose whole group no fit has seen: the table that a fit writes.

``python -m workshop.fits.training.errors`` writes it; here it is read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simulator import catalogue
from simulator.files import check_header, read_csv

TABLE = Path("uncertainty") / "left_out.csv"
"""Below ``hardware_profiles``."""

_WORDS = ("left_out", "group")
_NUMBERS = ("mape", "bias")
_COUNTS = ("runs", "dense_runs", "expert_runs")
_KINDS = ("dense_mape", "expert_mape")
COLUMNS = (*_WORDS, *_COUNTS, *_NUMBERS, *_KINDS)
"""What was left out, and which; its runs, those of dense models and of models with experts; errors,
those of dense models and of models with experts blank where a group has none."""


def groups_left_out() -> list[dict[str, Any]]:
    """Return the lines of the table, in its order; none where there is no table.

    Raises
    ------
    InputError
        If a column is missing or unknown.
    """
    path = catalogue.folder("hardware_profiles") / TABLE
    if not path.is_file():
        return []
    left_out = []
    for _, row in read_csv(path):
        check_header(path, list(row), required=COLUMNS, known=COLUMNS)
        words: dict[str, Any] = {name: row[name] for name in _WORDS}
        counts = {name: int(row[name]) for name in _COUNTS}
        figures = {name: float(row[name]) for name in _NUMBERS}
        kinds = {name: float(row[name]) if row[name] else None for name in _KINDS}
        left_out.append(words | counts | figures | kinds)
    return left_out
