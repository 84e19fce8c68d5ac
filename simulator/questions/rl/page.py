"""The page of `foreshard rl`: every split in a table to sort, the step as two lanes, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulator.glossary import CAVEATS
from simulator.questions.compare.offers_page import Cell, offers_page
from simulator.questions.rl.picture import rl_picture
from simulator.report.inline_svg import inline
from simulator.units import show_bytes, show_percent, show_seconds, show_usd

if TYPE_CHECKING:
    from simulator.questions.rl.answer import Priced, PricedRL
    from simulator.reinforcement.remedies import Remedy

_COLUMNS = {
    "mode": True,
    "train": False,
    "generate": False,
    "engine": True,
    "step": False,
    "trainer waits": False,
    "generator waits": False,
    "1,000 updates": False,
    "memory": False,
    "trainer's layout": True,
}
"""Columns, and whether they hold words."""


def rl_page(answer: PricedRL) -> str:
    """Write an answer as one page that needs nothing else."""
    shown, rows = answer.shown, answer.rows
    assert shown is not None
    shapes = (rl_picture(answer, narrow=phone, svg=True) for phone in (False, True))
    wide, narrow = (shape.svg(head=False) for shape in shapes)
    name = answer.scenario.workload.architecture.name
    alt = "What generator and trainer do in two steps, and when each waits"
    return offers_page(
        "rl",
        f"{name}: {answer.line}",
        f"{shown.step.rl.algorithm.upper()}, {shown.step.rl.answers:,} answers a step on"
        f" {shown.step.all_gpus:,} accelerators; {shown.card.grade}",
        list(_COLUMNS.items()),
        [_cells(row) for row in rows],
        table="Splits",
        naming=3,
        picture=("Two steps", inline(wide, narrow, alt=alt)),
        parts=[
            ("Time of a step", ["phase", "time", "of the step"], _phases(shown)),
            ("Memory", ["phase", "memory", "usable", "", "holds"], _memory(shown)),
        ],
        views=[
            ("Would help", [_told(remedy) for remedy in answer.told]),
            (CAVEATS, list(answer.caveats)),
        ],
    )  # fmt: skip


def _phases(shown: Priced) -> list[list[str]]:
    whole = shown.step.step_time_s
    rows = [
        [word, show_seconds(seconds), show_percent(seconds / whole)]
        for word, seconds in shown.phases
    ]
    return [*rows, ["a step", show_seconds(whole), ""]]


def _memory(shown: Priced) -> list[list[str]]:
    return [
        [
            *(name, show_bytes(side.total_bytes), show_bytes(side.usable_bytes), side.verdict),
            ", ".join(f"{kind} {show_bytes(size)}" for kind, size in side.largest),
        ]
        for name, side in shown.step.memory.items()
    ]


def _told(remedy: Remedy) -> str:
    step = show_seconds(remedy.step_time_s)
    return f"{remedy.setting}: {step} a step ({remedy.why})"


def _cells(row: dict[str, Any]) -> list[Cell]:
    lag = f", {row['staleness']} off" if row["staleness"] else ""
    naming: list[Cell] = [
        (row["mode"], row["mode"] + lag, ""),
        *((row[key], f"{row[key]:,}", "") for key in ("training_gpus", "generation_gpus")),
        (row["generation_layout"], row["generation_layout"], ""),
    ]
    if row["step_time_s"] is None:
        blank: Cell = (None, "-", "")
        return [*naming, *[blank] * 5, (row["reason"], row["reason"], "")]
    return [
        *naming,
        (row["step_time_s"], show_seconds(row["step_time_s"]), ""),
        (row["trainer_waits"], show_percent(row["trainer_waits"]), ""),
        (row["generator_waits"], show_percent(row["generator_waits"]), ""),
        (row["usd"], show_usd(row["usd"]), ""),
        (row["verdict"], row["verdict"], ""),
        (row["layout"], row["layout"], ""),
    ]
