"""Where words, marks and signs of a picture stand, in points, by hand and with unlike numbers."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from simulator.economics.planning_factor import Span
from simulator.questions.compare.offer import Asked, Offer
from simulator.report.canvas import WIDE, canvas
from simulator.report.decision_picture import draw_decision
from simulator.report.label_places import Label, Place, Plot, placed
from simulator.report.svg_figure import SvgAxes, SvgFigure, text_svg, text_width

PLOT = Plot(x=(3.0, 11.0), y=(20.0, 70.0), width=400.0, height=100.0)
WORDS = "aaaa\nbb"
"""Two lines, the longer one of four letters of 0.59: 23.6 points at ten, 25 high."""


def test_a_point_lies_at_its_share_of_the_frame() -> None:
    assert PLOT.points(5.0, 30.0) == (100.0, 20.0)
    assert PLOT.mark(5.0, 30.0, 8.0) == (96.0, 104.0, 16.0, 24.0)
    log = Plot(x=(2.0, 32.0), y=(1.0, 1.0), width=400.0, height=100.0, log_x=True)
    assert log.points(8.0, 1.5) == pytest.approx((200.0, 50.0))
    flat = Plot(x=(2.0, 2.0), y=(0.0, 4.0), width=400.0, height=100.0)
    assert flat.points(2.5, 1.0) == (200.0, 25.0)


@pytest.mark.parametrize(("ha", "left"), [("left", 107.0), ("center", 95.2), ("right", 83.4)])
@pytest.mark.parametrize(("va", "foot"), [("bottom", 9.0), ("baseline", 4.0), ("top", -16.0)])
def test_words_stand_on_every_side_of_their_place(
    ha: str, left: float, va: str, foot: float
) -> None:
    """Seven points to the right of (100, 20), eleven below it."""
    where = Place(at=(5.0, 30.0), shift=(7.0, -11.0), ha=ha, va=va)
    label = Label(text=WORDS, size=10.0, places=[where], style={})
    assert PLOT.box(label, where) == pytest.approx((left, left + 23.6, foot, foot + 25.0))


def label(*at: tuple[float, float], text: str = "aaaa", **more: Any) -> Label:
    places = [Place(at=one, shift=(0.0, 0.0), ha="left", va="bottom") for one in at]
    return Label(text=text, size=10.0, places=places, style={}, **more)


def test_the_place_of_which_least_is_taken() -> None:
    """100 x 100 points, words of 23.6 x 12.5: those count thrice, what is outside nine times."""
    plot = Plot(x=(0.0, 100.0), y=(0.0, 100.0), width=100.0, height=100.0)

    def where(one: Label, marks: list[Any], *before: Label) -> tuple[float, float]:
        return placed([*before, one], plot, marks)[-1][1].at

    free, high = (10.0, 10.0), (10.0, 60.0)
    # a mark of 4 x 12.5 at the first place against one of 3 x 12.5 at the second
    marks = [(10.0, 14.0, 0.0, 100.0 / 2), (10.0, 13.0, 51.0, 100.0)]
    assert where(label(free, high), marks) == high
    assert where(label(high, free), marks) == high
    # two points of a word against five of a mark: 2 x 3 > 5; against seven it is 2 x 3 < 7
    word = label((31.6, 10.0))
    assert where(label(free, high), [(10.0, 15.0, 51.0, 100.0)], word) == high
    assert where(label(free, high), [(10.0, 17.0, 51.0, 100.0)], word) == free
    # one point outside against eight, and against ten, of a mark
    edge = (77.4, 10.0)
    assert where(label(edge, high), [(10.0, 18.0, 51.0, 100.0)]) == high
    assert where(label(edge, high), [(10.0, 20.0, 51.0, 100.0)]) == edge
    # beside one another is not on one another
    needless = label((33.6, 10.0), needed=False)
    assert len(placed([label(free), needless], plot, [])) == 2
    assert len(placed([label(free), label((33.5, 10.0), needed=False)], plot, [])) == 1
    assert len(placed([label(free), label((33.5, 10.0))], plot, [])) == 2
    assert len(placed([label(free), label((33.5, 22.5), needed=False)], plot, [])) == 2


def test_letters_are_narrow_plain_or_wide() -> None:
    assert text_width("il", 100.0) == pytest.approx(66.0)
    assert text_width("mW", 100.0) == pytest.approx(180.0)
    assert text_width("ab\nabc\na", 100.0) == pytest.approx(177.0)


def at(svg: str) -> list[tuple[float, float]]:
    return [
        (float(e.get("x", "nan")), float(e.get("y", "nan")))
        for e in ET.fromstring(f"<g>{svg}</g>").iter()
        if e.get("x") is not None
    ]


@pytest.mark.parametrize(
    ("align", "first"), [("baseline", 50.0), ("top", 58.0), ("center", 50 + 3.6 - 12.2)]
)
def test_three_lines_are_122_hundredths_of_their_letters_apart(align: str, first: float) -> None:
    found = at(text_svg("a\nb\nc", 30.0, 50.0, 10.0, align=align))
    expected = [(30.0, round(first + 12.2 * line, 1)) for line in range(3)]
    assert np.array(found) == pytest.approx(np.array(expected))


def axes_of(low: float, high: float, *, span: float = 300.0, base: int = 0) -> SvgAxes:
    axes = SvgFigure(5.0, 3.0).subplots()
    if base:
        axes.set_xscale("log", base=base)
    axes.set_xlim(low, high)
    axes.xaxis.first, axes.xaxis.span = 17.0, span
    assert isinstance(axes, SvgAxes)
    return axes


@pytest.mark.parametrize(
    ("low", "high", "names"),
    [
        (0.0, 4.0, ["0", "1", "2", "3", "4"]),
        (0.0, 8.0, ["0", "2", "4", "6", "8"]),
        (0.0, 10.0, ["0.0", "2.5", "5.0", "7.5", "10.0"]),
        (0.0, 20.0, ["0", "5", "10", "15", "20"]),
        (0.0, 0.04, ["0.00", "0.01", "0.02", "0.03", "0.04"]),
        (0.0, 0.01, ["0.0000", "0.0025", "0.0050", "0.0075", "0.0100"]),
        (1000.0, 5000.0, ["1,000", "2,000", "3,000", "4,000", "5,000"]),
        (1.1, 4.9, ["2", "3", "4"]),
        (0.0, 1e-7, ["0", "2.5e-08", "5e-08", "7.5e-08", "1e-07"]),
    ],
)
def test_marks_and_their_digits(low: float, high: float, names: list[str]) -> None:
    """At most four steps in 300 points, 62 apart at least: of 1, 2, 2.5, 5 or 10."""
    assert [name for _, name in axes_of(low, high).xaxis.ticks(62.0)] == names


@pytest.mark.parametrize(
    ("low", "high", "marks"),
    [
        (1.0, 1000.0, [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]),
        (1.0, 1001.0, [1, 10, 100, 1000]),
        (1.0, 4.99, [1, 1.5, 2, 3, 4]),
        (1.0, 5.0, [1, 2, 5]),
        (3.0, 90.0, [5, 10, 20, 50]),
    ],
)
def test_marks_of_decades(low: float, high: float, marks: list[float]) -> None:
    found = axes_of(low, high, base=10).xaxis.ticks(62.0)
    assert [value for value, _ in found] == pytest.approx(marks)


@pytest.mark.parametrize("base", [0, 10])
def test_without_limits_a_twentieth_is_left_on_either_side(base: int) -> None:
    axes = SvgFigure(5.0, 3.0).subplots()
    if base:
        axes.set_xscale("log", base=base)
    axes.plot([2.0, 50.0], [7.0, 7.0], color="#000000")
    low, high = axes.xaxis.limits()
    assert (low, high) == pytest.approx((2 / 25**0.05, 50 * 25**0.05) if base else (-0.4, 52.4))
    assert axes.yaxis.limits() == (6.5, 7.5)
    axes.set_xlim(1.0, 100.0)
    assert axes.xaxis.limits() == (1.0, 100.0)


SIGNS = {
    "s": [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
    "x": [(-1.0, -1.0)],
    "o": [(-1.0, 0.0)],
}


@pytest.mark.parametrize("sign", "oxs^Dpv")
def test_signs_of_points_lie_around_their_place(sign: str) -> None:
    """Even-sided ones are as far to the left as to the right; a point that is up has its tip up."""
    axes = axes_of(0.0, 10.0)
    axes.set_ylim(0.0, 10.0)
    axes.yaxis.first, axes.yaxis.span = 100.0, -80.0
    (shape,) = axes.plot([5.0], [5.0], sign, color="#123456", ms=10.0)
    path = re.search(r' d="([^"]*)"', shape.svg(axes))
    assert path is not None
    pairs = re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path[1])
    corners = np.array(pairs, float) - (17.0 + 150.0, 60.0)
    if sign in SIGNS:
        assert corners == pytest.approx(5.0 * np.array(SIGNS[sign]), abs=0.051)
    else:
        assert corners[:, 0].min() == pytest.approx(-corners[:, 0].max(), abs=0.11)
        tip = corners[np.abs(corners[:, 0]) < 0.06, 1]
        assert (tip.min() < -5.0) == (sign in "^Dp") and (tip.max() > 5.0) == (sign in "vD")
        flat = np.abs(corners[:, 1]) < 0.06
        assert (flat.sum() == 2) == (sign == "D")
        assert len(corners) == {"^": 3, "v": 3, "D": 4, "p": 5}[sign]
    if sign == "p":  # five corners on one circle, a fifth of a turn apart
        reach = np.hypot(*corners.T)
        assert reach == pytest.approx(np.full(5, reach.mean()), rel=0.02)


def an_offer(days: float, usd: float, **more: Any) -> Offer:
    return Offer(
        cluster="x", accelerator="h100-sxm", gpus=8, feasible=True,
        days=Span(p50=days, log_spread=0.0), usd=Span(p50=usd, log_spread=0.0), **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("offers", "asked", "x", "y"),
    [
        # days from nought to 6 % beyond the last; money to 8 % above the dearest, from nought
        ([(10.0, 100.0), (20.0, 300.0)], {}, (0.0, 21.2), (0.0, 324.0)),
        # all dear: the foot is a fifth below the cheapest
        ([(10.0, 200.0), (20.0, 300.0)], {}, (0.0, 21.2), (160.0, 324.0)),
        # a log axis begins a quarter before the first and ends a quarter after the last
        ([(1.0, 100.0), (20.0, 300.0)], {}, (0.8, 25.0), (0.0, 324.0)),
        # a deadline has 12 % beyond it, a budget 5 % and the same 8
        ([(10.0, 100.0), (20.0, 300.0)], {"deadline_days": 25.0}, (0.0, 29.68), (0.0, 324.0)),
        ([(10.0, 100.0), (20.0, 300.0)], {"budget_usd": 400.0}, (0.0, 21.2), (0.0, 453.6)),
        # a budget below the foot is seen, too
        ([(10.0, 200.0), (20.0, 300.0)], {"budget_usd": 140.0}, (0.0, 21.2), (133.0, 324.0)),
        # three times what is drawn is drawn, beyond it not
        ([(10.0, 100.0), (20.0, 300.0)], {"budget_usd": 900.0}, (0.0, 21.2), (0.0, 1020.6)),
        ([(10.0, 100.0), (20.0, 300.0)], {"budget_usd": 901.0}, (0.0, 21.2), (0.0, 324.0)),
    ],
)  # fmt: skip
def test_what_the_axes_of_a_decision_span(
    offers: list[tuple[float, float]], asked: dict[str, Any], x: Any, y: Any
) -> None:
    _, axes = canvas(WIDE, 4.1, svg=True)
    draw_decision(axes, [an_offer(*one) for one in offers], [], Asked(**asked))
    assert axes.xaxis.limits() == pytest.approx(x)
    assert axes.yaxis.limits() == pytest.approx(y)
