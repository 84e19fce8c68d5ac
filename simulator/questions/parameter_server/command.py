"""`foreshard parameter-server`: one run with servers that hold the weights, against all-reduce."""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli.option_groups import ScenarioOptions
from simulator.cli.options import ScenarioFile, Set
from simulator.cli.runner import Reply, question

Play = Annotated[
    bool, typer.Option("--play", help="Play rounds on discrete events beside the analytical model.")
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Of the played steps.")]


@question("parameter-server", "parameter-server run.toml --play")
def ask(
    *,
    scenario: ScenarioFile = None,
    overrides: Set = None,
    play: Play = False,
    seed: Seed = 0,
) -> Reply:
    """Find what a run takes with the servers of [parameter_server], and with all-reduce.

    Exit 0: done; 1: no layout fits a worker; 2: bad input.
    """
    from simulator.questions.parameter_server.answer import parameter_server, with_play
    from simulator.questions.parameter_server.screen import screen

    answer = parameter_server(ScenarioOptions(overrides=overrides).scenario(scenario)[0])
    if play:
        answer = with_play(answer, seed)
    return Reply(answer, screen, feasible=answer.crew is not None)
