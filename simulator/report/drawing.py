"""What the figures of every page share: frames, bars and hover notes."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Any

Document = dict[str, Any]
"""A plotly document; beside it, one meaning for every trace and line."""


def document(name: str, traces: list[Document], layout: Document) -> Document:
    """Split the meanings off, so that what remains is plain plotly."""
    shapes = layout["shapes"]
    return {
        "id": name,
        "meanings": [trace.pop("meaning") for trace in traces],
        "lines": [shape.pop("meaning") for shape in shapes],
        "data": traces,
        "layout": layout,
    }


def frame(height: int) -> Document:
    """Return the layout that all figures share."""
    return {
        "height": height,
        "margin": {"l": 10, "r": 20, "t": 28, "b": 10},
        "legend": {
            "orientation": "h",
            "yref": "container",
            "y": 0,
            "yanchor": "bottom",
            "traceorder": "normal",
        },
        "hoverlabel": {"align": "left"},
        "xaxis": {"automargin": True, "zeroline": False},
        "yaxis": {"automargin": True, "zeroline": False, "showgrid": False},
        "shapes": [],
        "annotations": [],
    }


def stacked_bar(
    meaning: str, label: str, values: list[float], names: list[str], notes: list[str]
) -> Document:
    """Return one part of stacked horizontal bars, with a hover note for each."""
    return {
        "type": "bar",
        "orientation": "h",
        "name": label,
        "x": values,
        "y": names,
        "marker": {},
        "customdata": notes,
        "hovertemplate": "%{customdata}<extra></extra>",
        "meaning": meaning,
    }


def stacked_frame(title: str, names: list[str], height: int) -> Document:
    """Return the layout of stacked horizontal bars, first bar on top."""
    layout = frame(height)
    layout |= {"barmode": "stack", "bargap": 0.28}
    layout["xaxis"]["title"] = {"text": title}
    layout["yaxis"] |= {"type": "category", "autorange": "reversed", "categoryarray": names}
    return layout


def note(*lines: str, width: int = 72) -> str:
    """Join the lines of a hover note, wrapped at `width`; the first is bold, blank ones left out.

    >>> note("a < b", "", "because")
    '<b>a &lt; b</b><br>because'
    """
    first, *rest = (line for line in lines if line)
    head = "<br>".join(_wrapped([first], width))
    return "<br>".join([f"<b>{head}</b>", *_wrapped(rest, width)])


def plain(text: str) -> str:
    """Keep plotly from reading a text as markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;")


def _wrapped(lines: Iterable[str], width: int) -> list[str]:
    return [plain(piece) for line in lines for piece in textwrap.wrap(line, width)]
