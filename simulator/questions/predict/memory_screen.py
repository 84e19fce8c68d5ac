"""The screen of `foreshard predict --memory`: every stage against the HBM line, and what fits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simulator.cli.screen import console, gib, heading, notes, plain_table, table_of
from simulator.cost.estimate import VERDICTS
from simulator.cost.memory.moments import MOMENTS
from simulator.cost.terms import MEMORY_MEANING
from simulator.planner.fitting import Fitting
from simulator.planner.prediction import Prediction
from simulator.planner.variants import Variant
from simulator.report.evidence import FIT_RULE, NO_INTERVAL
from simulator.units import show_count, show_percent, show_seconds


def memory_screen(prediction: Prediction, fitting: Fitting) -> Iterator[RenderableType]:
    """Give the memory of every pipeline stage of a prediction."""
    yield heading(prediction.scenario)
    yield Text(f"\n{prediction.estimate.layouts.describe()}", style="bold")
    yield _verdict(fitting)
    yield _stages(fitting)
    yield ""
    yield _formulas(fitting)
    yield ""
    if fitting.verdict != "FITS":
        yield _changes(prediction, fitting)


def _verdict(fitting: Fitting) -> Text:
    """FITS, TIGHT or OOM, by how much, and how sure."""
    text = Text(fitting.verdict, style=fitting.verdict)
    share = show_percent(abs(fitting.margin_bytes) / fitting.usable_bytes)
    usable, capacity = gib(fitting.usable_bytes), gib(fitting.capacity_bytes)
    words = "free on" if fitting.margin_bytes >= 0 else "too much on"
    text.append(
        f": {gib(abs(fitting.margin_bytes))} GiB ({share}) {words} the worst rank, HBM line at"
        f" {usable} of {capacity} GiB\n{_interval(fitting)}\n",
        style="default",
    )
    if not fitting.room_for_offload:
        text.append("host memory or drives of a server cannot hold what is offloaded\n")
    return text


def _interval(fitting: Fitting) -> str:
    """P10 to P90 of the fullest stage, and how the P90 stands to the HBM line."""
    if math.isnan(fitting.p90_bytes):
        return f"{NO_INTERVAL}: the software profile has no reserved_spread, so no TIGHT"
    over = fitting.p90_bytes - fitting.usable_bytes
    words = f"{gib(abs(over))} GiB {'above' if over > 0 else 'below'} the line"
    return f"P10 {gib(fitting.p10_bytes)}, P90 {gib(fitting.p90_bytes)} GiB ({words}). {FIT_RULE}"


def _stages(fitting: Fitting) -> Group:
    """A row per kind that takes memory, a column per pipeline stage, in GiB.

    Stages that the screen has no room for follow below.
    """
    ranks = fitting.ranks
    rows = {kind: size for kind, size in ranks.kinds_bytes.items() if size.any()}
    rows["sum"] = ranks.total_bytes
    if np.isfinite(ranks.p90_bytes).all():
        rows["P90"] = ranks.p90_bytes
    rows["free"] = fitting.usable_bytes - ranks.total_bytes
    if fitting.replayed:
        rows["trace"] = np.array([one.reserved_bytes for one in fitting.replayed])
    texts = {name: [gib(float(size)) for size in sizes] for name, sizes in rows.items()}
    label = max(len(name) for name in texts)
    cell = max(len(text) for row in texts.values() for text in row) + 2
    room = max((console().width - label) // cell, 1)
    stages = range(len(ranks.total_bytes))
    tables = [
        _stage_table(fitting, texts, label, stages[first : first + room])
        for first in range(0, len(stages), room)
    ]
    return Group(*tables, _stage_notes(fitting))


def _stage_table(
    fitting: Fitting, texts: Mapping[str, list[str]], label: int, stages: Sequence[int]
) -> Table:
    """Some of the stages; those that do not fit surely have the colour of their verdict."""
    verdicts = [VERDICTS[int(one)] for one in fitting.ranks.verdict(fitting.usable_bytes)]
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    table.add_column("stage", min_width=label, no_wrap=True)
    for stage in stages:
        style = "" if verdicts[stage] == "FITS" else verdicts[stage]
        table.add_column(str(stage), justify="right", no_wrap=True, style=style)
    for name, row in texts.items():
        style = "bold" if name == "sum" else ""
        table.add_row(name, *(row[stage] for stage in stages), style=style)
    return table


def _stage_notes(fitting: Fitting) -> str:
    """What the rows hold, and when each stage is fullest."""
    moments: dict[str, list[int]] = {}
    for stage, moment in enumerate(fitting.ranks.moment):
        moments.setdefault(MOMENTS[int(moment)], []).append(stage)
    words = "GiB on every GPU of a stage"
    if fitting.replayed:
        words += "; trace: reserved by a replay of the allocator, without communicators"
    if len(moments) == 1:
        return f"{words}; fullest at: {next(iter(moments))}"
    each = [f"{moment} ({_numbers(stages)})" for moment, stages in moments.items()]
    return f"{words}; fullest at: {', '.join(each)}"


def _numbers(stages: Sequence[int]) -> str:
    """Stages in order, as a range where they follow one another."""
    if len(stages) == 1:
        return f"stage {stages[0]}"
    if stages[-1] - stages[0] == len(stages) - 1:
        return f"stages {stages[0]} to {stages[-1]}"
    return f"stages {', '.join(map(str, stages))}"


def _formulas(fitting: Fitting) -> Table:
    """Formula and inputs of every kind on the fullest stage."""
    rank = int(fitting.ranks.total_bytes.argmax())
    title = f"stage {rank}"
    table = plain_table(title, "GiB", "formula", "inputs", left=(title, "formula", "inputs"))
    for kind, inputs in fitting.ranks.inputs[rank].items():
        size = float(fitting.ranks.kinds_bytes[kind][rank])
        words = [f"{name} {_number(value)}" for name, value in inputs.items()]
        table.add_row(kind, gib(size), MEMORY_MEANING[kind], "; ".join(words))
    return table


def _changes(prediction: Prediction, fitting: Fitting) -> Any:
    """The cheapest changes that make it fit, or how near the nearest comes."""
    if not fitting.changes:
        lines = [
            "No change of up to three fields of this layout fits; `foreshard plan` searches"
            " all layouts."
        ]
        if fitting.nearest is not None:
            need = gib(fitting.nearest.memory_total_bytes or 0.0)
            lines.append(f"Nearest: {_words(fitting.nearest)}, which needs {need} GiB.")
        return notes("What would make it fit", lines)
    surely = " with its P90" if fitting.verdict == "TIGHT" else ""
    title = f"cheapest changes that make it fit{surely}"

    def cost(change: Variant) -> str:
        share = change.added_s / prediction.step_time_s
        return f"{'+' if share >= 0 else '-'}{show_percent(abs(share))}"

    def verdict(change: Variant) -> Text:
        word = str(change.memory_verdict)
        return Text(word, style=word)

    return table_of(
        fitting.changes,
        (title, _words),
        ("step time", lambda change: show_seconds(change.step_time_s or 0.0)),
        ("cost", cost),
        ("GiB", lambda change: gib(change.memory_total_bytes or 0.0)),
        ("", verdict),
        ("layout", lambda change: str(change.layout)),
        left=(title, "layout"),
    )


def _words(change: Variant) -> str:
    """``tp 4 -> 8, recompute none -> full``."""
    return ", ".join(f"{name} {a} -> {b}" for name, (a, b) in change.fields.items())


def _number(value: float) -> str:
    """A count in words, or a small number with the digits that it has."""
    return show_count(value) if value >= 1e4 else f"{value:.6g}"
