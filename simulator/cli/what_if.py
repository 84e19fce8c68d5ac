"""`foreshard what-if`: the best layout before and after a change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.options import (
    ClusterName,
    Gpus,
    Json,
    ModelName,
    ScenarioFile,
    Set,
    SoftwareName,
    print_json,
    scenario_of,
    speaking,
)

if TYPE_CHECKING:
    from simulator.scenario import Scenario

__all__ = ["command"]

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


def command(
    scenario: ScenarioFile = None,
    model: ModelName = None,
    cluster: ClusterName = None,
    gpus: Gpus = None,
    software: SoftwareName = None,
    overrides: Set = None,
    change: Changes = None,
    fabrics: Fabrics = False,
    as_json: Json = False,
) -> None:
    """Say what a change would do: the best layout before and after, both searched.

    Exit 0: done; 1: nothing fits, before or after; 2: bad input.
    """
    with speaking():
        from simulator.cli.screen import waiting
        from simulator.decisions.changed_machine import what_if

        described, assumed = scenario_of(
            scenario,
            model=model,
            cluster=cluster,
            gpus=gpus,
            software=software,
            overrides=overrides,
        )
        if fabrics:
            _fabrics(described, change, as_json=as_json)
            return
        with waiting("searching twice"):
            answer = what_if(described, change or ())
        if as_json:
            from simulator.report.decision_documents import what_if_document

            print_json(what_if_document(answer))
        else:
            from simulator.cli.screen_versus import show_what_if

            show_what_if(answer, assumed)


def _fabrics(scenario: Scenario, changes: list[str] | None, *, as_json: bool) -> None:
    """Price the scenario on every candidate fabric."""
    from simulator.cli.screen import waiting
    from simulator.decisions.fabric_choices import fabric_choices
    from simulator.errors import InputError

    if changes:
        raise InputError("arguments: --change: must be left out with --fabrics")
    with waiting("pricing fabrics"):
        answer = fabric_choices(scenario)
    if as_json:
        from simulator.report.decision_documents import fabrics_document

        print_json(fabrics_document(answer))
    else:
        from simulator.cli.screen_fabrics import show_fabrics

        show_fabrics(answer)
