"""The section of docs/accuracy_details.md on pairs of runs that differ in one switch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any


def switches_section(
    lines: Sequence[Mapping[str, Any]],
    table: Callable[..., str],
    percent: Callable[..., str],
) -> Iterator[str]:
    """Word the pairs of a document; `table` and `percent` are those of the whole page."""
    if not lines:
        return
    yield "## One switch changed"
    yield (
        "Pairs of measured runs of one source that agree in every column but those of one switch"
        " (`workshop/cases/switch_pairs.py`), the slower one first; medians of step time after"
        " over before. *right sign*: of the pairs that are more than 2 % apart. *miss*: median"
        " difference between predicted and measured effect, in points. *near*: within 3 points or a"
        " third of the effect. Some of these runs are among those that figures were fitted to."
    )
    head = ("switch", "pairs", "sources", "measured", "predicted", "right sign", "miss", "near")
    yield table(head, [_cells(line, percent) for line in lines])


def _cells(line: Mapping[str, Any], percent: Callable[..., str]) -> list[str]:
    effects = [percent(line[name], "+") for name in ("measured", "predicted")]
    signs = f"{percent(line['right'])} of {line['beyond_noise']}"
    counts = [str(line["n"]), str(len(line["sources"]))]
    return [line["switch"], *counts, *effects, signs, percent(line["miss"]), percent(line["near"])]
