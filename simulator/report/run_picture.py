"""The picture of a run: one strip of it, when runs end, goodput against what one can choose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.planner.simulated_run import RunCurves
from simulator.report.canvas import DPI, headline, plain_axes, plain_log
from simulator.report.palette import colour
from simulator.units import DAY_S, HOUR_S, show_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from simulator.events.run.played_runs import PlayedRuns

_COLOURS = ("gemm", "optimizer", "does not fit", "dp", "bubble")
"""Of training, checkpoints, lost work, restarts and planned stops."""

_ROWS = 12
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
    headline(figure, f"{title}: goodput {good}", f"{len(played.wall_s):,} runs played")
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
    length = end / _ROWS
    boxes: dict[int, list[Any]] = {}
    for start, stop, kind in strip:
        row = int(start // length)
        while start < stop and row < _ROWS:
            until = min(stop, (row + 1) * length)
            left, right = (start - row * length) / HOUR_S, (until - row * length) / HOUR_S
            box = [(left, row - 0.4), (right, row - 0.4), (right, row + 0.4), (left, row + 0.4)]
            boxes.setdefault(int(kind), []).append(box)
            start, row = until, row + 1
    for kind, shapes in sorted(boxes.items()):
        ink = colour(_COLOURS[kind]).light
        axes.add_collection(PolyCollection(shapes, facecolors=ink, edgecolors="none"))
    axes.set_xlim(0.0, length / HOUR_S)
    axes.set_ylim(_ROWS - 0.5, -0.5)
    axes.spines[["top", "right", "left"]].set_visible(False)
    days = [f"day {row * length / DAY_S:,.1f}" for row in range(_ROWS)]
    axes.set_yticks(range(_ROWS), days, fontsize=7.5)
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
