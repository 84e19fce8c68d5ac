"""`foreshard fields`: what a scenario may say."""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli.options import Json, print_json, speaking

Name = Annotated[
    str,
    typer.Argument(metavar="[NAME]", help="A section, a table in it, or a field: training, tp."),
]


def command(name: Name = "", as_json: Json = False) -> None:
    """List every field of a scenario: what it means, its unit, its default and that one's grade.

    docs/scenario.md is the same as a page.
    """
    with speaking():
        from simulator.report.scenario_fields import fields_document, wanted_fields

        found = wanted_fields(name)
        if as_json:
            print_json(fields_document(found))
        else:
            from simulator.questions.catalogue.fields_screen import show

            show(found)
