"""What every answer of the Python face can do: a line, a table in a notebook, a picture, JSON.

Pictures and documents are made far above (``questions/answer_plots.py``,
``questions/answer_documents.py``) and loaded when they are asked for.
"""

from __future__ import annotations

from html import escape
from importlib import import_module
from typing import Any

_ROWS = 10
"""Of a table in a notebook."""


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
        return import_module("simulator.questions.answer_plots").draw(self, axes)

    def document(self) -> dict[str, Any]:
        """Return what ``--json`` prints: plain values under keys that stay."""
        return import_module("simulator.questions.answer_documents").answer_document(self)
