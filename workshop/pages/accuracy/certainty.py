"""The section of docs/accuracy_details.md on intervals, and on what one small measured run adds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from workshop.cases.extrapolation import MOST_KNOWN

Table = Callable[..., str]


def certainty_section(
    found: Mapping[str, Any], table: Table, percent: Callable[..., str]
) -> Iterator[str]:
    """Word the intervals of a document; `table` and `percent` are those of the whole page."""
    yield "## Intervals of today's predictions"
    yield (
        "P10 to P90 should hold eight measured steps of ten that are new; of runs that have been in"
        " view it holds more. Every run is predicted without the evidence of its own source."
        " *constant width*: the prediction plus and minus one share that holds 80 % of the"
        " calibration runs as the finished fit meets them, which is the narrower of two choices:"
        " with every source left out in turn it would be wider. The score charges the width and"
        " what lies outside (Gneiting and Raftery 2007); smaller is better."
    )
    rows = []
    for split, ours in found["by_split"].items():
        for name, values in (("ours", ours), ("constant width", ours["constant_interval"])):
            score = values["interval_score"]
            cells = [percent(values[key]) for key in ("coverage_80", "interval_width")]
            rows.append([split, name, *cells, "-" if score is None else f"{score:.3f}"])
    yield table(("split", "intervals", "inside", "median width", "score"), rows, left=2)
    rows = [
        [source, split, str(values["n"]), percent(values["coverage"]), percent(values["width"])]
        for source, splits in found["by_source"].items()
        for split, values in splits.items()
    ]
    yield table(("source", "split", "runs", "inside", "median width"), rows, left=2)
    if "by_group" in found:
        yield from _groups(found["by_group"], table, percent)
    if "chances" in found:
        yield from _chances(found["chances"], table, percent)
    yield "## From a small run to a large one"
    yield (
        "Every scaling series whose smallest run has at most"
        f" {MOST_KNOWN} GPUs: its larger runs predicted from the profiles alone, and with that"
        " smallest run known (`predict --anchored-by`)."
    )
    head = ("split", "runs", "error", "anchored", "inside", "anchored", "width", "anchored")
    rows = [
        [split, str(one["runs"]), *(percent(x) for pair in _pairs(one) for x in pair)]
        for split, one in found["hidden_end"].items()
        if one is not None
    ]
    yield table(head, rows)


def _groups(found: Mapping[str, Any], table: Table, percent: Callable[..., str]) -> Iterator[str]:
    yield (
        "All runs that nothing was fitted to (*test* and *second-test*), by kind, precision and"
        " GPU, where there are ten or more:"
    )
    rows = []
    for name, ours in found.items():
        constant = ours["constant_interval"]
        cells = [percent(ours[key]) for key in ("coverage_80", "interval_width")]
        scores = [f"{one['interval_score']:.3f}" for one in (ours, constant)]
        rows.append([name, str(ours["n"]), *cells, *scores])
    yield table(("runs", "number", "inside", "median width", "score", "of constant width"), rows)


def _chances(found: Mapping[str, Any], table: Table, percent: Callable[..., str]) -> Iterator[str]:
    yield (
        "Two layouts of one group of runs that differ in nothing else: how often the"
        " one predicted slower was the faster one, by the chance that was given for it."
    )
    rows = [
        [
            split,
            f"{percent(bucket['low'])} to {percent(bucket['high'])}",
            str(bucket["pairs"]),
            percent(bucket["said"]),
            percent(bucket["happened"]),
        ]
        for split, bins in found.items()
        for bucket in bins
    ]
    yield table(("split", "chance", "pairs", "said", "happened"), rows, left=2)


def _pairs(one: Mapping[str, Any]) -> list[Any]:
    return [one["mape"], one["coverage"], one["width"]]
