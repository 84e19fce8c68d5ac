"""What a calibration found: document and picture; of the machine at hand a document and a page."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.answers import encoded, head, plain
from simulator.calibration.calibrate_machine import Calibration, ClassFit
from simulator.calibration.local_profiles import LocalProfiles
from simulator.calibration.measured_steps import CAUSES, LocalStep
from simulator.measured.measurements import Measurements
from simulator.quoting import markdown_cell, one_line
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


_SIDES = ("predicted", "measured")

_KERNEL = (
    *("name", "calls", "median_error=after.median"),
    "left_out_median_error=left_out.median",
)
_STEP = (
    *("mode", "layout", "measured_s", "predicted_s", "error", "target", "within", "steps"),
    *("spread", "foreign_cores", "hidden_s", "predicted_by_cause_s=predicted"),
    *("measured_by_cause_s=measured", "gap_by_cause_s=gap"),
)


def local_document(
    document: Measurements, profiles: LocalProfiles, steps: Iterable[LocalStep]
) -> dict[str, Any]:
    """Return everything of the loop: fits, host figures, steps with their gap by cause."""
    return {
        **head("calibrate-here"),
        **encoded(document, ("source", "date", "device=device.name")),
        "kernels": [encoded(fit, _KERNEL) for fit in profiles.calibration.accelerator],
        "collectives": {
            name: {"start_s": start, "bytes_per_s": rate, "median_error": error}
            for name, (start, rate, error) in profiles.collectives.items()
        },
        "host_s": dict(profiles.host),
        "core_share": profiles.core_share,
        "steps": [encoded(step, _STEP) for step in steps],
    }


def local_markdown(document: Mapping[str, Any]) -> str:
    """Return the page of a document of :func:`local_document`."""
    lines = [
        "# Predicted and measured training steps of one machine",
        "",
        one_line(f"{document['device']}, {document['date']}, {document['source']}. Times in ms."),
        "Foreign: cores that other processes took meanwhile; figures mean little where it is not",
        "near zero.",
        "",
        *_step_times(document["steps"]),
        "",
        "## Where predicted and measured steps differ",
        "",
        "Predicted less measured, predicted and measured in brackets. Waiting is what the thread",
        "that trains did not work, mean over the ranks; the rest is shared out as in one step of",
        "rank 0 under torch's profiler. Of a pipeline the slowest stage is predicted.",
        "",
        *_gaps_by_cause(document["steps"]),
        "",
        "## What the prediction rests on",
        "",
        *_kernel_fits(document["kernels"]),
        "",
        *_collective_lines(document["collectives"]),
        "",
        *_host_work(document["host_s"]),
        "",
        f"A collective takes {100 * document['core_share']:.0f} % of a core from what runs beside.",
        "",
    ]
    return "\n".join(lines)


def _step_times(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    head = ("step", "layout", "predicted", "measured", "error", "target", "spread", "foreign")
    rows = [
        (
            step["mode"],
            step["layout"],
            _ms(step["predicted_s"]),
            _ms(step["measured_s"]),
            f"{100 * step['error']:+.1f} %",
            f"{100 * step['target']:.0f} %",
            f"{100 * step['spread']:.0f} %",
            f"{step['foreign_cores']:.2f}",
        )
        for step in steps
    ]
    return _table(head, rows)


def _gaps_by_cause(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    def cell(step: Mapping[str, Any], cause: str) -> str:
        predicted, measured = (_ms(step[f"{side}_by_cause_s"][cause]) for side in _SIDES)
        return f"{_ms(step['gap_by_cause_s'][cause], sign=True)} ({predicted}, {measured})"

    rows = [(step["mode"], *(cell(step, cause) for cause in CAUSES)) for step in steps]
    return _table(("step", *CAUSES), rows)


def _kernel_fits(kernels: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [
        (
            fit["name"],
            str(fit["calls"]),
            f"{100 * fit['median_error']:.1f} %",
            f"{100 * fit['left_out_median_error']:.1f} %",
        )
        for fit in kernels
    ]
    return _table(("kernels", "calls", "error of the fit", "of shapes left out"), rows)


def _collective_lines(collectives: Mapping[str, Mapping[str, float]]) -> list[str]:
    rows = [
        (
            name,
            f"{1e6 * line['start_s']:.0f} us",
            f"{line['bytes_per_s'] / 1e9:.2f}",
            f"{100 * line['median_error']:.0f} %",
        )
        for name, line in collectives.items()
    ]
    return _table(("collective", "start", "GB/s", "error of the line"), rows)


def _host_work(host_s: Mapping[str, float]) -> list[str]:
    rows = [
        (name.removesuffix("_s").replace("_", " "), f"{1e6 * seconds:.0f}")
        for name, seconds in host_s.items()
    ]
    return _table(("the host's work", "us"), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(map(markdown_cell, line))} |" for line in lines]


def _ms(seconds: float, *, sign: bool = False) -> str:
    return f"{1e3 * seconds:{'+' if sign else ''}.1f}"
