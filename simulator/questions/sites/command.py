"""`foreshard sites`: one run over several sites, against one place and against waiting for it."""

from __future__ import annotations

from simulator.cli.option_groups import ScenarioOptions
from simulator.cli.options import ScenarioFile, Set
from simulator.cli.runner import Reply, question


@question("sites", "sites run.toml")
def ask(*, scenario: ScenarioFile = None, overrides: Set = None) -> Reply:
    """Find what a run takes over the places of [sites], and against the one place of [cluster].

    Exit 0: done; 1: nothing fits at one of the sites; 2: bad input.
    """
    from simulator.questions.sites.answer import several_sites
    from simulator.questions.sites.screen import screen

    answer = several_sites(ScenarioOptions(overrides=overrides).scenario(scenario)[0])
    return Reply(answer, screen, feasible=answer.cycle is not None)
