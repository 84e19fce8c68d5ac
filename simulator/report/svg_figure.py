"""Pictures of pages as SVG, drawn without matplotlib: figure, axes, marks, legends.

`SvgAxes` has the methods of matplotlib's axes that pictures of pages use, under the same names and
with the same meaning, so that a picture is written once and drawn by either: by this module into a
page (a picture in milliseconds), by matplotlib into a PNG. Lengths are points, 72 to an inch.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulator.records import dataclass
from simulator.report.palette import colour

NOTE = "note: "
"""Begins the gid of a shape that has something to say where the pointer rests on it."""

_POINTS_PER_INCH = 72.0
_NARROW, _WIDE = frozenset("iljtfrI.,:;|!'()[] "), frozenset("mwMW@%")
_FONT = "system-ui, 'DejaVu Sans', Helvetica, Arial, sans-serif"
_DASHES = {"--": "5 3", ":": "1.5 2.5", "-": ""}
_ANCHOR = {"left": "start", "center": "middle", "right": "end"}
_SIGNS = "oxs^Dpv<>h"
"""Shapes of points, as matplotlib names them."""

_CORNERS = {
    "s": ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    "D": ((0.0, -1.25), (1.25, 0.0), (0.0, 1.25), (-1.25, 0.0)),
    "^": ((0.0, -1.15), (1.1, 0.85), (-1.1, 0.85)),
    "v": ((0.0, 1.15), (1.1, -0.85), (-1.1, -0.85)),
    "<": ((-1.15, 0.0), (0.85, 1.1), (0.85, -1.1)),
    ">": ((1.15, 0.0), (-0.85, 1.1), (-0.85, -1.1)),
    "h": ((0.0, -1.15), (1.0, -0.58), (1.0, 0.58), (0.0, 1.15), (-1.0, 0.58), (-1.0, -0.58)),
    "p": ((0.0, -1.15), (1.1, -0.36), (0.68, 0.93), (-0.68, 0.93), (-1.1, -0.36)),
}
"""Corners of points that have some, in half sizes."""

_TICK = 8.5
"""Size of the texts beside an axis."""

_APART_X, _APART_Y = 62.0, 30.0
"""Points between marks of the two axes, about."""


def text_width(text: str, size: float) -> float:
    """Points that the longest line of a text takes, as sans-serif letters are wide in the mean."""
    lines = (
        sum(0.33 if c in _NARROW else 0.9 if c in _WIDE else 0.59 for c in line)
        for line in text.split("\n")
    )
    return size * max(lines)


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _escaped(text: str) -> str:
    return html.escape(text, quote=True)


@dataclass(slots=True)
class Shape:
    """What is drawn, as SVG of a plot's points; `note` is said where the pointer rests on it."""

    draw: Callable[[SvgAxes], str]
    layer: float
    note: str = ""

    def set_gid(self, gid: str) -> None:
        """Take the note of a gid that `inline_svg.noted` made."""
        self.note = gid.removeprefix(NOTE)

    def svg(self, axes: SvgAxes) -> str:
        """The shape, in a group with its note."""
        drawn = self.draw(axes)
        return f"<g><title>{_escaped(self.note)}</title>{drawn}</g>" if self.note else drawn


@dataclass(frozen=True, slots=True)
class _Key:
    """An entry of a legend."""

    label: str
    ink: str
    kind: Literal["patch", "line"]
    dash: str = ""
    marker: str = ""
    hollow: bool = False


@dataclass(slots=True)
class Axis:
    """One direction of a plot: limits, scale, marks and what is written beside it."""

    low: float | None = None
    high: float | None = None
    base: int = 0
    """Of a logarithmic axis; 0 is a linear one."""
    data: list[float] = field(default_factory=list)
    marks: list[float] | None = None
    names: list[str] | None = None
    label: str = ""
    size: float = _TICK
    turned: bool = False
    formatter: Callable[[float, Any], str] | None = None
    first: float = 0.0
    span: float = 1.0
    """Points of the plot's side on the page."""

    def set_major_formatter(self, formatter: Callable[[float, Any], str]) -> None:
        """Write marks by `formatter(value, None)`."""
        self.formatter = formatter

    def limits(self) -> tuple[float, float]:
        """As given, else what the data span and a twentieth on either side."""
        if self.low is not None and self.high is not None:
            return self.low, self.high
        known = [value for value in self.data if math.isfinite(value)] or [0.0, 1.0]
        low, high = min(known), max(known)
        if self.base:
            room = (high / low) ** 0.05 if high > low else 1.5
            low, high = low / room, high * room
        else:
            room = 0.05 * (high - low) or 0.5
            low, high = low - room, high + room
        return low if self.low is None else self.low, high if self.high is None else self.high

    def place(self, values: ArrayLike) -> NDArray[np.float64]:
        """Points on the page of values, shape kept."""
        low, high = self.limits()
        given = np.asarray(values, dtype=float)
        if self.base:
            given, low, high = np.log(np.maximum(given, 1e-300)), math.log(low), math.log(high)
        return self.first + self.span * (given - low) / ((high - low) or 1.0)

    def ticks(self, apart: float) -> list[tuple[float, str]]:
        """Marks within the limits and their texts, about so many points apart."""
        low, high = sorted(self.limits())
        marks = self.marks
        if marks is None:
            most = max(2, int(abs(self.span) / apart))
            marks = _powers(low, high, self.base) if self.base else _round(low, high, most)
        names = self.names
        if names is None:
            digits = _digits(marks)
            write = self.formatter or (lambda value, _: digits.format(value))
            names = [write(value, None) for value in marks]
        room = 1e-9 * (high - low)
        inside = zip(marks, names, strict=True)
        return [(value, name) for value, name in inside if low - room <= value <= high + room]


def _digits(marks: Sequence[float]) -> str:
    """The format in which neighbouring marks differ and none has digits to spare."""
    step = min((abs(b - a) for a, b in pairwise(marks)), default=1.0) or 1.0
    places = max(0, -math.floor(math.log10(step) + 1e-9))
    places += abs(step * 10**places - round(step * 10**places)) > 1e-6  # a step of 2.5
    return f"{{:,.{places}f}}" if places < 6 else "{:.3g}"


def _round(low: float, high: float, most: int) -> list[float]:
    """At most so many round values from low to high: steps of 1, 2, 2.5 or 5."""
    if not high > low:
        return [low]
    least = (high - low) / most
    scale = 10.0 ** math.floor(math.log10(least))
    step = next(s * scale for s in (1.0, 2.0, 2.5, 5.0, 10.0) if s * scale >= least * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def _powers(low: float, high: float, base: int) -> list[float]:
    """Marks of a logarithmic axis: powers of 2, else 1, 2, 5 or closer where a decade is wide."""
    if base == 2:
        return [2.0**i for i in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)]
    parts: tuple[float, ...] = (1.0,) if high > 1e3 * low else (1.0, 2.0, 5.0)
    if high < 5.0 * low:
        parts = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [part * 10.0**i for i in decades for part in parts]


class SvgAxes:
    """One plot of a figure; methods as matplotlib's of the same name, as far as pictures use."""

    def __init__(self) -> None:
        self.xaxis, self.yaxis = Axis(), Axis()
        self.shapes: list[Shape] = []
        self.keys: dict[str, _Key] = {}
        self.title = ""
        self.grid_of: set[str] = set()
        self.shown = True
        self.names_shown = True
        self.legend_size = 0.0

    def _add(self, draw: Callable[[SvgAxes], str], layer: float, label: str, key: _Key) -> Shape:
        shape = Shape(draw, layer)
        self.shapes.append(shape)
        if label and not label.startswith("_"):
            self.keys.setdefault(label, key)
        return shape

    def _seen(self, x: ArrayLike, y: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        xs, ys = np.atleast_1d(np.asarray(x, float)), np.atleast_1d(np.asarray(y, float))
        self.xaxis.data += [float(xs.min()), float(xs.max())] if xs.size else []
        self.yaxis.data += [float(ys.min()), float(ys.max())] if ys.size else []
        return xs, ys

    def barh(
        self,
        y: ArrayLike,
        width: ArrayLike,
        *,
        left: ArrayLike = 0.0,
        height: float = 0.8,
        color: str,
        label: str = "",
        lw: float = 0.0,
        edgecolor: str = "none",
    ) -> list[Shape]:
        """Draw horizontal bars of y, width and left, broadcast; return a shape for each."""
        ys, widths, lefts = (
            np.atleast_1d(v) for v in np.broadcast_arrays(*map(np.asarray, (y, width, left)))
        )
        key = _Key(label, color, "patch")
        bars = []
        for row, length, start in zip(ys.tolist(), widths.tolist(), lefts.tolist(), strict=True):
            self._seen([start, start + length], [row - height / 2, row + height / 2])
            spans = np.array([[start], [start + length]])

            def draw(axes: SvgAxes, spans: Any = spans, row: float = row) -> str:
                return axes.box_svg(spans, row - height / 2, height, color, edgecolor, lw)

            bars.append(self._add(draw, 1.0, label, key))
        return bars

    def boxes(
        self, spans: ArrayLike, bottom: float, height: float, *, facecolor: str, **style: Any
    ) -> Shape:
        """Boxes of one height from and to x of shape (2, boxes), as one path."""
        edge, lw = style.get("edgecolor", "none"), style.get("lw", 0.0)
        return self._add(
            lambda axes: axes.box_svg(np.asarray(spans), bottom, height, facecolor, edge, lw),
            style.get("zorder", 1.0),
            "",
            _Key("", facecolor, "patch"),
        )

    def box_svg(
        self, spans: NDArray[Any], bottom: float, height: float, fill: str, edge: str, lw: float
    ) -> str:
        """Draw boxes of one height, cut to the plot's limits."""
        low, high = sorted(self.xaxis.limits())
        ends = self.xaxis.place(np.clip(spans, low, high))
        left, wide = ends.min(axis=0), np.abs(ends[1] - ends[0])
        y = self.yaxis.place([bottom, bottom + height])
        top, tall = _number(float(y.min())), _number(float(abs(y[1] - y[0])))
        path = "".join(
            f"M{_number(x)} {top}h{_number(w)}v{tall}h{_number(-w)}z"
            for x, w in zip(left.tolist(), wide.tolist(), strict=True)
            if w > 0.02
        )
        if not path:
            return ""
        line = f' stroke="{edge}" stroke-width="{lw:g}"' if lw and edge != "none" else ""
        return f'<path d="{path}" fill="{fill}"{line}/>'

    def plot(
        self,
        x: ArrayLike,
        y: ArrayLike,
        style: str = "-",
        *,
        color: str,
        label: str | None = None,
        lw: float = 1.5,
        ms: float = 6.0,
        mfc: str = "",
        marker: str = "",
        zorder: float = 2.0,
    ) -> list[Shape]:
        """Draw a line, points, or both: styles "-", "--", "o", "o-", "x"."""
        xs, ys = self._seen(x, y)
        marker = marker or next((sign for sign in _SIGNS if sign in style), "")
        dash = next((sign for sign in ("--", ":", "-") if sign in style), "")
        fill = color if mfc in ("", color) else mfc

        def draw(axes: SvgAxes) -> str:
            at, up = axes.xaxis.place(xs), axes.yaxis.place(ys)
            drawn = _line(at, up, color, lw, _DASHES[dash]) if dash and len(at) > 1 else ""
            return drawn + (_points(at, up, marker, ms, color, fill) if marker else "")

        key = _Key(label or "", color, "line", dash, marker, fill != color)
        return [self._add(draw, zorder, label or "", key)]

    def fill_between(
        self, x: ArrayLike, low: ArrayLike, high: ArrayLike, *, color: str, **style: Any
    ) -> None:
        """Fill the band between two lines."""
        xs, lows = self._seen(x, low)
        _, highs = self._seen(x, high)
        alpha = style.get("alpha", 1.0)

        def draw(axes: SvgAxes) -> str:
            at = axes.xaxis.place(np.r_[xs, xs[::-1]])
            up = axes.yaxis.place(np.r_[lows, highs[::-1]])
            return f'<path d="{_path(at, up)}z" fill="{color}" fill-opacity="{alpha:g}"/>'

        self._add(draw, 1.0, style.get("label", ""), _Key(style.get("label", ""), color, "patch"))

    def hlines(
        self, y: ArrayLike, low: ArrayLike, high: ArrayLike, *, label: str = "", **style: Any
    ) -> None:
        """Draw horizontal lines from low to high."""
        self._lines(y, low, high, label, upright=False, **style)

    def vlines(self, x: ArrayLike, low: ArrayLike, high: ArrayLike, **style: Any) -> None:
        """Draw upright lines from low to high."""
        self._lines(x, low, high, "", upright=True, **style)

    def _lines(
        self,
        at: ArrayLike,
        low: ArrayLike,
        high: ArrayLike,
        label: str,
        *,
        upright: bool,
        color: str,
        lw: float = 1.5,
    ) -> None:
        where = np.atleast_1d(np.asarray(at, float))
        lows, highs = (np.broadcast_to(np.asarray(v, float), where.shape) for v in (low, high))
        ends = np.r_[lows, highs], np.r_[where, where]
        self._seen(*(reversed(ends) if upright else ends))

        def draw(axes: SvgAxes) -> str:
            along, across = (axes.yaxis, axes.xaxis) if upright else (axes.xaxis, axes.yaxis)
            first, last, side = along.place(lows), along.place(highs), across.place(where)
            rows = zip(first.tolist(), last.tolist(), side.tolist(), strict=True)
            path = "".join(
                f"M{_number(c)} {_number(a)}V{_number(b)}"
                if upright
                else f"M{_number(a)} {_number(c)}H{_number(b)}"
                for a, b, c in rows
            )
            return f'<path d="{path}" fill="none" stroke="{color}" stroke-width="{lw:g}"/>'

        self._add(draw, 2.0, label, _Key(label, color, "line", "-"))

    def axvline(self, x: float, *, color: str, lw: float = 1.5, ls: str = "-") -> None:
        """Draw a line over the whole height."""

        def draw(axes: SvgAxes) -> str:
            at = np.full(2, axes.xaxis.place(x))
            up = axes.yaxis.first + axes.yaxis.span * np.array([0.0, 1.0])
            return _line(at, up, color, lw, _DASHES[ls])

        self._add(draw, 2.0, "", _Key("", color, "line"))

    def axhline(self, y: float, *, color: str, lw: float = 1.5, ls: str = "-") -> None:
        """Draw a line over the whole width."""

        def draw(axes: SvgAxes) -> str:
            up = np.full(2, axes.yaxis.place(y))
            at = axes.xaxis.first + axes.xaxis.span * np.array([0.0, 1.0])
            return _line(at, up, color, lw, _DASHES[ls])

        self._add(draw, 2.0, "", _Key("", color, "line"))

    def axvspan(self, low: float, high: float, *, color: str, **_: Any) -> None:
        """Shade from x to x over the whole height."""
        self._shade(self.xaxis, low, high, color)

    def axhspan(self, low: float, high: float, *, color: str, **_: Any) -> None:
        """Shade from y to y over the whole width."""
        self._shade(self.yaxis, low, high, color)

    def _shade(self, along: Axis, low: float, high: float, color: str) -> None:
        def draw(axes: SvgAxes) -> str:
            least, most = sorted(along.limits())
            ends = along.place(np.clip(np.array([low, high]), least, most))
            other = axes.yaxis if along is axes.xaxis else axes.xaxis
            across = np.array([other.first, other.first + other.span])
            x, y = (ends, across) if along is axes.xaxis else (across, ends)
            size = f'width="{_number(float(np.ptp(x)))}" height="{_number(float(np.ptp(y)))}"'
            place = f'x="{_number(float(x.min()))}" y="{_number(float(y.min()))}"'
            return f'<rect {place} {size} fill="{color}"/>'

        self._add(draw, 0.0, "", _Key("", color, "patch"))

    def text(self, x: float, y: float, text: str, **style: Any) -> None:
        """Write at a place in data."""
        self.annotate(text, (x, y), (0.0, 0.0), **style)

    def annotate(
        self,
        text: str,
        at: tuple[float, float],
        shift: tuple[float, float],
        *,
        xycoords: tuple[str, str] = ("data", "data"),
        ha: str = "left",
        va: str = "baseline",
        fontsize: float = 10.0,
        color: str = "",
        bbox: object = None,
        **_: Any,
    ) -> None:
        """Write beside a place: `shift` in points to the right and up.

        With a `bbox` letters have a rim of the page, so that lines below do not strike them out.
        """

        def draw(axes: SvgAxes) -> str:
            x = float(axes.xaxis.place(at[0])) + shift[0]
            low = axes.yaxis.first + axes.yaxis.span * at[1]
            y = (float(axes.yaxis.place(at[1])) if xycoords[1] == "data" else low) - shift[1]
            anchor, rim = _ANCHOR[ha], bbox is not None
            return text_svg(text, x, y, fontsize, anchor=anchor, align=va, ink=color, rim=rim)

        self._add(draw, 3.0, "", _Key("", color, "line"))

    def set_xscale(self, kind: str, base: int = 10) -> None:
        """Make the axis linear or logarithmic."""
        self.xaxis.base = base if kind == "log" else 0

    def set_yscale(self, kind: str, base: int = 10) -> None:
        """Make the axis linear or logarithmic."""
        self.yaxis.base = base if kind == "log" else 0

    def set_xlim(self, low: float | None = None, high: float | None = None) -> None:
        """Set what the axis spans."""
        self.xaxis.low, self.xaxis.high = low, high

    def set_ylim(self, low: float | None = None, high: float | None = None) -> None:
        """Set what the axis spans, from its foot to its head."""
        self.yaxis.low, self.yaxis.high = low, high

    def set_xticks(
        self,
        marks: ArrayLike,
        labels: Sequence[str] | None = None,
        *,
        fontsize: float = _TICK,
        minor: bool = False,
    ) -> None:
        """Set marks and their texts; there are no minor ones."""
        if not minor:
            self.xaxis.marks = np.asarray(marks, float).tolist()
            self.xaxis.names, self.xaxis.size = (list(labels) if labels else None), fontsize

    def set_yticks(
        self, marks: ArrayLike, labels: Sequence[str] | None = None, *, fontsize: float = _TICK
    ) -> None:
        """Set marks and their texts."""
        self.yaxis.marks = np.asarray(marks, float).tolist()
        self.yaxis.names, self.yaxis.size = (list(labels) if labels else None), fontsize

    def set_xlabel(self, text: str) -> None:
        """Say what the axis shows."""
        self.xaxis.label = text

    def set_ylabel(self, text: str) -> None:
        """Say what the axis shows."""
        self.yaxis.label = text

    def set_title(self, text: str, **_: Any) -> None:
        """Say what the plot shows."""
        self.title = text

    def set_axis_off(self) -> None:
        """Draw no frame, marks and texts beside it."""
        self.shown = False

    def grid(self, axis: str, **_: Any) -> None:
        """Draw light lines at the marks of an axis, too."""
        self.grid_of.add(axis)

    def tick_params(self, axis: str = "both", labelrotation: float = 0.0, **_: Any) -> None:
        """Turn the texts of the horizontal axis by 40 degrees."""
        if axis == "x" and labelrotation:
            self.xaxis.turned = True

    def legend(self, *, fontsize: float = 9.0, **_: Any) -> None:
        """Put a legend into the upper left corner."""
        self.legend_size = fontsize

    def lay_out(self, left: float, top: float, right: float, bottom: float) -> None:
        """Take a rectangle of the page: frame and what is written beside it."""
        if self.shown:
            names = self._names("y", bottom - top)
            if self.names_shown:
                left += max((text_width(name, self.yaxis.size) for name in names), default=0) + 8
            left += 14.0 if self.yaxis.label else 0.0
            top += 17.0 if self.title else 7.0
            below = self._names("x", right - left)
            bottom -= self._tall(below) + 6.0 + (14.0 if self.xaxis.label else 0.0)
            last = 0.0 if self.xaxis.turned or not below else text_width(below[-1], self.xaxis.size)
            right -= 4.0 + last / 2
        self.xaxis.first, self.xaxis.span = left, max(right - left, 1.0)
        self.yaxis.first, self.yaxis.span = bottom, min(top - bottom, -1.0)

    def _names(self, side: str, points: float) -> list[str]:
        axis = self.yaxis if side == "y" else self.xaxis
        axis.span = points
        return [name for _, name in axis.ticks(_APART_Y if side == "y" else _APART_X)]

    def _tall(self, names: Iterable[str]) -> float:
        """Points that the texts of the horizontal axis take below the frame."""
        x = self.xaxis
        if not x.turned:
            return 1.3 * x.size
        return 0.64 * max((text_width(name, x.size) for name in names), default=0.0) + 6.0

    def svg(self) -> str:
        """The whole plot."""
        shapes = sorted(self.shapes, key=lambda shape: shape.layer)
        drawn = "".join(shape.svg(self) for shape in shapes)
        return (self._frame() if self.shown else "") + drawn + self._legend()

    def _frame(self) -> str:
        x, y = self.xaxis, self.yaxis
        left, foot = x.first, y.first
        right, head = left + x.span, foot + y.span
        grid, text = colour("grid").light, colour("text").light
        lines, marks, words = "", "", ""
        below, aside = x.ticks(_APART_X), y.ticks(_APART_Y) if self.names_shown else []
        for value, name in below:
            at = float(x.place(value))
            lines += (
                f"M{_number(at)} {_number(foot)}V{_number(head)}" if "x" in self.grid_of else ""
            )
            marks += f"M{_number(at)} {_number(foot)}v3"
            anchor, turn = ("end", -40) if x.turned else ("middle", 0)
            words += text_svg(name, at, foot + 5, x.size, anchor=anchor, align="top", turn=turn)
        for value, _ in y.ticks(_APART_Y) if "y" in self.grid_of else []:
            lines += f"M{_number(left)} {_number(float(y.place(value)))}H{_number(right)}"
        for value, name in aside:
            up = float(y.place(value))
            marks += f"M{_number(left)} {_number(up)}h-3"
            words += text_svg(name, left - 6, up, y.size, anchor="end", align="center")
        marks += f"M{_number(left)} {_number(head)}V{_number(foot)}H{_number(right)}"
        if x.label:
            low = foot + self._tall(name for _, name in below) + 5.0
            words += text_svg(x.label, (left + right) / 2, low, 9.5, anchor="middle", align="top")
        if y.label:
            wide = max((text_width(name, y.size) for _, name in aside), default=0.0)
            at, middle = left - wide - 20, (foot + head) / 2
            words += text_svg(y.label, at, middle, 9.5, anchor="middle", align="top", turn=-90)
        words += text_svg(self.title, left, head - 6, 10.5) if self.title else ""
        grid_svg = (
            f'<path d="{lines}" fill="none" stroke="{grid}" stroke-width=".7"/>' if lines else ""
        )
        frame = f'<path d="{marks}" fill="none" stroke="{text}" stroke-width=".8"/>'
        return grid_svg + frame + words

    def _legend(self) -> str:
        if not self.legend_size:
            return ""
        left, top = self.xaxis.first + 6, self.yaxis.first + self.yaxis.span + 4
        step = 1.45 * self.legend_size
        keys = enumerate(self.keys.values())
        return "".join(key_svg(key, left, top + i * step, self.legend_size) for i, key in keys)


def _path(x: NDArray[Any], y: NDArray[Any]) -> str:
    pairs = zip(x.tolist(), y.tolist(), strict=True)
    known = [f"{_number(a)} {_number(b)}" for a, b in pairs if math.isfinite(a + b)]
    return "M" + "L".join(known)


def _line(x: NDArray[Any], y: NDArray[Any], ink: str, lw: float, dash: str) -> str:
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<path d="{_path(x, y)}" fill="none" stroke="{ink}" stroke-width="{lw:g}"{dashes}/>'


def _points(x: NDArray[Any], y: NDArray[Any], marker: str, ms: float, ink: str, fill: str) -> str:
    """Points of a size, each place once: thousands may lie on one another."""
    places = np.unique(np.round(np.stack([x, y], axis=1), 1), axis=0).tolist()
    r = ms / 2.0
    if marker == "x":
        path = "".join(
            f"M{_number(a - r)} {_number(b - r)}l{ms:g} {ms:g}m0 {-ms:g}l{-ms:g} {ms:g}"
            for a, b in places
        )
        return f'<path d="{path}" fill="none" stroke="{ink}" stroke-width="1.4"/>'
    arc = f"a{r:g} {r:g} 0 1 0 {ms:g} 0a{r:g} {r:g} 0 1 0 {-ms:g} 0"
    path = "".join(f"M{_number(a - r)} {_number(b)}{arc}" for a, b in places)
    if marker in _CORNERS:
        outline = [(r * x, r * y) for x, y in _CORNERS[marker]]
        path = "".join(
            f"M{'L'.join(f'{_number(a + x)} {_number(b + y)}' for x, y in outline)}z"
            for a, b in places
        )
    inside = "#ffffff" if fill == "white" else fill
    return f'<path d="{path}" fill="{inside}" stroke="{ink}"/>'


def text_svg(
    text: str,
    x: float,
    y: float,
    size: float,
    *,
    anchor: str = "start",
    align: str = "baseline",
    ink: str = "",
    bold: bool = False,
    turn: float = 0.0,
    rim: bool = False,
) -> str:
    """Write lines of text; `align` says what of them lies at y."""
    lines = text.split("\n")
    step = 1.22 * size
    down = {"top": 0.8 * size, "center": 0.36 * size - step * (len(lines) - 1) / 2}.get(align, 0.0)
    style = f' font-size="{size:g}"' + (f' text-anchor="{anchor}"' if anchor != "start" else "")
    style += f' fill="{"#ffffff" if ink == "white" else ink or colour("text").light}"'
    style += ' font-weight="600"' if bold else ""
    style += ' stroke="#ffffff" stroke-width="3" paint-order="stroke"' if rim else ""
    style += f' transform="rotate({turn:g} {_number(x)} {_number(y)})"' if turn else ""
    if len(lines) == 1:
        return f'<text x="{_number(x)}" y="{_number(y + down)}"{style}>{_escaped(text)}</text>'
    spans = "".join(
        f'<tspan x="{_number(x)}" y="{_number(y + down + i * step)}">{_escaped(line)}</tspan>'
        for i, line in enumerate(lines)
    )
    return f"<text{style}>{spans}</text>"


def key_svg(key: _Key, x: float, y: float, size: float) -> str:
    """One entry of a legend: its sign and, beside it, its text; `y` is its head."""
    middle = y + 0.6 * size
    if key.kind == "patch":
        place = f'x="{_number(x)}" y="{_number(middle - 3.5)}" width="14" height="7"'
        sign = f'<rect {place} fill="{key.ink}"/>'
    else:
        ends, level = np.array([x, x + 14]), np.full(2, middle)
        # short dashes: the point in the middle would hide the gap of longer ones
        dashes = "3 2.5" if key.dash == "--" and key.marker else _DASHES.get(key.dash, "")
        sign = _line(ends, level, key.ink, 1.5, dashes) if key.dash else ""
        fill = "white" if key.hollow else key.ink
        if key.marker:
            sign += _points(ends[:1] + 7, level[:1], key.marker, 5.0, key.ink, fill)
    return sign + text_svg(key.label, x + 19, middle - 0.44 * size, size, align="top")


class SvgFigure:
    """A picture of so many inches; plots side by side or below one another."""

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = _POINTS_PER_INCH * width, _POINTS_PER_INCH * height
        self._plots: list[list[SvgAxes]] = []
        self._ratios: Sequence[float] = ()
        self._head: tuple[str, str, str] | None = None
        self._keys: list[_Key] = []

    def get_figwidth(self) -> float:
        """Width in inches."""
        return self.width / _POINTS_PER_INCH

    def subplots(
        self,
        rows: int = 1,
        columns: int = 1,
        *,
        width_ratios: Sequence[float] | None = None,
        sharey: bool = False,
        squeeze: bool = True,
    ) -> Any:
        """Return plots as an array of shape (rows, columns); of one row or column, a flat one."""
        self._plots = [[SvgAxes() for _ in range(columns)] for _ in range(rows)]
        self._ratios = width_ratios or [1.0] * columns
        plots = np.empty((rows, columns), dtype=object)
        for i, row in enumerate(self._plots):
            for j, axes in enumerate(row):
                plots[i, j] = axes
                if sharey and j:
                    axes.yaxis, axes.names_shown = row[0].yaxis, False
        if not squeeze:
            return plots
        return plots[0, 0] if plots.size == 1 else plots.ravel() if 1 in plots.shape else plots

    def headline(self, title: str, below: str, ink: str) -> None:
        """Say in a picture's head what it shows and what it is about."""
        self._head = title, below, ink

    def legend(self, keys: Iterable[_Key]) -> None:
        """Put a legend below the plots."""
        self._keys = list(keys)

    def svg(self, *, head: bool = True) -> str:
        """The picture as a file; a page that has its words beside it leaves out the `head`."""
        title, top = self._head_svg() if head else ("", 2.0)
        legend, tall = self._legend_svg()
        bottom = self.height - tall - 4.0
        step = (bottom - top) / max(len(self._plots), 1)
        drawn = []
        for i, row in enumerate(self._plots):
            edges = self.width * np.r_[0.0, np.cumsum(self._ratios)] / sum(self._ratios)
            for axes, left, right in zip(row, edges[:-1], edges[1:], strict=True):
                axes.lay_out(left + 4.0, top + i * step, right - 4.0, top + (i + 1) * step - 2.0)
                drawn.append(axes.svg())
        size = f'width="{self.width:g}pt" height="{self.height:g}pt"'
        box = f'viewBox="0 0 {self.width:g} {self.height:g}"'
        start = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {box} font-family="{_FONT}">'
        return start + title + "".join(drawn) + legend + "</svg>\n"

    def _head_svg(self) -> tuple[str, float]:
        if self._head is None:
            return "", 2.0
        title, below, ink = self._head
        drawn = text_svg(title, 6, 15, 12.5, ink=ink, bold=True)
        drawn += text_svg(below, 6, 30, 9, ink=colour("text").light)
        return drawn, 36.0 + 11.0 * below.count("\n")

    def _legend_svg(self) -> tuple[str, float]:
        """Entries from left to right, in as many rows as they take; and how tall they are."""
        size, x, row = 8.5, 8.0, 0
        places = []
        for key in self._keys:
            wide = text_width(key.label, size) + 32.0
            if x > 8.0 and x + wide > self.width:
                x, row = 8.0, row + 1
            places.append((key, x, row))
            x += wide
        if not places:
            return "", 0.0
        tall = 14.0 * (row + 1) + 4.0
        top = self.height - tall
        return "".join(key_svg(k, at, top + 14.0 * r, size) for k, at, r in places), tall
