"""Predicted and measured steps of the machine at hand: JSON document and Markdown page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from simulator.answers import encoded, head
from simulator.calibration.local_profiles import LocalProfiles
from simulator.calibration.measured_steps import CAUSES, LocalStep
from simulator.measured.measurements import Measurements
from simulator.quoting import markdown_cell, one_line

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
