"""The picture of a simulated step: every rank a row, passes and what waits between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simulator.events.played import SimulatedStep
from simulator.events.step.streams import SPAN_KINDS, STREAMS
from simulator.events.step.timeline import Timeline
from simulator.report.canvas import (
    NARROW,
    headline,
    ink_on,
    legend,
    new_figure,
    plain_axes,
)
from simulator.report.palette import colour
from simulator.report.svg_figure import SvgAxes
from simulator.units import show_percent, show_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INKS = {
    "forward": ("attention", "forward"),
    "backward": ("gemm", "backward"),
    "backward_input": ("gemm", "backward"),
    "backward_weight": ("memory_bound", "weight gradients"),
    "recompute": ("recompute", "recomputation"),
    "optimizer": ("optimizer", "optimizer"),
    "norm": ("optimizer", "optimizer"),
    "launch": ("launch", "host launches"),
    "collective": ("tp", "tensor-parallel"),
    "exchange": ("cp", "context-parallel"),
    "dispatch": ("ep", "expert exchange"),
    "combine": ("ep", "expert exchange"),
    "gather": ("fsdp", "parameter gathers"),
    "reduce": ("dp", "gradient reduction"),
    "send": ("pp", "pipeline sends"),
    "receive": ("pp", "pipeline sends"),
    "offload": ("offload", "copies to the host"),
    "fetch": ("offload", "copies to the host"),
    "input": ("input", "input fetch"),
}
"""Colour and word of each kind of span."""

_END = 40
"""Passes of each end that are shown of a long step; one of at most two ends is shown whole."""

_ROWS = 48
"""Ranks shown at most, evenly picked."""

_ROOMY = 16
"""Ranks up to which passes carry their number."""

_PASS, _TRAFFIC = (0.1, 0.56), (0.7, 0.2)
"""Offset and height within a row: compute above, communication below."""


def pipeline_picture(
    step: SimulatedStep, *, title: str, narrow: bool = False, svg: bool = False
) -> Any:
    """Draw who does what when: passes with their micro-batch, communication below, idle time grey.

    Parameters
    ----------
    step : SimulatedStep
    title : str
        Model, cluster and layout.
    narrow : bool
        For a phone, which shows the beginning of a step alone.
    """
    line = step.timeline
    ranks = np.unique(line.rank)
    ranks = ranks[np.unique(np.linspace(0, len(ranks) - 1, min(len(ranks), _ROWS)).astype(int))]
    windows = _windows(line)
    if narrow:
        windows = [(0.0, min(windows[0][1], float(line.end_s.max()) / 3.0))]
    roomy = len(ranks) <= _ROOMY
    height = 2.0 + (0.42 if roomy else 0.21) * len(ranks)
    size = (NARROW if narrow else 11.0, min(height, 12.0))
    figure = new_figure(*size, svg=svg)
    frames = figure.subplots(1, len(windows), sharey=True, squeeze=False)[0]
    named: dict[str, str] = {}
    for axes, (start, end) in zip(frames, windows, strict=True):
        plain_axes(axes)
        for row, rank in enumerate(ranks.tolist()):
            _row(axes, line, rank, row, (start, end), named=named, numbered=roomy)
        axes.set_xlim(start, end)
        axes.set_ylim(len(ranks), 0)
        axes.set_xlabel("seconds")
    every = -(-len(ranks) // 24)
    labels = [_named(step, int(rank)) for rank in ranks[::every]]
    frames[0].set_yticks(np.arange(0, len(ranks), every) + 0.4, labels, fontsize=8)
    idle = 1.0 - float(step.busy_s[step.pacing_rank, 0]) / step.step_time_s
    text = f"{show_seconds(step.step_time_s)} per step; the busiest rank computes all but"
    shown = "" if len(windows) == 1 else "; beginning and end shown"
    if windows[-1][1] > step.step_time_s * (1.0 + 1e-6):
        shown = "; several steps without a flush" + shown
    headline(figure, f"{text} {show_percent(idle)} of it{shown}", title)
    for word, ink in named.items():
        frames[0].barh(0.0, 0.0, color=colour(ink).light, label=word)
    legend(figure, frames[0])
    return figure


def draw_timeline(axes: Axes, step: SimulatedStep) -> None:
    """Draw the beginning of a step, or all of a short one, into axes."""
    line, named = step.timeline, dict[str, str]()
    ranks = np.unique(line.rank)[:_ROWS]
    start, end = _windows(line)[0]
    for row, rank in enumerate(ranks.tolist()):
        numbered = len(ranks) <= _ROOMY
        _row(axes, line, rank, row, (start, end), named=named, numbered=numbered)
    for word, ink in named.items():
        axes.barh(0.0, 0.0, color=colour(ink).light, label=word)
    axes.set_xlim(start, end)
    axes.set_ylim(len(ranks), 0)
    axes.set_yticks(np.arange(len(ranks)) + 0.4, [_named(step, int(rank)) for rank in ranks])
    axes.set_xlabel("seconds")
    axes.legend(frameon=False, fontsize=8, ncols=3, loc="upper left", bbox_to_anchor=(0.0, -0.18))


def _windows(line: Timeline) -> list[tuple[float, float]]:
    """All that was played, or its two ends."""
    passes = (line.stream == 0) & (line.micro_batch >= 0)
    whole_s, most = float(line.end_s.max()), int(np.bincount(line.rank[passes]).max(initial=0))
    if most <= 2 * _END:
        return [(0.0, whole_s)]
    length = whole_s * _END / most
    return [(0.0, length), (whole_s - length, whole_s)]


def _row(
    axes: Axes | SvgAxes,
    line: Timeline,
    rank: int,
    row: int,
    window: tuple[float, float],
    *,
    named: dict[str, str],
    numbered: bool,
) -> None:
    """One rank: its passes, and what its other streams do."""
    start, end = window
    own = (line.rank == rank) & (line.end_s > start) & (line.start_s < end)
    edges = np.array([[start], [end]])
    _boxes(axes, edges, row + _PASS[0], _PASS[1], facecolor=colour("grid").light, lw=0, zorder=0)
    compute = STREAMS.index("compute")
    for kind in np.unique(line.kind[own]).tolist():
        ink, word = _INKS[SPAN_KINDS[kind]]
        for place, rows in (
            (_PASS, own & (line.kind == kind) & (line.stream == compute)),
            (_TRAFFIC, own & (line.kind == kind) & (line.stream != compute)),
        ):
            if rows.any():
                spans = np.stack([line.start_s[rows], line.end_s[rows]])
                inks = {"facecolor": colour(ink).light, "edgecolor": "white"}
                _boxes(axes, spans, row + place[0], place[1], lw=0.3, **inks)
                named[word] = ink
    if numbered:
        _numbers(axes, line, own & (line.stream == compute), row, window)


def _boxes(
    axes: Axes | SvgAxes, spans_s: NDArray[np.float64], bottom: float, height: float, **inks: Any
) -> None:
    """Rectangles of one height, from and to seconds of shape (2, boxes), as one path.

    Added by hand: `broken_barh` looks at the limits of the axes again for each call, and they are
    given; and a file with a shape for every box is several times as long.
    """
    if isinstance(axes, SvgAxes):
        axes.boxes(spans_s, bottom, height, **inks)
        return
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    start, end = spans_s
    low, high = np.full_like(start, bottom), np.full_like(start, bottom + height)
    corners = np.stack([[start, low], [start, high], [end, high], [end, low], [start, low]])
    around = (Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY)
    path = Path(np.moveaxis(corners, 2, 0).reshape(-1, 2), np.tile(around, len(start)))
    axes.add_artist(PathPatch(path, **inks))


def _numbers(
    axes: Axes | SvgAxes,
    line: Timeline,
    rows: NDArray[np.bool_],
    row: int,
    window: tuple[float, float],
) -> None:
    """Micro-batch in every pass that has room for it."""
    least = (window[1] - window[0]) / 50.0
    wide = rows & (line.micro_batch >= 0) & (line.end_s - line.start_s > least)
    for span in np.flatnonzero(wide).tolist():
        middle = (line.start_s[span] + line.end_s[span]) / 2.0
        if window[0] < middle < window[1]:
            ink = colour(_INKS[SPAN_KINDS[line.kind[span]]][0]).light
            axes.text(
                middle,
                row + _PASS[0] + _PASS[1] / 2.0,
                f"{line.micro_batch[span]}",
                ha="center",
                va="center",
                fontsize=7.0,
                color=ink_on(ink),
                in_layout=False,
                clip_on=False,
            )


def _named(step: SimulatedStep, rank: int) -> str:
    alike = int(step.ranks_of[rank])
    servers = "" if step.mixed is None else f"\n{step.mixed.servers(rank)}"
    return f"rank {rank}" + (f" (x {alike:,})" if alike > 1 else "") + servers
