"""Where the words of a picture stand: each at the first of its places that nothing else takes.

A place is an anchor among the data and a shift in points, as `annotate` of the axes takes them. How
large letters and the plot come out is known about, so that a few points are left between words.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from simulator.records import dataclass
from simulator.report.svg_figure import text_width

Box = tuple[float, float, float, float]
"""Left, right, foot and top, in points of the plot."""

_LINE = 1.25
"""Height of a line of text over the size of its letters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where words may stand."""

    at: tuple[float, float]
    """Anchor, in the data of the axes."""
    shift: tuple[float, float]
    """Points from there to the right and up."""
    ha: str
    va: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Label:
    """Words with the places where they may stand, the best first."""

    text: str
    size: float
    places: Sequence[Place]
    style: dict[str, Any]
    """What else `annotate` takes."""
    needed: bool = True
    """Whether they are written over other words where no place is free; else they are left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """The frame of a picture: what its axes span, and how many points."""

    x: tuple[float, float]
    y: tuple[float, float]
    width: float
    height: float
    log_x: bool = False

    def points(self, x: float, y: float) -> tuple[float, float]:
        """Points of a place to the right of the frame's corner and above it."""
        low, high = self.x
        if self.log_x:
            x, low, high = math.log(x), math.log(low), math.log(high)
        across = (x - low) / ((high - low) or 1.0)
        return self.width * across, self.height * (y - self.y[0]) / ((self.y[1] - self.y[0]) or 1.0)

    def mark(self, x: float, y: float, size: float) -> Box:
        """The box of a point."""
        across, up = self.points(x, y)
        return across - size / 2, across + size / 2, up - size / 2, up + size / 2

    def box(self, label: Label, place: Place) -> Box:
        """The box of words at a place."""
        across, up = self.points(*place.at)
        across, up = across + place.shift[0], up + place.shift[1]
        wide = text_width(label.text, label.size)
        tall = _LINE * label.size * (label.text.count("\n") + 1)
        left = across - wide * {"left": 0.0, "center": 0.5, "right": 1.0}[place.ha]
        foot = up - tall * {"bottom": 0.0, "baseline": 0.2, "top": 1.0}[place.va]
        return left, left + wide, foot, foot + tall


def placed(
    labels: Iterable[Label], plot: Plot, marks: Iterable[Box]
) -> list[tuple[Label, Place, Box]]:
    """Give each of some labels, in their order, a place; `marks` are boxes of what is drawn.

    The first place within the frame that neither marks nor words before it take; where none is
    free, the one of which least is taken. A label that is not needed is left out where it would
    stand on words.
    """
    marks, written = list(marks), list[tuple[Label, Place, Box]]()
    frame = (0.0, plot.width, 0.0, plot.height)
    for label in labels:
        words = [box for _, _, box in written]
        boxes = [plot.box(label, place) for place in label.places]
        on_words = [sum(_common(box, word) for word in words) for box in boxes]
        taken = [
            3.0 * over + sum(_common(box, mark) for mark in marks) + 9.0 * _outside(box, frame)
            for box, over in zip(boxes, on_words, strict=True)
        ]
        best = min(range(len(boxes)), key=taken.__getitem__)
        if label.needed or on_words[best] == 0.0:
            written.append((label, label.places[best], boxes[best]))
    return written


def _common(a: Box, b: Box) -> float:
    """Square points that two boxes share."""
    across = min(a[1], b[1]) - max(a[0], b[0])
    up = min(a[3], b[3]) - max(a[2], b[2])
    return max(across, 0.0) * max(up, 0.0)


def _outside(box: Box, frame: Box) -> float:
    """Square points of a box that lie outside a frame."""
    return (box[1] - box[0]) * (box[3] - box[2]) - _common(box, frame)
