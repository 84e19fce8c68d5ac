"""The section of docs/accuracy_details.md on runs whose whole group no fit has seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Table = Callable[..., str]


def groups_section(
    lines: Sequence[Mapping[str, Any]], table: Table, percent: Callable[..., str]
) -> Iterator[str]:
    """Word the lines of a document; `table` and `percent` are those of the whole page."""
    if not lines:
        return
    yield "## Groups that no fit has seen"
    yield (
        "Every group in turn is left out of the fit of training figures; what is shown is its"
        " error then, of all, of dense models and of models with experts (runs in brackets)."
        " *generation*: runs"
        " on all devices of one chip generation, whose kernels stay timed. *release*: figures"
        " fitted to releases before December 2025, runs of 2026 predicted (both sides of the"
        " tables). *device*: predicted with the kernel tables of another generation, as a device"
        " that nobody timed."
        " `python -m workshop.fits.training.errors` writes the table."
    )
    rows = [
        [
            line["left_out"],
            line["group"],
            str(line["runs"]),
            percent(line["mape"]),
            percent(line["bias"], "+"),
            *(_kind(line, kind, percent) for kind in ("dense", "expert")),
        ]
        for line in lines
    ]
    head = ("left out", "group", "runs", "error", "bias", "dense", "experts")
    yield table(head, rows, left=2)


def _kind(line: Mapping[str, Any], kind: str, percent: Callable[..., str]) -> str:
    runs = line[f"{kind}_runs"]
    return f"{percent(line[f'{kind}_mape'])} ({runs})" if runs else "-"
