"""The section of docs/accuracy_details.md on published decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from simulator.units import GIB, show_seconds

Table = Callable[..., str]
Percent = Callable[..., str]


def decisions_section(
    lines: Sequence[Mapping[str, Any]], table: Table, percent: Percent
) -> Iterator[str]:
    """Word the decisions of a document; `table` and `percent` are those of the whole page."""
    if not lines:
        return
    yield "## Published decisions"
    yield (
        "Which layout those chose who trained a model, and what the search answers when it is given"
        " model, cluster, batch, precision and software but not the layout"
        " (`validation/decisions.toml`). *Slower* is the step time of the published layout over"
        " that of our best. Nothing is fitted to these runs. Sources marked \\* are recalled."
    )
    head = ("run", "published layout", "our best", "memory", "step", "reported", "slower")
    rows = []
    for i, line in enumerate(lines, 1):
        of, room = (line[name] / GIB for name in ("memory_bytes", "usable_bytes"))
        cells = (line["name"] + f" ({i})", line["published"], line["best"])
        memory = f"{line['memory_verdict']} {of:.1f} of {room:.1f} GiB"
        step, slower = show_seconds(line["published_step_s"]), percent(line["slower"], "+")
        rows.append([*cells, memory, step, _reported(line), slower])
    yield table(head, rows, left=4)
    marks = ("" if line["verified"] else " \\*" for line in lines)
    notes = zip(lines, marks, strict=True)
    yield "\n".join(
        f"{i}. {line['source']}{mark}. {line['remark']}." for i, (line, mark) in enumerate(notes, 1)
    )


def _reported(line: Mapping[str, Any]) -> str:
    """The published step time, or the model FLOP/s of a GPU beside the predicted ones."""
    if line["reported_step_s"] is not None:
        return show_seconds(line["reported_step_s"])
    if line["reported_flop_per_s"] is None:
        return "-"
    ours, theirs = (line[name] / 1e12 for name in ("flop_per_s", "reported_flop_per_s"))
    return f"{theirs:.0f} TFLOP/s (ours {ours:.0f})"


def recipes_section(
    lines: Sequence[Mapping[str, Any]], table: Table, percent: Percent
) -> Iterator[str]:
    """Word the recipes of a document that were searched; arguments as above."""
    if not lines:
        return
    fit = sum(line["memory_verdict"] != "OOM" for line in lines)
    near = sum(not line["why"] for line in lines)
    yield "## Published recipes, searched"
    yield (
        "NVIDIA's performance recipes, of every model, device and precision the latest with the"
        " most GPUs: the search is given model, cluster, batch, precision, software and"
        f" dispatcher, and no layout. {fit} of {len(lines)} published layouts fit, {near} lie"
        " within 5 % of our best or before it. *Why* says which terms make ours shorter and"
        " longer, in shares of the published step; a timed step of our layout would show it, and"
        " of the published one the measured time stands next to the predicted one."
    )
    yield gains_words(lines, percent)
    head = (
        *("recipe", "published layout", "our best", "memory", "step", "measured"),
        *("slower", "expected", "tie", "why"),
    )
    rows = [
        [
            *(line[name] for name in ("name", "published", "best", "memory_verdict")),
            show_seconds(line["published_step_s"]),
            show_seconds(line["measured_step_s"]),
            percent(line["slower"], "+"),
            percent(line["expected"], "+"),
            "yes" if line["tie"] else "no",
            line["why"] or "near",
        ]
        for line in lines
    ]
    yield table(head, rows, left=4)


def gains_words(lines: Sequence[Mapping[str, Any]], percent: Percent) -> str:
    """What the search claims to gain, what is to be expected of it, how often it is a tie."""

    def counted(name: str) -> str:
        gains = sorted(line[name] for line in lines)
        over = [sum(gain > most for gain in gains) for most in (0.05, 0.10)]
        return (
            f"{percent(median(gains), '+')} in the median, at most {percent(gains[-1], '+')};"
            f" above 5 % in {over[0]}, above 10 % in {over[1]}"
        )

    tied = sum(line["tie"] for line in lines)
    return (
        "The best of many layouts is lucky: part of what it is predicted to gain is error, and no"
        " run of these layouts of ours shows it. *Expected* is the gain times g^2 / (g^2 + v): g ="
        " 0.1 is by how much layouts that people run of one job differ, v the variance of the"
        " predicted ratio, in which errors that both layouts share cancel"
        f" (`simulator/cost/uncertainty.py`). Claimed: {counted('slower')}. Expected:"
        f" {counted('expected')}. The published layout lies within the *tie*, the faster one with a"
        f" chance of 20 % or more, in {tied} of {len(lines)}."
    )


def retimed_section(
    lines: Sequence[Mapping[str, Any]], table: Table, percent: Percent
) -> Iterator[str]:
    """Word the recipes that a later release timed with another layout; arguments as above."""
    if not lines:
        return
    faster = sum(line["later_measured_step_s"] < line["measured_step_s"] for line in lines)
    agreed = sum(
        (line["later_measured_step_s"] < line["measured_step_s"])
        == (line["later_step_s"] < line["published_step_s"])
        for line in lines
    )
    yield "### What later releases timed instead"
    yield (
        "Jobs of these recipes that a later release timed with another layout: model, devices,"
        " precision and batch are the same, kernels and dispatchers are each release's own."
        f" {faster} of {len(lines)} became faster, and {agreed} of these changes have the predicted"
        " sign. *Ours* is what the search says to the first recipe, and how much faster it is than"
        " that one: a later layout near it, as fast as said, is the timed step that *why* asks for."
        " Most of these rows are of *calibrate*: levels were seen by a fit, layouts by none."
    )
    head = (
        *("job", "first", "step", "measured", "later", "step", "measured"),
        *("gain, predicted", "gain, measured", "ours", "gain"),
    )
    rows = [
        [
            line["name"],
            f"{line['published']} ({line['source']})",
            *(show_seconds(line[name]) for name in ("published_step_s", "measured_step_s")),
            f"{line['later']} ({line['later_source']})",
            *(show_seconds(line[name]) for name in ("later_step_s", "later_measured_step_s")),
            percent(line["published_step_s"] / line["later_step_s"] - 1.0, "+"),
            percent(line["measured_step_s"] / line["later_measured_step_s"] - 1.0, "+"),
            line["best"],
            percent(line["slower"], "+"),
        ]
        for line in lines
    ]
    yield table(head, rows, left=2)
