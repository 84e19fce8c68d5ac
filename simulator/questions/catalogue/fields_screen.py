"""The screen of `foreshard fields`: two lines and a sentence a field."""

from __future__ import annotations

from itertools import groupby

from rich.padding import Padding
from rich.text import Text

from simulator.cli.screen import console
from simulator.report.scenario_fields import Field, about


def show(fields: list[Field]) -> None:
    """Print fields, a heading for each section."""
    screen = console()
    for section, mine in groupby(fields, key=lambda field: field.name.partition(".")[0]):
        screen.print(Text(f"[{section}]  {about(section)}", style="bold"))
        for field in mine:
            name = Text(f"  {field.name.partition('.')[2]}", style="bold cyan")
            screen.print(name.append(f"  {_terms(field)}", style="not bold default"))
            screen.print(Padding(Text(field.sentence), (0, 0, 0, 6)))
        screen.print()


def _terms(field: Field) -> str:
    """What may be given, in what unit, and what stands where nothing is."""
    default = f"default {field.default} ({field.grade})" if field.default else ""
    rest = "required" if field.required else default
    return "; ".join(filter(None, (field.kind, field.unit, rest)))
