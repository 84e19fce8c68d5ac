"""The table of docs/accuracy_details.md that takes one term at a time out of the finished model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from workshop.cases.without_terms import BEARS

_SPLITS = ("calibrate", "test")


def without_section(
    found: Sequence[Mapping[str, Any]], table: Callable[..., str], percent: Callable[..., str]
) -> Iterator[str]:
    """Word what every term is worth; `table` and `percent` are those of the whole page."""
    yield (
        "The whole model with one term taken out, on the runs whose step it moves by"
        f" {percent(BEARS)} or more. A term of the breakdown leaves with its own seconds; nothing"
        " is fitted again. *share*: median of these runs; *gain*: mean error without it less that"
        " with it."
    )
    head = ("without", "runs", "share", "mean", "with it", "gain", "bias", "with it")
    for split in _SPLITS:
        rows = [
            [one["name"].replace("_", "-"), *_cells(one[split], percent)]
            for one in found
            if one.get(split)
        ]
        yield f"**{split}**, one term taken out\n\n{table(head, rows)}"
    yield "\n".join(f"- *{one['name'].replace('_', '-')}*: {one['what']}." for one in found)


def _cells(some: Mapping[str, Any], percent: Callable[..., str]) -> list[str]:
    gain = None if some["mape"] is None else some["without"] - some["mape"]
    sizes = [percent(some[key]) for key in ("share", "without", "mape")]
    signed = [percent(value, "+") for value in (gain, some["bias_without"], some["bias"])]
    return [str(some["runs"]), *sizes, *signed]
