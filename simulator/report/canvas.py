"""What the pictures share: frames, titles, legends, and how they become files."""

from __future__ import annotations

import io
import textwrap
from typing import TYPE_CHECKING, Any, Literal

from simulator.report.palette import colour
from simulator.report.svg_figure import SvgAxes, SvgFigure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 130

NARROW, SMALL, HALF, WIDE, FULL = 3.7, 4.9, 6.0, 7.0, 11.0
"""Inches of a picture for phones, for two fifths, half and three fifths of a page, and for all of
it: texts of 8.5 to 10 points come out at 11 to 14 pixels."""


def ink_on(background: str) -> str:
    """Choose the text colour that reads on a background."""
    red, green, blue = (int(background[i : i + 2], 16) for i in (1, 3, 5))
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 150 else colour("on bar").light


def new_figure(width: float, height: float, *, svg: bool) -> Any:
    """Return an empty picture of so many inches: `svg` for a page, else of matplotlib."""
    if svg:
        return SvgFigure(width, height)
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def canvas(width: float, height: float, *, svg: bool) -> tuple[Any, Any]:
    """Return a picture of so many inches with one quiet frame."""
    figure = new_figure(width, height, svg=svg)
    axes = figure.subplots()
    plain_axes(axes)
    return figure, axes


def plain_axes(axes: Axes | SvgAxes) -> None:
    """A quiet frame: two spines and a light grid along the values."""
    if isinstance(axes, SvgAxes):
        axes.grid(axis="x")
        return
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color=colour("grid").light, lw=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9)


_FEW, _MORE = (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
"""Marks in a decade: as banknotes; closer where an axis spans less than a factor of 5."""


def plain_log(
    axes: Axes | SvgAxes, side: Literal["x", "y"], *, base: int = 10, suffix: str = ""
) -> None:
    """Make an axis logarithmic, its marks plain numbers: 1, 2, 5, 10, or doubled with base 2."""
    if isinstance(axes, SvgAxes):
        (axes.set_xscale if side == "x" else axes.set_yscale)("log", base=base)
        scale = axes.xaxis if side == "x" else axes.yaxis
        scale.set_major_formatter(lambda value, _: f"{value:,.12g}{suffix}")
        return
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis = axes.xaxis if side == "x" else axes.yaxis
    (axes.set_xscale if side == "x" else axes.set_yscale)("log")
    low, high = sorted(axis.get_view_interval())
    subs: tuple[float, ...] = _MORE if high < 5.0 * low else _FEW
    if base == 2 or high > 1e3 * low:  # one mark for each power is enough
        subs = (1.0,)
    axis.set_major_locator(LogLocator(base=base, subs=subs, numticks=20))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}{suffix}"))


def money_axis(most_usd: float) -> tuple[float, str]:
    """Choose what amounts up to so many USD are divided by, and the words of their axis."""
    for scale, words in ((1e6, "million USD"), (1e3, "thousand USD")):
        if most_usd >= scale:
            return scale, words
    return 1.0, "USD"


def headline(figure: Figure | SvgFigure, title: str, below: str, verdict: str = "text") -> None:
    """Title and what it is about, flush left; the blank lines reserve the room of the second.

    A narrow picture stands on a page that says both, and has neither.
    """
    if figure.get_figwidth() <= NARROW:
        return
    if isinstance(figure, SvgFigure):
        figure.headline(title, below, colour(verdict).light)
        return
    lines = below.count("\n") + 1
    figure.suptitle(
        title + "\n" * lines,
        x=0.01,
        ha="left",
        fontsize=12.5,
        fontweight="bold",
        color=colour(verdict).light,
    )
    top = 1.0 - 0.27 / figure.get_figheight()
    figure.text(0.01, top, _escaped(below), fontsize=9, va="top", linespacing=1.35)


def legend(figure: Figure | SvgFigure, axes: Axes | SvgAxes) -> None:
    """Put the legend below the frames."""
    if isinstance(figure, SvgFigure) or isinstance(axes, SvgAxes):
        assert isinstance(figure, SvgFigure) and isinstance(axes, SvgAxes)
        figure.legend(axes.keys.values())
        return
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        width = figure.get_figwidth()
        columns = 2 if width <= NARROW else 4 if width < 11 else 3
        if width <= NARROW:
            labels = [wrapped(label, 24) for label in labels]
        figure.legend(
            handles, labels, loc="outside lower left", ncols=columns, frameon=False, fontsize=8.5
        )


def wrapped(text: str, width: int) -> str:
    """Break a text into lines of so many letters."""
    wide = text.replace("+", "+ ")  # a long word may end behind a plus
    lines = textwrap.wrap(wide, width) if len(max(text.split(), key=len)) > width else None
    return "\n".join(lines or textwrap.wrap(text, width)).replace("+ ", "+")


def _escaped(text: str) -> str:
    """Keep a dollar sign in a name from starting a formula."""
    return text.replace("$", r"\$")


def png_bytes(figure: Figure) -> bytes:
    """Return the picture as a PNG file, the same bytes for the same picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    out = io.BytesIO()
    meta: dict[str, Any] = {"Software": None}
    drawn: Any = FigureCanvasAgg(figure)
    _lay_out(figure)
    drawn.print_png(out, metadata=meta)
    return out.getvalue()


def file_bytes(figure: Figure, suffix: str) -> bytes:
    """Return the picture as a file of a suffix: ``.svg``, else PNG."""
    return svg_bytes(figure) if suffix == ".svg" else png_bytes(figure)


def svg_bytes(figure: Figure) -> bytes:
    """Return the picture as an SVG file whose texts are texts, the same bytes for the same one."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    out = io.BytesIO()
    drawn: Any = FigureCanvasSVG(figure)
    dpi = figure.dpi
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "foreshard"}):
        figure.dpi = drawn.fixed_dpi
        _lay_out(figure)
        figure.dpi = dpi
        drawn.print_svg(out, metadata={"Date": None, "Creator": None})
    figure.dpi = dpi
    return out.getvalue()


def _lay_out(figure: Figure) -> None:
    """Find room for all that is in a picture, once for all files of it.

    `Figure.savefig` draws every picture twice, the first time for this alone.
    """
    if (engine := figure.get_layout_engine()) is not None:
        engine.execute(figure)
        figure.set_layout_engine("none")
