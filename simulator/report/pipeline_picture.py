"""Pictures of what was simulated: a step, every rank a row; runs, a strip of one, when all end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simulator.events.played import SimulatedStep
from simulator.events.step.streams import SPAN_KINDS, STREAMS
from simulator.events.step.timeline import Timeline
from simulator.report.canvas import (
    DPI,
    NARROW,
    headline,
    ink_on,
    legend,
    new_figure,
    plain_axes,
    plain_log,
)
from simulator.report.palette import colour
from simulator.report.svg_figure import SvgAxes
from simulator.units import DAY_S, HOUR_S, show_percent, show_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from simulator.events.run.played_runs import PlayedRuns
    from simulator.planner.simulated_run import RunCurves


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
        for row, spans in enumerate(_spans_of(line, ranks)):
            _row(axes, line, spans, row, (start, end), named=named, numbered=roomy)
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
    for row, spans in enumerate(_spans_of(line, ranks)):
        numbered = len(ranks) <= _ROOMY
        _row(axes, line, spans, row, (start, end), named=named, numbered=numbered)
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


def _spans_of(line: Timeline, ranks: NDArray[np.int32]) -> list[NDArray[np.intp]]:
    """Spans of each of some ranks, in the order of the timeline."""
    order = np.argsort(line.rank, kind="stable")
    first, last = (np.searchsorted(line.rank[order], ranks, side) for side in ("left", "right"))
    return [order[a:b] for a, b in zip(first.tolist(), last.tolist(), strict=True)]


def _row(
    axes: Axes | SvgAxes,
    line: Timeline,
    spans: NDArray[np.intp],
    row: int,
    window: tuple[float, float],
    *,
    named: dict[str, str],
    numbered: bool,
) -> None:
    """One rank: its passes, and what its other streams do."""
    start, end = window
    shown = spans[(line.end_s[spans] > start) & (line.start_s[spans] < end)]
    edges = np.array([[start], [end]])
    _boxes(axes, edges, row + _PASS[0], _PASS[1], facecolor=colour("grid").light, lw=0, zorder=0)
    kinds, computes = line.kind[shown], line.stream[shown] == STREAMS.index("compute")
    for kind in np.unique(kinds).tolist():
        ink, word = _INKS[SPAN_KINDS[kind]]
        for place, of_place in ((_PASS, computes), (_TRAFFIC, ~computes)):
            some = shown[of_place & (kinds == kind)]
            if len(some):
                ends_s = np.stack([line.start_s[some], line.end_s[some]])
                inks = {"facecolor": colour(ink).light, "edgecolor": "white"}
                _boxes(axes, ends_s, row + place[0], place[1], lw=0.3, **inks)
                named[word] = ink
    if numbered:
        _numbers(axes, line, shown[computes], row, window)


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
    spans: NDArray[np.intp],
    row: int,
    window: tuple[float, float],
) -> None:
    """Micro-batch in every pass that has room for it."""
    least = (window[1] - window[0]) / 50.0
    wide = (line.micro_batch[spans] >= 0) & (line.end_s[spans] - line.start_s[spans] > least)
    for span in spans[wide].tolist():
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


_COLOURS = ("gemm", "optimizer", "does not fit", "dp", "bubble")
"""Of training, checkpoints, lost work, restarts and planned stops."""

_STRIP_ROWS = 12
"""Lines of the strip."""


def run_picture(
    played: PlayedRuns, strip: Any, curves: RunCurves, title: str, stretches: tuple[str, ...]
) -> Figure:
    """Draw the run; `strip` has a stretch in each row: start, end, kind (of `stretches`)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.0, 8.0), dpi=DPI, layout="constrained")
    grid = figure.add_gridspec(3, 2, height_ratios=(1.35, 1.0, 1.0))
    over = figure.add_subplot(grid[0, :])
    _strip(over, strip, stretches)
    axes = [figure.add_subplot(grid[i, j]) for i in (1, 2) for j in (0, 1)]
    for one in axes:
        plain_axes(one)
    _ends(axes[0], played)
    _curves(axes[1:], curves)
    good = show_percent(float(played.ideal_s / played.wall_s.mean()))
    headline(figure, f"{title}: goodput {good}", f"{len(played.wall_s):,} runs simulated")
    return figure


def _curves(axes: Sequence[Axes], curves: RunCurves) -> None:
    _curve(axes[0], curves.gpus, curves.by_gpus, "accelerators")
    axes[0].set_xscale("log", base=2)
    axes[0].set_xticks(curves.gpus[::2], [f"{n:,.0f}" for n in curves.gpus[::2]])
    _curve(axes[1], curves.interval_s, curves.by_interval, "seconds between checkpoints")
    plain_log(axes[1], "x")
    by_spares = np.array([choice.goodput for choice in curves.spares])
    _curve(axes[2], [choice.hot for choice in curves.spares], by_spares, "hot spares, servers")


def _strip(axes: Axes, strip: Any, stretches: tuple[str, ...]) -> None:
    """One run, folded into lines of equal length; what is over a line goes on in the next."""
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch

    end = float(strip[-1, 1])
    length = end / _STRIP_ROWS
    boxes: dict[int, list[Any]] = {}
    for start, stop, kind in strip:
        row = int(start // length)
        while start < stop and row < _STRIP_ROWS:
            until = min(stop, (row + 1) * length)
            left, right = (start - row * length) / HOUR_S, (until - row * length) / HOUR_S
            box = [(left, row - 0.4), (right, row - 0.4), (right, row + 0.4), (left, row + 0.4)]
            boxes.setdefault(int(kind), []).append(box)
            start, row = until, row + 1
    for kind, shapes in sorted(boxes.items()):
        ink = colour(_COLOURS[kind]).light
        axes.add_collection(PolyCollection(shapes, facecolors=ink, edgecolors="none"))
    axes.set_xlim(0.0, length / HOUR_S)
    axes.set_ylim(_STRIP_ROWS - 0.5, -0.5)
    axes.spines[["top", "right", "left"]].set_visible(False)
    days = [f"day {row * length / DAY_S:,.1f}" for row in range(_STRIP_ROWS)]
    axes.set_yticks(range(_STRIP_ROWS), days, fontsize=7.5)
    axes.set_xlabel("hours")
    handles = [Patch(color=colour(_COLOURS[k]).light, label=stretches[k]) for k in sorted(boxes)]
    axes.legend(
        handles=handles,
        ncols=5,
        frameon=False,
        fontsize=8,
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        borderaxespad=0.0,
    )


def _ends(axes: Axes, played: PlayedRuns) -> None:
    """Days of the runs."""
    days = played.wall_s / DAY_S
    axes.hist(days, bins=40, color=colour("speed").light)
    for mark in (10, 50, 90):
        axes.axvline(float(np.percentile(days, mark)), color=colour("text").light, lw=0.9, ls=":")
    ideal = f"ideal {played.ideal_s / DAY_S:.1f}"
    axes.set_xlabel(f"days until the end, P10, P50, P90 dotted ({ideal})")
    axes.set_ylabel("runs")


def _curve(axes: Axes, over: Any, goodput: Any, words: str) -> None:
    axes.plot(over, 100.0 * goodput, color=colour("speed").light, marker="o", ms=3.0, lw=1.4)
    axes.set_xlabel(words)
    axes.set_ylabel("goodput, %")
