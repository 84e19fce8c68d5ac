"""The section of docs/accuracy_details.md on whole runs: reported goodput and GPU-hours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any


def goodput_section(found: Mapping[str, Any] | None, percent: Callable[..., str]) -> Iterator[str]:
    """Word the summary of a document; `percent` is that of the whole page."""
    if not found:
        return
    months, hours = found["months"], found["gpu_hours"]
    yield "## Whole runs"
    yield (
        "Months of training that were reported, against the analytical model of goodput with rates"
        f" of other logs ([goodput.md](goodput.md) has every line): {months['n']} figures, median"
        f" absolute error {percent(months['median_ape'])}, largest {percent(months['max_ape'])};"
        f" {months['bounds_held']} of {months['bounds']} reported bounds held. GPU-hours of"
        f" {hours['n']} published runs: median absolute error"
        f" {percent(hours['ideal_median_ape'])} without goodput, {percent(hours['median_ape'])}"
        " with."
    )


def planned_runs(
    found: Mapping[str, Any] | None, table: Callable[..., str], percent: Callable[..., str]
) -> Iterator[str]:
    """Word what published trainings took over their prediction; `table` is that of the page."""
    if not found or "kinds" not in found["gpu_hours"]:
        return
    hours = found["gpu_hours"]
    yield "### GPU-hours of published trainings"
    yield (
        f"GPU-hours of {hours['n']} published trainings over those predicted with goodput: the"
        " planning factor. Each run is left out of the P10 and P90 that it is held against"
        f" ([every run](goodput.md)). Median error {percent(hours['median_ape'])}, with the factor"
        f" {percent(hours['planned_median_ape'])}."
    )
    names = {"whole": "whole runs", "steady": "steady rates"}
    rows = [
        [names[kind], str(line["n"]), f"{line['factor']:.2f}", f"{line['p10']:.2f}",
         f"{line['p90']:.2f}", percent(line["inside"])]
        for kind, line in hours["kinds"].items()
    ]  # fmt: skip
    yield table(("hours", "runs", "over predicted", "P10", "P90", "inside"), rows)
