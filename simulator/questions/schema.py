"""`foreshard schema`: what a scenario file may hold, for an editor that checks it as one types."""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli.options import print_json
from simulator.cli.runner import question
from simulator.errors import InputError, problem

What = Annotated[str, typer.Argument(metavar="[WHAT]", help="scenario: the file that others read.")]


@question("schema", "schema", "schema scenario")
def ask(*, what: What = "scenario") -> None:
    """Print the JSON Schema of a scenario file: sections, fields, bounds, what each means.

    Editors check and complete scenarios by it (`#:schema FILE` in the first line, for TOML).
    """
    from simulator.report.scenario_fields import scenario_schema

    if what != "scenario":
        raise InputError(problem("command line", "WHAT", "must be scenario", what))
    print_json(scenario_schema())
