"""Whether intervals hold on tables left out whole: words, tables and a picture for both pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

PICTURE_NAME = "intervals.svg"

Table = Callable[..., str]
Percent = Callable[..., str]

_LOW, _HIGH = 0.75, 0.85
"""Shares inside P10 to P90 that are as they should be, for groups of some dozen runs."""
_LISTED = (
    *("all", "dense", "experts", "fp8 and fp4", "host-bound"),
    *("other vendors", "trainers stood in for", "borrowed devices left out"),
)
"""Groups of the first page; the details have the others."""
_SIDE, _LEFT, _TOP = 300, 60, 40
_MOST = 0.5
"""Largest error of the picture."""


def coverage(found: Mapping[str, Any], table: Table, percent: Percent) -> Iterator[str]:
    """Word the intervals for the first page."""
    if not found:
        return
    yield "## Whether the intervals hold"
    yield (
        "New tables as first predicted, each left out of what its intervals are made from. P10 to"
        " P90 should hold 80 %; *stated*: the error that the card expects; *before*: inside the"
        " intervals of that day."
    )
    rows = [_cells(name, found["groups"][name], percent) for name in _LISTED]
    yield table(("runs", "number", "inside", "stated", "true", "before"), rows)
    grades = "; ".join(
        f"{name} {percent(line['stated'])}, {percent(line['true'])} ({line['n']})"
        for name, line in found["grades"].items()
    )
    yield (
        f"Stated and true by grade: {grades}. Beyond three sigma:"
        f" {percent(found['beyond_three_sigma'])} (0.3 % wanted)."
    )
    yield f"![Stated and true errors, share inside]({PICTURE_NAME})"


def coverage_details(found: Mapping[str, Any], table: Table, percent: Percent) -> Iterator[str]:
    """Word every group for the details."""
    if not found:
        return
    yield "## Intervals on tables left out whole"
    yield (
        "How wide an interval is, follows from how far off measured runs near in what sets the"
        " time were when they were predicted (`hardware_profiles/uncertainty/likeness.toml`,"
        " `runs.csv`). Here the runs of one table at a time, as first predicted"
        " (*second-memory*: today), see the runs of all others, never those of their own source,"
        " and the width is fitted without their table (`workshop/cases/interval_fit.py`)."
        " *width*: median of ln P90 - ln P10; *score*: interval score, smaller is better;"
        " *before*: the intervals that were said at first sight. What all runs of a trainer that is"
        " stood in for are off alike, or of a device with borrowed kernels, is learnt of other"
        " trainers and devices; of *devices left out* no run at all is near. *grade*: the one that"
        " an answer gives."
    )
    head = ("runs", "number", "inside", "stated", "true", "width", "score", "inside before")
    lines = {**found["groups"], **{f"grade: {k}": v for k, v in found["grades"].items()}}
    rows = [
        [
            *_cells(name, line, percent)[:5],
            "-" if line["width"] is None else f"{line['width']:.2f}",
            "-" if line["score"] is None else f"{line['score']:.3f}",
            percent(line["inside_before"]),
        ]
        for name, line in lines.items()
    ]
    yield table(head, rows)
    tenths = ", ".join(f"{100 * share:.0f}" for share in found["tenths"])
    yield (
        f"Share of runs in each tenth of the predicted distribution, %: {tenths} (10 each wanted);"
        f" beyond three sigma {percent(found['beyond_three_sigma'])} (0.3 % wanted)."
    )


def _cells(name: str, line: Mapping[str, Any], percent: Percent) -> list[str]:
    shares = (line[key] for key in ("inside", "stated", "true", "inside_before"))
    return [name, str(line["n"]), *map(percent, shares)]


def picture(found: Mapping[str, Any]) -> str:
    """Draw stated against true errors, and the share inside by group, as SVG."""
    groups = {name: line for name, line in found["groups"].items() if line["n"]}
    grades = {name: line for name, line in found["grades"].items() if line["n"]}
    height = _TOP + max(_SIDE, 22 * len(groups)) + 50
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="12"'
        f' viewBox="0 0 900 {height}">',
        f'<rect width="900" height="{height}" fill="#ffffff"/>',
        _text(_LEFT, 24, "Error stated and error that came (tables left out)", weight="bold"),
        *_scatter(groups, grades),
        _text(560, 24, "Share of runs inside P10 to P90", weight="bold"),
        *_bars(groups),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _scatter(groups: Mapping[str, Any], grades: Mapping[str, Any]) -> Iterator[str]:
    bottom = _TOP + _SIDE
    yield _line(_LEFT, bottom, _LEFT + _SIDE, _TOP, "#8a929b", dash="4 3")
    yield _line(_LEFT, bottom, _LEFT + _SIDE, bottom, "#1c2127")
    yield _line(_LEFT, bottom, _LEFT, _TOP, "#1c2127")
    for tenth in range(6):
        at = tenth * _SIDE / 5
        yield _text(_LEFT + at, bottom + 16, f"{10 * tenth} %", anchor="middle")
        yield _text(_LEFT - 6, bottom - at + 4, f"{10 * tenth} %", anchor="end")
    yield _text(
        _LEFT + _SIDE / 2, bottom + 36, "stated, by grade (circles) and group", anchor="middle"
    )
    for lines, size, fill in ((groups, 4, "#a3c6ef"), (grades, 6, "#2458a6")):
        for name, line in lines.items():
            x = _LEFT + min(line["stated"], _MOST) / _MOST * _SIDE
            y = bottom - min(line["true"], _MOST) / _MOST * _SIDE
            if lines is grades:
                yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}" fill="{fill}"/>'
                yield _text(x + 9, y + 14, name, size=11)
            else:  # some lie close to one another: names are told where a pointer rests
                corner = f'x="{x - size:.1f}" y="{y - size:.1f}"'
                shape = f'<rect {corner} width="{2 * size}" height="{2 * size}" fill="{fill}">'
                yield f"{shape}<title>{name}</title></rect>"


def _bars(groups: Mapping[str, Any]) -> Iterator[str]:
    start, wide = 640, 220
    length = 22 * len(groups)
    band = f'width="{(_HIGH - _LOW) * wide:.1f}" height="{length}"'
    yield f'<rect x="{start + _LOW * wide:.1f}" y="{_TOP}" {band} fill="#d9dde2"/>'
    for i, (name, line) in enumerate(groups.items()):
        y = _TOP + 22 * i
        yield _text(start - 8, y + 15, f"{name} ({line['n']})", anchor="end", size=11)
        bar = f'width="{line["inside"] * wide:.1f}" height="10"'
        yield f'<rect x="{start}" y="{y + 6}" {bar} fill="#2458a6"/>'
        yield _text(start + line["inside"] * wide + 5, y + 15, f"{100 * line['inside']:.0f} %")
    yield _text(start, _TOP + length + 16, "grey: 75 to 85 %", size=11)


def _line(x: float, y: float, x_end: float, y_end: float, colour: str, *, dash: str = "") -> str:
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<path d="M{x:g} {y:g}L{x_end:g} {y_end:g}" stroke="{colour}"{dashes}/>'


def _text(
    x: float, y: float, words: str, *, anchor: str = "start", size: int = 12, weight: str = "normal"
) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} font-size="{size}" font-weight="{weight}" fill="#1c2127">{words}</text>'
