"""The figures behind a step time, most telling first: the table of ``predict --figures``."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from simulator.cli.screen import console, plain_table
from simulator.planner.sensitivity import UNSTATED, FigureEffect
from simulator.units import show_percent

_LEAST = 5e-5
"""Changes of the step time below this share are counted, not listed."""


def show_figures(effects: Sequence[FigureEffect], step_s: float) -> None:
    """Print what every figure does to a step time; those that hardly move it are counted."""
    listed = [effect for effect in effects if abs(effect.change_s) > _LEAST * step_s]
    words = ("profile", "figure", "grade")
    table = plain_table(
        "profile", "figure", "value", "grade", "made larger by", "step time", left=words
    )
    for effect in listed:
        known = effect.figure
        table.add_row(
            known.profile,
            known.name,
            f"{known.value:.4g}",
            known.grade,
            show_percent(effect.moved) + ("" if known.spread else " *"),
            f"{100.0 * effect.change_s / step_s:+.2f} %",
        )
    screen = console()
    screen.print()
    screen.print(Text("Figures behind the step time"))
    screen.print(table)
    rest = len(effects) - len(listed)
    screen.print(
        Text(
            f"* its profile states no spread: {show_percent(UNSTATED)} taken."
            f" {rest} more figures move the step time by less than 0.005 %."
            " Sources: foreshard profiles show KIND NAME."
        )
    )
