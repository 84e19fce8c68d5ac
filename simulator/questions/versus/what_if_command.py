"""`foreshard what-if`: the best layout before and after a change."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.option_groups import ScenarioOptions
from simulator.cli.options import (
    ScenarioFile,
)
from simulator.cli.runner import Reply, question

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


@question("what-if", "what-if run.toml --change network.adapter=0.5 --change memory=+20%")
def ask(
    *,
    scenario: ScenarioFile = None,
    options: ScenarioOptions,
    change: Changes = None,
    fabrics: Fabrics = False,
) -> Reply:
    """Say what a change would do: the best layout before and after, both searched.

    Exit 0: done; 1: nothing fits, before or after; 2: bad input.
    """
    from simulator.cli.screen import waiting
    from simulator.questions.versus.screen import what_if_screen
    from simulator.questions.versus.what_if import what_if

    described, assumed = options.scenario(scenario)
    if fabrics:
        return _fabrics(described, change)
    with waiting("searching twice"):
        answer = what_if(described, change or ())
    return Reply(answer, partial(what_if_screen, assumed=assumed))


def _fabrics(scenario: Scenario, changes: list[str] | None) -> Reply:
    """Price the scenario on every candidate fabric."""
    from simulator.cli.screen import waiting
    from simulator.errors import InputError
    from simulator.questions.versus.fabrics import fabric_choices
    from simulator.questions.versus.fabrics_screen import fabrics_screen

    if changes:
        raise InputError("arguments: --change: must be left out with --fabrics")
    with waiting("pricing fabrics"):
        answer = fabric_choices(scenario)
    return Reply(answer, fabrics_screen)
