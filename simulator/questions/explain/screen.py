"""The screen of `foreshard explain`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from simulator.cli.screen import amount, gib, seconds_like
from simulator.planner.sensitivity import UNSTATED
from simulator.questions.predict.screen import effects_table
from simulator.report.explained import Explained, Value
from simulator.units import show_percent, show_seconds

_FIGURES = 8
"""Figures named on the screen; --json has them all."""


def list_screen(terms: Iterable[Explained]) -> Iterator[RenderableType]:
    """Give every term in a line or two."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("term", no_wrap=True)
    table.add_column("unit", no_wrap=True)
    table.add_column("formula", overflow="fold")
    for term in terms:
        table.add_row(term.name, term.unit, term.formula)
    yield table


def term_screen(terms: Sequence[Explained]) -> Iterator[RenderableType]:
    """Give all that is known of a term."""
    (term,) = terms
    yield Text(term.name, style="bold").append(f"  {term.label}", style="not bold")
    for title, text in (
        ("formula" if term.unit else "means", term.formula),
        ("when", term.when),
        ("source", term.source),
        ("figures", term.figures),
    ):
        if text:
            grid = Table.grid(padding=(0, 2))
            grid.add_column(width=8)
            grid.add_column(overflow="fold")
            grid.add_row(title, text)
            yield Padding(grid, (0, 0, 0, 2))
    if term.value is not None:
        yield ""
        yield from _value(term, term.value)


def _value(term: Explained, value: Value) -> Iterator[RenderableType]:
    if term.unit == "s":
        shown = f"{show_seconds(value.amount)}, {show_percent(value.share)} of the step"
    else:
        shown = f"{gib(value.amount)} GiB, {show_percent(value.share)} of peak memory (worst rank)"
    yield Text(f"{value.layout}: {shown}", style="bold")
    if value.hidden_s:
        yield f"and {show_seconds(value.hidden_s)} hidden under compute"
    for name, number in value.inputs.items():
        yield f"  {name}: {number:,.6g}"
    if not value.effects:
        return
    unit, scale = seconds_like(value.amount)
    change = (f"term ({unit})", lambda effect: amount(scale * effect.change_s))
    yield effects_table(value.effects[:_FIGURES], "larger by", change)
    more = len(value.effects) - _FIGURES
    rest = f"{more} more figures move it, in --json. " if more > 0 else ""
    yield Text(f"{rest}* no spread stated: {show_percent(UNSTATED)} taken.")
