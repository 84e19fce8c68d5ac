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
        "Months of training that were reported, against the closed form of goodput with rates of"
        f" other logs ([goodput.md](goodput.md) has every line): {months['n']} figures, median"
        f" absolute error {percent(months['median_ape'])}, largest {percent(months['max_ape'])};"
        f" {months['bounds_held']} of {months['bounds']} reported bounds held. GPU-hours of"
        f" {hours['n']} published runs: median absolute error"
        f" {percent(hours['ideal_median_ape'])} without goodput, {percent(hours['median_ape'])}"
        " with."
    )
