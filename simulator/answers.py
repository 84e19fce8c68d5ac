"""What every answer of the Python face can do: a line, a table in a notebook, a picture, JSON.

JSON is written by one encoder: `plain`. Keys are the names of fields and properties; a class says
in `KEYS` which of them, in their order; one that has no `KEYS` shows all of its fields. They are
the contract with whoever reads them and are frozen by tests. Times are in seconds, sizes in bytes;
a number that is not finite is null. How long the program itself took is null, too: the same input
gives the same bytes.

Pictures are made far above (``questions/answer_plots.py``) and loaded when they are asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from html import escape
from importlib import import_module
from inspect import ismethod
from math import isfinite
from typing import Any, ClassVar

import numpy as np

from simulator._version import __version__
from simulator.errors import InputError
from simulator.glossary import CAVEATS
from simulator.units import (
    show_bytes,
    show_chance,
    show_count,
    show_kwh,
    show_number_of_days,
    show_percent,
    show_seconds,
    show_usd,
)

SCHEMA = 1
"""Number of the form of the documents; a key that changes its meaning raises it."""

SCENARIO = (
    "scenario=scenario.document",
    "assumed_training=scenario.assumed",
    "idle_fields=scenario.idle",
    "workload=scenario.workload.architecture",
)
"""Keys that say what was asked, of an answer with a scenario."""

_ROWS = _WIDE = 10
"""Rows and columns of a table in a notebook."""

_FIRST: dict[str, str] = {
    "layout": "layout",
    "cluster": "cluster",
    "gpus": "GPUs",
    "step_time_s": "step",
    "days": "days",
    "days_p50": "days",
    "usd": "USD",
    "usd_p50": "USD",
    "planned_days_p50": "days to plan for",
    "planned_usd_p50": "USD to plan for",
    "tokens_per_s_per_gpu": "tokens/s/GPU",
    "mfu": "MFU",
    "memory_p90_bytes": "peak memory (P90)",
    "memory_verdict": "memory",
    "verdict": "memory",
    "kwh": "energy",
    "kwh_p50": "energy",
}
"""Columns that a notebook shows first, by what heads them there."""

_FORMATS: tuple[tuple[str, Callable[[float], str]], ...] = (
    ("_per_gpu", show_count),
    ("_bytes", show_bytes),
    ("_s", show_seconds),
    ("days", show_number_of_days),
    ("usd", show_usd),
    ("kwh", show_kwh),
    ("mfu", show_percent),
    ("share", show_percent),
    ("chance", show_chance),
)
"""How a notebook shows numbers, by how the name of their column ends, its quantile aside."""


class Encoded:
    """A record that JSON shows.

    An entry of `KEYS` is the name of a field, property or method without arguments; or one of

    - ``key=path``: under another key, what a dotted path leads to (attributes, keys, indices);
      null as soon as a part of it is;
    - ``key?``: null where the text is blank;
    - ``*path``: all keys of the record or table there, in place; none where it is None.
    """

    __slots__ = ()

    KEYS: ClassVar[tuple[str, ...]] = ()

    def document(self) -> dict[str, Any]:
        """Return plain values under keys that stay."""
        return encoded(self)


def plain(value: Any) -> Any:
    """Records, tables, arrays and scalars as JSON has them; what else there is becomes its text."""
    if isinstance(value, float):
        return float(value) if isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return encoded(value) if is_dataclass(value) else str(value)


def encoded(record: Any, keys: Iterable[str] = ()) -> dict[str, Any]:
    """Write a record by `keys`, else as its `KEYS` say, else all of its fields."""
    document: dict[str, Any] = {}
    for entry in keys or getattr(record, "KEYS", ()) or [field.name for field in fields(record)]:
        if entry.startswith("*"):
            document |= plain(_at(record, entry[1:])) or {}
            continue
        key, _, path = entry.partition("=")
        name = key.removesuffix("?")
        value = plain(_at(record, path or name))
        document[name] = (value or None) if key.endswith("?") else value
    return document


def head(command: str) -> dict[str, Any]:
    """Begin a document: of which form, version and command it is."""
    return {"schema": SCHEMA, "version": __version__, "command": command}


def _shown(table: Any) -> Any:
    """The first rows of a table, its most telling columns formatted."""
    rows = table.head(_ROWS)
    rows = rows.reset_index() if table.index.name else rows
    first = [name for name in _FIRST if name in rows]
    names = (first if len(first) >= _WIDE // 2 else list(rows))[:_WIDE]
    shown = rows[names].copy()
    for name in names:
        base = re.sub(r"_p\d+$", "", name)
        show = next((show for end, show in _FORMATS if base.endswith(end)), None)
        if show and shown[name].dtype.kind == "f":
            shown[name] = [show(value) if isfinite(value) else "" for value in shown[name]]
    return shown.rename(columns=_FIRST)


def _at(value: Any, path: str) -> Any:
    """What a dotted path leads to."""
    for name in path.split("."):
        if value is None:
            return None
        if name.isdigit():
            value = value[int(name)]
        else:
            value = value[name] if isinstance(value, Mapping) else getattr(value, name)
    return value() if ismethod(value) else value


class Answer(Encoded):
    """Base of what `plan`, `predict`, `compare` and the others return."""

    __slots__ = ()

    COMMAND: ClassVar[str] = ""
    """Name of it in its document; blank where it has no document by itself."""

    @property
    def line(self) -> str:
        """All of it in a few words."""
        raise NotImplementedError

    @property
    def caveats(self) -> tuple[str, ...]:
        """What it leaves out or takes for granted, a sentence or two each."""
        return ()

    def to_frame(self) -> Any:
        """The answer as a table."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.line})"

    def _repr_html_(self) -> str:
        table = self.to_frame()
        shown = _shown(table).to_html(index=not table.index.name)
        more = f"<p>and {len(table) - _ROWS} more rows: to_frame()</p>" * (len(table) > _ROWS)
        notes = "".join(f"<li>{escape(sentence)}</li>" for sentence in self.caveats)
        notes = f"<p>{CAVEATS}:</p><ul>{notes}</ul>" * bool(notes)
        return f"<p><b>{escape(repr(self))}</b></p>{shown}{more}{notes}"

    def plot(self, axes: Any = None) -> Any:
        """Draw the answer with matplotlib, into `axes` if they are given, and return the axes."""
        return import_module("simulator.questions.answer_plots").draw(self, axes)

    def document(self) -> dict[str, Any]:
        """Return what ``--json`` prints: plain values under keys that stay.

        Raises
        ------
        InputError
            If it is of a kind that has no document by itself.
        """
        if not self.COMMAND:
            name = type(self).__name__
            raise InputError(f"document: {name} has none; to_frame() has its tables")
        return {**head(self.COMMAND), **encoded(self)}
