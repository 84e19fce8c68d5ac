"""What every answer of the Python face can do: a line, a table in a notebook, a picture, JSON.

JSON is written by one encoder: `plain`. Keys are the names of fields and properties; a class says
in `KEYS` which of them, in their order; one that has no `KEYS` shows all of its fields. They are
the contract with whoever reads them and are frozen by tests. Times are in seconds, sizes in bytes;
a number that is not finite is null. How long the program itself took is null, too: the same input
gives the same bytes.

Pictures are made far above (``questions/answer_plots.py``) and loaded when they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from html import escape
from importlib import import_module
from inspect import ismethod
from math import isfinite
from typing import Any, ClassVar

import numpy as np

from simulator._version import __version__
from simulator.errors import InputError

SCHEMA = 1
"""Number of the form of the documents; a key that changes its meaning raises it."""

SCENARIO = ("scenario=scenario.document", "workload=scenario.workload.architecture")
"""Keys that say what was asked, of an answer with a scenario."""

CAVEATS = "Notes"
"""Head of what an answer leaves out or takes for granted."""

_ROWS = 10
"""Of a table in a notebook."""


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
        shown = table.head(_ROWS).to_html()
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
