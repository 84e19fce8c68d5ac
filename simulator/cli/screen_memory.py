"""The screen of `foreshard predict --memory`: every stage against the HBM line, and what fits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from simulator.cli.screen import console, gib, heading, notes, plain_table, verdict_style
from simulator.cost.estimate import VERDICTS
from simulator.cost.memory.moments import MOMENTS
from simulator.planner.fitting import Change, Fitting
from simulator.planner.prediction import Prediction
from simulator.report.evidence import FIT_RULE, NO_INTERVAL, memory_meaning
from simulator.units import show_count, show_percent, show_seconds

__all__ = ["show_memory"]

_SHORT = {
    "activations": "activ.", "temporaries": "tempor.", "communicators": "commun.",
    "fragmentation": "fragm.",
}  # fmt: skip
"""Headings of narrow columns whose words would not fit."""


def show_memory(prediction: Prediction, found: Fitting) -> None:
    """Print the memory of every pipeline stage of a prediction."""
    screen = console()
    screen.print(heading(prediction.scenario))
    screen.print(Text(f"\n{prediction.estimate.layouts.describe()}", style="bold"))
    screen.print(_verdict(found))
    screen.print(_stages(found))
    screen.print()
    screen.print(_formulas(found))
    screen.print()
    if found.verdict != "FITS":
        screen.print(_changes(prediction, found))


def _verdict(found: Fitting) -> Text:
    """FITS, TIGHT or OOM, by how much, and how sure."""
    text = Text(found.verdict, style=verdict_style(found.verdict))
    share = show_percent(abs(found.margin_bytes) / found.usable_bytes)
    words = "free on" if found.margin_bytes >= 0 else "too much on"
    text.append(
        f": {gib(abs(found.margin_bytes))} GiB ({share}) {words} the fullest GPU, HBM line at"
        f" {gib(found.usable_bytes)} of {gib(found.capacity_bytes)} GiB\n{_interval(found)}\n",
        style="default",
    )
    if not found.room_for_offload:
        text.append("host memory or drives of a server cannot hold what is offloaded\n")
    return text


def _interval(found: Fitting) -> str:
    """P10 to P90 of the fullest stage, and how the P90 stands to the HBM line."""
    if math.isnan(found.p90_bytes):
        return f"{NO_INTERVAL}: the software profile has no reserved_spread, so no TIGHT"
    over = found.p90_bytes - found.usable_bytes
    words = f"{gib(abs(over))} GiB {'above' if over > 0 else 'below'} the line"
    return f"P10 {gib(found.p10_bytes)}, P90 {gib(found.p90_bytes)} GiB ({words}). {FIT_RULE}"


def _stages(found: Fitting) -> Table:
    """One row per pipeline stage, one column per kind that takes memory, in GiB."""
    ranks, verdicts = found.ranks, found.ranks.verdict(found.usable_bytes)
    kinds = [kind for kind, size in ranks.kinds_bytes.items() if size.any()]
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    traced = ("trace",) if found.replayed else ()
    known = bool(np.isfinite(ranks.p90_bytes).all())
    for name in ("stage", *kinds, "sum", *(("P90",) if known else ()), "free", *traced):
        table.add_column(_SHORT.get(name, name), justify="right", overflow="fold")
    table.add_column("peak at", overflow="fold")
    for rank, total in enumerate(ranks.total_bytes):
        free = found.usable_bytes - float(total)
        cells = [gib(float(ranks.kinds_bytes[kind][rank])) for kind in kinds]
        moment = MOMENTS[int(ranks.moment[rank])]
        verdict = VERDICTS[int(verdicts[rank])]
        style = "" if verdict == "FITS" else verdict_style(verdict)
        high = [gib(float(ranks.p90_bytes[rank]))] if known else []
        trace = [gib(found.replayed[rank].reserved_bytes)] if traced else []
        row = (str(rank), *cells, gib(float(total)), *high, gib(free), *trace, moment)
        table.add_row(*row, style=style)
    table.caption = "GiB on every GPU of a stage" + (
        "; trace: reserved by a replay of the allocator, without communicators" if traced else ""
    )
    table.caption_justify = "left"
    return table


def _formulas(found: Fitting) -> Table:
    """Formula and inputs of every kind on the fullest stage."""
    rank = int(found.ranks.total_bytes.argmax())
    title = f"stage {rank}"
    table = plain_table(title, "GiB", "formula", "inputs", left=(title, "formula", "inputs"))
    for kind, inputs in found.ranks.inputs[rank].items():
        size = float(found.ranks.kinds_bytes[kind][rank])
        words = [f"{name} {_number(value)}" for name, value in inputs.items()]
        table.add_row(kind, gib(size), memory_meaning(kind), "; ".join(words))
    return table


def _changes(prediction: Prediction, found: Fitting) -> Any:
    """The cheapest changes that make it fit, or how near the nearest comes."""
    if not found.changes:
        lines = [
            "No change of up to three fields of this layout fits; `foreshard plan` searches"
            " all layouts."
        ]
        if found.nearest is not None:
            need = gib(found.nearest.memory_total_bytes)
            lines.append(f"Nearest: {_words(prediction, found.nearest)}, which needs {need} GiB.")
        return notes("What would make it fit", lines)
    surely = " with its P90" if found.verdict == "TIGHT" else ""
    title = f"cheapest changes that make it fit{surely}"
    table = plain_table(title, "step time", "cost", "GiB", "", "layout", left=(title, "layout"))
    for change in found.changes:
        share = change.added_s / prediction.step_time_s
        table.add_row(
            _words(prediction, change),
            show_seconds(change.step_time_s),
            f"{'+' if share >= 0 else '-'}{show_percent(abs(share))}",
            gib(change.memory_total_bytes),
            Text(change.memory_verdict, style=verdict_style(change.memory_verdict)),
            change.layout,
        )
    return table


def _words(prediction: Prediction, change: Change) -> str:
    """``tp 4 -> 8, recompute none -> full``."""
    before = prediction.layout
    return ", ".join(f"{name} {before[name]} -> {value}" for name, value in change.set.items())


def _number(value: float) -> str:
    """A count in words, or a small number with the digits that it has."""
    return show_count(value) if value >= 1e4 else f"{value:.6g}"
