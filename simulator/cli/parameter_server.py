"""`foreshard parameter-server`: one run with servers that hold the weights, against all-reduce."""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli.options import (
    INFEASIBLE,
    Json,
    ScenarioFile,
    Set,
    print_json,
    scenario_of,
    speaking,
)

__all__ = ["command"]

Play = Annotated[
    bool, typer.Option("--play", help="Play rounds on discrete events beside the closed form.")
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Of the played steps.")]


def command(
    scenario: ScenarioFile = None,
    overrides: Set = None,
    play: Play = False,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Find what a run takes with the servers of [parameter_server], and with all-reduce.

    Exit 0: done; 1: no layout fits a worker; 2: bad input.
    """
    with speaking():
        from simulator.decisions.parameter_servers import parameter_server

        names = {"model": None, "cluster": None, "gpus": None, "software": None}
        described, _ = scenario_of(scenario, **names, overrides=overrides)
        answer, played = parameter_server(described), None
        if play and answer.crew is not None and answer.round is not None:
            from simulator.events.served_run import play_servers

            kind, bound = answer.section.consistency, answer.section.staleness
            played = play_servers(answer.crew, answer.round, kind, staleness=bound, seed=seed)
        if as_json:
            from simulator.report.technique_documents import parameter_server_document

            print_json(parameter_server_document(answer, played))
        else:
            from simulator.cli.screen_parameter_server import show

            show(answer, played)
        if answer.crew is None:
            raise typer.Exit(INFEASIBLE)
