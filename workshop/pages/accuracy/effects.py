"""The section of docs/accuracy_details.md on published effect sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

Table = Callable[..., str]
Percent = Callable[..., str]


def effects_section(
    lines: Sequence[Mapping[str, Any]], table: Table, percent: Percent
) -> Iterator[str]:
    """Word the effects of a document; `table` and `percent` are those of the whole page."""
    if not lines:
        return
    yield "## Published effect sizes"
    yield (
        "What one change of a run is worth, as a paper reports it and as the event simulator"
        " predicts it (`validation/effects.toml` has the runs). Nothing is fitted to these figures,"
        " except where a remark says so. An effect is a ratio of two steps of the same machine:"
        " throughput after over before, or time after over before where the words say time; errors"
        " that both steps share cancel. Figures marked \\* are recalled: they were not read in the"
        " text of their source."
    )
    signs = [line["right"] for line in lines if line["right"] is not None]
    if signs:
        yield (
            f"The sign is right in {sum(signs)} of the {len(signs)} that are 2 % and more;"
            f" {sum(line['near'] for line in lines)} of {len(lines)} predictions are within 3"
            " points, or within a third, of what is reported; the median is"
            f" {percent(median(abs(line['miss']) for line in lines))} off."
        )
    head = ("technique", "what", "source", "reported", "predicted")
    notes = list(dict.fromkeys(line["remark"] for line in lines if line["remark"]))
    rows = []
    for line in lines:
        note = f" ({notes.index(line['remark']) + 1})" if line["remark"] else ""
        figures = [_reported(line, percent), percent(line["predicted"], "+")]
        rows.append([line["group"], line["what"] + note, line["source"], *figures])
    yield table(head, rows, left=3)
    if notes:
        yield "\n".join(f"{i}. {note}." for i, note in enumerate(notes, 1))


def _reported(line: Mapping[str, Any], percent: Percent) -> str:
    """What the source says: a number, a bound or a span."""
    least, most = percent(line["least"], "+"), line["most"]
    if most is not None:
        words = (
            f"{least} to {percent(most, '+')}" if line["least"] else f"up to {percent(most, '+')}"
        )
    else:
        words = f"{least} or more" if line["or_more"] else least
    return words if line["verified"] else f"{words} \\*"
