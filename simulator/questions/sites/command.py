"""`foreshard sites`: one run over several sites, against one place and against waiting for it."""

from __future__ import annotations

from simulator.cli.option_groups import Names
from simulator.cli.options import Json, ScenarioFile, Set, speaking, tell


def command(scenario: ScenarioFile = None, overrides: Set = None, as_json: Json = False) -> None:
    """Find what a run takes over the places of [sites], and against the one place of [cluster].

    Exit 0: done; 1: nothing fits at one of the sites; 2: bad input.
    """
    with speaking():
        from simulator.questions.sites.answer import several_sites
        from simulator.questions.sites.screen import show

        answer = several_sites(Names(overrides=overrides).scenario(scenario)[0])
        tell(answer, show, as_json=as_json, feasible=answer.cycle is not None)
