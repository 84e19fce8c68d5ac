"""The screen of `plan --from`: what was read, what it takes, what would make it faster."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from simulator.cli.screen import gib, heading, notes, plain_table
from simulator.cost.estimate import VERDICTS
from simulator.economics.price import MARK
from simulator.errors import visible
from simulator.interop.launch_files.advising import Advice
from simulator.interop.launch_files.imported import Imported
from simulator.planner.assumptions import ASSUMED, assumption_lines
from simulator.planner.fitting import Fitting
from simulator.questions.predict.screen import verdict
from simulator.report.wording import change_words
from simulator.units import show_days, show_percent, show_seconds, show_usd

_MOST_NAMED = 12
_MOST_LINES = 60
"""Lines of the difference of two files that are shown."""


def reading_lines(found: Imported) -> Iterator[str]:
    """What was recognised, what was not understood, and what else was noticed."""
    kinds: dict[str, list[str]] = {}
    for reading in found.readings:
        if reading.kind not in kinds.setdefault(reading.path, []):
            kinds[reading.path].append(reading.kind)
    for path, words in kinds.items():
        yield f"{path}: read as {', '.join(words)}"
    if found.unknown:
        named = [str(place) for place in found.unknown]
        more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
        yield f"Not known here, so not counted: {'; '.join(named[:_MOST_NAMED])}{more}"
    idle = sum(len(reading.idle) for reading in found.readings)
    if idle:
        yield f"{idle} other keys bear on neither time nor memory here (--json lists them)"
    for note in found.notes:
        yield f"Note: {note}"


def advice_screen(advice: Advice) -> Iterator[RenderableType]:
    """Give the first answer to a launch script."""
    for line in reading_lines(advice.imported):
        yield Text(visible(line))
    yield ""
    yield heading(advice.prediction.scenario)
    yield verdict(advice.prediction)
    yield notes("", advice.prediction.evidence.sentences())
    yield notes(ASSUMED, assumption_lines(advice.prediction))
    yield ""
    yield _stages(advice.memory)
    yield ""
    if advice.prediction.scenario.workload.recipe.tokens is None:
        line = "The files name no steps or samples: --set training.tokens=N gives days and USD."
        yield notes("", [line])
    if not advice.changes:
        yield notes("Changes", ["No other layout of this job is faster by 1 % or more."])
        return
    yield _changes(advice)
    parts = zip(advice.changes, advice.changed, advice.unsaid, strict=True)
    for number, (change, files, unsaid) in enumerate(parts, 1):
        lines = _difference(advice, files)
        if unsaid:
            by_hand = change_words(change.fields, unsaid)
            lines.append(f"These files do not say all of it; to be set by hand: {by_hand}")
        yield notes(f"Change {number}: {change_words(change.fields)}", lines)


def _changes(advice: Advice) -> Table:
    money = "USD" + MARK * advice.prediction.outcome.price.assumed
    table = plain_table(
        "change", "choices", "step", "faster", "whole run", money, "GiB", left=("change",)
    )
    for change in (None, *advice.changes):
        prediction = advice.prediction if change is None else change.prediction
        days, usd = float(prediction.outcome.days[0]), float(prediction.outcome.usd[0])
        gain = "" if change is None else _gain(change.gain)
        table.add_row(
            "as it is" if change is None else change_words(change.fields),
            "" if change is None else str(len(change.choices)),
            show_seconds(prediction.step_time_s) + ("" if prediction.fits else " (OOM)"),
            gain,
            show_days(days) if math.isfinite(days) else "",
            show_usd(usd) if math.isfinite(usd) else "",
            gib(prediction.memory_bytes),
        )
    return table


def _gain(gain: float) -> str:
    return "fits" if math.isinf(gain) else show_percent(gain)


def _stages(memory: Fitting) -> Table:
    """Memory of the pipeline stages against the HBM line; stages that are alike share a row."""
    table = plain_table("stage", "GiB", "P90", "free", "verdict", left=("stage", "verdict"))
    ranks = memory.ranks
    words = memory.ranks.verdict(memory.usable_bytes)
    rows: list[tuple[int, int, tuple[str, ...]]] = []
    for rank, total in enumerate(ranks.total_bytes):
        p90 = float(ranks.p90_bytes[rank])
        cells: tuple[str, ...] = (
            gib(float(total)),
            gib(p90) if math.isfinite(p90) else "",
            gib(memory.usable_bytes - float(total)),
            str(_word(words, rank)),
        )
        if rows and rows[-1][2] == cells:
            rows[-1] = (rows[-1][0], rank, cells)
        else:
            rows.append((rank, rank, cells))
    for first, last, cells in rows[:16]:
        table.add_row(str(first) if first == last else f"{first} to {last}", *cells)
    return table


def _word(words: Any, rank: int) -> str:
    return VERDICTS[int(words[rank])]


def _difference(advice: Advice, files: dict[str, str]) -> list[str]:
    """Lines of the files that change."""
    if not files:
        return ["no file given states what changes: set it where the run is told its layout"]
    lines: list[str] = []
    for path, text in files.items():
        before = advice.texts[path].splitlines()
        unified_diff = difflib.unified_diff(before, text.splitlines(), lineterm="", n=0)
        lines += [
            path,
            *(line for line in unified_diff if line[:3] not in ("---", "+++") and line[:2] != "@@"),
        ]
    more = len(lines) - _MOST_LINES
    kept = [visible(line) for line in lines[:_MOST_LINES]]
    return [*kept, *([f"and {more} more lines"] if more > 0 else [])]
