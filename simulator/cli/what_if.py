"""`foreshard what-if`: the best layout before and after a change."""

from __future__ import annotations

from typing import Annotated

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


def command(
    scenario: ScenarioFile = None,
    model: ModelName = None,
    cluster: ClusterName = None,
    gpus: Gpus = None,
    software: SoftwareName = None,
    overrides: Set = None,
    change: Changes = None,
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
        with waiting("searching twice"):
            answer = what_if(described, change or ())
        if as_json:
            from simulator.report.decision_documents import what_if_document

            print_json(what_if_document(answer))
        else:
            from simulator.cli.screen_versus import show_what_if

            show_what_if(answer, assumed)
