"""`foreshard what-if`: the best layout before and after a change."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.option_groups import NAMES, Names, taking
from simulator.cli.options import (
    Json,
    ScenarioFile,
    speaking,
    tell,
)

if TYPE_CHECKING:
    from simulator.scenario import Scenario

Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--change",
        metavar="NAME=VALUE",
        help="network.adapter=0.5, memory=+20%, network.adapters=4, training.global_batch=4096;"
        " may be repeated, all are made together.",
    ),
]


Fabrics = Annotated[
    bool,
    typer.Option(
        "--fabrics",
        help="Try fabrics in place of changes: 1 to 8 adapters a server of 100 to 800 Gbit/s, rails"
        " or not, over-subscription 1 to 8, fast domain 8 or 72; time and dollars of each.",
    ),
]


@taking
def command(
    scenario: ScenarioFile = None,
    names: Names = NAMES,
    change: Changes = None,
    fabrics: Fabrics = False,
    as_json: Json = False,
) -> None:
    """Say what a change would do: the best layout before and after, both searched.

    Exit 0: done; 1: nothing fits, before or after; 2: bad input.
    """
    with speaking():
        from simulator.cli.screen import waiting
        from simulator.questions.versus.screen import show_what_if
        from simulator.questions.versus.what_if import what_if

        described, assumed = names.scenario(scenario)
        if fabrics:
            _fabrics(described, change, as_json=as_json)
            return
        with waiting("searching twice"):
            answer = what_if(described, change or ())
        tell(answer, partial(show_what_if, assumed=assumed), as_json=as_json, feasible=True)


def _fabrics(scenario: Scenario, changes: list[str] | None, *, as_json: bool) -> None:
    """Price the scenario on every candidate fabric."""
    from simulator.cli.screen import waiting
    from simulator.errors import InputError
    from simulator.questions.versus.fabrics import fabric_choices
    from simulator.questions.versus.fabrics_screen import show_fabrics

    if changes:
        raise InputError("arguments: --change: must be left out with --fabrics")
    with waiting("pricing fabrics"):
        answer = fabric_choices(scenario)
    tell(answer, show_fabrics, as_json=as_json, feasible=True)
