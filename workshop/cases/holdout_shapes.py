"""Errors of fits on shapes that they have not seen, pooled over devices and libraries.

`make profiles` writes the table (validation/microbenchmarks/left_out.csv); here it is read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from simulator import catalogue
from simulator.errors import InputError
from simulator.files import check_header, read_csv
from simulator.measured.table_kinds import LEFT_OUT

_WORDS = ("kernel", "device", "library", "dtype", "method")
_NUMBERS = ("median", "p90", "spread")
_COLUMNS = (*_WORDS, "rows", *_NUMBERS)
_ALL = "all"


def pooled_errors(path: Path | None = None) -> list[dict[str, Any]]:
    """Return the lines over all devices, by kernel, type and method, in the order of the table.

    Lines of one library are left out where the table has a line over all of them. A table that is
    not there has no lines.

    Raises
    ------
    InputError
        If a column is missing or unknown, or a figure is no finite number.
    """
    path = path or catalogue.folder("validation") / "microbenchmarks" / LEFT_OUT
    if not path.is_file():
        return []
    read = [_line(path, number, row) for number, row in read_csv(path)]
    lines = [line for line in read if line["device"] == _ALL]
    whole = {_key(line) for line in lines if line["library"] == _ALL}
    return [line for line in lines if line["library"] == _ALL or _key(line) not in whole]


def _key(line: dict[str, Any]) -> tuple[str, ...]:
    return line["kernel"], line["dtype"], line["method"]


def _line(path: Path, number: int, row: dict[str, str]) -> dict[str, Any]:
    check_header(path, list(row), required=_COLUMNS, known=_COLUMNS)
    try:
        figures = {name: float(row[name]) for name in _NUMBERS}
        rows = int(row["rows"])
    except ValueError:
        figures, rows = {}, 0
    if rows < 1 or not np.isfinite(list(figures.values())).all():
        raise InputError(f"{path}: line {number}: rows, {', '.join(_NUMBERS)} must be numbers")
    return {name: row[name] for name in _WORDS} | {"rows": rows} | figures
