"""The screen of `foreshard explain`."""

from __future__ import annotations

from collections.abc import Iterable

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from simulator.cli.screen import amount, console, gib, plain_table, seconds_like
from simulator.planner.sensitivity import UNSTATED
from simulator.report.explained import Explained, Value
from simulator.units import show_percent, show_seconds

_FIGURES = 8
"""Figures named on the screen; --json has them all."""


def show_list(terms: Iterable[Explained]) -> None:
    """Print every term in a line or two."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("term", no_wrap=True)
    table.add_column("unit", no_wrap=True)
    table.add_column("formula", overflow="fold")
    for term in terms:
        table.add_row(term.name, term.unit, term.formula)
    console().print(table)


def show(one: Explained) -> None:
    """Print all that is known of a term."""
    screen = console()
    screen.print(Text(one.name, style="bold").append(f"  {one.label}", style="not bold"))
    for title, text in (
        ("formula", one.formula),
        ("when", one.when),
        ("source", one.source),
        ("figures", one.figures),
    ):
        if text:
            grid = Table.grid(padding=(0, 2))
            grid.add_column(width=8)
            grid.add_column(overflow="fold")
            grid.add_row(title, text)
            screen.print(Padding(grid, (0, 0, 0, 2)))
    if one.value is not None:
        screen.print()
        _show_value(one, one.value)


def _show_value(one: Explained, value: Value) -> None:
    screen = console()
    if one.unit == "s":
        shown = f"{show_seconds(value.amount)}, {show_percent(value.share)} of the step"
    else:
        shown = f"{gib(value.amount)} GiB, {show_percent(value.share)} of the fullest GPU's memory"
    screen.print(Text(f"{value.layout}: {shown}", style="bold"))
    if value.hidden_s:
        screen.print(f"and {show_seconds(value.hidden_s)} hidden under compute")
    for name, number in value.inputs.items():
        screen.print(f"  {name}: {number:,.6g}")
    if not value.effects:
        return
    unit, scale = seconds_like(value.amount)
    words = ("profile", "figure", "grade")
    table = plain_table(
        "profile", "figure", "value", "grade", "larger by", f"term ({unit})", left=words
    )
    for effect in value.effects[:_FIGURES]:
        known = effect.figure
        moved = show_percent(effect.moved) + ("" if known.spread else " *")
        change = amount(scale * effect.change_s)
        table.add_row(known.profile, known.name, f"{known.value:.4g}", known.grade, moved, change)
    screen.print(table)
    more = len(value.effects) - _FIGURES
    rest = f"{more} more figures move it, in --json. " if more > 0 else ""
    screen.print(Text(f"{rest}* no spread stated: {show_percent(UNSTATED)} taken."))
