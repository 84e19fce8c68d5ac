"""What every answer of the Python face can do: a line, a table in a notebook, a picture, JSON.

Pictures and documents are made by a floor far above (``report/answer_plots.py``,
``report/answer_documents.py``), which `api` hands in with :func:`draw_with` and
:func:`write_with`: an answer knows that it can be drawn and written, and not how.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

from simulator.errors import InputError

_ROWS = 10
"""Of a table in a notebook."""

_drawers: list[Callable[[Any, Any], Any]] = []
_writers: list[Callable[[Any], dict[str, Any]]] = []


def draw_with(drawer: Callable[[Any, Any], Any]) -> None:
    """Say what draws answers: a function of an answer and of axes, or None for new ones."""
    _drawers[:] = [drawer]


def write_with(writer: Callable[[Any], dict[str, Any]]) -> None:
    """Say what writes the document of an answer."""
    _writers[:] = [writer]


class Answer:
    """Base of what `plan`, `predict`, `compare` and the others return."""

    __slots__ = ()

    @property
    def line(self) -> str:
        """All of it in a few words."""
        raise NotImplementedError

    def to_frame(self) -> Any:
        """The answer as a table."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.line})"

    def _repr_html_(self) -> str:
        table = self.to_frame()
        shown = table.head(_ROWS).to_html()
        more = f"<p>and {len(table) - _ROWS} more rows: to_frame()</p>" * (len(table) > _ROWS)
        return f"<p><b>{escape(repr(self))}</b></p>{shown}{more}"

    def plot(self, axes: Any = None) -> Any:
        """Draw the answer with matplotlib, into `axes` if they are given, and return the axes."""
        if not _drawers:
            raise InputError("plot: import simulator.api first, it brings what draws")
        return _drawers[0](self, axes)

    def document(self) -> dict[str, Any]:
        """Return what ``--json`` prints: plain values under keys that stay."""
        if not _writers:
            raise InputError("document: import simulator.api first, it brings what writes")
        return _writers[0](self)
