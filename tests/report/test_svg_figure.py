"""Pictures of pages: places, marks, notes and texts of the SVG, read back by an XML parser."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.report.inline_svg import noted
from simulator.report.svg_figure import SvgAxes, SvgFigure, text_width

SVG = "{http://www.w3.org/2000/svg}"


def plotted() -> tuple[SvgFigure, SvgAxes]:
    figure = SvgFigure(5.0, 3.0)
    axes = figure.subplots()
    return figure, axes


def drawn(figure: SvgFigure) -> ET.Element:
    return ET.fromstring(figure.svg())


def test_bars_are_as_long_as_their_values() -> None:
    figure, axes = plotted()
    axes.barh([0, 1], [2.0, 6.0], left=[0.0, 2.0], color="#123456", height=0.5)
    axes.set_xlim(0.0, 10.0)
    axes.set_ylim(1.5, -0.5)
    paths = [p.get("d", "") for p in drawn(figure).iter(f"{SVG}path") if p.get("fill") == "#123456"]
    boxes = [[float(v) for v in re.findall(r"-?[\d.]+", path)] for path in paths]
    (x0, y0, w0, h0), (x1, y1, w1, _) = (box[:4] for box in boxes)
    tenth = axes.xaxis.span / 10.0
    assert w0 == pytest.approx(2 * tenth, abs=0.1) and w1 == pytest.approx(6 * tenth, abs=0.1)
    assert x1 - x0 == pytest.approx(2 * tenth, abs=0.11)
    assert y1 - y0 == pytest.approx(2 * h0, abs=0.11)  # rows are one apart, bars half as high


def test_names_with_a_box_behind_them_have_a_rim_of_the_page_under_their_letters() -> None:
    figure, axes = plotted()
    axes.annotate("512", (1.0, 1.0), (0, 3), bbox={"facecolor": "white"})
    axes.annotate("bare", (1.0, 1.0), (0, 3))
    rims = {
        t.text: (t.get("stroke"), t.get("paint-order")) for t in drawn(figure).iter(f"{SVG}text")
    }
    assert rims["512"] == ("#ffffff", "stroke") and rims["bare"] == (None, None)


def test_what_lies_outside_the_limits_is_cut() -> None:
    figure, axes = plotted()
    axes.boxes(np.array([[-5.0, 4.0], [1.0, 20.0]]), 0.0, 1.0, facecolor="#123456")
    axes.set_xlim(0.0, 10.0)
    axes.set_ylim(0.0, 1.0)
    (path,) = [p for p in drawn(figure).iter(f"{SVG}path") if p.get("fill") == "#123456"]
    first, second = path.get("d", "").split("z")[:2]
    start, wide = (float(v) for v in re.findall(r"M(-?[\d.]+).*?h([\d.]+)", first)[0])
    at, length = (float(v) for v in re.findall(r"M(-?[\d.]+).*?h([\d.]+)", second)[0])
    assert start == pytest.approx(axes.xaxis.first, abs=0.06)
    assert wide == pytest.approx(axes.xaxis.span / 10.0, abs=0.06)
    assert at + length == pytest.approx(axes.xaxis.first + axes.xaxis.span, abs=0.11)


@given(st.text(min_size=1).filter(lambda text: text.isprintable()))
def test_texts_and_notes_are_read_back_as_they_were_given(text: str) -> None:
    figure, axes = plotted()
    (bar,) = axes.barh(0, 1.0, color="#123456", label=text)
    bar.set_gid(noted(text))
    axes.text(0.5, 0.0, text)
    axes.set_xlabel(text)
    figure.legend(axes.keys.values())
    figure.headline(text, text, "#123456")
    root = drawn(figure)
    (note,) = root.iter(f"{SVG}title")
    assert note.text == text
    legend = 0 if text.startswith("_") else 1
    assert [t.text for t in root.iter(f"{SVG}text")].count(text) >= 4 + legend


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_linear_marks_are_round_and_equally_far_apart(low: float, span: float) -> None:
    _, axes = plotted()
    axes.set_xlim(low, low + span)
    axes.xaxis.span = 300.0
    marks = [value for value, _ in axes.xaxis.ticks(62.0)]
    steps = np.diff(marks)
    assert len(marks) <= 7
    if len(steps):
        assert np.allclose(steps, steps[0])
        first = steps[0] / 10.0 ** math.floor(math.log10(steps[0]) + 1e-9)
        assert min(abs(first - s) for s in (1.0, 2.0, 2.5, 5.0, 10.0)) < 1e-3


@pytest.mark.parametrize(
    ("base", "low", "high", "marks"),
    [
        (2, 1.0, 9.0, [1, 2, 4, 8]),
        (10, 1.0, 60.0, [1, 2, 5, 10, 20, 50]),
        (10, 1e-3, 10.0, [1e-3, 1e-2, 0.1, 1, 10]),
    ],
)
def test_logarithmic_marks(base: int, low: float, high: float, marks: list[float]) -> None:
    _, axes = plotted()
    axes.set_xscale("log", base=base)
    axes.set_xlim(low, high)
    assert [value for value, _ in axes.xaxis.ticks(30.0)] == pytest.approx(marks)
    third = axes.xaxis.place([low, math.sqrt(low * high), high])
    assert third[1] - third[0] == pytest.approx(third[2] - third[1])


def test_a_legend_goes_on_in_a_further_row_and_stays_within_the_picture() -> None:
    figure, axes = plotted()
    for number in range(12):
        axes.barh(number, 1.0, color="#123456", label=f"a longer word {number}")
    figure.legend(axes.keys.values())
    words = [t for t in drawn(figure).iter(f"{SVG}text") if "longer" in (t.text or "")]
    ends = [float(t.get("x", 0)) + text_width(t.text or "", 8.5) for t in words]
    assert len(words) == 12 and max(ends) <= figure.width
    assert len({t.get("y") for t in words}) > 1
    assert max(float(t.get("y", 0)) for t in words) <= figure.height


def test_plots_side_by_side_keep_four_points_from_each_others_halves() -> None:
    """5 inches are 360 points: halves from 0 to 180 and from 180 to 360."""
    figure = SvgFigure(5.0, 3.0)
    plots = figure.subplots(1, 2)
    for axes in plots:
        axes.set_axis_off()
    figure.svg()
    sides = [(axes.xaxis.first, axes.xaxis.first + axes.xaxis.span) for axes in plots]
    assert sides == [(4.0, 176.0), (184.0, 356.0)]


def test_plots_below_one_another_share_the_height() -> None:
    """Three of them in 216 points, none over its neighbour, each a third of what is theirs."""
    figure = SvgFigure(5.0, 3.0)
    plots = figure.subplots(3, 1)
    for axes in plots:
        axes.set_axis_off()
    figure.svg()
    ends = [sorted((y.first, y.first + y.span)) for y in (axes.yaxis for axes in plots)]
    tops, bottoms = np.array(ends).T
    assert (tops[1:] > bottoms[:-1]).all() and tops[0] >= 0.0 and bottoms[-1] <= 216.0
    assert np.diff([tops, bottoms]) == pytest.approx(np.full((2, 2), 70.0), abs=2.0)


def test_thousands_of_points_on_one_place_are_drawn_once() -> None:
    figure, axes = plotted()
    axes.plot([1.0] * 5000 + [2.0], [1.0] * 5000 + [2.0], "o", color="#123456", mfc="none")
    (path,) = [p for p in drawn(figure).iter(f"{SVG}path") if p.get("stroke") == "#123456"]
    assert path.get("d", "").count("M") == 2
