"""What a calibration found, as a JSON document and as a picture."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.answers import encoded, head, plain
from simulator.calibration.calibrate_machine import Calibration, ClassFit
from simulator.report.palette import colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DPI = 130
_COLUMNS = 3
_LEAST, _MOST = 0.25, 4.0
"""Predicted over measured that the picture shows; what is outside stands on the rim."""


def calibration_document(
    calibration: Calibration, *, bases: Mapping[str, str | None], files: Mapping[str, str | None]
) -> dict[str, Any]:
    """Return errors and figures of every class; times are left to the picture."""
    profiles = {
        "accelerator": calibration.accelerator,
        "node": calibration.node,
        "cluster": calibration.fabric,
    }
    return {
        **head("calibrate"),
        **encoded(calibration, ("source", "date")),
        "bases": dict(bases),
        "files": dict(files),
        "classes": [_class(profile, fit) for profile, fits in profiles.items() for fit in fits],
        "left_out": dict(calibration.left_out),
    }


def _class(profile: str, fit: ClassFit) -> dict[str, Any]:
    parts = [
        {"name": name, "calls": calls, "before": before, "after": after}
        for name, (calls, before, after) in fit.parts.items()
    ]
    figures = [
        {"name": name, "base": base, "fitted": new} for name, (base, new) in fit.figures.items()
    ]
    return {
        **{"profile": profile, "name": fit.name, "table": ".".join(fit.path)},
        **encoded(fit, ("calls", "before", "after", "left_out", "spread")),
        **{"parts": plain(parts), "figures": plain(figures)},
    }


def calibration_png(calibration: Calibration) -> bytes:
    """Draw predicted over measured time of every call, by the base and by the fit."""
    from matplotlib.figure import Figure

    fits = [*calibration.accelerator, *calibration.node, *calibration.fabric]
    rows = -(-len(fits) // _COLUMNS)
    columns = min(len(fits), _COLUMNS)
    figure = Figure(figsize=(4.2 * columns, 3.0 * rows + 0.5), dpi=DPI, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, fit in zip(panels, fits, strict=False):
        _panel(axes, fit)
    for axes in panels[len(fits) :]:
        axes.set_visible(False)
    for axes in _last_row(panels, columns, len(fits)):
        axes.set_xlabel("measured time")
    panels[0].legend(loc="best", fontsize=8, frameon=False)
    figure.suptitle("predicted over measured time of every call", fontsize=11)
    content = io.BytesIO()
    figure.savefig(content, format="png", metadata={"Software": None})
    return content.getvalue()


def _panel(axes: Axes, fit: ClassFit) -> None:
    for name, seconds, meaning in (
        ("base", fit.before_s, "ideal"),
        ("fitted", fit.after_s, "gemm"),
    ):
        ratio = np.clip(seconds / fit.measured_s, _LEAST, _MOST)
        axes.scatter(fit.measured_s, ratio, s=9, label=name, color=colour(meaning).light, alpha=0.7)
    axes.axhline(1.0, color=colour("text").light, linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(0.9 * _LEAST, 1.1 * _MOST)
    axes.set_yticks([0.25, 0.5, 1.0, 2.0, 4.0], ["1/4", "1/2", "1", "2", "4"])
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda value, _: _short_time(value))
    axes.grid(color=colour("grid").light, linewidth=0.6)
    before, after = 100 * fit.before.median, 100 * fit.left_out.median
    title = f"{fit.name}\n{before:.1f} % -> {after:.1f} % (median, left out)"
    axes.set_title(title, fontsize=9, loc="left")


def _last_row(panels: Any, columns: int, count: int) -> Iterable[Axes]:
    return [panels[i] for i in range(max(count - columns, 0), count)]


def _short_time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= 0.999 * scale:
            return f"{seconds / scale:g} {unit}"
    return f"{seconds * 1e9:g} ns"
