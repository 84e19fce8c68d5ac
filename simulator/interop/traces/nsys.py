"""Read what Nsight Systems recorded: the SQLite file of ``nsys export --type sqlite``.

Tables as in the SQLite schema reference of Nsight Systems 2024 (user guide, "SQLite schema"):
kernels, copies and sets with start and end in nanoseconds, correlations of launches, names by
number in StringIds, NVTX ranges with a text. Of a file of several devices the first is measured.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from simulator.errors import InputError
from simulator.interop.traces.kineto_events import MOST_EVENTS, Events
from simulator.interop.traces.kineto_table import make_trace
from simulator.plain_files import open_file
from simulator.scoring.trace import Trace

_MAGIC = b"SQLite format 3\x00"
_NS_PER_US = 1e3

_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_COPIES, _SETS = "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"
_COPY_KINDS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP", 11: "HtoD", 12: "DtoH", 13: "DtoD"}
"""Of a copy, as the schema's ENUM_CUDA_MEMCPY_OPER numbers them and torch's profiler names them."""

_RUNTIME, _NVTX, _STRINGS, _GPUS = (
    *("CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "StringIds"),
    "TARGET_INFO_GPU",
)
_NEEDED = {
    _KERNELS: ("start", "end", "deviceId", "correlationId", "demangledName"),
    _RUNTIME: ("start", "end", "correlationId"),
    _NVTX: ("start", "end", "text", "textId"),
    _STRINGS: ("id", "value"),
    _GPUS: ("id", "name"),
    _COPIES: ("start", "end", "deviceId", "correlationId", "copyKind"),
    _SETS: ("start", "end", "deviceId", "correlationId"),
}
"""Tables that are read, and their columns."""

_STEP = re.compile(r"(?:ProfilerStep#|(?:train_?)?(?:step|iteration|iter)[ _:#]*)(\d{1,15})$", re.I)
"""NVTX ranges that are training steps."""

_STEPS_PER_CHECK, _MOST_CHECKS = 1_000_000, 20_000
"""Instructions of SQLite between two looks, and looks: a file may define what never ends."""

_HIDDEN, _COMPUTED = 6, (2, 3)
"""Of a row of ``PRAGMA table_xinfo``: where it says whether a column is computed, and how."""


def is_nsys(path: Path | str) -> bool:
    """Whether a file is a database of SQLite."""
    if not Path(path).is_file():
        return False
    with open_file(path) as file:
        return file.read(len(_MAGIC)) == _MAGIC


def read_nsys(path: Path | str) -> Trace:
    """Read the trace of one rank.

    Raises
    ------
    InputError
        If the file is no such export, is damaged, or holds no kernel.
    """
    where = str(path)
    uri = f"{Path(path).absolute().as_uri()}?mode=ro&immutable=1"
    try:
        base = sqlite3.connect(uri, uri=True)
        try:
            return _read(base, where)
        finally:
            base.close()
    except (sqlite3.Error, OverflowError, UnicodeError) as error:
        raise InputError(f"{where}: no export of Nsight Systems: {error}") from None


def _read(base: sqlite3.Connection, where: str) -> Trace:
    base.text_factory = lambda raw: raw.decode("utf-8", "replace")
    base.execute("PRAGMA trusted_schema=OFF")
    looks = iter(range(_MOST_CHECKS))
    base.set_progress_handler(lambda: int(next(looks, None) is None), _STEPS_PER_CHECK)
    tables = _tables(base, where)
    if _KERNELS not in tables:
        raise InputError(
            f"{where}: no table {_KERNELS}: record with nsys profile --trace=cuda,nvtx"
        )
    names = dict(_rows(base, _STRINGS, tables))
    devices = sorted({row[2] for row in _rows(base, _KERNELS, tables) if type(row[2]) is int})
    if not devices:
        raise InputError(f"{where}: holds no kernel")
    events = Events(where)
    for event in _events(base, tables, names, devices[0]):
        events.add(event)
    notes = ["recorded by Nsight Systems: memory and groups of ranks are not in it"]
    if len(devices) > 1:
        notes.append(f"device {devices[0]} of {len(devices)} in the file is measured")
    gpus = dict(_rows(base, _GPUS, tables)) if _GPUS in tables else {}
    named = [{"id": devices[0], "name": str(gpus.get(devices[0], ""))}]
    head: dict[str, Any] = {"deviceProperties": named} if gpus else {}
    return make_trace(events, head, where=where, notes=notes)


def _tables(base: sqlite3.Connection, where: str) -> set[str]:
    """Tables of the file that have the columns that are read; views and others are none."""
    tables = set()
    listed = base.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table' LIMIT 1000")
    known = {name: str(sql) for name, sql in listed if name in _NEEDED}
    for name, sql in known.items():
        if not re.match(r"CREATE\s+TABLE\b", sql, re.I):
            raise InputError(f"{where}: {name}: virtual tables are not read")
        # Not by words of the statement: Nsight writes what each column means as comments into it.
        described = base.execute(f"PRAGMA table_xinfo({name})").fetchall()
        if any(row[_HIDDEN] in _COMPUTED for row in described):
            raise InputError(f"{where}: {name}: computed columns are not read")
        columns = {row[1] for row in described}
        if missing := [column for column in _NEEDED[name] if column not in columns]:
            raise InputError(f"{where}: {name}: lacks the column {missing[0]}")
        tables.add(name)
    return tables


def _rows(base: sqlite3.Connection, table: str, tables: set[str]) -> Iterator[tuple[Any, ...]]:
    """Rows of a table, the columns that are read; none where there is no such table."""
    if table in tables:
        columns = ", ".join(f'"{column}"' for column in _NEEDED[table])
        yield from base.execute(f"SELECT {columns} FROM {table} LIMIT {MOST_EVENTS + 1}")


def _events(
    base: sqlite3.Connection, tables: set[str], names: dict[Any, Any], device: int
) -> Iterator[dict[str, Any]]:
    """Events as a torch profiler's trace has them."""
    for start, end, own, correlation, name in _rows(base, _KERNELS, tables):
        if own == device:
            word = str(names.get(name, name))
            yield _event("kernel", word, start, end, device=own, correlation=correlation)
    for start, end, own, correlation, kind in _rows(base, _COPIES, tables):
        if own == device:
            word = f"Memcpy {_COPY_KINDS.get(kind, '')}".strip()
            yield _event("gpu_memcpy", word, start, end, device=own, correlation=correlation)
    for start, end, own, correlation in _rows(base, _SETS, tables):
        if own == device:
            yield _event("gpu_memset", "Memset", start, end, device=own, correlation=correlation)
    for start, end, correlation in _rows(base, _RUNTIME, tables):
        yield _event("cuda_runtime", "launch", start, end, correlation=correlation)
    for start, end, text, number in _rows(base, _NVTX, tables):
        step = _STEP.search(str(text if text is not None else names.get(number, "")))
        if step is not None:
            yield _event("user_annotation", f"ProfilerStep#{step[1]}", start, end)


def _event(kind: str, name: str, start: Any, end: Any, **arguments: Any) -> dict[str, Any]:
    """One event; times that are no numbers are counted as malformed by who takes it."""
    good = all(type(x) in (int, float) and abs(x) < 1e18 for x in (start, end))
    return {
        "ph": "X",
        "cat": kind,
        "name": name,
        "ts": start / _NS_PER_US if good else None,
        "dur": (end - start) / _NS_PER_US if good else None,
        "pid": 0,
        "tid": 0,
        "args": arguments,
    }
